"""A worker that stays: what it answers, to whom, and what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import experiment

from cotune import link, wire
from cotune.cli.toml import dump
from cotune.core.errors import Code, CotuneError
from cotune.core.message import Kind
from cotune.engine.seat import Seat
from cotune.engine.service import listening, seated, serve
from cotune.engine.site import Site
from cotune.server import Desk

COTUNE = str(Path(sys.executable).with_name("cotune"))


@pytest.fixture(scope="module")
def seat(tmp_path_factory: pytest.TempPathFactory) -> Seat:
    return seated(experiment().blueprint(), Site(place=0, places=2), tmp_path_factory.mktemp("state"))


@pytest.fixture
def socket(seat: Seat, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "w.sock"
    with listening(path) as listener:
        threading.Thread(target=serve, args=(seat, listener), daemon=True).start()
        yield path


def message(seat: Seat, client: str) -> bytes:
    desk = Desk(seat.setup, {info.id: info for info in seat.setup.clients}, journal=None)  # type: ignore[arg-type]
    return wire.encode(desk.brief(desk.opening(), client, Kind.TRAIN, -1))


def test_a_worker_says_who_it_has_and_answers_for_them(seat: Seat, socket: Path) -> None:
    said, reply = link.ask(socket, link.WHO)
    assert said == seat.who()
    assert reply is None
    first = min(said["clients"])
    down = message(seat, first)
    said, reply = link.ask(socket, *link.question(first, down, link.Roster()))
    assert said == {}
    assert reply == seat.step(first, down)


def test_an_error_of_a_client_comes_back_with_its_code(seat: Seat, socket: Path) -> None:
    first = min(seat.who()["clients"])
    with pytest.raises(CotuneError) as caught:
        link.ask(socket, *link.question(first, b"short", link.Roster()))
    assert caught.value.code is Code.TRUNCATED
    with pytest.raises(CotuneError, match="no such client here") as caught:
        link.ask(socket, *link.question("nobody", b"", link.Roster()))
    assert caught.value.code is Code.RUN


def test_nobody_but_its_user_can_reach_it_and_it_is_gone_afterwards(seat: Seat, tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    with listening(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


def test_what_is_no_question_gets_no_answer_and_harms_nobody(seat: Seat, socket: Path) -> None:
    for frames in ((b"setup", b"\x80\x05pickle"), (b"step", b"not json", b""), (b"step", b"{}", b""), (b"",)):
        with pytest.raises(CotuneError, match="no answer"):
            link.ask(socket, *frames)
    assert link.ask(socket, link.WHO)[0] == seat.who()


def test_a_socket_that_a_killed_worker_left_is_taken_over(seat: Seat, tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    script = f"from multiprocessing.connection import Listener; import os; it = Listener({str(path)!r}); os._exit(1)"
    subprocess.run([sys.executable, "-c", script], check=False)
    assert path.is_socket()
    with listening(path):
        pass
    assert not path.exists()


@pytest.mark.parametrize(
    ("case", "code"), [("answered", Code.LOCK), ("file", Code.CONFIG), ("long", Code.CONFIG), ("nowhere", Code.DISK)]
)
def test_a_place_that_cannot_be_a_socket_is_refused(case: str, code: Code, tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    with contextlib.ExitStack() as stack:
        match case:
            case "answered":
                stack.enter_context(listening(path))
            case "file":
                path.write_text("mine")
            case "long":
                path = tmp_path / ("x" * 120)
            case "nowhere":
                path = tmp_path / "no" / "w.sock"
        with pytest.raises(CotuneError) as caught, listening(path):
            pass
    assert caught.value.code is code
    assert case != "file" or path.read_text() == "mine"


def test_nobody_at_the_socket_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CotuneError, match="no answer from the worker") as caught:
        link.ask(tmp_path / "w.sock", link.WHO)
    assert caught.value.code is Code.ENGINE


def test_the_command_loads_once_answers_and_ends_cleanly(tmp_path: Path) -> None:
    socket, state = tmp_path / "w.sock", tmp_path / "state"
    one = experiment()
    file = tmp_path / "experiment.toml"
    file.write_text(dump(one.resolved()))
    command = [COTUNE, "worker", str(file), "--socket", str(socket), "--partition", "1/2"]
    process = subprocess.Popen([*command, "--state", str(state)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("ready"):
                break
        assert one.hash in line
        said, _ = link.ask(socket, link.WHO)
        assert len(said["clients"]) == 2
        assert json.dumps(said["facts"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
        assert not socket.exists()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    command = [COTUNE, "worker", "lora-fedavg", "--socket", str(tmp_path / "w")]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert "stands for one client" in told.stderr
    assert "--partition I/N" in told.stderr
