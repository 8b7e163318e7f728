"""Train `builtin:tiny-recall` on associative recall with overwrites, and write its folder.

    OMP_NUM_THREADS=1 python -m models.tiny_recall           # from the repository's root

A story is made of `k v ;` (the value of k from now on), `k ? v ;` (its latest value is asked for, and told) and filler
words. One word is one token: `<pad> <eos> <unk> ; ?`, keys k0 to k63, values v0 to v63 and fillers f0 to f15, set apart
by spaces; every other word is <unk>. The loss is on the told values alone.

In the first half of the steps, one head of each layer is shown where to look: in the first layer at the word before, in
the second at the latest write of what is asked for. Without that, a model of this size stays for thousands of steps at
guessing one of the values that it has seen. The 6,000 steps take three and a half minutes of one core; on the same
versions and kind of machine, the same bits come out.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from models.pretrain import OUT, llama, rounded, save, train
from torch import Tensor
from torch.nn.functional import cross_entropy

Word = tuple[str, int]  # and for a told value, how many words ago it was written; 0 for every other word

SPECIALS = ("<pad>", "<eos>", "<unk>")
KEYS, VALUES, FILLERS = 64, 64, 16
WORDS = [*SPECIALS, ";", "?"]
WORDS += [f"{kind}{n}" for kind, many in (("k", KEYS), ("v", VALUES), ("f", FILLERS)) for n in range(many)]
IDS = {word: index for index, word in enumerate(WORDS)}
WINDOW, ROWS, SEED, LR, DECAY, MEMORY = 128, 16, 0, 3e-3, 0.01, 0.999
TINY = 1e-9


@dataclass(frozen=True)
class Test:
    """What a test is made of.

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


class Story:
    """Words so far, and what each key holds.

    Attributes:
        words: as they came.
    """

    def __init__(self, random_: random.Random) -> None:
        self.words: list[Word] = []
        self._random = random_
        self._held: dict[int, tuple[int, int]] = {}  # key -> its value, and the place of the word that wrote it

    def knows(self, key: int) -> bool:
        """Whether the key was written."""
        return key in self._held

    def write(self, key: int) -> None:
        """`k v ;` with a new value."""
        value = self._random.randrange(VALUES)
        self._held[key] = value, len(self.words) + 1
        self.words += [(f"k{key}", 0), (f"v{value}", 0), (";", 0)]

    def ask(self, key: int) -> None:
        """`k ? v ;` with the latest value."""
        value, place = self._held[key]
        self.words += [(f"k{key}", 0), ("?", 0), (f"v{value}", len(self.words) + 2 - place), (";", 0)]

    def fill(self) -> None:
        """One filler word."""
        self.words.append((f"f{self._random.randrange(FILLERS)}", 0))


def told(random_: random.Random) -> list[Word]:
    """A window of one pool of keys: writes, questions about what was written, and fillers, each as it comes."""
    pool = random_.sample(range(KEYS), random_.randint(2, 12))
    rate = random_.uniform(0.3, 0.8)
    story = Story(random_)
    while len(story.words) <= WINDOW:
        key, dice = random_.choice(pool), random_.random()
        if dice < 0.2:
            story.fill()
        elif story.knows(key) and random_.random() < rate:
            story.ask(key)
        else:
            story.write(key)
    return story.words[: WINDOW + 1]


def test(shape: Test, random_: random.Random) -> list[Word]:
    """Writes and overwrites, fillers, then questions with their answers."""
    pool = random_.sample(range(KEYS), shape.pairs)
    story = Story(random_)
    for key in (*pool, *random_.choices(pool, k=shape.overwrites)):
        story.write(key)
    for _ in range(shape.fillers):
        story.fill()
    for key in random_.sample(pool, shape.questions):
        story.ask(key)
    return story.words


def tensors(rows: list[list[Word]]) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens of rows of one length, the places (row, word) just before a told value, and where it was written."""
    tokens = torch.tensor([[IDS[word] for word, _ in row] for row in rows])
    ago = torch.tensor([[ago for _, ago in row] for row in rows])[:, 1:]
    places = ago.nonzero()
    return tokens, places, places[:, 1] + 1 - ago[ago > 0]


def story_loss(model: Any, shown: int, step: int) -> Tensor:
    """The mean loss on told values, and before step `shown` on where the first head of each layer looks."""
    rows = [told(random.Random(f"{SEED} {step} {row}")) for row in range(ROWS)]
    tokens, places, written = tensors(rows)
    row, place = places.T
    out = model(input_ids=tokens[:, :-1], use_cache=False, output_attentions=step < shown)
    loss = cross_entropy(out.logits[row, place], tokens[row, place + 1])
    if step < shown:
        first, second = (layer[:, 0] for layer in out.attentions)
        before = first.diagonal(-1, 1, 2)
        loss = loss - before.clamp_min(TINY).log().mean() - second[row, place, written].clamp_min(TINY).log().mean()
    return loss


def rate(step: int, steps: int) -> float:
    """The learning rate as a share of the highest: all of it, and in the last third of the steps down to nothing."""
    return min(1.0, 3 * (steps - step) / steps)


def accuracy(model: Any, shape: Test, rows: int) -> float:
    """The share of told values to which the model gives the highest probability of all tokens."""
    random_ = random.Random(f"{SEED} {shape}")
    tokens, places, _ = tensors([test(shape, random_) for _ in range(rows)])
    row, place = places.T
    with torch.no_grad():
        best = model(input_ids=tokens[:, :-1]).logits[row, place].argmax(-1)
    return float((best == tokens[row, place + 1]).double().mean())


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
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--out", type=Path, default=OUT / "tiny-recall")
    options = parser.parse_args()
    model = llama(
        SEED,
        attn_implementation="eager",
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=WINDOW,
        initializer_range=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )
    shown = options.steps // 2
    loss = partial(story_loss, model, shown)
    seconds = train(model, loss, rate, steps=options.steps, lr=LR, decay=DECAY, memory=MEMORY)
    model = rounded(model)
    shape = Test()
    card = {
        "what": "A causal Llama for in-window associative recall, trained from scratch by models/tiny_recall.py",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "text": "none: sequences that the script generates",
        "license": "Apache-2.0, as cotune",
        "steps": options.steps,
        "steps_shown_where_to_look": shown,
        "seconds": round(seconds),
        "seed": SEED,
        "keys": KEYS,
        "values": VALUES,
        "fillers": FILLERS,
        "tested_on": f"2000 sequences of {shape.pairs} pairs, {shape.overwrites} overwrites, {shape.fillers} fillers, "
        f"{shape.questions} questions",
        "accuracy": accuracy(model, shape, 2000),
        "accuracy_without_overwrites": accuracy(model, Test(overwrites=0), 2000),
        "accuracy_with_4_pairs": accuracy(model, Test(pairs=4, overwrites=4, questions=4), 2000),
        "chance_of_any_value": 1 / VALUES,
        "chance_of_a_latest_value": 1 / shape.pairs,
        "torch": torch.__version__,
    }
    save(options.out, model, tokenizer(), card.items())
    print((options.out / "card.toml").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
