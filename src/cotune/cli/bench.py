"""`cotune bench`: figures on this machine, each against a named rival in the same run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cotune.core.errors import one_line

WIDTH = 150  # of the table where the output is no terminal


def bench(name: str | None, *, as_json: bool, quick: bool) -> int:
    """Print what a benchmark comes to, and return the exit status: 1 when a figure misses its goal.

    Args:
        name: of a benchmark; None for a list of them.
        as_json: print one JSON object.
        quick: small settings, by which no goal is judged.

    Raises:
        CotuneError: E_CONFIG for an unknown name.
    """
    from cotune.bench import BENCHES
    from cotune.bench.benchmark import measured

    if name is None:
        width = max(map(len, BENCHES))
        for known, kind in BENCHES.items():
            print(f"{known:<{width}}  {one_line(kind.__doc__ or '').partition(' Attributes:')[0]}")
        return 0
    result = measured(name, quick)
    if as_json:
        print(json.dumps(result))
    else:
        _print(result)
    return 1 if any(figure["met"] is False for figure in result["figures"]) else 0


def _print(result: Mapping[str, Any]) -> None:
    """The figures as a table, and under it what they were measured on."""
    from rich.console import Console
    from rich.table import Table

    experiment, machine, load = result["experiment"], result["machine"], result["load"]
    table = Table(box=None, pad_edge=False)
    table.add_column("figure", overflow="fold")
    for column in ("ours", "rival", "unit", "ratio", "spread", "goal", "met"):
        table.add_column(column, justify="left" if column in ("unit", "met") else "right", no_wrap=True)
    for figure in result["figures"]:
        goal = "-" if figure["goal"] is None else f"≥ {figure['goal']:g}"
        numbers = (f"{figure['ours']:.4g}", f"{figure['rival']:.4g}", figure["unit"], f"{figure['ratio']:.3g}")
        met = {True: "yes", False: "NO", None: "not judged"}[figure["met"]]
        table.add_row(figure["name"], *numbers, f"± {100 * figure['spread']:.0f} %", goal, met)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    print()
    print(f"{experiment['bench']} {experiment['hash']} · {result['timing']}")
    if experiment["quick"]:
        print("quick: settings too small to judge a goal by")
    system = f"{machine['processor']}, {machine['cores']} cores"
    print(f"{system} · load {load['before']} before, {load['after']} after · torch {result['versions']['torch']}")
