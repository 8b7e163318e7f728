"""A row's loss and score are its own: neither its batch nor the id of the padding changes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    OPTConfig,
    OPTForSequenceClassification,
    PreTrainedTokenizerFast,
)

from cotune.core.contracts import Row
from cotune.task import Classify

TASK = Classify(data="synth:sentiment")
PAD, BOS, EOS = 0, 1, 2
TEXTS = [
    "plain",
    "😀 emoji",
    "שלום עולם",
    "lone \ud800 surrogate",
    "a\0b",
    "é" * 50,
    "x",
    "<eos>",
    "ends in <eos>",
    "has <eos> in it",
]


def tokenizer(template: str = "", pad: str | None = "<pad>") -> Any:
    special = {"<pad>": PAD, "<bos>": BOS, "<eos>": EOS}
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={**special, **{c: i + 3 for i, c in enumerate(letters)}}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if template:
        backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=list(special.items()))
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", pad_token=pad)


def rows(*texts: str) -> list[Row]:
    return [{"text": text, "label": number % 2} for number, text in enumerate(texts)]


def model(name: str, pad: int) -> Any:
    torch.manual_seed(0)
    shared: dict[str, Any] = {"vocab_size": 259, "num_labels": 3, "pad_token_id": pad, "eos_token_id": EOS}
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    long: dict[str, Any] = {"max_position_embeddings": 160}
    made: Any
    match name:
        case "bert":
            made = BertForSequenceClassification(BertConfig(**shared, **sizes, **long, intermediate_size=32))
        case "llama":
            llama: Any = LlamaForSequenceClassification
            made = llama(LlamaConfig(**shared, **sizes, **long, intermediate_size=32))
        case "gpt2":
            made = GPT2ForSequenceClassification(GPT2Config(**shared, n_embd=16, n_layer=2, n_head=2, n_positions=160))
        case _:
            config = OPTConfig(**shared, **sizes, **long, ffn_dim=32, word_embed_proj_dim=16)
            made = OPTForSequenceClassification(config)
    return made.eval()


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2", "opt"])
@pytest.mark.parametrize("pad", ["<pad>", "<eos>", None])
@pytest.mark.parametrize("template", ["", "$A <eos>", "<bos> $A <eos>"])
def test_a_row_scores_the_same_alone_and_beside_longer_rows(name: str, pad: str | None, template: str) -> None:
    words = tokenizer(template, pad)
    network = model(name, PAD if pad == "<pad>" else EOS)
    examples = TASK.encode(rows(*TEXTS), words, 128).examples
    with torch.no_grad():
        together = TASK.scores(network, TASK.collate(examples, words))
        alone = [TASK.scores(network, TASK.collate([example], words)) for example in examples]
        exported = [network(input_ids=torch.tensor([example["input_ids"]])).logits for example in examples]
    for metric in TASK.metrics:
        torch.testing.assert_close(together[metric], torch.cat([one[metric] for one in alone]), atol=1e-5, rtol=1e-5)
        assert together[metric].dtype is torch.float32
        assert together[metric].shape == (len(TEXTS),)
    labels = torch.tensor([example["label"] for example in examples])
    plain = torch.nn.functional.cross_entropy(torch.cat(exported), labels, reduction="none")
    torch.testing.assert_close(together["loss"], plain, atol=1e-5, rtol=1e-5)


def test_losses_carry_a_gradient_and_are_the_loss_of_the_scores() -> None:
    words, network = tokenizer(), model("llama", PAD)
    batch = TASK.collate(TASK.encode(rows("good", "very bad"), words, 128).examples, words)
    losses = TASK.losses(network, batch)
    assert losses.shape == (2,)
    assert losses.dtype is torch.float32
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(losses, TASK.scores(network, batch)["loss"])
    assert all(p.grad is not None for p in network.parameters() if p.requires_grad)


def test_padding_is_masked_by_position_even_where_its_id_is_in_the_text() -> None:
    words = tokenizer(pad="<eos>")
    batch = TASK.collate([{"input_ids": [EOS, 9, EOS], "label": 1}, {"input_ids": [5] * 5, "label": 0}], words)
    assert batch["input_ids"].tolist() == [[EOS, 9, EOS, EOS, EOS], [5] * 5]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    assert batch["labels"].tolist() == [1, 0]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_a_batch_of_one_row_has_no_padding() -> None:
    batch = TASK.collate([{"input_ids": [7, 8], "label": 1}], tokenizer(pad=None))
    assert batch["attention_mask"].tolist() == [[1, 1]]


@pytest.mark.parametrize(("length", "cut"), [(9, 0), (10, 0), (11, 1)])
def test_texts_are_cut_on_the_right_from_one_token_past_the_limit(length: int, cut: int) -> None:
    words = tokenizer("<bos> $A <eos>")
    text = "abcdefghijklmnop"[: length - 2]
    encoded = TASK.encode(rows(text), words, 10)
    ids = encoded.examples[0]["input_ids"]
    assert encoded.truncated == cut
    assert len(ids) == min(length, 10)
    assert (ids[0], ids[-1]) == (BOS, EOS)
    assert text.startswith(words.decode(ids[1:-1]))


def test_the_smaller_of_the_models_and_the_tasks_limit_holds() -> None:
    words = tokenizer()
    short = Classify(data="synth:sentiment", max_tokens=5)
    assert len(short.encode(rows("x" * 100), words, 50).examples[0]["input_ids"]) == 5
    assert len(TASK.encode(rows("x" * 1000), words, 50).examples[0]["input_ids"]) == 50
    assert len(TASK.encode(rows("x" * 1000), words, 512).examples[0]["input_ids"]) == 128
    assert len(TASK.encode(rows("x"), tokenizer("<bos> $A <eos>"), 1).examples[0]["input_ids"]) == 1


def test_a_tokenizer_that_was_saved_with_padding_and_truncation_pads_and_cuts_nothing_itself() -> None:
    words = tokenizer("<bos> $A <eos>")
    words.backend_tokenizer.enable_truncation(4)
    words.backend_tokenizer.enable_padding(length=4)
    words.truncation_side = "left"
    encoded = TASK.encode(rows("abcdefgh", "a"), words, 6)
    assert [len(example["input_ids"]) for example in encoded.examples] == [6, 3]
    assert encoded.truncated == 1
    assert words.decode(encoded.examples[0]["input_ids"][1:-1]) == "abcd"


def test_a_text_that_a_tokenizer_makes_nothing_of_still_has_a_token() -> None:
    def nothing(texts: list[str], **_: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [[] for _ in texts], "special_tokens_mask": [[] for _ in texts]}

    words = type("Silent", (), {"__call__": staticmethod(nothing), "bos_token_id": None, "eos_token_id": 2})()
    assert TASK.encode(rows("x"), words, 10).examples[0]["input_ids"] == [2]


def test_no_rows_encode_to_no_examples() -> None:
    assert TASK.encode([], tokenizer(), 10).examples == []


def test_a_megabyte_of_text_is_cut() -> None:
    encoded = TASK.encode(rows("word " * 200_000), tokenizer(), 128)
    assert len(encoded.examples[0]["input_ids"]) == 128
    assert encoded.truncated == 1


def scored(logits: list[list[float]], labels: list[int]) -> list[float]:
    def network(**_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=torch.tensor(logits, dtype=torch.float64))

    batch = {"input_ids": torch.zeros(1), "attention_mask": torch.zeros(1), "labels": torch.tensor(labels)}
    found: list[float] = TASK.scores(network, batch)["accuracy"].tolist()
    return found


def test_ties_go_to_the_lower_class() -> None:
    assert scored([[1.0, 1.0], [0.0, 5e-6], [0.0, 2e-5], [0.3, 0.1]], [0, 0, 1, 0]) == [1, 1, 1, 1]
    assert scored([[1.0, 1.0], [2.0, 2.0 + 9e-6]], [1, 1]) == [0, 0]


def test_logits_that_are_no_numbers_score_nothing() -> None:
    assert scored([[float("nan"), 0.0], [float("nan")] * 2], [0, 1]) == [0, 0]
