"""The laws of a room, on ours and on anybody's part."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed import Type, refused, typing

THEIRS = '''
from typing import ClassVar
import torch
from cotune.core.contracts import Penalty
from cotune.core.part import Capability

class Mine(Penalty):
    """strength · Σ θ², pulls towards zero."""
    kind: ClassVar[str] = "mine"
    strength: float

    def __call__(self, tensors, view):
        return self.strength * torch.stack([t.square().sum() for t in tensors.values()]).sum()

class Liar(Mine):
    """strength · Σ θ², and says that it is zero at the anchor."""
    kind: ClassVar[str] = "liar"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.ANCHOR})
    strength: float = 1.0
'''


@pytest.fixture
def type_(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    monkeypatch.chdir(tmp_path)
    Path("their_penalties.py").write_text(THEIRS)
    return typing(capfd)


def test_a_part_of_ours_keeps_its_laws(type_: Type) -> None:
    said = type_("check", "proximal", "--set", "mu=0.1")
    assert (said.status, said.err) == (0, "")
    *laws, summary = said.out.splitlines()
    assert all(line.startswith("ok ") for line in laws)
    assert summary == f"{len(laws)} of {len(laws)} laws hold for Proximal(mu=0.1)"


def test_a_part_of_the_current_folder_is_found_by_its_path(type_: Type) -> None:
    assert type_("check", "their_penalties:Mine", "--set", "strength=0.5").status == 0


def test_a_broken_law_is_named_and_the_status_is_one(type_: Type) -> None:
    said = type_("check", "their_penalties:Liar")
    assert said.status == 1
    failed = [line for line in said.out.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1
    assert "anchor" in failed[0]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["proximal"], "'mu' is missing"),
        (["proximal", "--set", "mu=-1"], "greater than or equal to 0"),
        (["proximal", "--set", "nu=1"], "did you mean 'mu'?"),
        (["proximal", "--set", "mu"], "cannot read an assignment"),
        (["proximle"], "did you mean 'proximal'?"),
        (["full"], "trainable.full, downlink.full"),
        (["downlink.ful"], "did you mean 'downlink.full'?"),
        (["their_penalties:Nobody"], "cannot load part"),
        (["their_penalties:torch"], "is not a part"),
    ],
)
def test_a_part_that_cannot_be_built_is_one_line(type_: Type, words: list[str], hint: str) -> None:
    assert hint in refused(type_("check", *words), "E_CONFIG", 2)


def test_a_kind_of_two_rooms_is_named_with_its_room(type_: Type) -> None:
    assert type_("check", "downlink.full").out.splitlines()[-1].endswith("FullDownlink()")
