"""Silence while libraries load a model: they report by bars and log lines, we by one error or none."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, log lines or warnings of transformers and the hub client inside; as before afterwards."""
    from huggingface_hub.utils import logging as hub
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as untyped_logging

    library: Any = untyped_logging
    levels = library.get_verbosity(), hub.get_verbosity()
    bars, hub_bars = library.is_progress_bar_enabled(), not are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            library.set_verbosity(logging.CRITICAL)
            hub.set_verbosity(logging.CRITICAL)
            library.disable_progress_bar()
            yield
        finally:
            library.set_verbosity(levels[0])
            hub.set_verbosity(levels[1])
            if bars:
                library.enable_progress_bar()  # and the hub client's with them
            (enable_progress_bars if hub_bars else disable_progress_bars)()
