"""What is on disk survives kills, full disks and flipped bits, or says which file did not."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.core.errors import Code, CotuneError
from cotune.core.record import ClientMetric, Cohort, LedgerLine, Metric, RoundRecord
from cotune.store import (
    LOCK,
    MANIFEST,
    Checkpoints,
    ClientStore,
    Lines,
    Run,
    Table,
    clear,
    lock,
    read_json,
    safe_name,
    write_atomic,
    write_json,
)


def refused(action: Callable[[], object]) -> CotuneError:
    with pytest.raises(CotuneError) as caught:
        action()
    return caught.value


class Killed(BaseException):
    """As little can be done about it as about a kill."""


# ---- one file


FAILURES = (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO)


def refuse(number: int) -> Callable[..., NoReturn]:
    def call(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("number", FAILURES)
@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_content_and_no_other_file(
    number: int, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder" / "file"
    write_atomic(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os if call == "fsync" else Path, call, refuse(number))
        error = refused(lambda: write_atomic(path, b"new"))
    assert (error.code, error.status) == (Code.DISK, 4)
    assert os.strerror(number) in str(error)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"


def test_the_control_writing_in_place_loses_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", refuse(errno.ENOSPC))
    with path.open("wb") as file:
        file.write(b"new")
        with pytest.raises(OSError, match="No space"):
            os.fsync(file.fileno())
    assert path.read_bytes() != b"old"


def test_a_kill_between_write_and_rename_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def kill(*_: object) -> NoReturn:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", kill)
        with pytest.raises(Killed):
            write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    write_atomic(path, b"newer")
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"newer"


def test_a_file_where_a_folder_should_be_is_an_error_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert refused(lambda: write_atomic(tmp_path / "file" / "x", b"")).code is Code.DISK
    assert refused(lambda: Lines(tmp_path / "file" / "x").append([{}])).code is Code.DISK
    assert refused(lambda: lock(tmp_path / "file" / "x").__enter__()).code is Code.DISK
    assert refused(lambda: ClientStore(tmp_path / "file" / "x").put(1, b"")).code is Code.DISK
    assert refused(lambda: Checkpoints(tmp_path / "file" / "x").write(1, {"a": b""})).code is Code.DISK


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
LEAVES = st.none() | st.booleans() | st.integers() | TEXTS


@given(LEAVES | st.dictionaries(TEXTS, LEAVES | st.lists(LEAVES) | st.dictionaries(TEXTS, LEAVES)))
def test_json_comes_back(value: object) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.json"
        write_json(path, value)
        assert read_json(path) == value
        write_json(path, ["half a pair: \ud800"])
        assert read_json(path) == ["half a pair: ?"]


@pytest.mark.parametrize("data", [None, b"", b"{", b"\xff\xfe", b"{}x"])
def test_json_that_cannot_be_read_is_an_error_with_the_name_of_the_file(data: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    if data is not None:
        path.write_bytes(data)
    error = refused(lambda: read_json(path))
    assert error.code is Code.CHECKPOINT
    assert "status.json" in str(error)


# ---- the lock


HOLD = """
import sys, time
from pathlib import Path
from cotune.core.errors import CotuneError
from cotune.store import lock
try:
    with lock(Path(sys.argv[1])):
        print("held", flush=True)
        time.sleep(float(sys.argv[2]))
except CotuneError as error:
    print(error.code, flush=True)
"""


def other_process(folder: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(folder), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def said_by(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_second_process_is_refused_and_one_that_dies_lets_go(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with lock(folder), other_process(folder, 0) as other:
        assert said_by(other) == "E_LOCK"
    with other_process(folder, 60) as holder:
        assert said_by(holder) == "held"
        error = refused(lambda: lock(folder).__enter__())
        assert (error.code, error.status) == (Code.LOCK, 4)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with lock(folder):
        assert list(folder.iterdir()) == [folder / LOCK]


def test_the_lock_is_let_go_after_an_exception(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lock(tmp_path):
        raise ZeroDivisionError
    with lock(tmp_path):
        assert refused(lambda: lock(tmp_path).__enter__()).code is Code.LOCK


# ---- lines


LINES: list[dict[str, Any]] = [{"round": i, "who": who} for i, who in enumerate(["a", "größe", "名", "x\ny", "🙂"])]


@given(st.lists(st.fixed_dictionaries({"round": st.integers(1, 9), "who": st.text()}), max_size=6), st.integers(0, 10))
def test_lines_come_back_whatever_is_in_them_and_later_rounds_can_be_cut(
    lines: list[dict[str, Any]], last: int
) -> None:
    with TemporaryDirectory() as folder:
        file = Lines(Path(folder) / "deep" / "x.jsonl")
        assert file.read() == []
        file.append(lines[:2])
        file.append(lines[2:])
        assert file.read() == lines
        file.cut_after(last)
        assert file.read() == [line for line in lines if line["round"] <= last]


@pytest.mark.parametrize("who", ["a\u2028b", "a\x85b", "a\u2029b", "a\x1cb", "a\nb", "\ud800", "\x00", "\ufeff"])
def test_no_name_breaks_a_line_in_two(who: str, tmp_path: Path) -> None:
    file = Lines(tmp_path / "x.jsonl")
    file.append([{"round": 1, "who": who}, {"round": 2}])
    assert file.read() == [{"round": 1, "who": who}, {"round": 2}]
    assert (tmp_path / "x.jsonl").read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_last_line_cut_anywhere_is_not_one_and_the_next_takes_its_place(ascii_only: bool, tmp_path: Path) -> None:
    whole = [(json.dumps(line, ensure_ascii=ascii_only) + "\n").encode() for line in LINES]
    before, last = b"".join(whole[:-1]), whole[-1]
    file = Lines(tmp_path / "x.jsonl")
    for length in range(len(last) - 1):
        file.path.write_bytes(before + last[:length])
        assert file.read() == LINES[:-1], length
        file.cut_after(99)
        file.append([{"round": 9}])
        assert file.read() == [*LINES[:-1], {"round": 9}], length


def test_lines_that_the_disk_has_no_room_for_are_an_error_of_the_disk() -> None:
    error = refused(lambda: Lines(Path("/dev/full")).append([{"round": 1}]))
    assert error.code is Code.DISK
    assert "No space left" in str(error)


# ---- checkpoints


FILES = {round_: {name: random.Random(f"{round_}{name}").randbytes(200) for name in "ab"} for round_ in range(1, 5)}


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    made = Checkpoints(tmp_path / "checkpoints")
    for round_ in (1, 2, 3):
        made.write(round_, FILES[round_])
    return made


def place(checkpoints: Checkpoints, round_: int, name: str) -> Path:
    return checkpoints.folder / f"round-{round_:05d}" / name


def test_the_last_two_are_kept_and_the_newest_is_read(checkpoints: Checkpoints) -> None:
    assert checkpoints.rounds() == [2, 3]
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["round-00002", "round-00003"]
    assert checkpoints.latest() == (3, FILES[3])


def test_there_is_none_before_the_first(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "nowhere").latest() is None
    assert Checkpoints(tmp_path).latest() is None


def test_rounds_past_five_digits_are_in_order(tmp_path: Path) -> None:
    made = Checkpoints(tmp_path)
    for round_ in (99_999, 100_000):
        made.write(round_, FILES[1])
    assert made.rounds() == [99_999, 100_000]
    found = made.latest()
    assert found is not None
    assert found[0] == 100_000


def test_the_same_round_again_replaces_it(checkpoints: Checkpoints) -> None:
    checkpoints.write(3, FILES[4])
    assert checkpoints.latest() == (3, FILES[4])
    assert checkpoints.rounds() == [2, 3]


def falls_back(checkpoints: Checkpoints) -> str:
    """The newest is passed over for the one before, and both are named; returns why."""
    told: list[tuple[str, Mapping[str, Any]]] = []
    assert checkpoints.latest(lambda name, about: told.append((name, about))) == (2, FILES[2])
    ((name, about),) = told
    assert name == "checkpoint-damaged"
    assert (about["round"], about["used"]) == (3, 2)
    return str(about["error"])


def flips(path: Path, places: Iterator[tuple[int, int]]) -> Iterator[bytes]:
    data = path.read_bytes()
    for place_, bit in places:
        changed = bytearray(data)
        changed[place_ % len(data)] ^= 1 << bit
        yield bytes(changed)


@pytest.mark.parametrize("name", ["a", "b"])
def test_one_flipped_bit_anywhere_in_a_file_is_found(name: str, checkpoints: Checkpoints) -> None:
    path = place(checkpoints, 3, name)
    chance = random.Random(name)
    for changed in flips(path, ((chance.randrange(200), chance.randrange(8)) for _ in range(100))):
        path.write_bytes(changed)
        assert f"round-00003/{name}" in falls_back(checkpoints)


def test_one_flipped_bit_anywhere_in_the_manifest_is_found(checkpoints: Checkpoints) -> None:
    path = place(checkpoints, 3, MANIFEST)
    size = path.stat().st_size
    for changed in flips(path, ((i, bit) for i in range(size) for bit in range(8))):
        path.write_bytes(changed)
        falls_back(checkpoints)


@pytest.mark.parametrize("name", ["a", "b", MANIFEST])
def test_a_file_that_is_cut_empty_zeroed_or_gone_is_found(name: str, checkpoints: Checkpoints) -> None:
    path = place(checkpoints, 3, name)
    data = path.read_bytes().rstrip()
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        falls_back(checkpoints)
    for other in (bytes(len(data)), b"{}" if name != MANIFEST else b"[]", data + b"0"):
        path.write_bytes(other)
        falls_back(checkpoints)
    path.unlink()
    falls_back(checkpoints)
    path.mkdir()
    falls_back(checkpoints)


def test_files_in_each_others_place_are_found(checkpoints: Checkpoints) -> None:
    a, b = place(checkpoints, 3, "a"), place(checkpoints, 3, "b")
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)
    falls_back(checkpoints)


@pytest.mark.parametrize("name", ["a", MANIFEST])
def test_a_file_of_an_older_round_is_found(name: str, checkpoints: Checkpoints) -> None:
    place(checkpoints, 3, name).write_bytes(place(checkpoints, 2, name).read_bytes())
    falls_back(checkpoints)


def test_when_none_is_whole_nothing_is_used(checkpoints: Checkpoints) -> None:
    for round_ in (2, 3):
        place(checkpoints, round_, "a").write_bytes(b"")
    told: list[Mapping[str, Any]] = []
    error = refused(lambda: checkpoints.latest(lambda _, about: told.append(about)))
    assert (error.code, error.status) == (Code.HASH, 4)
    assert [(about["round"], about["used"]) for about in told] == [(3, None), (2, None)]


@pytest.mark.parametrize(
    "name", ["../round-00002/a", "/etc/hostname", "./a", "sub/a", "..", ".", "", "a\x00", "../../secret"]
)
def test_a_manifest_cannot_name_a_file_elsewhere(name: str, checkpoints: Checkpoints) -> None:
    (checkpoints.folder.parent / "secret").write_bytes(b"secret")
    target = place(checkpoints, 3, name)
    known = "\x00" not in name and target.is_file()
    digest = hashlib.sha256(target.read_bytes() if known else b"").hexdigest()
    path = place(checkpoints, 3, MANIFEST)
    path.write_text(json.dumps({**json.loads(path.read_text()), name: digest}))
    falls_back(checkpoints)


@pytest.mark.parametrize("moment", ["checkpoint-writing", "checkpoint-written", "checkpoint-renamed"])
def test_a_kill_at_any_moment_of_a_write_leaves_a_whole_checkpoint(moment: str, checkpoints: Checkpoints) -> None:
    def kill(name: str, about: Mapping[str, Any]) -> None:
        del about
        if name == moment:
            raise Killed

    with pytest.raises(Killed):
        checkpoints.write(4, FILES[4], kill)
    after = 4 if moment == "checkpoint-renamed" else 3
    assert checkpoints.latest() == (after, FILES[after])
    checkpoints.write(4, FILES[4])
    assert checkpoints.latest() == (4, FILES[4])
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["round-00003", "round-00004"]


@pytest.mark.parametrize("number", FAILURES)
@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_checkpoint_that_cannot_be_written_leaves_the_ones_before(
    number: int, call: str, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os if call == "fsync" else Path, call, refuse(number))
        assert refused(lambda: checkpoints.write(4, FILES[4])).code is Code.DISK
    assert checkpoints.latest() == (3, FILES[3])


def test_a_checkpoint_whose_folder_cannot_be_renamed_leaves_the_ones_before(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.replace

    def only_files(path: Path, target: Path) -> Path:
        return refuse(errno.ENOSPC)() if path.is_dir() else rename(path, target)

    monkeypatch.setattr(Path, "replace", only_files)
    assert refused(lambda: checkpoints.write(4, FILES[4])).code is Code.DISK
    assert checkpoints.latest() == (3, FILES[3])


# ---- clients


OPERATIONS = st.lists(
    st.tuples(st.just("put"), st.integers(1, 6), st.binary(max_size=3))
    | st.tuples(st.just("settle"), st.integers(-1, 6), st.just(b"")),
    max_size=12,
)


@given(OPERATIONS)
def test_every_interleaving_keeps_the_two_newest_of_accepted_rounds_and_nothing_newer(
    operations: list[tuple[str, int, bytes]],
) -> None:
    expected: dict[int, bytes] = {}
    with TemporaryDirectory() as folder:
        for what, round_, data in operations:
            store = ClientStore(Path(folder))  # every operation in a process of its own
            if what == "put":
                store.put(round_, data)
                expected[round_] = data
            else:
                older = sorted(number for number in expected if number <= round_)[-2:]
                expected = {number: expected[number] for number in older}
                assert store.settle(round_) == (older[-1] if older else None)
            assert store.newest() == max(expected, default=None)
            assert {number: store.read(number) for number in range(1, 7)} == {
                number: expected.get(number) for number in range(1, 7)
            }


def test_an_abandoned_round_changes_nothing_and_the_next_accepted_one_counts(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    store.put(1, b"one")
    assert store.settle(1) == 1
    store.put(2, b"abandoned")
    assert store.settle(1) == 1
    assert (store.read(1), store.read(2)) == (b"one", None)
    store.put(3, b"three")
    assert store.settle(3) == 3
    # A server that falls back by a checkpoint finds what it believes in.
    assert store.settle(1) == 1
    assert (store.read(1), store.read(3)) == (b"one", None)


def test_a_kill_while_putting_leaves_the_accepted_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ClientStore(tmp_path)
    store.put(1, b"one")
    store.settle(1)

    def kill(*_: object) -> NoReturn:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", kill)
        with pytest.raises(Killed):
            store.put(2, b"two")
    assert ClientStore(tmp_path).settle(1) == 1
    assert ClientStore(tmp_path).read(1) == b"one"


def test_a_kill_while_settling_is_finished_by_the_next_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ClientStore(tmp_path)
    for round_ in (1, 2, 3, 4):
        store.put(round_, str(round_).encode())

    def kill(*_: object) -> NoReturn:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", kill)
        with pytest.raises(Killed):
            store.settle(3)
    assert ClientStore(tmp_path).settle(3) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00002.safetensors", "round-00003.safetensors"]


def test_a_client_that_forgets_holds_nothing(tmp_path: Path) -> None:
    store = ClientStore(tmp_path / "c")
    store.put(1, b"one")
    store.settle(1)
    store.put(2, b"two")
    store.forget()
    assert (store.newest(), store.read(1), store.read(2), store.settle(2)) == (None, None, None, None)
    ClientStore(tmp_path / "never there").forget()


# ---- names


HOSTILE = [
    "../x",
    "..",
    ".",
    "",
    "/etc/passwd",
    "a/b",
    "a\nb",
    "a\x00b",
    "\x1b[31m",
    "名前",
    "\ud800",
    "-rf",
    "x" * 300,
    "~",
]


@given(st.text() | st.sampled_from(HOSTILE))
def test_any_name_becomes_one_harmless_component(text: str) -> None:
    name = safe_name(text)
    assert re.fullmatch(r"[A-Za-z0-9_~.-]{1,80}", name, re.ASCII)
    assert not name.startswith((".", "-", "~"))
    assert (Path("/clients") / name).parent == Path("/clients")
    assert Path(os.path.normpath(Path("/clients") / name)).parent == Path("/clients")


@pytest.mark.parametrize("text", ["client-1", "domain_2.csv", "A", "0", "_x", "x" * 64])
def test_a_harmless_name_stays(text: str) -> None:
    assert safe_name(text) == text


@given(st.text("ab./-~", max_size=5), st.text("ab./-~", max_size=5))
def test_two_names_never_meet(one: str, two: str) -> None:
    assert (safe_name(one) == safe_name(two)) == (one == two)


def test_thousands_of_names_without_a_harmless_letter_stay_apart() -> None:
    assert len({safe_name(chr(0x4E00 + i)) for i in range(5000)}) == 5000


@pytest.mark.parametrize("text", HOSTILE)
def test_no_client_can_be_named_into_the_folder_of_another(text: str) -> None:
    assert safe_name(safe_name(text)) != safe_name(text)


# ---- what a run leaves


def test_clearing_leaves_the_lock_and_what_links_point_at(tmp_path: Path) -> None:
    folder, outside = tmp_path / "run", tmp_path / "outside"
    for path in (folder / "deep" / "x", outside / "kept", folder / LOCK):
        write_atomic(path, b"")
    (folder / "link").symlink_to(outside, target_is_directory=True)
    clear(folder)
    assert list(folder.iterdir()) == [folder / LOCK]
    assert (outside / "kept").exists()


def test_a_table_prints_in_columns() -> None:
    text = str(Table(("round", "loss"), [(1, 0.123456), (10, None)]))
    assert text.splitlines() == ["round    loss", "    1  0.1235", "   10       -"]


def record(round_: int) -> RoundRecord:
    one = Metric(value=0.25, n=1, low=-float("inf"), high=float("inf"))
    mine = {"accuracy": ClientMetric(local=0.75, federated=0.5, drop=25.0, n=4)}
    yours = {"accuracy": ClientMetric(local=0.5, federated=0.25, drop=25.0 * round_, n=4)}
    return RoundRecord(
        round=round_,
        cohort=Cohort(selected=("a\u2028b", "b"), accepted=("b",), dropped={"E_LATE": ("a\u2028b",)}),
        global_metrics={"loss": one},
        client_metrics={"a": mine, "b": yours},
        diagnostics={"change_norm": 2.0},
        theta_sha256=f"{round_}" * 64,
    )


def test_a_run_is_read_back_from_its_folder(tmp_path: Path) -> None:
    records = [record(1), record(2)]
    line = LedgerLine(round=1, client="a", direction="up", purpose="train", payload_bytes={"head": 8}, framing_bytes=2)
    Lines(tmp_path / "rounds.jsonl").append([one.model_dump(mode="json") for one in records])
    Lines(tmp_path / "ledger.jsonl").append([line.model_dump(mode="json")])
    write_json(tmp_path / "status.json", {"status": "finished"})
    write_json(tmp_path / "experiment.json", {"hash": "x"})
    write_json(tmp_path / "scores" / "round-00002.json", {"loss": [1.0]})
    run = Run(tmp_path)
    assert (run.status, run.about, run.rounds, run.ledger) == ("finished", {"hash": "x"}, records, [line])
    assert run.ledger[0].total_bytes == 10
    assert run.theta_sha256 == "2" * 64
    assert run.scores(2) == {"loss": [1.0]}
    table = run.table("loss", "drop", "worst_client", "change_norm")
    assert table.rows == [(1, 0.25, 25.0, 0.25, 2.0), (2, 0.25, 37.5, 0.25, 2.0)]


def test_a_column_that_no_round_has_is_refused_with_the_nearest(tmp_path: Path) -> None:
    write_json(tmp_path / "status.json", {"status": "running"})
    Lines(tmp_path / "rounds.jsonl").append([record(1).model_dump(mode="json")])
    error = refused(lambda: Run(tmp_path).table("los"))
    assert error.code is Code.CONFIG
    assert "did you mean 'loss'?" in str(error)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    assert refused(lambda: Run(tmp_path)).code is Code.CHECKPOINT
