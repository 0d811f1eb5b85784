"""A body that is split into items as it arrives equals the body parsed at once."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import FairleadError, InvalidInput, TooLarge
from fairlead.gateway import large_bodies, request_parsing
from fairlead.gateway.large_bodies import JsonSplitter, LineSplitter, Pieces, _parse_lines
from fairlead.gateway.problems import BadJson

MOST, LARGEST = 1000, 100_000

values = st.recursive(
    st.none() | st.booleans() | st.integers(-100, 100) | st.text('ab"\\[]{},: \n\u00e9', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('items"\\,[', max_size=6), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture(autouse=True, params=[1, 20, 64 * 1024])
def size_of_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "PIECE", request.param)


def read_json(body: bytes, step: int, most: int = MOST, largest: int = LARGEST) -> Any:
    splitter = JsonSplitter(Pieces(lambda text, first, _: request_parsing.decode_items(text, first)), most, largest)
    for start in range(0, len(body), step):
        splitter.feed(body[start : start + step])
    splitter.feed(b"", last=True)
    raw = request_parsing.decode(splitter.rest())
    if splitter.found:
        assert raw["items"] is None
        raw["items"] = list(splitter.pieces)
        assert len(splitter.pieces) == len(raw["items"])
        assert [splitter.pieces[index] for index in range(len(splitter.pieces))] == raw["items"]
    return raw


def read_lines(body: bytes, step: int, most: int = MOST, largest: int = LARGEST) -> list[Any]:
    splitter = LineSplitter(Pieces(_parse_lines), most, largest)
    for start in range(0, len(body), step):
        splitter.feed(body[start : start + step])
    splitter.feed(b"", last=True)
    return list(splitter.pieces)


@given(st.dictionaries(st.text('items"\\', max_size=6), values, max_size=3), st.lists(values, max_size=8), st.data())
def test_a_split_batch_equals_the_batch(about: dict[str, Any], items: list[Any], data: st.DataObject) -> None:
    names = data.draw(st.permutations([*(about.keys() - {"items"}), "items"]))
    whole = {name: items if name == "items" else about[name] for name in names}
    option = data.draw(st.sampled_from([0, orjson.OPT_INDENT_2]))
    body = orjson.dumps(whole, option=option)
    assert read_json(body, data.draw(st.integers(1, 50))) == whole


@given(st.lists(values, max_size=6), st.data())
def test_invalid_json_is_invalid_in_pieces_too(items: list[Any], data: st.DataObject) -> None:
    body = bytearray(orjson.dumps({"user_id": "ada", "items": items, "name": None}))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b",", b"]", b"}", b'"', b"[", b"{", b"1", b""])
        )
    try:
        whole = orjson.loads(body)
    except orjson.JSONDecodeError:
        whole = None
    try:
        found = read_json(bytes(body), data.draw(st.integers(1, 50)))
    except BadJson:
        found = None
    except InvalidInput:
        return  # the list occurs twice, which is refused before any other error
    assert found == whole


@given(st.lists(values, max_size=8), st.data())
def test_split_lines_equal_the_lines(items: list[Any], data: st.DataObject) -> None:
    blank = st.sampled_from([b"\n", b"\r\n", b"\n\n \n", b"\n\t\n"])
    body = b"".join(orjson.dumps(item) + data.draw(blank) for item in items)
    if data.draw(st.booleans()):
        body = b"\xef\xbb\xbf" + body.rstrip()
    assert read_lines(body, data.draw(st.integers(1, 50))) == items


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_an_invalid_line_is_named_by_its_number(step: int) -> None:
    with pytest.raises(BadJson, match="line 5: "):
        read_lines(b'{"a": 1}\n\n{"b": 2}\n\n{"c\n{"d": 3}\n', step)


@pytest.mark.parametrize("step", [10, 10_000])
@pytest.mark.parametrize(
    ("read", "body"), [(read_json, b'{"items": [' + b"{}," * 5000), (read_lines, b"{}\n" * 5000)], ids=["JSON", "lines"]
)
def test_too_many_items_are_refused_before_the_end(read: Any, body: bytes, step: int) -> None:
    with pytest.raises(InvalidInput, match="1 to 1000 items"):
        read(body, step)


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (read_json, b'{"items": [{}, {"a": "' + b"x" * 3000 + b'"}]}'),
        (read_json, b'{"items": [{}, ' + b"[" * 900 + b"1," * 1000),
        (read_json, b'{"name": "' + b"x" * 3000),
        (read_json, b'{"items": [1], "name": [' + b"1," * 3000),
        (read_lines, b'{}\n{"a": "' + b"x" * 3000 + b'"}\n'),
    ],
    ids=["string", "nested", "before the items", "after the items", "line"],
)
def test_an_oversized_item_is_refused(read: Any, body: bytes) -> None:
    with pytest.raises(TooLarge) as error:
        read(body, 100, largest=2000)
    if b"items" in body and b"name" not in body:
        assert error.value.pointer == "/items/1"


@pytest.mark.parametrize(
    "body",
    [
        b'{"items": [1], "items": [2]}',
        b'{"items": [1}',
        b'{"items": [1',
        b'{"items": [' + b"[" * 2000,
        b'{"items": [1,]}',
        b'{"items": [,1]}',
        b'{"items": [{"n": 123456789012345678901234567890}]}',
    ],
)
def test_malformed_bodies_are_refused(body: bytes) -> None:
    for step in (1, 1000):
        with pytest.raises(FairleadError):
            read_json(body, step)


def test_a_name_that_only_ends_in_items_is_another_name() -> None:
    body = rb'{"no \"items": [1], "my items": [2], "items": [3]}'
    assert read_json(body, 3) == orjson.loads(body)
