"""An error is one line with a code and an exit status, whatever was put into it."""

from __future__ import annotations

import copy
import pickle
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.core.errors import Code, CotuneError, nearest, one_line

TEXTS = st.text() | st.text("\n\r\t\x00\x1b\u2028\u202e\ud800 a")


def test_an_error_says_what_where_versus_what_and_what_to_do() -> None:
    error = CotuneError(Code.SHAPE, "wrong shape", where="theta/w", got=(1,), expected=(2, 2), fix="resend")
    assert str(error) == "error[E_SHAPE] wrong shape · theta/w · got (1,), expected (2, 2) · resend"
    assert str(CotuneError(Code.LATE, "no reply")) == "error[E_LATE] no reply"
    assert str(CotuneError(Code.COUNT, "rows", got=0)) == "error[E_COUNT] rows · got 0"


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_any_text_becomes_one_printable_line(what: str, where: str, got: str, fix: str) -> None:
    text = str(CotuneError(Code.DATA, what, where=where, got=got, fix=fix))
    assert len(text.splitlines()) == 1
    assert not any(unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for character in text)
    text.encode()


def test_terminal_codes_and_line_breaks_do_not_get_through() -> None:
    assert "\x1b" not in str(CotuneError(Code.CLIENT, "client \x1b[31mred\nerror[E_FAKE] forged"))
    assert one_line("a\nb\tc") == "a b c"


@given(st.text(), st.integers(1, 50))
def test_a_long_text_is_cut(text: str, limit: int) -> None:
    assert len(one_line(text, limit)) <= limit
    assert one_line("x" * 401).endswith("x…")
    assert one_line("x" * 400) == "x" * 400


STATUS = {
    2: "E_CONFIG E_CONFLICT E_VERSION",
    3: "E_DATA E_LABEL E_MODEL E_TOKENIZER",
    4: "E_CKPT E_HASH E_DISK E_LOCK",
    5: "E_QUORUM",
    6: "E_BUDGET",
}


@pytest.mark.parametrize("code", list(Code))
def test_the_exit_status_follows_from_the_code(code: Code) -> None:
    named = [status for status, codes in STATUS.items() if code.value in codes.split()]
    assert CotuneError(code, "x").status == (named[0] if named else 7)


@given(st.sampled_from(list(Code)), TEXTS, st.text("ab ", max_size=900), st.integers())
def test_an_error_is_the_same_after_crossing_processes(code: Code, what: str, where: str, got: int) -> None:
    error = CotuneError(code, what, where=where, got=got, expected="x" * 500, fix="y" * 300)
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert (str(again), again.code, again.status, again.args) == (
            str(error),
            error.code,
            error.status,
            error.args,
        )


def test_the_nearest_word_is_suggested_and_all_are_listed() -> None:
    assert nearest("adamv", ["sgd", "adamw"]) == "did you mean 'adamw'? known: adamw, sgd"
    assert nearest("zzz", ["sgd", "adamw"]) == "known: adamw, sgd"
    assert nearest("x", []) == "known: "
