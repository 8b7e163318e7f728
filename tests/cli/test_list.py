"""The list of everything that an experiment can name."""

from __future__ import annotations

import pytest
from typed import typing

from cotune import resolve
from cotune.cli.rooms import listing, rooms
from cotune.core.reference import parse
from cotune.method import ROOMS


def test_every_kind_of_every_room_has_a_line() -> None:
    text = listing()
    for room, kinds in ROOMS.items():
        assert f"\n{room}\n" in text
        for kind, part in kinds.items():
            assert f"  {kind} " in text
            assert part.summary() in text
    assert all(f"  {name} " in text for name in resolve.recipes())


def test_one_room_is_one_block(capfd: pytest.CaptureFixture[str]) -> None:
    said = typing(capfd)("list", "partition")
    assert said.out.splitlines()[0] == "partition"
    assert "dirichlet" in said.out
    assert "lora" not in said.out


def test_every_line_says_something() -> None:
    for room, rows in rooms().items():
        for kind, what in rows:
            assert what.strip(), (room, kind)
            assert "\n" not in what


def test_what_is_listed_as_a_packaged_or_synthetic_reference_is_one() -> None:
    for room in ("backbone", "data"):
        for form, _ in rooms()[room]:
            if form.startswith(("pkg:", "synth:")):
                assert parse(form).text == form
