"""`cotune generate`: a run's model answers, after a text of any size went through its private memory."""

from __future__ import annotations

import json
from pathlib import Path

from cotune.core.errors import Code, CotuneError

FORGOTTEN = "the memory is forgotten (reset), and was never written to a file"


def generate(folder: Path, prompt: str, *, stream: Path | None, tokens: int, client: str | None, as_json: bool) -> None:
    """Print how far it is, the answer, and what has become of the memory.

    Args:
        folder: of the run.
        prompt: what to go on from.
        stream: a text file to read first.
        tokens: the most that the answer has.
        client: whose model.
        as_json: one JSON object instead.

    Raises:
        CotuneError: when there is no run, no language model in it, or nothing that a text can be streamed through.
    """
    if tokens < 1:
        raise CotuneError(Code.CONFIG, "an answer has a token at least", where="--tokens", got=tokens)
    from cotune.store import Run

    run = Run(folder)
    about = run.about
    say = _hush if as_json else _say
    say(f"loading {about['experiment']['backbone']['ref']} · {folder}")
    from pydantic import ValidationError

    from cotune.core.explain import explain
    from cotune.experiment import Experiment
    from cotune.generation import generate as answer_of
    from cotune.generation import line

    try:
        blueprint = Experiment.model_validate(about["experiment"]).blueprint()
    except ValidationError as error:
        raise explain(error, Experiment) from error
    if run.status != "finished":
        say(f"the run is {run.status}: this is its last checkpoint")
    answer = answer_of(run, blueprint, prompt, stream=stream, tokens=tokens, client=client, say=say)
    last = "nothing that was read is kept" if not answer.remembered else FORGOTTEN
    if as_json:
        done = answer.progress
        figures = {"tokens": done.tokens, "tokens_per_second": done.rate}
        figures |= {"state_bytes": done.state_bytes, "cache_bytes": done.cache_bytes}
        said = {"answer": answer.text, **figures, "memory": answer.remembered, "window": answer.window}
        print(json.dumps({**said, "end": last}, ensure_ascii=False), flush=True)
    else:
        print("\n".join([line(answer.progress), "", _shown(answer.text), "", last]), flush=True)


def _shown(text: str) -> str:
    """A text without what would steer a terminal."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "\N{REPLACEMENT CHARACTER}" for sign in text)


def _say(line: str) -> None:
    print(line, flush=True)


def _hush(line: str) -> None:
    del line
