"""A new project: the files that Flower looks for, and the experiment that they stand around."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from cotune.core.errors import Code, CotuneError
from cotune.store import writing

PUBLISHER = "cotune"
_LONGEST = 32  # characters of a Flower app's name


def name_of(folder: Path) -> str:
    """A name that Flower takes, made of the folder's: letters, digits and hyphens, a letter first."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", folder.resolve().name).strip("-")
    name = words if words[:1].isalpha() else f"federation-{words}".strip("-")
    return name[:_LONGEST].rstrip("-")


def files(folder: Path, experiment: str) -> Mapping[str, str]:
    """Every file of a project -> what is in it.

    Args:
        folder: where it will be, which names it.
        experiment: the text of experiment.toml.
    """
    return {
        "pyproject.toml": _template("pyproject.toml").format(name=name_of(folder), publisher=PUBLISHER),
        "experiment.toml": experiment,
        "federation/__init__.py": '"""The two apps of this project."""\n',
        "federation/server_app.py": _template("app.txt").format(side="server"),
        "federation/client_app.py": _template("app.txt").format(side="client"),
        ".gitignore": _template("gitignore.txt"),
    }


def write(folder: Path, experiment: str) -> list[Path]:
    """The files of a new project, in order.

    Raises:
        CotuneError: E_CONFIG where one of them is there: nothing is written over; E_DISK when none can be written.
    """
    texts = {folder / name: text for name, text in files(folder, experiment).items()}
    taken = [str(path.relative_to(folder)) for path in texts if path.exists()]
    if taken:
        what, fix = "there is something here already", "choose another folder, or move them away"
        raise CotuneError(Code.CONFIG, what, where=str(folder), got=", ".join(taken), fix=fix)
    for path, text in texts.items():
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    return [*texts]


def _template(name: str) -> str:
    return (resources.files("cotune.flower") / "template" / name).read_text("utf-8")
