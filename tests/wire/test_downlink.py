"""How theta comes down: all of it, or what changed since the version that is held; either way the same bits arrive."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from cotune.core.change import Base, origin
from cotune.core.contracts import Downlink, Layouts
from cotune.core.journal import Increment
from cotune.core.message import Parts
from cotune.core.spec import Entry, Role, Scope, Spec
from cotune.core.state import Theta
from cotune.laws import ListJournal
from cotune.wire import DOWNLINKS, ChangedDownlink, FullDownlink, dtype_name

NAMES = ("a", "b", "c", "d")
SPEC = Spec(tuple(Entry(name, (i + 1, 2), Role.FULL, name) for i, name in enumerate(NAMES)))
SCOPE = Scope(NAMES, NAMES, NAMES)
HISTORIES = st.lists(st.sets(st.sampled_from(NAMES)), max_size=5)


def history_of(changes: list[set[str]]) -> tuple[list[Theta], ListJournal]:
    """Version 0, 1, 2, … and the journal between them; every changed tensor takes a value of its own."""
    versions, journal = [Theta({name: torch.zeros(SPEC[name].shape) for name in NAMES})], ListJournal()
    for round_, names in enumerate(changes, start=1):
        fresh = {name: torch.full(SPEC[name].shape, float(round_)) for name in names}
        versions.append(versions[-1].replace(fresh))
        journal.append(Increment(round_, tuple(sorted(names))))
    return versions, journal


def never(theta: Theta, increment: Increment) -> Theta:
    raise AssertionError(f"round {increment.round} was folded again")


def layouts_of(parts: Parts) -> Layouts:
    return {
        part: {name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in named.items()}
        for part, named in parts.items()
    }


@given(st.sampled_from([FullDownlink(), ChangedDownlink()]), HISTORIES)
def test_every_held_version_arrives_at_the_newest_theta_in_the_layout_announced(
    downlink: Downlink, changes: list[set[str]]
) -> None:
    versions, journal = history_of(changes)
    for held, old in enumerate(versions):
        parts = downlink.pack(versions[-1], SCOPE, journal, held)
        assert downlink.open(parts, old, never).sha256() == versions[-1].sha256()
        assert layouts_of(parts) == downlink.layout(SPEC, SCOPE, journal.since(held))


@given(HISTORIES)
def test_only_what_changed_since_comes_down(changes: list[set[str]]) -> None:
    versions, journal = history_of(changes)
    for held in range(len(versions)):
        expected = set().union(*changes[held:])
        assert set(ChangedDownlink().pack(versions[-1], SCOPE, journal, held)["theta"]) == expected


def test_nothing_comes_down_to_a_client_that_is_current() -> None:
    versions, journal = history_of([{"a"}, {"b"}])
    assert ChangedDownlink().pack(versions[-1], SCOPE, journal, 2) == {"theta": {}}
    assert set(FullDownlink().pack(versions[-1], SCOPE, journal, 2)["theta"]) == set(NAMES)


def test_rounds_that_were_abandoned_leave_a_gap_that_does_not_matter() -> None:
    versions, journal = history_of([{"a"}, {"b"}])
    sparse = ListJournal([Increment(2, ("a",)), Increment(7, ("b",))])
    assert set(ChangedDownlink().pack(versions[-1], SCOPE, sparse, 3)["theta"]) == {"b"}
    assert set(ChangedDownlink().pack(versions[-1], SCOPE, sparse, 1)["theta"]) == {"a", "b"}
    del journal


def test_changes_on_top_of_another_version_than_the_one_held_show_in_the_origin() -> None:
    versions, journal = history_of([{"a"}, {"b"}])
    parts = ChangedDownlink().pack(versions[2], SCOPE, journal, 1)
    assert origin(ChangedDownlink().open(parts, versions[1], never), Base()) == origin(versions[2], Base())
    assert origin(ChangedDownlink().open(parts, versions[0], never), Base()) != origin(versions[2], Base())


def test_names_that_do_not_come_down_keep_what_is_held() -> None:
    versions, journal = history_of([set(NAMES)])
    scope = Scope(NAMES, ("a", "b"), ("a", "b"))
    opened = FullDownlink().open(FullDownlink().pack(versions[1], scope, journal, 0), versions[0], never)
    assert {name: float(opened[name].max()) for name in NAMES} == {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.0}
    for downlink in (FullDownlink(), ChangedDownlink()):
        assert downlink.open({}, versions[0], never).sha256() == versions[0].sha256()


def test_only_the_downlink_that_builds_on_a_version_says_that_the_client_holds_one() -> None:
    assert [kind for kind, cls in DOWNLINKS.items() if cls.holds] == ["changed", "replay", "auto"]
