"""The demo's FedNL row: four clients learn together how to write and read a memory, and the memory itself never leaves.

The model is `builtin:tiny-recall`, which comes with cotune, behind a window of 12 tokens; all rows and texts are
synthetic. Clients have keys of their own, and none trains on those of the test. After the run, a text of 16,384 tokens
goes through the memory at constant size; a key that was written long before its end is asked for, and all is forgotten.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import cotune as ct
from cotune.core.contracts import OnReply, Outcome
from cotune.engine import InlineEngine
from cotune.generation import Conversation
from cotune.store import Table
from cotune.trainable.memory.layer import MemoryLayer
from cotune.trainable.memory.session import Carried, MemorySession

WINDOW, TEXT, TEXTS = 12, 16_384, 16
AGO, EVERY = 256, 512  # how long before its end a text writes the key that is asked for, and how often it writes others
DISTANCES = (64, AGO, 1_024, 4_096)
UNSEEN = range(48, 60)  # keys that no client trains on
FILLERS, VALUES = 16, 64
THINNED = 15  # of so many states of the clients' training one is kept, to be looked for
COLUMNS = ("tokens read", "memory bytes", "window bytes", "a second", f"{AGO} tokens ago", "says", "says after reset")
Say = Callable[[str], None]


def experiment() -> ct.Experiment:
    """Five rounds of FedNL on associative recall."""
    return ct.Experiment(
        name="fednl",
        method=ct.recipe("fednl", steps=80, batch=8, lr=4e-3),
        task=ct.task.Recall(
            clients=4,
            pairs=2,
            questions=2,
            overwrites=0,
            lead=(0, 64),
            gap=(12, 40),
            test_gaps=(24, 200),
            rows=512,
            held=0,
        ),
        backbone=ct.Backbone(ref="builtin:tiny-recall", window=WINDOW),
        federation=ct.Federation(rounds=5),
        evaluation=ct.Evaluation(every=5, which="global"),
    )


class Wire(InlineEngine):
    """The engine of the run, which keeps a copy of every message, and of some states that training made."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.sent, self.states = list[bytes](), list[bytes]()
        self.passes = 0

    def exchange(self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply) -> Outcome:
        """As it is, in between."""

        def heard(client: str, reply: bytes | ct.CotuneError) -> None:
            self.sent += [reply] if isinstance(reply, bytes) else []
            on_reply(client, reply)

        self.sent += downs.values()
        with mock.patch.object(MemoryLayer, "read", self._copying(MemoryLayer.read)):
            return super().exchange(downs, deadline, min_ok, heard)

    def _copying(
        self, read: Callable[..., tuple[torch.Tensor, Carried]]
    ) -> Callable[..., tuple[torch.Tensor, Carried]]:
        def copied(*given: Any, **named: Any) -> tuple[torch.Tensor, Carried]:
            out, after = read(*given, **named)
            self.passes += 1
            if self.passes % THINNED == 0:
                self.states.append(after.state.detach()[:1].numpy().tobytes())
            return out, after

        return copied


def windows(data: bytes, step: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Every 8 bytes in a row, from every `step`-th byte on."""
    found = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), 8)[::step]
    return np.ascontiguousarray(found).view(np.uint64).ravel()


def hits(sent: bytes, states: Sequence[bytes]) -> int:
    """How many places of what was sent hold two numbers in a row of a state."""
    known = np.unique(np.concatenate([windows(state, 4) for state in states]))
    return int(np.isin(windows(sent, 1), known[known != 0]).sum())


def text(seed: int, size: int, ago: int) -> tuple[list[str], str, str]:
    """A synthetic text of `size` words, and the key and the value that are written `ago` words before its end.

    The rest is filler, and a write of some other key every `EVERY` words.
    """
    draw = random.Random(seed)
    words = [f"f{draw.randrange(FILLERS)}" for _ in range(size)]
    key, *others = draw.sample(UNSEEN, len(UNSEEN))
    value = f"v{draw.randrange(VALUES)}"
    for place in range(EVERY // 4, size, EVERY):
        words[place : place + 3] = [f"k{draw.choice(others)}", f"v{draw.randrange(VALUES)}", ";"]
    words[size - ago : size - ago + 3] = [f"k{key}", value, ";"]
    return words, f"k{key}", value


def private_memory(out: Path, say: Say) -> bool:
    """Whether a text was read at constant size and forgotten, and no byte of a memory was on the wire."""
    wires = list[Wire]()

    def wired(*given: Any) -> Wire:
        wires.append(Wire(*given))
        return wires[-1]

    run = ct.run(experiment(), out=out, fresh=True, watch=watcher(say), make_engine=wired)
    with ct.converse(run, experiment().blueprint()) as talk:
        said = Table(COLUMNS, [conversation(talk, most, out) for most in (1_024, TEXT)])
        table, states = recalled(talk.backbone)
    print(f"\n{said}\n", flush=True)
    say(f"{TEXTS} such texts of {TEXT:,} tokens, with the key at other places; a guess is right in 1 of {VALUES}")
    print(f"\n{table}\n", flush=True)
    sent, trained = b"".join(wires[0].sent), wires[0].states
    found = hits(sent, [*trained, *states])
    say(
        f"the run sent {len(sent):,} bytes; two numbers in a row of {len(trained) + len(states)} states of memories, of"
    )
    say(f"training and of these texts, were looked for at every place of them: found in {found}")
    planted = hits(sent + trained[-1][400:480], trained)
    say(f"(80 bytes of a state, planted there, are found by the same search in {planted} places)")
    constant = len({row[1:3] for row in said.rows}) == 1
    return constant and not found and planted > 0


def conversation(talk: Conversation, most: int, out: Path) -> tuple[str, ...]:
    """A row of the table: a file is streamed, a key asked for, all forgotten, and the key asked for again."""
    words, key, value = text(0, most, AGO)
    path = out / f"{most}-tokens.txt"
    path.write_text(" ".join(words))
    *_, seen = talk.stream(path)
    answer = talk.answer(f"{key} ?", 1)
    talk.reset()
    left = talk.progress
    assert left.state_bytes == left.cache_bytes == 0, "something is left after a reset"
    again = talk.answer(f"{key} ?", 1)
    talk.reset()
    figures = (f"{seen.tokens:,}", f"{seen.state_bytes:,}", f"{seen.cache_bytes:,}", f"{seen.rate:,.0f}")
    return *figures, f"{key} is {value}", answer, again


def recalled(backbone: Any) -> tuple[Table, list[bytes]]:
    """In how many of `TEXTS` texts a key is recalled, before and after a reset; and the states of some of them."""
    session: MemorySession = backbone.model.memory_session()
    rows, states = [], []
    for ago in DISTANCES:
        texts = [text(seed, TEXT, ago) for seed in range(TEXTS)]
        asked = torch.cat([tokens(backbone, f"{key} ?") for _, key, _ in texts])
        gold = torch.cat([tokens(backbone, value) for _, _, value in texts])[:, 0]
        session.read(torch.cat([tokens(backbone, " ".join(words)) for words, _, _ in texts]))
        states += [kept.state[:4].numpy().tobytes() for layer in (0, 1) if (kept := session.carried(layer))]
        before = int((session.read(asked).argmax(-1) == gold).sum())
        session.reset()
        after = int((session.read(asked).argmax(-1) == gold).sum())
        session.reset()
        rows.append((f"{ago:,}", f"{before} of {TEXTS}", f"{after} of {TEXTS}"))
    return Table(("written tokens ago", "recalled", "after a reset"), rows), states


def tokens(backbone: Any, words: str) -> torch.Tensor:
    """(1, words): one word is one token."""
    ids: torch.Tensor = backbone.tokenizer(words, verbose=False, return_tensors="pt").input_ids
    return ids


def watcher(say: Say) -> Callable[[str, Mapping[str, Any]], None]:
    """A line a round, and the scores with their intervals at the end."""

    def watch(moment: str, about: Mapping[str, Any]) -> None:
        if moment == "recorded":
            record = about["record"]
            say(f"fednl: round {record.round}, train loss {record.train_loss:.3f}, {record.uplink_bytes:,} bytes up")
            for gap, metric in record.cells.get("accuracy", {}).items():
                said = f"{metric.value:.3f}, 95 % interval {metric.low:.3f} to {metric.high:.3f}, n = {metric.n}"
                say(f"fednl: accuracy on keys that no client has, {gap}: {said}, chance {metric.chance:.3f}")

    return watch
