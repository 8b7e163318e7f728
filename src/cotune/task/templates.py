"""What six data sets ask and in which words: where their rows are, how they become prompts, and the words for labels.

The prompts of a causal model are those of MeZO (Malladi et al. 2023, appendix E.2), and so are the masked ones of SST-2
and RTE. **The masked prompts of WiC, MultiRC and BoolQ are ours**: MeZO has none. FedSPZO prints no prompts: that these
are its prompts is our assumption. DeComFL's differ, in SST-2's words for one, so its numbers do not compare with ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cotune.core.contracts import Row


@dataclass(frozen=True)
class Gap:
    """A prompt with a word missing: what stands before it and behind."""

    before: str
    behind: str


@dataclass(frozen=True)
class Asks:
    """A data set.

    Attributes:
        data: its id on the hub.
        columns: the texts of a row.
        label: columns of the class number, the first that there is; none where answers are texts.
        words: for the classes, in the order of their numbers, as they stand behind a prompt.
        prompt: of a causal model; the answer comes behind it.
        masked: of a masked model; None where there is none.
    """

    data: str
    columns: tuple[str, ...]
    label: tuple[str, ...]
    words: tuple[str, ...]
    prompt: Callable[[Row], str]
    masked: Callable[[Row], Gap] | None = None


def _sst2(row: Row) -> str:
    return f"{row['sentence']} It was"


def _sst2_masked(row: Row) -> Gap:
    return Gap(f"{row['sentence']} It was", ".")


def _rte(row: Row) -> str:
    return f'{row["premise"]}\nDoes this mean that "{row["hypothesis"]}" is true? Yes or No?\n'


def _rte_masked(row: Row) -> Gap:
    return Gap(f"{row['premise'].rstrip('.')}?", f", {row['hypothesis']}")


def _wic(row: Row) -> str:
    asked = f'Does the word "{row["word"]}" have the same meaning in these two sentences? Yes, No?'
    return f"{asked}\n{row['sentence1']}\n{row['sentence2']}\n"


def _wic_masked(row: Row) -> Gap:
    return Gap(f'{row["sentence1"]} {row["sentence2"]} Does "{row["word"]}" mean the same in both?', ".")


def _multirc(row: Row) -> str:
    asked = f'Question: {row["question"]}\nI found this answer "{row["answer"]}". Is that correct? Yes or No?'
    return f"{row['paragraph']}\n{asked}\n"


def _multirc_masked(row: Row) -> Gap:
    return Gap(f"{row['paragraph']} {row['question']} Is it {row['answer'].rstrip('.')}?", ".")


def _boolq(row: Row) -> str:
    return f"{row['passage']} {_as_question(row['question'])}\n"


def _boolq_masked(row: Row) -> Gap:
    return Gap(f"{row['passage']} {_as_question(row['question'])}", ".")


def _as_question(text: str) -> str:
    """With a capital and one question mark, which rows of BoolQ lack."""
    plain = text.rstrip("? ")
    return f"{plain[:1].upper()}{plain[1:]}?"


def _squad(row: Row) -> str:
    return f"Title: {row['title']}\nContext: {row['context']}\nQuestion: {row['question'].strip()}\nAnswer:"


_LABEL = ("label",)
DATASETS: Mapping[str, Asks] = {
    "sst2": Asks("nyu-mll/glue:sst2", ("sentence",), _LABEL, (" terrible", " great"), _sst2, _sst2_masked),
    "rte": Asks("aps/super_glue:rte", ("premise", "hypothesis"), _LABEL, ("Yes", "No"), _rte, _rte_masked),
    "wic": Asks("aps/super_glue:wic", ("word", "sentence1", "sentence2"), _LABEL, ("No", "Yes"), _wic, _wic_masked),
    "multirc": Asks(
        "aps/super_glue:multirc", ("paragraph", "question", "answer"), _LABEL, ("No", "Yes"), _multirc, _multirc_masked
    ),
    "boolq": Asks("google/boolq", ("passage", "question"), ("label", "answer"), ("No", "Yes"), _boolq, _boolq_masked),
    "squad": Asks("rajpurkar/squad", ("title", "context", "question"), (), (), _squad),
}
