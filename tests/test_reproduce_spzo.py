"""FedSPZO's reproduction: the task, the race's arithmetic, and a page that its numbers make."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.cuts import PEER
from cotune.diagnose.energy import Cut
from cotune.reproduce import REPRODUCTIONS, paper, spzo_page
from cotune.reproduce.books import Books
from cotune.reproduce.device import Device, Spent, order
from cotune.reproduce.race import Curve, Ratio, goals, ratio, spent, verdict
from cotune.reproduce.reproduction import Laptop
from cotune.reproduce.spzo import TUNING, SPZOPrompted, _choose, _run
from cotune.reproduce.spzo_rows import (
    DECOMFL,
    FEDZO,
    LAYERS,
    LONGER,
    LORA,
    MEZO,
    POOR,
    SPZO,
    UNIFORM,
    Entrant,
    Size,
    cost,
    ground,
    searched,
    settled,
)
from cotune.store import Run
from cotune.task.table import Table

RESULTS = paper.folder("fedspzo") / "results"
TITLES = ("Genesis", "Psalms", "1 Kings", "Proverbs", "2 Chronicles", "Song of Solomon")


def table() -> Table:
    rows = [{"text": f"verse {i} of it", "book": book, "order": i} for i, book in enumerate(TITLES * 2)]
    return Table(("text", "book", "order"), rows, [("kjv, passage", i + 1) for i in range(len(rows))])


def test_the_class_of_a_passage_is_the_group_of_its_book_and_other_books_are_left_out() -> None:
    found = Books().parse(table())
    assert found.names == ("poetry", "history")
    assert found.skipped == {"other books": 2}
    said = {position: (row["text"], row["label"]) for position, row in found.rows.items()}
    expected = {
        i: (f"verse {i} of it", int(book in ("1 Kings", "2 Chronicles")))
        for i, book in enumerate(TITLES * 2)
        if book != "Genesis"
    }
    assert said == expected
    assert found.rows[1]["place"] == "kjv, passage 2"
    assert found.labels == {position: label for position, (_, label) in expected.items()}


def test_one_group_is_no_question() -> None:
    with pytest.raises(ValueError, match="two groups"):
        Books(groups={"poetry": ("Psalms",)})


def dense(curve: Curve, loss: float) -> float | None:
    """The crossing by walking a thousand points of each line."""
    if curve.losses[0] <= loss:
        return curve.flops[0]
    for i in range(1, len(curve.losses)):
        for k in range(1, 1001):
            share = k / 1000
            if curve.losses[i - 1] + share * (curve.losses[i] - curve.losses[i - 1]) <= loss:
                return curve.flops[i - 1] + share * (curve.flops[i] - curve.flops[i - 1])
    return None


@given(st.lists(st.floats(0.1, 1.0), min_size=1, max_size=6), st.floats(0.1, 1.0))
def test_the_first_crossing_is_where_a_walk_along_the_curve_gets_there(losses: list[float], goal: float) -> None:
    curve = Curve(tuple(10.0 * (i + 1) for i in range(len(losses))), tuple(losses))
    there, walked = curve.reaches(goal), dense(curve, goal)
    if there is None or walked is None:
        assert there is walked is None
    else:
        assert there == pytest.approx(walked, abs=0.011)


def test_a_ratio_is_over_each_seeds_own_goal_and_tells_what_seeds_say() -> None:
    fast = [Curve((1.0, 2.0), (0.8, 0.4)), Curve((1.0, 2.0), (0.6, 0.2))]
    slow = [Curve((4.0, 8.0), (0.8, 0.5)), Curve((4.0, 8.0), (0.6, 0.3))]
    losses = goals([fast, slow])
    assert losses == [0.5, 0.3]
    found = ratio(fast, slow, losses)
    here = (1.75, 1.75)  # three quarters of the way from 1 to 2
    assert spent(fast, losses) == pytest.approx(sum(here) / 2)
    assert spent(slow, losses) == pytest.approx(8.0)
    assert spent(slow, [0.5, 0.1]) is None
    assert found.by_seed == pytest.approx([8 / value for value in here])
    assert found.value == pytest.approx(8 / 1.75)
    assert [found.low, found.high] == pytest.approx([8 / 1.75, 8 / 1.75])
    never = ratio(fast, slow, [0.5, 0.25])
    assert (never.value, never.by_seed[1]) == (None, None)
    assert verdict("It is so", found, 2.1).startswith("It is so: yes, 4.6 times")
    assert verdict("It is so", found, 5).startswith("It is so: no, 4.6 times")
    assert "never reaches" in verdict("It is so", never, 2)
    wide = ratio(fast, [slow[0], Curve((1.0, 2.0), (0.6, 0.3))], losses)
    assert "though over other seeds it might not be" in verdict("It is so", wide, 2.1)


def test_time_is_computing_and_sending_and_an_order_that_differs_is_named() -> None:
    device = Device(flops=10.0, up=8.0, down=16.0)
    assert device.seconds(Spent(100.0, 5.0, 6.0)) == pytest.approx(100 / 10 + 5 + 3)
    expected = ("a", "b", "c")
    assert order({"a": 1.0, "b": 2.0, "c": 3.0}, expected) == "The order is the paper's: a < b < c."
    assert "c is before b" in order({"a": 1.0, "b": 4.0, "c": 3.0}, expected)
    assert "b never got there" in order({"a": 1.0, "b": None, "c": 3.0}, expected)


def test_every_row_has_the_same_passes_and_as_many_settings_and_options_differ_in_one_thing() -> None:
    size = Size()
    rows = searched(size)
    assert set(rows) == {SPZO, DECOMFL, LORA, MEZO, POOR, UNIFORM}
    assert {len(entrant.settings) for entrant in rows.values()} == {6}
    chosen = {label: next(iter(entrant.settings.values())) for label, entrant in rows.items()}
    others = settled(size, chosen)
    for entrant in [*rows.values(), *others.values()]:
        paid = entrant.passes * entrant.rounds(size) * size.steps * size.cohort
        assert paid == pytest.approx(entrant.times * size.passes, rel=0.15)
    ours = chosen[SPZO].optimizer.model_dump()
    for label, entrant in others.items():
        method = next(iter(entrant.settings.values()))
        if label not in (FEDZO, LONGER):
            changed = {name for name, value in method.optimizer.model_dump().items() if value != ours[name]}
            assert len(changed) == 1, label
    assert next(iter(others[FEDZO].settings.values())).optimizer.model_dump()["lr"] == size.rates[0]


@pytest.mark.parametrize(("cut", "directions", "again"), [(3, 1, 2), (1, 2, 1), (2, 1, 4)])
def test_passes_are_what_the_halves_cost(cut: int, directions: int, again: int) -> None:
    front, back = cut / LAYERS, 1 - cut / LAYERS
    assert cost(cut, directions, again) == pytest.approx(2 * directions * front + 4 * directions * again * back)


def test_a_row_takes_the_setting_of_the_lowest_loss_on_held_back_rows_and_one_that_diverges_loses(
    tmp_path: Path,
) -> None:
    lines = [{"text": f"verse {i} {'sing' if i % 2 else 'reign'}", "book": TITLES[1 + i % 2]} for i in range(40)]
    data = tmp_path / "books.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    size = Size(
        data=str(data), rows=40, test=8, tokens=8, clients=2, cohort=1, steps=2, batch=4, passes=14, back=(1e-3, 1e30)
    )
    entrant = searched(size)[SPZO]
    two = Entrant({name: entrant.settings[name] for name in ("0.0001 / 0.001", "0.0001 / 1e+30")}, entrant.passes)
    setting = Laptop(tmp_path, seeds=2)
    chosen, tried = _choose(SPZO, two, size, setting)
    assert chosen == "0.0001 / 0.001"
    assert tried["0.0001 / 1e+30"] is None
    rounds = two.rounds(size)
    trial = ground(size, two.settings[chosen], rounds, TUNING, every=rounds, which="all")
    record = Run(trial.folder(tmp_path / "spzo-prompted-laptop" / "search")).rounds[-1]
    held = [one["loss"] for one in record.client_metrics.values()]
    mean = sum((one.federated or 0) * one.n for one in held) / sum(one.n for one in held)
    assert tried[chosen] == pytest.approx(mean)
    row = _run(SPZO, two.settings[chosen], two, size, setting)
    assert [len(curve.losses) for curve in row.curves] == [2, 2]
    assert row.curves[0].flops[1] == pytest.approx(sum(record.flops for record in row.runs[0].rounds))
    assert len(row.scores("accuracy")) == 2 * 8


def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / "spzo-laptop.json").read_text("utf-8"))
    return found


def test_the_committed_page_is_what_the_committed_numbers_make() -> None:
    page = spzo_page.page(results(), paper.expected("fedspzo")).markdown()
    assert page == (RESULTS / "spzo-laptop.md").read_text("utf-8")


def test_the_committed_prediction_is_the_formulas() -> None:
    told = results()["cuts"]
    for cut in told["cuts"]:
        front, back = cut["front"], cut["back"]
        again = Cut(
            layer=cut["layer"],
            front_numbers=front["numbers"],
            back_numbers=back["numbers"],
            front_flops=front["flops"],
            back_flops=back["flops"],
            front_energy=front["energy"],
            back_energy=back["energy"],
        )
        assert again.saving(1) == pytest.approx(cut["saving"])
        assert again.saving(cut["again"], PEER) == pytest.approx(cut["saving_over_forward"])
    assert told["best"] == max(told["cuts"], key=lambda cut: cut["saving_there"])["layer"]


def test_the_committed_rows_spent_alike_and_say_so() -> None:
    rows = results()["rows"]
    zeroth = [row["flops"] for label, row in rows.items() if label not in (LORA, LONGER)]
    assert max(zeroth) / min(zeroth) < 1.25
    goal = spzo_page.target(rows)
    assert all(spent(spzo_page.curves(rows[label]), goal) for label in (SPZO, DECOMFL, FEDZO, MEZO))
    for row in rows.values():
        assert len(row["losses"]) == len(results()["seeds"])
        assert all(math.isfinite(value) for seed in row["losses"] for value in seed)
        known = {name: loss for name, loss in row["tried"].items() if loss is not None}
        assert not known or row["setting"] == min(known, key=known.__getitem__)


def test_the_readme_says_what_the_numbers_say() -> None:
    said = " ".join((paper.folder("fedspzo") / "README.md").read_text("utf-8").split())
    rows = results()["rows"]
    goal = spzo_page.target(rows)

    def over(theirs: str, ours: str = SPZO) -> Ratio:
        return ratio(spzo_page.curves(rows[ours]), spzo_page.curves(rows[theirs]), goal)

    def ends(found: Ratio) -> str:
        return f"{found.low:.1f} to {found.high:.1f}"

    to_decomfl, to_fedzo, to_mezo = (over(peer) for peer in (DECOMFL, FEDZO, MEZO))
    poor, cuts = over(DECOMFL, POOR), over(POOR)
    for told, found in (
        (
            f"{to_decomfl.value:.1f} times fewer FLOPs than DeComFL** to the same loss (95 % over five seeds ",
            to_decomfl,
        ),
        (f"{to_fedzo.value:.1f} times fewer than FedZO (", to_fedzo),
        (f"**Against MeZO it is {to_mezo.value:.1f} times** (", to_mezo),
        (f"over DeComFL; measured are {poor.value:.1f} (", poor),
        (f"not told apart ({cuts.value:.1f} times, ", cuts),
    ):
        assert f"{told}{ends(found)}" in said
    predicted = {cut["layer"]: cut["saving_over_forward"] for cut in results()["cuts"]["cuts"]}
    assert f"the probe had predicted {predicted[3]:.1f}" in said
    assert f"At the first cut it predicts {predicted[1]:.1f} times" in said
    assert f"({over(UNIFORM).value:.2f} times the FLOPs)" in said
    assert f"**Independent blocks cost {over('independent blocks').value:.1f} times as much**, on every seed" in said
    assert min(value or 0 for value in over("independent blocks").by_seed) > 1
    assert f"P_1 = 2 costs {over('P_1 = 2').value:.1f} times as much, P_s = 4 {over('P_s = 4').value:.1f} times" in said
    assert [sum(value is None for value in over(label).by_seed) for label in ("P_s = 1", "cut 2")] == [1, 1]
    for label, words in ((SPZO, "points of accuracy after as many passes"), (LONGER, "after four times as many")):
        gap, low, high = rows[label]["behind_lora"]
        assert f"{gap:.0f} {words} ({low:.0f} to {high:.0f})" in said
    assert len(results()["seeds"]) == 5


def test_the_results_hold_nothing_of_the_machine() -> None:
    text = (RESULTS / "spzo-laptop.json").read_text("utf-8") + (RESULTS / "spzo-laptop.md").read_text("utf-8")
    assert not re.search(r"seconds\"|/tmp|/work|/home", text)


def test_the_reproduction_is_listed_and_its_files_are_there() -> None:
    assert REPRODUCTIONS[SPZOPrompted.name] is SPZOPrompted
    assert all((Path(paper.folder("fedspzo")) / file).is_file() for file in SPZOPrompted.files)
