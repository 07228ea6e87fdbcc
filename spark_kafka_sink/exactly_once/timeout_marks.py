"""What the transaction timeout of an id says of it, beside the time.

Brokers keep two things that a client says of an id, and show them to all: its epoch and its timeout. So the last three
digits of the timeout say what has become of the id:

    999   a driver's id that has claimed the prefix in the log: if there is no claim, the log has lost it
    998   a task's id that a driver has fenced in version 1: it is not fenced again with each batch. In version 2 such
          an id is ended, and not listed any more

Such a timeout is about as long as what may be open under it needs. It is never much shorter: a coordinator waits for as
long as the timeout for the other brokers to have what it writes of the id into its own log. If that is too short it
writes the same again, on a quiet cluster half a minute later, and meanwhile the id is CONCURRENT_TRANSACTIONS. With a
millisecond that happened nearly each time, and lasted for minutes.
"""

from __future__ import annotations

from spark_kafka_sink.exactly_once.time_left import decision_ms

_CLAIMED, _FENCED, _NEITHER = 999, 998, 997
_FENCED_MS_MAX = 5_000
"""What is open under an id that was fenced is ended at once, by who has fenced it or by the next driver."""


def unmarked_ms(timeout_ms: int) -> int:
    """This timeout, or a few milliseconds less: one that says nothing."""
    return timeout_ms - timeout_ms % 1000 + min(timeout_ms % 1000, _NEITHER)


def claimed_ms(granted_ms: int) -> int:
    """Of the id of a driver whose tasks have `granted_ms`, an unmarked timeout: about what a decision may take."""
    return _marked(decision_ms(granted_ms), _CLAIMED, granted_ms)


def fenced_ms(granted_ms: int) -> int:
    """Of the id of a task that has `granted_ms`. Who has less than a second gets one that is longer: no task has begun
    with it, and an id without a mark would be fenced again with each batch."""
    return max(_marked(min(granted_ms, _FENCED_MS_MAX), _FENCED, granted_ms), _FENCED)


def _marked(timeout_ms: int, mark: int, granted_ms: int) -> int:
    """At most `timeout_ms`, but for what a mark needs. Less than a second has no room for one."""
    marked_ms = max(0, timeout_ms // 1000 - 1) * 1000 + mark
    return marked_ms if marked_ms <= granted_ms else granted_ms


def says_claimed(timeout_ms: int) -> bool:
    return timeout_ms % 1000 == _CLAIMED


def says_fenced(timeout_ms: int) -> bool:
    return timeout_ms % 1000 == _FENCED
