"""A played round comes back from its checkpoint as it was, and increments from the journal, or the damage is named."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cotune.checkpoint import FileJournal, pack, unpack
from cotune.core.change import Base
from cotune.core.errors import Code, CotuneError
from cotune.core.journal import Increment, Reply
from cotune.core.record import Cohort, LedgerLine, Metric, RoundRecord
from cotune.core.seeds import torch_generator
from cotune.core.state import Theta, digest
from cotune.server import Played, State

SHARED = torch.arange(4.0)
FACTORS = (torch.ones(4, 1), torch.full((1, 3), 2.0))
STATE = State(
    round=7,
    theta=Theta({"z": torch.tensor([0.1, -0.0]), "a/b": torch.empty(0, 3), "m": torch.tensor(2.0**-149)}),
    server={"momentum": SHARED, "half": torch.ones(2, dtype=torch.bfloat16), "count": torch.tensor(3)},
    aux={"momentum": SHARED, "turned": torch.arange(6.0).reshape(2, 3).T},
    base=Base({"thin": FACTORS, "full/x": (torch.ones(2, 2), torch.empty(0, 2))}),
    accepted={"größe\u2028": 7, "b": 3, "\ud800": 1},
    abandoned=2,
)
LINE = LedgerLine(round=7, client="b", direction="up", purpose="train", payload_bytes={"head": 8}, framing_bytes=2)
RECORD = RoundRecord(
    round=7,
    cohort=Cohort(selected=("b",), accepted=("b",)),
    global_metrics={"loss": Metric(value=0.1, n=1, low=-float("inf"), high=float("inf"))},
)
PLAYED = Played(STATE, RECORD, (LINE,), {"loss": (0.1, 0.2)})
FILES = pack(PLAYED, {"data": "abc", "backbone": None})


def refused(action: Callable[[], object]) -> CotuneError:
    with pytest.raises(CotuneError) as caught:
        action()
    return caught.value


def with_about(**changes: Any) -> dict[str, bytes]:
    about = {**json.loads(FILES["state.json"]), **changes}
    return {**FILES, "state.json": json.dumps({k: v for k, v in about.items() if v is not ...}).encode()}


# ---- checkpoints


def test_a_played_round_comes_back_as_it_was() -> None:
    state, about = unpack(FILES)
    assert (state.round, state.abandoned, state.accepted) == (STATE.round, STATE.abandoned, STATE.accepted)
    pairs: list[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]] = [
        (state.theta, STATE.theta),
        (state.server, STATE.server),
        (state.aux, STATE.aux),
        (state.base.tensors(), STATE.base.tensors()),
    ]
    for got, expected in pairs:
        assert digest(got) == digest(expected)
    assert type(state.theta) is Theta
    assert RoundRecord.model_validate(about["record"]) == RECORD
    assert [LedgerLine.model_validate(line) for line in about["ledger"]] == [LINE]
    assert about["scores"] == {"loss": [0.1, 0.2]}
    assert (about["data"], about["backbone"]) == ("abc", None)


def test_theta_comes_back_in_its_order() -> None:
    """Sums over theta run in its order, and safetensors has none: a run would resume to other last bits."""
    names = [f"n{i}" for i in (5, 3, 9, 1, 7, 0, 8)]
    theta = Theta({name: torch.ones(1) for name in names})
    for _ in range(5):
        state, _ = unpack(pack(Played(State(1, theta), RECORD, (), {}), {}))
        assert list(state.theta) == names


def test_an_opening_state_comes_back() -> None:
    state, _ = unpack(pack(Played(State(0, Theta()), RECORD, (), {}), {}))
    assert (state.round, len(state.theta), state.server, state.aux, bool(state.base)) == (0, 0, {}, {}, False)


def test_packing_again_what_was_unpacked_gives_the_same_round() -> None:
    state, _ = unpack(FILES)
    again, _ = unpack(pack(Played(state, RECORD, (LINE,), {}), {}))
    assert again.theta.sha256() == STATE.theta.sha256()
    assert digest(again.base.tensors()) == digest(STATE.base.tensors())


def test_a_checkpoint_of_a_newer_version_is_refused_with_what_to_do() -> None:
    error = refused(lambda: unpack(with_about(version=2, record=...)))
    assert error.code is Code.VERSION
    assert "got 2, expected 1 · upgrade" in str(error)
    assert unpack(with_about(version=1))[0].round == 7


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_checkpoint_without_one_of_its_files_is_refused(name: str) -> None:
    less = {other: data for other, data in FILES.items() if other != name}
    error = refused(lambda: unpack(less))
    assert (error.code, error.status) == (Code.CHECKPOINT, 4)


@pytest.mark.parametrize("field", ["version", "round", "names", "accepted", "abandoned"])
def test_a_checkpoint_without_one_of_its_fields_is_refused(field: str) -> None:
    assert refused(lambda: unpack(with_about(**{field: ...}))).code is Code.CHECKPOINT


@pytest.mark.parametrize("names", [["z", "a/b", "nope"], 3, None])
def test_a_theta_that_is_not_the_one_recorded_is_refused(names: object) -> None:
    assert refused(lambda: unpack(with_about(names=names))).code is Code.CHECKPOINT


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.sentinel,)


@pytest.mark.parametrize("name", sorted(FILES))
def test_nothing_in_a_checkpoint_is_executed(name: str, tmp_path: Path) -> None:
    bomb = Bomb(tmp_path / "sentinel")
    saved = tmp_path / "saved.pt"
    torch.save(bomb, saved)
    for data in (pickle.dumps(bomb), saved.read_bytes(), b"", b"[]", b"null", b"\xff" * 64, b"{}"):
        assert refused(partial(unpack, {**FILES, name: data})).code is Code.CHECKPOINT
    assert not bomb.sentinel.exists()
    pickle.loads(pickle.dumps(bomb))
    assert bomb.sentinel.exists(), "the control: a careless reader executes it"


def test_a_part_that_no_server_has_is_refused() -> None:
    strange = safetensors.torch.save({"secret/x": torch.ones(1)})
    assert refused(lambda: unpack({**FILES, "server.safetensors": strange})).code is Code.CHECKPOINT
    half = safetensors.torch.save({"base/m/B": torch.ones(1, 1)})
    assert refused(lambda: unpack({**FILES, "server.safetensors": half})).code is Code.CHECKPOINT


# ---- the journal


def increment(round_: int, *names: str, rank: int = 0) -> Increment:
    generator = torch_generator(round_)
    pair = torch.randn(3, rank, generator=generator), torch.randn(rank, 4, generator=generator)
    return Increment(
        round_,
        names,
        Base({"layer/one": pair} if rank else {}),
        (Reply(rank, 2**62 + round_, 1 / 3, {"sign/0": torch.randn(2, generator=generator)}),) * rank,
    )


def plain(one: Increment) -> tuple[object, ...]:
    replies = [(reply.group, reply.seed, reply.weight, digest(reply.scalars)) for reply in one.replies]
    return one.round, one.names, digest(one.base.tensors()), replies


PLANS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 2)), unique_by=lambda pair: pair[0], max_size=6)


@given(PLANS, st.integers(0, 12), st.integers(0, 12))
def test_increments_come_back_in_the_order_of_their_rounds(plan: list[tuple[int, int]], held: int, last: int) -> None:
    with TemporaryDirectory() as folder:
        journal, made = FileJournal(Path(folder)), {}
        for round_, rank in plan:
            made[round_] = increment(round_, f"n{round_}", "größe", rank=rank)
            journal.append(made[round_])
        expected = [plain(made[round_]) for round_ in sorted(made) if round_ > held]
        assert [plain(one) for one in FileJournal(Path(folder)).since(held)] == expected
        journal.cut_after(last)
        expected = [plain(made[round_]) for round_ in sorted(made) if held < round_ <= last]
        assert [plain(one) for one in journal.since(held)] == expected


def test_the_same_round_again_replaces_its_increment(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    journal.append(increment(1, "a", rank=1))
    journal.append(increment(1, "b"))
    assert [plain(one) for one in journal.since(0)] == [plain(increment(1, "b"))]


def test_rounds_past_five_digits_stay_in_order(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    for round_ in (100_000, 99_999, 9):
        journal.append(increment(round_))
    assert [one.round for one in journal.since(0)] == [9, 99_999, 100_000]


def test_a_journal_without_a_folder_is_empty(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "journal")
    journal.cut_after(0)
    assert journal.since(0) == []
    journal.append(increment(1))
    assert len(journal.since(0)) == 1


@pytest.mark.parametrize("rank", [0, 2])
def test_one_flipped_bit_anywhere_in_an_increment_is_found(rank: int, tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    journal.append(increment(1, "name", rank=rank))
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    for place in range(len(good)):
        for bit in (0, 3, 7):
            path.write_bytes(good[:place] + bytes([good[place] ^ (1 << bit)]) + good[place + 1 :])
            error = refused(lambda: journal.since(0))
            assert error.code is Code.CHECKPOINT
            assert path.name in str(error)
    path.write_bytes(good)
    assert len(journal.since(0)) == 1


def test_an_increment_that_is_cut_zeroed_or_something_else_is_found(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    journal.append(increment(1, "name", rank=1))
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    bomb = Bomb(tmp_path.parent / "sentinel")
    without = safetensors.torch.save({"none/": torch.empty(0)})
    strange = safetensors.torch.save({"none/": torch.empty(0)}, {"increment": "[]"})
    cuts = [good[:length] for length in range(0, len(good), 11)]
    for data in (*cuts, bytes(len(good)), good + b"0", pickle.dumps(bomb), without, strange):
        path.write_bytes(data)
        assert refused(lambda: journal.since(0)).code is Code.CHECKPOINT
    assert not bomb.sentinel.exists()
    assert journal.since(1) == [], "a client that is current needs none of it"
