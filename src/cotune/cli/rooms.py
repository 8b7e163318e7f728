"""What an experiment can name: recipes, the kinds of every room, and the forms of references."""

from __future__ import annotations

import re

from cotune import resolve
from cotune.backbone.builtin import DECODERS, ENCODERS, RECURRENT
from cotune.backbone.package import MODELS
from cotune.backbone.shipped import cards
from cotune.core.errors import Code, CotuneError, nearest
from cotune.method import ROOMS
from cotune.task import KINDS, PARTITIONS
from cotune.task.files import READERS
from cotune.task.packaged import PACKAGED
from cotune.task.synth import SYNTHETIC

Rows = list[tuple[str, str]]


def listing(room: str | None = None) -> str:
    """Every room, or one, as text: a kind and what it is on each line.

    Raises:
        CotuneError: E_CONFIG for an unknown room, with the nearest one.
    """
    known = rooms()
    if room is not None and room not in known:
        raise CotuneError(Code.CONFIG, f"no room '{room}'", where="cotune list", fix=nearest(room, known))
    chosen = known if room is None else {room: known[room]}
    blocks = []
    for name, rows in chosen.items():
        width = max((len(kind) for kind, _ in rows), default=0)
        lines = [f"  {kind:<{width}}  {what}" for kind, what in rows] or ["  none yet"]
        blocks.append("\n".join([name, *lines]))
    return "\n\n".join(blocks)


def rooms() -> dict[str, Rows]:
    """Room -> (kind, what it is), from docstrings and from the comments of recipes."""
    kinds = {**ROOMS, "task": KINDS, "partition": PARTITIONS}
    parts = {room: [(kind, part.summary()) for kind, part in known.items()] for room, known in kinds.items()}
    recipes = [(name, _sentence(text)) for name, text in resolve.recipes().items()]
    return {"recipe": recipes, **parts, "backbone": _backbones(), "data": _data()}


def _sentence(text: str) -> str:
    """The first sentence of the comment that a recipe begins with."""
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    comment = " ".join(line.lstrip("# ") for line in lines[:end])
    return re.split(r"(?<=\.)\s+(?=[A-Z])", comment)[0]


def _backbones() -> Rows:
    packaged = [(f"pkg:{name}", f"Carried by {carried.package}.") for name, carried in MODELS.items()]
    return [
        ("ORG/NAME[@revision]", "A model on the hub, or in its local cache."),
        ("./folder", "A local folder with config.json, a tokenizer and safetensors weights."),
        *((f"builtin:{name}", f"{card['what']}.") for name, card in cards().items()),
        *packaged,
        (
            "random:ARCH?key=value",
            f"Random weights and a byte tokenizer; ARCH is {', '.join((*DECODERS, *ENCODERS, *RECURRENT))}.",
        ),
    ]


def _data() -> Rows:
    return [
        ("ORG/NAME[:config][@revision]", "A data set on the hub, or in its local cache."),
        ("./path", f"A local file ({', '.join(sorted(READERS))}), or a folder in which one file is one client."),
        *((f"pkg:{name}", (carried.read.__doc__ or "").splitlines()[0]) for name, carried in PACKAGED.items()),
        *((f"synth:{name}", f"Generated. {kind.summary()} ?{kind.defaults()}") for name, kind in SYNTHETIC.items()),
    ]
