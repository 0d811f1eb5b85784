"""Shortens the interpreter's switch interval while a thread is inside SQLite, so that the thread soon gets the GIL
back.

A thread that returns from SQLite needs the GIL. It gets the GIL once the running thread has held it for the switch
interval: 5 ms by default, longer than a whole commit takes. A busy event loop therefore makes every commit several
times as slow.

The interval is a setting of the whole interpreter, so shortening it is opt-in. The processes of `fairlead up`, `api`,
`worker` and `manager` shorten it; a host application does so by `?switch_interval=short` in its database URL.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Shorter than one iteration of an event loop. Each time the loop's thread releases the GIL by itself, even for a moment
# in select(), waiting threads start to wait the interval again. With a longer interval they may wait for many
# iterations.
SHORT_INTERVAL = 0.00001

_lock = threading.Lock()
_enabled = False
_under_way = 0
_usual = 0.0


def shorten_switch_interval() -> None:
    """Allow all stores in this process to shorten the switch interval from now on."""
    global _enabled
    _enabled = True


@contextmanager
def prompt_handover() -> Iterator[None]:
    """Shorten the switch interval while the block runs, if `shorten_switch_interval` was called in this process."""
    if not _enabled:
        yield
        return
    global _under_way, _usual
    with _lock:
        if not _under_way:
            _usual = sys.getswitchinterval()
            sys.setswitchinterval(min(SHORT_INTERVAL, _usual))
        _under_way += 1
    try:
        yield
    finally:
        with _lock:
            _under_way -= 1
            if not _under_way:
                sys.setswitchinterval(_usual)
