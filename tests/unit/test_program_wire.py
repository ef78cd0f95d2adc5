"""The encoding between judge and program: plain values round-trip exactly, and nothing else passes."""

from __future__ import annotations

import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge.verifiers.sandbox.inside import wire

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary()
    | st.binary().map(bytearray),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner)
        | st.sets(st.integers() | st.text())
        | st.frozensets(st.binary())
        | st.builds(range, st.integers(-9, 9), st.integers(-9, 9))
    ),
    max_leaves=20,
)


def exact(value: object) -> object:
    """A form in which equal means equal in type, order and sign too."""
    if isinstance(value, list | tuple):
        return type(value), [exact(item) for item in value]
    if isinstance(value, dict):
        return dict, [(exact(key), exact(item)) for key, item in value.items()]
    return type(value), repr(value) if isinstance(value, float | complex) else value


@given(PLAIN)
@example("\ud800")
@example([1 << 5000, -0.0, 1e-320])
def test_plain_values_round_trip_exactly(value: object) -> None:
    assert exact(wire.decode(wire.encode(value))) == exact(value)


@given(
    st.binary(max_size=60) | PLAIN.map(wire.encode).flatmap(lambda data: st.binary(max_size=3).map(lambda junk: data[:-1] + junk))
)
def test_any_bytes_decode_to_a_plain_value_or_are_refused(data: bytes) -> None:
    try:
        value = wire.decode(data)
    except wire.BadFrame:
        return
    assert type(value).__module__ == "builtins"


def test_an_iterator_arrives_as_an_iterator() -> None:
    for made in (iter([1, 2]), (n for n in (1, 2)), map(int, "12"), {1: 0, 2: 0}.keys()):
        found = wire.decode(wire.encode(made))
        assert list(found) == [1, 2] and list(found) == []


@pytest.mark.parametrize("value", [object(), len, type, Exception("x"), ..., memoryview(b"x"), [[object()]]])
def test_non_plain_value_is_refused(value: object) -> None:
    with pytest.raises(wire.Unencodable):
        wire.encode(value)


def test_depth_and_size_are_bounded() -> None:
    deep: list = []
    for _ in range(wire.MAX_DEPTH + 1):
        deep = [deep]
    for value in (deep, "x" * (wire.MAX_FRAME_BYTES + 1), ["x" * 1000] * 5000):
        with pytest.raises(wire.Unencodable):
            wire.encode(value)
    with pytest.raises(wire.BadFrame):
        wire.decode(b"L" * 5000)


def test_frames_are_read_exactly_and_checked() -> None:
    read, write = os.pipe()
    try:
        os.write(write, wire.framed(b"one") + wire.framed(b"") + b"0000000x")
        assert (wire.read_frame(read), wire.read_frame(read)) == (b"one", b"")
        with pytest.raises(wire.BadFrame):
            wire.read_frame(read)
        os.write(write, b"ffffffff")
        with pytest.raises(wire.BadFrame):
            wire.read_frame(read)
        os.write(write, b"000000")
        os.close(write)
        with pytest.raises(wire.Ended):
            wire.read_frame(read)
    finally:
        os.close(read)
