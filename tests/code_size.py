"""Measures the code: lines of files and functions, parameters, duplicated blocks."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[1]
BLOCK = 8
"""The minimum number of equal lines of code that count as a duplicated block; fewer are idioms."""


@dataclass(frozen=True)
class Sizes:
    longest_file: int
    longest_function: int
    most_parameters: int
    duplicated_blocks: int
    files: int = 0
    lines: int = 0


@cache
def measure(folder: str) -> Sizes:
    lengths, functions, parameters = [], [0], [0]
    code: dict[Path, list[str]] = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lengths.append(text.count("\n"))
        nodes = list(ast.walk(ast.parse(text)))
        code[path] = code_lines(text, nodes)
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append((node.end_lineno or 0) - node.lineno + 1)
                parameters.append(_parameters(node))
    return Sizes(
        files=len(lengths),
        lines=sum(lengths),
        longest_file=max(lengths),
        longest_function=max(functions),
        most_parameters=max(parameters),
        duplicated_blocks=duplicated_blocks(code),
    )


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The number of parameters. Those of commands and routes are options and query parameters, and not counted."""
    if node.decorator_list:
        return 0
    found = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return len([each for each in found if each.arg not in ("self", "cls")])


def duplicated_blocks(files: dict[Path, list[str]]) -> int:
    """The number of repeated runs of at least `BLOCK` equal lines of code."""
    seen: dict[tuple[str, ...], tuple[Path, int]] = {}
    repeated: dict[tuple[Path, Path], list[int]] = defaultdict(list)
    for path, lines in files.items():
        for start in range(len(lines) - BLOCK + 1):
            first = seen.setdefault(tuple(lines[start : start + BLOCK]), (path, start))
            if first != (path, start):
                repeated[first[0], path].append(start)
    return sum(_runs(starts) for starts in repeated.values())


def code_lines(text: str, nodes: Iterable[ast.AST]) -> list[str]:
    """Lines of code without imports, comments, docstrings and blank lines."""
    skipped: set[int] = set()
    literal: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Expr) and _is_text(node.value)):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif _is_text(node) or isinstance(node, ast.JoinedStr):
            literal.update(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    return [line for number, line in lines if line and number not in skipped and (line[0] != "#" or number in literal)]


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _runs(starts: list[int]) -> int:
    starts = sorted(starts)
    return sum(1 for before, start in zip([-2, *starts], starts, strict=False) if start != before + 1)


if __name__ == "__main__":
    for folder in ("src", "tests", "bench"):
        print(folder, measure(folder))
