"""Plain values as bytes between the judge and the program under test.

A value is a one-letter tag with its content; what is decoded is always of an exact built-in type, so that a subclass with a clever
`__eq__` arrives as the plain value it was made from. Depth and size are bounded on both sides. Nothing that is decoded can run.

    N None  T True  F False  I int (hex)  D float (repr)  C complex  S str  B bytes  Y bytearray
    L list  U tuple  M dict  E set  Z frozenset  R range  G iterator or view, arrives as a one-shot iterator
    H a handle: an object that stays where it is, by a number or a name. What it refers to is known to whoever passes `mark` and `unmark`.
"""

from __future__ import annotations

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

SHARED_MODULES = frozenset((
    "abc", "array", "bisect", "calendar", "cmath", "collections", "collections.abc", "copy", "dataclasses", "datetime", "decimal", "enum",
    "fractions", "functools", "heapq", "itertools", "json", "math", "numbers", "operator", "random", "re", "statistics", "string",
    "textwrap", "time", "typing", "unicodedata",
))  # fmt: skip
"""Modules of the standard library that the tests have of their own where the program has imported them."""
MAX_DEPTH = 100
MAX_FRAME_BYTES = 4 << 20
_HEADER = 8


class Unencodable(Exception):
    """A value that cannot cross: its type is not plain, or it is too deep or too large. The message is one line without content."""


class BadFrame(Exception):
    """Bytes that are no frame or no value."""


class Ended(Exception):
    """The other side has closed its end."""


def encode(value: Any, mark: Callable[[Any], Any] = lambda value: None, *, marks_first: bool = False) -> bytes:
    """The bytes of a plain value. `mark` gives what a handle of another one holds (None: there is none), of every value with
    `marks_first`. Raises Unencodable."""
    parts: list[bytes] = []
    _Encoder(parts, mark, marks_first).put(value, 0)
    return b"".join(parts)


class _Encoder:
    def __init__(self, parts: list[bytes], mark: Callable[[Any], Any], marks_first: bool) -> None:
        self.parts = parts
        self.size = 0
        self.mark = mark
        self.marks_first = marks_first

    def put(self, value: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise Unencodable(f"a value nested deeper than {MAX_DEPTH}")
        if value is None or value is True or value is False:
            self.add(b"N" if value is None else b"T" if value else b"F")
            return
        if self.marks_first and (handle := self.mark(value)) is not None:
            self.items(b"H", handle, depth)
            return
        for kind, tag, content in _ATOMS:
            if isinstance(value, kind):
                self.atom(tag, content(value))
                return
        for kind, tag, items in _CONTAINERS:
            if isinstance(value, kind):
                self.items(tag, items(value), depth)
                return
        if isinstance(value, range):
            self.items(b"R", (value.start, value.stop, value.step), depth)
        elif hasattr(type(value), "__next__") or type(value) in _VIEWS:
            self.items(b"G", value, depth)
        elif (handle := self.mark(value)) is not None:
            self.items(b"H", handle, depth)
        else:
            raise Unencodable(f"a value of type {type(value).__name__[:40]}")

    def atom(self, tag: bytes, content: bytes) -> None:
        self.add(b"%b%d:" % (tag, len(content)))
        self.add(content)

    def items(self, tag: bytes, items: Iterable[Any], depth: int) -> None:
        """Each item once, then the end mark; the count is not known of an iterator."""
        self.add(tag)
        for item in items:
            self.put(item, depth + 1)
        self.add(b".")

    def add(self, content: bytes) -> None:
        self.size += len(content)
        if self.size > MAX_FRAME_BYTES:
            raise Unencodable(f"a value larger than {MAX_FRAME_BYTES >> 20} MiB")
        self.parts.append(content)


def _pairs(value: Any) -> Iterable[Any]:
    for key, item in dict.items(value):
        yield key
        yield item


def _complex_bytes(value: complex) -> bytes:
    return f"{float.__repr__(value.real)},{float.__repr__(value.imag)}".encode()


# Content is read by the base type's own methods, so that a subclass cannot present one value here and another there.
_ATOMS: tuple[tuple[type, bytes, Callable[[Any], bytes]], ...] = (
    (int, b"I", lambda value: int.__format__(value, "x").encode()),
    (str, b"S", lambda value: str.encode(value, "utf-8", "surrogatepass")),
    (float, b"D", lambda value: float.__repr__(value).encode()),
    (bytes, b"B", lambda value: bytes.__getitem__(value, slice(None))),
    (bytearray, b"Y", lambda value: bytes(bytearray.__getitem__(value, slice(None)))),
    (complex, b"C", _complex_bytes),
)
_CONTAINERS: tuple[tuple[type, bytes, Callable[[Any], Iterable[Any]]], ...] = (
    (list, b"L", list.__iter__),
    (tuple, b"U", tuple.__iter__),
    (dict, b"M", _pairs),
    (set, b"E", set.__iter__),
    (frozenset, b"Z", frozenset.__iter__),
)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


def _no_handles(content: list[Any]) -> Any:
    raise ValueError("a handle of nobody")


def decode(data: bytes, unmark: Callable[[list[Any]], Any] = _no_handles) -> Any:
    """The value of bytes that `encode` could have made; `unmark` returns what a handle refers to. Raises BadFrame for all others."""
    reader = _Decoder(data, unmark)
    try:
        value = reader.value(0)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise BadFrame("not a value") from error
    if reader.at != len(data) or value is _END:
        raise BadFrame("not a value")
    return value


_END = object()


class _Decoder:
    def __init__(self, data: bytes, unmark: Callable[[list[Any]], Any]) -> None:
        self.data = data
        self.at = 0
        self.unmark = unmark

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH + 1:
            raise ValueError("too deep")
        tag = self.data[self.at : self.at + 1]
        self.at += 1
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _FROM_TEXT:
            return _FROM_TEXT[tag](self.content())
        if tag == b"H":
            return self.unmark(self.items(depth))
        return _FROM_ITEMS[tag](self.items(depth))

    def content(self) -> bytes:
        colon = self.data.index(b":", self.at, self.at + 12)
        length = int(self.data[self.at : colon])
        self.at = colon + 1 + length
        if length < 0 or self.at > len(self.data):
            raise ValueError("cut")
        return self.data[colon + 1 : self.at]

    def items(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while (item := self.value(depth + 1)) is not _END:
            found.append(item)
        return found


def _complex(content: bytes) -> complex:
    real, _, imaginary = content.decode().partition(",")
    return complex(float(real), float(imaginary))


def _mapping(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


_CONSTANTS = {b"N": None, b"T": True, b"F": False, b".": _END}
_FROM_TEXT: dict[bytes, Callable[[bytes], Any]] = {
    b"I": lambda content: int(content, 16),
    b"D": lambda content: float(content.decode()),
    b"C": _complex,
    b"S": lambda content: content.decode("utf-8", "surrogatepass"),
    b"B": bytes,
    b"Y": bytearray,
}
_FROM_ITEMS: dict[bytes, Callable[[list[Any]], Any]] = {
    b"L": list,
    b"U": tuple,
    b"M": _mapping,
    b"E": set,
    b"Z": frozenset,
    b"R": lambda items: range(*items),
    b"G": iter,
}


_HOLDERS = (list, tuple, dict)


def containers_in(arguments: Iterable[Any]) -> list[tuple[int, Any, Any]]:
    """The containers among arguments and in them, each after the one that holds it: the holder's place in this list (-1: none), the index
    or key in it, and the container. Both sides number them alike. Of arguments that have crossed, so they end."""
    kinds = (*_HOLDERS, set, bytearray)
    found = [(-1, place, one) for place, one in enumerate(arguments) if isinstance(one, kinds)]
    for number, (_, _, holder) in enumerate(found):  # it grows meanwhile
        if isinstance(holder, _HOLDERS):
            inside = dict.items(holder) if isinstance(holder, dict) else enumerate(holder)
            found += [(number, place, one) for place, one in inside if isinstance(one, kinds)]
    return found


def held_at(holder: Any, place: Any) -> Any:
    """What a list, tuple or dictionary holds at an index or key; None where it ends before, or is none."""
    if isinstance(holder, dict):
        return holder.get(place)
    return holder[place] if isinstance(holder, list | tuple) and type(place) is int and place < len(holder) else None


def read_exactly(fd: int, size: int, peer: int = -1) -> bytes:
    """`size` bytes, not one more. Raises Ended at the end of the stream, or when nobody is left at the other end of `peer`."""
    parts = []
    while size:
        if peer >= 0 and _left_alone(fd, peer):
            raise Ended
        try:
            part = posix.read(fd, min(size, 1 << 16))
        except ConnectionResetError:
            part = b""
        if not part:
            raise Ended
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _left_alone(fd: int, peer: int) -> bool:
    """Wait until there is something to read, or nobody at the other end of `peer`."""
    import select

    both = select.poll()
    both.register(fd, select.POLLIN)
    both.register(peer, 0)
    return any(ready == peer for ready, _ in both.poll())


def write_all(fd: int, data: bytes) -> None:
    """Write everything. Raises Ended when nobody reads any more."""
    view = memoryview(data)
    while view:
        try:
            view = view[posix.write(fd, view) :]
        except (BrokenPipeError, ConnectionResetError):
            raise Ended from None


def framed(content: bytes) -> bytes:
    """A frame: eight hex digits of length, then the content."""
    return b"%08x" % len(content) + content


def read_frame(fd: int, peer: int = -1) -> bytes:
    """The content of the next frame. Raises BadFrame for a length that is none or beyond the limit, Ended."""
    header = read_exactly(fd, _HEADER, peer)
    if header.strip(b"0123456789abcdef") or (size := int(header, 16)) > MAX_FRAME_BYTES:
        raise BadFrame("not a frame")
    return read_exactly(fd, size, peer)
