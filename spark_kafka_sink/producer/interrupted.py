"""Whether a thread makes a call while it is inside of another one, as a signal handler does.

Python runs signal handlers on the main thread, between any two steps of whatever it does. If that was a call of the
producer, the thread may hold a lock that the sender needs, and cannot let go of it before the handler has returned. So
a handler must not wait for the sender without limit. All locks are taken and released within functions of the producer,
or of a future: where none of them is on the thread's stack, the thread holds none.
"""

from __future__ import annotations

import sys

_HOLD_LOCKS = ("spark_kafka_sink.producer.", "concurrent.futures._base")


def interrupts_a_call() -> bool:
    """Was the function that asks called from inside of one that may hold a lock?"""
    frame = sys._getframe(1).f_back
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_HOLD_LOCKS):
            return True
        frame = frame.f_back
    return False
