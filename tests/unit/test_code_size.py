"""A ratchet for the size of the code: the limits only go down. Lower a limit when a change allows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.code_size import BLOCK, Sizes, duplicated_blocks, measure

LIMITS = {
    "src": Sizes(longest_file=445, longest_function=53, most_parameters=13, duplicated_blocks=12, files=319),
    "tests": Sizes(longest_file=586, longest_function=85, most_parameters=6, duplicated_blocks=3),
}


@pytest.mark.parametrize("folder", LIMITS)
@pytest.mark.parametrize("figure", ["longest_file", "longest_function", "most_parameters", "duplicated_blocks"])
def test_no_maximum_grows(folder: str, figure: str) -> None:
    assert getattr(measure(folder), figure) <= getattr(LIMITS[folder], figure)


def test_the_number_of_source_files_does_not_grow() -> None:
    assert measure("src").files <= LIMITS["src"].files


def test_a_copied_block_is_counted_once_per_copy() -> None:
    block = "\n".join(f"value_{n} = {n}" for n in range(BLOCK + 3))
    sources = {Path(name): block + f"\nlast = '{name}'\n" for name in ("a", "b", "c")}
    assert duplicated_blocks(sources) == 2
    assert duplicated_blocks({Path("a"): block}) == 0
