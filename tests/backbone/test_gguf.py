"""GGUF files written here, number by number: read, refused when damaged, and converted into a folder that loads."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from cotune.backbone import Backbone
from cotune.backbone.convert import convert
from cotune.backbone.gguf import GGUF
from cotune.core.errors import Code, CotuneError

F32, Q4_1, Q8_0 = 0, 3, 8
HIDDEN, HEADS, KV_HEADS, FEED, LAYERS = 64, 4, 2, 96, 2
WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh0123", "Ġ", "Ċ", "ab", "abc", "Ġa", "12"]

Tensor = tuple[tuple[int, ...], int, bytes, np.ndarray[Any, Any]]  # shape, encoding, bytes, the oracle's numbers


def text(word: str) -> bytes:
    return struct.pack("<Q", len(word.encode())) + word.encode()


def value(content: Any) -> bytes:
    """A value of the metadata after the number of its type."""
    if isinstance(content, str):
        return struct.pack("<I", 8) + text(content)
    if isinstance(content, bool):
        return struct.pack("<I?", 7, content)
    if isinstance(content, int):
        return struct.pack("<II", 4, content)
    if isinstance(content, float):
        return struct.pack("<If", 6, content)
    kind = 8 if isinstance(content[0], str) else 5
    body = b"".join(text(item) if kind == 8 else struct.pack("<i", item) for item in content)
    return struct.pack("<IIQ", 9, kind, len(content)) + body


def gguf(says: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(says))
    head += b"".join(text(key) + value(content) for key, content in says.items())
    data = b""
    for name, (shape, kind, content, _) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", kind, len(data))
        data += content + b"\0" * (-len(content) % 32)
    return head + b"\0" * (-len(head) % 32) + data


def encoded(draw: random.Random, kind: int, *shape: int) -> Tensor:
    """Random blocks of an encoding, and what they mean: one number at a time, each operation rounded to float32."""
    count = int(np.prod(shape))
    content, means = b"", []
    if kind == F32:
        content = struct.pack(f"<{count}f", *(draw.gauss(0, 1) for _ in range(count)))
        means = [np.float32(number) for number in struct.unpack(f"<{count}f", content)]
    for _ in range(count // 32 if kind != F32 else 0):
        d, m = struct.unpack("<ee", struct.pack("<ee", draw.gauss(0, 0.05), draw.gauss(0, 0.05)))
        if kind == Q8_0:
            numbers = [draw.randint(-128, 127) for _ in range(32)]
            content += struct.pack("<e32b", d, *numbers)
            means += [np.float32(d) * np.float32(number) for number in numbers]
        else:
            numbers = [draw.randint(0, 15) for _ in range(32)]
            pairs = [numbers[i] | numbers[i + 16] << 4 for i in range(16)]
            content += struct.pack("<ee16B", d, m, *pairs)
            means += [np.float32(d) * np.float32(number) + np.float32(m) for number in numbers]
    return shape, kind, content, np.array(means, np.float32).reshape(shape)


def says(**changes: Any) -> dict[str, Any]:
    found = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": 40,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FEED,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.freq_base": 100000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": WORDS,
        "tokenizer.ggml.token_type": [3, 3, 3, *[1] * (len(WORDS) - 3)],
        "tokenizer.ggml.merges": ["a b", "ab c", "Ġ a", "1 2"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}",
    }
    return {**found, **changes}


def llama(seed: int = 0) -> dict[str, Tensor]:
    draw = random.Random(seed)
    keys = HIDDEN // HEADS * KV_HEADS
    tensors = {"token_embd.weight": encoded(draw, Q8_0, len(WORDS), HIDDEN)}
    for layer in range(LAYERS):
        block = {
            "attn_norm": encoded(draw, F32, HIDDEN),
            "attn_q": encoded(draw, Q4_1, HIDDEN, HIDDEN),
            "attn_k": encoded(draw, Q4_1, keys, HIDDEN),
            "attn_v": encoded(draw, Q8_0, keys, HIDDEN),
            "attn_output": encoded(draw, Q4_1, HIDDEN, HIDDEN),
            "ffn_norm": encoded(draw, F32, HIDDEN),
            "ffn_gate": encoded(draw, Q4_1, FEED, HIDDEN),
            "ffn_up": encoded(draw, F32, FEED, HIDDEN),
            "ffn_down": encoded(draw, Q4_1, HIDDEN, FEED),
        }
        tensors |= {f"blk.{layer}.{name}.weight": tensor for name, tensor in block.items()}
    return {**tensors, "output_norm.weight": encoded(draw, F32, HIDDEN)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(says(), llama()))
    return path


@pytest.fixture
def folder(file: Path, tmp_path: Path) -> Path:
    made = tmp_path / "made"
    made.mkdir()
    convert(file, made)
    return made


@pytest.mark.parametrize("kind", [F32, Q4_1, Q8_0])
def test_every_encoding_means_what_it_means_number_by_number(tmp_path: Path, kind: int) -> None:
    tensor = encoded(random.Random(kind), kind, 3, 5, 64)
    (tmp_path / "x.gguf").write_bytes(
        gguf({"general.alignment": 32}, {"other": encoded(random.Random(), F32, 7), "x": tensor})
    )
    found = GGUF(tmp_path / "x.gguf").tensor("x")
    assert found.dtype == np.float32
    assert np.array_equal(found, tensor[3])


def test_what_the_file_says_comes_back(file: Path) -> None:
    read = GGUF(file)
    numbers = {
        key: pytest.approx(content) if isinstance(content, float) else content for key, content in says().items()
    }
    assert dict(read.says) == numbers
    assert [entry.shape for entry in read.table.values()] == [shape for shape, *_ in llama().values()]


def test_weights_are_bit_for_bit_the_oracles_and_query_rows_are_put_back(folder: Path) -> None:
    found = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors = llama()
    assert np.array_equal(found["model.embed_tokens.weight"], tensors["token_embd.weight"][3])
    assert np.array_equal(found["model.layers.1.mlp.down_proj.weight"], tensors["blk.1.ffn_down.weight"][3])
    width = HIDDEN // HEADS
    for name, ours, heads in (("q", "attn_q", HEADS), ("k", "attn_k", KV_HEADS)):
        theirs, put = tensors[f"blk.0.{ours}.weight"][3], found[f"model.layers.0.self_attn.{name}_proj.weight"]
        for head in range(heads):
            for pair in range(width // 2):
                for half in (0, 1):
                    row = theirs[head * width + 2 * pair + half]
                    assert np.array_equal(put[head * width + half * width // 2 + pair], row)


def test_the_folder_loads_whole(folder: Path) -> None:
    loaded = Backbone(ref=str(folder)).load("causal", 0, 0)
    assert loaded.model.config.rms_norm_eps == 1e-5  # type: ignore[union-attr]
    assert loaded.limit == 40
    weight = loaded.model.get_parameter("lm_head.weight")
    assert np.array_equal(weight.detach().numpy(), llama()["token_embd.weight"][3])
    assert torch.isfinite(loaded.model(**loaded.tokenizer("abc a12", return_tensors="pt")).logits).all()


def test_its_tokenizer_merges_splits_digits_and_knows_its_special_tokens(folder: Path) -> None:
    tokenizer = Backbone(ref=str(folder)).load("causal", 0, 0).tokenizer
    assert tokenizer.tokenize("abcab a12\n") == ["abc", "ab", "Ġa", "1", "2", "Ċ"]
    assert tokenizer.decode(tokenizer("abc  12 a\n")["input_ids"]) == "abc  12 a\n"
    assert tokenizer.apply_chat_template([{"content": "ab"}])["input_ids"] == [1, WORDS.index("ab"), 2]
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")


def test_an_untied_head_is_kept(tmp_path: Path) -> None:
    head = encoded(random.Random(9), Q8_0, len(WORDS), HIDDEN)
    (tmp_path / "m.gguf").write_bytes(gguf(says(), {**llama(), "output.weight": head}))
    convert(tmp_path / "m.gguf", tmp_path)
    assert not json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"]
    assert np.array_equal(safetensors.numpy.load_file(tmp_path / "model.safetensors")["lm_head.weight"], head[3])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "damaged"),
        (b"GGML" + bytes(60), "no GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "no GGUF file"),
        (gguf(says(), llama())[:700], "damaged"),
        (gguf(says(), llama())[:-5000], "ends within tensor"),
        (gguf(says(), {"token_embd.weight": ((64,), 12, bytes(64), np.zeros(1))}), "encoding that is not read"),
        (gguf(says(), {"token_embd.weight": ((2, 48), Q8_0, bytes(102), np.zeros(1))}), "whole blocks"),
        (gguf(says(), {"rope_freqs.weight": encoded(random.Random(0), F32, 8)}), "no place for a tensor"),
        (gguf(says(**{"general.architecture": "gemma3"}), llama()), "not converted"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("x") + struct.pack("<IIQ", 9, 8, 2**60), "damaged"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(CotuneError, match=reason) as caught:
        convert(tmp_path / "m.gguf", tmp_path)
    assert caught.value.code is Code.MODEL
    assert not (tmp_path / "model.safetensors").exists()
