"""What is shown of an experiment is the experiment, and its bytes are the bytes that a run counts."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typed import BACKBONE, ON, TASK, Type, refused, typing

from cotune import resolve
from cotune.cli.messages import PREDICTED, spent, traffic
from cotune.cli.show import view
from cotune.experiment import run

GROUPS = 'federation.groups=[{match="domain-1", budget={epochs=2}, optimizer={kind="sgd", lr=0.1}}]'
SETS = {
    "fedprox": ("federation.rounds=2",),
    "local": ("evaluation.which=all", "federation.rounds=3"),
    "scaffold": ("federation.cohort=2", "federation.sampling=fixed", "evaluation.every=2", "federation.rounds=5"),
    "fedavg": ("method.downlink=changed", "evaluation.which=global", "federation.rounds=3", "seeds.data=7"),
    "lora-fedavg": (GROUPS, "method.share=['factor_a', 'head']", "federation.rounds=2", "task.classes=3"),
}


@pytest.fixture
def type_(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    monkeypatch.chdir(tmp_path)
    return typing(capfd)


def options(recipe: str) -> list[str]:
    return [word for assignment in SETS[recipe] for word in ("--set", assignment)]


@pytest.mark.parametrize("recipe", SETS)
def test_the_output_is_a_file_of_the_same_experiment(type_: Type, recipe: str) -> None:
    said = type_("show", recipe, *ON, *options(recipe))
    assert (said.status, said.err) == (0, "")
    Path("shown.toml").write_text(said.out)
    assert resolve.load("shown.toml") == resolve.load(recipe, backbone=BACKBONE, task=TASK, sets=SETS[recipe])
    assert type_("show", "shown.toml").out == said.out


@pytest.mark.parametrize("recipe", SETS)
def test_predicted_bytes_are_the_bytes_of_the_run(recipe: str, tmp_path: Path) -> None:
    shown = view(recipe, backbone=BACKBONE, task=TASK, sets=SETS[recipe])
    assert shown.plan is not None
    predicted = traffic(shown.plan)
    records = run(shown.experiment, tmp_path).rounds
    measured = [{name: getattr(record, name) for name in spent(predicted.played[0])} for record in records]
    assert predicted.exact
    assert [spent(messages) for messages in predicted.played] == measured
    assert predicted.totals() == {name: sum(row[name] for row in measured) for name in measured[0]}


def test_predicted_messages_are_the_lines_of_the_ledger(tmp_path: Path) -> None:
    shown = view("scaffold", backbone=BACKBONE, task=TASK, sets=SETS["scaffold"])
    assert shown.plan is not None
    ledger = run(shown.experiment, tmp_path).ledger
    for number, messages in enumerate(traffic(shown.plan).played, start=1):
        lines = sorted(
            (m.purpose, m.direction, sorted(m.payload), m.framing)
            for m, count in messages.items()
            for _ in range(count)
        )
        assert lines == sorted(
            (line.purpose, line.direction, sorted(line.payload_bytes.items()), line.framing_bytes)
            for line in ledger
            if line.round == number
        )


def test_a_long_run_is_predicted_from_its_first_rounds() -> None:
    shown = view("fedprox", backbone=BACKBONE, task=TASK, rounds=10**6)
    assert shown.plan is not None
    predicted = traffic(shown.plan)
    assert not predicted.exact
    assert len(predicted.played) <= PREDICTED
    assert predicted.totals()["uplink_bytes"] == 10**6 * spent(predicted.played[0])["uplink_bytes"]
    assert "about, from the first" in shown.text()


def test_the_comments_say_objective_roles_messages_and_risks(type_: Type) -> None:
    said = type_("show", "fedprox", *ON)
    comments = [line for line in said.out.splitlines() if line.startswith("#")]
    text = "\n".join(comments)
    assert "mean task loss + (mu / 2) · ‖θ − θ_anchor‖², mu = 0.01" in text
    for word in ("factor_a", "train up", "evaluate down", "run of 10 rounds", "no differential privacy"):
        assert word in text
    assert resolve.load("fedprox", backbone=BACKBONE, task=TASK).hash in text


def test_a_recipe_alone_shows_its_method_and_what_to_add(type_: Type) -> None:
    said = type_("show", "lora-fedavg")
    assert set(tomllib.loads(said.out)) == {"name", "method"}
    assert "--backbone pkg:" in said.out
    assert "--task pkg:" in said.out
    named = type_("show", "lora-fedavg", "--task", "classify:./mine.jsonl").out.partition("to go on")[2].split("\n")[0]
    assert "--backbone pkg:" in named
    assert "--task" not in named
    on_synthetic = type_("show", "lora-fedavg", "--task", TASK).out
    assert tomllib.loads(on_synthetic)["backbone"]["ref"] == "builtin:tiny-llama"
    assert "to go on" not in on_synthetic


def test_a_shown_method_runs_with_what_was_missing(type_: Type) -> None:
    Path("mine.toml").write_text(type_("show", "fedprox", "--set", "method.penalties.0.mu=0.5").out)
    loaded = resolve.load("mine.toml", backbone=BACKBONE, task=TASK)
    assert loaded == resolve.load("fedprox", backbone=BACKBONE, task=TASK, sets=["method.penalties.0.mu=0.5"])


def test_shapes_alone_read_no_data(type_: Type) -> None:
    said = type_("show", "fedavg", "--backbone", BACKBONE, "--task", "./not-there.jsonl", "--shapes-only")
    assert said.status == 0
    assert "assumed: 2 labels, 1 client of 16 rows" in said.out
    refused(type_("show", "fedavg", "--backbone", BACKBONE, "--task", "./not-there.jsonl"), "E_DATA", 3)


def test_shapes_alone_count_the_cohort_and_the_groups_of_a_file(type_: Type) -> None:
    words = ("show", "fedavg", "--backbone", BACKBONE, "--shapes-only", "--set", "federation.cohort=3")
    said = type_(*words, "--set", 'federation.groups=[{match="phone-*", budget={steps=1}}]')
    assert "assumed: 2 labels, 3 clients of 16 rows" in said.out


def test_json_holds_the_same_numbers(type_: Type) -> None:
    shown = json.loads(type_("show", "fedprox", *ON, "--json").out)
    assert shown["hash"] == resolve.load("fedprox", backbone=BACKBONE, task=TASK).hash
    assert shown["trained"]["factor_a"]["up"] * 4 == shown["trained"]["factor_a"]["bytes"]
    train_up = next(m for m in shown["rounds"][0]["messages"] if (m["purpose"], m["direction"]) == ("train", "up"))
    assert train_up["total_bytes"] == sum(train_up["payload_bytes"].values()) + train_up["framing_bytes"]
    assert shown["run"]["uplink_bytes"] == 10 * train_up["count"] * train_up["total_bytes"]
    assert shown["not_protected"]


def test_json_of_a_recipe_alone_says_what_is_missing(type_: Type) -> None:
    shown = json.loads(type_("show", "fedprox", "--json").out)
    assert (shown["missing"], shown["hash"]) == (["backbone", "task"], None)
    assert shown["objective"].startswith("mean task loss")


def test_scalars_of_roberta_large_are_a_thousand_times_fewer_bytes_than_its_factors() -> None:
    """K · (P1 + P2) numbers of 4 bytes and a header, which is larger, against LoRA of q and v without any header."""
    roberta = "random:roberta?layers=24&hidden=1024&heads=16&vocab=50265"
    shown = {
        row: json.loads(view(row, backbone=roberta, shapes_only=True).json()) for row in ("fedspzo", "lora-fedavg")
    }
    ups = {
        row: next(m for m in one["rounds"][0]["messages"] if (m["purpose"], m["direction"]) == ("train", "up"))
        for row, one in shown.items()
    }
    method = resolve.load("fedspzo", backbone=BACKBONE, task=TASK).method
    assert method.budget.steps == 10
    assert ups["fedspzo"]["payload_bytes"] == {"scalars": 10 * (1 + 2 * 1 * 2) * 4}
    factors = sum(ups["lora-fedavg"]["payload_bytes"][factor] for factor in ("factor_a", "factor_b"))
    assert factors == 4 * 24 * 2 * 8 * (1024 + 1024)
    assert factors >= 1000 * ups["fedspzo"]["total_bytes"]
    assert sum(role["numbers"] for role in shown["fedspzo"]["trained"].values()) > 350e6


def test_who_sends_scalars_is_told_how_much_of_the_gradient_they_are() -> None:
    private = "scalars are not private"
    told = json.loads(view("mezo", backbone=BACKBONE, shapes_only=True).json())
    (line,) = [line for line in told["not_protected"] if private in line]
    numbers = sum(role["numbers"] for role in told["trained"].values())
    assert f"along 10 directions a round, about {10 / numbers:.2g} of the energy of its {numbers:,} numbers" in line
    assert line in view("mezo", backbone=BACKBONE, shapes_only=True).text()
    for row in ("fedavg", "fedzo"):
        assert private not in view(row, backbone=BACKBONE, shapes_only=True).text()
