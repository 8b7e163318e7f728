"""A letter is one token behind any prompt, scored at the last token of its own row, and a tie goes to the first."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from words import VOCAB, network, words

from cotune.core.contracts import Corpus, Row
from cotune.core.errors import CotuneError
from cotune.core.events import Say, silent
from cotune.core.seeds import Seeds
from cotune.task.letters import ANSWER, LETTERS, TOO_LONG, Choice, Letters, Read, asked

BLANKS = tuple(("Ġ", letter) for letter in LETTERS)
TOKENIZERS: Mapping[str, Any] = {
    "a blank, then a letter": words(),
    "with BOS": words("<bos> $A"),
    "with both": words("<bos> $A <eos>"),
    "pad is EOS": words(pad="<eos>"),
    "a letter with its blank": words(merges=BLANKS),
    "spaced": words("<bos> $A", spaced=True),
}


class Quiz(Choice):
    """Questions of the test's own."""

    kind: ClassVar[str] = "quiz"
    version: ClassVar[int] = 1

    def load(self, seeds: Seeds, say: Say = silent) -> Corpus:
        raise NotImplementedError

    def prompt(self, row: Row, read: Read, limit: int) -> list[int] | None:
        ids = read(row["text"])
        return ids if len(ids) <= limit else None


TASK = Quiz()
OPTIONS = ("north", "south", "east", "west")
ROWS: list[Row] = [
    {"text": asked("?" * length, OPTIONS), "gold": gold} for length, gold in ((1, 0), (40, 1), (7, 2), (7, 3), (25, 1))
]


def test_a_question_ends_where_the_letter_comes() -> None:
    text = asked("Where?", OPTIONS)
    assert text.split("\n") == ["Question: Where?", "A) north", "B) south", "C) east", "D) west", ANSWER]
    assert asked("Where?", OPTIONS, mark=".").split("\n")[1] == "A. north"
    with pytest.raises(ValueError, match="zip"):
        asked("Where?", OPTIONS[:3])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_letters_are_what_the_tokenizer_says_behind_the_prompt(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    for row, example in zip(ROWS, TASK.encode(ROWS, tokenizer, 160).examples, strict=True):
        for letter, token in zip(LETTERS, example["letters"], strict=True):
            whole = tokenizer(f"{row['text']} {letter}")["input_ids"]
            whole = whole[:-1] if name == "with both" else whole
            assert [*example["input_ids"], token] == whole
        assert len({*example["letters"]}) == len(LETTERS)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt"])
@pytest.mark.parametrize("name", ["with BOS", "pad is EOS", "a letter with its blank"])
def test_scores_are_a_rows_own_in_any_batch_and_any_order(kind: str, name: str) -> None:
    model, tokenizer = network(kind).double(), TOKENIZERS[name]
    model.double()
    examples = TASK.encode(ROWS, tokenizer, 160).examples
    with torch.no_grad():
        for size in (1, 2, 5):
            order = random.Random(size).sample(range(len(ROWS)), len(ROWS))
            for start in range(0, len(ROWS), size):
                chosen = order[start : start + size]
                batch = TASK.collate([examples[i] for i in chosen], tokenizer)
                found = TASK.scores(model, batch)
                torch.testing.assert_close(TASK.losses(model, batch), found["loss"])
                for place, i in enumerate(chosen):
                    ids = torch.tensor([list(examples[i]["input_ids"])])
                    p = model(input_ids=ids).logits[0, -1].softmax(-1)
                    four = [float(p[token]) for token in examples[i]["letters"]]
                    told = {name: float(values[place]) for name, values in found.items()}
                    assert told["loss"] == pytest.approx(-float(p[examples[i]["letters"][ROWS[i]["gold"]]].log()))
                    assert told["letter_mass"] == pytest.approx(sum(four), rel=1e-5)
                    assert told["accuracy"] == (four.index(max(four)) == ROWS[i]["gold"])
                    assert {values.dtype for values in found.values()} == {torch.float32}


@pytest.mark.parametrize("whole", [False, True], ids=["makes what is asked for", "makes all logits"])
def test_only_the_last_tokens_logits_are_asked_for_and_a_model_that_makes_all_is_cut(whole: bool) -> None:
    examples = TASK.encode(ROWS, words(), 160).examples
    batch = TASK.collate(examples, words())
    lengths = [len(example["input_ids"]) for example in examples]
    seen: list[int] = []

    def model(input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: torch.Tensor) -> SimpleNamespace:
        del attention_mask
        seen.extend(logits_to_keep.tolist())
        logits = torch.zeros(*input_ids.shape, VOCAB)
        for row, example in enumerate(examples):  # each row is right at its own last token, and nowhere else
            logits[row, lengths[row] - 1, example["letters"][example["gold"]]] = 20.0
        return SimpleNamespace(logits=logits if whole else logits[:, logits_to_keep])

    assert TASK.scores(model, batch)["accuracy"].tolist() == [1.0] * len(ROWS)
    assert seen == sorted({length - 1 for length in lengths})


def test_a_tie_goes_to_the_first_option_and_is_counted() -> None:
    batch = TASK.collate([TASK.encode(ROWS, words(), 160).examples[i] for i in (0, 1)], words())
    four = batch["letters"][0].tolist()

    def guess(values: list[float]) -> tuple[list[float], list[float]]:
        logits = torch.full((2, batch["input_ids"].shape[1], VOCAB), -9.0)
        logits[..., four] = torch.tensor(values)
        found = TASK.scores(lambda **_: SimpleNamespace(logits=logits), batch)
        return found["accuracy"].tolist(), found["tied"].tolist()

    assert guess([0.0, 0.0, 0.0, 0.0]) == ([1.0, 0.0], [1.0, 1.0])
    assert guess([0.0, 9e-6, 0.0, 0.0]) == ([1.0, 0.0], [1.0, 1.0])
    assert guess([0.0, 3e-5, 0.0, 0.0]) == ([0.0, 1.0], [0.0, 0.0])
    assert guess([float("nan"), 1.0, 0.0, 0.0]) == ([0.0, 0.0], [0.0, 0.0])


def test_the_loss_is_over_the_whole_vocabulary_and_carries_a_gradient() -> None:
    model = network("llama")
    batch = TASK.collate(TASK.encode(ROWS, words(), 160).examples, words())
    losses = TASK.losses(model, batch)
    assert losses.shape == (len(ROWS),)
    assert bool((losses > torch.tensor(4.0).log()).all()), "an untrained model spreads over more than four tokens"
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_rows_that_do_not_fit_are_dropped_and_counted_and_the_others_know_their_number() -> None:
    lengths = [len(example["input_ids"]) for example in TASK.encode(ROWS, words(), 160).examples]
    most = sorted(lengths)[2]
    encoded = TASK.encode(ROWS, words(), most)
    fitting = [number for number, length in enumerate(lengths) if length <= most]
    assert encoded.sources == fitting
    assert encoded.dropped == {TOO_LONG: len(ROWS) - len(fitting)}
    assert [example["gold"] for example in encoded.examples] == [ROWS[number]["gold"] for number in fitting]
    assert encoded.first(1).sources == fitting[:1]
    assert TASK.encode(ROWS, words(), 3).examples == []
    assert TASK.encode([], words(), 3).dropped == {}


def word_level() -> Any:
    core = Backend(models.WordLevel({"<unk>": 0, "A": 1, "B": 2, "C": 3}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=core, unk_token="<unk>")


@pytest.mark.parametrize(
    "tokenizer",
    [word_level(), words(merges=BLANKS[:1]), words(merges=((":", "Ġ"),))],
    ids=["D is unknown", "A is one token and B two", "the blank belongs to the prompt"],
)
def test_letters_that_are_not_one_token_each_are_refused_in_one_line(tokenizer: Any) -> None:
    with pytest.raises(CotuneError, match=r"error\[E_TOKENIZER\] the letters A to D are not one token each"):
        TASK.encode(ROWS, tokenizer, 160)


def test_a_letter_that_is_another_token_behind_another_prompt_is_refused() -> None:
    letters = Letters.of(words(merges=(*BLANKS, ("?", "ĠA"))))
    assert letters.read("Really:")
    with pytest.raises(CotuneError, match="another token behind another prompt"):
        letters.read("Really?")


def test_guessing_is_one_of_four_letters_and_four_of_all_tokens() -> None:
    corpus = Corpus(clients={}, test=(), head="causal", labels=(), chance={})
    assert TASK.chance(corpus, VOCAB) == {"accuracy": 0.25, "letter_mass": 4 / VOCAB}
