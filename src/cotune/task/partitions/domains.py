"""A client for each of several domains, which a map makes of the values of a column."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from cotune.core.contracts import Row
from cotune.core.errors import Code, CotuneError
from cotune.task.column import by_value, client_names
from cotune.task.partition import Partition


def _text(value: Any) -> Any:
    """Whole numbers as the texts that cells are compared by."""
    return str(value) if isinstance(value, int) else value


Values = Annotated[tuple[Annotated[str, BeforeValidator(_text)], ...], Field(min_length=1)]


class Domains(Partition):
    """A client for each domain, which is a list of values of a column.

    Attributes:
        key: the column.
        domains: the client's name -> its values, as texts; a value is in one domain at most.
        rest: the client of all other values, one of the domains or one of its own; None where there must be no others.
    """

    kind: ClassVar[str] = "domains"

    key: str
    domains: Annotated[Mapping[str, Values], Field(min_length=1)]
    rest: str | None = None

    @model_validator(mode="after")
    def _one_domain_a_value(self) -> Self:
        owners: dict[str, str] = {}
        for domain, values in self.domains.items():
            for value in values:
                if owners.setdefault(value, domain) != domain:
                    raise ValueError(f"'{value}' is in two domains, '{owners[value]}' and '{domain}'")
        return self

    def __hash__(self) -> int:
        return hash((self.key, frozenset(self.domains.items()), self.rest))

    @property
    def column(self) -> str | None:
        """`key`."""
        return self.key

    def split(self, rows: Sequence[Row], labels: Sequence[Hashable], seed: int) -> dict[str, list[int]]:
        """Client id -> positions; no seed plays a part.

        Raises:
            CotuneError: E_DATA for values in no domain where `rest` names nobody, and for a domain without a row.
        """
        del labels, seed
        where = f"column '{self.key}'"
        groups = by_value([row.get(self.key) for row in rows])
        owners = {value: domain for domain, values in self.domains.items() for value in values}
        others = [value for value in groups if value not in owners]
        if others and self.rest is None:
            count = sum(len(groups[value]) for value in others)
            raise CotuneError(
                Code.DATA,
                "rows that are of no domain",
                where=where,
                got=f"{count} rows, of {len(others)} other values",
                expected="values of a domain",
                fix="list them in task.partition.domains, or name a client for them: rest",
            )
        parts: dict[str, list[int]] = {name: [] for name in (*self.domains, *([self.rest] if self.rest else []))}
        for value, found in groups.items():
            parts[owners.get(value, self.rest or "")] += found
        for name, part in parts.items():
            if not part and name in self.domains:
                expected = f"a row with one of its {len(self.domains[name])} values"
                raise CotuneError(
                    Code.DATA, f"no row of the domain '{name}'", where=where, got="0 rows", expected=expected
                )
        kept = {name: sorted(part) for name, part in parts.items() if part}
        return dict(zip(client_names(kept), kept.values(), strict=True))
