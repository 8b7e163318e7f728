"""What Flower's messages hold: one blob of bytes in one array, and a few plain values beside it.

One array, whatever the number of tensors: Flower sends every array by a request of its own, and checks nothing in it.
Everything that decides is in the blob, which both sides check; the values beside it only route it.

| record | in a question | in an answer |
|---|---|---|
| `blob` | a message of ours | the reply |
| `about` | client, round, and the roster: clients, most | client; or who is there, as `link.WHO` says it, in JSON |
| `error` | | code and text |
"""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from cotune.core.errors import Code, CotuneError, one_line, rebuilt

BLOB, ABOUT, ERROR = "blob", "about", "error"
STEP, WHO = "train.step", "query.who"  # message types; an action after the dot
Plain = Mapping[str, int | float | str | bool | bytes]


def records(about: Plain, blob: bytes | None = None) -> RecordDict:
    """Values, and a blob where there is one."""
    record = RecordDict({ABOUT: ConfigRecord({**about})})
    if blob is not None:
        array = Array(dtype="uint8", shape=(len(blob),), stype="safetensors", data=blob)
        record[BLOB] = ArrayRecord({BLOB: array})
    return record


def refusal(error: CotuneError) -> RecordDict:
    """An error instead of a reply."""
    return RecordDict({ERROR: ConfigRecord({"code": error.code.value, "text": error.text})})


def opened(content: RecordDict) -> tuple[Plain, bytes | None]:
    """The values and the blob of a message.

    Raises:
        CotuneError: the one that it holds instead; E_FORMAT for records of another kind.
    """
    try:
        if ERROR in content.config_records:
            told = content.config_records[ERROR]
            raise rebuilt(Code(str(told["code"])), one_line(str(told["text"])))
        about = {name: value for name, value in content.config_records[ABOUT].items() if not isinstance(value, list)}
        arrays = content.array_records
        return about, arrays[BLOB][BLOB].data if BLOB in arrays else None
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        what = "not the records of a message"
        raise CotuneError(Code.FORMAT, what, got=type(error).__name__, expected=f"{ABOUT}, {BLOB}") from error
