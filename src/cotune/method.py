"""A method is a value: a composition of parts. Papers and baselines differ in nothing else.

Method(trainable, budget, penalties, optimizer, personalize, uplink, downlink, aggregator, share)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, SerializeAsAny, ValidationInfo, model_validator

from cotune import aggregate, optim, penalty, personalize, trainable, wire
from cotune.core.contracts import (
    Aggregator,
    ClientPart,
    Downlink,
    Optimizer,
    Penalty,
    Personalize,
    Trainable,
    Uplink,
)
from cotune.core.errors import Code, CotuneError
from cotune.core.journal import Increment
from cotune.core.part import OF_THE_BACKBONE, Capability, Part, check_fit, resolve
from cotune.core.spec import Role, Scope, Spec
from cotune.core.view import Budget

# Every room of a method, by the name that its TOML table has.
ROOMS: Mapping[str, Mapping[str, type[Part]]] = {
    "trainable": trainable.KINDS,
    "penalty": penalty.KINDS,
    "optimizer": optim.KINDS,
    "personalize": personalize.KINDS,
    "uplink": wire.UPLINKS,
    "downlink": wire.DOWNLINKS,
    "aggregator": aggregate.KINDS,
}


def _of(room: str) -> BeforeValidator:
    return BeforeValidator(lambda value: resolve(room, ROOMS[room], value))


# What FedNL calls its two settings: everything that trains, or the rules of the memory alone.
SHARES: Mapping[str, str | tuple[Role, ...]] = {"theta": "all", "memory": (Role.RULE,)}


def _share(value: Any) -> Any:
    return SHARES.get(value, value) if isinstance(value, str) else value


# How a method is validated for some clients of a run: its downlink is the server's, and fits the method of all.
OF_A_GROUP: Mapping[str, bool] = {"group": True}


class Method(BaseModel):
    """A frozen composition of parts; equal parts make equal methods.

    Raises:
        CotuneError: E_CONFIG for an unknown kind, E_CONFLICT when parts do not fit, in words.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    trainable: Annotated[SerializeAsAny[Trainable], _of("trainable")]
    budget: Budget
    optimizer: Annotated[SerializeAsAny[Optimizer], _of("optimizer")]
    penalties: tuple[Annotated[SerializeAsAny[Penalty], _of("penalty")], ...] = ()
    personalize: Annotated[SerializeAsAny[Personalize] | None, _of("personalize")] = None
    uplink: Annotated[SerializeAsAny[Uplink], _of("uplink")] = wire.TensorsUplink()
    downlink: Annotated[SerializeAsAny[Downlink], _of("downlink")] = wire.FullDownlink()
    aggregator: Annotated[SerializeAsAny[Aggregator], _of("aggregator")] = aggregate.Mean()
    share: Annotated[str | tuple[Role, ...], BeforeValidator(_share)] = "all"

    @model_validator(mode="after")
    def _parts_fit(self, info: ValidationInfo) -> Method:
        if isinstance(self.share, str) and self.share not in ("all", "none"):
            raise ValueError(f"share is '{self.share}'; expected 'all', 'none', 'theta', 'memory', or a list of roles")
        given = set(OF_THE_BACKBONE)
        if self.share != "none":
            given.add(Capability.ANCHOR)
        whole = info.context != OF_A_GROUP
        check_fit([row for row in self.parts if whole or row[1] is not self.downlink], given)
        self._factors_travel()
        return self

    def _factors_travel(self) -> None:
        """Raise E_CONFLICT where a part needs whole products, and one factor of each stays with its client."""
        shared = [role for role in (Role.FACTOR_A, Role.FACTOR_B) if role in self.share]
        if isinstance(self.share, str) or len(shared) == 2:
            return
        for where, part in self.parts:
            compares = Capability.ANCHOR in part.needs or (part is self.aggregator and shared)
            if Capability.FACTORS in part.needs and compares:
                got = f"share = [{', '.join(self.share)}]"
                raise CotuneError(Code.CONFLICT, f"{where} needs both factors to travel", got=got, fix="share both")

    def scope(self, spec: Spec, round_: int) -> Scope:
        """Names of a round: the trainable says what trains and goes up, the aggregator what else comes down for it."""
        scope = self.trainable.scope(spec, round_)
        return replace(scope, down=self.aggregator.moved(spec, scope.down))

    @property
    def parts(self) -> list[tuple[str, Part]]:
        """(where, part) of every part."""
        rows: list[tuple[str, Part]] = [("trainable", self.trainable), ("optimizer", self.optimizer)]
        rows += [(f"penalty {part.kind}", part) for part in self.penalties]
        rows += [("personalize", self.personalize)] if self.personalize else []
        return [*rows, ("uplink", self.uplink), ("downlink", self.downlink), ("aggregator", self.aggregator)]

    @property
    def client_parts(self) -> tuple[ClientPart, ...]:
        """The parts whose hooks a client calls, in order."""
        first = (self.personalize,) if self.personalize else ()
        return (*first, *self.penalties, self.optimizer)

    def sent(self, spec: Spec, round_: int, rows: int) -> dict[str, Any]:
        """The layouts of a client's reply in a round; what limits and predicted bytes derive from."""
        scope = self.scope(spec, round_)
        outbox: dict[str, Any] = {}
        for part in self.client_parts:
            outbox |= part.outbox(spec, scope)
        steps = self.budget.count(rows)
        layouts = {**self.uplink.layout(spec, scope, steps), **self.uplink.carries(self.optimizer.traced(steps))}
        return layouts | ({"aux": outbox} if outbox else {})

    def received(self, spec: Spec, round_: int, past: Sequence[Increment]) -> dict[str, Any]:
        """The layouts of the message that starts a round for a client, given the rounds since the version it holds."""
        layouts = dict(self.downlink.layout(spec, self.scope(spec, round_), past))
        aux = self.aggregator.broadcast(spec)
        return layouts | ({"aux": aux} if aux else {})

    @property
    def remembers(self) -> int | None:
        """How many of the last committed rounds a message may build on; None for any."""
        return None if Capability.BASE in self.aggregator.gives else self.downlink.builds_on
