"""What every generator of synthetic rows has: options, domains, and rows that depend on their index alone."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cotune.core.errors import Code, CotuneError
from cotune.core.reference import Reference
from cotune.core.seeds import derive
from cotune.task.rows import Table

T = TypeVar("T")


class Generator(BaseModel):
    """Options of a `synth:` reference; a row is a function of them and its index.

    Attributes:
        clients: how many domains there are, in the column `domain`.
        rows: of all domains together.
        seed: of the sentences.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: ClassVar[str]  # after `synth:`
    columns: ClassVar[tuple[str, ...]]
    names: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # column -> class names

    clients: int = Field(default=8, ge=1, le=10**5)
    rows: int = Field(default=2000, ge=2, le=10**7)
    seed: int = Field(default=0, ge=0, lt=2**63)

    @abstractmethod
    def row(self, index: int) -> dict[str, object]:
        """The row at `index`, its `domain` among the columns."""

    @property
    def facts(self) -> dict[str, Any]:
        """What is known about the rows: that they are synthetic, and the best score there is."""
        return {"synthetic": True}

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (cls.__doc__ or "").strip().partition("\n")[0]

    @classmethod
    def defaults(cls) -> str:
        """The options as a reference would give them."""
        return "&".join(f"{field.alias or name}={field.default}" for name, field in cls.model_fields.items())

    @classmethod
    def table(cls, reference: Reference) -> Table:
        """The rows that the options of a reference describe.

        Raises:
            CotuneError: E_CONFIG for an unknown option, or one out of range.
        """
        try:
            options = cls.model_validate(dict(reference.options))
        except ValidationError as error:
            first = error.errors()[0]
            key = str(first["loc"][0])
            known = ", ".join(field.alias or name for name, field in cls.model_fields.items())
            what = f"no option '{key}'" if first["type"] == "extra_forbidden" else f"option '{key}': {first['msg']}"
            raise CotuneError(
                Code.CONFIG, what, where=reference.text, got=repr(first["input"]), fix=f"options are {known}"
            ) from None
        return Table(
            cls.columns,
            [options.row(index) for index in range(options.rows)],
            [("synthetic row", index + 1) for index in range(options.rows)],
            names=cls.names,
            owner="domain",
            facts=options.facts,
        )

    def draw(self, index: int) -> random.Random:
        """The generator of one row."""
        return random.Random(derive(self.seed, self.name, index))

    def domain(self, index: int) -> int:
        """The domain of one row: they take turns."""
        return index % self.clients

    def domain_name(self, index: int) -> str:
        """`domain-07`, as wide as the last one."""
        return f"domain-{self.domain(index):0{len(str(self.clients - 1))}d}"


def pick(draw: random.Random, choices: Sequence[T]) -> T:
    """One of `choices`, each as likely."""
    return choices[int(draw.random() * len(choices))]
