"""DecisionLog: the compacted topic that says, in its first partition, what is decided.

It is read up to its very end, past the transactions of other queries that are open there: what is decided under a
prefix may stand behind one of them. So the reading waits until none is open below the end that was found when it began.
A driver's transaction is over after milliseconds, or after DRIVER_TIMEOUT_MS where the driver has died in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafka_sink.client.options import ClientConfig
from spark_kafka_sink.errors import BrokerError, DecodeError, KafkaSinkError, NetworkError
from spark_kafka_sink.exactly_once.entries import Entry, decoded
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import broker_error
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from spark_kafka_sink.reader.blocking_client import BlockingClient
from spark_kafka_sink.reader.reader import TopicReader
from spark_kafka_sink.words import cleaned

DEFAULT_TOPIC = "pykafka-decisions"
DEFAULT_REPLICATION = -1
"""As many replicas as the brokers give by themselves."""
DRIVER_TIMEOUT_MS = 60_000
PARTITION = 0

_WAIT_MS = 10.0
_ASK_AGAIN_MS = 100.0
# Small segments, cleaned early: every driver reads the whole log at its start.
_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.1"}


class DecisionLog:
    """Reads. What is written is written by decision_writer.py."""

    def __init__(self, config: ClientConfig, topic: str, client: BlockingClient) -> None:
        self.topic = topic
        self._client = client
        self._stable = TopicReader(config, client=client)
        self._all = TopicReader(config, client=client, isolation="read_uncommitted")
        self._next_offset: int | None = None
        self._entries: dict[str, Entry] = {}

    def create_if_missing(self, replication: int = DEFAULT_REPLICATION) -> None:
        """BrokerError if it is missing and may not be created."""
        patience = self._client.patience(f"topic {self.topic}")
        while (failure := self._missing()) is not None:
            if isinstance(failure, BrokerError) and failure.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
                failure = self._create(replication)
            if failure is not None:
                patience.wait(failure, _ASK_AGAIN_MS)

    def exists(self) -> bool:
        patience = self._client.patience(f"topic {self.topic}")
        while (failure := self._missing()) is not None:
            if isinstance(failure, BrokerError) and failure.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
                return False
            patience.wait(failure, _ASK_AGAIN_MS)
        return True

    def read(self) -> Mapping[str, Entry]:
        """The newest entry of each prefix. What was read before is not read again."""
        end = self._all.end_offsets(self.topic, [PARTITION])[PARTITION]
        patience = self._client.patience(f"open transactions in topic {self.topic}")
        while self._stable.end_offsets(self.topic, [PARTITION])[PARTITION] < end:
            patience.wait(None, _WAIT_MS)
        return self._read_to(end)

    def glance(self) -> Mapping[str, Entry]:
        """What can be read at once. Entries behind an open transaction are not among it."""
        return self._read_to(self._stable.end_offsets(self.topic, [PARTITION])[PARTITION])

    def _read_to(self, end: int) -> Mapping[str, Entry]:
        start = None if self._next_offset is None else {PARTITION: self._next_offset}
        for rows in self._stable.batches(self.topic, partitions=[PARTITION], start=start, stop={PARTITION: end}):
            columns = (rows.column(name).to_pylist() for name in ("key", "value", "offset"))
            for key, value, offset in zip(*columns, strict=True):
                self._take(key, value, offset)
        self._next_offset = end
        return dict(self._entries)

    def _take(self, key: bytes | None, value: bytes | None, offset: int) -> None:
        if key is not None and value is None:
            self._entries.pop(key.decode("utf-8", "replace"), None)
            return
        try:
            entry = decoded(key or b"", value or b"")
        except DecodeError as error:
            raise DecodeError(
                f"topic {self.topic}, partition {PARTITION}, offset {offset}: {error}. This topic is for decisions "
                "alone: name another one with decisionLogTopic, or use the newest version of this library everywhere."
            ) from error
        self._entries[entry.prefix] = entry

    # --- the topic

    def _missing(self) -> KafkaSinkError | None:
        """Why the topic cannot be read now; raised, if it will not pass."""
        question = MetadataRequest(topics=[MetadataRequestTopic(name=self.topic)], allow_auto_topic_creation=False)
        node = self._client.any_node()
        answer = None if node is None else self._client.attempt(node, MetadataResponse, question)
        if answer is None or isinstance(answer, NetworkError):
            return answer or NetworkError("no broker can be asked")
        code = answer.topics[0].error_code if answer.topics else error_codes.UNKNOWN_TOPIC_OR_PARTITION
        if code == error_codes.NONE:
            return None
        error = broker_error(code, f"topic {self.topic}, the log of what is decided")
        if not error_codes.error_code(code).retriable:
            raise error
        return error

    def _create(self, replication: int) -> KafkaSinkError | None:
        settings = [CreatableTopicConfig(name=name, value=value) for name, value in _SETTINGS.items()]
        topic = CreatableTopic(
            name=self.topic, num_partitions=1, replication_factor=replication, assignments=[], configs=settings
        )
        node = self._client.metadata.snapshot.controller or self._client.any_node()
        if node is None:
            return NetworkError("no broker can be asked")
        answer = self._client.attempt(node, CreateTopicsResponse, CreateTopicsRequest(topics=[topic]))
        if isinstance(answer, NetworkError):
            return answer
        (row,) = answer.topics
        if row.error_code in (error_codes.NONE, error_codes.TOPIC_ALREADY_EXISTS):
            return None
        error = broker_error(
            row.error_code,
            f"topic {self.topic}, the log of what is decided, does not exist and could not be created"
            + (f" ({cleaned(row.error_message)})" if row.error_message else ""),
        )
        if error_codes.error_code(row.error_code).retriable:
            return error
        raise error
