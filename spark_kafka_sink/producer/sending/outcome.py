"""The outcome of an attempt to send a batch (Done, Retry, Split or Fail), and the pure function that decides it.

    decide_outcome(facts about the batch, error code of the response) -> Done | Retry | Split | Fail

An attempt is one request with the batch, and its response. There are two kinds of failed attempts, and it is important
not to confuse them: a batch in doubt that is sent under a new sequence may be stored twice.

    rejected    the broker has reported that it did not store the batch. The batch may be sent again, even under a new
                sequence
    in doubt    the batch may be stored (the connection was lost, the followers were too slow, or the error code is
                unknown). It may be sent again only under the same sequence

A batch is the head of its partition if none of the partition's earlier batches is in flight or waiting for a retry. For
any other batch, OUT_OF_ORDER_SEQUENCE_NUMBER is expected, because the records that the broker is missing are in flight
or waiting for a retry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import lookup_error_code


class BatchFacts(NamedTuple):
    """The facts about a batch that, together with the response, determine the outcome of an attempt."""

    record_count: int
    failed_attempts: int
    """Number of attempts that failed before this one."""
    max_retries: int
    is_expired: bool
    """Whether delivery.timeout.ms has passed."""
    has_sequence: bool
    """Whether the batch has a sequence, as all batches do unless idempotence is disabled."""
    is_head: bool
    """Whether the batch is the head of its partition (see the module's docstring)."""
    is_in_doubt: bool
    """Whether a broker may have stored the batch in this attempt or an earlier one."""
    is_transactional: bool = False
    """Whether the batch belongs to a transaction, in which only brokers, not the producer, can change the epoch."""


@dataclass(frozen=True)
class Done:
    """The broker has stored the batch."""

    duplicate: bool = False
    """Whether the batch was stored by an earlier attempt whose response was lost, so that its offset is unknown."""


@dataclass(frozen=True)
class Retry:
    """The batch is sent again."""

    should_refresh_metadata: bool = False
    """Whether the error suggests that the metadata is stale, for example because the leader has changed."""
    needs_new_sequence: bool = False
    """Whether the batch needs a sequence under a new epoch, because the broker will never accept its current one."""


@dataclass(frozen=True)
class Split:
    """The batch is split because the broker rejected it as too large."""


@dataclass(frozen=True)
class Fail:
    """The batch fails, and is not sent again."""

    should_refresh_metadata: bool = False
    """Whether the error suggests that the metadata is stale, for example because the leader has changed."""
    timed_out: bool = False
    """Whether the batch would be sent again if delivery.timeout.ms had not passed."""
    has_used_up_retries: bool = False
    """Whether the batch would be sent again if it had any retries left."""
    in_doubt: bool = False
    """Whether a broker may have stored the records although they are about to be reported as failed."""
    fatal: bool = False
    """Whether the error ends the producer."""


Outcome = Done | Retry | Split | Fail

SUCCESS_OUTCOMES = {codes.NONE: Done(), codes.DUPLICATE_SEQUENCE_NUMBER: Done(duplicate=True)}
"""Outcomes by error code, for the codes that confirm that the batch is stored. No other facts matter for these."""


def decide_outcome(facts: BatchFacts, code: int, log_start_offset: int = -1) -> Outcome:
    """Return what to do about a batch after an attempt to send it.

    `code`: the error code in the response for the batch's partition; NETWORK_EXCEPTION if the connection was lost.
    `log_start_offset`: the first offset of the partition's log; -1 if the broker did not report it.
    """
    error = lookup_error_code(code)
    if code in SUCCESS_OUTCOMES:
        return SUCCESS_OUTCOMES[code]
    if error.fatal:
        return Fail(fatal=True, in_doubt=facts.is_in_doubt)
    # A single record cannot be split, and an expired batch gets no further attempts.
    if code == codes.MESSAGE_TOO_LARGE and facts.record_count > 1 and not facts.is_expired:
        return Split()
    # Sequence errors come first, because the error code alone does not determine their outcome.
    outcome = _decide_sequence_error(facts, code, log_start_offset) if facts.has_sequence else None
    if outcome is None and error.retriable:
        outcome = Retry(should_refresh_metadata=error.requires_metadata_refresh)
    if outcome is None:
        return Fail(in_doubt=facts.is_in_doubt)
    if not isinstance(outcome, Retry):
        return outcome
    # The batch is sent again, unless its time or its retries are used up.
    failure = Fail(should_refresh_metadata=outcome.should_refresh_metadata, in_doubt=facts.is_in_doubt)
    if facts.is_expired:
        return replace(failure, timed_out=True)
    if facts.failed_attempts >= facts.max_retries:
        return replace(failure, has_used_up_retries=True)
    return outcome


def _decide_sequence_error(facts: BatchFacts, code: int, log_start_offset: int) -> Outcome | None:
    """Return the outcome for the two error codes about sequences, or None for any other code.

    The outcome may be a Retry even if the batch's time or retries are used up. The caller must check these limits.
    """
    if code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER:
        return _decide_restart(facts) if facts.is_head else Retry()
    if code == codes.UNKNOWN_PRODUCER_ID:
        # The broker has forgotten this producer, because it has deleted all of the producer's records. The sequences
        # must restart, unless an earlier batch is on its way. Brokers before 1.1 do not report the start offset of the
        # log, so we cannot tell whether records were deleted, and the batch is retried as it is.
        return Retry() if log_start_offset == -1 or not facts.is_head else _decide_restart(facts)
    return None


def _decide_restart(facts: BatchFacts) -> Outcome:
    """Return the outcome for a partition's oldest batch if the broker will never accept the batch's sequence.

    Normally, the batch becomes the first batch of a new epoch, with a new sequence. If it may already be stored, it
    fails instead, because it could be stored twice under a new sequence. In a transaction, it fails in any case,
    because the transaction must be aborted before there can be a new epoch.
    """
    if facts.is_transactional:
        return Fail(in_doubt=facts.is_in_doubt)
    return Fail(in_doubt=True) if facts.is_in_doubt else Retry(needs_new_sequence=True)
