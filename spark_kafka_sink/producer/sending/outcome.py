"""What is to be done with a batch after an attempt to send it: one pure function over one table.

    decide(what is known of the batch, what came back) -> Done | Retry | Split | Fail

Two facts about an attempt decide whether records can be doubled, and they are kept apart everywhere:

    refused     the broker says that it has not stored the batch. It may be sent again, even under another sequence
    in doubt    the batch may be stored (connection lost, followers too slow, an error without a name): it may be sent
                again under the same sequence only

A head of the line is a batch before which nothing of its partition is in flight or waits for its retry. That the
broker misses records before a batch (OUT_OF_ORDER_SEQUENCE_NUMBER) is expected of all others: what is missing is
in flight, or waits for its retry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import lookup_error_code


class BatchFacts(NamedTuple):
    """What the decision needs to know of a batch, before the answer is counted."""

    record_count: int
    attempts: int
    retries_max: int
    expired: bool
    idempotent: bool
    is_head: bool
    in_doubt: bool
    """An earlier attempt, or this one, may have stored the batch."""
    transactional: bool = False
    """The batch belongs to a transaction, whose epoch only brokers change."""


@dataclass(frozen=True)
class Done:
    duplicate: bool = False
    """Stored by an attempt whose answer was lost; the offset is not known."""


@dataclass(frozen=True)
class Retry:
    refresh_metadata: bool = False
    new_sequence: bool = False
    """Send it under a new epoch: what the broker knows of this producer does not fit the old sequence any more."""


@dataclass(frozen=True)
class Split:
    pass


@dataclass(frozen=True)
class Fail:
    refresh_metadata: bool = False
    timed_out: bool = False
    """The batch could have been sent again, but delivery.timeout.ms has passed."""
    retries_used_up: bool = False
    in_doubt: bool = False
    """The records may be stored although they fail."""
    fatal: bool = False


Outcome = Done | Retry | Split | Fail

SUCCESSES = {codes.NONE: Done(), codes.DUPLICATE_SEQUENCE_NUMBER: Done(duplicate=True)}
"""Answers that say that the batch is stored, whatever is known of it."""


def decide(facts: BatchFacts, code: int, log_start_offset: int = -1) -> Outcome:
    """`code` is the broker's; a lost connection counts as NETWORK_EXCEPTION."""
    row = lookup_error_code(code)
    if code in SUCCESSES:
        return SUCCESSES[code]
    if row.fatal:
        return Fail(fatal=True, in_doubt=facts.in_doubt)
    if code == codes.MESSAGE_TOO_LARGE and facts.record_count > 1 and not facts.expired:
        return Split()
    wanted = _about_sequence(facts, code, log_start_offset) if facts.idempotent else None
    if wanted is None:
        wanted = Retry(row.requires_metadata_refresh) if row.retriable else Fail(in_doubt=facts.in_doubt)
    if not isinstance(wanted, Retry):
        return wanted
    if facts.expired:
        return Fail(wanted.refresh_metadata, timed_out=True, in_doubt=facts.in_doubt)
    if facts.attempts >= facts.retries_max:
        return Fail(wanted.refresh_metadata, retries_used_up=True, in_doubt=facts.in_doubt)
    return wanted


def _about_sequence(facts: BatchFacts, code: int, log_start_offset: int) -> Outcome | None:
    """The two answers about sequences; None if it is another."""
    if code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER:
        return _from_here(facts) if facts.is_head else Retry()
    if code == codes.UNKNOWN_PRODUCER_ID:
        # Without the start of the log nothing can be concluded (brokers before 1.1 do not send it).
        # Where all that was acknowledged has been deleted since, the state went with it.
        return Retry() if log_start_offset == -1 or not facts.is_head else _from_here(facts)
    return None


def _from_here(facts: BatchFacts) -> Outcome:
    """Begin again with this batch under a new epoch, unless it may be stored: then it would be stored twice.

    In a transaction there is no new epoch before the end: the transaction must be aborted.
    """
    if facts.transactional:
        return Fail(in_doubt=facts.in_doubt)
    return Fail(in_doubt=True) if facts.in_doubt else Retry(new_sequence=True)
