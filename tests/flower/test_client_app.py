"""A client's app: what a new process costs, and what it says when it cannot answer."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from grid import LocalGrid
from tiny import experiment

from cotune.engine.service import listening, seated, serve
from cotune.engine.site import Site
from cotune.flower import make_client_app
from cotune.flower.records import ABOUT, STEP, WHO, Plain, records

SECRET = "a sentence of a patient"
ANSWER = """
import json, sys
from grid import LocalGrid
from flwr.app import Message
from cotune.flower import make_client_app
from cotune.flower.records import WHO, records
grid = LocalGrid(make_client_app({folder!r}), [{{"worker": {socket!r}}}])
(reply,) = grid.send_and_receive([Message(records({{}}), grid.ids[0], WHO)])
heavy = sorted({{"torch", "transformers", "pydantic", "datasets"}} & set(sys.modules))
print(json.dumps([reply.content.config_records["about"]["who"], heavy]))
"""


def told(grid: LocalGrid, content: RecordDict, kind: str) -> ConfigRecord:
    (reply,) = grid.send_and_receive([Message(content, grid.ids[0], kind)], timeout=30)
    return reply.content.config_records["error"]


def test_beside_a_worker_the_process_of_a_message_imports_no_torch(tmp_path: Path) -> None:
    one, socket = experiment(), tmp_path / "w.sock"
    seat = seated(one.blueprint(), Site(), tmp_path / "state")
    script = ANSWER.format(folder=str(tmp_path), socket=str(socket))
    with listening(socket) as listener:
        threading.Thread(target=serve, args=(seat, listener), daemon=True).start()
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        )
    who, heavy = json.loads(done.stdout)
    assert json.loads(who) == seat.who()
    assert heavy == []


def test_a_node_without_a_worker_that_answers_says_so(tmp_path: Path) -> None:
    grid = LocalGrid(make_client_app(tmp_path), [{"worker": str(tmp_path / "w.sock")}])
    error = told(grid, records({}), WHO)
    assert error["code"] == "E_ENGINE"
    assert "start `cotune worker`" in str(error["text"])


def test_a_question_that_is_none_is_answered_by_its_kind_alone(tmp_path: Path) -> None:
    one, socket = experiment(), tmp_path / "w.sock"
    seat = seated(one.blueprint(), Site(), tmp_path / "state")
    with listening(socket) as listener:
        threading.Thread(target=serve, args=(seat, listener), daemon=True).start()
        grid = LocalGrid(make_client_app(tmp_path), [{"worker": str(socket)}])
        assert told(grid, RecordDict(), STEP)["code"] == "E_FORMAT"
        about: Plain = {"client": "domain-0", "round": 1, "clients": 4, "most": 9}
        assert told(grid, records(about, b"short"), STEP)["code"] == "E_TRUNC"
        missing = told(grid, RecordDict({ABOUT: ConfigRecord({"client": SECRET})}), STEP)
        assert missing["code"] == "E_CLIENT"
        assert SECRET not in str(missing["text"])
