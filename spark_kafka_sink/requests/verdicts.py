"""Verdicts: what to do about each error code in a response.

Each request has a verdict table. It contains the codes that have a special meaning for that request. For all other
codes, the general table in error_codes.py applies: retriable codes are retried, and the rest are final.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import lookup_error_code


class Verdict(IntEnum):
    """The reaction to an error code: the engine retries after RETRY and LOOK_UP; the caller handles all others.

    If the error codes in a response have different verdicts, the greatest one applies.
    """

    DONE = 0
    """The response is final. The request has succeeded, or the caller evaluates the code."""
    RETRY = 1
    """The same broker may accept the request later: retry it after a backoff."""
    LOOK_UP = 2
    """A different broker is now the coordinator or leader: look it up, then retry."""
    ABORTABLE = 3
    """The transaction can only be aborted. After that, the producer can continue."""
    UNAUTHORIZED = 4
    """The user lacks a permission. The caller may try again once it has been granted."""
    FENCED = 5
    """Another producer with the same transactional id has taken over."""
    FATAL = 6
    """Neither a retry nor an abort can help."""


class Classification(NamedTuple):
    """An error code and its verdict."""

    verdict: Verdict
    code: int
    item: str = ""
    """The partition or id that has this code, if the request covers several."""


VerdictTable = dict[int, Verdict]

COORDINATOR_VERDICTS: VerdictTable = {
    codes.NONE: Verdict.DONE,
    codes.COORDINATOR_NOT_AVAILABLE: Verdict.LOOK_UP,
    codes.NOT_COORDINATOR: Verdict.LOOK_UP,
    codes.INVALID_PRODUCER_EPOCH: Verdict.FENCED,  # brokers before 2.8 report this for a fenced producer
    codes.PRODUCER_FENCED: Verdict.FENCED,
    codes.TRANSACTION_ABORTABLE: Verdict.ABORTABLE,
    codes.UNKNOWN_PRODUCER_ID: Verdict.ABORTABLE,
    codes.GROUP_AUTHORIZATION_FAILED: Verdict.ABORTABLE,
}
MISSING_IN_RESPONSE = Classification(Verdict.RETRY, codes.UNKNOWN_SERVER_ERROR)
"""The classification of a key for which the response contains no result."""
OWNERSHIP_LOST_ERRORS = frozenset(
    {
        codes.PRODUCER_FENCED,
        codes.INVALID_PRODUCER_EPOCH,
        codes.INVALID_TXN_STATE,
        codes.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""All codes with which a coordinator reports that the caller no longer owns a producer identity or transaction."""
BATCH_OWNERSHIP_LOST_ERRORS = OWNERSHIP_LOST_ERRORS | {codes.TRANSACTION_ABORTABLE}
"""All codes with which a leader reports that the sender no longer owns a batch's producer identity or transaction.

TRANSACTION_ABORTABLE means that the batch's transaction is not open.
"""


def classify(code: int, verdict_table: VerdictTable, default_verdict: Verdict, item: str = "") -> Classification:
    """Classify an error code. `default_verdict` applies to codes that are neither in the table nor retriable."""
    verdict = verdict_table.get(code)
    if verdict is None:
        verdict = Verdict.RETRY if lookup_error_code(code).retriable else default_verdict
    return Classification(verdict, code, item)


def select_most_severe(classifications: Iterable[Classification]) -> Classification:
    """Return the most severe classification of a request's parts, such as its partitions.

    Return MISSING_IN_RESPONSE if there are no parts.
    """
    all_parts = list(classifications)
    # OPERATION_NOT_ATTEMPTED only means that another part of the request has failed. That part has the actual error.
    attempted_parts = [part for part in all_parts if part.code != codes.OPERATION_NOT_ATTEMPTED]
    return max(
        attempted_parts or all_parts,
        key=lambda classification: classification.verdict,
        default=MISSING_IN_RESPONSE,
    )


def is_worth_retrying(code: int) -> bool:
    """Return whether a caller that can wait should retry. UNKNOWN_SERVER_ERROR counts, because it may be temporary."""
    return code == codes.UNKNOWN_SERVER_ERROR or lookup_error_code(code).retriable
