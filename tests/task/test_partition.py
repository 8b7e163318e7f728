"""Every row goes to exactly one client, whatever the labels, and a seed alone decides which."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.core.errors import Code, CotuneError
from cotune.core.part import resolve
from cotune.task.column import client_names
from cotune.task.partition import Dirichlet, Iid, Natural, Partition, Sizes, dirichlet, iid, natural, sizes
from cotune.task.partitions import PARTITIONS, Classes, FewShot, LongTail, Quantity

ALPHAS = (1e-8, 1e-3, 0.1, 1.0, 1e4)


def assert_cover(parts: Sequence[list[int]], rows: int, minimum: int = 0) -> None:
    assert sorted(itertools.chain(*parts)) == list(range(rows))
    assert all(type(row) is int for part in parts for row in part)
    assert min(map(len, parts)) >= minimum


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_grid_of_hard_cases_ends_with_an_exact_cover_or_one_clear_error(alpha: float) -> None:
    started = time.monotonic()
    for clients, rows, classes, minimum in itertools.product((1, 10, 100), (5, 100, 1000), (1, 2, 10), (0, 1, 10)):
        labels = [row % classes for row in range(rows)]
        if rows < clients * minimum:
            with pytest.raises(CotuneError) as caught:
                dirichlet(labels, clients, alpha, 0, minimum)
            assert caught.value.code is Code.DATA
            for said in (f"alpha {alpha:g}", f"minimum {minimum}", f"{rows} rows", f"{clients} clients"):
                assert said in str(caught.value)
            continue
        parts = dirichlet(labels, clients, alpha, 0, minimum)
        assert len(parts) == clients
        assert_cover(parts, rows, minimum)
    assert time.monotonic() - started < 5


@given(
    labels=st.lists(
        st.one_of(st.integers(-2, 2), st.text(max_size=2), st.none(), st.just(math.nan), st.booleans(), st.floats()),
        max_size=60,
    ),
    clients=st.integers(1, 70),
    alpha=st.floats(min_value=5e-324, max_value=1.7e308),
    seed=st.integers(-(2**63), 2**63 - 1),
    minimum=st.integers(0, 3),
)
def test_any_labels_are_covered_exactly_once(
    labels: list[Hashable], clients: int, alpha: float, seed: int, minimum: int
) -> None:
    if len(labels) < clients * minimum:
        with pytest.raises(CotuneError, match="E_DATA"):
            dirichlet(labels, clients, alpha, seed, minimum)
        return
    parts = dirichlet(labels, clients, alpha, seed, minimum)
    assert len(parts) == clients
    assert_cover(parts, len(labels), minimum)
    assert parts == dirichlet(labels, clients, alpha, seed, minimum)


def test_missing_labels_are_classes_of_their_own_and_every_nan_is_the_same_one() -> None:
    labels = [float("nan") for _ in range(50)] + [None] * 50
    parts = dirichlet(labels, 4, 1e-8, 3, minimum=0)
    assert_cover(parts, 100)
    assert sorted(len(part) for part in parts if part) in ([50, 50], [100])


def test_array_scalars_divide_as_the_plain_numbers_do() -> None:
    plain = [row % 3 for row in range(40)]
    assert dirichlet(list(np.asarray(plain)), 4, 0.5, 0) == dirichlet(plain, 4, 0.5, 0)


def test_a_label_that_cannot_be_a_class_is_refused_with_its_row() -> None:
    with pytest.raises(CotuneError, match=r"E_DATA.*row 2.*list"):
        dirichlet([0, ["secret"]], 1, 1.0, 0)  # type: ignore[list-item]


def test_neither_names_nor_types_of_labels_matter() -> None:
    numbers = [0] * 30 + [1] * 20 + [2] * 10
    for names in (["b", "a", "c"], [9.5, -1.0, 0.0], [None, "", (1,)]):
        assert dirichlet([names[label] for label in numbers], 5, 0.3, 7) == dirichlet(numbers, 5, 0.3, 7)


@given(st.permutations([0] * 12 + [1] * 8 + [2] * 5))
def test_the_order_of_rows_leaves_the_label_counts_of_every_client_alone(labels: list[int]) -> None:
    def counts(rows: list[int]) -> list[Counter[int]]:
        return [Counter(rows[row] for row in part) for part in dirichlet(rows, 4, 0.5, 1, minimum=0)]

    assert counts(labels) == counts(sorted(labels))


def test_a_seed_means_the_same_in_another_process() -> None:
    labels = ["pos", "neg", "other"] * 20
    kinds = (
        Classes(clients=5, classes=2),
        FewShot(clients=4, shots=2),
        LongTail(clients=4),
        Quantity(clients=4, alpha=1),
    )
    tables = [part.model_dump(mode="json") for part in kinds]
    program = (
        "import json; from cotune.core.part import resolve; from cotune.task.partition import dirichlet, natural; "
        "from cotune.task.partitions import PARTITIONS; labels = ['pos', 'neg', 'other'] * 20; "
        f"parts = [resolve('partition', PARTITIONS, table) for table in {tables!r}]; "
        "print(json.dumps([dirichlet(labels, 4, 0.1, 5), natural(labels, 2, 5), "
        "*([*part.split([{}] * 60, labels, 5).values()] for part in parts)]))"
    )
    ours = [[*part.split([{}] * 60, labels, 5).values()] for part in kinds]
    for hash_seed in ("0", "1"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        out = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
        assert json.loads(out.stdout) == [dirichlet(labels, 4, 0.1, 5), natural(labels, 2, 5), *ours]


def test_another_seed_divides_otherwise() -> None:
    labels = [row % 2 for row in range(100)]
    assert dirichlet(labels, 5, 1.0, 0) != dirichlet(labels, 5, 1.0, 1)
    assert iid(100, 5, 0) != iid(100, 5, 1)


def test_alpha_goes_from_one_owner_a_class_to_equal_shares() -> None:
    labels = [row % 5 for row in range(1000)]
    concentrated = dirichlet(labels, 10, 1e-8, 0, minimum=0)
    assert all(sum(any(labels[r] == c for r in part) for part in concentrated) == 1 for c in range(5))
    even = dirichlet(labels, 10, 1e8, 0)
    assert all(abs(Counter(labels[r] for r in part)[c] - 20) <= 1 for part in even for c in range(5))


def test_shares_have_the_mean_and_the_spread_of_the_distribution() -> None:
    shares = np.array([len(dirichlet([0] * 2000, 4, 0.5, seed, minimum=0)[0]) / 2000 for seed in range(400)])
    assert shares.mean() == pytest.approx(1 / 4, abs=0.04)
    assert shares.var() == pytest.approx(1 / 4 * 3 / 4 / (4 * 0.5 + 1), rel=0.2)


def test_a_minimum_takes_rows_from_the_largest_clients_only() -> None:
    labels = [0] * 100
    before, after = dirichlet(labels, 10, 0.05, 2, minimum=0), dirichlet(labels, 10, 0.05, 2, minimum=5)
    largest = max(map(len, after))
    assert min(map(len, before)) < 5 < largest < max(map(len, before))
    for old, new in zip(before, after, strict=True):
        assert len(old) >= largest or set(old) <= set(new)
    assert_cover(after, 100, 5)


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan, math.inf])
def test_an_alpha_that_is_no_positive_number_is_refused(alpha: float) -> None:
    with pytest.raises(CotuneError, match=r"E_CONFIG.*alpha"):
        dirichlet([0, 1], 1, alpha, 0)


@pytest.mark.parametrize(("clients", "minimum"), [(0, 1), (-1, 0), (1, -1)])
def test_counts_that_mean_nothing_are_refused(clients: int, minimum: int) -> None:
    with pytest.raises(CotuneError, match="E_CONFIG"):
        dirichlet([0, 1], clients, 1.0, 0, minimum)


@given(count=st.integers(1, 200), clients=st.integers(1, 50), seed=st.integers(0, 5))
def test_even_clients_differ_by_one_row_at_most(count: int, clients: int, seed: int) -> None:
    if count < clients:
        with pytest.raises(CotuneError, match="E_DATA"):
            iid(count, clients, seed)
        return
    parts = iid(count, clients, seed)
    assert_cover(parts, count, 1)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(count=st.integers(0, 200), shares=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20))
def test_given_sizes_are_kept_in_proportion_and_leave_nobody_out(count: int, shares: list[float]) -> None:
    if count < len(shares):
        with pytest.raises(CotuneError, match="E_DATA"):
            sizes(count, shares, 0)
        return
    assert_cover(sizes(count, shares, 0), count, 1)


def test_sizes_that_fit_are_met_exactly() -> None:
    assert [len(part) for part in sizes(60, (10, 20, 30), 0)] == [10, 20, 30]


@given(keys=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=80), clients=st.integers(1, 9))
def test_groups_stay_whole_and_clients_stay_balanced(keys: list[str], clients: int) -> None:
    if len(set(keys)) < clients:
        with pytest.raises(CotuneError, match=r"E_DATA.*values of the key"):
            natural(keys, clients, 0)
        return
    parts = natural(keys, clients, 0)
    assert_cover(parts, len(keys), 1)
    owners = [{keys[row] for row in part} for part in parts]
    assert sum(map(len, owners)) == len(set(keys))
    largest = max(Counter(keys).values())
    assert max(map(len, parts)) - min(map(len, parts)) <= largest


ROWS = [{"who": f"ward {row % 3}", "kind": row % 2} for row in range(30)]
LABELS = [row % 5 for row in range(30)]


@pytest.mark.parametrize(
    "part",
    [
        Iid(clients=3),
        Sizes(sizes=(1, 2, 3)),
        Dirichlet(clients=3, alpha=0.5),
        Dirichlet(clients=3, alpha=0.5, by="kind"),
        Natural(key="who"),
        Natural(key="who", clients=2),
    ],
)
def test_every_part_covers_the_rows_and_survives_its_own_table(part: Partition) -> None:
    parts = part.split(ROWS, LABELS, 4)
    assert_cover(list(parts.values()), 30, 1)
    assert resolve("partition", PARTITIONS, part.model_dump()) == part
    assert type(part).summary()


def test_client_ids_are_numbered_with_zeros_in_front() -> None:
    assert list(Iid(clients=3).split(ROWS, LABELS, 0)) == ["client-00", "client-01", "client-02"]
    assert list(Iid(clients=101).split([{}] * 101, [0] * 101, 0))[7] == "client-007"


def test_natural_clients_are_named_after_their_key() -> None:
    assert list(Natural(key="id").split([{"id": "ann"}, {"id": 7}, {"id": "ann"}], [0] * 3, 0)) == ["ann", "7"]


@given(st.lists(st.text(max_size=60), unique=True, max_size=12))
def test_names_made_from_any_keys_are_safe_and_differ_even_without_case(keys: list[str]) -> None:
    names = client_names(keys)
    assert len({name.casefold() for name in names}) == len(keys)
    assert all(name.isascii() and not set(name) & set("/\\ :\0\n") and not name.startswith(".") for name in names)
    assert all(0 < len(name) <= 60 for name in names)
    assert names == client_names(keys)


@pytest.mark.parametrize("key", [None, math.nan, "", "  "])
def test_a_row_without_a_key_is_refused_with_its_number(key: object) -> None:
    with pytest.raises(CotuneError, match=r"E_DATA.*row 2"):
        Natural(key="id").split([{"id": "a"}, {"id": key}], [0, 0], 0)


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(CotuneError, match=r"did you mean 'dirichlet'"):
        resolve("partition", PARTITIONS, {"kind": "dirichlett"})
