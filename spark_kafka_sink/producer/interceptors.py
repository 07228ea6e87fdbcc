"""Interceptors: user code that sees each ProducerRecord before it is sent, and later its result.

Interceptors run in the order in which they were passed to KafkaProducer. `on_send` runs on the caller's thread and may
return a different record. If it raises an exception, the exception is logged, and the next interceptor gets the
unchanged record, as in the Java client. `on_acknowledgement` runs on the sender thread, before the callback of send(),
and should return quickly. Interceptors see only records passed to send(), because send_columns() never creates single
records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

_log = logging.getLogger(__name__)

Record = TypeVar("Record")
Metadata = TypeVar("Metadata", contravariant=True)


class Interceptor(Protocol[Record, Metadata]):
    """The interface that a user implements. Both methods are called for each record."""

    def on_send(self, record: Record) -> Record:
        """Return the record to send: usually `record`, or a modified copy."""
        ...

    def on_acknowledgement(self, metadata: Metadata, error: Exception | None) -> None:
        """Handle the result of a record.

        `error`: None if the record was stored. If there is an error, `metadata` contains only the topic and perhaps the
        partition, and all other fields are -1.
        """
        ...


class Interceptors(Generic[Record, Metadata]):
    """Calls a producer's interceptors in the order in which they were passed."""

    def __init__(self, interceptors: Sequence[Interceptor[Record, Metadata]]) -> None:
        self._interceptors = tuple(interceptors)
        self.acknowledgement_callbacks: tuple[Callable[[Metadata, Exception | None], None], ...] = tuple(
            interceptor.on_acknowledgement for interceptor in interceptors
        )
        """The functions to call with the result of each record. The caller must handle the exceptions that they
        raise."""

    def on_send(self, record: Record) -> Record:
        """Pass a record through all interceptors, and return the record to send."""
        for interceptor in self._interceptors:
            record = _call_on_send(interceptor, record)
        return record


def _call_on_send(interceptor: Interceptor[Record, Metadata], record: Record) -> Record:
    """Return the interceptor's record, or the unchanged record if the interceptor raises an Exception."""
    try:
        return interceptor.on_send(record)
    except Exception:
        _log.warning(
            "on_send of interceptor %s raised an exception. The record is sent without its changes.",
            type(interceptor).__name__,
            exc_info=True,
        )
        return record
