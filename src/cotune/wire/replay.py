"""Downlinks that send what clients sent: whoever held an older theta makes every round since again, to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from cotune.core.contracts import Downlink, Layouts
from cotune.core.journal import Increment, Journal, Refold
from cotune.core.message import Parts
from cotune.core.part import Capability
from cotune.core.spec import Scope, Spec
from cotune.core.state import Theta
from cotune.wire.downlink import ChangedDownlink, FullDownlink
from cotune.wire.envelope import layouts_of, size
from cotune.wire.log import stack, stacked, unstack


class ReplayDownlink(Downlink):
    """Every reply of the rounds since the version held, as scalars; theta where there was a reply of another kind.

    Seeds, weights and coefficients of the clients that counted go down, in the order of the fold, and the client folds
    them as the server did. A late joiner starts from version 0, which it can derive. It costs a client what the fold
    cost the server: one pass over each tensor a round, in which every direction of every client is one addition to each
    number, with float64 sums of a few million numbers at a time. Where a round since cannot be replayed, the names that
    changed since come down instead.

    Attributes:
        keep: how many of the last committed rounds are kept for this; a client that holds an older version gets theta.
            None for all.
    """

    kind: ClassVar[str] = "replay"
    holds: ClassVar[bool] = True
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.SCALARS, Capability.ELEMENTWISE})
    keep: Annotated[int, Field(ge=1, le=10**6)] | None = None

    def pack(self, theta: Theta, scope: Scope, journal: Journal, held: int) -> Parts:
        """`{replay: replies since held}`, or `{theta: …}`."""
        past = journal.since(held)
        dense = self._dense(past)
        parts = dense.pack(theta, scope, journal, held)
        return {"replay": stack(past)} if self._replays(past, layouts_of(parts)) else parts

    def open(self, parts: Parts, held: Theta, refold: Refold) -> Theta:
        """What comes of the replies, round by round, on top of what is held; or what came down."""
        theta = held.replace(parts.get("theta", {}))
        for increment in unstack(parts.get("replay", {})):
            theta = refold(theta, increment)
        return theta

    def layout(self, spec: Spec, scope: Scope, past: Sequence[Increment]) -> Layouts:
        """Tables of replies, or names and shapes of the spec."""
        dense = self._dense(past).layout(spec, scope, past)
        return {"replay": stacked(past)} if self._replays(past, dense) else dense

    @property
    def builds_on(self) -> int | None:
        """The rounds that are kept."""
        return self.keep

    def _dense(self, past: Sequence[Increment]) -> Downlink:
        """How theta comes down instead: what changed, as long as nothing is missing of what tells that."""
        return FullDownlink() if self._gone(past) else ChangedDownlink()

    def _gone(self, past: Sequence[Increment]) -> bool:
        return self.keep is not None and len(past) > self.keep

    def _replays(self, past: Sequence[Increment], dense: Layouts) -> bool:
        """Whether replies come down, in place of a theta of this layout."""
        del dense
        return not self._gone(past) and all(increment.replies for increment in past)


class AutoDownlink(ReplayDownlink):
    """As `replay`, but for clients to which theta, or what changed of it, is fewer bytes than the replies.

    The ledger has the bytes of either by part.
    """

    kind: ClassVar[str] = "auto"

    def _replays(self, past: Sequence[Increment], dense: Layouts) -> bool:
        """The same where it costs no more, framing included."""
        return super()._replays(past, dense) and _bytes({"replay": stacked(past)}) <= _bytes(dense)


def _bytes(content: Layouts) -> int:
    return sum(size(content, 0))
