from __future__ import annotations

from typing import Any

import pytest

from fairlead.domain.json_codec import MAX_DEPTH, NotJson, check_depth, from_json, from_upstream, to_json


def nested(depth: int, *, lists: bool) -> Any:
    value: Any = {} if not lists else []
    for _ in range(depth - 1):
        value = [value, "]]}"] if lists else {"[[{": value, "x": 1}
    return value


@pytest.mark.parametrize("lists", [True, False])
def test_values_up_to_the_depth_limit_are_written(lists: bool) -> None:
    assert to_json(nested(MAX_DEPTH, lists=lists))


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 254, 255, 3000])
def test_deeper_values_are_refused(lists: bool, depth: int) -> None:
    with pytest.raises(NotJson, match="nested more than 100 levels deep"):
        to_json(nested(depth, lists=lists))


@pytest.mark.parametrize("text", ["[" * 100 + "]" * 100, '{"a":' * 100 + "1" + "}" * 100, "[{}]" * 50])
def test_text_within_the_limit_passes(text: str) -> None:
    check_depth(text)
    check_depth(text.encode())


@pytest.mark.parametrize("text", ["[" * 101 + "]" * 101, '[{"a":' * 51 + "[]" + "}]" * 51, " [\n" * 900 + "]" * 900])
def test_text_beyond_the_limit_is_refused(text: str) -> None:
    with pytest.raises(NotJson, match="nested"):
        check_depth(text)
    with pytest.raises(NotJson, match="nested"):
        check_depth(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        '["' + "[" * 500 + '"]',
        '{"\\"' + "{[" * 500 + '": 1}',
        '["\\\\", "' + "[" * 200 + "]" * 200 + '"]',
        "[" + ",".join(["[[],{}]"] * 5000) + "]",
    ],
)
def test_brackets_in_strings_and_side_by_side_are_not_depth(text: str) -> None:
    check_depth(text)


@pytest.mark.parametrize("text", ["[" * 1000, "]" * 1000, "][" * 1000, '"' + '\\"[' * 1000, "\\" * 500 + "[" * 500])
def test_invalid_json_is_left_to_the_parser(text: str) -> None:
    check_depth(text)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30])
def test_integers_beyond_64_bits_are_read_exactly_and_not_written(number: int) -> None:
    assert from_json(f"[{number}]".encode()) == [number]
    with pytest.raises(NotJson, match="an integer beyond 64 bits"):
        to_json([number])


def test_json_of_an_upstream_may_have_lone_surrogates() -> None:
    assert from_upstream(b'{"a": "x\\ud83d", "b": "\\ud83d\\ude00"}') == {"a": "x?", "b": "\U0001f600"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"a": NaN}', "it contains NaN or an infinity"),
        (b'{"a": [-Infinity]}', "it contains NaN or an infinity"),
        (b'{"a": 1e999}', "it contains NaN or an infinity"),
        (b'{"a": oops}', "unexpected character"),
        (b'{"a": "x\xed\xa0\xbd"}', "not valid UTF-8"),
        (b"[" * 100_000, "unexpected end|[Rr]ecursion|depth"),
    ],
)
def test_what_json_does_not_allow_is_refused_with_the_reason(text: bytes, problem: str) -> None:
    with pytest.raises(NotJson, match=problem):
        from_upstream(text)
