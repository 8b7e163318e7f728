"""The direction stream, version 1: (seed, stream, element index) -> sign; the only randomness that a wire depends on.

A direction is made of signs, because p ± c is one rounding, with or without a fused multiply-add: so the stream and
everything it is added to are the same bits on any device, by any path and in any chunks.
"""

from cotune.noise.directions import Direction, Draw, add_many_, add_rows_, normals
from cotune.noise.lattice import EXACT, check_room, from_ticks, rounded_to, snapped, to_ticks
from cotune.noise.pool import COMMITS, Pooled, counts, sent
from cotune.noise.replay import ALL, Streams, Trace
from cotune.noise.stream import Path, apply_, apply_many_, signs

VERSION = 1  # of the stream: another one is another wire

__all__ = [
    "ALL",
    "COMMITS",
    "EXACT",
    "VERSION",
    "Direction",
    "Draw",
    "Path",
    "Pooled",
    "Streams",
    "Trace",
    "add_many_",
    "add_rows_",
    "apply_",
    "apply_many_",
    "check_room",
    "counts",
    "from_ticks",
    "normals",
    "rounded_to",
    "sent",
    "signs",
    "snapped",
    "to_ticks",
]
