"""The byte tokenizer: any text comes back, ids never change, and no text turns into a special token."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from cotune.backbone.builtin import SPECIALS, VOCAB, byte_tokenizer

DECODER = byte_tokenizer(marks=False, limit=64)
ENCODER = byte_tokenizer(marks=True, limit=64)


@given(st.text())
def test_any_text_comes_back_as_it_was(text: str) -> None:
    ids = DECODER(text)["input_ids"]
    assert ids == [byte + len(SPECIALS) for byte in text.encode()]
    assert DECODER.decode(ids) == text
    assert ENCODER.decode(ENCODER(text)["input_ids"], skip_special_tokens=True) == text


def test_text_that_looks_like_a_special_token_is_text() -> None:
    for token in SPECIALS:
        assert min(DECODER(f"a{token}b")["input_ids"]) >= len(SPECIALS)


def test_there_is_one_id_a_byte_and_one_a_special_token() -> None:
    assert len(DECODER) == VOCAB == 263
    assert [DECODER.convert_tokens_to_ids(token) for token in SPECIALS] == list(range(7))
    assert len({DECODER.pad_token_id, DECODER.eos_token_id, DECODER.bos_token_id, DECODER.unk_token_id}) == 4


def test_encoders_put_a_text_between_marks_and_decoders_do_not() -> None:
    assert DECODER("a")["input_ids"] == [104]
    assert ENCODER("a")["input_ids"] == [4, 104, 5]
    assert ENCODER("a", "b")["input_ids"] == [4, 104, 5, 105, 5]


def test_padding_goes_to_the_right_and_is_masked() -> None:
    batch = ENCODER(["a", "abc"], padding=True)
    assert batch["input_ids"] == [[4, 104, 5, 0, 0], [4, 104, 105, 106, 5]]
    assert batch["attention_mask"] == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize("tokenizer", [DECODER, ENCODER], ids=["decoder", "encoder"])
def test_it_survives_a_folder(tokenizer: object, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)  # type: ignore[attr-defined]
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = "naïve <pad> 漢字\n"
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]  # type: ignore[operator]
    assert again.decode(again(text)["input_ids"], skip_special_tokens=True) == text
    assert again.model_max_length == 64
