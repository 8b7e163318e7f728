"""How a backbone or a data set is named: one string that goes unchanged into configs, logs and results.

| text | scheme | names |
|---|---|---|
| `ORG/NAME[:config][@revision]` | hub | something on a model and data hub |
| `./x` `../x` `/x` `~/x` | path | a local folder or file |
| `pkg:NAME` | pkg | something that a package carries |
| `builtin:NAME` | builtin | something that we ship |
| `synth:NAME[?key=value&...]` | synth | data that we generate |
| `random:ARCH[?key=value&...]` | random | a random initialisation |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

from cotune.core.errors import Code, CotuneError, nearest

_WITH_OPTIONS = ("synth", "random")
_PREFIXES = ("builtin", "pkg", *_WITH_OPTIONS)
_WORD = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_HUB = re.compile(rf"(?P<name>{_WORD}/{_WORD})(?::(?P<config>[^@:\s]+))?(?:@(?P<revision>[^@\s]+))?")
_PREFIXED = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<rest>.*)", re.DOTALL)
_LOCAL = re.compile(r"\.{0,2}/|~/|(?:\.{1,2}|~)$")


@dataclass(frozen=True)
class Reference:
    """A parsed reference.

    Attributes:
        text: as it was written.
        scheme: hub, path, pkg, builtin, synth or random.
        name: the hub id, the path as it was written, or the word after the prefix.
        config: of a hub data set.
        revision: of a hub id.
        options: after the question mark, in the order in which they were written.
    """

    text: str
    scheme: str
    name: str
    config: str | None = None
    revision: str | None = None
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    def __str__(self) -> str:
        return self.text

    @property
    def path(self) -> Path:
        """The file or folder that a `path` reference names, with `~` written out."""
        return Path(self.name).expanduser()


def parse(text: str) -> Reference:
    """The reference that `text` is.

    Raises:
        CotuneError: E_CONFIG for a bare name, an unknown prefix, or options that cannot be read.
    """
    if not text or text != text.strip() or not text.isprintable():
        _refuse("a reference is one line without spaces at its ends", text)
    if _LOCAL.match(text):
        return Reference(text, "path", text)
    if hub := _HUB.fullmatch(text):
        return Reference(text, "hub", hub["name"], hub["config"], hub["revision"])
    prefixed = _PREFIXED.fullmatch(text)
    if prefixed is None:
        _refuse_name(text)
    scheme, (name, mark, query) = prefixed["scheme"], prefixed["rest"].partition("?")
    if scheme not in _PREFIXES:
        _refuse(f"no kind of reference '{scheme}:'", text, f"{nearest(scheme, _PREFIXES)}; hub ids have no prefix")
    if not re.fullmatch(_WORD, name):
        _refuse(f"'{scheme}:' needs a name", text, f"write {scheme}:NAME")
    if mark and scheme not in _WITH_OPTIONS:
        _refuse(f"'{scheme}:' takes no options", text, f"write {scheme}:{name}")
    return Reference(text, scheme, name, options=MappingProxyType(_options(text, query) if mark else {}))


def _options(text: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in query.split("&"):
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            _refuse("an option is key=value", text, "separate options by &")
        if key in options:
            _refuse(f"option '{key}' is given twice", text)
        options[key] = value
    return options


def _refuse(what: str, text: str, fix: str = "") -> NoReturn:
    raise CotuneError(Code.CONFIG, what, where="reference", got=repr(text), fix=fix)


def _refuse_name(text: str) -> NoReturn:
    if "/" in text:
        _refuse("neither ORG/NAME nor a local path", text, f"a local path starts with ./ or /, as in ./{text}")
    forms = ", ".join(f"{prefix}:{text}" for prefix in _PREFIXES)
    _refuse("a bare name says not where to look", text, f"write ORG/{text} (hub), ./{text} (local), or {forms}")
