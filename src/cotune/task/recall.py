"""Associative recall: keys are written, some written again, and after a gap their latest values are asked for."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from cotune.core.contracts import Batch, Corpus, Encoded, Row, Split
from cotune.core.events import Say, silent
from cotune.core.seeds import Purpose, Seeds, derive
from cotune.task.causal import Causal, predictions
from cotune.task.drawn import drawn, many
from cotune.task.generator import pick
from cotune.task.story import KEYS, VALUES, Story, values_in
from cotune.task.worded import Worded

TOO_LONG = "longer than the model takes"
_NONE = -1  # where there is no question, or no candidate

Gap = Annotated[int, Field(ge=0, le=2**20)]


class Recall(Causal):
    """Associative recall with overwrites in the words of `builtin:tiny-recall`; clients have keys of their own.

    A row writes some keys, writes some of them again, goes on with fillers, and asks for keys, each once. The loss is
    that of the told values alone. Rows that the model does not take are dropped and counted.

    Attributes:
        clients: how many train.
        pairs: keys of a row.
        overwrites: later writes to one of them.
        questions: keys that are asked for.
        gap: fillers between the last write and the first question, or the least and the most.
        lead: fillers before the first write, or the least and the most, in every row.
        test_gaps: those of test rows, in turn; a gap is a stratum.
        rows: that each client trains on.
        held: rows that each client holds back to score on.
        test_rows: test rows of each gap.
        skew: how often a client draws a key from its own pool instead of all pools that train; 1.0 for disjoint keys.
        style: what else differs between clients: 'same' for nothing; 'overwrites' for their number, from none to twice
            `overwrites`; 'values' for values, which have pools as the keys have.
        unseen: whether test rows are of a pool of keys that nobody trains on, instead of all pools that train.
        seed: of the rows, together with the experiment's.
    """

    kind: ClassVar[str] = "recall"
    version: ClassVar[int] = 1
    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy", "among")
    ratios: ClassVar[Mapping[str, tuple[str, str]]] = {}

    clients: Annotated[int, Field(ge=1, le=KEYS)] = 4
    pairs: Annotated[int, Field(ge=2, le=KEYS)] = 4
    overwrites: Annotated[int, Field(ge=0, le=10**4)] = 4
    questions: Annotated[int, Field(ge=1, le=KEYS)] = 4
    gap: Gap | tuple[Gap, Gap] = (0, 32)
    lead: Gap | tuple[Gap, Gap] = 0
    test_gaps: Annotated[tuple[Gap, ...], BeforeValidator(many), Field(min_length=1)] = (0, 16, 32, 64)
    rows: Annotated[int, Field(ge=1, le=10**7)] = 256
    held: Annotated[int, Field(ge=0, le=10**6)] = 32
    test_rows: Annotated[int, Field(ge=0, le=10**6)] = 64
    skew: Annotated[float, Field(ge=0, le=1)] = 1.0
    style: Literal["same", "overwrites", "values"] = "same"
    unseen: bool = True
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @model_validator(mode="after")
    def _possible(self) -> Recall:
        if self.questions > self.pairs:
            raise ValueError(f"{self.questions} questions about {self.pairs} pairs: a key is asked for once")
        smallest = len(self._pool(KEYS, 0))
        if self.pairs > smallest:
            raise ValueError(f"{self.pairs} pairs of a pool of {smallest} keys: ask for fewer pairs or clients")
        if self.style == "values" and len(self._pool(VALUES, 0)) < 2:
            raise ValueError("an overwrite needs another value: ask for fewer clients")
        for what, (low, high) in (("gap", _range(self.gap)), ("lead", _range(self.lead))):
            if low > high:
                raise ValueError(f"a {what} from {low} to {high}")
        return self

    def load(self, seeds: Seeds, say: Say = silent) -> Corpus:
        """The rows of every client; a function of the data seed and the fields alone."""
        del say
        root = seeds.of(Purpose.DATA, self.kind, self.seed)
        low, high = _range(self.gap)

        def own(client: int, use: str, count: int) -> list[Row]:
            draws = [random.Random(derive(root, use, client, index)) for index in range(count)]
            gaps = [low + int(draw.random() * (high - low + 1)) for draw in draws]
            made = zip(draws, gaps, strict=True)
            return [self._row(draw, gap, client, f"client {client}, row {n + 1}") for n, (draw, gap) in enumerate(made)]

        width = max(2, len(str(self.clients - 1)))
        clients = {
            f"client-{client:0{width}d}": Split(own(client, "train", self.rows), own(client, "held", self.held))
            for client in range(self.clients)
        }
        gaps = tuple(dict.fromkeys(self.test_gaps))
        test = [
            self._row(random.Random(derive(root, "test", index)), gaps[index % len(gaps)], None, f"row {index + 1}")
            for index in range(self.test_rows * len(gaps))
        ]
        shown = [1 / len(values_in(row["text"].split())) for row in test]
        chance = {"accuracy": 1 / VALUES, **({"among": sum(shown) / len(shown)} if shown else {})}
        partition = {"kind": "keys", "skew": self.skew, "style": self.style, "unseen": self.unseen}
        return drawn(clients, test, data="synthetic", partition=partition, chance=chance)

    def chance(self, corpus: Corpus, vocabulary: int) -> Mapping[str, float]:
        """Any value, and one of those in a row."""
        del vocabulary
        return corpus.chance

    def cell(self, row: Row) -> str:
        """`gap 64`."""
        return f"gap {row['gap']}"

    def encode(self, rows: Sequence[Row], tokenizer: Any, limit: int) -> Encoded:
        """Each row that fits: `input_ids`, what is `supervised`, the `question` of each, and its `candidates`.

        Words become tokens one by one. The candidates of a token of a value are what stands there in the values of the
        row that agree with it so far; where a word is a token, they are all values of the row.

        Raises:
            CotuneError: E_TOKENIZER when values are not different tokens.
        """
        words = Worded(tokenizer)
        examples, sources = list[Mapping[str, Any]](), list[int]()
        for number, row in enumerate(rows):
            example = words.example(row["text"].split(), row["told"])
            if len(example["input_ids"]) <= limit:
                examples.append({**example, "size": limit})
                sources.append(number)
        dropped = len(rows) - len(examples)
        return Encoded(examples, dropped={TOO_LONG: dropped} if dropped else {}, sources=sources)

    def collate(self, examples: Sequence[Mapping[str, Any]], tokenizer: Any) -> Batch:
        """What `Causal` makes, `question` (rows, S) and `candidates` (rows, S, C); −1 where there is none."""
        batch = super().collate(examples, tokenizer)
        rows, most = batch["where"].shape
        question = torch.full((rows, most), _NONE)
        candidates = torch.full(
            (rows, most, max(len(ids) for example in examples for ids in example["candidates"])), _NONE
        )
        for row, example in enumerate(examples):
            question[row, : len(example["question"])] = torch.tensor(example["question"])
            for place, ids in enumerate(example["candidates"]):
                candidates[row, place, : len(ids)] = torch.tensor(ids)
        return {**batch, "question": question, "candidates": candidates}

    def scores(self, model: Callable[..., Any], batch: Batch) -> dict[str, Tensor]:
        """(rows,) float32: `loss` (the mean over told tokens), and two shares of a row's questions.

        They are `accuracy`, where every token of the value is the likeliest of all, and `among`, the likeliest of its
        candidates.
        """
        logits, where, question = predictions(model, batch), batch["where"], batch["question"]
        logits = logits.gather(1, where[..., None].expand(-1, -1, logits.shape[-1])).float()
        told = question != _NONE
        labels = torch.where(told, batch["labels"].gather(1, where), 0)
        gold = logits.gather(2, labels[..., None])[..., 0]
        loss = ((logits.logsumexp(2) - gold) * told).sum(1) / told.sum(1)
        rivals = logits.gather(2, batch["candidates"].clamp_min(0))
        rivals = torch.where(batch["candidates"] == _NONE, -torch.inf, rivals)
        return {
            "loss": loss,
            "accuracy": _share(gold >= logits.amax(2), question),
            "among": _share(gold >= rivals.amax(2), question),
        }

    def _pool(self, words: int, pool: int) -> range:
        """Numbers of the words of one pool; the last one is for test rows where they are unseen."""
        pools = self.clients + self.unseen
        return range(pool * (words // pools), (pool + 1) * (words // pools))

    def _row(self, draw: random.Random, gap: int, client: int | None, place: str) -> Row:
        """A row of a client, or of none."""
        story = Story(
            draw, self._pool(VALUES, client) if self.style == "values" and client is not None else range(VALUES)
        )
        low, high = _range(self.lead)
        story.fill(low + int(draw.random() * (high - low + 1)) if high > low else low)
        keys = self._keys(draw, client)
        for key in keys:
            story.write(key)
        for _ in range(self._overwrites(client)):
            story.write(pick(draw, keys))
        story.fill(gap)
        for key in draw.sample(keys, self.questions):
            story.ask(key)
        return {"text": " ".join(story.words), "told": tuple(story.told), "gap": gap, "place": place}

    def _keys(self, draw: random.Random, client: int | None) -> list[int]:
        """Different keys: of the client's pool and of all pools that train, or of the test rows' pool."""
        shared = range(self._pool(KEYS, self.clients - 1).stop)
        if client is None:
            return draw.sample(self._pool(KEYS, self.clients) if self.unseen else shared, self.pairs)
        own = self._pool(KEYS, client)
        keys = list[int]()
        while len(keys) < self.pairs:
            key = pick(draw, own if draw.random() < self.skew else shared)
            keys += [key] if key not in keys else []
        return keys

    def _overwrites(self, client: int | None) -> int:
        """How many, as the style has it."""
        if self.style != "overwrites" or client is None or self.clients == 1:
            return self.overwrites
        return round(2 * self.overwrites * client / (self.clients - 1))


def _range(count: int | tuple[int, int]) -> tuple[int, int]:
    """The least and the most."""
    return (count, count) if isinstance(count, int) else count


def _share(right: Tensor, question: Tensor) -> Tensor:
    """The share of questions all of whose tokens are right (rows,), float32.

    Args:
        right: of each token (rows, S).
        question: the number of its question, −1 for none (rows, S).
    """
    count = question.amax(1) + 1
    wrong = torch.zeros(question.shape, device=question.device)
    wrong = wrong.scatter_add(1, question.clamp_min(0), (~right & (question != _NONE)).float())
    return 1 - (wrong > 0).float().sum(1) / count
