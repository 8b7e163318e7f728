"""What travels and how: envelopes as bytes, uplinks, downlinks. One file a codec, one line here."""

from collections.abc import Mapping

from cotune.core.contracts import Downlink, Uplink
from cotune.core.message import Envelope, Limits
from cotune.wire.downlink import ChangedDownlink, FullDownlink
from cotune.wire.envelope import decode, dtype_name, encode, layouts, payload, peek, size
from cotune.wire.scalars import ScalarsUplink
from cotune.wire.tensors import TensorsUplink

UPLINKS: Mapping[str, type[Uplink]] = {
    "scalars": ScalarsUplink,
    "tensors": TensorsUplink,
}
DOWNLINKS: Mapping[str, type[Downlink]] = {
    "full": FullDownlink,
    "changed": ChangedDownlink,
}

__all__ = [
    "DOWNLINKS",
    "UPLINKS",
    "ChangedDownlink",
    "Envelope",
    "FullDownlink",
    "Limits",
    "ScalarsUplink",
    "TensorsUplink",
    "decode",
    "dtype_name",
    "encode",
    "layouts",
    "payload",
    "peek",
    "size",
]
