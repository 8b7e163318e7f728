"""Whatever the kind: a row goes to exactly one client, a seed alone decides to whom, or one line says why it cannot."""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cotune.core.contracts import Row
from cotune.core.errors import Code, CotuneError
from cotune.core.part import resolve
from cotune.laws import check_part
from cotune.task import Alone, Classes, Dirichlet, Domains, FewShot, Iid, LongTail, Natural, Quantity, Sizes
from cotune.task.dealing import level
from cotune.task.partition import Partition
from cotune.task.partitions import PARTITIONS

Parts = Mapping[str, list[int]]

# The hard cases of every kind: what it makes of so many clients and so small a number.
KINDS: Mapping[str, Callable[[int, int], Partition]] = {
    "alone": lambda _clients, _small: Alone(client="clinic-a"),
    "classes": lambda clients, small: Classes(clients=clients, classes=max(small, 1)),
    "dirichlet": lambda clients, small: Dirichlet(clients=clients, alpha=1e-3, minimum=small),
    "domains": lambda clients, _small: Domains(
        key="who", domains={f"d{k}": tuple(range(k, 10, clients)) for k in range(min(clients, 10))}
    ),
    "few-shot": lambda clients, small: FewShot(clients=clients + 1, few=max(clients // 2, 1), shots=max(small, 1)),
    "iid": lambda clients, _small: Iid(clients=clients),
    "long-tail": lambda clients, small: LongTail(clients=clients, holders=min(max(small, 1), clients)),
    "natural": lambda clients, _small: Natural(key="who", clients=clients),
    "quantity": lambda clients, small: Quantity(clients=clients, alpha=1e-3, minimum=small),
    "sizes": lambda clients, small: Sizes(sizes=tuple(1 + client * small for client in range(clients))),
}
FEW, MANY = [row % 5 for row in range(60)], ["a"] * 50 + ["b"] * 30 + ["c"] * 12 + ["d"] * 6 + ["e"] * 2


def split(part: Partition, labels: Sequence[Hashable], seed: int = 0) -> dict[str, list[int]]:
    """The labels divided; the column `who` repeats them as texts."""
    return part.split([{"who": str(label)} for label in labels], labels, seed)


def attempt(part: Partition, labels: Sequence[Hashable]) -> Parts | CotuneError:
    """The labels divided, or why they cannot be."""
    try:
        return split(part, labels)
    except CotuneError as error:
        return error


def assert_cover(parts: Parts, rows: int) -> None:
    assert sorted(itertools.chain(*parts.values())) == list(range(rows))
    assert all(type(row) is int for part in parts.values() for row in part)
    assert all(part == sorted(part) for part in parts.values())


def classes_of(parts: Parts, labels: Sequence[Hashable]) -> list[Counter[Hashable]]:
    return [Counter(labels[row] for row in part) for part in parts.values()]


def test_every_kind_is_in_the_grid() -> None:
    assert set(KINDS) == set(PARTITIONS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_grid_of_hard_cases_ends_with_an_exact_cover_or_one_clear_error(kind: str) -> None:
    started, covered, refused = time.monotonic(), 0, 0
    for clients, rows, classes, small in itertools.product((1, 10, 100), (5, 100, 1000), (1, 2, 10), (0, 1, 10)):
        labels = [row % classes for row in range(rows)]
        part = KINDS[kind](clients, small)
        parts = attempt(part, labels)
        if isinstance(parts, CotuneError):
            assert parts.code is Code.DATA
            assert "got" in str(parts)
            assert "expected" in str(parts)
            assert "\n" not in str(parts)
            refused += 1
            continue
        assert_cover(parts, rows)
        assert min(map(len, parts.values())) >= (small if kind in ("dirichlet", "quantity") else 1)
        assert parts == split(part, labels)
        covered += 1
    assert time.monotonic() - started < 5
    assert covered
    assert refused or kind == "alone"


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"domains", "natural"}))  # names are what these divide by
def test_neither_names_nor_types_of_classes_matter(kind: str) -> None:
    part = KINDS[kind](2, 3)
    for names in (["b", "a", "c", "e", "d"], [9.5, -1.0, 0.0, 2.0, 1.0], [None, "", (1,), math.nan, True]):
        assert split(part, [names[label] for label in FEW], 7) == split(part, FEW, 7)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"alone", "domains"}))
def test_another_seed_divides_otherwise(kind: str) -> None:
    part = KINDS[kind](2, 3)
    assert len({json.dumps(split(part, FEW, seed)) for seed in range(4)}) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_survives_its_own_table_and_says_what_it_is(kind: str) -> None:
    part = KINDS[kind](2, 1)
    again = resolve("partition", PARTITIONS, part.model_dump(mode="json"))
    assert again == part
    assert hash(again) == hash(part)
    assert type(part).summary()


@given(
    labels=st.lists(st.sampled_from("aaaabbbccd"), min_size=1, max_size=60),
    clients=st.integers(1, 8),
    classes=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_a_client_has_exactly_so_many_classes(labels: list[str], clients: int, classes: int, seed: int) -> None:
    sizes, part = Counter(labels), Classes(clients=clients, classes=classes)
    places, rows = clients * classes, sum(min(size, clients) for size in sizes.values())
    if classes > len(sizes) or places < len(sizes) or rows < places:
        with pytest.raises(CotuneError, match="E_DATA"):
            split(part, labels, seed)
        return
    parts = split(part, labels, seed)
    assert_cover(parts, len(labels))
    found = classes_of(parts, labels)
    assert all(len(counts) == classes for counts in found)
    holders = {name: [counts[name] for counts in found if counts[name]] for name in sizes}
    assert all(max(shares) - min(shares) <= 1 for shares in holders.values())
    most = max(map(len, holders.values()))
    for name, shares in holders.items():
        assert len(shares) >= min(most - 1, sizes[name]), "only a class without more rows has fewer clients"


@given(limits=st.lists(st.integers(0, 9), max_size=8), share=st.floats(0, 1))
def test_a_total_is_levelled_as_one_after_the_other_would_be(limits: list[int], share: float) -> None:
    total = int(share * sum(limits))
    dumb = [0] * len(limits)
    for _ in range(total):
        free = [place for place, limit in enumerate(limits) if dumb[place] < limit]
        dumb[min(free, key=lambda place: dumb[place])] += 1
    assert level(limits, total) == dumb


@given(rows=st.integers(0, 120), clients=st.integers(1, 12), minimum=st.integers(0, 3), seed=st.integers(0, 5))
def test_drawn_sizes_keep_their_minimum(rows: int, clients: int, minimum: int, seed: int) -> None:
    for alpha in (5e-324, 0.1, 1e300):
        part = Quantity(clients=clients, alpha=alpha, minimum=minimum)
        if rows < clients * minimum:
            with pytest.raises(CotuneError, match=r"E_DATA.*quantity alpha"):
                split(part, [0] * rows, seed)
            continue
        parts = split(part, [0] * rows, seed)
        assert_cover(parts, rows)
        assert min(map(len, parts.values())) >= minimum


def test_drawn_sizes_have_the_mean_and_the_spread_of_the_distribution_and_labels_play_no_part() -> None:
    part = Quantity(clients=4, alpha=0.5, minimum=0)
    shares = np.array([len(split(part, [0] * 2000, seed)["client-00"]) / 2000 for seed in range(300)])
    assert shares.mean() == pytest.approx(1 / 4, abs=0.04)
    assert shares.var() == pytest.approx(1 / 4 * 3 / 4 / (4 * 0.5 + 1), rel=0.2)
    assert split(part, MANY) == split(part, [0] * len(MANY))
    assert {len(part) for part in split(Quantity(clients=4, alpha=1e12), MANY).values()} == {25}


@given(
    labels=st.lists(st.sampled_from("aab"), min_size=1, max_size=40),
    few=st.integers(1, 3),
    others=st.integers(1, 4),
    shots=st.integers(1, 4),
)
def test_few_shot_clients_have_so_many_rows_of_each_class_and_the_others_share_the_rest_evenly(
    labels: list[str], few: int, others: int, shots: int
) -> None:
    sizes, part = Counter(labels), FewShot(clients=few + others, few=few, shots=shots)
    if min(sizes.values()) < few * shots or len(labels) - few * shots * len(sizes) < others:
        with pytest.raises(CotuneError, match=r"E_DATA.*few-shot"):
            split(part, labels)
        return
    parts = split(part, labels)
    assert_cover(parts, len(labels))
    found = classes_of(parts, labels)
    assert all(counts == dict.fromkeys(sizes, shots) for counts in found[:few])
    rest = [counts.total() for counts in found[few:]]
    assert max(rest) - min(rest) <= 1


def test_few_rows_in_all_need_no_label() -> None:
    parts = FewShot(clients=4, few=3, shots=2, of="client").split([{}] * 20, [None] * 20, 0)
    assert_cover(parts, 20)
    assert [len(part) for part in parts.values()] == [2, 2, 2, 14]


SUBJECTS = ["law", "ethics", "physics", "law", "virology", "physics"]


def test_a_domain_is_a_client_of_the_values_that_the_map_lists() -> None:
    part = Domains(
        key="who", domains={"right": ("law", "ethics"), "science": ("physics", "unheard of"), "med": ("virology",)}
    )
    assert split(part, SUBJECTS) == {"right": [0, 1, 3], "science": [2, 5], "med": [4]}
    with pytest.raises(CotuneError, match=r"E_DATA.*column 'who'.*2 rows, of 1 other values.*rest"):
        split(Domains(key="who", domains={"right": ("law", "ethics"), "med": ("virology",)}), SUBJECTS)
    with pytest.raises(CotuneError, match=r"E_DATA.*no row of the domain 'art'"):
        split(Domains(key="who", domains={"art": ("music",)}, rest="others"), SUBJECTS)


def test_values_in_no_domain_go_to_the_client_that_is_named_for_them() -> None:
    some = {"right": ("law", "ethics")}
    assert split(Domains(key="who", domains=some, rest="others"), SUBJECTS) == {"right": [0, 1, 3], "others": [2, 4, 5]}
    assert split(Domains(key="who", domains=some, rest="right"), SUBJECTS) == {"right": [0, 1, 2, 3, 4, 5]}
    assert split(Domains(key="who", domains=some, rest="others"), ["law"]) == {"right": [0]}
    assert split(Domains(key="who", domains={"of 2001": (2001,)}), [2001]).popitem()[1] == [0]


def test_mmlus_own_domains_are_such_a_map() -> None:
    from cotune.task.mmlu import DOMAINS

    rows = [{"subject": subject, "domain": name} for name, subjects in DOMAINS.items() for subject in subjects]
    found = Domains(key="subject", domains=DOMAINS).split(rows, [None] * len(rows), 0)
    assert found == Natural(key="domain").split(rows, [None] * len(rows), 0)


def test_the_tail_is_the_rarest_classes_and_few_clients_have_them() -> None:
    part = LongTail(clients=4, holders=2, tail=3)
    assert part.rare(MANY) == {"c", "d", "e"}
    found = classes_of(split(part, MANY), MANY)
    assert [sum(bool(counts[name]) for counts in found) for name in "abcde"] == [4, 4, 2, 2, 2]
    for name in "abcde":
        shares = [counts[name] for counts in found if counts[name]]
        assert max(shares) - min(shares) <= 1
    assert sorted(sum(bool(counts[name]) for name in "cde") for counts in found) == [1, 1, 2, 2], "they take turns"


@pytest.mark.parametrize(
    ("share", "rare"),
    [(0.01, "e"), (0.02, "e"), (0.08, "de"), (0.2, "cde"), (0.49, "cde"), (0.5, "bcde"), (0.9, "bcde")],
)
def test_a_share_of_the_rows_makes_a_tail_of_at_most_so_many(share: float, rare: str) -> None:
    assert LongTail(clients=2, tail=share).rare(MANY) == set(rare)


@given(
    labels=st.lists(st.sampled_from("aaaaabbbccd"), min_size=1, max_size=80),
    clients=st.integers(1, 6),
    holders=st.integers(1, 3),
    tail=st.one_of(st.integers(1, 3), st.floats(0.01, 0.6)),
)
def test_frequent_classes_are_everyones_and_rare_ones_the_holders(
    labels: list[str], clients: int, holders: int, tail: float
) -> None:
    part = LongTail(clients=clients, holders=min(holders, clients), tail=tail)
    sizes: Counter[Hashable] = Counter(labels)
    if len(sizes) <= (tail if isinstance(tail, int) else 1):
        with pytest.raises(CotuneError, match=r"E_DATA.*too few classes for a tail"):
            split(part, labels)
        return
    rare = part.rare(labels)
    assert max(sizes[name] for name in rare) <= min(sizes[name] for name in sizes if name not in rare)
    if sum(size for name, size in sizes.items() if name not in rare) < clients:
        with pytest.raises(CotuneError, match=r"E_DATA.*frequent"):
            split(part, labels)
        return
    parts = split(part, labels)
    assert_cover(parts, len(labels))
    for name, size in sizes.items():
        shares = [counts[name] for counts in classes_of(parts, labels)]
        if name in rare:
            assert sum(map(bool, shares)) == min(part.holders, size)
        else:
            assert max(shares) - min(shares) <= 1


def test_classes_can_stand_in_a_column_and_then_no_label_is_read() -> None:
    rows = [{"ward": f"w{row % 3}"} for row in range(30)] + [{"ward": "w3"}] * 2
    for part in (
        Classes(clients=4, classes=2, by="ward"),
        FewShot(clients=2, shots=2, by="ward"),
        LongTail(clients=2, by="ward"),
    ):
        assert (part.column, part.labelled) == ("ward", False)
        assert part.split(rows, [None] * 32, 0) == part.model_copy(update={"by": None}).split(
            rows, [row["ward"] for row in rows], 0
        )


def test_a_client_alone_has_every_row_under_its_own_name() -> None:
    assert split(Alone(client="clinic-a"), [0, 1, 2]) == {"clinic-a": [0, 1, 2]}
    with pytest.raises(CotuneError, match=r"E_DATA.*alone, clinic-a.*0 rows"):
        split(Alone(client="clinic-a"), [])


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        ("alone", {"client": "../etc"}, "folder"),
        ("alone", {"client": ""}, "folder"),
        ("classes", {"clients": 2, "classes": 0}, "greater than or equal to 1"),
        ("domains", {"key": "k", "domains": {}}, "at least 1"),
        ("domains", {"key": "k", "domains": {"a": []}}, "at least 1"),
        ("domains", {"key": "k", "domains": {"a": ["x"], "b": ["y", "x"]}}, "'x' is in two domains"),
        ("few-shot", {"clients": 2, "few": 2, "shots": 1}, "takes the rest"),
        ("few-shot", {"clients": 2, "shots": 1, "of": "client", "by": "k"}, "by names classes"),
        ("long-tail", {"clients": 2, "holders": 3}, "3 holders of 2 clients"),
        ("long-tail", {"clients": 2, "tail": 1.5}, "less than 1"),
        ("quantity", {"clients": 2, "alpha": 0}, "greater than 0"),
    ],
)
def test_fields_that_mean_nothing_are_refused(kind: str, fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        PARTITIONS[kind].model_validate(fields)
    with pytest.raises(CotuneError, match="E_CONFIG"):
        resolve("partition", PARTITIONS, {"kind": kind, **fields})


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_keeps_the_laws_of_the_room(kind: str) -> None:
    assert [why for _, why in check_part(KINDS[kind](2, 3)) if why] == []


class Wrong(Partition):
    """The first half and the second half, but for one mistake."""

    kind: ClassVar[str] = "wrong"

    mistake: str = ""

    @property
    def labelled(self) -> bool:
        return True

    def split(self, rows: Sequence[Row], labels: Sequence[Hashable], seed: int) -> dict[str, list[int]]:
        order = list(range(len(rows)))
        match self.mistake:
            case "lost":
                del order[0]
            case "twice":
                order.append(order[-1])
            case "array":
                return {"a": list(np.arange(len(rows)))}
            case "turned":
                return {"a": order[::-1]}
            case "name":
                return {"../a": order}
            case "global":
                random.shuffle(order)  # not of the seed
            case "names":
                order.sort(key=lambda row: str(labels[row]))
            case "inputs" if isinstance(labels, list):
                labels.append("more")
        half = len(order) // 2
        return {"a": sorted(order[:half]), "b": sorted(order[half:])}


@pytest.mark.parametrize(
    ("mistake", "laws"),
    [
        ("", []),
        ("lost", ["Every row"]),
        ("twice", ["Every row"]),
        ("array", ["Every row"]),
        ("turned", ["Every row"]),
        ("name", ["Client ids"]),
        ("global", ["The same rows", "What labels"]),
        ("names", ["What labels"]),
        ("inputs", ["It leaves"]),
    ],
)
def test_each_law_finds_what_it_is_about(mistake: str, laws: list[str]) -> None:
    broken = [law for law, why in check_part(Wrong(mistake=mistake)) if why]
    assert [law.startswith(told) for law, told in zip(broken, laws, strict=True)] == [True] * len(laws), broken
