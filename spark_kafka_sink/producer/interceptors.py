"""Interceptors: a user's own code that sees each ProducerRecord before it is sent, and each outcome.

They run in the order in which they were given. As in the Java client, one that raises is logged and passed over: the
record goes on as the one before it left it. `on_send` runs on the caller's thread and may return another record;
`on_acknowledgement` runs on the sender's thread and should be quick. Columns are not taken apart for interceptors: they
see what is sent with send() only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

_log = logging.getLogger(__name__)

Record = TypeVar("Record")
Metadata = TypeVar("Metadata", contravariant=True)


class Interceptor(Protocol[Record, Metadata]):
    """What a user writes. Both methods are called for each record."""

    def on_send(self, record: Record) -> Record:
        """The record to send instead; usually the same."""
        ...

    def on_acknowledgement(self, metadata: Metadata | None, error: Exception | None) -> None:
        """The outcome: metadata, or the error."""
        ...


class Interceptors(Generic[Record, Metadata]):
    """All of a producer's interceptors as one."""

    def __init__(self, interceptors: Sequence[Interceptor[Record, Metadata]]) -> None:
        self._interceptors = tuple(interceptors)

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def on_send(self, record: Record) -> Record:
        for interceptor in self._interceptors:
            record = _on_send(interceptor, record)
        return record

    def on_acknowledgement(self, metadata: Metadata | None, error: Exception | None) -> None:
        for interceptor in self._interceptors:
            _on_acknowledgement(interceptor, metadata, error)


def _on_send(interceptor: Interceptor[Record, Metadata], record: Record) -> Record:
    try:
        return interceptor.on_send(record)
    except Exception:
        _log.warning("on_send of %s failed; the record goes on.", type(interceptor).__name__, exc_info=True)
        return record


def _on_acknowledgement(
    interceptor: Interceptor[Record, Metadata], metadata: Metadata | None, error: Exception | None
) -> None:
    try:
        interceptor.on_acknowledgement(metadata, error)
    except Exception:
        _log.warning("on_acknowledgement of %s failed.", type(interceptor).__name__, exc_info=True)
