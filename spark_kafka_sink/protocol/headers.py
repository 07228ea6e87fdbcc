"""Request and response headers.

    request    int16 API key, int16 version, int32 correlation id, client id (int16 length, -1 = null)
    response   int32 correlation id
    both       tagged fields, if the message version is flexible

The client id is never compact, and the header of an ApiVersions response is never flexible. The peer must be able to
read both before it knows which versions are supported.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.codecs import build_scalar_codec
from spark_kafka_sink.protocol.message import ApiKey, Message, MessageT
from spark_kafka_sink.protocol.messages import list_supported_api_keys, load_request_type
from spark_kafka_sink.protocol.primitives import MAX_ARRAY_ELEMENTS, Buffer, Reader, Writer

_REQUEST_LAYOUT = struct.Struct(">hhi")  # API key, version, correlation id
_CORRELATION_ID_LAYOUT = struct.Struct(">i")
_NO_TAGGED_FIELDS = b"\0"
_CLIENT_ID_CODEC = build_scalar_codec("string", flexible=False, nullable=True)


@dataclass(frozen=True)
class RequestHeader:
    """Decoded request header."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def encode_request(message: Message, version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """Encode a request and its header, without the frame's length prefix.

    Raises the same errors as Message.write.
    """
    writer = Writer()
    writer.put(_REQUEST_LAYOUT.pack(message.API_KEY, version, correlation_id))
    writer.put(_encode_request_header_tail(client_id, message.is_flexible(version)))
    message.write(writer, version)
    return writer.to_segments()


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, memoryview]:
    """Decode a request header. Return the header and the bytes after it. Raise DecodeError if it is malformed.

    The API and its version may be unsupported. For a supported API, the header's tagged fields are skipped. For an
    unsupported API it is unknown whether the header has tagged fields, so the returned bytes may begin with them.
    """
    reader = Reader(frame)
    header = _read_request_header(reader)
    request_type = _find_request_type(header.api_key)
    if request_type is not None and request_type.is_flexible(header.api_version):
        _skip_tagged_fields(reader)
    return header, reader.read_view(reader.remaining_bytes)


def decode_request(frame: Buffer, max_elements: int = MAX_ARRAY_ELEMENTS) -> tuple[RequestHeader, Message]:
    """Decode a request and its header.

    `max_elements`: the maximum number of array elements and tagged fields in the whole request.

    Raise DecodeError if the bytes are malformed, or UnsupportedVersionError if the API or its version is not supported.
    """
    header, body = decode_request_header(frame)
    request_type = _find_request_type(header.api_key)
    if request_type is None:
        raise UnsupportedVersionError(f"API key {header.api_key} is not supported.")
    return header, request_type.read(Reader(body, max_elements), header.api_version)


def encode_response(message: Message, version: int, correlation_id: int) -> list[Buffer]:
    """Encode a response and its header, without the frame's length prefix.

    Raises the same errors as Message.write.
    """
    writer = Writer()
    writer.put(_CORRELATION_ID_LAYOUT.pack(correlation_id))
    if _is_response_header_flexible(type(message), version):
        writer.put(_NO_TAGGED_FIELDS)
    message.write(writer, version)
    return writer.to_segments()


def decode_response(frame: Buffer, response_type: type[MessageT], version: int) -> tuple[int, MessageT]:
    """Decode a response. Return its correlation id and the message. Raise DecodeError if it is malformed.

    `version`: the request's version.
    """
    reader = Reader(frame)
    (correlation_id,) = reader.unpack(_CORRELATION_ID_LAYOUT)
    if _is_response_header_flexible(response_type, version):
        _skip_tagged_fields(reader)
    return correlation_id, response_type.read(reader, version)


def peek_correlation_id(frame: Buffer) -> int:
    """Return a response's correlation id, which identifies the request.

    Raise DecodeError if the frame is too short.
    """
    if len(frame) < _CORRELATION_ID_LAYOUT.size:
        raise DecodeError(f"a response of {len(frame)} bytes is too short for a correlation id")
    correlation_id: int = _CORRELATION_ID_LAYOUT.unpack_from(frame)[0]
    return correlation_id


def _read_request_header(reader: Reader) -> RequestHeader:
    try:
        api_key, api_version, correlation_id = reader.unpack(_REQUEST_LAYOUT)
        return RequestHeader(api_key, api_version, correlation_id, _CLIENT_ID_CODEC.read(reader))
    except DecodeError as error:
        raise DecodeError(f"request header: {error}") from error


def _find_request_type(api_key: int) -> type[Message] | None:
    """Return the class of an API's request, or None if the API is not supported."""
    return load_request_type(ApiKey(api_key)) if api_key in list_supported_api_keys() else None


# Cached, because a client sends the same id in every request.
@lru_cache(64)
def _encode_request_header_tail(client_id: str | None, flexible: bool) -> bytes:
    """Encode the end of a request header: the client id and, in a flexible header, an empty list of tagged fields."""
    writer = Writer()
    _CLIENT_ID_CODEC.write(writer, client_id)
    if flexible:
        writer.put(_NO_TAGGED_FIELDS)
    return b"".join(writer.to_segments())


def _is_response_header_flexible(response_type: type[Message], version: int) -> bool:
    return response_type.API_KEY != ApiKey.API_VERSIONS and response_type.is_flexible(version)


def _skip_tagged_fields(reader: Reader) -> None:
    """Skip a header's tagged fields. Kafka has not defined any so far."""
    count = reader.read_unsigned_varint()
    if not count:
        return
    reader.reserve_elements(count, min_element_bytes=2)  # one byte each for the tag and the size
    for _ in range(count):
        reader.read_unsigned_varint()  # the tag
        reader.read_view(reader.read_unsigned_varint())
