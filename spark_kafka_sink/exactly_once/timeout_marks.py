"""Marks in the last three digits of a transaction timeout: what has become of a transactional id.

Brokers store two things that a client sends about a transactional id, and show them to everybody: its epoch and its
timeout. A mark changes in the same request as the epoch, and it is not lost with the decision log:

    999   a driver's id that has claimed its prefix. If the log has no claim, the log was deleted or emptied
    998   a task's id that a driver has fenced. Transactions of version 1 only: in version 2 such an id is ended, and is
          not listed any more

Why not a field of the log's entry: a deleted log has no fields, and the next driver would write a decided batch again
(test_without_the_mark_of_a_claim_a_deleted_log_lets_a_batch_be_written_twice). The state of the id says less: it is
EMPTY after a claim as well as after a start that died before its claim. Without 998 each micro-batch of a job with 300
tasks would fence 300 ids again (test_without_the_mark_each_batch_fences_the_ids_of_version_1_again).

A marked timeout is about as long as the transactions under the id need, and never much shorter. A coordinator waits up
to the id's timeout until its replicas have stored the id's state. If that times out it retries, on an idle cluster
half a minute later, and the id is CONCURRENT_TRANSACTIONS until then. A timeout of 1 ms blocked ids for minutes.
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
