"""Messages as bytes: exact, of a size known beforehand, and refused with a code before anything is allocated."""

from __future__ import annotations

import ctypes
import gzip
import io
import json
import math
import pickle
import re
import struct
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cotune.core.errors import Code, CotuneError
from cotune.core.message import PARTS, Envelope, Header, Kind, Limits
from cotune.core.state import Named, Personal, Private, Session, Theta
from cotune.server import check
from cotune.wire import decode, encode, layouts, payload, peek, size

HEADER = Header(
    Kind.UPDATE, "0123456789abcdef", "fedcba9876543210", 3, 2, "0011223344556677", "ab" * 32, 5, 0.5, 9.0, 7
)
ANY = Limits(2**24)
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.float32,
    torch.float64,
    torch.int64,
]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [
        '"',
        "\\",
        '\\"',
        "größe",
        "名前",
        "🙂",
        "\n\t\x00\x1f\x7f",
        "\u2028",
        "a/b",
        "a|b",
        "__metadata__",
        "metrics",
        " ",
    ]
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bits of any dtype, NaNs with payloads among them, in 0 to 3 dimensions."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    width, count = torch.empty((), dtype=dtype).element_size(), math.prod(shape)
    values = st.integers(0, 1 if dtype is torch.bool else 255)
    data = draw(st.lists(values, min_size=width * count, max_size=width * count))
    return torch.tensor(data, dtype=torch.uint8).view(dtype).reshape(shape)


PLAIN = st.dictionaries(NAMES, tensors(), max_size=4)
METRICS = st.lists(st.floats(), max_size=4).map(tuple)
ENVELOPES = st.builds(
    Envelope, st.just(HEADER), st.dictionaries(st.sampled_from(sorted(PARTS)), PLAIN, max_size=3), METRICS
)


def bits(tensor: Tensor) -> tuple[str, tuple[int, ...], bytes]:
    """A tensor as plain values, byte by byte."""
    flat = tensor.contiguous().reshape(-1)
    return str(tensor.dtype), tuple(tensor.shape), bytes(flat.view(torch.uint8).tolist() if flat.numel() else [])


def plain(envelope: Envelope) -> tuple[object, ...]:
    """All that a message says, as plain values that compare bit by bit."""
    parts = {(part, name): bits(tensor) for part, named in envelope.parts.items() for name, tensor in named.items()}
    return envelope.header, parts, struct.pack(f"{len(envelope.metrics)}d", *envelope.metrics)


# ---- exact


@settings(max_examples=300)
@given(ENVELOPES)
def test_what_is_decoded_is_what_was_encoded_bit_for_bit(envelope: Envelope) -> None:
    data = encode(envelope)
    exact = Limits(len(data), layouts(envelope), len(envelope.metrics))
    assert plain(decode(data, exact)) == plain(decode(data, ANY)) == plain(envelope)
    assert decode(data, exact).parts.keys() == envelope.parts.keys()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_crosses_with_its_bits(dtype: torch.dtype) -> None:
    """bfloat16 has no NumPy form, and crosses all the same."""
    values = torch.tensor([[0.0, -0.0, 1.0], [3.140625, 127.0, 2.0**-7]]).to(dtype)
    for tensor in (values, values.T, values[1], values[0, 2], values[:0]):
        envelope = Envelope(HEADER, {"aux": {"x": tensor}})
        assert plain(decode(encode(envelope), ANY)) == plain(envelope)


def test_numpy_has_no_bfloat16() -> None:
    with pytest.raises(TypeError, match="BFloat16"):
        torch.ones(1, dtype=torch.bfloat16).numpy()


@given(ENVELOPES)
def test_the_same_message_is_the_same_bytes_whatever_the_order_of_its_names(envelope: Envelope) -> None:
    turned = {
        part: {name: named[name].clone() for name in reversed(list(named))}
        for part, named in reversed(list(envelope.parts.items()))
    }
    assert encode(replace(envelope, parts=turned)) == encode(envelope)


def test_tensors_that_share_memory_and_need_gradients_cross_apart() -> None:
    table = torch.arange(6.0, requires_grad=True)
    named = {"whole": table, "again": table, "part": table[2:4], "turned": table.reshape(2, 3).T}
    found = decode(encode(Envelope(HEADER, {"aux": named})), ANY).part("aux")
    for name, tensor in named.items():
        assert torch.equal(found[name], tensor.detach())


# ---- sizes


@settings(max_examples=300)
@given(ENVELOPES)
def test_the_size_of_a_message_follows_from_its_layout(envelope: Envelope) -> None:
    inside, around = size(layouts(envelope), len(envelope.metrics))
    assert inside + around == len(encode(envelope))
    counted = {
        (part, name): tensor.numel() * tensor.element_size()
        for part, named in envelope.parts.items()
        for name, tensor in named.items()
    }
    assert payload(layouts(envelope)) == counted
    assert inside == sum(counted.values())


@given(
    kind=st.sampled_from(list(Kind)),
    round=st.integers(0, 10**10 - 1),
    accepted=st.integers(-1, 10**10 - 1),
    rows=st.integers(0, 10**19 - 1),
    rate=st.floats(),
    deadline=st.floats(),
    seed=st.integers(0, 2**64 - 1),
    metrics=st.tuples(st.floats(), st.floats()),
)
def test_no_field_and_no_metric_changes_the_size(metrics: tuple[float, float], **values: Any) -> None:
    header = replace(HEADER, **values)
    data = encode(Envelope(header, {}, metrics))
    assert len(data) == len(encode(Envelope(HEADER, {}, (0.0, 0.0)))) == sum(size({}, 2))
    found = decode(data, ANY).header
    for field in fields(Header):
        ours, theirs = getattr(header, field.name), getattr(found, field.name)
        assert theirs == ours or (math.isnan(ours) and math.isnan(theirs))


@given(ENVELOPES)
def test_a_peek_tells_header_and_layout(envelope: Envelope) -> None:
    header, content = peek(encode(envelope), ANY)
    assert header == envelope.header
    assert content == {part: layout for part, layout in layouts(envelope).items() if layout}


# ---- what may travel


class Memory(Session):
    """Session memory."""


class Notes(Session, dict[str, Tensor]):
    """Session memory that looks like named tensors."""


STAYS: list[Callable[[], Any]] = [lambda: Personal({"x": torch.ones(1)}), Private, Memory, Notes]


@pytest.mark.parametrize("part", sorted(PARTS))
@pytest.mark.parametrize("state", STAYS)
def test_what_stays_with_its_client_is_refused_in_every_part(part: str, state: Callable[[], Any]) -> None:
    with pytest.raises(CotuneError, match="may not travel") as caught:
        Envelope(HEADER, {part: state()})
    assert caught.value.code is Code.CONFLICT
    Envelope(HEADER, {part: {"x": torch.ones(1)}})


@pytest.mark.parametrize("part", sorted(PARTS))
def test_theta_travels_as_theta_only(part: str) -> None:
    if part == "theta":
        assert Envelope(HEADER, {part: Theta()}).part(part) == {}
        return
    with pytest.raises(CotuneError, match="Theta may not travel"):
        Envelope(HEADER, {part: Theta()})


def test_a_type_between_is_no_theta() -> None:
    with pytest.raises(CotuneError):
        Envelope(HEADER, {"theta": Named()})


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(CotuneError, match="no message part 'secret'") as caught:
        Envelope(HEADER, {"secret": {}})
    assert caught.value.code is Code.KEYS
    assert Envelope(HEADER).part("theta") == {}


@pytest.mark.parametrize(
    "value",
    [
        object(),
        "text",
        b"bytes",
        None,
        [1.0],
        1.0,
        np.ones(2),
        np.array([object()]),
        torch.ones(2, dtype=torch.complex64),
        torch.eye(2).to_sparse(),
        Memory(),
    ],
)
def test_what_is_no_dense_tensor_is_refused_at_once_with_its_name(value: Any) -> None:
    envelope = Envelope(HEADER, {"theta": {"good": torch.ones(1), "layers.7.bad": value}})
    with pytest.raises(CotuneError, match=re.escape("theta/layers.7.bad")) as caught:
        encode(envelope)
    assert caught.value.code is Code.DTYPE


@pytest.mark.parametrize("value", ["text", None, 1j, 10**400, object()])
def test_a_metric_that_is_no_number_is_refused_at_once(value: Any) -> None:
    with pytest.raises(CotuneError, match="metrics") as caught:
        encode(Envelope(HEADER, {}, (1.0, value)))
    assert caught.value.code is Code.DTYPE


# ---- refusals


def refused(data: bytes, limits: Limits = ANY) -> Code:
    """The code with which both readers refuse; three times, so that a pause of the machine is not ours."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        with pytest.raises(CotuneError) as caught:
            decode(data, limits)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.05
    assert len(str(caught.value).splitlines()) == 1
    return caught.value.code


MESSAGE = Envelope(HEADER, {"theta": {"w": torch.ones(2, 2), "v": torch.ones(3)}, "aux": {"c": torch.ones(1)}}, (1.0,))
GOOD = encode(MESSAGE)
LENGTH = struct.unpack("<Q", GOOD[:8])[0]
TABLE: dict[str, Any] = json.loads(GOOD[8 : 8 + LENGTH])
REST = GOOD[8 + LENGTH :]
FIELDS: dict[str, str] = json.loads(TABLE["__metadata__"]["cotune"])


def message(table: str | bytes, rest: bytes = REST) -> bytes:
    raw = table.encode("utf-8", "surrogatepass") if isinstance(table, str) else table
    return struct.pack("<Q", len(raw)) + raw + rest


def with_header(text: object) -> bytes:
    return message(json.dumps({**TABLE, "__metadata__": {"cotune": text}}))


def with_row(name: str, rest: bytes = REST, **row: Any) -> bytes:
    full = {"dtype": "F32", "shape": [1], "data_offsets": [len(REST), len(REST) + 4], **row}
    return message(json.dumps({**TABLE, name: {key: value for key, value in full.items() if value is not None}}), rest)


def test_a_message_taken_apart_and_put_together_is_accepted() -> None:
    assert plain(decode(message(json.dumps(TABLE)), ANY)) == plain(MESSAGE)
    assert "more" in decode(with_row("aux/more", REST + b"1234"), ANY).part("aux")


def test_a_message_cut_short_anywhere_is_refused_as_truncated() -> None:
    for length in range(len(GOOD)):
        with pytest.raises(CotuneError) as caught:
            decode(GOOD[:length], ANY)
        assert caught.value.code is Code.TRUNCATED, length


@pytest.mark.parametrize("more", [1, 8, 4096])
def test_a_message_that_goes_on_after_its_end_is_refused(more: int) -> None:
    assert refused(GOOD + bytes(more)) is Code.TRUNCATED


def test_a_message_over_its_limit_is_refused_before_it_is_read() -> None:
    assert decode(GOOD, Limits(len(GOOD))) is not None
    for data in (GOOD, b"x" * len(GOOD)):
        assert refused(data, Limits(len(GOOD) - 1)) is Code.SIZE
        with pytest.raises(CotuneError, match="too large"):
            peek(data, Limits(len(GOOD) - 1))


NO_TEXTS: tuple[object, ...] = (7, None, [], {})
NUMBERS = ("round", "accepted", "rows", "rate", "deadline", "seed", "kind")
UNREADABLE: list[tuple[str, object]] = [
    *((name, value) for name in FIELDS for value in ("", FIELDS[name][:-1], FIELDS[name] + "0")),
    *((name, value) for name in FIELDS for value in NO_TEXTS),
    *((name, "z" * len(FIELDS[name])) for name in NUMBERS),
    *((name, " " * len(FIELDS[name])) for name in NUMBERS),
    ("round", "3         "),
    ("round", "+0000_00003"),
    ("round", "+000000000\u0663"),
    ("round", " 0000000003"),
    ("rows", "+00000000000000000e5"),
    ("rate", "3fe0000000000   "),
    ("rate", "3FE0000000000000"),
    ("seed", "-000000000000007"),
    ("seed", "0x00000000000007"),
    ("kind", "  update"),
    ("kind", "pickle  "),
]


@pytest.mark.parametrize(("name", "value"), UNREADABLE)
def test_a_header_field_that_cannot_be_read_is_refused(name: str, value: object) -> None:
    expected = Code.FORMAT if name != "version" or not isinstance(value, str) else Code.VERSION
    assert refused(with_header(json.dumps({**FIELDS, name: value}, separators=(",", ":")))) is expected


@pytest.mark.parametrize("name", list(FIELDS))
def test_a_header_without_one_of_its_fields_is_refused(name: str) -> None:
    less = {field: value for field, value in FIELDS.items() if field != name}
    assert refused(with_header(json.dumps(less))) is (Code.VERSION if name == "version" else Code.FORMAT)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({**FIELDS, "more": "x"}, separators=(",", ":")),
        json.dumps(FIELDS),
        json.dumps(FIELDS, separators=(",", ":")).replace('{"version":"01"', '{"version":"01","version":"01"'),
        json.dumps(list(FIELDS)),
        "[" * 4000,
        " " * 5000,
        "",
        "not json",
        None,
        3,
        FIELDS,
    ],
)
def test_a_header_that_is_not_written_as_we_write_it_is_refused(text: object) -> None:
    assert refused(with_header(text)) is Code.FORMAT


def test_another_protocol_version_is_refused_with_both() -> None:
    data = with_header(json.dumps({**FIELDS, "version": "02"}))
    assert refused(data) is Code.VERSION
    with pytest.raises(CotuneError, match=r"got 02, expected 01.*same cotune on both sides"):
        peek(data, ANY)


SENT = replace(HEADER, kind=Kind.TRAIN)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"kind": Kind.REPORT}, Code.ROUND),
        ({"kind": Kind.TRAIN}, Code.ROUND),
        ({"run": "f" * 16}, Code.RUN),
        ({"client": "f" * 16}, Code.RUN),
        ({"round": 2}, Code.ROUND),
        ({"round": 4}, Code.ROUND),
        ({"spec": "f" * 16}, Code.KEYS),
        ({"base": "ab" * 31 + "aa"}, Code.BASE),
        ({"rows": 0}, Code.COUNT),
        ({"rows": -1}, Code.COUNT),
        ({"rows": 6}, Code.COUNT),
        ({"rows": 10**18}, Code.COUNT),
    ],
)
def test_a_readable_field_that_its_request_does_not_allow_is_refused(change: dict[str, Any], code: Code) -> None:
    check(decode(GOOD, ANY), SENT, Kind.UPDATE)
    reply = decode(encode(replace(MESSAGE, header=replace(HEADER, **change))), ANY)
    with pytest.raises(CotuneError) as caught:
        check(reply, SENT, Kind.UPDATE)
    assert caught.value.code is code


@pytest.mark.parametrize("part", ["theta", "aux"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_number_that_is_not_finite_is_refused_with_the_name_of_its_tensor(
    part: str, value: float, dtype: torch.dtype
) -> None:
    named = {"fine": torch.tensor([-0.0, 2.0**-149]), "bad": torch.tensor([1.0, value], dtype=dtype)}
    reply = decode(encode(Envelope(HEADER, {part: named})), ANY)
    with pytest.raises(CotuneError, match=f"{part}/bad") as caught:
        check(reply, SENT, Kind.UPDATE)
    assert caught.value.code is Code.NONFINITE


OVER = 2**63
LIES: dict[str, tuple[bytes, Code]] = {
    "1e10 numbers": (with_row("aux/x", shape=[10**10]), Code.TRUNCATED),
    "1e10 numbers, offsets to match": (
        with_row("aux/x", shape=[10**10], data_offsets=[len(REST), len(REST) + 4 * 10**10]),
        Code.TRUNCATED,
    ),
    "a negative side": (with_row("aux/x", shape=[-1]), Code.FORMAT),
    "two negative sides": (with_row("aux/x", shape=[-1, -1], rest=REST + b"1234"), Code.FORMAT),
    "a product past 64 bits": (with_row("aux/x", shape=[2**32, 2**32]), Code.TRUNCATED),
    "a product that wraps to 4 bytes": (with_row("aux/x", shape=[2**62 + 1, 4]), Code.TRUNCATED),
    "an overflow beside a zero": (with_row("aux/x", shape=[OVER, 4, 0], data_offsets=[len(REST)] * 2), Code.FORMAT),
    "a side past 64 bits beside a zero": (
        with_row("aux/x", shape=[10**30, 0], data_offsets=[len(REST)] * 2),
        Code.FORMAT,
    ),
    "an overlap": (with_row("aux/x", data_offsets=[0, 4]), Code.FORMAT),
    "an overlap at the end": (with_row("aux/x", data_offsets=[len(REST) - 2, len(REST) + 2]), Code.FORMAT),
    "a gap": (with_row("aux/x", data_offsets=[len(REST) + 4, len(REST) + 8], rest=REST + bytes(8)), Code.FORMAT),
    "offsets backwards": (with_row("aux/x", data_offsets=[len(REST) + 4, len(REST)]), Code.TRUNCATED),
    "negative offsets": (with_row("aux/x", data_offsets=[-4, 0]), Code.FORMAT),
    "three offsets": (with_row("aux/x", data_offsets=[0, 4, 8]), Code.FORMAT),
    "no offsets": (with_row("aux/x", data_offsets=None), Code.FORMAT),
    "no shape": (with_row("aux/x", shape=None), Code.FORMAT),
    "no dtype": (with_row("aux/x", dtype=None), Code.FORMAT),
    "a shape of floats": (with_row("aux/x", shape=[1.0]), Code.FORMAT),
    "a shape of bools": (with_row("aux/x", shape=[True]), Code.FORMAT),
    "a shape of text": (with_row("aux/x", shape="", rest=REST + b"1234"), Code.FORMAT),
    "a shape that is a table": (with_row("aux/x", shape={}, rest=REST + b"1234"), Code.FORMAT),
    "an unknown dtype": (with_row("aux/x", dtype="F8"), Code.FORMAT),
    "a dtype that is a list": (with_row("aux/x", dtype=["F32"]), Code.FORMAT),
    "a tensor outside every part": (with_row("theta", rest=REST + b"1234"), Code.FORMAT),
    "an unknown part": (with_row("secret/x", rest=REST + b"1234"), Code.KEYS),
    "a row that is a list": (message(json.dumps({**TABLE, "aux/x": []})), Code.FORMAT),
    "a name twice": (
        message(json.dumps(TABLE)[:-1] + ', "theta/w": ' + json.dumps(TABLE["theta/w"]) + "}"),
        Code.FORMAT,
    ),
    "deep nesting": (message("[" * 100_000), Code.FORMAT),
    "deep nesting in a row": (
        message(json.dumps(TABLE)[:-1] + ', "aux/x": ' + "[" * 50_000 + "]" * 50_000 + "}"),
        Code.FORMAT,
    ),
    "a number of 10,000 digits": (message(json.dumps(TABLE)[:-1] + ', "aux/x": ' + "9" * 10_000 + "}"), Code.FORMAT),
    "a table that is a list": (message("[]"), Code.FORMAT),
    "a table that is no JSON": (message(b"\xff" * 64), Code.FORMAT),
    "an empty table": (message("{}"), Code.FORMAT),
    "a table in UTF-16": (message(json.dumps(TABLE).encode("utf-16")), Code.FORMAT),
    "a table with a byte-order mark": (message(b"\xef\xbb\xbf" + json.dumps(TABLE).encode()), Code.FORMAT),
    "half a surrogate pair in a name": (with_row("aux/\ud800", rest=REST + b"1234"), Code.FORMAT),
    "NaN in the table": (with_row("aux/x", more=math.nan, rest=REST + b"1234"), Code.FORMAT),
    "a number in the metadata": (
        message(json.dumps({**TABLE, "__metadata__": {**TABLE["__metadata__"], "x": 1}})),
        Code.FORMAT,
    ),
    "no metadata": (message(json.dumps({n: r for n, r in TABLE.items() if n != "__metadata__"})), Code.FORMAT),
    "no metrics": (message(json.dumps({**TABLE, "aux/m": TABLE["metrics"], "metrics": None})), Code.FORMAT),
    "metrics of another dtype": (
        message(json.dumps({**TABLE, "metrics": {**TABLE["metrics"], "dtype": "I64"}})),
        Code.FORMAT,
    ),
    "metrics of two dimensions": (
        message(json.dumps({**TABLE, "metrics": {**TABLE["metrics"], "shape": [1, 1]}})),
        Code.FORMAT,
    ),
    **{
        f"a table of {length} bytes": (struct.pack("<Q", length) + GOOD[8:], Code.FORMAT)
        for length in (2**64 - 1, OVER, 10**10, 64 * 2**20 + 1)
    },
    **{
        f"a table of {length} bytes": (struct.pack("<Q", length) + GOOD[8:], Code.TRUNCATED)
        for length in (64 * 2**20, len(GOOD), len(GOOD) - 7)
    },
    "a table of 0 bytes": (struct.pack("<Q", 0) + GOOD[8:], Code.FORMAT),
}


@pytest.mark.parametrize("lie", list(LIES))
def test_a_lying_message_is_refused_with_its_code(lie: str) -> None:
    data, code = LIES[lie]
    assert refused(data) is code


STATUS = Path("/proc/self/status")


def resident(line: str) -> int:
    """Resident bytes of this process: now (VmRSS), or the most since the last reset (VmHWM)."""
    found = re.search(rf"{line}:\s+(\d+) kB", STATUS.read_text())
    assert found is not None
    return int(found[1]) * 1024


def growth(action: Callable[[], object]) -> list[int]:
    """By how many bytes resident memory rises at its highest during an action, in three tries.

    What earlier tests freed goes back to the system first, or the allocator would hand it out and nothing would rise.
    """
    rises = []
    for _ in range(3):
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        action()
        rises.append(resident("VmHWM") - before)
    return rises


@pytest.fixture
def _measurable() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pytest.skip("this system does not tell peak memory")


@pytest.mark.usefixtures("_measurable")
@pytest.mark.parametrize("lie", list(LIES))
def test_a_lying_message_costs_no_memory(lie: str) -> None:
    data, _ = LIES[lie]

    def read() -> None:
        with pytest.raises(CotuneError):
            decode(data, ANY)

    assert min(growth(read)) < 2**20


# So large that the system gets it back whenever it is freed.
BIG = encode(Envelope(HEADER, {"theta": {"w": torch.zeros(2**20, 12)}}))
ROOM = Limits(2**26)


@pytest.mark.usefixtures("_measurable")
def test_the_control_an_honest_message_of_48_megabytes_shows_in_memory() -> None:
    assert max(growth(lambda: decode(BIG, ROOM))) > 40 * 2**20


@pytest.mark.usefixtures("_measurable")
@pytest.mark.parametrize("row", [("float16", (2**20, 12)), ("float32", (12, 2**20)), ("float32", (1,))])
def test_a_content_that_was_not_announced_is_refused_before_it_is_allocated(row: tuple[str, tuple[int, ...]]) -> None:
    limits = replace(ROOM, layout={"theta": {"w": row}})

    def read() -> None:
        with pytest.raises(CotuneError):
            decode(BIG, limits)

    assert min(growth(read)) < 2**20


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.sentinel,)


def loads_of(bomb: Bomb) -> Mapping[str, bytes]:
    """The bomb in every wrapping that a careless reader would open."""
    saved, arrays, packed = io.BytesIO(), io.BytesIO(), io.BytesIO()
    torch.save(bomb, saved)
    np.savez(arrays, x=np.array([bomb], dtype=object))
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros", bytes(2**20))
    pickled = pickle.dumps(bomb)
    wrapped = {
        "torch.save": saved.getvalue(),
        "npz": arrays.getvalue(),
        "zip": packed.getvalue(),
        "gzip": gzip.compress(bytes(2**20)),
        "nested gzip": gzip.compress(gzip.compress(bytes(2**20))),
        "table": message(pickled),
        "header": with_header(pickled.decode("latin1")),
        "nothing": b"",
        "text": b'{"kind": "update"}',
    }
    return {**wrapped, **{f"pickle {i}": pickle.dumps(bomb, i) for i in range(6)}}


@pytest.mark.parametrize("wrapping", list(loads_of(Bomb(Path("unused")))))
def test_nothing_in_a_message_is_executed_or_inflated(wrapping: str, tmp_path: Path) -> None:
    bomb = Bomb(tmp_path / "sentinel")
    assert refused(loads_of(bomb)[wrapping]) in {Code.FORMAT, Code.TRUNCATED}
    assert not bomb.sentinel.exists()


def test_the_control_a_careless_reader_executes_the_bomb(tmp_path: Path) -> None:
    bomb = Bomb(tmp_path / "sentinel")
    pickle.loads(loads_of(bomb)["pickle 4"])
    assert bomb.sentinel.exists()


# ---- contents


W, V = torch.ones(2, 2), torch.ones(3)
ANNOUNCED = Limits(2**20, {"theta": {"w": ("float32", (2, 2)), "v": ("float32", (3,))}}, 1)
CASTS = [dtype for dtype in DTYPES if dtype is not torch.float32]
CONTENTS: dict[str, tuple[dict[str, dict[str, Tensor]], Code]] = {
    "a missing name": ({"theta": {"w": W}}, Code.KEYS),
    "no part at all": ({}, Code.KEYS),
    "an extra name": ({"theta": {"w": W, "v": V, "x": V}}, Code.KEYS),
    "a renamed one": ({"theta": {"w": W, "V": V}}, Code.KEYS),
    "another part": ({"aux": {"w": W, "v": V}}, Code.KEYS),
    "another part besides": ({"theta": {"w": W, "v": V}, "aux": {"w": W}}, Code.KEYS),
    "an empty tensor": ({"theta": {"w": W, "v": torch.empty(0)}}, Code.SHAPE),
    **{
        f"shape {shape}": ({"theta": {"w": torch.ones(shape), "v": V}}, Code.SHAPE)
        for shape in [(1,), (), (4,), (1, 1), (2, 1), (2,), (2, 2, 1), (1, 2, 2), (4, 4), (0,)]
    },
    **{f"{dtype}": ({"theta": {"w": W.to(dtype), "v": V}}, Code.DTYPE) for dtype in CASTS},
}


@pytest.mark.parametrize("content", list(CONTENTS))
def test_a_content_that_is_not_the_one_announced_is_refused(content: str) -> None:
    parts, code = CONTENTS[content]
    assert refused(encode(Envelope(HEADER, parts, (0.0,))), ANNOUNCED) is code


def test_a_transposed_square_is_no_square_of_another_name_and_order_is_free() -> None:
    wide = Limits(2**20, {"theta": {"w": ("float32", (2, 3))}})
    assert refused(encode(Envelope(HEADER, {"theta": {"w": torch.ones(3, 2)}})), wide) is Code.SHAPE
    parts = {"theta": {"v": V, "w": W}}
    assert plain(decode(encode(Envelope(HEADER, parts, (0.0,))), ANNOUNCED))[1] == {
        ("theta", "w"): bits(W),
        ("theta", "v"): bits(V),
    }


@pytest.mark.parametrize("shape", [(1,), ()])
def test_the_control_torch_would_broadcast_the_shapes_that_are_refused(shape: tuple[int, ...]) -> None:
    assert torch.equal(W + torch.ones(shape), W + 1)


@pytest.mark.parametrize("metrics", [(), (0.0, 0.0)])
def test_another_number_of_metrics_is_refused(metrics: tuple[float, ...]) -> None:
    envelope = Envelope(HEADER, {"theta": {"w": W, "v": V}}, metrics)
    assert refused(encode(envelope), ANNOUNCED) is Code.SHAPE


def test_at_most_five_of_the_wrong_names_are_listed() -> None:
    limits = Limits(2**20, {"theta": {f"n{i}": ("float32", (1,)) for i in range(7)}})
    with pytest.raises(CotuneError, match="7 missing tensors") as caught:
        decode(encode(Envelope(HEADER)), limits)
    assert [f"theta/n{i}" in str(caught.value) for i in range(7)] == [True] * 5 + [False] * 2


# ---- anything else


def outcome(data: bytes) -> Code | None:
    """The code with which a message is refused, None when it is accepted; any other exception is a failure."""
    try:
        peek(data, ANY)
        decode(data, ANY)
    except CotuneError as error:
        return error.code
    return None


@settings(max_examples=500)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(1, 255)), min_size=1, max_size=3))
def test_flipped_bytes_give_another_message_or_a_coded_error(flips: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD)
    for place, mask in flips:
        data[place] ^= mask
    assert outcome(bytes(data)) in {None, Code.FORMAT, Code.TRUNCATED, Code.VERSION, Code.KEYS}


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
TABLES = st.lists(LEAVES, max_size=3) | st.dictionaries(st.text(max_size=3), LEAVES, max_size=3)
JSON = LEAVES | TABLES | st.lists(TABLES, max_size=2)
SIDES = st.lists(st.integers(-1, 5) | st.sampled_from([2**31, 2**63, 2**64]), max_size=3)
ROWS = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BOOL", "U8", "F64", "C64"]) | JSON,
        "shape": SIDES | JSON,
        "data_offsets": st.lists(st.integers(-1, len(REST) + 20), min_size=2, max_size=2) | JSON,
    }
)


@settings(max_examples=500)
@given(NAMES | st.sampled_from(["theta/w", "aux/x", "metrics", "__metadata__"]), ROWS | JSON, st.binary(max_size=20))
def test_any_row_gives_a_message_or_a_coded_error(name: str, row: object, rest: bytes) -> None:
    data = message(json.dumps({**TABLE, name: row}), REST + rest)
    assert outcome(data) in {None, Code.FORMAT, Code.TRUNCATED, Code.KEYS}


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CotuneError) as caught:
        decode(data, ANY)
    assert caught.value.code in {Code.FORMAT, Code.TRUNCATED}
