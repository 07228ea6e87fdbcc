"""Errors of a connection, with its address."""

from __future__ import annotations

import logging
from copy import copy

from spark_kafka_sink.errors import DisconnectedError, IllegalStateError, KafkaSinkError
from spark_kafka_sink.network.system import SocketAddress

_log = logging.getLogger(__name__)

FATAL_ERRORS = (IllegalStateError, AssertionError)
"""Faults of this library's own accounting. They concern all connections, so they are raised out of the poll."""


def located(address: SocketAddress, error: OSError | KafkaSinkError) -> KafkaSinkError:
    """An OSError becomes a DisconnectedError; others keep their type."""
    if isinstance(error, OSError):
        named: KafkaSinkError = DisconnectedError(str(error.strerror or error))
    else:
        named = copy(error)
    named.address = str(address)
    named.__cause__ = error
    _drop_frames(error)
    return named


def log_unexpected(address: str, error: Exception) -> DisconnectedError:
    """Log an error that no connection should raise, with its traceback; return the reason to close that connection."""
    _log.error("%s: the connection is closed after an unexpected error.", address, exc_info=error)
    return DisconnectedError(f"closed after an unexpected error: {type(error).__name__}: {error}", address=address)


def _drop_frames(error: BaseException | None) -> None:
    """Forget where the error was raised: those frames hold segments of sends, and errors live long."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
