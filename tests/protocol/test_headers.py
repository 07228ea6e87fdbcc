"""Headers of requests with unknown APIs, and of frames that are too short."""

from __future__ import annotations

import struct

import pytest

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.headers import (
    decode_request,
    decode_request_header,
    decode_response,
    peek_correlation_id,
)
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse


def test_decodes_header_of_request_with_unknown_api_key() -> None:
    frame = struct.pack(">hhih", 999, 3, 12, 2) + b"me" + b"body"
    header, body = decode_request_header(frame)
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (999, 3, 12, "me")
    assert bytes(body) == b"body"
    with pytest.raises(UnsupportedVersionError, match="999"):
        decode_request(frame)


@pytest.mark.parametrize("data", [b"", b"\0\0", b"\0\0\0"])
def test_rejects_frame_shorter_than_its_header(data: bytes) -> None:
    for decode in (peek_correlation_id, lambda frame: decode_response(frame, MetadataResponse, 1), decode_request):
        with pytest.raises(DecodeError):
            decode(data)
