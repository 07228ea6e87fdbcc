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

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.option_parsing import LONG_MAX
from spark_kafka_sink.client.options import client_config
from spark_kafka_sink.closing import Closing
from spark_kafka_sink.errors import BrokerError, ConfigurationError, DataError, InvalidRecordError, NetworkError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.protocol.messages.fetch import FetchResponse, FetchResponsePartitionData
from spark_kafka_sink.reader.fetch import FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX, Fetch
from spark_kafka_sink.reader.fetched import ROWS_SCHEMA, StoredBatch, stored_batches, visible_rows
from spark_kafka_sink.reader.list_offsets import EARLIEST, LATEST, ListOffsets
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.pending import Call
from spark_kafka_sink.words import placed

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
ISOLATION_LEVELS = {READ_UNCOMMITTED: 0, READ_COMMITTED: 1}

READ_BYTES_MAX = 512 * 1024 * 1024
"""One table has at most this many bytes of rows, unless the caller says otherwise."""


PartT = TypeVar("PartT")
_Unpack: TypeAlias = "Callable[[str, FetchResponsePartitionData, int, int], Iterator[tuple[PartT, int]]]"
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
        return self._list_offsets(topic, self._chosen(topic, partitions), EARLIEST)

    def end_offsets(self, topic: str, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """The offsets after the last record; for read_committed, of the first record of an open transaction."""
        return self._list_offsets(topic, self._chosen(topic, partitions), LATEST)

    def offsets_at(self, topic: str, timestamp_ms: int, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """The first offsets whose records have this timestamp or a later one; the ends where there are none."""
        chosen = self._chosen(topic, partitions)
        ends = self._list_offsets(topic, chosen, LATEST)
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
        present_ends = dict.fromkeys(chosen, LONG_MAX) if follow else self._list_offsets(topic, chosen, LATEST)
        ends = {**present_ends, **_among(stop, chosen)}
        positions = {**self._list_offsets(topic, chosen, EARLIEST), **_among(start, chosen)}
        for rows in self._fetched(self._fetching(topic, positions, ends, self._visible), follow=follow):
            if rows.num_rows:
                yield rows

    def fetch_ahead(self, topic: str, partition: int, start: int) -> Call[FetchResponse]:
        """Send a fetch from this offset and do not wait. `stored` takes the call once the end is known, or the caller
        must `abandon` it."""
        fetching = self._fetching(topic, {partition: start}, {partition: LONG_MAX}, _as_stored)
        return self._begin(self._next_fetch(fetching, max_wait_ms=0))

    def abandon(self, ahead: Call[FetchResponse]) -> None:
        """End a fetch that is not needed any more."""
        self._client.abandon(ahead)

    def stored(
        self, topic: str, partition: int, *, start: int, stop: int, ahead: Call[FetchResponse] | None = None
    ) -> Iterator[StoredBatch]:
        """The batches of a partition as they are stored, with control batches and whatever the isolation says.

        `ahead`: a fetch from `start` that was sent before the end was known. If it has failed it is repeated.
        """
        fetching = self._fetching(topic, {partition: start}, {partition: stop}, _as_stored)
        if ahead is not None:
            fetch = fetching.fetch([partition])
            if self._finish(ahead) is None and fetch.rejected(ahead.responses) is None:
                yield from fetching.take(fetch.fetched(ahead.responses))
        yield from self._fetched(fetching, follow=False)

    # --- parts

    def _fetching(
        self, topic: str, positions: dict[int, int], ends: dict[int, int], unpack: _Unpack[PartT]
    ) -> _Fetching[PartT]:
        return _Fetching(topic, self._client.topic(topic).topic_id, self._isolation, positions, ends, unpack)

    def _fetched(self, fetching: _Fetching[PartT], *, follow: bool) -> Iterator[PartT]:
        """Fetch in rounds. No fetch is in flight while the caller uses the parts, so that a slow caller does not look
        like a silent broker."""
        deadline = self._client.deadline(f"records of {placed(fetching.topic)}")
        while fetching.pending:
            before = dict(fetching.positions)
            fetch = self._next_fetch(fetching)
            call = self._begin(fetch)
            failure = self._finish(call)
            yield from fetching.take(fetch.fetched(call.responses))
            rejection = fetch.rejected(call.responses)
            if rejection is not None:
                raise rejection
            if fetching.positions != before or (follow and fetch.offsets and failure is None):
                deadline.extend()
            elif fetching.pending:
                self._client.metadata.request_update()
                deadline.wait(failure, self._backoff_ms)

    def _next_fetch(self, fetching: _Fetching[PartT], max_wait_ms: int = FETCH_WAIT_MS_MAX) -> Fetch:
        """Return the fetch of one round, about all pending partitions that have leaders."""
        topic = fetching.topic
        self._client.topic(topic)  # it may have been deleted meanwhile
        if self._client.metadata.snapshot.topic_id(topic) not in (None, fetching.topic_id):
            # The positions are offsets of the deleted topic.
            context = f"{placed(topic)} was deleted and created again while it was read"
            raise build_broker_error(error_codes.UNKNOWN_TOPIC_ID, context)
        leaders = {partition: self._client.leader(topic, partition) for partition in fetching.pending}
        led = [partition for partition, leader in leaders.items() if leader is not None]
        # The responses of a round are in memory at the same time.
        return fetching.fetch(led, max_wait_ms, FETCH_BYTES_MAX // max(1, len({*leaders.values()} - {None})))

    def _begin(self, fetch: Fetch) -> Call[FetchResponse]:
        """Send a fetch to each leader, once: the next round has other offsets."""
        return self._client.begin([fetch], retries=False)

    def _finish(self, call: Call[FetchResponse]) -> NetworkError | BrokerError | None:
        """Wait for each response, or until its broker is lost or unresponsive. Return the first failure that may be
        temporary."""
        try:
            self._client.finish(call, timeout_ms=float("inf"))
        except (NetworkError, BrokerError) as error:
            return error
        return None

    def _visible(
        self, topic: str, data: FetchResponsePartitionData, start: int, stop: int
    ) -> Iterator[tuple[pa.Table, int]]:
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

    def _list_offsets(self, topic: str, partitions: list[int], timestamp: int) -> dict[int, int]:
        self._client.topic(topic)
        request = ListOffsets(topic, partitions, timestamp, self._isolation)
        return request.offsets(self._client.send_all([request]))


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
        self._isolation = isolation
        self.positions = positions
        self._ends = ends
        self._unpack = unpack

    @property
    def pending(self) -> list[int]:
        return [partition for partition, end in self._ends.items() if self.positions[partition] < end]

    def fetch(
        self, partitions: Iterable[int], max_wait_ms: int = FETCH_WAIT_MS_MAX, max_bytes: int = FETCH_BYTES_MAX
    ) -> Fetch:
        offsets = {partition: self.positions[partition] for partition in partitions}
        return Fetch(self.topic, self.topic_id, offsets, self._isolation, max_wait_ms, max_bytes)

    def take(self, fetched: Iterable[FetchResponsePartitionData]) -> Iterator[PartT]:
        """Unpack the data of partitions part by part, and move their positions on."""
        for data in fetched:
            yield from self._rows(data)

    def _rows(self, data: FetchResponsePartitionData) -> Iterator[PartT]:
        partition = data.partition_index
        start, stop = self.positions[partition], self._ends[partition]
        for part, next_offset in self._unpack(self.topic, data, start, stop):
            self.positions[partition] = next_offset
            yield part


def _as_stored(
    topic: str, data: FetchResponsePartitionData, start: int, stop: int
) -> Iterator[tuple[StoredBatch, int]]:
    """Brokers send whole batches: the first may begin before `start`, and what ends before it was read before."""
    for batch in stored_batches(_records(data)):
        if batch.header.last_offset >= start and batch.header.base_offset < stop:
            yield batch, batch.header.last_offset + 1


def _records(data: FetchResponsePartitionData) -> memoryview | bytes | None:
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


def _among(offsets: Mapping[int, int] | None, partitions: list[int]) -> dict[int, int]:
    return {partition: offset for partition, offset in (offsets or {}).items() if partition in partitions}
