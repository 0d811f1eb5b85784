"""Let the writer thread have the interpreter's lock soon, while a commit is under way.

A thread that comes back from SQLite waits for the lock until the running thread has had it for the switch interval:
5 ms by default, which is more than the whole commit takes. So a busy event loop would make every commit several times
as long. For the length of a commit the interval is shortened; an idle process never notices, and a busy one gives up
the lock only when the writer asks for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Shorter than one turn of an event loop: whenever the running thread lets go of the lock by itself, if only for a
# moment in select(), the wait of the others begins anew, and with a longer interval they may starve for many turns.
PROMPT = 0.00001

_lock = threading.Lock()
_under_way = 0
_usual = 0.0


@contextmanager
def prompt_handover() -> Iterator[None]:
    global _under_way, _usual
    with _lock:
        if not _under_way:
            _usual = sys.getswitchinterval()
            sys.setswitchinterval(min(PROMPT, _usual))
        _under_way += 1
    try:
        yield
    finally:
        with _lock:
            _under_way -= 1
            if not _under_way:
                sys.setswitchinterval(_usual)
