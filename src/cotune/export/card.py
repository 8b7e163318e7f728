"""The model card: what a model was made of, how it scores, how to load it, and what was not protected."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotune.core.errors import CotuneError
from cotune.core.protection import NOT_PROTECTED
from cotune.core.record import RoundRecord
from cotune.core.reference import Reference, parse

LOADABLE = ("hub", "path")  # what other libraries can load by its name


@dataclass(frozen=True)
class Loads:
    """How a model with a head is loaded: its auto class, the tag of its use, and the last lines of an example."""

    auto: str
    pipeline: str
    call: tuple[str, ...] = ('logits = model(**tokenizer(["some text"], return_tensors="pt")).logits',)


HEADS: Mapping[str, Loads] = {
    "causal": Loads("AutoModelForCausalLM", "text-generation"),
    "classification": Loads("AutoModelForSequenceClassification", "text-classification"),
    "masked": Loads("AutoModelForMaskedLM", "fill-mask"),
    "multiple-choice": Loads(
        "AutoModelForMultipleChoice",
        "multiple-choice",
        (
            'pairs = tokenizer(["a context"] * 2, ["an ending", "another"], padding=True, return_tensors="pt")',
            "logits = model(**{name: tensor[None] for name, tensor in pairs.items()}).logits",
        ),
    ),
}


@dataclass(frozen=True)
class Facts:
    """What a card is made of.

    Attributes:
        about: experiment.json of the run.
        records: of its rounds.
        origin: the hub id, path or reference of the backbone.
        revision: of a hub id.
        head: as `Task.head` says it.
        labels: names of the classes.
        padding: id of the padding token.
        theta_sha256: of the shared tensors.
        rank: of the adapter; None where there is none.
        memory: whether rules of a memory are beside it.
        client: whose model it is; None for the shared one.
        notes: sentences that a user must know.
    """

    about: Mapping[str, Any]
    records: Sequence[RoundRecord]
    origin: str
    revision: str | None
    head: str
    labels: Sequence[str]
    padding: int
    theta_sha256: str
    rank: int | None
    memory: bool
    client: str | None
    notes: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether it is a whole model."""
        return self.rank is None and not self.memory

    @property
    def loadable(self) -> bool:
        """Whether other libraries can load the backbone by its name."""
        return parse(self.origin).scheme in LOADABLE

    @property
    def experiment(self) -> Mapping[str, Any]:
        """The experiment as plain values."""
        resolved: Mapping[str, Any] = self.about["experiment"]
        return resolved

    @property
    def data(self) -> Reference | None:
        """The reference of the data, where the task has one."""
        try:
            return parse(str(self.experiment["task"].get("data", "")))
        except CotuneError:
            return None


def card(facts: Facts, *, moved: float | None = None, beside: str = "") -> str:
    """README.md.

    Args:
        facts: about the run.
        moved: by how much logits moved in merging, where that was measured.
        beside: the folder of the frozen backbone inside this one, where there is one.
    """
    parts = [f"Low-rank adapter (rank {facts.rank})"] if facts.rank is not None else []
    parts += ["rules of a private memory"] if facts.memory else []
    named = " and ".join(parts)
    kind = f"{named[:1].upper()}{named[1:]} for" if parts else "Fine-tuned model from"
    blocks = [
        _front(facts),
        f"# {facts.experiment['name']}",
        f"{kind} `{facts.origin}`{_scheme(facts)}, trained by federated fine-tuning with cotune: the rows stayed with "
        "their clients.",
        *(f"**Note:** {note}." for note in facts.notes),
        "## Load it",
        _load(facts, beside),
        "## How it was trained",
        _table(("", ""), _training(facts)),
        "## Evaluation",
        _scores(facts),
        "## Data",
        _data(facts),
        "## What is not protected",
        "\n".join(f"- {line[:1].upper()}{line[1:]}." for line in NOT_PROTECTED),
    ]
    if moved is not None:
        said = f"Logits of this folder, loaded again, differ by at most {moved:.1e} from those of the run's model."
        blocks.insert(4, said)
    return "\n\n".join(blocks) + "\n"


def _front(facts: Facts) -> str:
    """The YAML block; every JSON value is YAML."""
    library = "transformers" if facts.whole else "peft" if facts.rank is not None else "cotune"
    fields: dict[str, Any] = {"library_name": library}
    trainable = facts.experiment["method"]["trainable"]
    fields["base_model"] = facts.origin
    fields["pipeline_tag"] = HEADS[facts.head].pipeline
    fields["tags"] = [
        "cotune",
        "federated-learning",
        *(["lora"] if "rank" in trainable and trainable.get("factors", True) else []),
        *(["delta-rule-memory"] if facts.memory else []),
    ]
    if facts.data and facts.data.scheme == "hub":
        fields["datasets"] = [facts.data.name]
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
    return "\n".join(["---", *lines, "---"])


def _scheme(facts: Facts) -> str:
    match parse(facts.origin).scheme:
        case "random":
            return " (random weights, drawn by seed: no pretrained model)"
        case "pkg":
            return " (a model that a Python package carries)"
        case "builtin":
            return " (a small model that cotune ships)"
    return ""


def _load(facts: Facts, beside: str) -> str:
    """A few lines of Python, run in this folder, and what they need."""
    head, whole, scheme = HEADS[facts.head], facts.whole, parse(facts.origin).scheme
    named = scheme in LOADABLE and not (whole or beside)
    auto = head.auto
    origin = facts.origin if named else "." if whole else f"./{beside or 'backbone'}"
    given = [json.dumps(origin, ensure_ascii=False)]
    given += [f"revision={json.dumps(facts.revision)}"] if named and facts.revision else []
    tokenizer = ", ".join(given)
    given += [f"dtype={json.dumps(facts.experiment['backbone']['dtype'])}", f"pad_token_id={facts.padding}"]
    given += [f"num_labels={len(facts.labels)}"] if facts.labels else []
    lines = [
        f"from transformers import {auto}, AutoTokenizer",
        *(["from peft import PeftModel"] if facts.rank is not None else []),
        *(["from cotune import attach_memory"] if facts.memory else []),
        f"tokenizer = AutoTokenizer.from_pretrained({tokenizer})",
        f"model = {auto}.from_pretrained({', '.join(given)})",
        *(['model = PeftModel.from_pretrained(model, ".").eval()'] if facts.rank is not None else []),
        *(['attach_memory(model, ".")'] if facts.memory else []),
        *head.call,
    ]
    text = ["In this folder:", "\n".join(["```python", *lines, "```"])]
    if facts.memory:
        text.append(
            "Each row that the model reads is written into a memory of its own, which is gone afterwards; "
            "`session = model.memory_session()` gives one that lasts: `session.read(ids)` writes, "
            "`session.generate(ids, tokens)` answers, `session.reset()` forgets. A session is never saved: this folder "
            "holds the rules that write and read a memory, and nothing that anybody wrote into one."
        )
    if named and scheme == "path" and not facts.origin.startswith("/"):
        text.append(f"`{facts.origin}` is where the backbone lay for the run: write its path from here instead.")
    if not (whole or beside or named):
        text.append(
            f"`{facts.origin}` is a name that cotune knows, and other libraries do not: "
            "`cotune export RUN DIR --with-backbone` writes the backbone as a folder, `backbone`, beside the adapter."
        )
    if facts.labels:
        text.append(
            f"Classes: {', '.join(f'{i} = {json.dumps(n, ensure_ascii=False)}' for i, n in enumerate(facts.labels))}."
        )
    return "\n\n".join(text)


def _training(facts: Facts) -> list[tuple[str, str]]:
    """What it was made of and what it cost, row by row."""
    method, federation = facts.experiment["method"], facts.experiment["federation"]
    singles = ("trainable", "optimizer", "personalize", "uplink", "downlink", "aggregator")
    rows = [("task", facts.experiment["task"]["kind"]), ("backbone", _part(facts.experiment["backbone"], "ref"))]
    rows += [(name, _part(method[name])) for name in singles if method.get(name)]
    rows += [("penalty", _part(part)) for part in method["penalties"]]
    rows += [("budget of a client and round", _part(method["budget"])), ("share", str(method["share"]))]
    committed = sum(record.abandoned is None for record in facts.records)
    played = f"{len(facts.records)} of {federation['rounds']}"
    rows.append(("rounds", played if committed == len(facts.records) else f"{played}, {committed} of them committed"))
    rows.append(("clients", f"{len(facts.about['clients'])}, {federation.get('cohort') or 'all'} a round"))
    if facts.client is not None:
        rows.append(("model of", f"client {facts.client}"))
    up, down, scores = (
        sum(getattr(record, f"{what}_bytes") for record in facts.records)
        for what in ("uplink", "downlink", "evaluation")
    )
    rows.append(("bytes", f"{up:,} up, {down:,} down, {scores:,} to score"))
    seeds = {name: seed for name, seed in facts.experiment["seeds"].items() if name != "directions"}
    rows.append(("seeds", ", ".join(f"{name} {seed}" for name, seed in seeds.items())))
    rows.append(("theta_sha256", facts.theta_sha256))
    rows.append(("experiment", facts.about["hash"]))
    rows.append(("versions", ", ".join(f"{name} {version}" for name, version in facts.about["versions"].items())))
    return rows


def _scores(facts: Facts) -> str:
    """The last scores with n, interval and chance."""
    scored = [record for record in facts.records if record.global_metrics]
    if not scored:
        return "It was not scored."
    last, rows = scored[-1], []
    for name, metric in last.global_metrics.items():
        chance = "–" if metric.chance is None else f"{metric.chance:.4f}"
        known = metric.low is not None and metric.high is not None
        interval = f"{metric.low:.4f} to {metric.high:.4f}" if known else "–"
        rows.append((name, f"{metric.value:.4f}", str(metric.n), interval, chance))
    table = _table(("metric", "value", "n", "95 % interval", "chance"), rows)
    return f"After round {last.round}, {last.evaluated}, on rows that no client holds.\n\n{table}"


def _data(facts: Facts) -> str:
    """Names of data and counts of rows; never a row, nor where files lay."""
    clients, test = facts.about["clients"], facts.about["test"]["rows"]
    rows = sum(client["rows"] for client in clients.values())
    counts = f"{rows:,} rows to train on with {len(clients)} clients; {test:,} test rows."
    if facts.data is None and facts.about["data"].get("synthetic"):
        return f"Synthetic rows, generated by the task `{facts.experiment['task']['kind']}`. {counts}"
    if facts.data is None:
        return f"The task `{facts.experiment['task']['kind']}`. {counts}"
    if facts.data.scheme == "path":
        return f"Local data, `{Path(facts.data.name).name}`, which does not come along. {counts}"
    if facts.data.scheme == "synth":
        return f"Synthetic data, generated by `{facts.data}`: no person wrote it. {counts}"
    return f"`{facts.data}`, which does not come along. {counts}"


def _part(part: Mapping[str, Any], first: str = "kind") -> str:
    """`kind (a = 1, b = 2)`, what is not set left out."""
    fields = [
        f"{n} = {json.dumps(v, ensure_ascii=False)}" for n, v in part.items() if n != first and v not in (None, [])
    ]
    return " ".join([str(part.get(first, "")), f"({', '.join(fields)})" if fields else ""]).strip()


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [list(head), ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
