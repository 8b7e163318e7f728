"""The grammar of references: what each form means, and what the refusals suggest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.core.errors import Code, CotuneError
from cotune.core.reference import Reference, parse


def refused(text: str) -> CotuneError:
    with pytest.raises(CotuneError) as caught:
        parse(text)
    assert caught.value.code is Code.CONFIG
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("text", "name", "config", "revision"),
    [
        ("Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-1.5B", None, None),
        ("cais/mmlu:all", "cais/mmlu", "all", None),
        ("org/name@v1.0", "org/name", None, "v1.0"),
        ("org/name:config-2@refs/pr/1", "org/name", "config-2", "refs/pr/1"),
    ],
)
def test_an_organisation_and_a_name_are_a_hub_id(
    text: str, name: str, config: str | None, revision: str | None
) -> None:
    assert parse(text) == Reference(text, "hub", name, config, revision)


@pytest.mark.parametrize(
    "text", ["./x", "../x", "/x", "~/x", ".", "..", "~", "./a?b=c@d:e", "./pkg:x", "./spaces in it"]
)
def test_explicit_path_syntax_is_local_and_nothing_in_it_is_interpreted(text: str) -> None:
    assert parse(text) == Reference(text, "path", text)


def test_a_path_in_the_home_folder_is_written_out_only_when_it_is_used() -> None:
    assert parse("~/x").name == "~/x"
    assert parse("~/x").path == Path.home() / "x"


@pytest.mark.parametrize("scheme", ["pkg", "builtin", "synth", "random"])
def test_a_prefix_says_where_the_name_belongs(scheme: str) -> None:
    assert parse(f"{scheme}:some-name") == Reference(f"{scheme}:some-name", scheme, "some-name")


def test_generated_things_take_options_in_their_order() -> None:
    ref = parse("synth:recall?pairs=16&alpha=0.5&path=a/b=c")
    assert (ref.scheme, ref.name) == ("synth", "recall")
    assert list(ref.options.items()) == [("pairs", "16"), ("alpha", "0.5"), ("path", "a/b=c")]


def test_a_bare_name_is_refused_with_full_names_to_choose_from() -> None:
    text = str(refused("roberta-large"))
    for full in ("ORG/roberta-large", "./roberta-large", "pkg:roberta-large", "random:roberta-large"):
        assert full in text


def test_an_unknown_prefix_is_refused_with_the_nearest() -> None:
    assert "did you mean 'random'?" in str(refused("randon:llama"))
    assert "hub ids have no prefix" in str(refused("hf:org/name"))


def test_a_path_without_a_dot_is_refused_with_the_dot() -> None:
    assert "./data/a/b.csv" in str(refused("data/a/b.csv"))


UNREADABLE = """
pkg: pkg:a/b random: random:llama? random:llama?x random:llama?=1 random:llama?x= random:llama?x=1&x=2
pkg:x?y=1 builtin:x?y=1 org/name@ org/ org/name: org/name?x=1
"""


@pytest.mark.parametrize("text", ["", " ", " org/name", "org/name ", "a\nb", "org/na me", *UNREADABLE.split()])
def test_what_cannot_be_read_is_refused_on_one_line(text: str) -> None:
    refused(text)


@given(st.text() | st.from_regex(r"[a-z]{0,6}[:/@.~?]{0,2}[a-z]{0,3}([?&=][a-z=]{0,3})?", fullmatch=True))
def test_any_text_is_parsed_unchanged_or_refused_as_configuration(text: str) -> None:
    try:
        ref = parse(text)
    except CotuneError:
        refused(text)
        return
    assert str(ref) == ref.text == text
    assert hash(ref) == hash(parse(text))
