"""Kafka's API keys, and the base class of all requests and responses."""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, TypeVar

from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.protocol.primitives import Buffer, Reader, Writer
from spark_kafka_sink.protocol.schema import Struct, VersionRange
from spark_kafka_sink.protocol.struct_codec import StructCodec, get_struct_codec


class ApiKey(IntEnum):
    """Keys of the APIs that brokers offer to clients. Those with a module in protocol/messages are supported here."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    UNREGISTER_CONTROLLER = 94


_log = logging.getLogger(__name__)

MessageT = TypeVar("MessageT", bound="Message")


@dataclass(kw_only=True, slots=True)
class Message(Struct):
    """A request or a response."""

    API_KEY: ClassVar[ApiKey]
    VERSIONS: ClassVar[VersionRange]
    """The versions that can be encoded and decoded."""
    FIRST_FLEXIBLE_VERSION: ClassVar[int | None]
    """The first version with compact lengths and tagged fields (KIP-482), or None if there is none."""

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Return whether the version has compact lengths and tagged fields (KIP-482)."""
        return cls.FIRST_FLEXIBLE_VERSION is not None and version >= cls.FIRST_FLEXIBLE_VERSION

    def encode(self, version: int) -> list[Buffer]:
        """Encode the message as a list of segments. Raises the same errors as `write`.

        Record batches are not copied, unless they are very short. Each one is a separate segment.
        """
        writer = Writer()
        self.write(writer, version)
        return writer.to_segments()

    def write(self, writer: Writer, version: int) -> None:
        """Append the encoded message to a writer.

        Raise ValueError if a number or a length is out of range. Raise UnsupportedVersionError if the version is not in
        `VERSIONS`, if it does not allow null for a field that is None, or if it lacks a field whose value would be
        lost.
        """
        try:
            _get_codec(type(self), version).write(writer, self)
        except struct.error as error:
            raise ValueError(f"{type(self).__name__} v{version}: a number or a length is out of range.") from error

    @classmethod
    def decode(cls: type[MessageT], buffer: Buffer, version: int) -> MessageT:
        """Decode a message at the start of a buffer. Raises the same errors as `read`.

        Record batches are views of `buffer`.
        """
        return cls.read(Reader(buffer), version)

    @classmethod
    def read(cls: type[MessageT], reader: Reader, version: int) -> MessageT:
        """Decode a message that begins at the reader's position. Ignore any bytes after it.

        Raise DecodeError if the bytes are malformed, or UnsupportedVersionError if the version is not in `VERSIONS`.
        """
        codec = _get_codec(cls, version)
        try:
            message: MessageT = codec.read(reader)
        except DecodeError as error:
            raise DecodeError(f"{cls.__name__} v{version}: {error}") from error
        if reader.position < reader.end:
            _log.debug("Ignored %d bytes after the end of a %s v%d", reader.remaining_bytes, cls.__name__, version)
        return message


_codecs: dict[tuple[type[Message], int], StructCodec] = {}


def _get_codec(message_type: type[Message], version: int) -> StructCodec:
    """Return the codec for a version of a message. Raise UnsupportedVersionError for versions outside `VERSIONS`."""
    codec = _codecs.get((message_type, version))
    if codec is None:
        if version not in message_type.VERSIONS:
            raise UnsupportedVersionError(
                f"{message_type.__name__} v{version} is not supported. Supported versions: {message_type.VERSIONS}."
            )
        codec = get_struct_codec(message_type, version, message_type.is_flexible(version))
        _codecs[message_type, version] = codec
    return codec
