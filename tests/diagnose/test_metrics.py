"""Metrics of a round: intervals of shares stay between none and all."""

from cotune.diagnose.metrics import global_metrics


def test_the_interval_of_a_share_ends_at_none_and_at_all() -> None:
    high, low = [1.0] * 30 + [0.5], [0.0] * 30 + [0.5]
    assert global_metrics({"accuracy": high}, {}, {})["accuracy"].high == 1.0
    assert global_metrics({"accuracy": low}, {}, {})["accuracy"].low == 0.0
    inside = global_metrics({"accuracy": [0.5, 1.0, 0.0, 0.5]}, {}, {})["accuracy"]
    assert 0.0 < inside.low < 0.5 < inside.high < 1.0  # type: ignore[operator]


def test_the_interval_of_a_loss_is_not_cut() -> None:
    loss = global_metrics({"loss": [3.0, 0.1, 0.0]}, {}, {})["loss"]
    assert loss.low is not None
    assert loss.low < 0.0
    assert loss.high is not None
    assert loss.high > 1.0
