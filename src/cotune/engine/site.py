"""Whose rows a process has: all of them, or those of one site; and the rows that a server scores on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from cotune.core.contracts import Corpus, Task
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.core.seeds import Seeds
from cotune.task import Alone

SERVER = "server"


@dataclass(frozen=True)
class Site:
    """Which clients of a federation a process stands for.

    Attributes:
        client: its id, where the rows of the site are its own and nobody else's.
        data: the reference of those rows; None where the task's own data holds them, among others.
        place: where neither is given, of `places` that divide the clients of the task's own data among them, this one.
        places: how many there are.
    """

    client: str | None = None
    data: str | None = None
    place: int = 0
    places: int = 1

    def __post_init__(self) -> None:
        if self.data is not None and self.client is None:
            what = "rows of a site need the name of its client"
            raise CotuneError(Code.CONFIG, what, where="data", got=self.data, fix="give the client too")
        if not 0 <= self.place < self.places:
            raise CotuneError(Code.CONFIG, "no such place", got=self.place, expected=f"0 to {self.places - 1}")

    def corpus(self, task: Task, seeds: Seeds, say: Say = silent) -> Corpus | None:
        """The site's own rows, as the task reads them; None where the task's own data is meant."""
        if self.data is None or self.client is None:
            return None
        return _of_one(task, self.data, self.client).load(seeds, say)

    def own(self, clients: Collection[str]) -> tuple[str, ...]:
        """Those of all clients that it stands for.

        Raises:
            CotuneError: E_CONFIG when there is none, or not the one that was named.
        """
        names = sorted(clients)
        mine = tuple(names[self.place :: self.places] if self.client is None else {self.client} & set(names))
        if not mine:
            got = f"place {self.place} of {self.places}" if self.client is None else f"client {self.client}"
            known = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
            raise CotuneError(Code.CONFIG, "no client for this site", got=got, expected=f"one of {known}")
        return mine


def scored(task: Task, data: str, seeds: Seeds, say: Say = silent) -> Corpus:
    """A server's own rows, all of them to score on; its clients come with their engine."""
    corpus = _of_one(task, data, SERVER, held=0.0).load(seeds, say)
    rows = corpus.clients[SERVER].train
    return replace(corpus, clients={}, test=rows, facts={**corpus.facts, "test": {"rows": len(rows), "unused": 0}})


def _of_one(task: Task, data: str, client: str, **fields: float) -> Task:
    """The task on rows that all belong to one client, none of them held out.

    Raises:
        CotuneError: E_CONFIG for a task whose data is no table of one's own.
    """
    if not {"data", "partition", "test", "held"} <= type(task).model_fields.keys():
        what = "a site cannot bring its own rows to this task"
        raise CotuneError(Code.CONFIG, what, where=f"task {task.kind}", got=data, fix="use sft, text, classify, choice")
    return task.model_copy(update={"data": data, "partition": Alone(client=client), "test": 0, **fields})
