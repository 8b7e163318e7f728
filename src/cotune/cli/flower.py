"""`cotune flower`: a new project, a deployment on this machine, keys, and what stands in the way of any of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cotune.core.errors import Code, CotuneError, rebuilt

if TYPE_CHECKING:
    from cotune.experiment import Experiment

FOLDER = ".flower"  # in a project: keys, certificates, the SuperLink's database, nodes' private state
LONGEST = 30 * 24 * 3600.0  # seconds of a run
BACKBONE, TASK = "builtin:tiny-llama", "sft:synth:instructions?clients=4"  # of a project that names none
_ERROR = re.compile(rf"error\[(?P<code>{'|'.join(Code)})\] (?P<text>.+)")
_NOISE = re.compile(r"^(INFO\s*:|Using SuperLink|Successfully installed|Start `|theta_sha256 |folder )")


def init(
    folder: Path, *, recipe: str, backbone: str | None, task: str | None, rounds: int | None, seed: int | None
) -> Iterator[str]:
    """Write a project whose experiment is known to be one; what there is to say about it.

    Raises:
        CotuneError: E_CONFIG without Flower, for what is no experiment, and where files are there already.
    """
    _check_installed()
    from cotune import resolve
    from cotune.cli.toml import dump
    from cotune.flower.scaffold import name_of, write

    said: list[str] = []
    data = task or TASK
    model = backbone or (None if task else BACKBONE)
    experiment = resolve.load(recipe, backbone=model, task=data, rounds=rounds, seed=seed, say=said.append)
    yield from said
    for path in write(folder, dump({"name": name_of(folder), **_table(recipe, experiment)})):
        yield str(path)
    for what, given, chosen in (("backbone", backbone, experiment.backbone.ref), ("task", task, data)):
        if given is None:
            yield f"{what} {chosen}, since none was named: change it in experiment.toml"
    yield f"next: cotune flower up {folder}"


def up(
    folder: Path, *, nodes: int, insecure: bool, workers: bool, sets: Sequence[str], deadline: float = LONGEST
) -> None:
    """A whole deployment on this machine, and the project's run on it, from where an earlier one was left.

    Raises:
        CotuneError: E_CONFIG without Flower or without a project; E_ENGINE where a program of the deployment ends, or
            the run; E_LOCK where a deployment of this folder is up already.
        KeyboardInterrupt: after everything has been ended.
    """
    _check_installed()
    from cotune.flower.loopback import Loopback
    from cotune.flower.project import Value, assignments, config_of, experiment_of, file_of
    from cotune.store import Run

    own = config_of(folder)
    out = (folder / str(own.get("out", "runs"))).resolve()
    config: dict[str, Value] = {"nodes": nodes, "out": str(out)}
    if sets:
        config["set"] = "; ".join((*filter(None, [str(own.get("set", ""))]), *sets))
    _check_known(own, config)
    fused = {**own, **config}
    place = experiment_of(folder, fused, _say).folder(out)
    if (place / "status.json").exists() and Run(place).status == "finished":
        _say(f"finished already: {place.name}")
    else:
        worker, relay = (file_of(folder, fused), assignments(fused)) if workers else None, Relay()
        with (
            _resumable(),
            Loopback(folder / FOLDER, nodes, secure=not insecure, worker=worker, say=_say) as deployment,
        ):
            _say(f"logs in {deployment.folder}")
            finished = deployment.run(folder, config, deadline, relay)
        if not finished.completed:
            raise relay.failure(finished.status)
    _say(f"theta_sha256 {Run(place).theta_sha256}\nfolder {place}")


def certify(folder: Path, hosts: Sequence[str]) -> Iterator[str]:
    """An authority, if the folder has none, and a server's certificate that it signs; what each file is for."""
    _check_installed()
    from cotune.flower import certificates

    if not (folder / certificates.AUTHORITY).exists():
        certificates.make_authority(folder)
        yield f"{folder / certificates.AUTHORITY} · for every site: by it they know the server"
        yield f"{folder / certificates.AUTHORITY_KEY} · secret: it signs servers"
    certificates.make_server(folder, hosts)
    names = ", ".join(certificates.shown(folder).names)
    yield f"{folder / certificates.SERVER} · of the server, for {names}"
    yield f"{folder / certificates.SERVER_KEY} · secret, of the server"


def key(path: Path) -> Iterator[str]:
    """A node's key; what each file is for."""
    _check_installed()
    from cotune.flower import certificates

    certificates.make_node_key(path)
    yield f"{path} · secret, of this node"
    yield f"{certificates.public_half(path)} · for the server, which registers it: flwr supernode register"


def doctor(folder: Path | None) -> Iterator[str]:
    """One line a finding.

    Raises:
        CotuneError: E_CONFIG without Flower, or for a folder that is not there.
    """
    _check_there()
    from cotune.flower.doctor import examine

    if folder is not None and not folder.is_dir():
        raise CotuneError(Code.CONFIG, "no such folder", where=str(folder))
    yield from examine(folder)
    if folder is not None and (folder / "pyproject.toml").exists():
        yield from _project(folder)


def _project(folder: Path) -> Iterator[str]:
    """Whether a project's experiment is one."""
    from cotune.flower.project import config_of, experiment_of

    try:
        experiment = experiment_of(folder, config_of(folder))
    except CotuneError as error:
        yield f"warning: {error.text}"
        return
    yield f"project {folder} · experiment {experiment.name}-{experiment.hash[:8]}"


def _check_installed() -> None:
    from cotune.flower.programs import check_installed

    check_installed()


def _check_there() -> None:
    from cotune.flower.programs import check_there

    check_there()


def _check_known(own: Mapping[str, object], given: Mapping[str, object]) -> None:
    """Raise E_CONFIG for a key that the project's own run config lacks: Flower would refuse the run later."""
    for name in given:
        if name not in own:
            what, fix = f"the project's run config has no '{name}'", f"add `{name} = ...` to [tool.flwr.app.config]"
            raise CotuneError(Code.CONFIG, what, where="pyproject.toml", fix=fix)


def _table(recipe: str, experiment: Experiment) -> Mapping[str, object]:
    """The experiment as its file says it: what was chosen, and nothing that is so by default."""
    return {
        "recipe": recipe,
        "backbone": {"ref": experiment.backbone.ref},
        "task": experiment.task.model_dump(mode="json", exclude_unset=True),
        "federation": {"rounds": experiment.federation.rounds},
        "seeds": experiment.seeds.model_dump(mode="json", exclude_none=True),
    }


def _say(line: str) -> None:
    print(line, flush=True)


class Relay:
    """Prints what the server app says, line by line; what Flower says of itself is left to the log, tracebacks too."""

    def __init__(self) -> None:
        self.error: CotuneError | None = None  # the server app's own, which comes last
        self._over = False

    def __call__(self, line: str) -> None:
        """Pass a line on."""
        if found := _ERROR.fullmatch(line):
            self.error = rebuilt(Code(found["code"]), found["text"])
        self._over = self._over or self.error is not None or line.startswith("ERROR")
        if not self._over and not _NOISE.match(line):
            print(line, flush=True)

    def failure(self, status: str) -> CotuneError:
        """Why a run failed: the server app's error, where it told one."""
        what, fix = "the run on Flower failed", "run.log and link.log say more"
        return self.error or CotuneError(Code.ENGINE, what, got=status, fix=fix)


@contextmanager
def _resumable() -> Iterator[None]:
    """What to do after an interruption, said with it."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("everything has been ended; repeat the command to go on") from None
