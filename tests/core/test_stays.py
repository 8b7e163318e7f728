"""What stays with clients is said beside a drop, and nothing is said where all that trains is aggregated."""

from __future__ import annotations

from typing import Any

import pytest

from cotune.core.stays import stays


def about(numbers: int, shared: int, **method: Any) -> dict[str, Any]:
    return {"trained": {"numbers": numbers, "shared": shared}, "experiment": {"method": method}}


@pytest.mark.parametrize("known", [about(80, 80), about(80, 80, personalize=None), {}, {"trained": {}}])
def test_nothing_is_said_where_all_that_trains_is_aggregated_or_nothing_is_known(known: dict[str, Any]) -> None:
    assert stays(known) == ""


def test_a_run_that_shares_nothing_has_no_drop() -> None:
    assert stays(about(80, 0)).endswith("its drop is 0")


def test_how_much_stays_is_counted_and_never_rounded_up_to_everything() -> None:
    assert stays(about(1500, 500)).startswith("1,000 of 1,500 trained numbers (66.7 %) stay with each client")
    assert "the other 500 lose" in stays(about(1500, 500))
    assert "(99.9 %)" in stays(about(10**6, 1))


def test_a_personalised_theta_is_what_the_drop_is_against() -> None:
    said = stays(about(80, 80, personalize={"kind": "ala", "layers": 1}))
    assert "which ala makes of the global one" in said
    assert stays(about(80, 40, personalize={"kind": "ala"})).count("; ") == 1
