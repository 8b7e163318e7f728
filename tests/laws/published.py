"""Published data sets without their rows: names and types of columns, synthetic rows in them, and a hub on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, Features, List, Value

TEXT, NUMBER = Value("string"), Value("int32")
Rows = Sequence[Mapping[str, Any]]
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "Rowan/hellaswag": {
        "ind": NUMBER,
        **dict.fromkeys(("activity_label", "ctx_a", "ctx_b", "ctx"), TEXT),
        "endings": List(TEXT),
        **dict.fromkeys(("source_id", "split", "split_type", "label"), TEXT),
    },
    "cais/mmlu:all": {"question": TEXT, "subject": TEXT, "choices": List(TEXT), "answer": ClassLabel(names=[*"ABCD"])},
    "nyu-mll/glue:sst2": {"sentence": TEXT, "label": ClassLabel(names=["negative", "positive"]), "idx": NUMBER},
    "aps/super_glue:rte": {
        **dict.fromkeys(("premise", "hypothesis"), TEXT),
        "idx": NUMBER,
        "label": ClassLabel(names=["entailment", "not_entailment"]),
    },
    "aps/super_glue:wic": {
        **dict.fromkeys(("word", "sentence1", "sentence2"), TEXT),
        **dict.fromkeys(("start1", "start2", "end1", "end2", "idx"), NUMBER),
        "label": ClassLabel(names=["False", "True"]),
    },
    "aps/super_glue:multirc": {
        **dict.fromkeys(("paragraph", "question", "answer"), TEXT),
        "idx": dict.fromkeys(("paragraph", "question", "answer"), NUMBER),
        "label": ClassLabel(names=["False", "True"]),
    },
    "google/boolq": {"question": TEXT, "answer": Value("bool"), "passage": TEXT},
    "rajpurkar/squad": {
        **dict.fromkeys(("id", "title", "context", "question"), TEXT),
        "answers": {"text": List(TEXT), "answer_start": List(NUMBER)},
    },
}


def hellaswag(number: int, *, hidden: bool = False) -> dict[str, Any]:
    """A synthetic row of HellaSwag; activities take turns, and so do labels."""
    context = (f"A person [title] stands at gate {number}.", "then the person")
    return {
        "ind": number,
        "activity_label": ("Opening gates", "Sailing", "Baking")[number % 3],
        "ctx_a": context[0],
        "ctx_b": context[1],
        "ctx": " ".join(context),
        "endings": [f"walks {way} {number} [substeps] steps." for way in ("up", "down the hill", "left", "right")],
        "source_id": f"synthetic~{number}",
        "split": "train",
        "split_type": ("indomain", "zeroshot")[number % 2],
        "label": "" if hidden else str(number % 4),
    }


def mmlu(number: int, subject: str = "anatomy", answer: int | None = None) -> dict[str, Any]:
    """A synthetic question in the columns of MMLU."""
    return {
        "question": f"What is {number} plus {number}?",
        "subject": subject,
        "choices": [str(2 * number + step) for step in range(4)],
        "answer": number % 4 if answer is None else answer,
    }


def prompted(name: str, number: int, *, hidden: bool = False) -> dict[str, Any]:
    """A synthetic row of one of the six data sets, by its id; every text has the number."""
    schema = SCHEMAS[name]
    row: dict[str, Any] = {}
    for column, kind in schema.items():
        if column == "answers":
            row[column] = {"text": [f"gate {number}", f"the gate {number}"], "answer_start": [0, 4]}
        elif kind == TEXT:
            row[column] = f"{column} {number} is here"
        elif isinstance(kind, ClassLabel):
            row[column] = -1 if hidden else number % 2
        else:
            row[column] = {"paragraph": 0, "question": 0, "answer": number} if isinstance(kind, dict) else number
    return row | ({"answer": number % 2 == 0} if name == "google/boolq" else {})


def on_disk(root: Path, name: str, splits: Mapping[str, Rows]) -> Path:
    """Parquet files in the exact schema where a hub has them, below `root/ORG/NAME`; the folder with the files."""
    identity, _, config = name.partition(":")
    folder = root / identity / (config or "data")
    folder.mkdir(parents=True)
    for split, rows in splits.items():
        made = Dataset.from_list([dict(row) for row in rows], features=Features(dict(SCHEMAS[name])))
        made.to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))
    files = "".join(f"  - split: {split}\n    path: {folder.name}/{split}-*\n" for split in splits)
    config_name = f"configs:\n- config_name: {config or 'default'}\n  data_files:\n{files}"
    (root / identity / "README.md").write_text(f"---\n{config_name}---\n")
    return folder


def many(row: Callable[..., dict[str, Any]], count: int, *given: Any, **options: Any) -> list[dict[str, Any]]:
    """`count` rows, numbered from 0."""
    return [row(*given, number, **options) for number in range(count)]
