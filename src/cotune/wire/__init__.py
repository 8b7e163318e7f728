"""What travels and how: envelopes as bytes, uplinks, downlinks. One file a codec, one line here."""

from collections.abc import Mapping

from cotune.core.contracts import Downlink, Uplink
from cotune.core.message import Envelope, Limits
from cotune.wire.downlink import ChangedDownlink, FullDownlink
from cotune.wire.envelope import decode, dtype_name, encode, layouts, payload, peek, readdressed, size
from cotune.wire.log import BYTES_A_REPLY, stack, unstack
from cotune.wire.mail import Mail
from cotune.wire.pool import PoolDownlink, PoolUplink
from cotune.wire.replay import AutoDownlink, ReplayDownlink
from cotune.wire.scalars import ScalarsUplink
from cotune.wire.tensors import TensorsUplink

UPLINKS: Mapping[str, type[Uplink]] = {
    "pool": PoolUplink,
    "scalars": ScalarsUplink,
    "tensors": TensorsUplink,
}
DOWNLINKS: Mapping[str, type[Downlink]] = {
    "full": FullDownlink,
    "changed": ChangedDownlink,
    "replay": ReplayDownlink,
    "auto": AutoDownlink,
    "pool": PoolDownlink,
}

__all__ = [
    "BYTES_A_REPLY",
    "DOWNLINKS",
    "UPLINKS",
    "AutoDownlink",
    "ChangedDownlink",
    "Envelope",
    "FullDownlink",
    "Limits",
    "Mail",
    "PoolDownlink",
    "PoolUplink",
    "ReplayDownlink",
    "ScalarsUplink",
    "TensorsUplink",
    "decode",
    "dtype_name",
    "encode",
    "layouts",
    "payload",
    "peek",
    "readdressed",
    "size",
    "stack",
    "unstack",
]
