"""A llama in a GGUF file, as a Hugging Face folder: config, tokenizer and float32 weights, each bit as the file says.

Weights stay float32, because most products of a 4-bit number and a float16 scale have no float16 or bfloat16 form.
llama.cpp keeps the rows of the query and key projections in the order of interleaved rotations; they are put back.

Measured on SmolLM2-135M (272 tensors, 98 MB in Q4_1 and Q8_0; one core): 1.6 seconds and 0.57 GB at the most, against
15 seconds through transformers 5.24, whose tensors and logits are equal to these bit for bit. Token ids differ from
that route's in one point: the file asks for digits to be split off first (`tokenizer.ggml.pre` is smollm), as the model
was trained, while transformers leaves that out, so that two spaces before a digit are other tokens there.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cotune.backbone.gguf import GGUF, Floats
from cotune.core.errors import Code, CotuneError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_CONTROL = 3  # a token's type that text never makes
_NAMES: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file into an existing folder, one tensor in memory at a time.

    Raises:
        CotuneError: E_MODEL for a file that is damaged, or no llama with a gpt2-style tokenizer.
    """
    file = GGUF(source)
    kinds = [file.says.get(key) for key in ("general.architecture", "tokenizer.ggml.model")]
    if kinds != ["llama", "gpt2"]:
        raise CotuneError(
            Code.MODEL, "this GGUF is not converted", where=source.name, got=str(kinds), expected="llama, gpt2"
        )
    config = _config(file)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _tokenizer(file.says).save_pretrained(folder)
    _weights(file, config, folder / "model.safetensors")


def _config(file: GGUF) -> dict[str, Any]:
    """The fields of a `LlamaConfig`."""
    says = {key.removeprefix("llama."): value for key, value in file.says.items() if key.startswith("llama.")}
    tokens = file.says
    heads = says["attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": says["embedding_length"],
        "intermediate_size": says["feed_forward_length"],
        "num_hidden_layers": says["block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": says.get("attention.head_count_kv", heads),
        "max_position_embeddings": says["context_length"],
        "rms_norm_eps": _shortest(says["attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {"rope_type": "default", "rope_theta": _shortest(says.get("rope.freq_base", 10000.0))},
        "vocab_size": len(tokens["tokenizer.ggml.tokens"]),
        "bos_token_id": tokens.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": tokens.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": tokens.get("tokenizer.ggml.padding_token_id"),
        "tie_word_embeddings": "output.weight" not in file.table,
        "dtype": "float32",
    }


def _shortest(number: float) -> float:
    """The shortest decimal that is this float32: 1e-05 rather than 9.999999747378752e-06."""
    return float(str(np.float32(number)))


def _tokenizer(says: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """The byte-level BPE of tokens and merges; digits are split apart where the file says that they are."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words: list[str] = says["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in says["tokenizer.ggml.merges"]]
    core = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=merges))
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if says.get("tokenizer.ggml.pre") == "smollm" else []
    core.pre_tokenizer = pre_tokenizers.Sequence([*digits, splitter])
    core.decoder = decoders.ByteLevel()
    types = says["tokenizer.ggml.token_type"]
    controls = [word for word, kind in zip(words, types, strict=True) if kind == _CONTROL]
    core.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in controls])
    named = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if (index := says.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            named[f"{name}_token"] = words[index]
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        **named,
        model_max_length=says["llama.context_length"],
        model_input_names=["input_ids", "attention_mask"],
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )
    if "tokenizer.chat_template" in says:
        tokenizer.chat_template = says["tokenizer.chat_template"]
    return tokenizer


def _weights(file: GGUF, config: Mapping[str, Any], path: Path) -> None:
    """Write a safetensors file: the length of the header, the header, and the tensors end to end."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, entry in file.table.items():
        start, end = end, end + 4 * math.prod(entry.shape)
        header[_renamed(name)] = {"dtype": "F32", "shape": list(entry.shape), "data_offsets": [start, end]}
    packed = json.dumps(header, separators=(",", ":")).encode()
    packed += b" " * (-len(packed) % 8)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    with path.open("wb") as out:
        out.write(len(packed).to_bytes(8, "little") + packed)
        for name in file.table:
            tensor = file.tensor(name)
            rotated = heads.get(name.split(".")[-2])
            out.write((_unpermuted(tensor, rotated) if rotated else tensor).astype("<f4", copy=False).tobytes())
        out.flush()
        os.fsync(out.fileno())


def _renamed(name: str) -> str:
    """A tensor's name in transformers: `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`."""
    *block, word, kind = name.split(".")
    if word not in _NAMES or kind != "weight":
        raise CotuneError(Code.MODEL, "no place for a tensor of the GGUF file", where=name)
    return ".".join([*(["model.layers", block[1]] if block else []), _NAMES[word], kind])


def _unpermuted(rows: Floats, heads: int) -> Floats:
    """Rows of a projection, from pairs that lie side by side to pairs that lie half a head apart."""
    out, inner = rows.shape
    return np.ascontiguousarray(rows.reshape(heads, out // heads // 2, 2, inner).swapaxes(1, 2)).reshape(out, inner)
