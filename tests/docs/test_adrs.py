"""Every architecture decision record has a number of its own, a status and the same four sections."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "adr"
RECORDS = sorted(FOLDER.glob("*.md"))
SECTIONS = ["Context", "Decision", "Alternatives", "Consequences"]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_record_has_a_status_and_all_sections(record: Path) -> None:
    text = record.read_text(encoding="utf-8")
    number = int(record.name[:4])
    assert text.startswith(f"# {number}. ")
    assert re.search(r"^Status: (proposed|accepted|superseded)", text, re.M)
    assert re.findall(r"^## (.+)$", text, re.M) == SECTIONS


def test_numbers_are_consecutive_and_used_once() -> None:
    assert [int(record.name[:4]) for record in RECORDS] == list(range(1, len(RECORDS) + 1))
