"""Measures the code: lines of files and functions, parameters, duplicated blocks."""

from __future__ import annotations

import ast
import hashlib
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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
    sources = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / folder).rglob("*.py"))}
    functions = [node for text in sources.values() for node in _functions(ast.parse(text))]
    return Sizes(
        files=len(sources),
        lines=sum(text.count("\n") for text in sources.values()),
        longest_file=max(text.count("\n") for text in sources.values()),
        longest_function=max((node.end_lineno or 0) - node.lineno + 1 for node in functions),
        most_parameters=max(_parameters(node) for node in functions),
        duplicated_blocks=duplicated_blocks(sources),
    )


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The number of parameters. Those of commands and routes are options and query parameters, and not counted."""
    if node.decorator_list:
        return 0
    found = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return len([each for each in found if each.arg not in ("self", "cls")])


def duplicated_blocks(sources: dict[Path, str]) -> int:
    """The number of repeated runs of at least `BLOCK` equal lines of code."""
    seen: dict[str, tuple[Path, int]] = {}
    repeated: dict[tuple[Path, Path], list[int]] = defaultdict(list)
    for path, text in sources.items():
        lines = _code_lines(text)
        for start in range(len(lines) - BLOCK + 1):
            key = hashlib.sha1("\n".join(lines[start : start + BLOCK]).encode()).hexdigest()
            first = seen.setdefault(key, (path, start))
            if first != (path, start):
                repeated[first[0], path].append(start)
    return sum(_runs(starts) for starts in repeated.values())


def _code_lines(text: str) -> list[str]:
    """Lines of code without imports, comments, docstrings and blank lines."""
    skipped = set()
    for node in ast.walk(ast.parse(text)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for token in tokenize.generate_tokens(iter(text.splitlines(keepends=True)).__next__):
        if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
            skipped.add(token.start[0])
    lines = enumerate(text.splitlines(), start=1)
    return [line.strip() for number, line in lines if line.strip() and number not in skipped]


def _runs(starts: list[int]) -> int:
    starts = sorted(starts)
    return sum(1 for before, start in zip([-2, *starts], starts, strict=False) if start != before + 1)


if __name__ == "__main__":
    for folder in ("src", "tests", "bench"):
        print(folder, measure(folder))
