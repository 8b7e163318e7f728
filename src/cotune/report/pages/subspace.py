"""Subspace: how the clients' low-rank pairs lie to each other by round, by layer and client, and what a sum loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from cotune.core.record import LayerSubspace, RoundRecord, SubspaceRecord
from cotune.report import series
from cotune.report.html import Html, table
from cotune.report.pages.memory import layout, line
from cotune.report.pages.participation import by_client
from cotune.report.plot import Choice, Columns, Json, Option, Page, Plot, css, height, labels, when
from cotune.report.shown import Shown

# Name of a number in the records -> what it is called here, by what is shown together.
ALIGNED: Mapping[str, Mapping[str, str]] = {
    "overlap": {"basis_overlap": "overlap", "basis_overlap_squared": "overlap, squared"},
    "cosine": {"client_global_cosine": "client to mean", "pairwise_cosine": "between clients"},
    "cancellation": {"cancellation": "of products", "cancellation_increments": "of increments"},
}
SIZES: Mapping[str, Mapping[str, str]] = {
    "norms": {
        "norm_b": "‖B‖",
        "norm_a": "‖A‖",
        "norm_products": "clients' products",
        "norm_effective": "change of the weights",
    },
    "lost": {"aggregation_gap": "aggregation gap", "truncation_tail": "energy beyond the rank"},
}
TITLES = {
    "overlap": "Basis overlap",
    "cosine": "Cosine",
    "cancellation": "Cancellation ratio",
    "norms": "Norms",
    "lost": "What is lost",
}
AXES = {"norms": "log"}  # a factor with orthonormal columns is far longer than what a round moves
CELLS = {"overlap": "Basis overlap", "cosine": "Cosine to the mean product"}


def subspace(runs: Sequence[Shown]) -> Page | None:
    """Nothing where no round has low-rank pairs that the server gets."""
    told = [run for run in runs if _last(run)]
    if not told:
        return None
    which, columns = series.which(runs), Columns()
    for run in told:
        columns[f"{run.key}/rounds"] = [record.round for record in run.rounds]
    blocks: list[Html | Plot] = [
        _alignment(told, which, columns),
        _spaces(told, which, columns),
        _sizes(told, which, columns),
        _spectra(told, which, columns),
    ]
    return Page("subspace", "Subspace", blocks, columns, (which,))


def _last(run: Shown) -> tuple[RoundRecord, SubspaceRecord] | None:
    """The last record with layers, and those."""
    found = ((record, record.subspace) for record in reversed(run.rounds) if record.subspace)
    return next(((record, told) for record, told in found if told.layers), None)


def _alignment(runs: Sequence[Shown], which: Choice, columns: Columns) -> Plot:
    return _by_round(
        Plot(
            id="alignment",
            title="How the clients' pairs lie to each other",
            says="Over all layers: overlap of the new B's columns with the clients', 1 for one space; cosines of their "
            "products; and the length of the mean product over the mean length, 1 when all point one way. Dotted lines "
            "are where spaces drawn at random, or changes at right angles, would be. High overlap follows from long, "
            "orthonormal B and short steps alone: read it beside ‖B‖ below.",
            figures={},
            by="run",
            follows=(which,),
        ),
        ALIGNED,
        runs,
        columns,
    )


def _sizes(runs: Sequence[Shown], which: Choice, columns: Columns) -> Plot:
    return _by_round(
        Plot(
            id="sizes",
            title="How long they are, and what a sum of them loses",
            says="Norms over all layers together, ‖A‖ and ‖B‖ of the committed pairs. The gap is how far the mean of "
            "factors is from the mean of products, relative to that; the energy beyond the rank is the share of the "
            "mean product's squared length that the best pair of the rank misses. A method loses the one only where it "
            "averages factors, and the other only where it truncates.",
            figures={},
            by="run",
            follows=(which,),
        ),
        SIZES,
        runs,
        columns,
    )


def _by_round(plot: Plot, groups: Mapping[str, Mapping[str, str]], runs: Sequence[Shown], columns: Columns) -> Plot:
    """The plot with a line for each name of each group, a dotted one for its floor, and a table of them all."""
    figures, tables = {}, []
    for run in runs:
        told = set(series.diagnostics([run]))
        data, heads, names = [], ["Round"], []
        for group, members in groups.items():
            for slot, (name, text) in enumerate(members.items()):
                for full in (name, name + series.FLOOR):
                    if full not in told:
                        continue
                    key = f"{run.key}/subspace/{full}"
                    columns[key] = series.finite(record.diagnostics.get(full) for record in run.rounds)
                    floor = full != name
                    drawn = _floor(run, text, slot, key) if floor else line(run, text, slot, key)
                    data.append({**drawn, "when": {plot.id: group}})
                    heads.append(f"{TITLES[group]}, {text}{', floor' if floor else ''}")
                    names.append(full)
        figures[run.key] = {"data": data, "layout": layout(run, "", "tozero")}
        rows = [[record.round, *(record.diagnostics.get(name) for name in names)] for record in run.rounds]
        tables.append(table(f"{plot.title}, {run.label}", heads, rows, data_when=when(run=run.key)))
    options = [
        Option(group, TITLES[group], {"yaxis.title.text": TITLES[group], "yaxis.type": AXES.get(group, "linear")})
        for group in groups
    ]
    choice = Choice(plot.id, "Show", options)
    return replace(plot, figures=figures, choices=(choice,), tables=tables)


def _floor(run: Shown, text: str, slot: int, key: str) -> Json:
    drawn = line(run, f"{text}, floor", slot, key)
    return {**drawn, "mode": "lines", "line": {**drawn["line"], "width": 1.6, "dash": "dot"}}


def _spaces(runs: Sequence[Shown], which: Choice, columns: Columns) -> Plot:
    """A cell for each layer and client of the last round that tells of them."""
    figures, tables = {}, []
    for run in runs:
        found = _last(run)
        assert found is not None
        record, told = found
        columns[f"{run.key}/layer/names"] = labels(_short([layer.layer for layer in told.layers]))
        columns[f"{run.key}/layer/clients"] = labels(told.clients)
        for name, text in CELLS.items():
            rows = [[layer.layer, *getattr(layer, name)] for layer in told.layers]
            columns[f"{run.key}/cell/{name}"] = [series.finite(row[1:]) for row in rows]
            caption = f"{text} of {run.label} by layer and client, round {record.round}"
            tables.append(table(caption, ("Layer", *told.clients), rows, data_when=when(run=run.key, cell=name)))
        bound = {"x": f"{run.key}/layer/clients", "z": f"{run.key}/cell/{{cell}}"}
        figures[run.key] = _map(run, told, bound, "Client", "%{y}, %{x}<br>%{z:.6g}<extra></extra>")
    options = [Option(name, text) for name, text in CELLS.items()]
    return Plot(
        id="spaces",
        title="Every layer, every client",
        says="At the last round that was committed; blank where a space or a product is 0. Colours span the values "
        "that there are, so small differences look large: the numbers are in the table and on hovering.",
        figures=figures,
        by="run",
        choices=(Choice("cell", "Show", options),),
        follows=(which,),
        tables=tables,
    )


def _spectra(runs: Sequence[Shown], which: Choice, columns: Columns) -> Plot:
    """The energy of each layer's mean product by direction, and what is beyond the rank."""
    figures, tables = {}, []
    for run in runs:
        found = _last(run)
        assert found is not None
        record, told = found
        most = max(len(layer.spectrum) for layer in told.layers)
        names = [str(i + 1) for i in range(most)]
        columns[f"{run.key}/spectrum/direction"] = [*names, "beyond"]
        columns[f"{run.key}/spectrum/share"] = [series.finite(_energy(layer, most)) for layer in told.layers]
        bound = {"x": f"{run.key}/spectrum/direction", "z": f"{run.key}/spectrum/share"}
        figures[run.key] = _map(run, told, bound, "Direction", "%{y}, direction %{x}<br>%{z:.4%}<extra></extra>")
        rows = [
            [layer.layer, *_filled(layer.spectrum, most), layer.tail, layer.gap, layer.cancellation]
            for layer in told.layers
        ]
        heads = ("Layer", *(f"σ {name}" for name in names), "Energy beyond", "Aggregation gap", "Cancellation ratio")
        caption = f"Singular values of the mean product of {run.label}, round {record.round}"
        tables.append(table(caption, heads, rows, data_when=when(run=run.key)))
    return Plot(
        id="spectra",
        title="How many directions the mean product has",
        says="The share of each layer's energy, σ² over ‖Σ p s B A‖², in each of its leading directions, and beyond "
        "the rank; a method that truncates to the rank discards the last column, others keep it or never form it.",
        figures=figures,
        by="run",
        follows=(which,),
        tables=tables,
    )


def _energy(layer: LayerSubspace, most: int) -> list[float | None]:
    """σ_i² / ‖Σ p s B A‖² of each direction, and the tail; None where that is 0."""
    kept = sum(value**2 for value in layer.spectrum)
    if not kept or layer.tail is None:
        return [None] * (most + 1)
    shares = [(1 - layer.tail) * value**2 / kept for value in layer.spectrum]
    return [*_filled(shares, most), layer.tail]


def _filled(values: Sequence[float], most: int) -> list[float | None]:
    return [*values, *[None] * (most - len(values))]


def _short(modules: Sequence[str]) -> list[str]:
    """The modules' names without what all begin with, so that an axis shows what tells them apart."""
    parts = [module.split(".") for module in modules]
    common = takewhile(lambda place: len(set(place)) == 1, zip(*parts, strict=False))
    shared = min(len(list(common)), min(map(len, parts)) - 1)
    return [".".join(part[shared:]) for part in parts]


def _map(run: Shown, told: SubspaceRecord, bound: Mapping[str, str], title: str, hover: str) -> Json:
    """A heatmap with a row for each layer."""
    few = len(told.layers) * len(told.clients) <= 2000
    heat = {
        "type": "heatmap",
        "bind": {"y": f"{run.key}/layer/names", **bound},
        "colorscale": [[0, css("heat-0")], [0.5, css("heat-1")], [1, css("heat-2")]],
        "xgap": 2 if few else 0,
        "ygap": 2 if few else 0,
        "hoverongaps": False,
        "hovertemplate": hover,
        "colorbar": {"thickness": 10, "outlinewidth": 0, "ticks": ""},
    }
    x = {"type": "category", "showgrid": False, "title": {"text": title}}
    return {
        "data": [heat],
        "layout": {"height": height(len(told.layers)), "xaxis": x, "yaxis": by_client(), "hovermode": "closest"},
    }
