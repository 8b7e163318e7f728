"""A finished run's model, talked to: a text of any size is streamed through it, then it answers.

    with converse(run, blueprint) as talk:
        for progress in talk.stream(Path("book.txt")):     # at constant memory, where attention has a window
            print(progress)
        print(talk.answer("Who is in bed 7 ?", tokens=16))
        talk.reset()                                        # and nothing of it was ever written anywhere

What was read is in the private memory, where the run has one, and in the cache of attention; both are gone with the
conversation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from cotune.backbone import tokens as words
from cotune.backbone.bind import bind
from cotune.core.contracts import Backbone
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.core.part import Capability
from cotune.export.reopen import reopen
from cotune.export.whose import of_client, shared
from cotune.setup import Blueprint
from cotune.store import Run
from cotune.task.tokens import bare, opened
from cotune.trainable.memory.session import cache_argument, cache_bytes, greedy

PIECE = 2**16  # characters of a file that are read at once
SEGMENT = 512  # tokens that go through the model at once


@dataclass(frozen=True)
class Progress:
    """Where a conversation is.

    Attributes:
        tokens: read so far.
        seconds: that took.
        state_bytes: of the memory; 0 where there is none.
        cache_bytes: of the keys and values that attention keeps.
    """

    tokens: int
    seconds: float
    state_bytes: int
    cache_bytes: int

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0


class Reader(Protocol):
    """What reads tokens and remembers them: a `MemorySession`, or attention's cache alone."""

    @property
    def state_bytes(self) -> int:
        """Bytes of the memory."""
        ...

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys and values that attention keeps."""
        ...

    def read(self, ids: Tensor, segment: int = SEGMENT) -> Tensor:
        """Logits (rows, vocabulary) after the last of `ids` (rows, tokens)."""
        ...

    def reset(self) -> None:
        """Forget everything."""
        ...


class Conversation:
    """A model and what it has read; see `converse`.

    Attributes:
        backbone: with the trained tensors in place as long as the conversation lasts.
        remembers: whether the model has a memory.
        window: tokens that attention sees; None for all.
        tokens: read so far.
    """

    def __init__(self, backbone: Backbone, window: int | None) -> None:
        model: Any = backbone.model
        self.backbone = backbone
        self.remembers = hasattr(model, "memory_session")
        self.window = window
        self.tokens = 0
        self._tokenizer, self._device = backbone.tokenizer, backbone.device
        self._reader: Reader = model.memory_session() if self.remembers else Cache(model)
        self._limit = words.limit(self._tokenizer, model, model.config, None, windowed=window is not None)
        self._seconds = 0.0

    @property
    def progress(self) -> Progress:
        """Where it is."""
        return Progress(self.tokens, self._seconds, self._reader.state_bytes, self._reader.cache_bytes)

    def read(self, text: str) -> Progress:
        """Read a text as it goes on from what was read before."""
        ids = self._ids(text)
        for start in range(0, len(ids), SEGMENT):
            self._read(self._row(ids[start : start + SEGMENT]))
        return self.progress

    def stream(self, path: Path) -> Iterator[Progress]:
        """Read a UTF-8 text file of any size piece by piece, and tell after each segment.

        A piece ends before white space, where there is any, so that no word is cut; a segment is 512 tokens.

        Raises:
            CotuneError: E_CONFLICT where the model has neither a memory nor a window: it cannot take a text of any
                size, or takes no more of this one; E_DATA for a file that cannot be read.
        """
        if not self.remembers and self.window is None:
            raise CotuneError(
                Code.CONFLICT,
                "the run has no memory to stream a text through, and attention to all of it grows with it",
                where="--stream",
                fix='train kind = "memory" (recipe fednl), or with backbone.window',
            )
        waiting = list[int]()
        for text in pieces(path):
            waiting += bare(text, self._tokenizer) if waiting else self._ids(text)
            while len(waiting) >= SEGMENT:
                self._read(self._row(waiting[:SEGMENT]))
                del waiting[:SEGMENT]
                yield self.progress
        if waiting:
            self._read(self._row(waiting))
            yield self.progress

    def answer(self, prompt: str, tokens: int) -> str:
        """The likeliest continuation of a prompt, which goes on from what was read: at most `tokens` of it.

        Raises:
            CotuneError: E_CONFIG for a prompt without a token; E_CONFLICT where model and text end.
        """
        ids = self._ids(prompt)
        if not ids:
            raise CotuneError(Code.CONFIG, "the prompt is empty", where="--prompt", fix="ask something")
        end = self._tokenizer.eos_token_id
        said = greedy(self._read, self._row(ids), tokens, end)[0].tolist()
        text: str = self._tokenizer.decode(said[:-1] if said[-1:] == [end] else said)
        return text

    def reset(self) -> None:
        """Forget everything that was read."""
        self._reader.reset()
        self.tokens, self._seconds = 0, 0.0

    def _ids(self, text: str) -> list[int]:
        """The tokens of a text, opened where nothing was read before."""
        return bare(text, self._tokenizer) if self.tokens else opened([text], self._tokenizer)[0][0]

    def _row(self, ids: list[int]) -> Tensor:
        return torch.tensor([ids], device=self._device)

    def _read(self, ids: Tensor) -> Tensor:
        """Logits after the tokens (1, any)."""
        if self.tokens + ids.shape[1] > self._limit:
            raise CotuneError(
                Code.CONFLICT,
                "the text is longer than the model takes",
                got=f"{self.tokens + ids.shape[1]:,} tokens",
                expected=f"at most {self._limit:,}",
                fix="" if self.window else "train with backbone.window, where positions are rotary",
            )
        started = time.monotonic()
        logits = self._reader.read(ids, SEGMENT)
        self.tokens += ids.shape[1]
        self._seconds += time.monotonic() - started
        return logits


class Cache:
    """A reader without a memory: the keys and values that attention keeps, of its window or of all."""

    state_bytes = 0

    def __init__(self, model: Any) -> None:
        self._named, self._model, self._cache = cache_argument(model), model, None

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys and values that attention keeps."""
        return cache_bytes(self._cache) if self._cache is not None else 0

    def read(self, ids: Tensor, segment: int = SEGMENT) -> Tensor:
        """Logits (rows, vocabulary) after the last of `ids` (rows, tokens)."""
        with torch.no_grad():
            for part in torch.split(ids, segment, dim=1):
                kept = {self._named: self._cache, "use_cache": True, "logits_to_keep": 1}
                said = self._model(input_ids=part, **kept)
                self._cache = getattr(said, self._named)
        logits: Tensor = said.logits[:, -1]
        return logits

    def reset(self) -> None:
        """Forget everything."""
        self._cache = None


@contextmanager
def converse(run: Run, blueprint: Blueprint, *, client: str | None = None, say: Say = silent) -> Iterator[Conversation]:
    """A conversation with the model that a run's last checkpoint holds; all that it has read is forgotten at the end.

    Args:
        run: its folder.
        blueprint: of the experiment that the run is of.
        client: with the model of this client, where clients keep a part to themselves.
        say: is told before a download.

    Raises:
        CotuneError: E_CONFLICT for a classifier, or where what is shared is no model; whatever `reopen` raises.
    """
    setup, state = reopen(run, blueprint, say)
    config, model = blueprint.backbone, setup.backbone.model
    if Capability.CAUSAL not in setup.backbone.gives:
        what = "the model of the run predicts classes, and generates no text"
        raise CotuneError(Code.CONFLICT, what, where=run.folder.name, fix="name a run of a language task")
    whose = of_client(setup, state, config, run, client) if client is not None else shared(setup, state, config)
    trained = whose.trained
    with bind(model, trained.tensors, trained.spec, trained.base) as bound:
        bound.place(trained.tensors)
        conversation = Conversation(setup.backbone, config.window)
        try:
            yield conversation
        finally:
            conversation.reset()


@dataclass(frozen=True)
class Answer:
    """What came of a prompt.

    Attributes:
        text: the answer.
        progress: after the prompt and all but the last token of the answer.
        remembered: whether the model has a memory.
        window: tokens that attention saw; None for all.
    """

    text: str
    progress: Progress
    remembered: bool
    window: int | None


def generate(
    run: Run,
    blueprint: Blueprint,
    prompt: str,
    *,
    stream: Path | None = None,
    tokens: int = 64,
    client: str | None = None,
    say: Say = silent,
) -> Answer:
    """A run's answer to a prompt, after a file was streamed through its memory, which is forgotten afterwards.

    Args:
        run: its folder.
        blueprint: of the experiment that the run is of.
        prompt: what to go on from.
        stream: a UTF-8 text file of any size, which is read first.
        tokens: the most that the answer has.
        client: whose model, where clients keep a part to themselves.
        say: is told what a user must know, and how far it is each time the number of tokens has doubled.

    Raises:
        CotuneError: whatever `converse`, `Conversation.stream` and `Conversation.answer` raise.
    """
    if stream is not None and not stream.exists():  # said before a model is loaded
        raise CotuneError(Code.DATA, "no such text", where=str(stream), fix="name a file of text")
    with converse(run, blueprint, client=client, say=say) as talk:
        if stream is not None:
            say(_through(talk))
            told = 0
            for progress in talk.stream(stream):
                if progress.tokens >= 2 * told:
                    told = progress.tokens
                    say(line(progress))
            if talk.tokens and talk.tokens != told:
                say(line(talk.progress))
        text = talk.answer(prompt, tokens)
        return Answer(text, talk.progress, talk.remembers, talk.window)


def line(progress: Progress) -> str:
    """A progress in words."""
    return (
        f"read {progress.tokens:,} tokens · {progress.rate:,.0f} a second · memory {progress.state_bytes:,} bytes · "
        f"attention's cache {progress.cache_bytes:,} bytes"
    )


def pieces(path: Path) -> Iterator[str]:
    """A UTF-8 text file in pieces of some `PIECE` characters, each of which ends before white space where it can.

    Raises:
        CotuneError: E_DATA when it cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            left = ""
            while more := file.read(PIECE):
                left += more
                end = next((at for at in range(len(left) - 1, 0, -1) if left[at].isspace()), len(left))
                yield left[:end]
                left = left[end:]
            if left:
                yield left
    except OSError as error:
        raise CotuneError(Code.DATA, "cannot read the text", where=str(path), got=error.strerror) from error
    except UnicodeDecodeError as error:
        raise CotuneError(Code.DATA, "the text is not UTF-8", where=str(path), got=f"byte {error.start}") from error


def _through(talk: Conversation) -> str:
    """What a stream goes through, in words."""
    sees = f"attention sees {talk.window:,} tokens" if talk.window is not None else "attention sees all, and grows"
    return f"streaming through the memory; {sees}" if talk.remembers else f"no memory: {sees}, and forgets the rest"
