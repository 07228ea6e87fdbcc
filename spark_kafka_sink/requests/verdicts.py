"""Verdicts: the consequences of error codes in responses.

Each request has a verdict table for the codes that mean something to it. Codes that its table does not list follow the
general table of error_codes.py: a retriable code is retried, any other one is final.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import lookup_error_code


class Verdict(IntEnum):
    """The consequence of a response. Of several verdicts about one response the greatest counts."""

    DONE = 0
    RETRY = 1
    LOOK_UP = 2
    """Another broker is the coordinator or leader now: look it up, and send the request there."""
    ABORTABLE = 3
    REFUSED = 4
    """A right is missing. It may be granted, and the call repeated."""
    FENCED = 5
    FATAL = 6


class Classification(NamedTuple):
    verdict: Verdict
    code: int
    place: str = ""
    """The partition or id, if the code is about one of several."""


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
"""The classification of a key that the response does not name."""
NOT_THE_CALLERS = frozenset(
    {
        codes.PRODUCER_FENCED,
        codes.INVALID_PRODUCER_EPOCH,
        codes.INVALID_TXN_STATE,
        codes.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""The only codes of a coordinator that mean: the id, its epoch or its transaction is not the caller's any more."""
NOT_THE_WRITERS = NOT_THE_CALLERS | {codes.TRANSACTION_ABORTABLE}
"""The only codes of a leader that mean it of a batch: TRANSACTION_ABORTABLE if its transaction is not open any more."""


def classify(code: int, table: VerdictTable, unlisted: Verdict, place: str = "") -> Classification:
    """`unlisted`: the verdict of a code that the table does not list and that is not retriable."""
    verdict = table.get(code)
    if verdict is None:
        verdict = Verdict.RETRY if lookup_error_code(code).retriable else unlisted
    return Classification(verdict, code, place)


def worst(classifications: Iterable[Classification]) -> Classification:
    """Return the classification of a whole request, given those of its parts."""
    classifications = list(classifications)
    # A part that the broker did not attempt says nothing of the cause; another part of the same request does.
    attempted = [each for each in classifications if each.code != codes.OPERATION_NOT_ATTEMPTED]
    return max(attempted or classifications, key=lambda each: each.verdict, default=MISSING_IN_RESPONSE)


def is_worth_retrying(code: int) -> bool:
    """Return whether a caller that can wait should retry: UNKNOWN_SERVER_ERROR may be temporary, too."""
    return code == codes.UNKNOWN_SERVER_ERROR or lookup_error_code(code).retriable
