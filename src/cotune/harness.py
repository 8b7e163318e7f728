"""A run's model through EleutherAI's lm-evaluation-harness: the task is the harness's own, and so are its numbers.

The harness gives the model no attention mask where prompts are padded on the right, and moves blanks that end a prompt
to the answer; otherwise its log-likelihoods are those of `task.forms.Ranked` (tests/test_harness.py, to 1e-4).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.generation import converse
from cotune.setup import Blueprint
from cotune.store import Run, Table, write_json


@dataclass(frozen=True)
class Judged:
    """What the harness found.

    Attributes:
        task: its name.
        version: of the harness.
        n: rows that were scored, by task.
        results: task -> `metric,filter` -> value, its standard error under `metric_stderr,filter`.
    """

    task: str
    version: str
    n: Mapping[str, int]
    results: Mapping[str, Mapping[str, float]]

    def table(self) -> Table:
        """A line for each metric: task, metric, value, standard error, n."""
        rows = []
        for task, values in self.results.items():
            for name, value in values.items():
                metric, _, filtered = name.partition(",")
                if metric.endswith("_stderr"):
                    continue
                error = values.get(f"{metric}_stderr,{filtered}", math.nan)
                said = [metric if filtered in ("", "none") else f"{metric} ({filtered})", f"{value:.4f}"]
                rows.append([task, *said, "-" if math.isnan(error) else f"{error:.4f}", self.n.get(task, "-")])
        return Table(("task", "metric", "value", "stderr", "n"), rows)


def judge(
    run: Run,
    blueprint: Blueprint,
    task: Path,
    *,
    client: str | None = None,
    batch: int = 8,
    limit: int | None = None,
    say: Say = silent,
) -> Judged:
    """What the harness says of the model that a run's last checkpoint holds; also in `lm-eval/TASK.json` of the run.

    Args:
        run: its folder.
        blueprint: of the experiment that the run is of.
        task: a task of the harness, as YAML; what it imports and downloads is the user's choice, and Python beside it
            that it names is run.
        client: with the model of this client, where clients keep a part to themselves.
        batch: rows at once.
        limit: the first so many rows of the task alone.
        say: is told before a download.

    Raises:
        CotuneError: E_CONFIG without the harness, or for a file that is no task; E_CONFLICT for a classifier; whatever
            `converse` raises.
    """
    if not task.is_file():
        raise CotuneError(Code.CONFIG, "no such task", where=str(task), fix="name a YAML file of lm-eval")
    try:
        import lm_eval
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise CotuneError(
            Code.CONFIG, "lm-eval is not installed", where="--lm-eval", fix="pip install 'cotune[eval]'"
        ) from error
    with _hushed():
        manager = TaskManager(include_path=str(task.parent), include_defaults=False)
        name = _name(manager, task)
        with converse(run, blueprint, client=client, say=say) as talk:
            model: Any = talk.backbone.model
            settings = {"backend": "causal", "device": str(talk.backbone.device), "batch_size": batch}
            judge_ = HFLM(pretrained=model, tokenizer=talk.backbone.tokenizer, **settings)
            found = lm_eval.simple_evaluate(
                model=judge_, tasks=[name], task_manager=manager, limit=limit, log_samples=False, bootstrap_iters=1000
            )
    results = {
        one: {key: float(value) for key, value in values.items() if "," in key and isinstance(value, int | float)}
        for one, values in found["results"].items()
    }
    counts = {one: int(count["effective"]) for one, count in found["n-samples"].items()}
    judged = Judged(name, str(lm_eval.__version__), counts, results)
    about = {"task": name, "lm_eval": judged.version, "client": client, "limit": limit, "n": counts, "results": results}
    (run.folder / "lm-eval").mkdir(exist_ok=True)
    write_json(run.folder / "lm-eval" / f"{task.stem}.json", about)
    return judged


def _name(manager: Any, task: Path) -> str:
    """What the harness calls the task that a file describes."""
    for name, entry in manager.task_index.items():
        if entry.yaml_path is not None and Path(entry.yaml_path).resolve() == task.resolve():
            return str(name)
    what, fix = "the file describes no task of lm-eval", "it needs a `task:` of its own"
    raise CotuneError(Code.CONFIG, what, where=str(task), fix=fix)


@contextmanager
def _hushed() -> Iterator[None]:
    """The harness's remarks about itself left out; its errors stay."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
