"""Only what is to be said is learned, the end of it too, and a row that is too long loses its prompt first."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from words import BOS, END, EOS, MARKED_CHAT, PLAIN_CHAT, network, words

from cotune.core.contracts import Row
from cotune.core.errors import Code, CotuneError
from cotune.core.part import resolve
from cotune.core.seeds import Seeds
from cotune.task import KINDS, SFT, Iid
from cotune.task.sft import NOTHING, fitted

TASK = SFT(data="./x.jsonl", max_tokens=64)
TOKENIZERS = {
    "without BOS": words(),
    "with BOS": words("<bos> $A"),
    "with both": words("<bos> $A <eos>"),
    "pad is EOS": words(pad="<eos>"),
    "no pad": words("<bos> $A", pad=None),
    "merging": words("<bos> $A", merges=(("a", "b"), ("b", "a"), ("ab", "ab"))),
    "spaced": words("<bos> $A", spaced=True),
}
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How are you?"},
    {"role": "assistant", "content": "Well."},
    {"role": "user", "content": "And é?"},
    {"role": "assistant", "content": "Well too."},
]


def pairs(*values: tuple[str, str]) -> list[Row]:
    return [{"prompt": prompt, "completion": completion, "place": "a.jsonl, line 1"} for prompt, completion in values]


def talks(*values: Sequence[Mapping[str, str]], first: int = 0) -> list[Row]:
    return [{"messages": list(value), "first": first, "place": "a.jsonl, line 7"} for value in values]


def learned(example: Mapping[str, Any]) -> list[int]:
    return [example["input_ids"][place] for place in example["supervised"]]


def said(example: Mapping[str, Any], tokenizer: Any) -> str:
    text: str = tokenizer.decode(learned(example))
    return text


@pytest.mark.parametrize("name", TOKENIZERS)
@given(
    values=st.lists(st.tuples(st.text("ab c\né"), st.text("ab c\né", min_size=1)), min_size=1, max_size=5),
)
def test_the_completion_and_one_end_of_text_are_learned_and_nothing_of_the_prompt(
    name: str, values: list[tuple[str, str]]
) -> None:
    tokenizer = TOKENIZERS[name]
    examples = TASK.model_copy(update={"max_tokens": 512}).encode(pairs(*values), tokenizer, 512).examples
    assert len(examples) == len(values)
    for example, (prompt, completion) in zip(examples, values, strict=True):
        ids, places = example["input_ids"], [*example["supervised"]]
        first = min(places)
        lost = not prompt and name in ("without BOS", "pad is EOS")  # nothing comes before the first token
        assert places == list(range(first, len(ids)))
        assert ids[-1] == EOS
        assert learned(example).count(EOS) == 1
        if not lost:
            assert tokenizer.decode(ids[first:-1]).lstrip(" ") == completion.lstrip(" ")
            whole = tokenizer.decode([token for token in ids if token not in (BOS, EOS)])
            assert whole.lstrip(" ") == (prompt + completion).lstrip(" ") or name == "spaced"
    batch = TASK.collate(examples, tokenizer)
    assert int((batch["labels"] == EOS).sum()) == len(values), "B32: masked by position, not by id"


def test_a_prompt_that_is_a_prefix_is_kept_and_one_that_is_not_is_followed_by_the_completion_alone() -> None:
    tokenizer = TOKENIZERS["merging"]
    joined, parted = TASK.encode(pairs(("b ", "ab"), ("xa", "b")), tokenizer, 64).examples
    assert joined["input_ids"] == [BOS, *tokenizer("b ab", add_special_tokens=False)["input_ids"], EOS]
    one = {letter: tokenizer(letter, add_special_tokens=False)["input_ids"][0] for letter in "xab"}
    assert parted["input_ids"] == [BOS, one["x"], one["a"], one["b"], EOS]
    assert tokenizer("xab", add_special_tokens=False)["input_ids"] != parted["input_ids"][1:-1]
    blank = TOKENIZERS["spaced"]
    (example,) = TASK.encode(pairs(("Q:", " yes")), blank, 64).examples
    assert blank.decode(example["input_ids"], skip_special_tokens=True).strip() == "Q: yes", "no second blank"


def test_a_completion_that_says_that_it_ends_does_not_end_twice() -> None:
    (example,) = TASK.encode(pairs(("q", "a<eos>")), words(), 64).examples
    assert learned(example).count(EOS) == 1


@given(prompt=st.integers(0, 12), completion=st.integers(0, 12), front=st.integers(0, 2), size=st.integers(1, 20))
def test_what_is_too_long_loses_its_prompt_from_the_left_and_then_the_end(
    prompt: int, completion: int, front: int, size: int
) -> None:
    front = min(front, prompt)
    ids = list(range(prompt + completion))
    example = fitted(ids, [False] * prompt + [True] * completion, size, front)
    kept = example["input_ids"]
    assert len(kept) == min(len(ids), size)
    if completion:
        assert kept[:front] == ids[: min(front, size)]
        room = max(size - completion, min(max(front, 1), prompt))
        assert (
            kept[front:] == (ids[:prompt][max(front, prompt - (room - front)) :] + ids[prompt:])[: max(size - front, 0)]
        )
        assert learned(example) == [token for place, token in enumerate(kept) if place and token >= prompt]
        if completion + max(front, min(prompt, 1)) <= size:
            assert kept[-completion:] == ids[prompt:], "the completion is whole while its prompt can shrink"
    else:
        assert not example["supervised"]


def test_cut_rows_are_counted_and_rows_with_nothing_left_are_dropped_with_a_reason() -> None:
    task = TASK.model_copy(update={"max_tokens": 8})
    encoded = task.encode(pairs(("p" * 20, "abc"), ("p", "c"), ("p", "c" * 30), ("", "")), words(eos=None), 64)
    assert (encoded.truncated, encoded.dropped) == (2, {NOTHING: 1})
    long, short, cut = encoded.examples
    assert [len(example["input_ids"]) for example in (long, short, cut)] == [8, 2, 8]
    assert said(long, words()) == "abc"
    assert len(learned(cut)) == 7
    assert TASK.encode(pairs(("p", "c")), words(), 1).dropped == {NOTHING: 1}
    assert task.encode([], words(), 8).examples == []


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
@pytest.mark.parametrize("tokens", ["with BOS", "pad is EOS"])
def test_scores_are_a_rows_own_in_any_batch_and_any_order(name: str, tokens: str) -> None:
    model, tokenizer = network(name), TOKENIZERS[tokens]
    values = [("long prompt " * 4, "a"), ("p", "a long completion " * 2), ("q" * 30, "b"), ("", "abc"), ("é", "…é")]
    examples = TASK.encode(pairs(*values), tokenizer, 64).examples
    alone = []
    with torch.no_grad():
        for example in examples:
            ids = torch.tensor([example["input_ids"]])
            plain = model(input_ids=ids).logits.log_softmax(-1)
            alone.append(sum(-float(plain[0, p - 1, ids[0, p]]) for p in example["supervised"]))
        for size in (1, 2, 7):
            order = random.Random(size).sample(range(len(examples)), len(examples))
            for start in range(0, len(order), size):
                chosen = order[start : start + size]
                scores = TASK.scores(model, TASK.collate([examples[i] for i in chosen], tokenizer))
                expected = torch.tensor([alone[i] for i in chosen])
                torch.testing.assert_close(scores["nll"], expected, rtol=1e-5, atol=1e-4)
                assert scores["tokens"].tolist() == [len(examples[i]["supervised"]) for i in chosen]


def test_logits_of_prompts_that_nothing_is_learned_from_are_never_made() -> None:
    model, made = network("llama"), []

    def watched(**inputs: Any) -> Any:
        made.append(model(**inputs))
        return made[-1]

    batch = TASK.collate(TASK.encode(pairs(("p" * 40, "ab"), ("q" * 41, "c")), words(), 64).examples, words())
    TASK.losses(watched, batch)
    assert batch["input_ids"].shape[1] == 48
    assert made[0].logits.shape[1] <= 17


@pytest.mark.parametrize("chat", [MARKED_CHAT, PLAIN_CHAT])
def test_of_a_conversation_all_that_the_assistant_says_is_learned_with_its_end(chat: str) -> None:
    tokenizer = words(eos="<|im_end|>", chat=chat)
    (example,) = TASK.model_copy(update={"max_tokens": 512}).encode(talks(TALK), tokenizer, 512).examples
    told = said(example, tokenizer).replace("\n", "")
    assert told == "Well.<|im_end|>Well too.<|im_end|>"
    assert learned(example).count(END) == 2
    assert tokenizer.decode(example["input_ids"]).startswith("<|im_start|>system\nBe brief.")


def test_markers_and_prefixes_learn_the_same_but_for_what_templates_add_between() -> None:
    task = TASK.model_copy(update={"max_tokens": 512})
    found = []
    for chat in (MARKED_CHAT, PLAIN_CHAT):
        tokenizer = words(eos="<|im_end|>", chat=chat)
        for first in (0, 3):
            (example,) = task.encode(talks(TALK, first=first), tokenizer, 512).examples
            found.append((example["input_ids"], said(example, tokenizer).replace("\n", "")))
    assert found[:2] == found[2:]
    assert found[1][1] == "Well too.<|im_end|>"


def test_where_a_template_has_no_end_of_text_one_is_put_behind() -> None:
    tokenizer = words(chat=PLAIN_CHAT)
    (example,) = TASK.model_copy(update={"max_tokens": 512}).encode(talks(TALK), tokenizer, 512).examples
    assert example["input_ids"][-1] == EOS
    assert learned(example).count(EOS) == 1
    closed = PLAIN_CHAT.replace("<|im_end|>", "<eos>")
    (example,) = TASK.model_copy(update={"max_tokens": 512}).encode(talks(TALK), words(chat=closed), 512).examples
    assert learned(example).count(EOS) == 2
    outside = MARKED_CHAT.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}<eos>")
    (example,) = TASK.model_copy(update={"max_tokens": 512}).encode(talks(TALK), words(chat=outside), 512).examples
    assert said(example, words()) == "Well.<eos>Well too.<eos>"


FORGETFUL = (
    "{% for m in messages %}{% if m.role != 'assistant' or loop.last %}{{ m.role }}{{ m.content }}{% endif %}"
    "{% endfor %}"
)
ANGRY = "{{ raise_exception('no ' + messages[0].content) }}"


@pytest.mark.parametrize(
    ("chat", "code", "hint"),
    [
        (FORGETFUL, Code.TOKENIZER, "prefix"),
        (None, Code.TOKENIZER, "template = 'plain'"),
        (ANGRY, Code.DATA, "TemplateError"),
    ],
)
def test_a_template_that_cannot_be_used_is_one_line_without_a_word_of_the_row(
    chat: str | None, code: Code, hint: str
) -> None:
    with pytest.raises(CotuneError) as caught:
        TASK.encode(talks(TALK), words(chat=chat), 512)
    assert caught.value.code is code
    assert hint in str(caught.value)
    assert "brief" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize("name", ["without BOS", "with both", "pad is EOS"])
def test_plainly_roles_are_lines_and_each_answer_ends(name: str) -> None:
    task = SFT(data="./x.jsonl", template="plain", max_tokens=512)
    tokenizer = TOKENIZERS[name]
    (example,) = task.encode(talks(TALK), tokenizer, 512).examples
    assert said(example, tokenizer) == " Well.<eos> Well too.<eos>"
    text = tokenizer.decode(example["input_ids"]).replace("<bos>", "")
    assert text.startswith("system: Be brief.\nuser: How are you?\nassistant: Well.<eos>\nuser: And é?")
    assert example["input_ids"].count(BOS) == (name == "with both")
    (second,) = task.encode(talks(TALK, first=3), tokenizer, 512).examples
    assert said(second, tokenizer) == " Well too.<eos>"


def written(folder: Path, rows: Sequence[object]) -> str:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "rows.jsonl")


def loaded(folder: Path, rows: Sequence[object], **fields: Any) -> tuple[list[Row], Mapping[str, Any]]:
    corpus = SFT(data=written(folder, rows), partition=Iid(clients=1), test=0, held=0.0, **fields).load(Seeds())
    return [*corpus.clients["client-00"].train], corpus.facts


def test_columns_decide_what_a_row_is(tmp_path: Path) -> None:
    place = {"place": "rows.jsonl, line 1"}

    def only(row: Mapping[str, object]) -> Row:
        (found, *_), _ = loaded(tmp_path, [row] * 2)
        return {**found, "place": found["place"].rpartition("/")[2]}

    assert only({"prompt": "p", "completion": "c", "text": "t"}) == {"prompt": "p", "completion": "c", **place}
    assert only({"prompt": "", "completion": "c"}) == {"prompt": "", "completion": "c", **place}
    assert only({"text": "t"}) == {"prompt": "", "completion": "t", **place}
    assert only({"messages": TALK}) == {"messages": TALK, "first": 0, **place}
    assert only({"prompt": TALK[:4], "completion": TALK[4:]}) == {"messages": TALK, "first": 4, **place}
    triple = only({"instruction": "add", "input": "1 1", "output": "2"})
    assert triple["prompt"] == "### Instruction:\nadd\n\n### Input:\n1 1\n\n### Response:\n"
    assert triple["completion"] == "2"
    assert "Input" not in only({"instruction": "add", "input": "", "output": "2"})["prompt"]


def test_rows_without_anything_to_learn_are_skipped_by_reason(tmp_path: Path) -> None:
    good = {"prompt": "p", "completion": "c"}
    bad: list[object] = [
        {"prompt": "p"},
        {"prompt": "p", "completion": " "},
        {"completion": "c"},
        {"prompt": 3, "completion": "c"},
    ]
    rows, facts = loaded(tmp_path, [good, *bad])
    assert (len(rows), facts["skipped"]) == (1, {"missing": 2, "not text": 1, "whitespace": 1})
    talk = {"messages": TALK}
    worse: list[object] = [
        {"messages": "hi"},
        {"messages": [{"role": "user"}]},
        {"messages": TALK[:2]},
        {"messages": None},
    ]
    rows, facts = loaded(tmp_path, [talk, *worse])
    assert facts["skipped"] == {"missing": 1, "not messages": 2, "nothing said by the assistant": 1}
    with pytest.raises(CotuneError, match=r"E_DATA.*something to learn.*1 missing"):
        loaded(tmp_path, [{"prompt": "p", "completion": None}])
    with pytest.raises(CotuneError, match=r"E_DATA.*no columns.*completion and prompt"):
        loaded(tmp_path, [{"question": "p", "answer": "c"}])


def test_the_same_row_twice_is_counted_by_all_that_it_says(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "completion": "c"}, {"prompt": "p", "completion": "c"}, {"prompt": "p", "completion": "d"}]
    _, facts = loaded(tmp_path, rows)
    assert facts["duplicates"]["within_clients"] == 1
    assert len(facts["manifest"]["client-00"]) == 64


def test_a_task_is_equal_to_the_table_that_makes_it() -> None:
    task = SFT(data="./x.jsonl", template="plain", partition=Iid(clients=2), group="user")
    assert resolve("task", KINDS, json.loads(task.model_dump_json())) == task


def test_lone_surrogates_reach_no_tokenizer() -> None:
    broken = [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "ok \udfff"}]
    tokenizer = words(eos="<|im_end|>", chat=MARKED_CHAT)
    assert len(TASK.encode([*talks(broken), *pairs(("\ud800", "a\udfff"))], tokenizer, 64).examples) == 2
    assert len(SFT(data="./x", template="plain").encode(talks(broken), tokenizer, 64).examples) == 1
