"""What all requests and responses can do: become segments in one version, and come back from bytes."""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, TypeVar

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.primitives import Buffer, Reader, Writer
from spark_kafka_sink.protocol.schema import Struct, VersionRange
from spark_kafka_sink.protocol.struct_codec import StructCodec, struct_codec


class ApiKey(IntEnum):
    """The APIs that we speak, by Kafka's numbers."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


_log = logging.getLogger(__name__)

MessageT = TypeVar("MessageT", bound="Message")


@dataclass(kw_only=True, slots=True)
class Message(Struct):
    """A request or a response. `FLEXIBLE` is the first flexible version, if there is one."""

    API_KEY: ClassVar[ApiKey]
    VERSIONS: ClassVar[VersionRange]
    FLEXIBLE: ClassVar[int | None]

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        return cls.FLEXIBLE is not None and version >= cls.FLEXIBLE

    def encode(self, version: int) -> list[Buffer]:
        """The message in the layout of one version. Records are passed through as segments of their own."""
        writer = Writer()
        self.write(writer, version)
        return writer.segments()

    def write(self, writer: Writer, version: int) -> None:
        """Append this message to what the writer has. ValueError for a number or a length that is out of range."""
        try:
            _codec(type(self), version).write(writer, self)
        except struct.error as error:
            raise ValueError(f"{type(self).__name__} v{version}: a number or a length is out of range") from error

    @classmethod
    def decode(cls: type[MessageT], buffer: Buffer, version: int) -> MessageT:
        """Any bytes give a message or DecodeError. Records come back as views of `buffer`."""
        return cls.read(Reader(buffer), version)

    @classmethod
    def read(cls: type[MessageT], reader: Reader, version: int) -> MessageT:
        """Decode a message that begins at the reader's position. DecodeError if the bytes are not one."""
        codec = _codec(cls, version)
        try:
            message: MessageT = codec.read(reader)
        except DecodeError as error:
            raise DecodeError(f"{cls.__name__} v{version}: {error}") from error
        if reader.position < reader.end:
            _log.debug("%s v%d: %d bytes after the end of the message", cls.__name__, version, reader.remaining)
        return message


_codecs: dict[tuple[type[Message], int], StructCodec] = {}


def _codec(message_type: type[Message], version: int) -> StructCodec:
    codec = _codecs.get((message_type, version))
    if codec is None:
        if version not in message_type.VERSIONS:
            raise UnsupportedVersionError(
                f"{message_type.__name__} v{version} is not among the versions we speak, {message_type.VERSIONS}"
            )
        codec = struct_codec(message_type, version, message_type.is_flexible(version))
        _codecs[message_type, version] = codec
    return codec
