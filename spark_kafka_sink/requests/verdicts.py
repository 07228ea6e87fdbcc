"""Verdicts: the consequences of error codes in responses.

Each request has a verdict table for the codes with a special meaning for it. Other codes follow the general table in
error_codes.py: retriable codes are retried, all others are final.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import lookup_error_code


class Verdict(IntEnum):
    """The consequence of an error code. If a response has several verdicts, the greatest one applies."""

    DONE = 0
    RETRY = 1
    LOOK_UP = 2
    """Another broker is the coordinator or leader now: look it up, then retry."""
    ABORTABLE = 3
    UNAUTHORIZED = 4
    """The user lacks a permission. The caller may try again when it is granted."""
    FENCED = 5
    FATAL = 6


class Classification(NamedTuple):
    """An error code with its verdict."""

    verdict: Verdict
    code: int
    item: str = ""
    """The partition or id with this code, if the request is about several."""


VerdictTable = dict[int, Verdict]

COORDINATOR_VERDICTS: VerdictTable = {
    codes.NONE: Verdict.DONE,
    codes.COORDINATOR_NOT_AVAILABLE: Verdict.LOOK_UP,
    codes.NOT_COORDINATOR: Verdict.LOOK_UP,
    codes.INVALID_PRODUCER_EPOCH: Verdict.FENCED,  # the code of brokers before 2.8
    codes.PRODUCER_FENCED: Verdict.FENCED,
    codes.TRANSACTION_ABORTABLE: Verdict.ABORTABLE,
    codes.UNKNOWN_PRODUCER_ID: Verdict.ABORTABLE,
    codes.GROUP_AUTHORIZATION_FAILED: Verdict.ABORTABLE,
}
MISSING_IN_RESPONSE = Classification(Verdict.RETRY, codes.UNKNOWN_SERVER_ERROR)
"""The classification of a key that the response does not contain."""
OWNERSHIP_LOST_ERRORS = frozenset(
    {
        codes.PRODUCER_FENCED,
        codes.INVALID_PRODUCER_EPOCH,
        codes.INVALID_TXN_STATE,
        codes.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""The only codes by which a coordinator says that a producer identity or transaction is not the caller's any more."""
BATCH_OWNERSHIP_LOST_ERRORS = OWNERSHIP_LOST_ERRORS | {codes.TRANSACTION_ABORTABLE}
"""The only codes by which a leader says that a batch's producer identity or transaction is not the caller's any more.

TRANSACTION_ABORTABLE means that the transaction of the batch is not open.
"""


def classify(code: int, table: VerdictTable, default_verdict: Verdict, item: str = "") -> Classification:
    """Classify an error code. `default_verdict`: for codes that are neither in the table nor retriable."""
    verdict = table.get(code)
    if verdict is None:
        verdict = Verdict.RETRY if lookup_error_code(code).retriable else default_verdict
    return Classification(verdict, code, item)


def select_most_severe(classifications: Iterable[Classification]) -> Classification:
    """Return the most severe classification: that of a request, given those of its parts."""
    classifications = list(classifications)
    # OPERATION_NOT_ATTEMPTED is a consequence: another part of the same request has the cause.
    attempted = [
        classification for classification in classifications if classification.code != codes.OPERATION_NOT_ATTEMPTED
    ]
    return max(
        attempted or classifications, key=lambda classification: classification.verdict, default=MISSING_IN_RESPONSE
    )


def is_worth_retrying(code: int) -> bool:
    """Return whether a caller that can wait should retry; also UNKNOWN_SERVER_ERROR, which may be temporary."""
    return code == codes.UNKNOWN_SERVER_ERROR or lookup_error_code(code).retriable
