"""Backbones that need no download: a small model of a known architecture with random weights, and a byte tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch

from cotune.core.errors import Code, CotuneError, nearest
from cotune.core.reference import Reference

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerFast

# The first ids, in this order; the 256 bytes follow in theirs.
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>", "<cls>", "<sep>", "<mask>")
VOCAB = len(SPECIALS) + 256
DECODERS = ("llama", "qwen2", "opt", "gpt2")
ENCODERS = ("roberta", "bert")
RECURRENT = ("mamba",)  # they read from left to right without attention, and have no classification head
_GROUPED = ("llama", "qwen2")  # keys and values may have fewer heads, and positions are rotations of pairs


@dataclass(frozen=True)
class Random:
    """`random:ARCH?key=value`: weights are a function of the seed alone.

    | option | default | |
    |---|---|---|
    | layers | 2 | |
    | hidden | 64 | |
    | heads | 4 | must divide `hidden`; not of mamba |
    | kv_heads | heads | llama and qwen2; must divide `heads` |
    | intermediate | 4 · hidden | width of the feed-forward layers; mamba's is 2 · hidden |
    | state | 16 | mamba: numbers of a layer's state for each of its channels |
    | vocab | the byte tokenizer's 263 | never smaller |
    | positions | 512 | the most tokens |
    | tied | true | all but encoders: whether the output head is the embedding |
    """

    ref: Reference

    def checked(self) -> Self:
        """This, when its options make a model."""
        self.sizes()
        return self

    def sizes(self) -> dict[str, int]:
        """Every option, written out; `tied` as 0 or 1.

        Raises:
            CotuneError: E_CONFIG for an unknown architecture or option, or sizes that do not fit together.
        """
        arch, options = self.ref.name, self.ref.options
        if arch not in DECODERS + ENCODERS + RECURRENT:
            self._refuse(f"no architecture '{arch}'", fix=nearest(arch, DECODERS + ENCODERS + RECURRENT))
        sizes = {"layers": 2, "hidden": 64, "vocab": VOCAB, "positions": 512}
        sizes |= {"state": 16} if arch in RECURRENT else {"heads": 4}
        known = [*sizes, *([] if arch in RECURRENT else ["intermediate"]), *(["kv_heads"] if arch in _GROUPED else [])]
        known += ["tied"] if arch not in ENCODERS else []
        for key, value in options.items():
            if key not in known:
                self._refuse(f"{arch} has no option '{key}'", fix=nearest(key, known))
            sizes[key] = self._truth(value) if key == "tied" else self._count(key, value)
        if arch not in RECURRENT:
            sizes.setdefault("intermediate", 4 * sizes["hidden"])
            sizes.setdefault("kv_heads", sizes["heads"])
        sizes.setdefault("tied", 1)
        self._check(sizes)
        return sizes

    def _count(self, key: str, value: str) -> int:
        if not (value.isascii() and value.isdecimal() and 0 < int(value) < 2**31):
            self._refuse(f"option '{key}' is a number of things", got=repr(value), expected="a positive integer")
        return int(value)

    def _truth(self, value: str) -> int:
        if value not in ("true", "false"):
            self._refuse("option 'tied' is yes or no", got=repr(value), expected="true or false")
        return int(value == "true")

    def _check(self, sizes: Mapping[str, int]) -> None:
        hidden, heads = sizes["hidden"], sizes.get("heads", 1)
        kv_heads = sizes.get("kv_heads", heads)
        if hidden % heads or heads % kv_heads:
            what = "hidden is not divisible by heads" if hidden % heads else "heads is not divisible by kv_heads"
            self._refuse(what, got=f"hidden={hidden}, heads={heads}, kv_heads={kv_heads}")
        if self.ref.name in _GROUPED and hidden // heads % 2:
            self._refuse("a head has an odd width", got=f"{hidden // heads}", expected="pairs to rotate")
        if sizes["vocab"] < VOCAB:
            self._refuse("the vocabulary has no room for every byte", got=sizes["vocab"], expected=f"at least {VOCAB}")

    def _refuse(self, what: str, *, got: object = None, expected: object = None, fix: str = "") -> NoReturn:
        raise CotuneError(Code.CONFIG, what, where=self.ref.text, got=got, expected=expected, fix=fix)

    def config(self) -> PreTrainedConfig:
        """The model's configuration."""
        from transformers import AutoConfig

        arch, sizes = self.ref.name, self.sizes()
        fields: dict[str, Any] = {
            "num_hidden_layers": sizes["layers"],
            "hidden_size": sizes["hidden"],
            "vocab_size": sizes["vocab"],
            "pad_token_id": SPECIALS.index("<pad>"),
            "bos_token_id": SPECIALS.index("<cls>" if arch in ENCODERS else "<bos>"),
            "eos_token_id": SPECIALS.index("<sep>" if arch in ENCODERS else "<eos>"),
        }
        if arch in RECURRENT:
            fields["state_size"] = sizes["state"]
        else:
            fields["num_attention_heads"] = sizes["heads"]
            fields["max_position_embeddings"] = sizes["positions"]
            fields[{"opt": "ffn_dim", "gpt2": "n_inner"}.get(arch, "intermediate_size")] = sizes["intermediate"]
        if arch in _GROUPED:
            fields["num_key_value_heads"] = sizes["kv_heads"]
        if arch not in ENCODERS:
            fields["tie_word_embeddings"] = bool(sizes["tied"])
        if arch == "opt":
            fields["word_embed_proj_dim"] = sizes["hidden"]
        if arch == "roberta":  # its positions start after the padding id
            fields["max_position_embeddings"] += fields["pad_token_id"] + 1
            fields["type_vocab_size"] = 1
        return AutoConfig.for_model(arch, **fields)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The byte tokenizer."""
        return byte_tokenizer(marks=self.ref.name in ENCODERS, limit=self.sizes()["positions"])

    def model(self, kind: Any, config: PreTrainedConfig, dtype: torch.dtype, attention: str) -> tuple[Any, list[str]]:
        """The model, drawn from the default generator in float32 whatever the dtype, and no absent weights."""
        model = kind.from_config(config, dtype=torch.float32, attn_implementation=attention)
        for parameter in model.parameters():  # and not the buffers: angles of rotations stay float32
            parameter.data = parameter.data.to(dtype)
        return model, []


def byte_tokenizer(*, marks: bool, limit: int) -> PreTrainedTokenizerFast:
    """A tokenizer with one id a byte: any text comes back as it was, and no text turns into a special token.

    Args:
        marks: whether a text is put between `<cls>` and `<sep>`, as encoders expect.
        limit: the most tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocab = {token: index for index, token in enumerate((*SPECIALS, *_alphabet()))}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    if marks:
        core.post_processor = processors.TemplateProcessing(
            single="<cls> $A <sep>",
            pair="<cls> $A <sep> $B:1 <sep>:1",
            special_tokens=[("<cls>", vocab["<cls>"]), ("<sep>", vocab["<sep>"])],
        )
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        **{f"{token.strip('<>')}_token": token for token in SPECIALS},
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=limit,
        padding_side="right",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )
    return tokenizer


def _alphabet() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies, in the order of the bytes."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]
