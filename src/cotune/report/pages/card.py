"""The card of a run: how far it came, what it is made of, what it reached, and what it cost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cotune.core.record import Metric, doubt
from cotune.core.stays import stays
from cotune.report import series
from cotune.report.html import Html, duration, exact, facts, joined, number, scaled, several, tag, titled
from cotune.report.shown import Shown

_ROOMS = ("trainable", "penalties", "optimizer", "personalize", "uplink", "downlink", "aggregator", "budget", "share")
_AGAIN = "Repeat the command that started it, with --resume, to go on from the last checkpoint."
_ANEW = "No checkpoint of it is whole: repeat the command that started it with --fresh."


def card(run: Shown) -> Html:
    """One run."""
    return tag(
        "article",
        tag("header", tag("h3", dot(run), run.label), tag("span", status(run), class_=f"status {_tone(run)}")),
        state(run),
        tag("div", *(_metric(run, name) for name in series.global_metrics([run])), class_="metrics"),
        facts([*_counts(run), *_spent(run)], class_="facts"),
        facts([*_refs(run), *_method(run)], class_="method"),
        notes(run),
        _origin(run),
        class_="card",
        id=f"card-{run.key}",
    )


def dot(run: Shown) -> Html:
    """The run's colour, beside its name."""
    return tag("i", class_="dot", style=f"--dot: var(--{run.colour})", aria_hidden="true")


def status(run: Shown) -> str:
    """`failed · E_QUORUM`, or the status alone."""
    return f"{run.status} · {run.code}" if run.code else run.status


def _tone(run: Shown) -> str:
    return run.status if run.status in ("finished", "running", "interrupted", "failed") else "failed"


def state(run: Shown) -> Html | None:
    """Why there is no more, and how to go on; None for a run that is whole."""
    done = f"{len(run.rounds)} of {run.planned} rounds" if run.planned else f"{len(run.rounds)} rounds"
    abandoned = [record.round for record in run.rounds if record.abandoned]
    lines: list[object] = []
    match run.status:
        case "finished":
            pass
        case "running":
            lines.append(
                f"Under way, with {done} played so far. If its process was killed: {_AGAIN[:1].lower()}{_AGAIN[1:]}"
            )
        case "failed":
            lines.append(f"Failed after {done}. {_ANEW if run.code == 'E_HASH' else _AGAIN}")
        case _:
            lines.append(f"{titled(run.status)} after {done}. {_AGAIN}")
    if run.error:
        lines.append(tag("code", run.error))
    if abandoned:
        count = several(len(abandoned), "round was", "rounds were")
        lines.append(f"{count} abandoned, and theta stayed as it was: {_some(abandoned)}.")
    if not run.rounds:
        lines.append("No round has been recorded.")
    if not run.about:
        lines.append("There is no experiment.json that can be read, so this card shows records alone.")
    return tag("div", *(tag("p", line) for line in lines), class_="state", role="note") if lines else None


def _metric(run: Shown, name: str) -> Html | None:
    found = series.last_scored(run, name)
    if found is None:
        return None
    record, metric = found
    said = [series.interval(metric), f"n = {metric.n:,}"]
    if metric.chance is not None:
        said.append(f"chance {number(metric.chance)}")
        if metric.low is not None and metric.high is not None and metric.low <= metric.chance <= metric.high:
            said.append("not told apart from chance")
    scored = f"round {record.round}, {record.evaluated}" if record.evaluated else f"round {record.round}"
    return tag(
        "div",
        tag("span", titled(name), class_="name"),
        tag("strong", number(metric.value), data_value=exact(metric.value), data_metric=name),
        _whisker(run, metric) if metric.chance is not None else None,
        tag("span", " · ".join(said), class_="said"),
        tag("span", scored, class_="said"),
        class_="metric",
    )


def _whisker(run: Shown, metric: Metric) -> Html:
    """A value between 0 and 1 with its interval, and a stroke at chance."""
    ends = (0.0 if metric.low is None else metric.low, 1.0 if metric.high is None else metric.high)
    places = [100 * min(max(place, 0.0), 1.0) for place in (*ends, metric.value, metric.chance or 0.0)]
    low, high, value, chance = (f"{place:.2f}" for place in places)
    return tag(
        "svg",
        tag("line", x1=0, x2=100, y1=6, y2=6, class_="track"),
        tag("line", x1=low, x2=high, y1=6, y2=6, class_="span", style=f"stroke: var(--{run.colour})"),
        tag("line", x1=chance, x2=chance, y1=0, y2=12, class_="chance"),
        tag("line", x1=value, x2=value, y1=2, y2=10, class_="value"),
        viewBox="0 0 100 12",
        preserveAspectRatio="none",
        class_="whisker",
        aria_hidden="true",
    )


def _counts(run: Shown) -> list[tuple[str, object]]:
    federation, seeds = run.experiment.get("federation", {}), run.experiment.get("seeds", {})
    trained = run.about.get("trained", {})
    asked = federation.get("cohort") or "all"
    return [
        ("Rounds", f"{len(run.rounds)} of {run.planned}" if run.planned else len(run.rounds)),
        ("Clients", f"{len(run.clients):,}, {asked} a round" if run.clients else None),
        ("Seed", _seeds(seeds) if seeds else None),
        ("Numbers trained", number(trained["numbers"]) if trained else None),
        ("Shared", number(trained["shared"]) if trained else None),
    ]


def _refs(run: Shown) -> list[tuple[str, object]]:
    """The backbone and the data, as they were named, and what came of them."""
    data, task = run.about.get("data", {}), run.experiment.get("task", {})
    rows = [f"{data['used']:,} rows"] if isinstance(data.get("used"), int) else []
    rows += ["synthetic"] if data.get("synthetic") else []
    named = task.get("data") or data.get("data")
    digest = run.rounds[-1].theta_sha256 if run.rounds else ""
    return [
        ("Backbone", tag("b", ref) if (ref := run.experiment.get("backbone", {}).get("ref")) else None),
        ("Task", joined([tag("b", task.get("kind")), f" on {named}" if named else None]) if task else None),
        ("Rows", ", ".join(rows) or None),
        ("theta sha256", tag("code", digest[:16], title=digest, data_value=digest) if digest else None),
    ]


def _seeds(seeds: Mapping[str, Any]) -> str:
    """One number where all purposes have it."""
    if len(set(seeds.values())) == 1:
        return str(next(iter(seeds.values())))
    return ", ".join(f"{name} {seed}" for name, seed in seeds.items())


def _spent(run: Shown) -> list[tuple[str, object]]:
    if not run.rounds:
        return []
    sizes = {"Bytes up": "uplink_bytes", "Bytes down": "downlink_bytes", "Evaluation": "evaluation_bytes"}
    seconds = run.total("seconds")
    return [
        *((name, _figure(field, run.total(field), scaled(run.total(field), "B"))) for name, field in sizes.items()),
        ("FLOPs", _figure("flops", flops, scaled(flops)) if (flops := run.total("flops")) else None),
        ("Peak memory", _figure("peak_bytes", run.peak, scaled(run.peak, "B"))),
        ("Time", _figure("seconds", seconds, duration(seconds))),
    ]


def _figure(field: str, value: float, shown: str) -> Html:
    return tag("span", shown, title=number(value), data_value=exact(value), data_field=field)


def notes(run: Shown) -> Html | None:
    """What a reader must know about the rows; None where there is nothing."""
    data, test = run.about.get("data", {}), run.about.get("test", {})
    lines = []
    if skipped := data.get("skipped"):
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(skipped.items()))
        lines.append(f"{sum(skipped.values()):,} of {data.get('rows', 0):,} rows skipped: {reasons}")
    if test.get("truncated"):
        lines.append(
            f"{test['truncated']:,} of {several(test['rows'], 'test row', 'test rows')} cut to the token limit"
        )
    if both := data.get("duplicates", {}).get("test"):
        lines.append(f"{several(both, 'test row has', 'test rows have')} a text that a client trains on")
    if empty := data.get("empty_clients"):
        lines.append(f"{several(len(empty), 'client has', 'clients have')} no rows and no part in this: {_some(empty)}")
    if run.experiment.get("method", {}).get("share", "all") != "all":
        shared = run.experiment["method"]["share"]
        lines.append(f"share = {shared}: parts of the model stay with each client, and scores are of what each one has")
    if doubtful := doubt(next((r.global_metrics for r in reversed(run.rounds) if r.global_metrics), {})):
        lines.append(f"{doubtful[:1].upper()}{doubtful[1:]}")
    if staying := stays(run.about):
        lines.append(f"{staying[:1].upper()}{staying[1:]}")
    return tag("ul", *(tag("li", line) for line in lines), class_="notes") if lines else None


def _method(run: Shown) -> list[tuple[str, object]]:
    """Each room of the method, and what is in it."""
    method = run.experiment.get("method", {})
    rooms = [room for room in (*_ROOMS, *sorted(set(method) - set(_ROOMS))) if room in method]
    return [(titled(room), _parts(method[room])) for room in rooms]


def _parts(value: object) -> Html | None:
    """A part, or several: each its kind and what it is set to; None for none."""
    if value is None or value in ([], ()):
        return None
    several = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return tag("span", *(_part(part) for part in several), class_="parts")


def _part(part: object) -> Html:
    if not isinstance(part, Mapping):
        return tag("span", tag("b", str(part)))
    settings = ", ".join(
        f"{name} {_setting(value)}" for name, value in part.items() if name != "kind" and value is not None
    )
    return tag("span", tag("b", part["kind"]) if "kind" in part else None, f" {settings}" if settings else None)


def _setting(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _origin(run: Shown) -> Html:
    versions, machine = run.about.get("versions", {}), run.about.get("machine", {})
    rows = [
        ("Folder", run.folder.name),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items()) or None),
        ("Machine", ", ".join(f"{name} {value}" for name, value in machine.items()) or None),
        ("Backbone hash", run.about.get("backbone_sha256")),
    ]
    resolved = tag("pre", json.dumps(run.about, indent=2, ensure_ascii=False), tabindex=0) if run.about else None
    more = [facts(rows, class_="method"), resolved]
    return tag("details", tag("summary", "Experiment, versions and machine"), *more)


def _some(values: Sequence[object], most: int = 5) -> str:
    return ", ".join(map(str, values[:most])) + (", …" if len(values) > most else "")
