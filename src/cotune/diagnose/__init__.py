"""Numbers about a round, each computed in one place."""

from cotune.diagnose.drop import client_metric
from cotune.diagnose.interval import mean_interval, paired_interval, ratio_interval
from cotune.diagnose.ledger import ledger_line

__all__ = ["client_metric", "ledger_line", "mean_interval", "paired_interval", "ratio_interval"]
