"""What a probe of a trained memory found: loss along a stream, gates and states by layer, and bytes by context."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from cotune.core.record import Bin, Stream, StreamSeries
from cotune.report import series
from cotune.report.html import Html, several, table
from cotune.report.plot import Choice, Columns, Json, Option, Plot, css, label, when
from cotune.report.shown import COLOURS, Shown

_DASHES = ("solid", "dash", "dot", "dashdot")
_BYTES = {"kept": "window + memory", "full": "full attention"}


def probe(runs: Sequence[Shown], which: Choice, columns: Columns) -> list[Plot]:
    """The plots of memory.json, each where some run has what it needs."""
    return [
        *_along(runs, which, columns),
        *_beginning(runs, which, columns),
        *_layers(runs, which, columns),
        *_bytes(runs, which, columns),
    ]


def _stream(run: Shown) -> Stream:
    return (run.memory and run.memory.stream) or Stream()


def _source(run: Shown) -> str:
    """` on 4 streams of 16,384 tokens of pkg:book`, as far as that is known."""
    stream = _stream(run)
    tokens = None if stream.tokens is None else several(stream.tokens, "token", "tokens")
    streams = None if stream.streams is None else several(stream.streams, "stream", "streams")
    said = " of ".join(part for part in (streams, tokens, stream.source) if part)
    return f" on {said}" if said else ""


def _relative(bins: Sequence[Bin], values: Iterable[float | None]) -> list[float | None]:
    """By bin, value / mean of the first bin − 1."""
    first = bins[0].mean if bins else None
    return series.finite(value / first - 1 if value is not None and first else None for value in values)


def _along(runs: Sequence[Shown], which: Choice, columns: Columns) -> list[Plot]:
    """Loss by bins of one width relative to the first one, and the memory it took, where that was measured."""
    told = [run for run in runs if any(one.equal for one in _stream(run).series)]
    if not told:
        return []
    figures, tables = {}, []
    for run in told:
        traces = []
        for i, one in enumerate(_stream(run).series):
            key = f"{run.key}/along/{i}"
            columns[f"{key}/tokens"] = [bin_.last + 1 for bin_ in one.equal]
            columns[f"{key}/relative"] = _relative(one.equal, (bin_.mean for bin_ in one.equal))
            columns[f"{key}/relative/low"] = _relative(one.equal, (bin_.low for bin_ in one.equal))
            columns[f"{key}/relative/high"] = _relative(one.equal, (bin_.high for bin_ in one.equal))
            columns[f"{key}/peak"] = list(one.peak_bytes or ())
            columns[f"{key}/note"] = [f"n = {bin_.n:,}" for bin_ in one.equal]
            ends = [f"{key}/{{along}}/low", f"{key}/{{along}}/high"]
            drawn = _line(one.name, i, f"{key}/tokens", f"{key}/{{along}}")
            drawn["bind"]["text"] = f"{key}/note"
            traces.append({**drawn, "interval": ends, "hovertemplate": "to token %{x:,}: %{y:.4~g}  %{text}"})
        x = {"title": {"text": "Tokens read"}, "tickformat": ",d", "rangemode": "tozero"}
        figures[run.key] = {"data": traces, "layout": _layout(x, "")}
        tables.append(_along_table(run))
    loss = {
        "yaxis.title.text": "Loss / that of the first bin − 1",
        "yaxis.tickformat": "+.1%",
        "yaxis.rangemode": "normal",
    }
    options = [Option("relative", "Loss", loss)]
    if any(one.peak_bytes for run in told for one in _stream(run).series):
        peak = {"yaxis.title.text": "Peak memory in bytes", "yaxis.tickformat": "~s", "yaxis.rangemode": "tozero"}
        options.append(Option("peak", "Memory", peak))
    return [
        Plot(
            id="along",
            title="Loss along a stream",
            says="Loss per token by bins of one width, relative to the first bin; below 0 the model gains from what it "
            "has read. Whiskers are 95 % intervals of each bin's mean, over tokens of one stream or over streams, "
            "without the first bin's own; the text itself gets harder and easier too, so models compare on one stream.",
            figures=figures,
            by="run",
            choices=(Choice("along", "Show", options),),
            follows=(which,),
            tables=tables,
        )
    ]


def _along_table(run: Shown) -> Html:
    rows: list[list[object]] = []
    for one in _stream(run).series:
        relative = _relative(one.equal, (bin_.mean for bin_ in one.equal))
        for bin_, change, peak in zip_longest(one.equal, relative, (one.peak_bytes or ())[: len(one.equal)]):
            rows.append([one.name, *_bin(bin_), change, peak])
    heads = ("Model", *_HEADS, "Relative to the first", "Peak bytes")
    return table(
        f"Loss per token along the stream, {run.label}{_source(run)}", heads, rows, data_when=when(run=run.key)
    )


_HEADS = ("First token", "Last token", "Loss", "Low", "High", "n")


def _bin(one: Bin) -> list[object]:
    return [one.first, one.last, one.mean, one.low, one.high, one.n]


def _beginning(runs: Sequence[Shown], which: Choice, columns: Columns) -> list[Plot]:
    """Loss of the first tokens by bins that double."""
    told = [run for run in runs if any(one.doubling for one in _stream(run).series)]
    if not told:
        return []
    figures, tables = {}, []
    for run in told:
        traces: list[Json] = []
        rows: list[list[object]] = []
        for i, one in enumerate(_stream(run).series):
            traces.append(_beginning_trace(f"{run.key}/beginning/{i}", i, one, columns))
            rows += [[one.name, *_bin(bin_)] for bin_ in one.doubling]
        x = {"title": {"text": "Tokens read"}, "type": "log", "tickformat": "~s", "dtick": "D2"}
        figures[run.key] = {"data": traces, "layout": _layout(x, "Loss per token, nats")}
        caption = f"Loss of the first tokens, {run.label}{_source(run)}"
        tables.append(table(caption, ("Model", *_HEADS), rows, data_when=when(run=run.key)))
    return [
        Plot(
            id="beginning",
            title="The first tokens",
            says="Loss per token by bins that double from the start of the stream, with 95 % intervals, over tokens of "
            "one stream or over streams; it shows how soon the context helps. A first bin of one token has no "
            "interval of its own, and with few streams it is one text's first words.",
            figures=figures,
            by="run",
            follows=(which,),
            tables=tables,
        )
    ]


def _beginning_trace(key: str, slot: int, one: StreamSeries, columns: Columns) -> Json:
    columns[f"{key}/tokens"] = [bin_.last + 1 for bin_ in one.doubling]
    for end in ("mean", "low", "high"):
        columns[f"{key}/{end}"] = series.finite(getattr(bin_, end) for bin_ in one.doubling)
    columns[f"{key}/note"] = [f"n = {bin_.n:,}" for bin_ in one.doubling]
    drawn = _line(one.name, slot, f"{key}/tokens", f"{key}/mean")
    drawn["bind"]["text"] = f"{key}/note"
    ends = [f"{key}/low", f"{key}/high"]
    return {**drawn, "interval": ends, "hovertemplate": "to token %{x:,}: %{y:.4g}  %{text}"}


def _layers(runs: Sequence[Shown], which: Choice, columns: Columns) -> list[Plot]:
    """Gate and norm of the state by layer: every head, and their mean."""
    told = [run for run in runs if run.memory and run.memory.layers]
    if not told:
        return []
    figures, tables = {}, []
    for run in told:
        assert run.memory is not None
        rows: list[list[object]] = []
        heads: dict[str, list[tuple[int, float]]] = {"gate": [], "state": []}
        for layer in run.memory.layers:
            heads["gate"] += [(layer.layer, value) for value in layer.gate]
            heads["state"] += [(layer.layer, value) for value in layer.state_norm]
            for head, (gate, norm) in enumerate(zip_longest(layer.gate, layer.state_norm)):
                rows.append([layer.layer, head, gate, norm, layer.clipped])
        for name, points in heads.items():
            layers = sorted({layer for layer, _ in points})
            own = [[value for other, value in points if other == layer] for layer in layers]
            columns[f"{run.key}/layer/{name}/x"] = [layer for layer, _ in points]
            columns[f"{run.key}/layer/{name}/y"] = series.finite(value for _, value in points)
            columns[f"{run.key}/layer/{name}/mean/x"] = layers
            columns[f"{run.key}/layer/{name}/mean/y"] = series.finite(sum(of) / len(of) for of in own)
        figures[run.key] = _layers_figure(run)
        names = ("Layer", "Head", "Gate, by query head", "State norm, by key-value head", "Clipped in the layer")
        caption = f"Gates and states of {run.label}{_source(run)}"
        tables.append(table(caption, names, rows, data_when=when(run=run.key)))
    options = [
        Option("gate", "Gate", {"yaxis.title.text": "Gate"}),
        Option("state", "State norm", {"yaxis.title.text": "Norm of the state"}),
    ]
    return [
        Plot(
            id="layers",
            title="Gates and states by layer",
            says="A point is a head and the line is their mean: how far each gate is open, and how large the state is "
            "at the end of the stream. A large state is not a useful one; accuracy and loss above say that.",
            figures=figures,
            by="run",
            choices=(Choice("layer_value", "Show", options),),
            follows=(which,),
            tables=tables,
        )
    ]


def _layers_figure(run: Shown) -> Json:
    key = f"{run.key}/layer/{{layer_value}}"
    points = {
        "type": "scatter",
        "mode": "markers",
        "name": "head",
        "marker": {"size": 7, "color": css(run.colour, 0.5)},
        "hovertemplate": "layer %{x}: %{y:.4g}",
        "points": True,
        "bind": {"x": f"{key}/x", "y": f"{key}/y"},
    }
    mean = {**_line("mean of the heads", 0, f"{key}/mean/x", f"{key}/mean/y"), "hovertemplate": "layer %{x}: %{y:.4g}"}
    mean["line"] = {"color": css("ink"), "width": 1.6}
    x = {"title": {"text": "Layer"}, "tickformat": "d"}
    return {"data": [points, mean], "layout": _layout(x, "")}


def _bytes(runs: Sequence[Shown], which: Choice, columns: Columns) -> list[Plot]:
    """What a context costs in memory, on two logarithmic axes."""
    told = [run for run in runs if run.memory and run.memory.bytes]
    if not told:
        return []
    figures, tables = {}, []
    for run in told:
        assert run.memory is not None
        points = sorted(run.memory.bytes, key=lambda one: one.tokens)
        kept = [
            None if one.state is None and one.window is None else (one.state or 0) + (one.window or 0) for one in points
        ]
        columns[f"{run.key}/context/tokens"] = [one.tokens or None for one in points]  # 0 has no place on a log axis
        columns[f"{run.key}/context/kept"] = [count or None for count in kept]
        columns[f"{run.key}/context/full"] = [one.full or None for one in points]
        traces = [
            {
                **_line(text, i, f"{run.key}/context/tokens", f"{run.key}/context/{name}"),
                "hovertemplate": "%{x:,} tokens: %{y:,} bytes",
            }
            for i, (name, text) in enumerate(_BYTES.items())
        ]
        x = {"title": {"text": "Context in tokens"}, "type": "log", "tickformat": "~s", "dtick": "D2"}
        layout = _layout(x, "Bytes kept")
        layout["yaxis"] |= {"type": "log", "tickformat": "~s", "dtick": "D2"}
        figures[run.key] = {"data": traces, "layout": layout}
        heads = ("Tokens", "Memory state", "Window", "Together", "Full attention", "Full / together")
        rows = [
            [one.tokens, one.state, one.window, count, one.full, one.full / count if count and one.full else None]
            for one, count in zip(points, kept, strict=True)
        ]
        tables.append(table(f"Bytes kept for a context, {run.label}", heads, rows, data_when=when(run=run.key)))
    return [
        Plot(
            id="context",
            title="Bytes kept for a context",
            says="What one sequence leaves in memory after so many tokens: the memory's state and the window beside "
            "it, and the cache that full attention keeps; weights and what a step needs for a moment are not in it.",
            figures=figures,
            by="run",
            follows=(which,),
            tables=tables,
        )
    ]


def _line(name: str, slot: int, x: str, y: str) -> Json:
    colour = {"color": css(f"run-{slot % COLOURS}"), "width": 2, "dash": _DASHES[slot // COLOURS % len(_DASHES)]}
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": label(name),
        "line": colour,
        "marker": {"size": 7},
        "points": True,
        "bind": {"x": x, "y": y},
    }


def _layout(x: Json, y: str) -> Json:
    return {
        "height": 400,
        "xaxis": x,
        "yaxis": {"title": {"text": y}},
        "hovermode": "closest",
        "showlegend": True,
    }
