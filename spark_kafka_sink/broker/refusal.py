"""Refusal: why a part of a request, or all of it, is not done."""

from __future__ import annotations

from spark_kafka_sink.protocol import error_codes


class Refusal(Exception):
    """The code of the answer, and words for its `error_message`."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def storage_refusal(what: str, error: OSError) -> Refusal:
    return Refusal(error_codes.KAFKA_STORAGE_ERROR, f"{what} could not be stored: {error.strerror or error}")
