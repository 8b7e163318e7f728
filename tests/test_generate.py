"""A run's model reads a text of any size at constant memory, answers, and forgets."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typed import Type, cotune, refused, typing

import cotune as ct
from cotune import generation
from cotune.backbone.bind import bind
from cotune.cli.generate import FORGOTTEN
from cotune.core.errors import Code, CotuneError
from cotune.export import reopen
from cotune.export.whose import of_client, shared
from cotune.generation import Conversation, converse, generate, pieces
from cotune.resolve import load
from cotune.store import Run
from cotune.trainable.memory import MemorySession
from cotune.trainable.memory.session import greedy

RECALL = "recall?rows=8&held=0&test_rows=2&clients=2"
SMALL = ("method.budget.steps=1", "method.budget.batch=2", "evaluation.rows=4")


@pytest.fixture
def type_(capfd: pytest.CaptureFixture[str]) -> Type:
    return typing(capfd)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def played(out: Path, recipe: str, backbone: str, task: str, *sets: str) -> Run:
    experiment = load(recipe, backbone=backbone, task=task, rounds=1, sets=[*SMALL, *sets])
    return ct.run(experiment, out=out, resume=True)


@pytest.fixture(scope="module")
def recall(out: Path) -> Run:
    """Words, a memory, and a window."""
    return played(
        out, "fednl", "builtin:tiny-recall", RECALL, "backbone.window=12", 'method.trainable.rules={gate="sigmoid"}'
    )


@pytest.fixture(scope="module")
def prose(out: Path) -> Run:
    """Text, a memory, and a window."""
    task = "synth:prose?clients=2&rows=24"
    return played(out, "fednl", "builtin:tiny-llama", task, "backbone.window=16", "task.max_tokens=32")


@pytest.fixture(scope="module")
def plain(out: Path) -> Run:
    """Neither a memory nor a window."""
    return played(out, "lora-fedavg", "builtin:tiny-recall", RECALL)


@pytest.fixture(scope="module")
def windowed(out: Path) -> Run:
    """A window, and no memory."""
    return played(out, "lora-fedavg", "builtin:tiny-recall", RECALL, "backbone.window=12")


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic text of 3,000 words."""
    path = tmp_path_factory.mktemp("text") / "stories.txt"
    path.write_text(" ".join(f"k{i % 60} v{i % 61} ; f{i % 16}" for i in range(750)))
    return path


def blueprint(run: Run) -> Any:
    return ct.Experiment.model_validate(run.about["experiment"]).blueprint()


def slowly(run: Run, text: str, tokens: int) -> list[int]:
    """The greedy continuation by a model that reads everything anew for each token, with no cache and no session."""
    setup, state = reopen(run, blueprint(run))
    trained = shared(setup, state, blueprint(run).backbone).trained
    ids: list[int] = setup.backbone.tokenizer(text)["input_ids"]
    end, said = setup.backbone.tokenizer.eos_token_id, list[int]()
    with torch.no_grad(), bind(setup.backbone.model, trained.tensors, trained.spec, trained.base) as bound:
        while len(said) < tokens and said[-1:] != [end]:
            logits = bound(trained.tensors, input_ids=torch.tensor([ids + said]), use_cache=False).logits
            said.append(int(logits[0, -1].argmax()))
    return [token for token in said if token != end]


@pytest.mark.parametrize("name", ["recall", "prose", "plain", "windowed"])
def test_an_answer_is_what_the_model_says_when_it_reads_everything_anew(
    name: str, request: pytest.FixtureRequest
) -> None:
    run: Run = request.getfixturevalue(name)
    prompt = "the otter and the hare " if name == "prose" else "k1 v2 ; f3 f4 f5 f6 f7 f8 f9 f1 f2 f3 f4 k1 ?"
    with converse(run, blueprint(run)) as talk:
        text = talk.answer(prompt, 12)
        expected = talk._tokenizer.decode(slowly(run, prompt, 12))
    assert text == expected
    assert text


def test_a_streamed_file_is_what_a_read_text_is(recall: Run, stories: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text(" ".join(stories.read_text().split()[:900]))
    with converse(recall, blueprint(recall)) as talk:
        for _ in talk.stream(short):
            pass
        assert talk.tokens == 900
        streamed = talk.answer(" k7 ?", 5)
        talk.reset()
        assert talk.progress.tokens == talk.progress.state_bytes == talk.progress.cache_bytes == 0
        talk.read(short.read_text())
        assert talk.answer(" k7 ?", 5) == streamed


def test_bytes_do_not_grow_with_the_text(recall: Run, stories: Path) -> None:
    with converse(recall, blueprint(recall)) as talk:
        seen = list(talk.stream(stories))
    assert [progress.tokens for progress in seen] == [512, 1024, 1536, 2048, 2560, 3000]
    assert {(progress.state_bytes, progress.cache_bytes) for progress in seen} == {
        (2 * 2 * 32 * 32 * 4, 2 * 2 * 11 * 2 * 32 * 4)
    }
    assert all(progress.rate > 0 for progress in seen)


@pytest.mark.parametrize("ref", ["builtin:tiny-recall", "builtin:tiny-llama", "random:llama"])
def test_pieces_of_a_file_are_the_tokens_of_the_whole(
    ref: str, stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = ct.Backbone(ref=ref).load("causal", 0, seed=0).tokenizer
    text = stories.read_text()[:4000] if "recall" in ref else "The otter — a Ünïcode one —\r\n\n  slept.\tGood! " * 60
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode())
    monkeypatch.setattr(generation, "PIECE", 97)
    found = list(pieces(path))
    assert "".join(found) == text
    assert len(found) > 20
    assert max(map(len, found)) < 97 + 20
    whole = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert [token for piece in found for token in tokenizer(piece, add_special_tokens=False)["input_ids"]] == whole


def test_a_file_without_white_space_is_cut_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("x" * (3 * generation.PIECE + 5))
    assert [len(piece) for piece in pieces(path)] == [generation.PIECE] * 3 + [5]
    path.write_text("")
    assert list(pieces(path)) == []


def test_without_a_memory_a_text_goes_through_the_window_or_not_at_all(
    plain: Run, windowed: Run, stories: Path
) -> None:
    with pytest.raises(CotuneError, match="no memory to stream a text through") as caught:
        generate(plain, blueprint(plain), "k1 ?", stream=stories)
    assert caught.value.code is Code.CONFLICT
    said: list[str] = []
    answer = generate(windowed, blueprint(windowed), " k1 ?", stream=stories, tokens=3, say=said.append)
    assert said[0] == "no memory: attention sees 12 tokens, and forgets the rest"
    assert [line.split(" · ")[0] for line in said[1:]] == [
        f"read {n} tokens" for n in ("512", "1,024", "2,048", "3,000")
    ]
    assert (answer.remembered, answer.window, answer.progress.state_bytes) == (False, 12, 0)
    assert answer.progress.cache_bytes == 2 * 2 * 11 * 2 * 32 * 4
    with pytest.raises(CotuneError, match=r"longer than the model takes · got 1\d\d tokens, expected at most 128"):
        generate(plain, blueprint(plain), "f1 " * 120, tokens=20)


def test_a_memory_without_a_window_ends_where_the_model_does(out: Path, stories: Path) -> None:
    run = played(out, "fednl", "builtin:tiny-recall", RECALL)
    with pytest.raises(CotuneError, match=r"longer than the model takes.*got 512.*128.*backbone.window"):
        generate(run, blueprint(run), "k1 ?", stream=stories)


def test_one_clients_model_answers_where_clients_have_their_own(out: Path) -> None:
    run = played(out, "fednl", "builtin:tiny-recall", RECALL, 'method.share="none"')
    with pytest.raises(CotuneError, match=r"nothing is shared.*--client ID"):
        generate(run, blueprint(run), "k1 ?", tokens=2)
    setup, state = reopen(run, blueprint(run))
    own = of_client(setup, state, blueprint(run).backbone, run, "client-01").trained
    with torch.no_grad(), bind(setup.backbone.model, own.tensors, own.spec) as bound:
        ids = torch.tensor([setup.backbone.tokenizer("k1 v3 ; k1 ?")["input_ids"]])
        first = int(bound(own.tensors, input_ids=ids, use_cache=False).logits[0, -1].argmax())
    answer = generate(run, blueprint(run), "k1 v3 ; k1 ?", tokens=1, client="client-01")
    assert answer.text == setup.backbone.tokenizer.decode([first])


def test_a_classifier_says_nothing(out: Path) -> None:
    bert, task = "random:bert?layers=1&hidden=16&heads=2", "synth:sentiment?clients=2&rows=48"
    run = played(out, "lora-fedavg", bert, task)
    with pytest.raises(CotuneError, match="predicts classes") as caught:
        generate(run, blueprint(run), "good")
    assert caught.value.code is Code.CONFLICT


# ---- the session's own loop


def session_of(run: Run) -> tuple[Any, MemorySession]:
    setup, _ = reopen(run, blueprint(run))
    model: Any = setup.backbone.model
    return model, model.memory_session()


def test_rows_of_a_session_answer_as_if_each_were_alone(recall: Run) -> None:
    model, session = session_of(recall)
    ids = torch.tensor([[5, 70, 3, 5, 4], [9, 88, 3, 9, 4], [5, 90, 3, 9, 4]])
    together = session.generate(ids, 6)
    assert together.shape == (3, 6)
    assert session.tokens == 5 + 5
    for row in range(3):
        assert torch.equal(model.memory_session().generate(ids[row : row + 1], 6, segment=2)[0], together[row])


def test_an_answer_ends_when_every_row_has_said_stop() -> None:
    script = torch.tensor([[4, 7, 1, 1, 1], [7, 2, 2, 7, 3]])
    calls: list[tuple[int, ...]] = []

    def read(ids: torch.Tensor) -> torch.Tensor:
        calls.append(tuple(ids.shape))
        return torch.nn.functional.one_hot(script[:, len(calls) - 1], 9).float()

    said = greedy(read, torch.zeros(2, 3, dtype=torch.long), 5, stop=7)
    assert torch.equal(said, script[:, :2])
    assert calls == [(2, 3), (2, 1)]
    calls.clear()
    assert torch.equal(greedy(read, torch.zeros(2, 3, dtype=torch.long), 5), script)
    assert greedy(read, torch.zeros(2, 3, dtype=torch.long), 0).shape == (2, 0)


# ---- the command


def content(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        total.update(str(path).encode() + (path.read_bytes() if path.is_file() else b""))
    return total.hexdigest()


def test_the_command_says_how_far_it_is_what_the_answer_is_and_that_it_forgets(
    type_: Type, recall: Run, stories: Path
) -> None:
    before = content(recall.folder)
    words = ["generate", str(recall.folder), "--prompt", " k7 ?", "--stream", str(stories), "--tokens", "3"]
    child = cotune(*words)
    shown, err = child.communicate()
    assert (child.returncode, err) == (0, "")
    lines = shown.splitlines()
    assert lines[0].startswith("loading builtin:tiny-recall")
    assert lines[1] == "streaming through the memory; attention sees 12 tokens"
    assert lines[2].startswith("read 512 tokens · ")
    assert lines[2].endswith("memory 16,384 bytes · attention's cache 11,264 bytes")
    assert lines[-1] == FORGOTTEN
    assert len(lines[-3].split()) == 3
    again = type_(*words, "--json")
    assert again.status == 0, again.err
    said = json.loads(again.out)
    assert said["answer"] == lines[-3]
    assert (said["tokens"], said["memory"], said["window"], said["state_bytes"]) == (3004, True, 12, 16384)
    assert said["end"] == FORGOTTEN
    assert content(recall.folder) == before


def test_text_is_generated_by_a_model_of_text(type_: Type, prose: Run, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The otter and the hare went to the river. " * 200)
    said = type_("generate", str(prose.folder), "--prompt", " The otter", "--stream", str(text), "--tokens", "8")
    assert said.status == 0, said.err
    assert FORGOTTEN in said.out
    assert "streaming through the memory; attention sees 16 tokens" in said.out


def test_what_cannot_be_is_one_line(type_: Type, recall: Run, plain: Run, stories: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"k1 \xff\xfe v2")
    run, ask = str(recall.folder), ("--prompt", "k1 ?")
    for args, code, status, what in (
        ((str(tmp_path), *ask), "E_CKPT", 4, "no run is here"),
        ((run, *ask, "--stream", str(tmp_path / "none")), "E_DATA", 3, "no such text"),
        ((run, *ask, "--stream", str(tmp_path)), "E_DATA", 3, "cannot read the text"),
        ((run, *ask, "--stream", str(bad)), "E_DATA", 3, "not UTF-8"),
        ((run, "--prompt", ""), "E_CONFIG", 2, "prompt is empty"),
        ((run, *ask, "--tokens", "0"), "E_CONFIG", 2, "a token at least"),
        ((run, *ask, "--client", "client-00"), "E_CONFLICT", 2, "all clients have one model"),
        ((str(plain.folder), *ask, "--stream", str(stories)), "E_CONFLICT", 2, "no memory to stream"),
    ):
        assert what in refused(type_("generate", *args), code, status)


def test_what_a_model_says_cannot_steer_the_terminal(type_: Type, recall: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conversation, "answer", lambda *_: "a\x1b[2Jb\nc")
    said = type_("generate", str(recall.folder), "--prompt", "k1 ?")
    assert "\x1b" not in said.out
    assert "a\N{REPLACEMENT CHARACTER}[2Jb\nc" in said.out
