"""The two sites of docs/flower.md from nothing: its commands, in order, in a folder for each machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cotune.flower.programs import Program, end_families, environment
from cotune.flower.superlink import free_ports
from cotune.store import Run

PAGE = Path(__file__).parents[2] / "docs" / "flower.md"
BLOCK = re.compile(r"```sh (?P<machine>server|site-a|site-b)(?P<stays> stays)?\n(?P<text>.*?)```", re.DOTALL)
# What people carry from one machine to another.
CARRIED = ("keys/ca.crt", "clinics/experiment.toml")


@pytest.fixture
def machines(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("t")  # short: a socket's path is
    folders = {name: root / name for name in ("server", "site-a", "site-b")}
    for name, folder in folders.items():
        folder.mkdir()
        rows = [{"prompt": f"Who is in bed {bed}? ", "completion": f"{name} {bed}"} for bed in range(24)]
        own = folder / ("test.jsonl" if name == "server" else "rows.jsonl")
        own.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folders


@pytest.fixture
def left(machines: Mapping[str, Path]) -> Iterator[list[Program]]:
    """What stays in the foreground of some terminal, until the end."""
    programs: list[Program] = []
    yield programs
    end_families([str(machines["server"].parent)])
    for program in programs:
        program.reap()


def test_the_page_from_nothing_to_a_run(machines: Mapping[str, Path], left: list[Program]) -> None:
    link, *ports = map(str, free_ports(3))
    for block in BLOCK.finditer(PAGE.read_text("utf-8")):
        name, text = block["machine"], block["text"]
        folder = machines[name]
        text = text.replace("federation.example.org:8000", f"127.0.0.1:{link}").replace(":8000", f":{link}")
        text = text.replace("--port 8000", f"--port {link}").replace("--host 0.0.0.0", "--host 127.0.0.1")
        if "flower-supernode" in text:  # two on one machine, where the page has two machines
            text = text.rstrip() + f" --port {ports.pop()}\n"
        env = {**environment(folder / "flwr", f"{folder.parent}/{name}"), "PWD": str(folder)}
        if block["stays"]:
            script = ["sh", "-ec", f"cd {folder}; {text}"]
            left.append(Program(f"{name} {len(left)}", script, folder / f"{len(left)}.log", env))
            answers(left[-1])
        else:
            done = typed(folder, text, env)
        carry(machines)
    assert [program.alive for program in left] == [True] * 4
    (folder,) = (machines["server"] / "runs").iterdir()
    run = Run(folder)
    assert run.status == "finished"
    assert [record.cohort.accepted for record in run.rounds] == [("site-a", "site-b")] * 2
    assert f"theta_sha256 {run.theta_sha256}" in done
    assert run.about["test"]["rows"] == 24
    assert not [path for path in machines["server"].rglob("*") if path.name.startswith("rows.jsonl")]


def typed(folder: Path, text: str, env: Mapping[str, str]) -> str:
    """What somebody sees who types a block."""
    done = subprocess.run(
        ["sh", "-ec", text], cwd=folder, env=dict(env), capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def answers(program: Program, seconds: float = 120.0) -> None:
    """Wait until a program that stays says that it is there."""
    ends = time.monotonic() + seconds
    while not re.search(r"Uvicorn running|SuperNode ID|ready ·", program.log.read_text("utf-8", "replace")):
        program.check()
        assert time.monotonic() < ends, program.log.read_text()
        time.sleep(0.2)


def carry(machines: Mapping[str, Path]) -> None:
    """Bring what one machine has for the others to them."""
    server = machines["server"]
    for site in ("site-a", "site-b"):
        for name in CARRIED:
            if (server / name).exists():
                shutil.copy(server / name, machines[site])
        for public in machines[site].glob("*.pub"):
            shutil.copy(public, server)


def test_the_page_has_every_step() -> None:
    blocks = [(block["machine"], bool(block["stays"])) for block in BLOCK.finditer(PAGE.read_text("utf-8"))]
    assert [name for name, stays in blocks if stays] == ["server", "site-a", "site-a", "site-b"]
    assert len(blocks) == 9
