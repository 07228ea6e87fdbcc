"""Refusal: why a part of a request, or all of it, is not done."""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.protocol import error_codes


class ApiError(Exception):
    """The code of the answer, and words for its `error_message` and its `record_errors`."""

    def __init__(self, code: int, reason: str, records: Mapping[int, str] | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.records = records or {}
        """By its place in the batch, what is wrong with a record; the others are not to blame (KIP-467)."""


def storage_error(what: str, error: OSError) -> ApiError:
    return ApiError(error_codes.KAFKA_STORAGE_ERROR, f"{what} could not be stored: {error.strerror or error}")
