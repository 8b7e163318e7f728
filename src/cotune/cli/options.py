"""What several commands take, and how a group names the nearest command; without torch."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cotune.core.errors import Code, CotuneError, nearest

Source = Annotated[
    str, typer.Argument(metavar="RECIPE|FILE", help="A recipe (see `cotune list recipe`) or a TOML file.")
]
Backbone = Annotated[str | None, typer.Option(metavar="REF", help="The model: see `cotune list backbone`.")]
Task = Annotated[str | None, typer.Option(metavar="REF", help="The data, KIND:DATA, or KIND?key=value, as in needle.")]
Client = Annotated[
    str | None, typer.Option(metavar="ID", help="The model of this client, where clients keep a part to themselves.")
]
Rounds = Annotated[int | None, typer.Option(metavar="N", help="How many rounds.")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="From which every draw derives.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="a.b=c", help="Any value of the experiment, as TOML; repeatable.")
]
Device = Annotated[str | None, typer.Option(metavar="D", help="Where the model lives: cpu, cuda, mps.")]

REPRODUCED = "fednl-mmlu, fednl-needle, fednl-ablation, fednl-stream, subspace-hellaswag or spzo-prompted."


class Commands(TyperGroup):
    """The commands in the order of a first visit; an unknown one names the nearest."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names.

        Raises:
            CotuneError: E_CONFIG when there is none.
        """
        if self.get_command(ctx, args[0]) is None:
            known = self.list_commands(ctx)
            raise CotuneError(Code.CONFIG, f"no command '{args[0]}'", where="cotune", fix=nearest(args[0], known))
        return super().resolve_command(ctx, args)
