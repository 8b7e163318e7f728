"""Where clients run: engines carry bytes and know nothing of what they mean."""

from cotune.engine.inline import InlineEngine

__all__ = ["InlineEngine"]
