"""What transformers carries from call to call, with the memory of its rows beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from torch import LongTensor, Tensor
from transformers import DynamicCache

from cotune.core.errors import Code, CotuneError
from cotune.core.state import Session

if TYPE_CHECKING:
    from cotune.trainable.memory.session import MemorySession


class MemoryCache(Session, DynamicCache):
    """A cache of keys and values that takes a session along when rows are reordered, repeated or chosen.

    It is as private as the session: keys and values say what was read.
    """

    def __init__(self, session: MemorySession) -> None:
        super().__init__()
        self.session = session

    def reorder_cache(self, beam_idx: LongTensor) -> None:
        """The rows at `beam_idx`."""
        super().reorder_cache(beam_idx)
        self.session.choose(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """The rows at `indices`."""
        super().batch_select_indices(indices)
        self.session.choose(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times."""
        super().batch_repeat_interleave(repeats)
        self.session.repeat(repeats)

    def reset(self) -> None:
        """Forget everything."""
        self.session.reset()

    def crop(self, tokens_to_remove: int) -> NoReturn:
        """Refused: what was written into a memory cannot be taken out again."""
        raise CotuneError(
            Code.CONFLICT,
            "a memory cannot be cut back",
            where="cache.crop",
            got=tokens_to_remove,
            fix="generate without assisted decoding",
        )
