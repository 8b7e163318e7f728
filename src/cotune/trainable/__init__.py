"""What trains. One file a trainable, one line here."""

from collections.abc import Mapping

from cotune.core.contracts import Trainable
from cotune.trainable.full import Full
from cotune.trainable.lora import LoRA
from cotune.trainable.memory import Memory

KINDS: Mapping[str, type[Trainable]] = {
    "full": Full,
    "lora": LoRA,
    "memory": Memory,
}

__all__ = ["KINDS", "Full", "LoRA", "Memory", "Trainable"]
