"""The headers before each request and response.

    request    int16 api key, int16 version, int32 correlation id, client id (int16 length, -1 = null)
    response   int32 correlation id
    both       tagged fields, where the message is flexible

The client id is never compact, and the header of an ApiVersions response is never flexible: both must be readable
before the peers know what the other one speaks.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.codecs import scalar_codec
from spark_kafka_sink.protocol.message import ApiKey, Message, MessageT
from spark_kafka_sink.protocol.messages import request_type, spoken_api_keys
from spark_kafka_sink.protocol.primitives import ELEMENTS_MAX, Buffer, Reader, Writer

_REQUEST = struct.Struct(">hhi")
_CORRELATION_ID = struct.Struct(">i")
_NO_TAGS = b"\0"
_CLIENT_ID = scalar_codec("string", flexible=False, nullable=True)


@dataclass(frozen=True)
class RequestHeader:
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def encode_request(message: Message, version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """Header and body, without the length that the network puts before them."""
    writer = Writer()
    writer.put(_REQUEST.pack(message.API_KEY, version, correlation_id))
    writer.put(_end_of_request_header(client_id, message.is_flexible(version)))
    message.write(writer, version)
    return writer.segments()


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, memoryview]:
    """The header, even of an API or a version that we do not know, and the bytes after it."""
    reader = Reader(frame)
    header = _read_request_header(reader)
    request_type = _request_type(header.api_key)
    if request_type is not None and request_type.is_flexible(header.api_version):
        _skip_tags(reader)
    return header, reader.take(reader.remaining)


def decode_request(frame: Buffer, elements_max: int = ELEMENTS_MAX) -> tuple[RequestHeader, Message]:
    header, body = decode_request_header(frame)
    request_type = _request_type(header.api_key)
    if request_type is None:
        raise UnsupportedVersionError(f"API key {header.api_key} is not among those we speak")
    return header, request_type.read(Reader(body, elements_max), header.api_version)


def encode_response(message: Message, version: int, correlation_id: int) -> list[Buffer]:
    writer = Writer()
    writer.put(_CORRELATION_ID.pack(correlation_id))
    if _response_header_is_flexible(type(message), version):
        writer.put(_NO_TAGS)
    message.write(writer, version)
    return writer.segments()


def decode_response(frame: Buffer, response_type: type[MessageT], version: int) -> tuple[int, MessageT]:
    """The correlation id and the message."""
    reader = Reader(frame)
    (correlation_id,) = reader.fixed(_CORRELATION_ID)
    if _response_header_is_flexible(response_type, version):
        _skip_tags(reader)
    return correlation_id, response_type.read(reader, version)


def peek_correlation_id(frame: Buffer) -> int:
    """A response's correlation id, before it is known which request it answers."""
    if len(frame) < _CORRELATION_ID.size:
        raise DecodeError(f"a response of {len(frame)} bytes has no correlation id")
    correlation_id: int = _CORRELATION_ID.unpack_from(frame)[0]
    return correlation_id


def _read_request_header(reader: Reader) -> RequestHeader:
    try:
        api_key, api_version, correlation_id = reader.fixed(_REQUEST)
        return RequestHeader(api_key, api_version, correlation_id, _CLIENT_ID.read(reader))
    except DecodeError as error:
        raise DecodeError(f"request header: {error}") from error


def _request_type(api_key: int) -> type[Message] | None:
    return request_type(ApiKey(api_key)) if api_key in spoken_api_keys() else None


@lru_cache(64)  # a client has one client id
def _end_of_request_header(client_id: str | None, flexible: bool) -> bytes:
    writer = Writer()
    _CLIENT_ID.write(writer, client_id)
    if flexible:
        writer.put(_NO_TAGS)
    return b"".join(writer.segments())


def _response_header_is_flexible(response_type: type[Message], version: int) -> bool:
    return response_type.API_KEY != ApiKey.API_VERSIONS and response_type.is_flexible(version)


def _skip_tags(reader: Reader) -> None:
    """Kafka has no header tags so far; whatever comes is stepped over."""
    count = reader.unsigned_varint()
    if not count:
        return
    for _ in range(reader.count(count, 2)):
        reader.unsigned_varint()
        reader.take(reader.unsigned_varint())
