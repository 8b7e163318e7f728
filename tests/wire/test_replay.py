"""Which downlink sends what: replies where they reach, theta where they do not, and the fewer bytes of the two."""

from __future__ import annotations

import pytest
import torch

from cotune.core.contracts import Downlink
from cotune.core.errors import Code, CotuneError
from cotune.core.journal import Increment, Reply
from cotune.core.spec import Entry, Role, Scope, Spec
from cotune.core.state import Theta
from cotune.laws import ListJournal
from cotune.method import Method
from cotune.optim import ZO, AdamW
from cotune.trainable import LoRA
from cotune.wire import AutoDownlink, ReplayDownlink, payload, size
from cotune.wire.envelope import layouts_of

SPEC = Spec((Entry("a", (5, 20), Role.FULL, "a"), Entry("b", (3,), Role.FULL, "b")))
SCOPE = Scope(SPEC.names, SPEC.names, SPEC.names)
START = Theta({entry.name: torch.zeros(entry.shape) for entry in SPEC})


def refold(theta: Theta, increment: Increment) -> Theta:
    """Adds what the first reply says: any fold would do."""
    step = increment.replies[0].scalars["x"][0]
    return Theta({name: tensor + step for name, tensor in theta.items()})


def rounds(kinds: str) -> tuple[list[Theta], ListJournal]:
    """Versions 0, 1, 2, … and the journal: `s` for a round of scalars, `t` for one in which tensors came too."""
    versions, journal = [START], ListJournal()
    for round_, kind in enumerate(kinds, start=1):
        reply = Reply(0, round_, 1.0, {"x": torch.full((4,), float(round_))})
        journal.append(Increment(round_, SPEC.names, replies=(reply,) if kind == "s" else ()))
        moved = refold(versions[-1], Increment(round_, (), replies=(reply,)))
        versions.append(moved if kind == "s" else Theta({n: t - 1 for n, t in versions[-1].items()}))
    return versions, journal


def sent(downlink: Downlink, kinds: str, held: int) -> str:
    """What comes down after these rounds to a client that holds an older version, once it arrived at the newest."""
    versions, journal = rounds(kinds)
    parts = downlink.pack(versions[-1], SCOPE, journal, held)
    assert downlink.open(parts, versions[held], refold).sha256() == versions[-1].sha256()
    assert layouts_of(parts) == downlink.layout(SPEC, SCOPE, journal.since(held))
    (part,) = parts
    return part if parts[part] else "nothing"


def test_every_round_of_scalars_is_replayed_from_the_start_or_any_version() -> None:
    assert [sent(ReplayDownlink(), "ssss", held) for held in range(5)] == ["replay"] * 4 + ["nothing"]


def test_a_round_with_a_tensor_in_it_comes_down_dense_and_later_ones_are_replayed() -> None:
    assert [sent(ReplayDownlink(), "stss", held) for held in range(5)] == [
        "theta",
        "theta",
        "replay",
        "replay",
        "nothing",
    ]


def test_a_client_that_missed_more_rounds_than_are_kept_gets_theta() -> None:
    for downlink in (ReplayDownlink(keep=2), AutoDownlink(keep=2)):
        assert [sent(downlink, "ssss", held) for held in range(5)] == ["theta", "theta", "replay", "replay", "nothing"]


def test_of_the_two_the_automatic_one_takes_what_is_fewer_bytes_framing_included() -> None:
    kinds = "s" * 15
    versions, journal = rounds(kinds)
    theta = sum(size({"theta": {e.name: ("float32", e.shape) for e in SPEC}}, 0))
    for held in range(len(versions)):
        replay = sum(size(layouts_of(ReplayDownlink().pack(versions[-1], SCOPE, journal, held)), 0))
        auto = AutoDownlink().pack(versions[-1], SCOPE, journal, held)
        assert sum(size(layouts_of(auto), 0)) == min(theta, replay)
        sent(AutoDownlink(), kinds, held)
    assert {sent(AutoDownlink(), kinds, held) for held in range(16)} == {"theta", "replay", "nothing"}


def test_a_reply_costs_its_scalars_and_24_bytes() -> None:
    versions, journal = rounds("sss")
    for held, missed in ((0, 3), (2, 1)):
        parts = ReplayDownlink().pack(versions[-1], SCOPE, journal, held)
        assert sum(payload(layouts_of(parts)).values()) == missed * (4 * 4 + 24)


@pytest.mark.parametrize("kind", ["replay", "auto"])
def test_what_can_never_be_replayed_is_refused_in_words(kind: str) -> None:
    lora, zo, budget = LoRA(rank=2), ZO(lr=0.1), {"steps": 1}
    fits = {"trainable": lora, "budget": budget, "optimizer": zo, "uplink": "scalars", "downlink": kind}
    assert Method.model_validate(fits).downlink.kind == kind
    for change, missing in (
        ({"uplink": "tensors"}, "scalars"),
        ({"optimizer": AdamW(lr=0.1), "uplink": "tensors"}, "scalars"),
        ({"aggregator": "product-svd"}, "elementwise"),
        ({"aggregator": "residual"}, "elementwise"),
        ({"optimizer": AdamW(lr=0.1)}, "replay"),
    ):
        with pytest.raises(CotuneError, match=f"needs '{missing}'") as caught:
            Method.model_validate({**fits, **change})
        assert caught.value.code is Code.CONFLICT
