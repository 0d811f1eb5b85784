"""Costs read from the input of a job by a small expression:

    cost = "input.steps * input.width * input.height / 1e6"

An expression has numbers, texts to compare with, fields below `input` (`input.size`, `input.images[0]`,
`input["max-side"]`), + - * / // % **, comparisons, `and`, `or`, `not`, `A if B else C`, and the functions min, max, len
and default(FIELD, VALUE), which is VALUE if the field is missing or null. It is parsed once and never executed as
Python: each part becomes a function of the input. All numbers are floats, so no operation takes long.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from fairlead.domain.config_types import FUNCTION
from fairlead.domain.costs import CostError, checked_cost
from fairlead.domain.validation import json_type

MAX_LENGTH = 500
MAX_DEPTH = 30
VALID = 'valid are numbers, input.FIELD, + - * / // % **, comparisons, "A if B else C", min, max, len and default'

Part: TypeAlias = Callable[[Any], Any]
"""Computes a part of the expression from the input."""

_OPERATIONS: dict[type[ast.operator], Callable[[float, float], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_EQUALITIES: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {ast.Eq: operator.eq, ast.NotEq: operator.ne}


class _Missing(CostError):
    """The input lacks a field."""


def parsed(text: str) -> Callable[[Any], float]:
    """The function that computes the cost from an input. Raises CostError; so does the function."""
    if len(text) > MAX_LENGTH:
        raise CostError(f"the expression is longer than {MAX_LENGTH} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise CostError(f"{text!r} is not an expression; {VALID}") from None
    whole = _number_part(tree.body, 0)
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and _is_constant(node.right):
            left = node.left if _is_constant(node.left) else ast.Constant(1.0)
            _computed(_number_part(ast.BinOp(left, node.op, node.right), 0), None)
    if _is_constant(tree.body):
        checked_cost(_computed(whole, None))
    return lambda params: _computed(whole, params)


def _is_constant(node: ast.expr) -> bool:
    """Whether a part has the same value, or the same problem, for every input."""
    return not any(isinstance(each, ast.Name) for each in ast.walk(node))


def _computed(part: Part, params: Any) -> float:
    try:
        value: float = part(params)
    except ZeroDivisionError:
        raise CostError("it divides by zero") from None
    except OverflowError:
        raise CostError("a number is too large") from None
    return value


def reader_of(cost: object) -> Callable[[Any], float] | None:
    """The function that computes the `cost` of a service, if that is an expression. Raises CostError."""
    if not isinstance(cost, str) or re.match(FUNCTION, cost):
        return None
    try:
        return parsed(cost)
    except CostError as error:
        raise CostError(f"cost: {error}") from None


def _number_part(node: ast.expr, depth: int) -> Part:
    part, source = _part(node, depth + 1), ast.unparse(node)
    if (kind := _never_a_number(node)) is not None:
        raise CostError(f"{source} is {kind}, not a number")
    return lambda params: _as_number(part(params), source)


def _never_a_number(node: ast.expr) -> str | None:
    """The type of a part that is a number for no input; None if it may be one. The input itself is an object."""
    match node:
        case ast.Name() | ast.Call(func=ast.Name(id="default"), args=[ast.Name(), _]):
            return json_type({})
        case ast.Constant(value=str() as text):
            return _kind(text)
        case ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return json_type(True)
        case ast.IfExp(body=yes, orelse=no):
            values = [yes, no]
        case ast.BoolOp(values=values):
            pass
        case _:
            return None
    kinds = [_never_a_number(value) for value in values]
    return None if None in kinds else kinds[0]


def _as_number(value: Any, source: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CostError(f"{source} is {_kind(value)}, not a number")
    try:
        number = float(value)
    except OverflowError:
        raise CostError("a number is too large") from None
    if not math.isfinite(number):
        raise CostError(f"{source} is not a finite number")
    return number


def _kind(value: Any) -> str:
    return "text" if isinstance(value, str) else json_type(value)


def _part(node: ast.expr, depth: int) -> Part:
    if depth > MAX_DEPTH:
        raise CostError("the expression is nested too deeply")
    match node:
        case ast.Constant(value=str() | int() | float() as value) if not isinstance(value, bool):
            constant = value if isinstance(value, str) else _as_number(value, ast.unparse(node))
            return lambda _: constant
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return _field(node)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _operation(_OPERATIONS[type(op)], _number_part(left, depth), _number_part(right, depth))
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            number, factor = _number_part(operand, depth), -1.0 if isinstance(sign, ast.USub) else 1.0
            return lambda params: factor * number(params)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            part = _part(operand, depth + 1)
            return lambda params: not part(params)
        case ast.BoolOp(op=op, values=values):
            parts, stops = [_part(value, depth + 1) for value in values], isinstance(op, ast.Or)
            return lambda params: _first_that(parts, params, stops)
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _comparison(left, ops, others, depth)
        case ast.IfExp(test=test, body=body, orelse=other):
            condition, yes, no = (_part(each, depth + 1) for each in (test, body, other))
            return lambda params: yes(params) if condition(params) else no(params)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _function(name, args, depth)
    raise CostError(f"{ast.unparse(node)!r} is not allowed; {VALID}")


def _operation(operation: Callable[[float, float], Any], left: Part, right: Part) -> Part:
    def value(params: Any) -> Any:
        result = operation(left(params), right(params))
        if isinstance(result, complex):
            raise CostError("a root of a negative number is not a number")
        return result

    return value


def _first_that(parts: Sequence[Part], params: Any, stops: bool) -> Any:
    value = None
    for part in parts:
        value = part(params)
        if bool(value) is stops:
            break
    return value


def _comparison(left: ast.expr, ops: Sequence[ast.cmpop], others: Sequence[ast.expr], depth: int) -> Part:
    if len(ops) > 1:
        raise CostError("compare two values at a time, and join comparisons with and")
    kind, right = type(ops[0]), others[0]
    if (equality := _EQUALITIES.get(kind)) is not None:
        one, other = _part(left, depth + 1), _part(right, depth + 1)
        return lambda params: equality(one(params), other(params))
    if (comparison := _COMPARISONS.get(kind)) is None:
        raise CostError(f"only == != < <= > >= compare; {VALID}")
    one, other = _number_part(left, depth), _number_part(right, depth)
    return lambda params: comparison(one(params), other(params))


def _function(name: str, args: Sequence[ast.expr], depth: int) -> Part:
    if name in ("min", "max") and args:
        numbers, choose = [_number_part(arg, depth) for arg in args], min if name == "min" else max
        return lambda params: choose(number(params) for number in numbers)
    if name == "len" and len(args) == 1:
        part, source = _part(args[0], depth + 1), ast.unparse(args[0])
        return lambda params: _length(part(params), source)
    if name == "default" and len(args) == 2:
        field, other = _field(args[0]), _part(args[1], depth + 1)
        return lambda params: _or_default(field, other, params)
    raise CostError(f"{name} is not a function with {len(args)} arguments; {VALID}")


def _length(value: Any, source: str) -> int:
    if not isinstance(value, str | list | tuple | Mapping):
        raise CostError(f"{source} is {_kind(value)} and has no length")
    return len(value)


def _or_default(field: Part, other: Part, params: Any) -> Any:
    try:
        value = field(params)
    except _Missing:
        value = None
    return other(params) if value is None else value


def _field(node: ast.expr) -> Part:
    path: list[str | int] = []
    source = ast.unparse(node)
    while not isinstance(node, ast.Name):
        match node:
            case ast.Attribute(value=value, attr=name):
                path.append(name)
            case ast.Subscript(value=value, slice=ast.Constant(value=str() | int() as key)) if type(key) is not bool:
                path.append(key)
            case _:
                raise CostError(f"{source!r} is not a field; {VALID}")
        node = value
    if node.id != "input" or len(path) > MAX_DEPTH:
        raise CostError(f"{source!r} is not a field of the input; {VALID}")
    path.reverse()
    return lambda params: _value(params, path)


def _value(value: Any, path: Sequence[str | int]) -> Any:
    for depth, key in enumerate(path):
        if isinstance(value, Mapping):
            known = key in value
        else:
            known = isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value)
        if not known:
            parent = ".".join(["input", *map(str, path[:depth])])
            raise _Missing(f"{parent} has no {str(key)!r}")
        value = value[key]
    return value
