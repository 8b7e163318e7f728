"""Parts are values equal to their tables, found by kind or dotted path, and checked by what they give and need."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from cotune.core.errors import Code, CotuneError
from cotune.core.part import Capability, Part, check_fit, find, kind_of, resolve
from cotune.optim import KINDS, SGD, AdamW
from cotune.penalty import Proximal


class Mine(Part):
    """Does nothing of its own.

    More about it.
    """

    kind: ClassVar[str] = "mine"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.REPLAY})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.AUX, Capability.SPLIT})
    size: int = 3

    class Inner(Part):
        kind: ClassVar[str] = "inner"


class Bare(Part):
    kind: ClassVar[str] = "bare"


class Circular(Part):
    """Gives what it needs itself."""

    kind: ClassVar[str] = "circular"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.BASE})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.BASE})


def refused(value: object, code: Code = Code.CONFIG) -> str:
    with pytest.raises(CotuneError) as caught:
        resolve("optimizer", KINDS, value)
    assert caught.value.code is code
    return str(caught.value)


def test_parts_are_frozen_and_equal_by_value() -> None:
    part = SGD(lr=0.1)
    with pytest.raises(ValidationError, match="frozen"):
        part.lr = 0.2  # type: ignore[misc]
    assert part == SGD(lr=0.1)
    assert hash(part) == hash(SGD(lr=0.1))
    assert part != SGD(lr=0.2)
    assert part != Part.model_validate({})


@pytest.mark.parametrize("part", [SGD(lr=0.1, weight_decay=0.2), AdamW(lr=0.01, betas=(0.5, 0.25))])
def test_a_part_is_equal_to_the_table_that_makes_it(part: Part) -> None:
    assert resolve("optimizer", KINDS, part.model_dump()) == part
    assert resolve("optimizer", KINDS, part.model_dump(mode="json")) == part


def test_a_part_and_nothing_resolve_to_themselves_and_a_word_to_its_defaults() -> None:
    part = SGD(lr=0.1)
    assert resolve("optimizer", KINDS, part) is part
    assert resolve("optimizer", KINDS, None) is None
    assert resolve("mine", {"mine": Mine}, "mine") == Mine()


def test_ours_have_short_kinds_and_those_of_others_dotted_ones() -> None:
    assert kind_of(SGD) == "sgd"
    assert kind_of(Mine) == f"{__name__}:Mine"
    assert Mine(size=4).model_dump() == {"kind": f"{__name__}:Mine", "size": 4}


@pytest.mark.parametrize("cls", [Mine, Mine.Inner, Bare])
def test_a_dotted_path_finds_the_class_that_it_was_made_from(cls: type[Part]) -> None:
    found = find("optimizer", KINDS, kind_of(cls))
    assert found is cls
    assert resolve("optimizer", KINDS, cls().model_dump()) == cls()


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    assert "did you mean 'adamw'?" in refused({"kind": "adamv", "lr": 1})


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    text = refused({"kind": "sgd", "lr": 0.1, "weight_dekay": 1})
    assert "unknown key 'weight_dekay'" in text
    assert "did you mean 'weight_decay'?" in text


def test_a_missing_key_is_named() -> None:
    assert "'lr' is missing" in refused({"kind": "sgd"})


@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf"), "x", None])
def test_a_value_out_of_range_is_refused_with_its_key(lr: Any) -> None:
    assert "optimizer.lr" in refused({"kind": "sgd", "lr": lr})


@pytest.mark.parametrize("value", [3, [], {}, {"lr": 0.1}, {"kind": 3}, {"kind": None}])
def test_what_has_no_kind_is_no_part(value: object) -> None:
    assert "a part needs a kind" in refused(value)


@pytest.mark.parametrize(
    "path",
    ["no_such_module_at_all:X", "math:Nope", ":X", ".relative:X", "math:", ":", "cotune.core.part:Part.nope", "a b:X"],
)
def test_a_dotted_path_that_leads_nowhere_is_refused(path: str) -> None:
    assert "cannot load part" in refused({"kind": path})


@pytest.mark.parametrize("path", ["math:pi", "builtins:dict", "cotune.core.part:Capability"])
def test_a_dotted_path_to_something_else_is_no_part(path: str) -> None:
    assert "is not a part" in refused({"kind": path})


def test_the_summary_is_the_first_line_of_the_docstring() -> None:
    assert Mine.summary() == "Does nothing of its own."
    assert Bare.summary() == ""


def test_parts_fit_when_every_need_is_given() -> None:
    parts: list[tuple[str, Part]] = [("penalty", Proximal(mu=1)), ("optimizer", SGD(lr=0.1))]
    check_fit(parts, {Capability.ANCHOR})
    check_fit([("x", Mine())], {Capability.AUX, Capability.SPLIT})
    check_fit([], ())


def test_what_is_missing_is_said_in_words() -> None:
    with pytest.raises(CotuneError) as caught:
        check_fit([("penalty proximal", Proximal(mu=1)), ("optimizer", SGD(lr=0.1))], ())
    assert caught.value.code is Code.CONFLICT
    assert "penalty proximal needs 'anchor'" in str(caught.value)
    assert "only gradient" in str(caught.value)
    assert "drop proximal" in str(caught.value)


def test_one_of_two_needs_is_not_enough() -> None:
    with pytest.raises(CotuneError, match="needs 'split'"):
        check_fit([("x", Mine())], {Capability.AUX})


def test_a_part_does_not_give_to_itself_what_it_needs() -> None:
    with pytest.raises(CotuneError, match="needs 'base'"):
        check_fit([("x", Circular())], ())
    check_fit([("x", Circular()), ("y", Circular())], ())
