"""The loss along a stream: whether a model gets better as it reads, at constant memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from cotune import experiment as experiments
from cotune.backbone import Backbone
from cotune.comparison.ahead import ahead
from cotune.core.events import Say
from cotune.core.record import MemoryRecord, Stream, StreamSeries
from cotune.core.seeds import Seeds
from cotune.diagnose.streaming import doubling_bins, equal_bins, relative
from cotune.engine import InlineEngine
from cotune.experiment import Experiment
from cotune.federation import Evaluation, Federation
from cotune.reproduce import beside, needle, paper
from cotune.reproduce.along import FEDNL, PLAIN, WINDOWED, page, scored
from cotune.reproduce.page import Page, Titled
from cotune.reproduce.repeated import Repeated, repeated
from cotune.reproduce.reproduction import Found, Laptop, Reproduction
from cotune.reproduce.streams import Read, Streams, context_bytes, read, reopened
from cotune.store import Run, Table, write_json
from cotune.task import Text
from cotune.task.prose import Prose
from cotune.task.story import recall_stream
from cotune.task.tokens import bare
from cotune.task.worded import Worded

KEYS = range(48, 56)  # of the pool that no client has
PROSE = "synth:prose?clients=4&rows=600&sentences=24"
FRESH = 10**6  # rows of prose from here on are in nobody's training


class FedNLStream(Reproduction):
    """FedNL's streaming loss: does a model get better as it reads, at constant memory, and do factors alone?"""

    name: ClassVar[str] = "fednl-stream"
    source: ClassVar[str] = "fednl"
    files: ClassVar[tuple[str, ...]] = ("needle.toml",)
    size: ClassVar[needle.Size] = needle.Size(rounds=15, lr=4e-3)
    events: ClassVar[int] = 16
    prose_rounds: ClassVar[int] = 5
    tokens: ClassVar[int] = 8192
    streams: ClassVar[int] = 12
    lengths: ClassVar[tuple[int, ...]] = (1024, 2048, 4096, 8192, 16384)

    def laptop(self, setting: Laptop) -> Found:
        """Every row on recall and on prose, each read on streams that nobody trained on."""
        recall, prose = self._trained(setting)
        read_on = {
            "repeated": self._read(recall, lambda words: self._stories(_repeated, words), setting),
            "overwritten": self._read(recall, lambda words: self._stories(recall_stream, words), setting),
            "prose": self._read(prose, self._paragraphs, setting),
        }
        folder = recall[FEDNL].folder
        for kind, runs in (("repeated", recall), ("prose", prose)):
            for label in (FEDNL, PLAIN):
                _remember(label, runs[label], read_on[kind], setting.say)
        return page(self.name, read_on, {**_hashes("recall", recall), **_hashes("prose", prose)}, folder).written(
            f"{self.name}-laptop"
        )

    def beside(self, runs: Mapping[str, Run]) -> Page:
        """The paper's figure beside the stream through the published model's memory."""
        run = runs[self.files[0]]
        with reopened(run) as setup:
            experiment = Experiment.model_validate(run.about["experiment"])
            corpus = experiment.task.load(experiment.seeds)
            found = experiment.task.encode(corpus.test, setup.backbone.tokenizer, setup.backbone.limit)
            longest = max(len(example["input_ids"]) for example in found.examples)
            ids = [e["input_ids"] for e in found.examples if len(e["input_ids"]) == longest]
            # One prompt at a time: logits of a large vocabulary are what takes memory.
            nll = torch.cat([read(setup.backbone.model, torch.tensor([row])).nll for row in ids])
        bins = equal_bins(nll.numpy())
        rows = [[f"{one.first:,}", share] for one, share in zip(bins, relative(bins), strict=True)]
        ours = Titled(
            f"Ours, {len(ids)} prompts of {longest:,} tokens", Table(("from token", "over the first bin"), rows)
        )
        return Page(
            "FedNL along a stream: the paper's numbers and ours", [beside.stream(paper.expected("fednl")), ours]
        )

    def _trained(self, setting: Laptop) -> tuple[dict[str, Run], dict[str, Run]]:
        """The runs on recall and on prose."""
        methods = {
            FEDNL: needle.recipe("fednl", self.size),
            PLAIN: needle.recipe("fednl", self.size, **{"trainable.rules": {"centre": False}}),
            WINDOWED: needle.recipe("lora-fedavg", self.size),
        }
        rows = {"rows": self.size.rows, "held": self.size.held, "test_rows": self.size.test_rows}
        task = Repeated(pairs=len(KEYS), questions=1, events=self.events, gap=4, test_gaps=(4,), **rows)
        base = needle.ground(self.size).model_copy(update={"task": task})
        prose = base.model_copy(
            update={
                "task": Text(data=PROSE, max_tokens=256),
                "backbone": Backbone(ref="builtin:tiny-llama", window=32),
                "federation": Federation(rounds=self.prose_rounds),
                "evaluation": Evaluation(every=self.prose_rounds, rows=64, which="global"),
                "seeds": Seeds(seed=0),
            }
        )
        planned = {
            (what, label): ground.model_copy(
                update={"name": f"fednl-stream-{what}-{re.sub(r'[^a-z]+', '-', label)}", "method": method}
            )
            for what, ground in (("recall", base), ("prose", prose))
            for label, method in methods.items()
        }
        if setting.jobs > 1:
            for one in ahead([*planned.values()], setting.out, setting.jobs, False, InlineEngine):
                setting.say(f"trained {one.name}")
        found: dict[str, dict[str, Run]] = {"recall": {}, "prose": {}}
        for (what, label), one in planned.items():
            setting.say(f"{label} on {what}, {one.hash}")
            found[what][label] = experiments.run(one, setting.out, resume=True)
        return found["recall"], found["prose"]

    def _stories(self, make: Callable[[int, int], tuple[list[str], list[int]]], tokenizer: Any) -> Streams:
        """Synthetic recall, of which told values are scored: all else is random."""
        words = Worded(tokenizer)
        examples = [words.example(*make(seed, self.tokens)) for seed in range(self.streams)]
        ids = torch.tensor([example["input_ids"][: self.tokens] for example in examples])
        scored = torch.zeros_like(ids, dtype=torch.bool)
        for row, example in enumerate(examples):
            scored[row, [place for place in example["supervised"] if place < self.tokens]] = True
        return Streams(ids, scored, f"synthetic recall, {make.__name__.replace('_', ' ').strip()}")

    def _paragraphs(self, tokenizer: Any) -> Streams:
        """Synthetic prose, each stream of one domain; every token is scored."""
        rows, prose = [], Prose(clients=4, sentences=24)
        for stream in range(self.streams):
            ids, index = list[int](), FRESH * (stream + 1) + stream % prose.clients
            while len(ids) < self.tokens:
                ids += bare(f" {prose.row(index)['text']}", tokenizer)
                index += prose.clients  # the next row of the same domain
            rows.append(ids[: self.tokens])
        ids_ = torch.tensor(rows)
        return Streams(ids_, torch.ones_like(ids_, dtype=torch.bool), "synthetic prose")

    def _read(
        self, runs: Mapping[str, Run], make: Callable[[Any], Streams], setting: Laptop
    ) -> tuple[Streams, dict[str, Read], dict[str, Any]]:
        """The streams, and what each row made of them; of the memory, bytes by context too."""
        found: dict[str, Read] = {}
        for label, run in runs.items():
            with reopened(run) as setup:
                streams = make(setup.backbone.tokenizer)
                setting.say(
                    f"{label} reads {len(streams.ids)} streams of {streams.ids.shape[1]:,} tokens, {streams.source}"
                )
                found[label] = read(setup.backbone.model, streams.ids)
                if label == FEDNL:
                    bytes_ = [one.model_dump() for one in context_bytes(setup.backbone.model, self.lengths)]
        return streams, found, {"bytes": bytes_}


def _repeated(seed: int, words: int) -> tuple[list[str], list[int]]:
    return repeated(seed, words, KEYS)


def _remember(label: str, run: Run, read_on: tuple[Streams, Mapping[str, Read], Mapping[str, Any]], say: Say) -> None:
    """memory.json in the run's folder, which the report's Memory page shows."""
    (streams, found, about), series = read_on, []
    for name, one in found.items():
        nll = scored(streams, one)
        equal, doubling = tuple(equal_bins(nll)), tuple(doubling_bins(nll))
        series.append(StreamSeries(name=name, equal=equal, doubling=doubling, peak_bytes=tuple(one.peak_bytes)))
    count, tokens = streams.ids.shape
    stream = Stream(source=streams.source, tokens=tokens, streams=count, series=tuple(series))
    layers = tuple(found[label].layers)
    record = MemoryRecord.model_validate({"stream": stream, "layers": layers, "bytes": about["bytes"]})
    write_json(run.folder / "memory.json", json.loads(record.model_dump_json()))
    say(f"memory.json in {run.folder.name}")


def _hashes(what: str, runs: Mapping[str, Run]) -> dict[str, str]:
    return {f"{what}, {label}": run.about["hash"] for label, run in runs.items()}
