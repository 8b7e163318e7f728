"""The commands of a deployment and their options; what a command does is imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cotune.cli.options import Backbone, Commands, Device, Rounds, Seed, Sets, Source, Task

Project = Annotated[Path, typer.Argument(metavar="DIR", help="The project's folder.")]


def flower() -> typer.Typer:
    """The group of commands."""
    group = typer.Typer(cls=Commands, help="Several machines: projects, deployments and keys for Flower.")
    group.command("init")(init)
    group.command("up")(up)
    group.command("certify")(certify)
    group.command("key")(key)
    group.command("doctor")(doctor)
    return group


def init(
    folder: Project,
    *,
    recipe: Annotated[str, typer.Option(metavar="RECIPE", help="See `cotune list recipe`.")] = "lora-fedavg",
    backbone: Backbone = None,
    task: Task = None,
    rounds: Rounds = None,
    seed: Seed = None,
) -> None:
    """A new Flower project around an experiment, for `flwr run` or `cotune flower up`."""
    from cotune.cli.flower import init as make

    for line in make(folder, recipe=recipe, backbone=backbone, task=task, rounds=rounds, seed=seed):
        print(line, flush=True)


def up(
    folder: Project = Path(),
    *,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="How many SuperNodes.")] = 2,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS and no keys: anybody on this machine may join.")
    ] = False,
    workers: Annotated[
        bool, typer.Option("--workers", help="A process beside each SuperNode that keeps its model loaded.")
    ] = False,
    sets: Sets = None,
) -> None:
    """A whole deployment on this machine, and a project's run on it.

    Authority, certificates, keys, a SuperLink on a database file, SuperNodes: all in DIR/.flower, all ended at the end
    and by Ctrl-C. What an earlier run left unfinished goes on.
    """
    from cotune.cli.flower import up as deploy

    deploy(folder, nodes=nodes, insecure=insecure, workers=workers, sets=sets or ())


def certify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder on the machine of the SuperLink.")],
    host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="By which sites reach it, a host or address; repeatable.")
    ] = None,
) -> None:
    """A certificate for the machine of the SuperLink, and an authority that signs it."""
    from cotune.cli.flower import certify as make

    for line in make(folder, host or ()):
        print(line, flush=True)


def key(path: Annotated[Path, typer.Argument(metavar="FILE", help="A new file; FILE.pub will be beside it.")]) -> None:
    """A key for a SuperNode; its public half is what the SuperLink registers."""
    from cotune.cli.flower import key as make

    for line in make(path):
        print(line, flush=True)


def doctor(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A project, or a folder of certificates and keys.")
    ] = None,
) -> None:
    """What stands between this machine, or a project, and a run on Flower."""
    from cotune.cli.flower import doctor as examine

    for line in examine(folder):
        print(line, flush=True)


def worker(
    source: Source,
    *,
    socket: Annotated[Path, typer.Option(metavar="PATH", help="Where it listens: a new file, for this user alone.")],
    client: Annotated[str | None, typer.Option(metavar="ID", help="The client whose rows there are.")] = None,
    data: Annotated[str | None, typer.Option(metavar="REF", help="Those rows, all of them this client's.")] = None,
    partition: Annotated[
        str | None, typer.Option(metavar="I/N", help="Instead: a part of the clients in the task's own data, from 0.")
    ] = None,
    state: Annotated[Path, typer.Option(metavar="DIR", help="Private state, which stays.")] = Path(
        "~/.local/state/cotune/worker"
    ),
    sets: Sets = None,
    device: Device = None,
) -> None:
    """Keep backbone, rows and private state of a site loaded, beside its Flower SuperNode."""
    from cotune.cli.worker import worker as stay

    stay(
        source,
        socket,
        client=client,
        data=data,
        partition=partition,
        state=state,
        sets=sets or (),
        device=device,
    )
