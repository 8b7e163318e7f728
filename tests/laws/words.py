"""Tokenizers of several kinds, and causal models that go with them, made in memory."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
)

PAD, BOS, EOS, START, END = range(5)
SPECIAL = {"<pad>": PAD, "<bos>": BOS, "<eos>": EOS, "<|im_start|>": START, "<|im_end|>": END}
VOCAB = 272
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}MARK{{ m.content }}<|im_end|>KRAM"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN_CHAT = CHAT.replace("MARK", "").replace("KRAM", "")
MARKED_CHAT = CHAT.replace("MARK", "{% generation %}").replace("KRAM", "{% endgeneration %}")


def words(
    template: str = "",
    *,
    pad: str | None = "<pad>",
    eos: str | None = "<eos>",
    merges: tuple[tuple[str, str], ...] = (),
    spaced: bool = False,
    chat: str | None = None,
) -> Any:
    """A tokenizer with an id for every byte.

    Args:
        template: what stands around a text, such as `<bos> $A`.
        pad: the padding token.
        eos: the end of text.
        merges: pairs of letters that become one token.
        spaced: a blank is put before every text, as in SentencePiece.
        chat: the chat template.
    """
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    vocab = {**SPECIAL, **{letter: len(SPECIAL) + i for i, letter in enumerate(letters)}}
    backend = Backend(models.BPE(vocab=vocab, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    if template:
        backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=list(SPECIAL.items()))
    made: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, bos_token="<bos>", eos_token=eos, pad_token=pad, chat_template=chat
    )
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return made


def network(name: str) -> Any:
    """A causal model of one or two layers that knows the tokenizers' ids."""
    torch.manual_seed(0)
    shared: dict[str, Any] = {"vocab_size": VOCAB, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    long: dict[str, Any] = {"max_position_embeddings": 160}
    made: Any
    match name:
        case "llama":
            made = LlamaForCausalLM(LlamaConfig(**shared, **sizes, **long, intermediate_size=32))
        case "gpt2":
            made = GPT2LMHeadModel(GPT2Config(**shared, n_embd=16, n_layer=2, n_head=2, n_positions=160))
        case _:
            made = OPTForCausalLM(OPTConfig(**shared, **sizes, **long, ffn_dim=32, word_embed_proj_dim=16))
    return made.eval()
