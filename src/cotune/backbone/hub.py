"""Backbones on a model hub: a snapshot of one commit, from the hub when it answers, else from its local cache."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path

from cotune.backbone.hf import Folder, reading
from cotune.core.errors import Code, CotuneError
from cotune.core.reference import Reference

_PATIENCE = 5.0  # seconds for each phase of asking; twice that in all
_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def hub(ref: Reference, revision: str | None = None, say: Callable[[str], None] | None = None) -> Folder:
    """The folder of a hub id; nothing is asked before it is needed.

    Args:
        ref: of scheme hub.
        revision: branch, tag or commit; None for the main branch.
        say: is told one line before a download.
    """

    @functools.cache
    def find(whole: bool) -> Path:
        return _snapshot(ref, revision, _FILES if whole else ["config.json"], say)

    return Folder(ref.text, find)


def _snapshot(ref: Reference, revision: str | None, files: list[str], say: Callable[[str], None] | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    commit = _commit(ref, revision)
    if commit is not None and say is not None:
        say(f"fetching {ref} from the hub")
    with reading(Code.MODEL, "cannot fetch from the hub", ref.text):
        try:
            folder = snapshot_download(
                ref.name,
                revision=commit or revision,
                allow_patterns=files,
                ignore_patterns=["*/*"],
                local_files_only=commit is None,
            )
        except LocalEntryNotFoundError as error:
            raise CotuneError(
                Code.MODEL,
                "the hub is out of reach, and its cache does not have this model",
                where=ref.text,
                fix="connect, give a local folder (./x), or a model that needs no hub (pkg:NAME, random:ARCH)",
            ) from error
    return Path(str(folder))


def _commit(ref: Reference, revision: str | None) -> str | None:
    """The commit that the hub has now, or None when it is out of reach.

    The question runs in a thread, because looking up a host knows no time limit.

    Raises:
        CotuneError: E_MODEL when the hub answers that there is no such model.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    answers: list[str | Exception | None] = []

    def ask() -> None:
        try:
            answers.append(HfApi().model_info(ref.name, revision=revision, timeout=_PATIENCE).sha)
        except Exception as error:  # noqa: BLE001 - whatever keeps the hub from answering
            answers.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(2 * _PATIENCE)
    answer = answers[0] if answers else None
    if isinstance(answer, RepositoryNotFoundError | RevisionNotFoundError):
        raise CotuneError(
            Code.MODEL,
            "the hub has no such model, or does not show it to you",
            where=ref.text,
            fix="check the id and the revision; log in if it is private or gated",
        ) from answer
    return answer if isinstance(answer, str) else None
