"""Cost: bytes by what they carry, time and memory, and the ledger beside the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

from cotune.report import series
from cotune.report.html import Html, table, tag
from cotune.report.pages.resources import resources
from cotune.report.plot import Choice, Columns, Json, Option, Page, Plot, css, label, when
from cotune.report.shown import Shown, counted

FRAMING = "framing"
# Parts in the order in which they are stacked, each with a colour of its own; others take what is left.
PARTS = ("factor_a", "factor_b", "head", "full", "rule", "aux", "base", "scalars")
PURPOSES = {"train": "Training", "evaluate": "Evaluation"}

Key = tuple[int, str, str]  # round, purpose, direction


def cost(runs: Sequence[Shown]) -> Page | None:
    """Bytes of a run by round, the time and memory of all runs, and exact tables."""
    spending = [run for run in runs if run.rounds]
    if not spending:
        return None
    columns: Columns = {}
    which = series.which(runs)
    blocks: list[Html | Plot] = [_bytes(spending, which, columns), _check(spending), *resources(spending, columns)]
    return Page("cost", "Cost", blocks, columns)


def totals(run: Shown) -> dict[Key, Counter[str]]:
    """(round, purpose, direction) -> bytes by part, framing as one of them."""
    found: dict[Key, Counter[str]] = {}
    for line in run.ledger:
        sums = found.setdefault((line.round, line.purpose, line.direction), Counter())
        sums.update({**line.payload_bytes, FRAMING: line.framing_bytes})
    return found


def parts(run: Shown) -> list[str]:
    """What the messages of a run carried, in the order in which it is stacked."""
    found = {part for line in run.ledger for part in line.payload_bytes}
    known = [part for part in PARTS if part in found]
    return [*known, *sorted(found - set(PARTS)), FRAMING]


def _bytes(runs: Sequence[Shown], which: Choice, columns: Columns) -> Plot:
    purpose = Choice(
        "purpose", "For", [Option(name, label) for name, label in PURPOSES.items()] + [Option("all", "Both")]
    )
    figures, tables = {}, []
    for run in runs:
        sums = totals(run)
        for direction, part in product(("up", "down"), parts(run)):
            of = {
                name: [sums.get((r.round, name, direction), Counter())[part] for r in run.rounds] for name in PURPOSES
            }
            of["all"] = [sum(both) for both in zip(*of.values(), strict=True)]
            columns |= {f"{run.key}/bytes/{name}/{direction}/{part}": values for name, values in of.items()}
        columns[f"{run.key}/rounds"] = [record.round for record in run.rounds]
        figures[run.key] = _bytes_figure(run)
        tables.append(_exact(run, sums))
    return Plot(
        id="bytes",
        title="Bytes by what they carry",
        says="All messages of a round: what clients send above, what the server sends below, on the same scale.",
        figures=figures,
        by="run",
        choices=(which, purpose),
        tables=tables,
    )


def _bytes_figure(run: Shown) -> Json:
    traces = []
    for i, part in enumerate(parts(run)):
        slot = PARTS.index(part) if part in PARTS else i % len(PARTS)
        colour = css("muted", 0.6) if part == FRAMING else css(f"part-{slot}")
        for direction, axis in (("up", "y"), ("down", "y2")):
            traces.append(
                {
                    "type": "bar",
                    "name": label(part.replace("_", " ")),
                    "legendgroup": part,
                    "showlegend": direction == "up",
                    "yaxis": axis,
                    "marker": {"color": colour},
                    "hovertemplate": f"round %{{x}}, {direction}: %{{y:,}} bytes",
                    "bind": {"x": f"{run.key}/rounds", "y": f"{run.key}/bytes/{{purpose}}/{direction}/{part}"},
                }
            )
    y = {"tickformat": "~s", "ticksuffix": "B", "nticks": 5}
    layout = {
        "height": 460,
        "barmode": "stack",
        "bargap": 0.25,
        "hovermode": "closest",
        "showlegend": True,
        "legend": {"traceorder": "normal"},
        "xaxis": {**series.rounds_axis([run]), "showgrid": False, "anchor": "y2"},
        "yaxis": {**y, "title": {"text": "Up"}, "domain": [0.53, 1]},
        "yaxis2": {**y, "title": {"text": "Down"}, "domain": [0, 0.47], "matches": "y", "anchor": "x"},
    }
    return {"data": traces, "layout": layout}


def _exact(run: Shown, sums: Mapping[Key, Mapping[str, int]]) -> Html:
    """Every message of a run added up by round, purpose and direction."""
    names = parts(run)
    messages = Counter((line.round, line.purpose, line.direction) for line in run.ledger)
    rows: list[list[object]] = []
    for key in sorted(sums, key=lambda key: (key[0], key[1] != "train", key[2])):
        round_, purpose, direction = key
        counts = [sums[key].get(part, 0) for part in names]
        rows.append([round_, PURPOSES.get(purpose, purpose), direction, messages[key], *counts, sum(counts)])
    heads = ("Round", "For", "Direction", "Messages", *(part.replace("_", " ") for part in names), "Together")
    return table(f"Bytes of {run.label}, from its ledger", heads, rows, data_when=when(run=run.key))


def _check(runs: Sequence[Shown]) -> Html:
    """The sums of the ledger beside those of the records."""
    rows: list[list[object]] = []
    for run in runs:
        sums = totals(run)
        places = {
            "Training, up": ("uplink_bytes", "train", ("up",)),
            "Training, down": ("downlink_bytes", "train", ("down",)),
            "Evaluation, both ways": ("evaluation_bytes", "evaluate", ("up", "down")),
        }
        for name, (field, purpose, directions) in places.items():
            entered = {
                record.round: sum(sum(sums.get((record.round, purpose, way), {}).values()) for way in directions)
                for record in run.rounds
            }
            recorded = {record.round: int(counted(record, field)) for record in run.rounds}
            off = [round_ for round_, count in recorded.items() if entered[round_] != count]
            verdict = "equal in every round" if not off else f"differs in round {', '.join(map(str, off[:5]))}"
            rows.append([run.label, name, sum(entered.values()), sum(recorded.values()), verdict])
    return tag(
        "section",
        tag("h3", "The ledger and the records"),
        tag(
            "p", "Each message is entered in the ledger as it is sent; each round's record counts its bytes by itself."
        ),
        table("Bytes in all", ("Run", "Messages", "Ledger", "Records", "Comparison"), rows, id="table-check"),
    )
