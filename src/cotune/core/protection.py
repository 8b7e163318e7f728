"""What a run does not protect, said wherever its numbers are shown."""

from __future__ import annotations

NOT_PROTECTED = (
    "no differential privacy: what a client sends can reveal rows that it was trained on",
    "the server reads every reply by itself: there is no secure aggregation",
    "a client that lies can move theta as far as it likes: only what is malformed, not finite or of impossible size is "
    "refused",
    "who is on the other end, and who listens, is up to the engine's transport: messages are neither signed nor "
    "encrypted",
)
