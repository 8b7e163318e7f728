"""`cotune flower doctor`: what stands between this machine, or a project's folder, and a run on Flower."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

from cotune.core.errors import CotuneError
from cotune.flower import certificates
from cotune.flower.loopback import DATABASE, answers
from cotune.flower.programs import INSTALL, MINOR, TAG, members, program
from cotune.flower.superlink import half_migrated, is_free

PROGRAMS = ("flower-superlink", "flower-supernode", "flower-superexec", "flwr")
# What Flower listens on where nobody says otherwise.
DEFAULTS = {8000: "SuperLink", 9094: "SuperNode", 39091: "the SuperLink that `flwr run` starts for simulations"}
SOON = timedelta(days=30)
WITHIN = 120.0  # seconds for a Python to import two packages, on a busy machine


def examine(folder: Path | None, now: datetime | None = None) -> Iterator[str]:
    """One line a finding, as they are found; a line of `warning` says what is odd and what to do.

    Args:
        folder: a project, whose `.flower` `cotune flower up` made, or any folder of certificates and keys; None for
            the machine alone.
        now: the time; None for that of this machine.
    """
    time = now or datetime.now(UTC)
    yield from _flower()
    yield from _python()
    yield from _ports()
    yield from _clock(time)
    yield from _database(Path.home() / ".flwr" / "local-superlink" / DATABASE, "simulations of `flwr run`")
    if folder is None:
        return
    inner = folder / ".flower"
    place = inner if inner.is_dir() else folder
    yield from _left(place)
    yield from _database(place / DATABASE, "this deployment")
    yield from _certificates(place, time)
    for key in sorted(place.glob("**/*.pub")):
        yield from _key(key.with_suffix(""))
    for listens in sorted(place.glob("**/*.sock")):
        yield worker(listens)


def worker(listens: Path) -> str:
    """Whether a worker answers at a socket, and whether anybody else could ask it."""
    others = stat.S_IMODE(listens.lstat().st_mode) & 0o077
    if not listens.is_socket():
        return f"warning: {listens} is no socket · remove it"
    if others:
        return f"warning: others may use the worker at {listens} · chmod 600 {listens}"
    if not answers(listens):
        return f"warning: nobody answers at {listens} · start `cotune worker` again; it is removed by the next one"
    return f"worker {listens} · answers, and to this user alone"


def _flower() -> Iterator[str]:
    version = metadata.version("flwr")
    yield f"flwr {version}"
    if not version.startswith(f"{MINOR}."):
        yield f"warning: cotune knows flwr {MINOR}: another minor may have renamed options · {INSTALL}"
    try:
        yield f"simulations · ray {metadata.version('ray')}"
    except metadata.PackageNotFoundError:
        yield "simulations · not here: pip install 'cotune[flower-sim]'"
    yield f"certificates · cryptography {metadata.version('cryptography')}; openssl is not needed"


def _python() -> Iterator[str]:
    """Whether Flower's programs, and the Python that they run on, are those that have cotune."""
    for name in PROGRAMS:
        try:
            place = Path(program(name))
        except CotuneError as error:
            yield f"warning: {error.text}"
            continue
        if name != "flower-supernode":
            continue
        python = place.read_bytes().split(b"\n", 1)[0].removeprefix(b"#!").decode("utf-8", "replace").strip()
        try:
            words = [python, "-c", "import cotune, flwr; print(cotune.__file__)"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=WITHIN, check=False, cwd="/")
            found = done.stdout.strip() if done.returncode == 0 else ""
        except (OSError, subprocess.TimeoutExpired):
            found = ""
        if found:
            yield f"SuperNode {place} · its Python has cotune"
        else:
            yield f"warning: {place} runs on {python}, which has no cotune · install cotune[flower] there"


def _ports() -> Iterator[str]:
    for port, whose in DEFAULTS.items():
        if is_free(port):
            yield f"port {port} · free for {whose}"
        else:
            yield f"warning: port {port} is in use, by default that of {whose} · give another by --port"


def _clock(now: datetime) -> Iterator[str]:
    """Signatures of nodes carry the time: a clock that is behind is refused."""
    yield f"clock {now:%Y-%m-%d %H:%M:%S} UTC"
    installed = max(
        (datetime.fromtimestamp(path.stat().st_mtime, UTC) for path in Path(certificates.__file__).parent.glob("*.py")),
        default=now,
    )
    if now < installed - timedelta(days=1):
        yield f"warning: the clock is behind: files here are of {installed:%Y-%m-%d} · set it, nodes are refused else"


def _database(database: Path, whose: str) -> Iterator[str]:
    if half_migrated(database):
        yield f"warning: a SuperLink was killed while it made its tables, for {whose} · remove {database}"
    elif database.exists():
        yield f"database {database} · whole"


def _left(place: Path) -> Iterator[str]:
    if running := members([str(place.resolve())]):
        names = sorted({f"{process.pid} {process.environ()[TAG].rpartition('/')[2]}" for process in running})
        yield f"running here: {', '.join(names)}"


def _certificates(place: Path, now: datetime) -> Iterator[str]:
    if not (place / certificates.SERVER).exists():
        return
    try:
        shown = certificates.shown(place)
    except CotuneError as error:
        yield f"warning: {error.text}"
        return
    yield f"server's certificate · for {', '.join(shown.names)} · until {shown.ends:%Y-%m-%d}"
    again = f"remove it and {certificates.SERVER_KEY}, and make them anew by `cotune flower certify`"
    if not shown.signed:
        yield f"warning: {certificates.SERVER} was not signed by {certificates.AUTHORITY} beside it · {again}"
    if not shown.fits:
        yield f"warning: {certificates.SERVER_KEY} is not the key of {certificates.SERVER} · {again}"
    if now < shown.begins:
        yield f"warning: the certificate begins on {shown.begins:%Y-%m-%d} · is the clock right?"
    elif shown.ends < now:
        yield f"warning: the certificate has ended on {shown.ends:%Y-%m-%d} · {again}"
    elif shown.ends - now < SOON:
        yield f"warning: the certificate ends on {shown.ends:%Y-%m-%d} · {again}"
    for name in (certificates.AUTHORITY_KEY, certificates.SERVER_KEY):
        if (place / name).exists():
            yield from _mode(place / name)


def _key(path: Path) -> Iterator[str]:
    try:
        certificates.check_node_key(path)
    except CotuneError as error:
        yield f"warning: {error.text}"
        return
    yield f"node key {path} · fits its public half"
    yield from _mode(path)


def _mode(path: Path) -> Iterator[str]:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        yield f"warning: others may read {path} · chmod 600 {path}"
