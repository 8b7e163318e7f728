"""The commands and their options; what a command does is imported when it is called, so that help costs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cotune.cli.flower_commands import flower, worker
from cotune.cli.options import REPRODUCED, Backbone, Client, Commands, Device, Rounds, Seed, Sets, Source, Task


def commands() -> typer.Typer:
    """The command line."""
    app = typer.Typer(
        cls=Commands,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options)
    app.command("list")(list_rooms)
    app.command("show")(show)
    app.command("run")(run)
    app.command("compare")(compare)
    app.command("reproduce", epilog=f"NAME: {REPRODUCED}")(reproduce)
    app.command("export")(export)
    app.command("generate")(generate)
    app.command("eval")(evaluate)
    app.command("report")(report)
    app.command("check")(check)
    app.command("fetch")(fetch)
    data = typer.Typer(cls=Commands, help="Data before anything is trained.")
    data.command("show")(data_show)
    data.callback()(lambda: None)
    app.add_typer(data, name="data")
    app.add_typer(flower(), name="flower")
    app.command("worker")(worker)
    app.command("doctor")(doctor)
    app.command("bench")(bench)
    return app


def _version(asked: bool) -> None:
    if asked:
        from importlib import metadata

        print(f"cotune {metadata.version('cotune')}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; also after the command.")
    ] = False,
) -> None:
    """Fine-tune one language model across many clients that may not pool their data."""
    del version, debug


def list_rooms(
    room: Annotated[str | None, typer.Argument(metavar="[ROOM]", help="This room alone.")] = None,
) -> None:
    """What an experiment can name, a line each."""
    from cotune.cli.rooms import listing

    print(listing(room))


def show(
    source: Source,
    *,
    backbone: Backbone = None,
    task: Task = None,
    rounds: Rounds = None,
    seed: Seed = None,
    sets: Sets = None,
    device: Device = None,
    shapes_only: Annotated[
        bool, typer.Option("--shapes-only", help="Read no data: assume two labels and one client.")
    ] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Measure on 50 batches where zeroth-order descent should cut the model.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """An experiment before it runs, down to the bytes.

    First all of it as TOML; then, as comments, the client's objective, what trains and travels, every message, and what
    is not protected. The output is itself an experiment file.
    """
    from cotune.cli.show import view

    shown = view(
        source,
        shapes_only=shapes_only,
        probe=probe,
        backbone=backbone,
        task=task,
        rounds=rounds,
        seed=seed,
        device=device,
        sets=sets or (),
    )
    print(shown.json() if as_json else shown.text())


def run(
    source: Source,
    *,
    backbone: Backbone = None,
    task: Task = None,
    rounds: Rounds = None,
    seed: Seed = None,
    sets: Sets = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of run folders.")] = Path("runs"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue an unfinished run.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away an earlier run of the same experiment.")] = False,
    device: Device = None,
    engine: Annotated[
        str, typer.Option(metavar="inline|pool", help="Clients in this process, or in several: the same theta.")
    ] = "inline",
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes of a pool; else as many as there is room for.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the run's folder alone, at the end.")] = False,
) -> None:
    """Carry an experiment out, round by round."""
    from cotune.cli.run import run as carry_out

    carry_out(
        source,
        out,
        resume=resume,
        fresh=fresh,
        quiet=quiet,
        engine=engine,
        workers=workers,
        backbone=backbone,
        task=task,
        rounds=rounds,
        seed=seed,
        device=device,
        sets=sets or (),
    )


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    to: Annotated[Path, typer.Argument(metavar="DIR", help="The new folder.")],
    *,
    merge: Annotated[
        bool, typer.Option("--merge", help="The whole model, not an adapter beside its backbone.")
    ] = False,
    client: Client = None,
    with_backbone: Annotated[
        bool, typer.Option("--with-backbone", help="The frozen backbone too, as a folder beside the adapter.")
    ] = False,
) -> None:
    """A run's model as a folder that plain peft or transformers load."""
    from cotune.cli.export import export as write

    write(folder, to, merge=merge, client=client, with_backbone=with_backbone)


def generate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    *,
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="What to go on from.")],
    stream: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A text of any size, which the memory reads first.")
    ] = None,
    tokens: Annotated[int, typer.Option(metavar="N", help="The most tokens of the answer.")] = 64,
    client: Client = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """A run's model answers a prompt, after a text went through its private memory, which it then forgets."""
    from cotune.cli.generate import generate as answer

    answer(folder, prompt, stream=stream, tokens=tokens, client=client, as_json=as_json)


def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    *,
    lm_eval: Annotated[Path, typer.Option(metavar="TASK.yaml", help="A task of the lm-evaluation-harness.")],
    client: Client = None,
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Rows at once.")] = 8,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="The first N rows alone.")] = None,
) -> None:
    """A run's model on a task of the lm-evaluation-harness, with the harness's own prompts and numbers."""
    from cotune.cli.evaluate import evaluate as carry_out

    carry_out(folder, lm_eval, client=client, batch=batch, limit=limit)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or folders of such folders.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to; else `report.html` in the folder that was named.")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Runs as one HTML page, finished or not, that needs nothing beside itself."""
    from cotune.cli.report import report as write_report

    write_report(runs, out, show=show)


def compare(
    sources: Annotated[list[str], typer.Argument(metavar="ROW...", help="Recipes, or TOML files for their method.")],
    *,
    task: Task = None,
    backbone: Backbone = None,
    base: Annotated[
        str | None, typer.Option(metavar="FILE", help="A TOML file with what the rows share; options go on top.")
    ] = None,
    rounds: Rounds = None,
    budget: Annotated[
        str | None, typer.Option(metavar="bytes=N|flops=N", help="A row stops before a run spends more than this.")
    ] = None,
    cohort: Annotated[int | None, typer.Option(metavar="K", help="How many clients a round; all by default.")] = None,
    seed: Seed = None,
    seeds: Annotated[int, typer.Option(metavar="S", help="How many seeds, from --seed on.")] = 3,
    sweep: Annotated[
        str | None, typer.Option(metavar="LR,LR,...", help="Every row has the best of these rates; x3: thrice its own.")
    ] = None,
    match_norm: Annotated[
        bool, typer.Option("--match-norm", help="Bring rows of factors to one length of update first, by their rates.")
    ] = False,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="To compare by: accuracy where there is one, else loss.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="ROW", help="The others are held against it; else the first averaged.")
    ] = None,
    local: Annotated[bool, typer.Option("--local/--no-local", help="With the row that never aggregates.")] = True,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=c", help="A value of every row, as TOML; repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of comparisons.")] = Path("runs"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Throw away earlier runs of the same comparison.")] = False,
    device: Device = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the comparison's folder alone, at the end.")] = False,
    jobs: Annotated[int | None, typer.Option(metavar="N", min=1, help="Runs at once, a process each; else 1.")] = None,
) -> None:
    """Hold rows against each other: same data, clients, batches, start and client-steps.

    What is finished is reused, and what is unfinished goes on. `ROW+method.a=b+backbone.c=d` is a row with settings of
    its own. On synthetic data without --backbone a small model is taken, with rounds, steps and rates that suit it.
    """
    from cotune.cli.compare import compare as carry_out

    carry_out(
        sources,
        out,
        seeds=seeds,
        sweep=sweep,
        metric=metric,
        reference=reference,
        fresh=fresh,
        quiet=quiet,
        jobs=jobs,
        budget=budget,
        match_norm=match_norm,
        base=base,
        local=local,
        cohort=cohort,
        backbone=backbone,
        task=task,
        rounds=rounds,
        seed=seed,
        device=device,
        sets=sets or (),
    )


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help=REPRODUCED)],
    *,
    scale: Annotated[
        str, typer.Option(metavar="paper|laptop", help="The published setting, from the hub, or a synthetic one here.")
    ] = "laptop",
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of runs.")] = Path("runs"),
    seeds: Annotated[int | None, typer.Option(metavar="S", min=1, help="How many seeds; else as it was made.")] = None,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Runs at once, each in a process of its own.")] = 1,
) -> None:
    """A published result and ours: tables with n, chance and intervals, and every setting that differs."""
    from cotune.cli.reproduce import reproduce as carry_out

    carry_out(name, scale, out, seeds=seeds, jobs=jobs)


def check(
    kind: Annotated[str, typer.Argument(help="A kind, ROOM.KIND, or a dotted path `package.module:Class`.")],
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="field=value", help="A field of the part, as TOML; repeatable.")
    ] = None,
) -> None:
    """The laws of its room on one part, yours or ours.

    The exit status is 1 when a law is broken, and 2 when the part cannot be built.
    """
    from cotune.cli.check import verdicts

    lines, broken = verdicts(kind, sets or ())
    print("\n".join(lines))
    if broken:
        raise typer.Exit(1)


def data_show(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A data reference, KIND:DATA, or KIND?key=value.")],
    seed: Annotated[int, typer.Option(metavar="N", help="From which the division derives.")] = 0,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=c", help="A field of the task, as TOML; repeatable.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="The same as one HTML file with a plot.")] = None,
    manifest: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Hashes of all rows by client, as JSON; they tell short texts.")
    ] = None,
) -> None:
    """Who holds what: rows read and skipped, each client's rows and labels, and what several of them have."""
    from cotune.cli.data import show as shown

    for line in shown(task, seed=seed, sets=tuple(sets or ()), plot=plot, hashes=manifest):
        print(line, flush=True)


def fetch(
    ref: Annotated[str, typer.Argument(help="`pkg:NAME` or a hub id.")],
    data: Annotated[bool, typer.Option("--data", help="The hub id is a data set, not a model.")] = False,
) -> None:
    """What a reference names, into the cache."""
    from cotune.cli.fetch import fetch as bring

    bring(ref, data=data)


def doctor(
    backbone: Backbone = None,
    batch: Annotated[int, typer.Option(min=1, help="Rows a batch, for the estimate.")] = 16,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens a row, for the estimate.")] = 64,
    device: Device = None,
) -> None:
    """Versions, devices, memory, cache, extras, warnings; with --backbone what every recipe will cost on it."""
    from cotune.cli.doctor import costs, report

    for line in costs(backbone, (batch, tokens), device or "cpu") if backbone else report():
        print(line, flush=True)


def bench(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A benchmark; none lists them.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small settings, by which no goal is judged.")] = False,
) -> None:
    """Figures on this machine, each against a named rival in the same run.

    The exit status is 1 when a figure misses its goal.
    """
    from cotune.cli.bench import bench as carry_out

    if status := carry_out(name, as_json=as_json, quick=quick):
        raise typer.Exit(status)
