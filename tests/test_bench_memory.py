"""The benchmark of inference memory: what its figures are of, and that a limit on memory is met or ends a text."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from cotune.bench import InferenceMemory
from cotune.bench.benchmark import measured
from cotune.bench.memory import _job
from cotune.core.errors import CotuneError
from cotune.trainable.memory import MemorySession

QUICK = InferenceMemory.quick()
BEATEN = InferenceMemory(layers=4, hidden=256, heads=4, kv_heads=4, window=32, short=64, long=4096, segment=64)


def test_quick_judges_nothing_and_its_bytes_are_those_of_the_formulas() -> None:
    result = measured("memory", quick=True)
    figures: dict[str, Any] = {figure["name"]: figure for figure in result["figures"]}
    assert {name: figure["goal"] for name, figure in figures.items()} == {
        "carried at 512 tokens · against at 64 tokens": 1.0,
        "growth of what is carried, 64 tokens to 512 tokens · against full attention": None,
        "carried at 512 tokens · against full attention": None,
        "a token at 512 tokens · against at 64 tokens": 1 / 1.1,
        "growth of a token's time, 64 tokens to 512 tokens · against full attention": None,
    }
    assert [figure["met"] for figure in figures.values()] == [None] * 5
    same, growth, late, *_ = figures.values()
    layers, heads, width, number = 2, 2, 16, 4
    state, cache = layers * heads * width**2 * number, layers * heads * 2 * (32 - 1) * width * number
    assert same["ours"] == same["rival"] == late["ours"] == (state + cache) / 2**20
    assert late["rival"] == layers * heads * 2 * 512 * width * number / 2**20
    assert (growth["ours"], growth["rival"], growth["ratio"]) == (1.0, 8.0, 8.0)
    assert all(figure["ours"] > 0 and figure["rival"] > 0 for figure in figures.values())


def test_the_settings_are_those_of_the_design() -> None:
    whole = InferenceMemory()
    assert (whole.short, whole.long, whole.window, whole.repeats, whole.apart) == (1024, 16384, 256, 64, True)


def test_our_reader_computes_with_its_memory_and_the_rival_has_none_and_the_same_weights() -> None:
    ours, rival = QUICK._reader("ours"), QUICK._reader("full")
    ids = QUICK._ids(96)
    assert isinstance(ours, MemorySession)
    ours.read(ids, 32)
    logits = rival.read(ids, 32)
    assert rival.state_bytes == 0
    assert all(min(norms) > 0 for norms in ours.norms.values())
    fresh, one = QUICK._reader("ours"), ids[:, -32:]
    assert not torch.allclose(ours.read(one), fresh.read(one), atol=1e-3), "what lies outside the window counts"
    theirs = dict(rival._model.named_parameters())  # type: ignore[attr-defined]
    own = dict(ours._model.named_parameters())
    assert set(theirs) == {name for name in own if ".memory." not in name}
    assert all(torch.equal(own[name], theirs[name]) for name in theirs)
    whole = rival._model(input_ids=ids).logits[:, -1]  # type: ignore[attr-defined]
    torch.testing.assert_close(logits, whole, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on data is kept on Linux alone")
def test_in_half_the_room_of_its_cache_full_attention_ends_early_and_memory_with_a_window_does_not() -> None:
    cache = 4 * 2 * 256 * 4096 * 4
    every, more = BEATEN._under_a_cap(cache)
    assert (every.ours, every.rival, every.met) == (4096, 4096, True)
    assert more.ours == 4096
    assert 64 <= more.rival < 4096, "the first segment is read before the limit is set"
    assert more.ratio == 4096 / more.rival
    assert f"{cache // 2:,} bytes" in every.name


def test_the_job_whose_peak_is_measured_reads_the_whole_text_and_nothing_before_it() -> None:
    job: Any = _job(QUICK.model_dump(), "full")
    reader = job.func.__self__
    assert reader.cache_bytes == 0
    job()
    assert reader.cache_bytes == 2 * 2 * 2 * 16 * 512 * 4


def test_settings_that_make_no_model_are_refused() -> None:
    with pytest.raises(CotuneError, match="E_CONFIG"):
        QUICK.model_copy(update={"heads": 5})._reader("ours")
