"""DecisionLog: the compacted topic that says, in its first partition, what is decided.

It is read up to its very end, past the transactions of other queries that are open there: what is decided under a
prefix may stand behind one of them. So the reading waits until none is open below the end that was found when it began.
A driver's transaction is over after milliseconds, or after DRIVER_TIMEOUT_MS where the driver has died in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_kafka_sink.client.cluster import NO_TOPIC_ID
from spark_kafka_sink.client.options import ClientConfig
from spark_kafka_sink.errors import BrokerError, DecodeError, KafkaSinkError, NetworkError
from spark_kafka_sink.exactly_once.compaction import COMPACT, POLICY, ensure_compacted
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

DEFAULT_REPLICATION = -1
"""As many replicas as the brokers give by themselves."""
DRIVER_TIMEOUT_MS = 60_000
PARTITION = 0

_WAIT_MS = 10.0
_ASK_AGAIN_MS = 100.0
# Small segments, cleaned early, and nothing kept of what is over: every driver reads the whole log when it starts.
_SETTINGS = {
    POLICY: COMPACT,
    "segment.bytes": "1048576",
    "segment.ms": "60000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "60000",
}


_LOGS_MAX = 8


class _Position(NamedTuple):
    """What was read of a log, and where to go on."""

    next_offset: int
    entries: dict[str, Entry]


_positions: dict[tuple[object, ...], _Position] = {}
"""By brokers, topic and its id: of this process, which plans one micro-batch after the other."""
_compacted: set[tuple[object, ...]] = set()
"""By brokers and topic: the logs whose cleanup policy this process has asked for."""


class DecisionLog:
    """Reads. What is written is written by decision_writer.py.

    What this process has read before is not read again. A topic of brokers that give topics no ids is, since it may
    have been deleted and created again.
    """

    def __init__(self, config: ClientConfig, topic: str, client: BlockingClient) -> None:
        self.topic = topic
        self._brokers = config.bootstrap_servers
        self._client = client
        self._stable = TopicReader(config, client=client)
        self._all = TopicReader(config, client=client, isolation="read_uncommitted")

    def create_if_missing(self, replication: int = DEFAULT_REPLICATION) -> None:
        """BrokerError if it is missing and may not be created, PreflightError if it is there and would forget."""
        patience = self._client.patience(f"topic {self.topic}")
        while (failure := self._missing()) is not None:
            if isinstance(failure, BrokerError) and failure.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
                failure = self._create(replication)
            if failure is not None:
                patience.wait(failure, _ASK_AGAIN_MS)
        if (self._brokers, self.topic) not in _compacted:
            ensure_compacted(self._client, self.topic)
            _compacted.add((self._brokers, self.topic))

    def exists(self) -> bool:
        patience = self._client.patience(f"topic {self.topic}")
        while (failure := self._missing()) is not None:
            if isinstance(failure, BrokerError) and failure.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
                return False
            patience.wait(failure, _ASK_AGAIN_MS)
        return True

    def read(self) -> Mapping[str, Entry]:
        """The newest entry of each prefix."""
        end = self._all.end_offsets(self.topic, [PARTITION])[PARTITION]
        patience = self._client.patience(f"open transactions in topic {self.topic}")
        while self._stable.end_offsets(self.topic, [PARTITION])[PARTITION] < end:
            patience.wait(None, _WAIT_MS)
        return self._read_to(end)

    def glance(self) -> Mapping[str, Entry]:
        """What can be read at once. Entries behind an open transaction are not among it."""
        return self._read_to(self._stable.end_offsets(self.topic, [PARTITION])[PARTITION])

    def _read_to(self, end: int) -> Mapping[str, Entry]:
        topic_id = self._client.topic(self.topic).topic_id
        place = (self._brokers, self.topic, topic_id)
        known = _positions.pop(place, None)
        if known is None or known.next_offset > end or topic_id == NO_TOPIC_ID:
            known = _Position(self._all.beginning_offsets(self.topic, [PARTITION])[PARTITION], {})
        entries = dict(known.entries)
        span = {PARTITION: known.next_offset}, {PARTITION: end}
        for rows in self._stable.batches(self.topic, partitions=[PARTITION], start=span[0], stop=span[1]):
            columns = (rows.column(name).to_pylist() for name in ("key", "value", "offset"))
            for key, value, offset in zip(*columns, strict=True):
                self._take(entries, key, value, offset)
        if len(_positions) >= _LOGS_MAX:
            _positions.clear()
        _positions[place] = _Position(end, entries)
        return dict(entries)

    def _take(self, entries: dict[str, Entry], key: bytes | None, value: bytes | None, offset: int) -> None:
        if key is not None and value is None:
            entries.pop(key.decode("utf-8", "replace"), None)
            return
        try:
            entry = decoded(key or b"", value or b"")
        except DecodeError as error:
            raise DecodeError(
                f"topic {self.topic}, partition {PARTITION}, offset {offset}: {error}. This topic is for decisions "
                "alone: name another one with decisionLogTopic, or use the newest version of this library everywhere."
            ) from error
        entries[entry.prefix] = entry

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
