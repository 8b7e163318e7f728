"""Each way of asking scores a row by itself: by hand, by an oracle, in any batch, any order, either padding side."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertForMultipleChoice
from words import BOS, EOS, VOCAB, network, words

from cotune.backbone.builtin import VOCAB as BYTES
from cotune.backbone.builtin import byte_tokenizer
from cotune.core.errors import Code, CotuneError
from cotune.task.best import TIE, first_best, tied
from cotune.task.forms import Form, Masked, Paired, Question, Ranked, Written
from cotune.task.forms.masked import TOO_LONG as NO_ROOM_BEHIND
from cotune.task.forms.ranked import TOO_LONG
from cotune.task.forms.written import written

YES_NO = (("Ġ", "y"), ("Ġ", "n"))
QUESTIONS = [
    Question(
        f"{'so ' * (number % 7)}it is {number}, and", (f" {'a' * (1 + number % 3)}", " bé", f" 中{number}"), number % 3
    )
    for number in range(20)
]
GAPS = [Question(f"{'so ' * (n % 5)}it was", (" y", " n"), n % 2, f", {n}" if n % 3 else "") for n in range(20)]
WRITES = [Question(f"{'so ' * (n % 4)}{n}:", (f" {n}", f" the {n}")) for n in range(8)]


def gap_words(**options: Any) -> Any:
    tokenizer = words("<bos> $A <eos>", merges=YES_NO, **options)
    tokenizer.add_special_tokens({"mask_token": "<|im_start|>"})
    return tokenizer


def pair_words(*, segments: bool) -> Any:
    tokenizer = byte_tokenizer(marks=True, limit=160)
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if segments else [])]
    tokenizer.model_input_names = names
    return tokenizer


def encoder(kind: Any, vocabulary: int) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=vocabulary, intermediate_size=32, initializer_range=0.5, pad_token_id=0, **sizes)
    return kind(config).eval()


def scored(form: Form, model: Any, examples: Sequence[Mapping[str, Any]], tokenizer: Any, size: int) -> dict[str, Any]:
    """Metric -> the rows' scores in their order, from batches of `size` in a shuffled order."""
    order = random.Random(size).sample(range(len(examples)), len(examples))
    found: dict[str, list[float]] = {name: [math.nan] * len(examples) for name in form.metrics}
    with torch.no_grad():
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            some = [examples[i] for i in chosen]
            told = form.judged(model, form.collate(some, tokenizer), some, tokenizer)
            assert set(told) == set(form.metrics)
            for name, values in told.items():
                assert values.dtype is torch.float32
                for i, value in zip(chosen, values.tolist(), strict=True):
                    found[name][i] = value
    return found


WAYS: dict[str, tuple[Form, Sequence[Question], Callable[[], Any], Callable[[], Any]]] = {
    "ranked": (Ranked(), QUESTIONS, lambda: network("llama"), lambda: words("<bos> $A")),
    "paired": (Paired(), QUESTIONS, lambda: encoder(BertForMultipleChoice, BYTES), lambda: pair_words(segments=True)),
    "masked": (Masked(), GAPS, lambda: encoder(BertForMaskedLM, VOCAB), gap_words),
    "written": (Written(4), WRITES, lambda: network("gpt2"), lambda: words("<bos> $A")),
}


@pytest.mark.parametrize("way", WAYS)
def test_predictions_are_the_same_for_any_batch_size_padding_side_and_order(way: str) -> None:
    form, questions, make, tokens = WAYS[way]
    model, tokenizer = make(), tokens()
    examples = form.encode(questions, tokenizer, 160).examples
    assert len(examples) == len(questions)
    once = scored(form, model, examples, tokenizer, 64)
    assert 0 < sum(once.get("accuracy", [1.0])) < len(questions), "the model must not be right, or wrong, by default"
    assert not any(once.get("tied", ())), "no two options of these rows are near each other"
    for side in ("left", "right"):
        tokenizer.padding_side = tokenizer.truncation_side = side
        again = form.encode(questions, tokenizer, 160).examples
        for size in (1, 2, 7, 64):
            other = scored(form, model, again, tokenizer, size)
            for name in form.metrics:
                if name == "loss":
                    assert other[name] == pytest.approx(once[name], abs=2e-5)
                else:
                    assert other[name] == once[name]


def planted(prompt: Mapping[int, float]) -> Callable[..., Any]:
    """A model that says each next token of its own input with a planted log-probability, and else token 0."""

    def model(input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int) -> SimpleNamespace:
        del attention_mask
        logits = torch.full((*input_ids.shape, VOCAB), -1e9)
        for row, ids in enumerate(input_ids.tolist()):
            for place, token in enumerate(ids[1:]):
                said = prompt.get(token, -9.0)
                logits[row, place, token] = said
                logits[row, place, 0] = math.log1p(-math.exp(said))
        return SimpleNamespace(logits=logits[:, -logits_to_keep:])

    return model


def test_three_ways_to_normalise_give_what_a_hand_computes_for_endings_of_unequal_length() -> None:
    tokenizer = words(merges=(("a", "a"),))
    e, blank, aa, b = "é".encode(), "Ġ", "aa", "b"
    spelled = {name: tokenizer.convert_tokens_to_ids(name) for name in (blank, aa, b)}
    known = {spelled[blank]: -1.0, spelled[aa]: -1.2, spelled[b]: -1.9}
    known |= dict.fromkeys(tokenizer("é")["input_ids"], -1.05) | dict.fromkeys(tokenizer("中")["input_ids"], -1.1)
    # option      tokens with their blank   Σ log p                     mean      by bytes
    #  aaaa       3                         −1 − 2 · 1.2 = −3.4         −1.1333   −3.4 / 4 = −0.85
    #  é          3                         −1 − 2 · 1.05 = −3.1        −1.0333   −3.1 / 2 = −1.55
    #  中         4                         −1 − 3 · 1.1 = −4.3         −1.075    −4.3 / 3 = −1.4333
    #  b          2                         −1 − 1.9 = −2.9             −1.45     −2.9 / 1 = −2.9
    options = (" aaaa", " é", " 中", " b")
    assert len(e) == 2
    best = {"accuracy_byte": 0, "accuracy": 1, "accuracy_sum": 3}
    for gold in range(4):
        examples = Ranked().encode([Question("then", options, gold)], tokenizer, 60).examples
        batch = Ranked().collate(examples, tokenizer)
        numbers = Ranked().numbers(planted(known), batch)
        torch.testing.assert_close(numbers, torch.tensor([[-3.4 / 3, -3.1 / 3, -4.3 / 4, -2.9 / 2]]))
        told = {name: value.item() for name, value in Ranked().scores(planted(known), batch).items()}
        assert {name: told[name] for name in best} == {name: float(gold == option) for name, option in best.items()}
        assert told["loss"] == pytest.approx(float(-numbers.log_softmax(1)[0, gold]))


@pytest.mark.parametrize("kind", ["llama", "opt"])
@pytest.mark.parametrize("template", ["", "<bos> $A", "<bos> $A <eos>"])
def test_a_rank_is_the_mean_log_probability_of_the_tokens_behind_the_prompt(kind: str, template: str) -> None:
    model, tokenizer = network(kind).double(), words(template)
    batch = Ranked().collate(Ranked().encode(QUESTIONS, tokenizer, 160).examples, tokenizer)
    with torch.no_grad():
        numbers = Ranked().numbers(model, batch)
        for row, question in enumerate(QUESTIONS):
            for place, option in enumerate(question.options):
                tail = len(option.encode())
                ids = [BOS] * ("<bos>" in template) + tokenizer(question.prompt + option, add_special_tokens=False)[
                    "input_ids"
                ]
                logs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
                mean = sum(float(logs[at - 1, ids[at]]) for at in range(len(ids) - tail, len(ids))) / tail
                assert float(numbers[row, place]) == pytest.approx(mean, abs=1e-6)


def test_a_token_across_the_border_belongs_to_the_option() -> None:
    tokenizer = words(merges=((":", "Ġ"),))
    (example,) = Ranked().encode([Question("ab:", (" cd", " e"))], tokenizer, 60).examples
    ids = [*example["input_ids"]]
    first = ids[: example["ends"][1]]
    assert tokenizer.decode(first[example["begins"][0] :]) == ": cd"
    assert example["bytes"] == (2, 1)


def test_prompts_are_cut_on_their_left_alike_for_all_options_and_counted() -> None:
    tokenizer = words("<bos> $A")
    asked = [Question("0123456789", (" ab", " abcdef")), Question("01", (" a", " b"))]
    found = Ranked().encode(asked, tokenizer, 12)
    assert (found.truncated, found.dropped, found.sources) == (1, {}, [0, 1])
    ids, ends = [*found.examples[0]["input_ids"]], found.examples[0]["ends"]
    short, long = ids[: ends[1]], ids[ends[1] :]
    assert (short[0], long[0], len(long)) == (BOS, BOS, 12)
    assert (tokenizer.decode(short[1:]), tokenizer.decode(long[1:])) == ("6789 ab", "6789 abcdef")
    assert found.examples[0]["begins"] == (5, 5)
    assert Ranked().encode(asked, tokenizer, 8).truncated == 1
    tight = Ranked().encode(asked, tokenizer, 7)
    assert (tight.sources, tight.dropped, tight.truncated) == ([1], {TOO_LONG: 1}, 0)


@pytest.mark.parametrize("segments", [True, False])
def test_a_pair_is_what_the_tokenizer_makes_of_two_texts_and_the_head_says_of_it(segments: bool) -> None:
    model, tokenizer = encoder(BertForMultipleChoice, BYTES), pair_words(segments=segments)
    batch = Paired().collate(Paired().encode(QUESTIONS, tokenizer, 160).examples, tokenizer)
    assert ("token_type_ids" in batch) == segments
    with torch.no_grad():
        numbers = Paired().numbers(model, batch)
        for row, question in enumerate(QUESTIONS):
            options = [option.strip() for option in question.options]
            made = tokenizer([question.prompt] * len(options), options, padding=True, return_tensors="pt")
            theirs = model(**{name: tensor[None] for name, tensor in made.items()}).logits[0]
            torch.testing.assert_close(numbers[row], theirs, atol=2e-5, rtol=1e-5)


def test_the_prompt_of_a_pair_is_cut_on_its_left_and_an_option_never() -> None:
    tokenizer = pair_words(segments=True)
    asked = [Question("0123456789", (" ab", " abcdef"))]
    found = Paired().encode(asked, tokenizer, 14)
    (example,) = found.examples
    first, second = (
        tokenizer.decode([*example["input_ids"]][start:end])
        for start, end in zip(example["ends"], example["ends"][1:], strict=False)
    )
    assert (first, second) == ("<cls>56789<sep>ab<sep>", "<cls>56789<sep>abcdef<sep>")
    assert [*example["segments"]].count(1) == (2 + 1) + (6 + 1)
    assert (found.truncated, len([*example["segments"]])) == (1, len(example["input_ids"]))
    assert Paired().encode(asked, tokenizer, 9).dropped == {TOO_LONG: 1}


def test_a_word_is_the_logit_of_its_token_at_the_mask() -> None:
    model, tokenizer = encoder(BertForMaskedLM, VOCAB), gap_words()
    yes, no = (tokenizer.convert_tokens_to_ids(token) for token in ("Ġy", "Ġn"))
    batch = Masked().collate(Masked().encode(GAPS, tokenizer, 160).examples, tokenizer)
    with torch.no_grad():
        numbers = Masked().numbers(model, batch)
        for row, gap in enumerate(GAPS):
            ids = tokenizer(f"{gap.prompt}<|im_start|>{gap.behind}")["input_ids"]
            logits = model(input_ids=torch.tensor([ids])).logits[0, ids.index(tokenizer.mask_token_id)]
            torch.testing.assert_close(numbers[row], logits[[yes, no]], atol=2e-5, rtol=1e-5)


def test_a_gap_keeps_what_is_behind_it_and_the_end_of_what_is_before() -> None:
    tokenizer = gap_words()
    found = Masked().encode([Question("0123456789", (" y", " n"), 0, "!?"), GAPS[0]], tokenizer, 9)
    ids = found.examples[0]["input_ids"]
    assert (ids[0], ids[-1], len(ids), ids[found.examples[0]["gap"]]) == (BOS, EOS, 9, tokenizer.mask_token_id)
    assert tokenizer.decode(ids[1:-1]) == "6789<|im_start|>!?"
    assert found.truncated == 1
    behind = Masked().encode([Question("", (" y", " n"), 0, "0123456789")], tokenizer, 9)
    assert (behind.examples, behind.dropped) == ([], {NO_ROOM_BEHIND: 1})


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [(words(), "has no mask"), (gap_words(), "label words are not one token each")],
    ids=["no mask", "several tokens"],
)
def test_a_tokenizer_without_a_mask_or_with_words_of_several_tokens_is_refused(tokenizer: Any, said: str) -> None:
    with pytest.raises(CotuneError, match=said) as caught:
        Masked().encode([Question("it was", (" great", " y"))], tokenizer, 60)
    assert caught.value.code is Code.TOKENIZER


def chain(steps: Mapping[str, str], tokenizer: Any) -> Callable[..., Any]:
    """A model whose next character follows from the last one; of a character that is not there, `z`."""
    letter = {
        name: tokenizer.convert_tokens_to_ids({" ": "Ġ", "\n": "Ċ"}.get(name, name))
        for name in "".join([*steps, *(value for value in steps.values() if value != "<eos>"), "z"])
    }
    letter["<eos>"] = tokenizer.eos_token_id
    following = {letter[before]: letter[after] for before, after in steps.items()}

    def model(input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> SimpleNamespace:
        del attention_mask
        logits = torch.zeros(*input_ids.shape, VOCAB)
        for row, ids in enumerate(input_ids.tolist()):
            for place, token in enumerate(ids):
                logits[row, place, following.get(token, letter["z"])] = 5.0
        return SimpleNamespace(logits=logits)

    return model


def told(steps: Mapping[str, str], answers: tuple[str, ...]) -> dict[str, float]:
    tokenizer = words("<bos> $A")
    form = Written(12)
    examples = form.encode([Question("who:", answers), Question("and who:", answers)], tokenizer, 60).examples
    model = chain(steps, tokenizer)
    found = form.judged(model, form.collate(examples, tokenizer), examples, tokenizer)
    first = {name: float(values[0]) for name, values in found.items()}
    assert {name: float(values[1]) for name, values in found.items() if name != "loss"} == {
        name: value for name, value in first.items() if name != "loss"
    }
    return first


def test_an_answer_is_what_stands_before_a_line_end_and_is_held_against_every_right_one() -> None:
    cat = {":": " ", " ": "c", "c": "a", "a": "t", "t": "\n"}
    found = told(cat, (" A dog", " The cat!"))
    assert (found["f1"], found["exact"], found["cut_short"]) == (1.0, 1.0, 0.0)
    assert told(cat, (" cat and dog",))["f1"] == pytest.approx(2 * 1 / (1 + 3))
    ended = told({**cat, "t": "<eos>"}, (" cat",))
    assert (ended["exact"], ended["cut_short"]) == (1.0, 0.0)
    endless = told({**cat, "t": " "}, (" cat",))
    assert (endless["exact"], endless["cut_short"]) == (0.0, 1.0)
    assert endless["f1"] == pytest.approx(2 * 1 / (3 + 1))
    assert told({":": "\n"}, (" cat",))["f1"] == 0.0


def test_an_answer_is_learned_with_its_line_end_and_the_loss_is_that_of_the_first() -> None:
    model, tokenizer = network("llama").double(), words("<bos> $A")
    form = Written(4)
    batch = form.collate(form.encode(WRITES, tokenizer, 160).examples, tokenizer)
    losses = form.losses(model, batch)
    assert losses.requires_grad
    model.requires_grad_(False)
    for row, asked in enumerate(WRITES):
        ids = [BOS, *tokenizer(f"{asked.prompt}{asked.options[0]}\n", add_special_tokens=False)["input_ids"]]
        logs, tail = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1), len(asked.options[0]) + 1
        mean = -sum(float(logs[at - 1, ids[at]]) for at in range(len(ids) - tail, len(ids))) / tail
        assert float(losses[row].detach()) == pytest.approx(mean, abs=1e-6)
    assert form.scores(model, batch).keys() == {"loss"}


def test_what_is_written_is_the_likeliest_token_after_token_alone_and_beside_longer_prompts() -> None:
    model, tokenizer = network("llama").requires_grad_(False), words("<bos> $A")
    prompts = [tokenizer(asked.prompt)["input_ids"] for asked in WRITES]
    texts = written(model, prompts, tokenizer, 5, torch.device("cpu"))
    for prompt, (text, ended) in zip(prompts, texts, strict=True):
        ids = list(prompt)
        while len(ids) < len(prompt) + 5 and ids[-1] != EOS:
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        assert text == tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True)
        assert ended == (ids[-1] == EOS or "\n" in text)
    assert len({text for text, _ in texts}) > 1


def test_a_prompt_leaves_room_for_an_answer_of_the_most_tokens() -> None:
    tokenizer = words("<bos> $A")
    found = Written(6).encode([Question("0123456789", (" a",)), Question("0", (" 12345678",))], tokenizer, 12)
    (first, second) = found.examples
    assert tokenizer.decode([*first["asks"]]) == "<bos>56789"
    assert tokenizer.decode([*first["input_ids"]]) == "<bos>56789 a\n"
    assert [tokenizer.decode([second["input_ids"][at]]) for at in second["supervised"]] == [*" 12345678\n"]
    assert found.truncated == 1
    assert Written(6).encode([Question("0", (" 1234567890",))], tokenizer, 12).dropped


def test_options_within_the_tolerance_are_tied_and_the_first_one_wins() -> None:
    numbers = torch.tensor([[0.0, 0.5 * TIE, -1.0], [0.0, 2.0 * TIE, -1.0], [-1.0, 3.0, 3.0]])
    assert first_best(numbers).tolist() == [0, 1, 1]
    assert tied(numbers).tolist() == [1.0, 0.0, 1.0]
