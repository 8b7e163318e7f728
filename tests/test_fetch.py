"""Files of wheels: from the cache, from an installed package, or through pip, and never anything else."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from cotune.core.errors import Code, CotuneError
from cotune.fetch import Package, cache_root, members

MODULE = "cotune_test_cargo"
ROWS = f"{MODULE}/data/rows.csv"
MORE = f"{MODULE}/data/more.csv"
INFO = "cotune_test_cargo-1.0.dist-info"
FILES = {
    f"{MODULE}/__init__.py": b"raise RuntimeError('imported')\n",
    ROWS: b"text,label\nfine,1\n",
    MORE: b"text,label\nbad,0\n",
    f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: cotune-test-cargo\nVersion: 1.0\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}


def row(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    with zipfile.ZipFile(folder / "cotune_test_cargo-1.0-py3-none-any.whl", "w") as wheel:
        for name, content in FILES.items():
            wheel.writestr(name, content)
        wheel.writestr(f"{INFO}/RECORD", "".join(row(*item) for item in FILES.items()) + f"{INFO}/RECORD,,\n")
    return folder


@pytest.fixture
def package(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """The package, an empty cache, and a pip that finds the wheel and asks no network."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    (wheel,) = index.glob("*.whl")
    return Package("cotune-test-cargo", "1.0", hashlib.sha256(wheel.read_bytes()).hexdigest(), MODULE)


def out_of_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(empty))


def left_over() -> list[str]:
    return [path.name for path in (cache_root() / "packages").iterdir() if path.name.startswith("fetching-")]


def test_the_cache_lies_where_the_desktop_standard_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_root() == Path("/somewhere/cotune")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "cotune"


def test_a_download_keeps_only_what_is_wanted_and_serves_later_calls(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    found = members(package, [ROWS], say=said.append)
    assert found[ROWS].read_bytes() == FILES[ROWS]
    assert found[ROWS].stat().st_mode & 0o777 == 0o644
    kept = sorted(path.name for path in cache_root().rglob("*") if path.is_file())
    assert kept == ["RECORD", "rows.csv"]
    assert said == ["downloading cotune-test-cargo==1.0 with pip"]
    assert not left_over()
    assert MODULE not in sys.modules
    out_of_reach(monkeypatch, tmp_path)
    assert members(package, [ROWS], say=said.append) == found
    assert len(said) == 1


def test_a_later_call_may_want_other_files(package: Package) -> None:
    first = members(package, [ROWS])
    both = members(package, [MORE, ROWS])
    assert both[ROWS] == first[ROWS]
    assert both[MORE].read_bytes() == FILES[MORE]


def test_a_damaged_cache_is_fetched_again(package: Package) -> None:
    file = members(package, [ROWS])[ROWS]
    file.write_bytes(FILES[ROWS][:-3] + b"0\n\n")
    assert members(package, [ROWS])[ROWS].read_bytes() == FILES[ROWS]


def test_an_installed_package_is_used_without_importing_it(
    package: Package, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(next(index.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    monkeypatch.syspath_prepend(str(site))
    out_of_reach(monkeypatch, tmp_path)
    assert members(package, [ROWS, MORE]) == {ROWS: site / ROWS, MORE: site / MORE}
    assert MODULE not in sys.modules
    with pytest.raises(CotuneError) as caught:
        members(replace(package, version="2.0"), [ROWS])
    assert caught.value.code is Code.DATA


def test_another_wheel_than_the_one_that_is_known_is_refused_and_leaves_nothing(package: Package) -> None:
    with pytest.raises(CotuneError) as caught:
        members(replace(package, wheel_sha256="0" * 64), [ROWS])
    assert caught.value.code is Code.HASH
    assert package.wheel_sha256 in str(caught.value)
    assert not [path for path in cache_root().rglob("*") if path.is_file()]


def test_out_of_reach_names_the_three_alternatives_under_the_callers_code(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out_of_reach(monkeypatch, tmp_path)
    with pytest.raises(CotuneError) as caught:
        members(package, [ROWS], code=Code.MODEL)
    assert caught.value.code is Code.MODEL
    for alternative in ("install it", "local path", "connect"):
        assert alternative in str(caught.value)


def test_a_python_without_pip_says_so(package: Package) -> None:
    source = Path(__file__).parents[1] / "src"
    script = f"import cotune.fetch as f; f.members(f.Package{(*vars(package).values(),)}, ['{ROWS}'])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "error[E_DATA] cannot download cotune-test-cargo==1.0 · got this Python has no pip" in done.stderr


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", "a\\b", "c:x"])
def test_a_path_that_leaves_the_wheel_is_refused(package: Package, name: str) -> None:
    with pytest.raises(CotuneError, match="not a path inside a wheel"):
        members(package, [name])


def test_a_file_that_the_wheel_does_not_have_is_named(package: Package) -> None:
    with pytest.raises(CotuneError, match=f"no file {MODULE}/absent"):
        members(package, [f"{MODULE}/absent"])
    assert not left_over()


def test_a_cache_that_cannot_be_written_is_a_disk_error(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    file = cache_root().parent
    file.write_bytes(b"")
    with pytest.raises(CotuneError) as caught:
        members(package, [ROWS])
    assert caught.value.code is Code.DISK


def test_two_processes_that_fetch_at_once_both_end_well(package: Package) -> None:
    script = f"import cotune.fetch as f; print(f.members(f.Package{(*vars(package).values(),)}, ['{ROWS}'])['{ROWS}'])"
    both = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert Path(out.strip()).read_bytes() == FILES[ROWS]
    assert not left_over()
