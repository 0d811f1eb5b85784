"""Room is shared by the workers of several shards: never more than there is, and nobody is forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from fairlead.runtime.room import Room

MANY = 1_000_000


def test_one_worker_takes_all() -> None:
    room = Room(10)
    room.join()
    assert room.take(lambda: None, at_most=MANY) == 10


def test_two_workers_share_and_the_first_leaves_some() -> None:
    room = Room(10)
    room.join()
    room.join()
    assert room.take(lambda: None, at_most=MANY) == 5
    assert room.take(lambda: None, at_most=MANY) == 3


def test_no_more_than_asked_for_is_taken() -> None:
    room = Room(10)
    room.join()
    assert room.take(lambda: None, at_most=1) == 1
    assert room.take(lambda: None, at_most=MANY) == 9


def test_who_found_none_is_told_once_when_there_is_some() -> None:
    room = Room(1)
    room.join()
    room.join()
    told: list[str] = []

    def tell() -> None:
        told.append("told")

    assert room.take(lambda: None, at_most=MANY) == 1
    assert room.take(tell, at_most=MANY) == 0
    assert room.take(tell, at_most=MANY) == 0
    room.give_back(0)
    assert told == []
    room.give_back(1)
    room.give_back(1)
    assert told == ["told"]


@given(st.integers(1, 50), st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20))))
def test_what_is_out_is_never_more_than_there_is(capacity: int, members: int, moves: list[tuple[int, int]]) -> None:
    room = Room(capacity)
    for _ in range(members):
        room.join()
    out = 0
    for kind, number in moves:
        if kind:
            out += room.take(lambda: None, at_most=MANY)
        else:
            back = min(out, number)
            room.give_back(back)
            out -= back
        assert 0 <= out <= capacity
    room.give_back(out)
    assert room.take(lambda: None, at_most=MANY) > 0
