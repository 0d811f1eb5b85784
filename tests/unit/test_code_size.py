"""A ratchet for the size of the code: the limits only go down. Lower a limit when a change allows it. The number of
files grows with new capabilities only, each described in docs/adr/."""

from __future__ import annotations

import ast
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.code_size import BLOCK, code_lines, duplicated_blocks, measure

LIMITS = {
    "src": {
        "longest_file": 445,
        "longest_function": 53,
        "most_parameters": 13,
        "duplicated_blocks": 12,
        "files": 494,
    },
    "tests": {"longest_file": 586, "longest_function": 85, "most_parameters": 6, "duplicated_blocks": 3},
}


@pytest.mark.parametrize("folder", LIMITS)
def test_no_figure_grows(folder: str) -> None:
    """One test for all figures of a folder, since each process that runs such a test measures the whole folder."""
    measured = asdict(measure(folder))
    grown = [
        f"{figure} of {folder} is {measured[figure]}, above its limit of {limit}"
        for figure, limit in LIMITS[folder].items()
        if measured[figure] > limit
    ]
    assert not grown, "; ".join(grown)


def test_a_copied_block_is_counted_once_per_copy() -> None:
    block = "\n".join(f"value_{n} = {n}" for n in range(BLOCK + 3))
    sources = {Path(name): block + f"\nlast = '{name}'\n" for name in ("a", "b", "c")}
    assert duplicated_blocks({path: _lines(text) for path, text in sources.items()}) == 2
    assert duplicated_blocks({Path("a"): _lines(block)}) == 0


def test_only_code_counts() -> None:
    text = '"""Doc."""\nimport os\n\n# comment\nvalue = """\n# literal\n"""  # end\n'
    assert _lines(text) == ['value = """', "# literal", '"""  # end']


def _lines(text: str) -> list[str]:
    return code_lines(text, ast.walk(ast.parse(text)))
