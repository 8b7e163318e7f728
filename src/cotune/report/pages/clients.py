"""Clients: how each one fares, what it loses by aggregation, who takes part, and who holds what."""

from __future__ import annotations

from collections.abc import Sequence

from cotune.core.record import ClientMetric, RoundRecord
from cotune.core.stays import stays
from cotune.report import series
from cotune.report.html import Html, table, tag, titled
from cotune.report.pages.holdings import holdings
from cotune.report.pages.participation import by_client, participation
from cotune.report.pages.tail import beside_the_mean, head_and_tail
from cotune.report.plot import Choice, Columns, Json, Option, Page, Plot, chosen, css, height, labels, when
from cotune.report.shown import Shown

WRITTEN = 40  # clients; above this many bars the drop is not written beside each


def clients(runs: Sequence[Shown]) -> Page | None:
    """A run at a time: the map of scores, local beside federated, the worst clients, participation, and rows."""
    seen = [run for run in runs if run.clients]
    if not seen:
        return None
    which = series.which(runs)
    names = series.client_metrics(seen)
    columns: Columns = {f"{run.key}/clients": labels(run.clients) for run in seen}
    blocks: list[Html | Plot] = []
    if names:
        metric = Choice("client_metric", "Metric", [Option(name, titled(name)) for name in names])
        blocks += [
            _map(seen, names, which, metric, columns),
            _bars(seen, names, which, metric, columns),
            *_staying(seen),
            beside_the_mean(runs, names),
        ]
    else:
        blocks.append(tag("p", "No client has been scored on rows of its own.", class_="empty"))
    blocks += [*head_and_tail(runs), participation(seen, which, columns), *holdings(seen, which, columns)]
    return Page("clients", "Clients", blocks, columns, (which,))


def _map(runs: Sequence[Shown], names: Sequence[str], which: Choice, metric: Choice, columns: Columns) -> Plot:
    """The aggregated model by client and round."""
    tables = []
    for run in runs:
        columns[f"{run.key}/rounds"] = [record.round for record in run.rounds]
        for name in names:
            rows = [[_federated(record, client, name) for record in run.rounds] for client in run.clients]
            columns[f"{run.key}/map/{name}"] = [series.finite(row) for row in rows]
            heads = ("Client", *(f"Round {record.round}" for record in run.rounds))
            tables.append(
                table(
                    f"{titled(name)} of the model that {run.label} gives each client",
                    heads,
                    [[client, *row] for client, row in zip(run.clients, rows, strict=True)],
                    data_when=when(run=run.key, client_metric=name),
                )
            )
    return Plot(
        id="map",
        title="Every client, every round",
        says="The model after aggregation, as each client would use it, on that client's held-back rows; blank where "
        "it was not scored.",
        figures={run.key: {"data": [_heat(run)], "layout": _map_layout(run)} for run in runs},
        by="run",
        choices=(metric,),
        follows=(which,),
        tables=tables,
    )


def _heat(run: Shown) -> Json:
    few = len(run.clients) * len(run.rounds) <= 2000
    return {
        "type": "heatmap",
        "bind": {"x": f"{run.key}/rounds", "y": f"{run.key}/clients", "z": f"{run.key}/map/{{client_metric}}"},
        "colorscale": [[0, css("heat-0")], [0.5, css("heat-1")], [1, css("heat-2")]],
        "xgap": 2 if few else 0,
        "ygap": 2 if few else 0,
        "hoverongaps": False,
        "hovertemplate": "%{y}, round %{x}<br>%{z:.4g}<extra></extra>",
        "colorbar": {
            "orientation": "h",
            "thickness": 10,
            "len": 0.5,
            "lenmode": "fraction",
            "x": 0,
            "xanchor": "left",
            "y": 1.01,
            "yanchor": "bottom",
            "outlinewidth": 0,
            "ticks": "",
        },
    }


def _map_layout(run: Shown) -> Json:
    x = {**series.rounds_axis([run]), "showgrid": False}
    return {"height": height(len(run.clients)), "xaxis": x, "yaxis": by_client(), "hovermode": "closest"}


def _federated(record: RoundRecord, client: str, name: str) -> float | None:
    metric = series.scored(record, name).get(client)
    return metric.federated if metric else None


def _bars(runs: Sequence[Shown], names: Sequence[str], which: Choice, metric: Choice, columns: Columns) -> Plot:
    """Each client's own model beside the aggregated one."""
    figures, tables = {}, []
    for run in runs:
        for name in names:
            latest = _latest(run, name)
            rows: list[list[object]] = []
            shown = labels(list(latest))
            key = f"{run.key}/bars/{name}"
            columns[f"{key}/client"] = shown
            columns[f"{key}/local"] = series.finite(one.local for _, one in latest.values())
            columns[f"{key}/federated"] = series.finite(one.federated for _, one in latest.values())
            columns[f"{key}/drop"] = series.finite(one.drop for _, one in latest.values())
            columns[f"{key}/note"] = [_drop_note(name, one) for _, one in latest.values()]
            for client, (record, one) in latest.items():
                rows.append([client, record.round, one.local, one.federated, one.drop, one.n])
            tables.append(
                table(
                    f"{titled(name)} of {run.label}, each client where it was last scored",
                    ("Client", "Round", "Own model", "Aggregated", _drop_head(name), "n"),
                    rows,
                    data_when=when(run=run.key, client_metric=name),
                )
            )
        figures[run.key] = _bars_figure(run)
    return Plot(
        id="drop",
        title="What aggregation costs a client",
        says="Each client's own model just before aggregation, and the aggregated one, on the same held-back rows, "
        "where the client was last scored. The number is the drop: own minus aggregated, in points for shares of rows.",
        figures=figures,
        by="run",
        follows=(which, metric),
        tables=tables,
    )


def _bars_figure(run: Shown) -> Json:
    key = f"{run.key}/bars/{{client_metric}}"
    written = len(run.clients) <= WRITTEN
    bar = {"type": "bar", "orientation": "h", "hovertemplate": "%{y}: %{x:.4g}"}
    own = {
        **bar,
        "name": "own model",
        "marker": {"color": css("muted", 0.55)},
        "bind": {"x": f"{key}/local", "y": f"{key}/client"},
    }
    aggregated = {
        **bar,
        "name": "aggregated",
        "marker": {"color": css(run.colour)},
        "bind": {"x": f"{key}/federated", "y": f"{key}/client", **({"text": f"{key}/note"} if written else {})},
        "textposition": "outside",
        "cliponaxis": False,
    }
    layout = {
        "height": height(len(run.clients), each=38, most=1400),
        "barmode": "group",
        "bargap": 0.28 if written else 0,
        "yaxis": by_client(),
        "xaxis": {"rangemode": "tozero", "title": {"text": chosen("client_metric")}},
        "margin": {"r": 56},
        "hovermode": "closest",
    }
    return {"data": [own, aggregated], "layout": layout}


def _latest(run: Shown, name: str) -> dict[str, tuple[RoundRecord, ClientMetric]]:
    """Client -> the last record that scores it, and what it says."""
    found = {client: (record, one) for record in run.rounds for client, one in series.scored(record, name).items()}
    return {client: found[client] for client in run.clients if client in found}


def _staying(runs: Sequence[Shown]) -> list[Html]:
    """Beside the drop: of each run in which it is small by construction, why; nothing where there is none."""
    lines = [tag("li", tag("b", run.label), f": {said}.") for run in runs if (said := stays(run.about))]
    return [tag("ul", *lines, class_="notes", id="staying")] if lines else []


def _drop_head(name: str) -> str:
    return "Drop (points)" if series.is_share(name) else "Drop"


def _drop_note(name: str, one: ClientMetric) -> str:
    if one.drop is None:
        return ""
    return f"{one.drop:+.1f}".replace("-", "−") if series.is_share(name) else f"{one.drop:+.3f}".replace("-", "−")
