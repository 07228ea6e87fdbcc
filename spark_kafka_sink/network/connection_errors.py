"""Errors that close a connection, with the address of the connection's peer."""

from __future__ import annotations

import logging
from copy import copy

from spark_kafka_sink.errors import DisconnectedError, IllegalStateError, KafkaSinkError, clear_tracebacks
from spark_kafka_sink.network.system import SocketAddress

_log = logging.getLogger(__name__)

FATAL_ERRORS = (IllegalStateError, AssertionError)
"""Errors that indicate a bug in this library. `Selector.poll` raises them instead of closing the connection."""


def with_peer_address(error: OSError | KafkaSinkError, address: SocketAddress) -> KafkaSinkError:
    """Return an error like `error`, with the address of the connection's peer added.

    A KafkaSinkError is copied; an OSError is converted to a DisconnectedError. The returned error is chained to
    `error`. The tracebacks of `error` and of its causes are cleared, because their stack frames would keep sent
    segments in memory.
    """
    if isinstance(error, OSError):
        addressed_error: KafkaSinkError = DisconnectedError(str(error.strerror or error))
    else:
        addressed_error = copy(error)
    # An error from a token callback may already contain the address of another server. Keep both addresses.
    addressed_error.address = ": ".join(filter(None, [str(address), addressed_error.address]))
    addressed_error.__cause__ = error
    clear_tracebacks(error)
    return addressed_error


def log_unexpected_error(address: str, error: Exception) -> DisconnectedError:
    """Log an error that no connection should raise, with its traceback, and return the error to report instead."""
    _log.error("%s: closed the connection after an unexpected error", address, exc_info=error)
    return DisconnectedError(f"closed after an unexpected error: {type(error).__name__}: {error}", address=address)
