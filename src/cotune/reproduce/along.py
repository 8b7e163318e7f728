"""What reading streams came to: bins, changes, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cotune.core.record import Bin
from cotune.diagnose.interval import paired_interval
from cotune.diagnose.metrics import finite
from cotune.diagnose.streaming import doubling_bins, equal_bins, relative
from cotune.reproduce import beside, paper
from cotune.reproduce.page import Page, Titled
from cotune.reproduce.reproduction import Found
from cotune.reproduce.streams import Read, Streams
from cotune.store import Table

FEDNL, PLAIN, WINDOWED = "fednl", "fednl plain keys", "lora window"
START = 63  # tokens in which hardly a key has come twice
EQUAL, DOUBLING = "1,024-token bins", "doubling bins"


def scored(streams: Streams, found: Read) -> Any:
    """The losses of scored tokens (streams, tokens), NaN elsewhere."""
    return found.nll.masked_fill(~streams.scored, float("nan")).numpy()


def change(streams: Streams, found: Read) -> np.ndarray[Any, Any]:
    """Of each stream, the mean of its last 1,024-token bin over that of its first, less 1."""
    nll = scored(streams, found)
    bins = [equal_bins(row) for row in nll]
    return np.array([(one[-1].mean or np.nan) / (one[0].mean or np.nan) - 1 for one in bins])


def learned(streams: Streams, found: Read) -> np.ndarray[Any, Any]:
    """Of each stream, the mean loss of its last doubling bin less that of its first 63 tokens, in nats.

    In the first 63 tokens hardly a key has come twice; a stream of which none of them is scored is left out.
    """
    nll = scored(streams, found)
    late = [doubling_bins(row)[-1].mean for row in nll]
    early = [row[:START][~np.isnan(row[:START])] for row in nll]
    kept = [
        (after, before.mean()) for after, before in zip(late, early, strict=True) if after is not None and before.size
    ]
    return np.array([after - before for after, before in kept])


def page(name: str, read_on: Mapping[str, Any], hashes: Mapping[str, str], folder: Path) -> Found:
    """Bins, changes and bytes."""
    blocks: list[str | Titled] = [
        "Each model reads a stream token by token at constant memory: fednl through its private state and a window, "
        "lora through the same window. Rows of recall that clients train on are of 16 events, some 240 tokens, of keys "
        "of their own. On recall the loss is that of told values, as all else is random; keys of "
        "'repeated' never change their value and are told and written again and again, those of 'overwritten' do. On "
        "prose every token counts. Intervals are over streams.",
        _changes(read_on),
        *_verdicts(read_on),
    ]
    results: dict[str, Any] = {"name": name, "scale": "laptop", "hashes": dict(hashes), "streams": {}}
    for kind, (streams, found, about) in read_on.items():
        tables = {label: _bins(streams, one) for label, one in found.items()}
        blocks += [_table(kind, streams, {label: one["doubling"] for label, one in tables.items()}, DOUBLING)]
        blocks += [_table(kind, streams, {label: one["equal"] for label, one in tables.items()}, EQUAL)]
        results["streams"][kind] = {
            "source": streams.source,
            "streams": streams.ids.shape[0],
            "tokens": streams.ids.shape[1],
            "scored": int(streams.scored.sum()),
            "series": {
                label: {
                    **{which: [bin_.model_dump() for bin_ in bins] for which, bins in one.items()},
                    "change": _plain(change(streams, found[label])),
                    "learned": _plain(learned(streams, found[label])),
                    "kept_bytes": [list(kept) for kept in found[label].kept_bytes],
                }
                for label, one in tables.items()
            },
            "layers": {name: [layer.model_dump() for layer in found[name].layers] for name in (FEDNL, PLAIN)},
            **about,
        }
    blocks += [_bytes(read_on), beside.stream(paper.expected("fednl"))]
    blocks.append("Experiments: " + ", ".join(f"{label} {hash_}" for label, hash_ in hashes.items()) + ".")
    return Found(Page("FedNL: the loss along a stream, synthetic", blocks), results, folder)


def _bins(streams: Streams, found: Read) -> dict[str, list[Bin]]:
    nll = scored(streams, found)
    return {"equal": equal_bins(nll), "doubling": doubling_bins(nll)}


def _plain(values: np.ndarray[Any, Any]) -> dict[str, float | None]:
    return {name: finite(value) for name, value in zip(("mean", "low", "high"), _interval(values), strict=True)}


def _interval(values: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    return paired_interval(values.tolist(), [0.0] * len(values))


def _changes(read_on: Mapping[str, Any]) -> Titled:
    rows = []
    for kind, (streams, found, _) in read_on.items():
        for label, one in found.items():
            early, ends = learned(streams, one), change(streams, one)
            apart = None if label == WINDOWED else _interval(ends - change(streams, found[WINDOWED]))
            nats = "{:+.2f} [{:+.2f}, {:+.2f}]".format(*_interval(early))
            rows.append([kind, label, nats, _percent(_interval(ends)), apart and _percent(apart), len(ends)])
    caption = (
        "Change of the loss, mean over streams with its 95 % interval: from the first 63 tokens to the last doubling "
        "bin, in nats; and from the first 1,024-token bin to the last, in %"
    )
    heads = ("stream", "row", "early on, nats", "first bin to last, %", f"less {WINDOWED}, points", "streams")
    return Titled(caption, Table(heads, rows))


def _verdicts(read_on: Mapping[str, Any]) -> list[str]:
    """Whether the loss falls along each stream, for each row: early on, and over all of it."""
    said = []
    for kind, (streams, found, _) in read_on.items():
        for when, measure in (("early on", learned), ("over all of it", change)):
            words = ", ".join(f"{label} {_moves(measure(streams, one))}" for label, one in found.items())
            said.append(f"The loss along '{kind}' {when}: {words}.")
    return said


def _moves(values: np.ndarray[Any, Any]) -> str:
    _, low, high = _interval(values)
    return "falls" if high < 0 else "rises" if low > 0 else "has no change that is seen"


def _percent(interval: Sequence[float]) -> str:
    mean, low, high = (100 * value for value in interval)
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def _table(kind: str, streams: Streams, series: Mapping[str, Sequence[Bin]], which: str) -> Titled:
    shares = {label: relative(bins) for label, bins in series.items()} if which == EQUAL else {}
    rows = []
    for i, one in enumerate(series[FEDNL]):
        row: list[object] = [f"{one.first:,} to {one.last:,}", f"{one.n:,}"]
        for label, bins in series.items():
            row.append(_loss(bins[i]))
            if shares:
                share = shares[label][i]
                row.append("–" if share is None else f"{100 * share:+.1f}")
        rows.append(row)
    heads = [text for label in series for text in (f"{label}, nats", *(["over the first, %"] if shares else []))]
    caption = f"{kind}: {which}, {streams.source}, {len(streams.ids)} streams"
    return Titled(caption, Table(("tokens", "scored", *heads), rows))


def _loss(one: Bin) -> str:
    if one.mean is None:
        return "–"
    return (
        f"{one.mean:.3f}" if one.low is None or one.high is None else f"{one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]"
    )


def _bytes(read_on: Mapping[str, Any]) -> Titled:
    _, _, about = read_on["repeated"]
    rows = [
        [f"{one['tokens']:,}", f"{one['state']:,}", f"{one['window']:,}", f"{one['full']:,}"] for one in about["bytes"]
    ]
    columns = ("tokens read", "state, bytes", "window, bytes", "full attention would keep")
    return Titled(
        "Bytes kept for one stream on builtin:tiny-recall, float32, measured; full attention from its shapes",
        Table(columns, rows),
    )
