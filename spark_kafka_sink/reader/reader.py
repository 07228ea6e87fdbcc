"""Read the current contents of a topic as Arrow tables.

Each call reads up to the end offsets as of its start. Only `batches(follow=True)` keeps reading.

The reader is not a consumer: it has no group and commits no offsets. It is used by tests, `pykafka cat` and the
decision log. All work is done on the calling thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeAlias, TypeVar
from uuid import UUID

import pyarrow as pa

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.option_parsing import LONG_MAX
from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import BrokerError, ConfigurationError, DataError, InvalidRecordError, NetworkError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.protocol.messages.fetch import FetchResponse, FetchResponsePartitionData
from spark_kafka_sink.reader.fetch import MAX_FETCH_BYTES, MAX_FETCH_WAIT_MS, Fetch
from spark_kafka_sink.reader.fetched import ROWS_SCHEMA, StoredBatch, iterate_stored_batches, iterate_visible_rows
from spark_kafka_sink.reader.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ListOffsets
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.pending import Call

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
ISOLATION_LEVELS = {READ_UNCOMMITTED: 0, READ_COMMITTED: 1}

MAX_READ_BYTES = 512 * 1024 * 1024
"""Default limit for `TopicReader.read`."""

ChunkT = TypeVar("ChunkT")
_ChunkDecoder: TypeAlias = "Callable[[str, FetchResponsePartitionData, int, int], Iterator[tuple[ChunkT, int]]]"
"""Function that decodes fetched data to chunks, each with the offset from which to continue.

Its arguments are the topic, a partition's fetched data, the first offset and the end offset.
"""


class TopicReader:
    """Reads topics. As a context manager, it closes its client unless the caller passed one.

    `isolation`: READ_COMMITTED or READ_UNCOMMITTED. `timeout_ms`: how long a call may go without progress. `client`: a
    client that the caller owns and must close. `preserve_header_keys`: return header keys that are not valid UTF-8 as
    they are, although the strings in the table are then invalid.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        isolation: str = READ_COMMITTED,
        preserve_header_keys: bool = False,
        timeout_ms: float = 60_000,
        system: System | None = None,
        client: BlockingClient | None = None,
    ) -> None:
        if isolation not in ISOLATION_LEVELS:
            raise ConfigurationError(f"isolation must be one of {', '.join(ISOLATION_LEVELS)}, not {isolation!r}")
        self._isolation = ISOLATION_LEVELS[isolation]
        self._preserve_header_keys = preserve_header_keys
        self._backoff_ms = config.retry_backoff_ms
        self._owns_client = client is None
        self._client = client or BlockingClient(config, timeout_ms=timeout_ms, system=system)

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._owns_client:
            self._client.close()

    def partitions(self, topic: str) -> list[int]:
        """Return the numbers of a topic's partitions.

        Raise BrokerError if the topic does not exist or the user is not allowed to describe it.
        """
        return [partition.index for partition in self._client.wait_for_topic(topic, refresh=True).partitions]

    def beginning_offsets(self, topic: str, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """Return the first offset of each partition. `partitions`: None for all partitions of the topic."""
        return self._list_offsets(topic, self._select_partitions(topic, partitions), EARLIEST_TIMESTAMP)

    def end_offsets(self, topic: str, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """Return the end offset of each partition; at read_committed, that is the last stable offset."""
        return self._list_offsets(topic, self._select_partitions(topic, partitions), LATEST_TIMESTAMP)

    def offsets_at(self, topic: str, timestamp_ms: int, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """Return each partition's first offset at or after a timestamp, or its end offset if it has no such record."""
        selected_partitions = self._select_partitions(topic, partitions)
        end_offsets = self._list_offsets(topic, selected_partitions, LATEST_TIMESTAMP)
        offsets = self._list_offsets(topic, selected_partitions, timestamp_ms)
        return {partition: offset if offset >= 0 else end_offsets[partition] for partition, offset in offsets.items()}

    def read(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        start: Mapping[int, int] | None = None,
        stop: Mapping[int, int] | None = None,
        max_bytes: int = MAX_READ_BYTES,
    ) -> pa.Table:
        """Return all rows, sorted by partition and offset, with the columns of Spark's Kafka source.

        The parameters are those of `batches`. Raise DataError if the rows need more than `max_bytes` of memory.
        """
        tables: list[pa.Table] = []
        total_bytes = 0
        for table in self.batches(topic, partitions=partitions, start=start, stop=stop):
            total_bytes += table.nbytes
            if total_bytes > max_bytes:
                raise DataError(
                    f"{format_partition(topic)} has more than {max_bytes} bytes of rows. Increase max_bytes, or read "
                    "fewer partitions or offsets; `pykafka cat` reads topics of any size."
                )
            tables.append(table)
        # The sort is stable, so the tables of a partition stay in the order of their offsets.
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
        """Yield tables of rows as they are fetched. Each table has the rows of a single partition, and is not empty.

        `partitions`: None for all partitions of the topic. `start` and `stop`: by partition, the first offset to read
        and the offset to stop before; they default to the partition's current start and end. `follow`: ignore the
        current end offsets and keep yielding new rows as they are written.
        """
        selected_partitions = self._select_partitions(topic, partitions)
        current_end_offsets = (
            dict.fromkeys(selected_partitions, LONG_MAX)
            if follow
            else self._list_offsets(topic, selected_partitions, LATEST_TIMESTAMP)
        )
        end_offsets = {**current_end_offsets, **_filter_partitions(stop, selected_partitions)}
        positions = {
            **self._list_offsets(topic, selected_partitions, EARLIEST_TIMESTAMP),
            **_filter_partitions(start, selected_partitions),
        }
        progress = self._create_progress(topic, positions, end_offsets, self._to_visible_rows)
        for rows in self._fetch_all(progress, follow=follow):
            if rows.num_rows:
                yield rows

    def prefetch(self, topic: str, partition: int, start: int) -> Call[FetchResponse]:
        """Send a fetch from an offset without waiting for the response.

        The caller must pass the result to `read_stored_batches` or `abandon`.
        """
        progress = self._create_progress(topic, {partition: start}, {partition: LONG_MAX}, _to_stored_batches)
        return self._send_fetch(self._build_next_fetch(progress, max_wait_ms=0))

    def abandon(self, fetch_call: Call[FetchResponse]) -> None:
        """Abandon a fetch that `prefetch` started."""
        self._client.abandon(fetch_call)

    def read_stored_batches(
        self, topic: str, partition: int, *, start: int, stop: int, fetch_call: Call[FetchResponse] | None = None
    ) -> Iterator[StoredBatch]:
        """Yield a partition's batches as they are stored, including control batches, whatever the isolation level.

        `fetch_call`: the result of `prefetch` for the same `start`. If that fetch failed, it is sent again.
        """
        progress = self._create_progress(topic, {partition: start}, {partition: stop}, _to_stored_batches)
        if fetch_call is not None:
            fetch = progress.build_fetch([partition])
            if self._wait_for_fetch(fetch_call) is None and fetch.find_rejection_error(fetch_call.responses) is None:
                yield from progress.decode(fetch.parse_partition_data(fetch_call.responses))
        yield from self._fetch_all(progress, follow=False)

    # --- helpers

    def _create_progress(
        self, topic: str, positions: dict[int, int], end_offsets: dict[int, int], decode_chunks: _ChunkDecoder[ChunkT]
    ) -> _FetchProgress[ChunkT]:
        topic_id = self._client.wait_for_topic(topic).topic_id
        return _FetchProgress(topic, topic_id, self._isolation, positions, end_offsets, decode_chunks)

    def _fetch_all(self, progress: _FetchProgress[ChunkT], *, follow: bool) -> Iterator[ChunkT]:
        """Fetch in rounds until every position has reached its end offset.

        No fetch is in flight while the caller processes a chunk, because a slow caller would otherwise look like a
        broker that does not respond.
        """
        deadline = self._client.create_deadline(f"records of {format_partition(progress.topic)}")
        while progress.pending_partitions:
            previous_positions = dict(progress.positions)
            fetch = self._build_next_fetch(progress)
            call = self._send_fetch(fetch)
            failure = self._wait_for_fetch(call)
            yield from progress.decode(fetch.parse_partition_data(call.responses))
            rejection = fetch.find_rejection_error(call.responses)
            if rejection is not None:
                raise rejection
            if progress.positions != previous_positions or (follow and fetch.offsets and failure is None):
                deadline.extend()
            elif progress.pending_partitions:
                self._client.metadata.request_update()
                deadline.wait(failure, self._backoff_ms)

    def _build_next_fetch(self, progress: _FetchProgress[ChunkT], max_wait_ms: int = MAX_FETCH_WAIT_MS) -> Fetch:
        """Build one round's fetch, for all pending partitions that have a leader.

        Raise BrokerError if the topic was deleted, even if it has been recreated.
        """
        topic = progress.topic
        self._client.wait_for_topic(topic)  # raises if the topic was deleted
        if self._client.metadata.snapshot.topic_id(topic) not in (None, progress.topic_id):
            # The positions are offsets in the deleted topic, so they mean nothing in the new one.
            context = f"{format_partition(topic)} was deleted and recreated while it was being read"
            raise build_broker_error(error_codes.UNKNOWN_TOPIC_ID, context)
        leaders = {partition: self._client.find_leader(topic, partition) for partition in progress.pending_partitions}
        fetchable_partitions = [partition for partition, leader in leaders.items() if leader is not None]
        # All responses of a round are in memory at the same time, so the leaders share the limit.
        leader_count = len({leader for leader in leaders.values() if leader is not None})
        max_bytes_per_leader = MAX_FETCH_BYTES // max(1, leader_count)
        return progress.build_fetch(fetchable_partitions, max_wait_ms, max_bytes_per_leader)

    def _send_fetch(self, fetch: Fetch) -> Call[FetchResponse]:
        """Send the fetch to each leader. It is not retried, because the next round may fetch from other offsets."""
        return self._client.begin([fetch], should_retry=False)

    def _wait_for_fetch(self, call: Call[FetchResponse]) -> NetworkError | BrokerError | None:
        """Wait for all responses. Return the first network or broker error, which may be temporary, or None."""
        try:
            self._client.finish(call, timeout_ms=float("inf"))
        except (NetworkError, BrokerError) as error:
            return error
        return None

    def _to_visible_rows(
        self, topic: str, data: FetchResponsePartitionData, start: int, stop: int
    ) -> Iterator[tuple[pa.Table, int]]:
        """Yield chunks of the rows that are visible at the isolation level. A `_ChunkDecoder`."""
        aborted_transactions = data.aborted_transactions if self._isolation else None
        partition = data.partition_index
        for chunk in iterate_visible_rows(
            _get_records(data),
            aborted_transactions,
            topic=topic,
            partition=partition,
            start=start,
            stop=stop,
            preserve_header_keys=self._preserve_header_keys,
        ):
            yield chunk.rows, chunk.next_offset

    def _select_partitions(self, topic: str, partitions: Iterable[int] | None) -> list[int]:
        """Return the partitions in ascending order, or all of the topic's partitions if `partitions` is None.

        Raise InvalidRecordError if a partition does not exist.
        """
        if partitions is None:
            return self.partitions(topic)
        selected_partitions = sorted(set(partitions))
        cached_partitions = {partition.index for partition in self._client.wait_for_topic(topic).partitions}
        if cached_partitions.issuperset(selected_partitions):
            return selected_partitions
        existing_partitions = self.partitions(topic)  # fetched again, because the topic may have gained partitions
        missing_partitions = [partition for partition in selected_partitions if partition not in existing_partitions]
        if missing_partitions:
            raise InvalidRecordError(
                f"{format_partition(topic)} has the partitions {existing_partitions}, but not {missing_partitions}"
            )
        return selected_partitions

    def _list_offsets(self, topic: str, partitions: list[int], timestamp: int) -> dict[int, int]:
        self._client.wait_for_topic(topic)
        request = ListOffsets(topic, partitions, timestamp, self._isolation)
        return request.parse_offsets(self._client.send_all([request]))


class _FetchProgress(Generic[ChunkT]):
    """The progress of reading one topic.

    `positions` contains the next offset to fetch from each partition, and `end_offsets` the offset at which to stop.
    """

    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        isolation: int,
        positions: dict[int, int],
        end_offsets: dict[int, int],
        decode_chunks: _ChunkDecoder[ChunkT],
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self._isolation = isolation
        self.positions = positions
        self._end_offsets = end_offsets
        self._decode_chunks = decode_chunks

    @property
    def pending_partitions(self) -> list[int]:
        """The partitions whose position is before their end offset."""
        return [partition for partition, end in self._end_offsets.items() if self.positions[partition] < end]

    def build_fetch(
        self, partitions: Iterable[int], max_wait_ms: int = MAX_FETCH_WAIT_MS, max_bytes: int = MAX_FETCH_BYTES
    ) -> Fetch:
        """Build a fetch that continues at the current positions of these partitions."""
        offsets = {partition: self.positions[partition] for partition in partitions}
        return Fetch(self.topic, self.topic_id, offsets, self._isolation, max_wait_ms, max_bytes)

    def decode(self, partition_data: Iterable[FetchResponsePartitionData]) -> Iterator[ChunkT]:
        """Decode fetched data chunk by chunk. A partition's position advances before the chunk is yielded."""
        for data in partition_data:
            yield from self._decode_partition(data)

    def _decode_partition(self, data: FetchResponsePartitionData) -> Iterator[ChunkT]:
        partition = data.partition_index
        start, stop = self.positions[partition], self._end_offsets[partition]
        for chunk, next_offset in self._decode_chunks(self.topic, data, start, stop):
            self.positions[partition] = next_offset
            yield chunk


def _to_stored_batches(
    topic: str, data: FetchResponsePartitionData, start: int, stop: int
) -> Iterator[tuple[StoredBatch, int]]:
    """Yield the batches that overlap the range. A `_ChunkDecoder`.

    The first batch may begin before `start`, because brokers send whole batches.
    """
    for batch in iterate_stored_batches(_get_records(data)):
        if batch.header.last_offset >= start and batch.header.base_offset < stop:
            yield batch, batch.header.last_offset + 1


def _get_records(data: FetchResponsePartitionData) -> memoryview | bytes | None:
    assert not isinstance(data.records, list | tuple)
    return data.records  # type: ignore[return-value]  # A list of segments is for writing only.


def read_topic_table(
    bootstrap: str,
    topic: str,
    *,
    isolation: str = READ_COMMITTED,
    options: Mapping[str, object] | None = None,
    max_bytes: int = MAX_READ_BYTES,
    system: System | None = None,
) -> pa.Table:
    """Return a topic's current rows, sorted by partition and offset.

    `options`: client and security options by name.

    Raise DataError if the rows need more than `max_bytes` of memory.
    """
    config = parse_client_config({**(options or {}), "bootstrap.servers": bootstrap})
    with TopicReader(config, isolation=isolation, system=system) as reader:
        return reader.read(topic, max_bytes=max_bytes)


def _filter_partitions(offsets: Mapping[int, int] | None, partitions: list[int]) -> dict[int, int]:
    return {partition: offset for partition, offset in (offsets or {}).items() if partition in partitions}
