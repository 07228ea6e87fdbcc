"""What follows from the error codes of answers about transactions.

Each request has a table of its own for the codes that mean something to it (transactions/requests.py). Codes that it
does not list follow the general table of error_codes.py: what is retriable is asked again, all else is final.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import error_code


class Verdict(IntEnum):
    """What follows from an answer. Of several in one answer the greatest counts."""

    DONE = 0
    RETRY = 1
    LOOK_UP = 2
    """The coordinator is another one now; ask it."""
    ABORTABLE = 3
    REFUSED = 4
    """A right is missing. It may be granted, and the call repeated."""
    FENCED = 5
    FATAL = 6


class Judgement(NamedTuple):
    verdict: Verdict
    code: int
    where: str = ""
    """The partition, if the code is about one of several."""


Table = dict[int, Verdict]

OF_A_COORDINATOR: Table = {
    codes.NONE: Verdict.DONE,
    codes.COORDINATOR_NOT_AVAILABLE: Verdict.LOOK_UP,
    codes.NOT_COORDINATOR: Verdict.LOOK_UP,
    codes.INVALID_PRODUCER_EPOCH: Verdict.FENCED,  # brokers before 2.8 call it so
    codes.PRODUCER_FENCED: Verdict.FENCED,
    codes.TRANSACTION_ABORTABLE: Verdict.ABORTABLE,
    codes.UNKNOWN_PRODUCER_ID: Verdict.ABORTABLE,
    codes.GROUP_AUTHORIZATION_FAILED: Verdict.ABORTABLE,
}
NO_ANSWER = Judgement(Verdict.RETRY, codes.UNKNOWN_SERVER_ERROR)
"""The judgement of an id that the answer does not name."""
NOT_THE_CALLERS = frozenset(
    {
        codes.PRODUCER_FENCED,
        codes.INVALID_PRODUCER_EPOCH,
        codes.INVALID_TXN_STATE,
        codes.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""Only these refusals of a coordinator say that the id, its epoch or its transaction is not the caller's any more."""
NOT_THE_WRITERS = NOT_THE_CALLERS | {codes.TRANSACTION_ABORTABLE}
"""These refusals of a batch do: the last one is what leaders say of a transaction that is not open any more."""


def worst(judgements: Iterable[Judgement]) -> Judgement:
    """The judgement of a whole request, from those of its parts."""
    judgements = list(judgements)
    # Partitions that were not looked at say nothing of the reason; another one of the same request has it.
    telling = [each for each in judgements if each.code != codes.OPERATION_NOT_ATTEMPTED]
    return max(telling or judgements, key=lambda each: each.verdict, default=NO_ANSWER)


def may_pass(code: int) -> bool:
    """Whether a question is worth asking again by a caller that can wait. A failure without a name may pass as well."""
    return code == codes.UNKNOWN_SERVER_ERROR or error_code(code).retriable
