"""Errors of a connection, with its address in their words."""

from __future__ import annotations

from spark_kafka_sink.errors import DisconnectedError, KafkaSinkError
from spark_kafka_sink.network.system import SocketAddress


def located(address: SocketAddress, error: OSError | KafkaSinkError) -> KafkaSinkError:
    """An OSError becomes a DisconnectedError; others keep their type."""
    if isinstance(error, OSError):
        named: KafkaSinkError = DisconnectedError(f"{address}: {error.strerror or error}")
    else:
        named = type(error)(f"{address}: {error}")
    named.__cause__ = error
    _drop_frames(error)
    return named


def _drop_frames(error: BaseException | None) -> None:
    """Forget where the error was raised: those frames hold segments of sends, and errors live long."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
