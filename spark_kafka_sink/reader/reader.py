"""TopicReader: what stands in a topic now, as columns. It reads up to the ends found at the start, and stops; only
where it is asked to `follow` it goes on.

It is no consumer: no group, no position that is remembered. It is for looking at what was written: in tests, by
`pykafka cat`, for decisions that are kept in a topic. All happens in the calling thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeAlias, TypeVar
from uuid import UUID

import pyarrow as pa

from spark_kafka_sink.client.cluster import NO_TOPIC_ID, Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.option_parsing import LONG_MAX
from spark_kafka_sink.client.options import client_config
from spark_kafka_sink.closing import Closing
from spark_kafka_sink.errors import ConfigurationError, DataError, InvalidRecordError, KafkaSinkError, NetworkError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import broker_error, error_code
from spark_kafka_sink.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.reader.blocking_client import Asked, BlockingClient, Question
from spark_kafka_sink.reader.fetched import ROWS_SCHEMA, StoredBatch, stored_batches, visible_rows
from spark_kafka_sink.words import placed

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
ISOLATION_LEVELS = {READ_UNCOMMITTED: 0, READ_COMMITTED: 1}

FETCH_BYTES_MAX = 50 * 1024 * 1024
PARTITION_BYTES_MAX = 8 * 1024 * 1024
FETCH_WAIT_MS_MAX = 500
READ_BYTES_MAX = 512 * 1024 * 1024
"""One table has at most this many bytes of rows, unless the caller says otherwise."""

_LATEST = -1
_EARLIEST = -2
_CONSUMER = -1  # in place of a replica's id
_FETCH_BY_NAME = VersionRange(FetchRequest.VERSIONS.min, 12)  # from version 13 on by topic id, and nothing else


PartT = TypeVar("PartT")
_Unpack: TypeAlias = "Callable[[str, PartitionData, int, int], Iterator[tuple[PartT, int]]]"
"""Of a topic, what was fetched, from an offset, below another one."""


class TopicReader(Closing):
    """A context manager. `timeout_ms`: an error if nothing at all comes forward for so long.

    `client`: one that the caller has, and closes.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        isolation: str = READ_COMMITTED,
        timeout_ms: float = 60_000,
        system: System | None = None,
        client: BlockingClient | None = None,
    ) -> None:
        if isolation not in ISOLATION_LEVELS:
            raise ConfigurationError(f"isolation is {isolation!r}, but must be one of {', '.join(ISOLATION_LEVELS)}")
        self._isolation = ISOLATION_LEVELS[isolation]
        self._backoff_ms = config.retry_backoff_ms
        self._closes = client is None
        self._client = client or BlockingClient(config, timeout_ms=timeout_ms, system=system)

    def close(self) -> None:
        if self._closes:
            self._client.close()

    def partitions(self, topic: str) -> list[int]:
        """The topic's partitions; BrokerError if it does not exist or may not be read."""
        return [partition.index for partition in self._client.topic(topic, fresh=True).partitions]

    def beginning_offsets(self, topic: str, partitions: Iterable[int] | None = None) -> dict[int, int]:
        return self._list_offsets(topic, self._chosen(topic, partitions), _EARLIEST)

    def end_offsets(self, topic: str, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """The offsets after the last record; for read_committed, of the first record of an open transaction."""
        return self._list_offsets(topic, self._chosen(topic, partitions), _LATEST)

    def offsets_at(self, topic: str, timestamp_ms: int, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """The first offsets whose records have this timestamp or a later one; the ends where there are none."""
        chosen = self._chosen(topic, partitions)
        ends = self._list_offsets(topic, chosen, _LATEST)
        found = self._list_offsets(topic, chosen, timestamp_ms)
        return {partition: offset if offset >= 0 else ends[partition] for partition, offset in found.items()}

    def read(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        start: Mapping[int, int] | None = None,
        stop: Mapping[int, int] | None = None,
        bytes_max: int = READ_BYTES_MAX,
    ) -> pa.Table:
        """All rows, by partition and offset, in the columns of Spark's Kafka source.

        DataError, if they take more than `bytes_max` in memory.
        """
        tables: list[pa.Table] = []
        size = 0
        for table in self.batches(topic, partitions=partitions, start=start, stop=stop):
            size += table.nbytes
            if size > bytes_max:
                raise DataError(
                    f"{placed(topic)} has more than {bytes_max} bytes of rows: raise bytes_max, or read a part of it "
                    "(pykafka cat reads any topic)"
                )
            tables.append(table)
        tables.sort(key=lambda table: table.column("partition")[0].as_py())
        return pa.concat_tables(tables) if tables else ROWS_SCHEMA.empty_table()

    def batches(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        start: Mapping[int, int] | None = None,
        stop: Mapping[int, int] | None = None,
        follow: bool = False,
    ) -> Iterator[pa.Table]:
        """Rows as they come, each table of one partition. Where `start` or `stop` names no offset for a
        partition, that is its first one, or its end, at this moment. `follow`: there is no end."""
        chosen = self._chosen(topic, partitions)
        present_ends = dict.fromkeys(chosen, LONG_MAX) if follow else self._list_offsets(topic, chosen, _LATEST)
        ends = {**present_ends, **_among(stop, chosen)}
        positions = {**self._list_offsets(topic, chosen, _EARLIEST), **_among(start, chosen)}
        for rows in self._fetched(self._fetching(topic, positions, ends, self._visible), follow=follow):
            if rows.num_rows:
                yield rows

    def fetch_ahead(self, topic: str, partition: int, start: int) -> Asked | None:
        """Ask for what is there from this offset, and do not wait. For `decoded`, when the end is known."""
        self._client.topic(topic)
        leader = self._client.leader(topic, partition)
        if leader is None:
            return None
        fetching = self._fetching(topic, {partition: start}, {partition: LONG_MAX}, _as_stored)
        message = fetching.request([partition], wait_ms=0)
        return self._client.start(Question(leader, message, fetching.versions))

    def stored(
        self, topic: str, partition: int, *, start: int, stop: int, ahead: Asked | None = None
    ) -> Iterator[StoredBatch]:
        """The batches of a partition as they are stored, with control batches and whatever the isolation says.

        `ahead`: what was fetched from `start`, before the end was known.
        """
        fetching = self._fetching(topic, {partition: start}, {partition: stop}, _as_stored)
        if ahead is not None:
            (answer,) = self._client.wait(FetchResponse, [ahead])
            if not isinstance(answer, NetworkError) and _is_whole(answer):
                yield from fetching.take(answer)
        yield from self._fetched(fetching, follow=False)

    # --- parts

    def _fetching(
        self, topic: str, positions: dict[int, int], ends: dict[int, int], unpack: _Unpack[PartT]
    ) -> _Fetching[PartT]:
        return _Fetching(topic, self._client.topic(topic).topic_id, self._isolation, positions, ends, unpack)

    def _fetched(self, fetching: _Fetching[PartT], *, follow: bool) -> Iterator[PartT]:
        topic = fetching.topic
        patience = self._client.patience(f"records of {placed(topic)}")
        while fetching.pending:
            before = dict(fetching.positions)
            failure: KafkaSinkError | None = None
            for leader, led in self._by_leader(topic, fetching.pending).items():
                answer = self._fetch(fetching, leader, led)
                if isinstance(answer, NetworkError):
                    failure = answer
                else:
                    yield from fetching.take(answer)
                    failure = fetching.failure or failure
            if fetching.positions != before or (follow and failure is None):
                patience.renew()
            elif fetching.pending:
                self._client.metadata.request_update()
                patience.wait(failure, self._backoff_ms)

    def _visible(self, topic: str, data: PartitionData, start: int, stop: int) -> Iterator[tuple[pa.Table, int]]:
        aborted = data.aborted_transactions if self._isolation else None
        partition = data.partition_index
        for part in visible_rows(_records(data), aborted, topic=topic, partition=partition, start=start, stop=stop):
            yield part.rows, part.next_offset

    def _chosen(self, topic: str, partitions: Iterable[int] | None) -> list[int]:
        if partitions is None:
            return self.partitions(topic)
        chosen = sorted(set(partitions))
        if {partition.index for partition in self._client.topic(topic).partitions}.issuperset(chosen):
            return chosen
        known = self.partitions(topic)
        unknown = [partition for partition in chosen if partition not in known]
        if unknown:
            raise InvalidRecordError(f"{placed(topic)} has the partitions {known}, but not {unknown}")
        return chosen

    def _by_leader(self, topic: str, partitions: Iterable[int]) -> dict[Node, list[int]]:
        self._client.topic(topic)  # it may have been deleted meanwhile
        led: dict[Node, list[int]] = {}
        for partition in partitions:
            leader = self._client.leader(topic, partition)
            if leader is not None:
                led.setdefault(leader, []).append(partition)
        return led

    def _list_offsets(self, topic: str, partitions: list[int], timestamp: int) -> dict[int, int]:
        offsets: dict[int, int] = {}
        patience = self._client.patience(f"offsets of {placed(topic)}")
        while pending := [partition for partition in partitions if partition not in offsets]:
            before = len(offsets)
            failure: KafkaSinkError | None = None
            for leader, led in self._by_leader(topic, pending).items():
                request = _list_offsets_request(topic, led, timestamp, self._isolation)
                answer = self._client.attempt(leader, ListOffsetsResponse, request)
                if isinstance(answer, NetworkError):
                    failure = answer
                else:
                    failure = _take_offsets(topic, led, answer, offsets) or failure
            if len(offsets) > before:
                patience.renew()
            else:
                self._client.metadata.request_update()
                patience.wait(failure, self._backoff_ms)
        return offsets

    def _fetch(self, fetching: _Fetching[PartT], leader: Node, partitions: list[int]) -> FetchResponse | NetworkError:
        if self._client.metadata.snapshot.topic_id(fetching.topic) not in (None, fetching.topic_id):
            # The offsets that we go by are of another topic.
            context = f"{placed(fetching.topic)} was deleted and created again while it was read"
            raise broker_error(error_codes.UNKNOWN_TOPIC_ID, context)
        request = fetching.request(partitions)
        return self._client.attempt(leader, FetchResponse, request, versions=fetching.versions)


class _Fetching(Generic[PartT]):
    """Where the reading of one topic stands. `positions` and `ends` are offsets by partition.

    `unpack` makes parts of what was fetched, each with the offset where to go on behind it.
    """

    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        isolation: int,
        positions: dict[int, int],
        ends: dict[int, int],
        unpack: _Unpack[PartT],
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.failure: KafkaSinkError | None = None
        self._isolation = isolation
        self.positions = positions
        self._ends = ends
        self._unpack = unpack

    @property
    def pending(self) -> list[int]:
        return [partition for partition, end in self._ends.items() if self.positions[partition] < end]

    @property
    def versions(self) -> VersionRange | None:
        return _FETCH_BY_NAME if self.topic_id == NO_TOPIC_ID else None

    def request(self, partitions: list[int], wait_ms: int = FETCH_WAIT_MS_MAX) -> FetchRequest:
        wanted = [
            FetchPartition(
                partition=partition, fetch_offset=self.positions[partition], partition_max_bytes=PARTITION_BYTES_MAX
            )
            for partition in partitions
        ]
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            isolation_level=self._isolation,
            topics=[FetchTopic(topic=self.topic, topic_id=self.topic_id, partitions=wanted)],
        )

    def take(self, answer: FetchResponse) -> Iterator[PartT]:
        """The parts; positions move on. What went wrong, and may go right the next time, is in `failure`."""
        self.failure = _failure(answer.error_code, placed(self.topic))
        for topic in answer.responses:
            for data in topic.partitions:
                where = placed(self.topic, data.partition_index)
                if data.partition_index not in self.positions:
                    continue  # it was not asked for
                if data.error_code == error_codes.NONE:
                    yield from self._rows(data)
                else:
                    self.failure = _failure(data.error_code, where)

    def _rows(self, data: PartitionData) -> Iterator[PartT]:
        partition = data.partition_index
        start, stop = self.positions[partition], self._ends[partition]
        for part, next_offset in self._unpack(self.topic, data, start, stop):
            self.positions[partition] = next_offset
            yield part


def _is_whole(answer: FetchResponse) -> bool:
    """No error in it: else it is fetched again."""
    return not any([answer.error_code, *(data.error_code for topic in answer.responses for data in topic.partitions)])


def _as_stored(topic: str, data: PartitionData, start: int, stop: int) -> Iterator[tuple[StoredBatch, int]]:
    """Brokers send whole batches: the first may begin before `start`, and what ends before it was read before."""
    for batch in stored_batches(_records(data)):
        if batch.header.last_offset >= start and batch.header.base_offset < stop:
            yield batch, batch.header.last_offset + 1


def _records(data: PartitionData) -> memoryview | bytes | None:
    assert not isinstance(data.records, list | tuple)
    return data.records  # type: ignore[return-value]  # segments are for writing only


def read_topic_table(
    bootstrap: str,
    topic: str,
    *,
    isolation: str = READ_COMMITTED,
    options: Mapping[str, object] | None = None,
    bytes_max: int = READ_BYTES_MAX,
    system: System | None = None,
) -> pa.Table:
    """All that stands in a topic now. `options` are client and security options by their names."""
    config = client_config({**(options or {}), "bootstrap.servers": bootstrap})
    with TopicReader(config, isolation=isolation, system=system) as reader:
        return reader.read(topic, bytes_max=bytes_max)


def _list_offsets_request(topic: str, partitions: list[int], timestamp: int, isolation: int) -> ListOffsetsRequest:
    wanted = [ListOffsetsPartition(partition_index=partition, timestamp=timestamp) for partition in partitions]
    return ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=topic, partitions=wanted)],
    )


def _take_offsets(
    topic: str, asked: list[int], answer: ListOffsetsResponse, offsets: dict[int, int]
) -> KafkaSinkError | None:
    failure: KafkaSinkError | None = None
    for answered in answer.topics:
        for partition in answered.partitions:
            if partition.partition_index not in asked:
                continue
            if partition.error_code == error_codes.NONE:
                offsets[partition.partition_index] = partition.offset
            else:
                failure = _failure(partition.error_code, placed(topic, partition.partition_index))
    return failure


def _failure(code: int, where: str) -> KafkaSinkError | None:
    """What may be tried again is returned, what may not is raised."""
    if code == error_codes.NONE:
        return None
    error = broker_error(code, where)
    if not error_code(code).retriable:
        raise error
    return error


def _among(offsets: Mapping[int, int] | None, partitions: list[int]) -> dict[int, int]:
    return {partition: offset for partition, offset in (offsets or {}).items() if partition in partitions}
