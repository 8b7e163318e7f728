"""A run's folder: atomic files, hashed checkpoints, lines, a lock, clients' two generations. Bytes, never torch.

Everything that must survive a kill is written to a temporary file beside its place, synced, and renamed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotune.core.errors import Code, CotuneError, nearest
from cotune.core.events import Watch, quiet
from cotune.core.record import LedgerLine, MemoryRecord, RoundRecord

LOCK = ".lock"
MANIFEST = "MANIFEST"
KEPT = 2


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses inside, as E_DISK with its reason."""
    try:
        yield
    except OSError as error:
        raise CotuneError(
            Code.DISK, "cannot write", where=path.name, got=error.strerror, fix="free the disk"
        ) from error


def write_atomic(path: Path, data: bytes) -> None:
    """`data` at `path`, all of it or nothing; also after a power cut.

    Raises:
        CotuneError: E_DISK, with the system's reason; what was at `path` stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def write_json(path: Path, value: object) -> None:
    """`value` as indented JSON, written atomically."""
    write_atomic(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace"))


def read_json(path: Path) -> Any:
    """The value behind a JSON file.

    Raises:
        CotuneError: E_CKPT when it is missing or cannot be read.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CotuneError(Code.CHECKPOINT, "cannot read", where=path.name, got=type(error).__name__) from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold a run's folder; the kernel lets go of it when the process dies, however it dies.

    Raises:
        CotuneError: E_LOCK when another process has it; E_DISK when nothing can be written there.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK).touch()
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CotuneError(
                Code.LOCK, "another process works in this run", where=folder.name, fix="wait for it, or stop it"
            ) from error
        yield


class Lines:
    """A JSON-lines file in which every line has a `round`; lines past a checkpoint are cut when a run resumes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, lines: Iterable[Any]) -> None:
        """Add lines, and sync them.

        Raises:
            CotuneError: E_DISK, with the system's reason.
        """
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="ascii") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())

    def read(self) -> list[Any]:
        """Every whole line; a line that a kill cut short is not one."""
        if not self.path.exists():
            return []
        whole = []
        for line in self.path.read_bytes().split(b"\n"):
            with contextlib.suppress(ValueError):
                whole.append(json.loads(line))
        return whole

    def cut_after(self, round_: int) -> None:
        """Forget lines of later rounds."""
        kept = [line for line in self.read() if line["round"] <= round_]
        write_atomic(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())


class Checkpoints:
    """checkpoints/round-00007/: files and a manifest of their hashes; the last two are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, round_: int, files: Mapping[str, bytes], watch: Watch = quiet) -> None:
        """Write a checkpoint beside the others, then rename it into place; older ones than the last two go."""
        final = self.folder / f"round-{round_:05d}"
        temporary = self.folder / f".round-{round_:05d}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        manifest = {}
        for name, data in files.items():
            write_atomic(temporary / name, data)
            manifest[name] = hashlib.sha256(data).hexdigest()
            watch("checkpoint-writing", {"round": round_, "file": name})
        write_json(temporary / MANIFEST, manifest)
        watch("checkpoint-written", {"round": round_})
        with writing(final):
            shutil.rmtree(final, ignore_errors=True)
            temporary.replace(final)
            _sync_folder(self.folder)
        watch("checkpoint-renamed", {"round": round_})
        for old in self.rounds()[:-KEPT]:
            shutil.rmtree(self.folder / f"round-{old:05d}", ignore_errors=True)

    def rounds(self) -> list[int]:
        """The rounds that have a checkpoint, whole or not, oldest first."""
        found = (re.fullmatch(r"round-(\d{5,})", path.name) for path in sorted(self.folder.glob("round-*")))
        return sorted(int(match[1]) for match in found if match)

    def latest(self, watch: Watch = quiet) -> tuple[int, dict[str, bytes]] | None:
        """The newest checkpoint whose files are what their manifest says; None when there is none at all.

        A damaged one is passed over for the one before, and `watch` is told about both.

        Raises:
            CotuneError: E_HASH when there are checkpoints but none is whole.
        """
        rounds = self.rounds()
        damaged: dict[int, str] = {}
        whole = None
        for round_ in reversed(rounds):
            try:
                whole = round_, self._read(round_)
                break
            except CotuneError as error:
                damaged[round_] = str(error)
        used = whole[0] if whole else None
        for round_, why in damaged.items():
            watch("checkpoint-damaged", {"round": round_, "error": why, "used": used})
        if rounds and whole is None:
            raise CotuneError(Code.HASH, "no checkpoint is whole", where=str(rounds), fix="start again with --fresh")
        return whole

    def _read(self, round_: int) -> dict[str, bytes]:
        folder = self.folder / f"round-{round_:05d}"
        manifest = read_json(folder / MANIFEST)
        if not isinstance(manifest, dict):
            raise CotuneError(Code.HASH, "checkpoint manifest is no table", where=folder.name)
        files = {}
        for name, expected in manifest.items():
            if Path(name).name != name:
                raise CotuneError(Code.HASH, "checkpoint names a file elsewhere", where=folder.name)
            try:
                data = (folder / name).read_bytes()
            except (OSError, ValueError) as error:
                raise CotuneError(
                    Code.CHECKPOINT, "checkpoint file is missing", where=f"{folder.name}/{name}"
                ) from error
            if hashlib.sha256(data).hexdigest() != expected:
                raise CotuneError(Code.HASH, "checkpoint file is damaged", where=f"{folder.name}/{name}")
            files[name] = data
        return files


class ClientStore:
    """A client's own state in generations, named by the round that made them; the two newest of accepted rounds stay.

    A client does not know the fate of the round it has just trained in. The next message to train names the last round
    in which it was accepted, and comes only when that is on the server's disk: whatever is newer came of no round and
    goes. A message to score may come before that, so it reads and changes nothing. So an abandoned round or a killed
    server changes nothing, and a server that falls back by one checkpoint finds its clients where it needs them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def settle(self, accepted: int) -> int | None:
        """Throw away what came of no round since `accepted`; the newest round that is then held, or None."""
        rounds = self._rounds()
        kept = [round_ for round_ in rounds if round_ <= accepted][-KEPT:]
        for round_ in rounds:
            if round_ not in kept:
                self._path(round_).unlink()
        return kept[-1] if kept else None

    def read(self, round_: int) -> bytes | None:
        """The generation that a round made, or None."""
        path = self._path(round_)
        return path.read_bytes() if path.exists() else None

    def put(self, round_: int, data: bytes) -> None:
        """What round `round_` made, until its fate is known."""
        write_atomic(self._path(round_), data)

    def forget(self) -> None:
        """Throw everything away."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def newest(self) -> int | None:
        """The newest round that is held, whatever its fate, or None."""
        return max(self._rounds(), default=None)

    def _rounds(self) -> list[int]:
        return sorted(_round_of(path) for path in self.folder.glob("round-*"))

    def _path(self, round_: int) -> Path:
        return self.folder / f"round-{round_:05d}.safetensors"


def _round_of(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def safe_name(text: str) -> str:
    """`text` as a file name: itself where it is harmless, else its readable part, `~` and a hash."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", text):
        return text
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", text)[:32].strip("-") or "x"
    return f"{readable}~{hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"


def clear(folder: Path) -> None:
    """Throw away what a run left in its folder, but for its lock."""
    for path in folder.iterdir():
        if path.name == LOCK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


class Table:
    """Rows under column names; prints as aligned text."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.columns = tuple(columns)
        self.rows = [tuple(row) for row in rows]

    def __str__(self) -> str:
        cells = [list(self.columns), *([_cell(value) for value in row] for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        return "\n".join("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Run:
    """What a run left in its folder; reads files only."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not (self.folder / "status.json").exists():
            raise CotuneError(Code.CHECKPOINT, "no run is here", where=str(folder), fix="name the folder of a run")

    @property
    def status(self) -> str:
        """'running', 'finished', 'interrupted' or 'failed'."""
        return str(read_json(self.folder / "status.json")["status"])

    @property
    def about(self) -> dict[str, Any]:
        """What experiment.json says."""
        return dict(read_json(self.folder / "experiment.json"))

    @property
    def rounds(self) -> list[RoundRecord]:
        """The records, in order."""
        return [RoundRecord.model_validate(line) for line in Lines(self.folder / "rounds.jsonl").read()]

    @property
    def ledger(self) -> list[LedgerLine]:
        """One line a message, in order."""
        return [LedgerLine.model_validate(line) for line in Lines(self.folder / "ledger.jsonl").read()]

    @property
    def memory(self) -> MemoryRecord | None:
        """What memory.json says of a trained memory; None where there is no such file."""
        path = self.folder / "memory.json"
        return MemoryRecord.model_validate(read_json(path)) if path.exists() else None

    @property
    def theta_sha256(self) -> str:
        """The digest of the last committed theta."""
        return self.rounds[-1].theta_sha256

    def scores(self, round_: int) -> dict[str, list[float]]:
        """Metric -> the score of every test row at the end of a round."""
        return dict(read_json(self.folder / "scores" / f"round-{round_:05d}.json"))

    def table(self, *names: str) -> Table:
        """One row a round: `round`, then the named metrics, diagnostics or fields of the record.

        `accuracy/tail` is a metric over the test rows of one stratum, where there are strata.
        `drop` is the mean over the round's clients, `worst_client` the lowest accuracy among them; of language models,
        both are of perplexity, and the worst is the highest.

        Raises:
            CotuneError: E_CONFIG for a name that no round has, with the nearest one.
        """
        rows = [_columns(record) for record in self.rounds]
        known = set().union(*rows) if rows else set()
        for name in names:
            if name not in known:
                raise CotuneError(Code.CONFIG, f"no round has '{name}'", where="table", fix=nearest(name, known))
        return Table(("round", *names), [[row["round"], *(row.get(name) for name in names)] for row in rows])


def _columns(record: RoundRecord) -> dict[str, Any]:
    simple = {name: value for name, value in record if isinstance(value, int | float | str | None)}
    columns: dict[str, Any] = {**simple, **record.diagnostics}
    columns |= {name: metric.value for name, metric in record.global_metrics.items()}
    columns |= {f"{name}/{cell}": one.value for name, cells in record.cells.items() for cell, one in cells.items()}
    clients = record.client_metrics.values()
    name, worst = ("perplexity", max) if any("perplexity" in metrics for metrics in clients) else ("accuracy", min)
    drops = [metrics[name].drop for metrics in clients if name in metrics]
    known = [drop for drop in drops if drop is not None]
    columns["drop"] = sum(known) / len(known) if known else None
    scores = [metrics[name].federated for metrics in clients if name in metrics and metrics[name].n]
    columns["worst_client"] = worst((score for score in scores if score is not None), default=None)
    return columns
