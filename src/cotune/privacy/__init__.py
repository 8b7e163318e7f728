"""What noise is worth: epsilon at delta, and how often a row takes part. The unit is one row of one client."""

from cotune.privacy.accountant import epsilon
from cotune.privacy.passes import most

__all__ = ["epsilon", "most"]
