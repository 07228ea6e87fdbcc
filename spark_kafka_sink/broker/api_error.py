"""ApiError: the error code and message with which a request, or a part of it, is rejected."""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.protocol import error_codes


class ApiError(Exception):
    """A rejected request, partition or batch. Handlers translate it into the fields of the response."""

    def __init__(self, code: int, message: str, record_errors: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.record_errors = record_errors or {}
        """Messages by index in the batch, for the records that caused the error (KIP-467)."""


def build_storage_error(subject: str, error: OSError) -> ApiError:
    """Build the error for something that could not be written to disk."""
    return ApiError(error_codes.KAFKA_STORAGE_ERROR, f"Could not store {subject}: {error.strerror or error}")
