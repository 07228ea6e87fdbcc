"""Interceptors: a user's own code that sees each ProducerRecord before it is sent, and each outcome.

They run in the order in which they were given. As in the Java client, one that raises is logged and passed over: the
record goes on as the one before it left it. `on_send` runs on the caller's thread and may return another record;
`on_acknowledgement` runs on the sender's thread, before the callback of send(), and should be quick. Columns are not
taken apart for interceptors: they see what is sent with send() only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

_log = logging.getLogger(__name__)

Record = TypeVar("Record")
Metadata = TypeVar("Metadata", contravariant=True)


class Interceptor(Protocol[Record, Metadata]):
    """What a user writes. Both methods are called for each record."""

    def on_send(self, record: Record) -> Record:
        """The record to send instead; usually the same."""
        ...

    def on_acknowledgement(self, metadata: Metadata, error: Exception | None) -> None:
        """The outcome. With an error, the metadata has the topic, the partition if it is known, and -1 for the rest."""
        ...


class Interceptors(Generic[Record, Metadata]):
    """All of a producer's interceptors as one."""

    def __init__(self, interceptors: Sequence[Interceptor[Record, Metadata]]) -> None:
        self._interceptors = tuple(interceptors)
        self.acknowledgements: tuple[Callable[[Metadata, Exception | None], None], ...] = tuple(
            interceptor.on_acknowledgement for interceptor in interceptors
        )
        """Called with each record's result; the caller guards against what it raises."""

    def on_send(self, record: Record) -> Record:
        for interceptor in self._interceptors:
            record = _on_send(interceptor, record)
        return record


def _on_send(interceptor: Interceptor[Record, Metadata], record: Record) -> Record:
    try:
        return interceptor.on_send(record)
    except Exception:
        _log.warning("on_send of %s failed; the record goes on.", type(interceptor).__name__, exc_info=True)
        return record
