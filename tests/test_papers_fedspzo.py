"""FedSPZO's folder: every model and data set resolves, and the figures of its README are the formula's."""

from __future__ import annotations

import pytest

from cotune import resolve
from cotune.backbone.layers import layers
from cotune.cli.show import view
from cotune.core.errors import CotuneError
from cotune.cuts import PEER
from cotune.diagnose.energy import Cut
from cotune.experiment import Experiment
from cotune.optim import SplitZO
from cotune.reproduce import paper
from cotune.reproduce.spzo import SPZOPrompted

SOURCE = "fedspzo"
FOLDER = paper.folder(SOURCE)
NUMBERS = paper.expected(SOURCE)
FILES = SPZOPrompted.files


def load(file: str, dataset: str) -> Experiment:
    return resolve.load(str(FOLDER / file), sets=[f"task.dataset={dataset}"])


def test_every_file_is_a_model_of_the_paper_and_the_readme_names_it() -> None:
    assert {path.name for path in FOLDER.glob("*.toml")} - {"expected.toml"} == set(FILES)
    readme = (FOLDER / "README.md").read_text("utf-8")
    assert all(f"`{file}`" in readme for file in FILES)
    assert all(f"`{name}`" in readme for name in NUMBERS["tasks"]["names"])


@pytest.mark.parametrize("dataset", NUMBERS["tasks"]["names"])
@pytest.mark.parametrize("file", FILES)
def test_every_data_set_is_a_key_of_a_models_file(file: str, dataset: str) -> None:
    if file.startswith("roberta") and dataset == "squad":
        with pytest.raises(CotuneError, match="answers are written"):
            load(file, dataset)
        return
    found = load(file, dataset)
    assert (found.task.kind, found.task.model_dump()["dataset"]) == ("prompted", dataset)
    assert found.backbone.ref in NUMBERS["models"]
    assert found.method.uplink.kind == "scalars"
    assert Experiment.model_validate(found.resolved()).hash == found.hash


@pytest.mark.parametrize("file", FILES)
def test_the_cut_leaves_four_layers_behind(file: str) -> None:
    found = paper.shapes(load(file, "sst2"), NUMBERS)
    skeleton = found.backbone.skeleton(found.task.head, 2)
    assert isinstance(found.method.optimizer, SplitZO)
    assert found.method.optimizer.cut == len(layers(skeleton.model)) - 4
    optimizer = found.method.optimizer
    assert isinstance(optimizer, SplitZO)
    assert (optimizer.directions, optimizer.back_directions) == (1, 4)


@pytest.mark.parametrize("file", FILES)
def test_an_upload_is_scalars_from_shapes_alone(file: str) -> None:
    found = paper.shapes(load(file, "sst2"), NUMBERS)
    shown = view(str(FOLDER / file), shapes_only=True, backbone=found.backbone.ref).plan
    assert shown is not None
    budget = found.method.budget
    sent = shown.method.sent(shown.spec, 1, 16)["scalars"]
    assert sum(shape[0] * shape[1] for _, shape in sent.values()) == (budget.steps or 0) * 5


def test_what_it_needs_is_said_before_it_starts() -> None:
    lines = list(paper.needed(load("roberta-large.toml", "sst2"), NUMBERS))
    assert "numbers train" in lines[0]
    assert "weights and theta" in lines[1]
    assert "a pass" in lines[2]


def test_the_claims_of_the_readme_are_the_formulas() -> None:
    def saving(ratio: float, forward: int | None = None) -> float:
        return Cut(18, 75, 25, 75.0, 25.0, 1.0, ratio).saving(1, forward)

    assert saving(1) == pytest.approx(1.8, abs=0.05)
    assert saving(3) == pytest.approx(2.8, abs=0.05)
    assert saving(1, PEER) == pytest.approx(0.6 * saving(1))
    low, high = NUMBERS["compute"]["latest"]
    assert saving(1.5) == pytest.approx(low, abs=0.15)
    assert saving(3.5) == pytest.approx(high, abs=0.15)
