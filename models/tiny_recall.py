"""Train `builtin:tiny-recall` on associative recall with overwrites, and write its folder.

    OMP_NUM_THREADS=1 python -m models.tiny_recall           # from the repository's root

A sequence is made of `k v ;` (the key's value from now on), `k ? v ;` (its latest value is asked for, and told) and
filler words. The vocabulary has one token a word: `<pad> <eos> <unk> ; ?`, keys k0 to k31, values v0 to v31, fillers f0
to f15. Words are set apart by spaces, and every other word is <unk>. The loss is on the told values alone. Lessons come
first, four short pairs and no overwrites, because matching is learned at once there or, in long stories, not at all.
MINUTES
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from models.pretrain import IGNORED, OUT, Batch, llama, rounded, save, train

SPECIALS = ("<pad>", "<eos>", "<unk>")
KEYS, VALUES, FILLERS = 32, 32, 16
WORDS = [*SPECIALS, ";", "?"]
WORDS += [f"{kind}{n}" for kind, many in (("k", KEYS), ("v", VALUES), ("f", FILLERS)) for n in range(many)]
IDS = {word: index for index, word in enumerate(WORDS)}
WINDOW, SEED, LR, DECAY, MEMORY = 128, 0, 3e-3, 0.01, 0.999
LESSONS, LESSON_ROWS, STORY_ROWS = 2000, 64, 32


@dataclass(frozen=True)
class Shape:
    """What a lesson or a test is made of.

    Attributes:
        pairs: keys that are written.
        overwrites: later writes to one of them.
        fillers: words between the writes and the questions.
        questions: keys that are asked for, each once.
    """

    pairs: int = 8
    overwrites: int = 8
    fillers: int = 16
    questions: int = 8


LESSON = Shape(pairs=4, overwrites=0, fillers=0, questions=4)


def story(random_: random.Random) -> Iterator[str]:
    """Words without end, of one pool of keys: writes, questions about what was written, fillers, each as it comes."""
    pool = random_.sample(range(KEYS), random_.randint(2, 12))
    rate = random_.uniform(0.3, 0.7)
    held: dict[int, int] = {}
    while True:
        key, dice = random_.choice(pool), random_.random()
        if dice < 0.05:
            yield f"f{random_.randrange(FILLERS)}"
        elif key in held and random_.random() < rate:
            yield from (f"k{key}", "?", f"v{held[key]}", ";")
        else:
            held[key] = random_.randrange(VALUES)
            yield from (f"k{key}", f"v{held[key]}", ";")


def question(shape: Shape, random_: random.Random) -> list[str]:
    """The words of a lesson or a test: writes and overwrites, fillers, then questions with their answers."""
    pool = random_.sample(range(KEYS), shape.pairs)
    order = [*pool, *(random_.choice(pool) for _ in range(shape.overwrites))]
    held: dict[int, int] = {}
    words: list[str] = []
    for key in order:
        held[key] = random_.randrange(VALUES)
        words += [f"k{key}", f"v{held[key]}", ";"]
    words += [f"f{random_.randrange(FILLERS)}" for _ in range(shape.fillers)]
    for key in random_.sample(pool, shape.questions):
        words += [f"k{key}", "?", f"v{held[key]}", ";"]
    return words


def batch(step: int) -> Batch:
    """The tokens of a step and the told values, which depend on the step alone: first lessons, then stories."""
    rows = []
    for row in range(LESSON_ROWS if step < LESSONS else STORY_ROWS):
        random_ = random.Random(f"{SEED} {step} {row}")
        lesson = question(LESSON, random_) if step < LESSONS else islice(story(random_), WINDOW + 1)
        rows.append([IDS[word] for word in lesson])
    tokens = torch.tensor(rows)
    return tokens[:, :-1], wanted(tokens)


def wanted(tokens: torch.Tensor) -> torch.Tensor:
    """The token after each one where that is a `?`, and IGNORED elsewhere."""
    return torch.where(tokens[:, :-1] == IDS["?"], tokens[:, 1:], IGNORED)


def accuracy(model: Any, shape: Shape, rows: int, seed: int) -> float:
    """The share of told values to which the model gives the highest probability of all tokens."""
    random_ = random.Random(f"{seed} {shape}")
    tokens = torch.tensor([[IDS[word] for word in question(shape, random_)] for _ in range(rows)])
    right = wanted(tokens)
    with torch.no_grad():
        told = model(input_ids=tokens[:, :-1]).logits.argmax(-1)
    return float((told == right)[right != IGNORED].double().mean())


def tokenizer() -> Any:
    """One token a word; text is split at spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel(IDS, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<eos>",
        unk_token="<unk>",
        model_max_length=WINDOW,
        model_input_names=["input_ids", "attention_mask"],
        padding_side="right",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def main() -> None:
    """Train, measure on sequences of another kind and seed, and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=OUT / "tiny-recall")
    options = parser.parse_args()
    model = llama(
        SEED,
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=WINDOW,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        initializer_range=0.1,
    )
    seconds = train(model, batch, options.steps, LR, DECAY, MEMORY)
    model = rounded(model)
    shape, plain = Shape(), Shape(overwrites=0)
    card = {
        "what": "a causal Llama for in-window associative recall, trained from scratch by models/tiny_recall.py",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "text": "none: sequences that the script generates",
        "license": "Apache-2.0, as cotune",
        "steps": options.steps,
        "lessons": LESSONS,
        "keys": KEYS,
        "values": VALUES,
        "fillers": FILLERS,
        "seconds": round(seconds),
        "seed": SEED,
        "tested_on": f"2000 sequences of {shape.pairs} pairs, {shape.overwrites} overwrites, {shape.fillers} fillers, "
        f"{shape.questions} questions",
        "accuracy": accuracy(model, shape, 2000, 1),
        "accuracy_without_overwrites": accuracy(model, plain, 2000, 1),
        "accuracy_with_4_pairs": accuracy(model, Shape(4, 4, 16, 4), 2000, 1),
        "chance_of_any_value": 1 / VALUES,
        "chance_of_a_present_value": 1 / (shape.pairs + shape.overwrites),
        "torch": torch.__version__,
    }
    save(options.out, model, tokenizer(), card.items())
    print((options.out / "card.toml").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
