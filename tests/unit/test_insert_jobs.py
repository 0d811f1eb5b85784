"""How new jobs are inserted into PostgreSQL. The contract suite checks that they arrive unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.domain.job import Job, JobStatus
from fairlead.domain.transitions import Submit
from fairlead.errors import InvalidInput
from fairlead.store.postgres.submit import JOBS_PER_ROW, insertion


def submit(number: int, input_json: str = "{}", **fields: Any) -> Submit:
    return Submit(
        Job(**{"id": f"j{number}", "feature_name": "f", "user_id": "u", "steps": ("draw",)} | fields), input_json
    )


def inserted(*submits: Submit) -> Any:
    return insertion(submits, origin="me", now=None)


def test_shared_values_are_sent_once_for_any_number_of_jobs() -> None:
    few, many = (inserted(*(submit(n) for n in range(count))) for count in (2, 500))
    sizes = [len(str(value)) for value in many.parameters]
    assert [n for n, size in enumerate(sizes) if size > len(str(few.parameters[n]))] == [1], "only the ids grow"


def test_texts_are_joined_by_a_separator_that_no_name_contains() -> None:
    between, ids, users, *_ = inserted(submit(1, user_id="a\x01b"), submit(2, user_id="\x02")).parameters
    assert between not in "a\x01b\x02"
    assert (ids.split(between), users.split(between)) == (["j1", "j2"], ["a\x01b", "\x02"])


def test_texts_that_contain_the_separator_are_refused() -> None:
    with pytest.raises(InvalidInput):
        inserted(submit(1, user_id="".join(map(chr, range(1, 32)))), submit(2))
    with pytest.raises(InvalidInput):
        inserted(submit(1, '"\x01"'), submit(2, '"\x02"'))


@pytest.mark.parametrize("fields", [{"cost": 2.0}, {"steps": ("scale",)}, {"status": JobStatus.SCHEDULED}])
def test_only_jobs_of_one_lane_share_rows_of_the_outbox(fields: dict[str, Any]) -> None:
    assert not inserted(submit(1)).together
    assert not inserted(submit(1), submit(2, **fields)).together
    assert inserted(submit(1), submit(2, user_id="another")).together


def test_an_outbox_row_holds_a_bounded_number_of_jobs() -> None:
    count = 2 * JOBS_PER_ROW + 1
    numbers = inserted(*map(submit, range(count))).numbers([(list(range(count)), [7, 8, 9], True)])
    assert [outbox_id for _, outbox_id, _ in numbers] == [7] * JOBS_PER_ROW + [8] * JOBS_PER_ROW + [9]
    assert [seq for seq, _, _ in numbers] == list(range(count))
    assert all(late for _, _, late in numbers)
