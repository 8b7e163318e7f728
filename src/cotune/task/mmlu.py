"""MMLU: four-choice questions of 57 subjects, which five clients divide by domain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer
from torch import Tensor

from cotune.core.contracts import Batch, Corpus, Row, Split
from cotune.core.events import Say, silent
from cotune.core.part import kind_of
from cotune.core.seeds import Seeds, derive
from cotune.task.benchmark import Benchmark, choices, words
from cotune.task.best import first_best
from cotune.task.divide import held_back, subset
from cotune.task.forms.written import written
from cotune.task.letters import LETTERS, Choice, Read, asked
from cotune.task.partition import Natural, Partition
from cotune.task.table import Table
from cotune.task.tabular import Parsed, no_text

# FedNL, appendix C.1; professional_accounting is in no row of its table, and we put it with the humanities.
DOMAINS: Mapping[str, tuple[str, ...]] = {
    "law-ethics": (
        "business_ethics", "formal_logic", "international_law", "jurisprudence", "logical_fallacies", "moral_disputes",
        "moral_scenarios", "professional_law",
    ),
    "humanities": (
        "econometrics", "global_facts", "high_school_european_history", "high_school_geography",
        "high_school_government_and_politics", "high_school_macroeconomics", "high_school_microeconomics",
        "high_school_us_history", "high_school_world_history", "management", "marketing", "miscellaneous",
        "philosophy", "prehistory", "professional_accounting", "public_relations", "security_studies", "sociology",
        "us_foreign_policy", "world_religions",
    ),
    "stem": (
        "anatomy", "astronomy", "college_biology", "college_chemistry", "college_physics", "conceptual_physics",
        "electrical_engineering", "elementary_mathematics", "high_school_biology", "high_school_chemistry",
        "high_school_physics",
    ),
    "math-cs": (
        "abstract_algebra", "college_computer_science", "college_mathematics", "computer_security",
        "high_school_computer_science", "high_school_mathematics", "high_school_statistics", "machine_learning",
    ),
    "medical-psychology": (
        "clinical_knowledge", "college_medicine", "high_school_psychology", "human_aging", "human_sexuality",
        "medical_genetics", "nutrition", "professional_medicine", "professional_psychology", "virology",
    ),
}  # fmt: skip
DOMAIN = "domain"  # the column that we add
BLANK = 8  # tokens that a model may write before a letter: blanks and line ends
LETTERED: Literal["letters"] = "letters"  # the usual scoring
_DOMAIN_OF = {subject: domain for domain, subjects in DOMAINS.items() for subject in subjects}


class MMLU(Choice, Benchmark):
    """MMLU (Hendrycks et al. 2021): four-choice questions; a domain of subjects is a client.

    The prompt is the question, a line for each option, and `Answer:`, without examples or the subject; the loss is that
    of the right letter's token alone. `accuracy` is that among the four letters' tokens, or with `scoring = "generate"`
    that of what the model writes. Beside it there is the four tokens' probability, and `generated`: whether the right
    letter's token is the likeliest of all. That is the first token alone: a model that writes a line end and then the
    letter, or the letter without its blank, is right by `scoring = "generate"` and not by `generated`.
    The five domains, the prompt and the caps are those of FedNL (appendix C.1 and C.2), which generates.

    Attributes:
        protocol: 'paper' gives clients the split `test`, of which each holds a sixth back to be scored on, and tests on
            `validation` and `dev`: **models train on rows of the public test**, and scores compare with no leaderboard.
            'clean' gives clients `validation` and `dev`, and tests on `test`. `auxiliary_train` names no subjects, so
            it belongs to no domain and is not used.
        train_rows: the most that a client trains on.
        held_rows: the most that it holds back.
        held: the share that it holds back before the caps.
        max_tokens: the most tokens of a prompt; longer ones are dropped and counted.
        scoring: 'letters' ranks the four tokens, in one pass. 'generate' writes greedily behind the same prompt until
            something is no blank, 8 tokens at most: the first character is the answer, and `answered` says whether it
            is one of the letters A to D. Where it is 'letters' it is left out of what is hashed and written down, as
            experiments from before it are.
    """

    kind: ClassVar[str] = "mmlu"
    version: ClassVar[int] = 1
    aside: ClassVar[tuple[str, ...]] = ("gold", "subject", DOMAIN)

    data: str = "cais/mmlu:all"
    protocol: Literal["paper", "clean"] = "clean"
    held: Annotated[float, Field(ge=0, lt=1)] = 1 / 6
    train_rows: Annotated[int, Field(ge=1)] = 2000
    held_rows: Annotated[int, Field(ge=1)] = 200
    max_tokens: Annotated[int, Field(ge=2)] = 1024
    scoring: Literal["letters", "generate"] = LETTERED

    @model_serializer(mode="wrap")
    def _with_kind(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said = {"kind": kind_of(type(self)), **handler(self)}
        if self.scoring == LETTERED:
            said.pop("scoring", None)
        return said

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those of the letters and `generated`; `answered` where answers are written."""
        return (*super().metrics, "generated", *(() if self.scoring == LETTERED else ("answered",)))

    @property
    def trained(self) -> tuple[str, ...]:
        """`test`, or `validation` and `dev`."""
        return ("test",) if self.protocol == "paper" else ("validation", "dev")

    @property
    def tested(self) -> tuple[str, ...]:
        """`validation` and `dev`, or `test`."""
        return ("validation", "dev") if self.protocol == "paper" else ("test",)

    def usual(self) -> Partition:
        """A domain is a client."""
        return Natural(key=DOMAIN)

    def prepared(self, table: Table) -> Table:
        """The table with the column `domain`, empty for a subject that is in none."""
        table.cells("subject", self.data)
        rows = [{**row, DOMAIN: _DOMAIN_OF.get(str(row.get("subject")))} for row in table.rows]
        return replace(table, columns=(*table.columns, DOMAIN), rows=rows)

    def parse(self, table: Table) -> Parsed:
        """The rows of a known subject that have a question: subject, question, options, `gold`.

        Raises:
            CotuneError: E_LABEL for an answer that is none of the four; E_DATA for what is no list of four options.
        """

        def read(cells: Row, place: str) -> Row | str:
            domain, (subject,) = cells[DOMAIN], words(cells, "subject")
            if reason := no_text(*words(cells, "question")) or ("" if domain else "of a subject in no domain"):
                return reason
            return {"subject": subject, **choices(cells, len(LETTERS), place), DOMAIN: domain}

        return self.useful(table, ("question", "choices", "answer"), "a question of a known subject", read)

    def divided(self, rows: Sequence[Row], seed: int) -> Split:
        """A client's rows: a share held back, then the first so many of each side, drawn by seed."""
        both = held_back(rows, self.held, seed)

        def capped(side: Sequence[Row], most: int, name: str) -> list[Row]:
            return [side[place] for place in subset(len(side), most, derive(seed, name))]

        return Split(
            train=capped(both.train, self.train_rows, "train_rows"), held=capped(both.held, self.held_rows, "held_rows")
        )

    def load(self, seeds: Seeds, say: Say = silent) -> Corpus:
        """The data, divided among the clients."""
        return replace(super().load(seeds, say), chance={"accuracy": 1 / len(LETTERS)})

    def prompt(self, row: Row, read: Read, limit: int) -> list[int] | None:
        """The ids of the question with its options; None where they are too many."""
        ids = read(asked(row["question"], row["options"], mark="."))
        room = 0 if self.scoring == LETTERED else BLANK - 1  # the last token that is written is not read
        return ids if len(ids) <= min(limit - room, self.max_tokens) else None

    def chance(self, corpus: Corpus, vocabulary: int) -> Mapping[str, float]:
        """A quarter of the answers, and one token of the vocabulary."""
        return {**super().chance(corpus, vocabulary), "generated": 1 / vocabulary}

    def told(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Those of the four letters, and `generated`."""
        right = batch["letters"].gather(1, batch["gold"][:, None])[:, 0]
        return {**super().told(logits, batch), "generated": (first_best(logits) == right).float()}

    def judged(
        self, model: Callable[..., Any], batch: Batch, examples: Sequence[Mapping[str, Any]], tokenizer: Any
    ) -> Mapping[str, Tensor]:
        """`scores`; where answers are written, `accuracy` is theirs, and `answered` 1 for one of the four letters."""
        found = self.scores(model, batch)
        if self.scoring == LETTERED:
            return found
        prompts, device = [one["input_ids"] for one in examples], batch["input_ids"].device
        told = written(model, prompts, tokenizer, BLANK, device, done=lambda _, text: bool(text.strip()))
        firsts = [text.strip()[:1] for text, _ in told]
        right = [float(first == LETTERS[one["gold"]]) for first, one in zip(firsts, examples, strict=True)]
        answered = [float(first in LETTERS) for first in firsts]
        return {**found, "accuracy": torch.tensor(right), "answered": torch.tensor(answered)}

    def topic(self, row: Row) -> str:
        """The subject."""
        return str(row["subject"])

    def cell(self, row: Row) -> str:
        """The domain."""
        return str(row[DOMAIN])
