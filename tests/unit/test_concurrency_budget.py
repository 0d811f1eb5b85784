"""The workers of several shards share one concurrency budget: never more than it, and every worker gets its part."""

from hypothesis import given
from hypothesis import strategies as st

from fairlead.engine.claim_loop import ConcurrencyBudget

MANY = 1_000_000


def test_one_worker_takes_the_whole_budget() -> None:
    budget = ConcurrencyBudget(10)
    budget.join()
    assert budget.take(lambda: None, at_most=MANY) == 10


def test_two_workers_share_and_the_first_leaves_some() -> None:
    budget = ConcurrencyBudget(10)
    budget.join()
    budget.join()
    assert budget.take(lambda: None, at_most=MANY) == 5
    assert budget.take(lambda: None, at_most=MANY) == 3


def test_no_more_than_asked_for_is_taken() -> None:
    budget = ConcurrencyBudget(10)
    budget.join()
    assert budget.take(lambda: None, at_most=1) == 1
    assert budget.take(lambda: None, at_most=MANY) == 9


def test_a_worker_that_got_nothing_is_woken_once_when_budget_is_free() -> None:
    budget = ConcurrencyBudget(1)
    budget.join()
    budget.join()
    woken: list[str] = []

    def wake() -> None:
        woken.append("woken")

    assert budget.take(lambda: None, at_most=MANY) == 1
    assert budget.take(wake, at_most=MANY) == 0
    assert budget.take(wake, at_most=MANY) == 0
    budget.give_back(0)
    assert woken == []
    budget.give_back(1)
    budget.give_back(1)
    assert woken == ["woken"]


@given(st.integers(1, 50), st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20))))
def test_the_budget_is_never_exceeded(capacity: int, members: int, moves: list[tuple[int, int]]) -> None:
    budget = ConcurrencyBudget(capacity)
    for _ in range(members):
        budget.join()
    out = 0
    for kind, number in moves:
        if kind:
            out += budget.take(lambda: None, at_most=MANY)
        else:
            back = min(out, number)
            budget.give_back(back)
            out -= back
        assert 0 <= out <= capacity
    budget.give_back(out)
    assert budget.take(lambda: None, at_most=MANY) > 0
