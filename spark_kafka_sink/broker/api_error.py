"""ApiError: the error code and message for a rejected request, or for the rejected part of one."""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.protocol import error_codes


class ApiError(Exception):
    """Raised to reject a request, partition or batch. Handlers copy its attributes to the response."""

    def __init__(self, code: int, message: str, record_errors: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.record_errors = record_errors or {}
        """Messages for the records that caused the error, by the record's index in the batch (KIP-467)."""


def build_storage_error(subject: str, error: OSError) -> ApiError:
    """Build the error for a subject (a phrase such as "the batch") that could not be written to disk."""
    return ApiError(error_codes.KAFKA_STORAGE_ERROR, f"Could not store {subject}: {error.strerror or error}")
