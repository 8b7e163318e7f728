"""The messages of a round, each written when it is taken: they are never there all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cotune.core.message import Envelope, Header, Parts
from cotune.wire.envelope import encode, layouts_of, payload, readdressed, size


class Mail(Mapping[str, bytes]):
    """Client -> its message: `encode` of its header and content, made anew whenever it is asked for.

    What all clients of one table and version get is one value, which is packed once; their messages are copies of it
    under headers of their own. So a round of any number of clients takes the memory of two messages.
    """

    def __init__(self) -> None:
        self._headers: dict[str, Header] = {}
        self._contents: dict[str, Parts] = {}
        self._sizes: dict[int, tuple[dict[tuple[str, str], int], int]] = {}  # by which content, which is kept above
        self._packed: tuple[Header, Parts, bytes] | None = None

    def put(self, client: str, envelope: Envelope) -> None:
        """Take a message in; it carries no metrics, as none that goes down does."""
        self._headers[client], self._contents[client] = envelope.header, envelope.parts

    def cost(self, client: str) -> tuple[Mapping[tuple[str, str], int], int]:
        """(bytes of each tensor, bytes of the whole) of a client's message, before it is written."""
        content = self._contents[client]
        if id(content) not in self._sizes:
            layouts = layouts_of(content)
            self._sizes[id(content)] = payload(layouts), sum(size(layouts, 0))
        return self._sizes[id(content)]

    def __getitem__(self, client: str) -> bytes:
        header, content = self._headers[client], self._contents[client]
        if self._packed is None or self._packed[1] is not content:
            self._packed = None  # before the next is made
            self._packed = header, content, encode(Envelope(header, content))
        first, _, message = self._packed
        return readdressed(message, first, header)

    def __iter__(self) -> Iterator[str]:
        return iter(self._headers)

    def __len__(self) -> int:
        return len(self._headers)
