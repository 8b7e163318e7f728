"""FedNL's memory: `rule.py` defines it, `chunkwise.py` is its fast exact form, README.md derives the algebra."""

from cotune.trainable.memory.chunkwise import chunked
from cotune.trainable.memory.options import Rules
from cotune.trainable.memory.part import Memory
from cotune.trainable.memory.rule import scan, titans
from cotune.trainable.memory.session import MemorySession

__all__ = ["Memory", "MemorySession", "Rules", "chunked", "scan", "titans"]
