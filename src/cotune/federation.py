"""Who takes part, how much each counts, how long the server waits, and what groups of clients do differently."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, model_validator

from cotune.core.contracts import ClientInfo, Optimizer, Uplink
from cotune.core.errors import Code, CotuneError
from cotune.core.part import Capability, resolve
from cotune.core.seeds import Purpose, Seeds, numpy_generator
from cotune.core.spec import Spec
from cotune.core.view import Budget
from cotune.method import OF_A_GROUP, ROOMS, Method


class Sampling(StrEnum):
    """How a cohort is drawn."""

    FIXED = "fixed"  # `cohort` clients, without replacement
    POISSON = "poisson"  # each client by itself, with probability cohort / clients
    ALL = "all"


class Weighting(StrEnum):
    """How much a reply counts."""

    EXAMPLES = "examples"  # in proportion to the rows it trained on
    UNIFORM = "uniform"


def _or_none(room: str) -> BeforeValidator:
    return BeforeValidator(lambda value: resolve(room, ROOMS[room], value))


class Evaluation(BaseModel):
    """When a model is scored, on how many rows, and whose.

    Attributes:
        every: rounds between two evaluations; the last round is always scored.
        rows: at most so many test rows, and so many of each client's held-back rows; None for all.
        which: 'none', 'global' (test rows), 'cohort' (and the held-back rows of the round's clients), or 'all' (and of
            every client).
        general: a reference of general text, by which forgetting is measured: the global model's loss on it, and how
            much higher that is than before training. For causal models.
        general_rows: at most so many of its rows, and of their windows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: Annotated[int, Field(ge=1)] = 1
    rows: Annotated[int, Field(ge=1)] | None = None
    which: Literal["none", "global", "cohort", "all"] = "cohort"
    general: str | None = None
    general_rows: Annotated[int, Field(ge=1)] = 64

    def due(self, round_: int, rounds: int) -> bool:
        """Whether a round is scored at its end."""
        return self.which != "none" and (round_ % self.every == 0 or round_ == rounds)


class Group(BaseModel):
    """Clients whose id matches, and what they do differently; the first match counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    match: str
    optimizer: Annotated[SerializeAsAny[Optimizer] | None, _or_none("optimizer")] = None
    uplink: Annotated[SerializeAsAny[Uplink] | None, _or_none("uplink")] = None
    budget: Budget | None = None
    rank: Annotated[int, Field(ge=1)] | None = None

    def method(self, method: Method) -> Method:
        """The method with what this group does differently."""
        fields = {name: getattr(self, name) for name in ("optimizer", "uplink", "budget")}
        given = {name: value for name, value in fields.items() if value is not None}
        return Method.model_validate({**dict(method), **given}, context=OF_A_GROUP) if given else method


class Federation(BaseModel):
    """The rounds of a run.

    Attributes:
        rounds: how many.
        cohort: clients a round; None for all.
        sampling: how they are drawn.
        weighting: how much a reply counts.
        deadline: seconds a client has for a round; None for no limit.
        min_replies: fewer abandon the round; None for half the cohort.
        patience: how many rounds in a row may be abandoned before the run stops.
        groups: what some clients do differently.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rounds: Annotated[int, Field(ge=1, le=10**6)] = 10
    cohort: Annotated[int, Field(ge=1)] | None = None
    sampling: Sampling = Sampling.FIXED
    weighting: Weighting = Weighting.EXAMPLES
    deadline: Annotated[float, Field(gt=0)] | None = None
    min_replies: Annotated[int, Field(ge=1)] | None = None
    patience: Annotated[int, Field(ge=1)] = 3
    groups: tuple[Group, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _all_when_no_cohort(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("cohort") is None and "sampling" not in value:
            return {**value, "sampling": Sampling.ALL}
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Federation:
        if self.sampling is not Sampling.ALL and self.cohort is None:
            raise ValueError(f"sampling '{self.sampling}' needs a cohort")
        if self.sampling is Sampling.ALL and self.cohort is not None:
            raise ValueError(f"sampling 'all' asks everyone, and a cohort of {self.cohort} is given")
        if self.sampling is Sampling.FIXED and self.min_replies and self.cohort and self.min_replies > self.cohort:
            raise ValueError(f"min_replies {self.min_replies} is more than the cohort {self.cohort}")
        return self

    def sample(self, clients: Sequence[ClientInfo], seeds: Seeds, round_: int) -> list[str]:
        """The ids of a round's cohort, sorted; clients without rows are never asked.

        Raises:
            CotuneError: E_CONFLICT when the cohort is larger than the clients that have rows.
        """
        ids = sorted(client.id for client in clients if client.rows > 0)
        if self.sampling is Sampling.ALL or self.cohort is None:
            return ids
        if self.cohort > len(ids):
            raise CotuneError(
                Code.CONFLICT,
                "the cohort is larger than the clients that have rows",
                where="federation.cohort",
                got=self.cohort,
                expected=f"at most {len(ids)}",
            )
        generator = numpy_generator(seeds.of(Purpose.SAMPLING, round_))
        if self.sampling is Sampling.POISSON:
            draws = generator.random(len(ids))
            return [client for client, draw in zip(ids, draws, strict=True) if draw < self.cohort / len(ids)]
        return sorted(ids[i] for i in generator.permutation(len(ids))[: self.cohort])

    def quorum(self, selected: int) -> int:
        """How many replies a round needs."""
        return self.min_replies or max(1, math.ceil(selected / 2))

    def weight(self, rows: int) -> float:
        """What a reply counts, before normalisation."""
        return float(rows) if self.weighting is Weighting.EXAMPLES else 1.0

    def group(self, client: str) -> Group | None:
        """The first group that a client belongs to."""
        return self._numbered(self.number(client))

    def number(self, client: str) -> int:
        """Which group that is, counted from 1; 0 for none."""
        return next((i for i, group in enumerate(self.groups, 1) if fnmatchcase(client, group.match)), 0)

    def method_of(self, client: str, method: Method) -> Method:
        """The method as this client carries it out."""
        return self.method_in(self.number(client), method)

    def spec_of(self, client: str, spec: Spec) -> Spec:
        """The table of this client's tensors."""
        return self.spec_in(self.number(client), spec)

    def method_in(self, number: int, method: Method) -> Method:
        """The method as clients of a group carry it out.

        Raises:
            CotuneError: E_CONFIG for a group that there is not.
        """
        group = self._numbered(number)
        return method if group is None else group.method(method)

    def spec_in(self, number: int, spec: Spec) -> Spec:
        """The table of the tensors of a group's clients."""
        group = self._numbered(number)
        return spec if group is None or group.rank is None else spec.ranked(group.rank)

    def _numbered(self, number: int) -> Group | None:
        if not 0 <= number <= len(self.groups):
            raise CotuneError(Code.CONFIG, "no such group", got=number, expected=f"at most {len(self.groups)}")
        return self.groups[number - 1] if number else None

    def check(self, method: Method) -> None:
        """Raise E_CONFLICT when a group asks for what the method's parts cannot do."""
        most = getattr(method.trainable, "rank", None)
        for group in self.groups:
            group.method(method)
            if group.rank is not None and most is not None and group.rank > most:
                raise CotuneError(
                    Code.CONFLICT,
                    f"group '{group.match}' has a larger rank than the trainable, which is what the server keeps",
                    where="federation.groups",
                    got=group.rank,
                    expected=f"at most {most}",
                )
            if group.rank is not None and Capability.FACTORS not in method.aggregator.gives:
                raise CotuneError(
                    Code.CONFLICT,
                    f"group '{group.match}' has its own rank, but the aggregator '{method.aggregator.kind}' adds theta "
                    "name by name",
                    where="federation.groups",
                    fix="choose an aggregator that takes factors of several ranks, or leave the rank out",
                )
