"""Hub ids: what is needed of one commit while the hub answers, its cache when it does not, one line when that fails.

A process each, because the hub client reads its environment once; the hub is a small server on this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cotune.backbone import Backbone, Loaded

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NOWHERE = "http://127.0.0.1:9"
START = """
import time, warnings
from cotune.backbone import Backbone
from cotune.core.errors import CotuneError
warnings.simplefilter("error")
said = []
def digest(**fields):
    started = time.monotonic()
    try:
        return Backbone(**fields).load("causal", 0, 0, said.append).digest
    except CotuneError as error:
        assert time.monotonic() - started < 10
        return str(error)
"""


def run(script: str, home: Path, endpoint: str, offline: str = "0") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", START + script],
        env={
            **os.environ,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": offline,
            "HF_ENDPOINT": endpoint,
            "NO_PROXY": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def tiny() -> Loaded:
    return Backbone(ref="random:llama").load("causal", 0, 3)


def save(loaded: Loaded, folder: Path) -> None:
    loaded.model.save_pretrained(folder)  # type: ignore[operator]
    loaded.tokenizer.save_pretrained(folder)


class Hub(ThreadingHTTPServer):
    """A hub with one repository, `org/tiny`, at one commit."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self.served: list[str] = []


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if re.fullmatch(r"/api/models/org/tiny(/revision/(main|v1|[0-9a-f]{40}))?", path):
            siblings = [{"rfilename": name} for name in self.server.files]
            self.answer(json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}).encode())
        elif path.startswith("/api/models/org/tiny/tree/"):
            rows = [{"type": "file", "path": n, "size": len(c), "oid": "0" * 40} for n, c in self.server.files.items()]
            self.answer(json.dumps(rows).encode())
        elif path.startswith(prefix := f"/org/tiny/resolve/{COMMIT}/") and path[len(prefix) :] in self.server.files:
            self.server.served.append(path[len(prefix) :])
            self.answer(self.server.files[path[len(prefix) :]])
        else:
            error = "RevisionNotFound" if "/org/tiny/" in path else "RepoNotFound"
            self.answer(b"", 404, {"X-Error-Code": error})

    do_HEAD = do_GET

    def answer(self, content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        etag = hashlib.sha256(content).hexdigest()
        named = {"Content-Length": str(len(content)), "ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
        for name, value in {**named, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def hub(tiny: Loaded, tmp_path: Path) -> Iterator[Hub]:
    folder = tmp_path / "repository"
    save(tiny, folder)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"pickled")
    server = Hub(folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_hub_that_answers_is_asked_for_the_config_first_and_for_nothing_that_is_not_needed(
    tiny: Loaded, hub: Hub, tmp_path: Path
) -> None:
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    lines = run("print(len(Backbone(ref='org/tiny').skeleton('causal', 0).head))", tmp_path / "home", endpoint)
    assert (lines, set(hub.served)) == (["0"], {"config.json"})
    script = "print(digest(ref='org/tiny@v1'), digest(ref='org/absent'), digest(ref='org/tiny@v2'), *said, sep='\\n')"
    found, absent, revision, *said = run(script, tmp_path / "home", endpoint)
    assert found == tiny.digest
    assert "error[E_MODEL] the hub has no such model" in absent
    assert "error[E_MODEL] the hub has no such model" in revision
    assert set(said) == {"fetching org/tiny@v1 from the hub"}
    assert "model.safetensors" in hub.served
    assert not {"pytorch_model.bin", "onnx/config.json"} & set(hub.served)


@pytest.mark.parametrize("offline", ["0", "1"], ids=["out of reach", "switched off"])
def test_the_cache_serves_what_it_has_and_the_rest_is_refused_at_once(
    tiny: Loaded, tmp_path: Path, offline: str
) -> None:
    repository = tmp_path / "hub" / "models--org--tiny"
    save(tiny, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    for name in ("main", "v1"):
        (repository / "refs" / name).write_text(COMMIT)
    script = "for ref in ('org/tiny', 'org/tiny@v1', 'org/absent', 'org/tiny@v2'): print(digest(ref=ref))\n"
    script += f"print(digest(ref='org/tiny', revision='{COMMIT}'), said)"
    main, tag, absent, revision, commit = run(script, tmp_path, NOWHERE, offline)
    assert [main, tag, commit] == [tiny.digest, tiny.digest, f"{tiny.digest} []"]
    for line, ref in ((absent, "org/absent"), (revision, "org/tiny@v2")):
        assert line.startswith("error[E_MODEL] the hub is out of reach")
        assert f" · {ref} · connect, give a local folder (./x), or" in line
