"""Loop that fetches the partitions of a topic over a BlockingClient until each of them has reached its end offset.

TopicReader uses these functions to read rows. The decision log of exactly-once delivery uses them to read batches as
they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeAlias, TypeVar
from uuid import UUID

from spark_kafka_sink.client.option_parsing import LONG_MAX
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import BrokerError, NetworkError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.protocol.messages.fetch import FetchResponse, FetchResponsePartitionData
from spark_kafka_sink.reader.fetch import ISOLATION_LEVELS, MAX_FETCH_BYTES, MAX_FETCH_WAIT_MS, READ_UNCOMMITTED, Fetch
from spark_kafka_sink.reader.fetched import StoredBatch, get_records, iterate_stored_batches
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.engine import Call

ChunkT = TypeVar("ChunkT")
ChunkDecoder: TypeAlias = "Callable[[str, FetchResponsePartitionData, int, int], Iterator[tuple[ChunkT, int]]]"
"""A function that decodes the fetched data of a partition and yields chunks, each with the offset to continue from.

Its arguments are the topic, the fetched data, the first offset to return and the offset to stop before.
"""


class FetchProgress(Generic[ChunkT]):
    """The next offset and the end offset of each partition while a topic is being read. Not thread-safe.

    `positions`: the next offset to fetch, by partition.
    `end_offsets`: the offset to stop before, by partition.
    `decode_chunks`: decodes the fetched data of a partition.
    """

    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        isolation: int,
        positions: dict[int, int],
        end_offsets: dict[int, int],
        decode_chunks: ChunkDecoder[ChunkT],
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


def fetch_chunks(client: BlockingClient, progress: FetchProgress[ChunkT], *, follow: bool = False) -> Iterator[ChunkT]:
    """Fetch in rounds until every position has reached its end offset, and yield the decoded chunks.

    No fetch is in flight while the caller processes a chunk, because a slow caller would otherwise look like a broker
    that does not respond.

    If a leader rejects a partition with an error that is not retriable, yield what the round has fetched from the other
    partitions, and then raise BrokerError. If there is no progress within the client's timeout, raise NetworkError or
    MetadataTimeoutError.

    `follow`: whether to keep waiting after a round that fetches nothing, because new records may be written later.
    """
    deadline = client.create_deadline(f"records of {format_partition(progress.topic)}")
    while progress.pending_partitions:
        previous_positions = dict(progress.positions)
        fetch = _build_next_fetch(client, progress)
        call = _send_fetch(client, fetch)
        failure = _wait_for_fetch(client, call)
        yield from progress.decode(fetch.parse_partition_data(call.responses))
        rejection = fetch.find_rejection_error(call.responses)
        if rejection is not None:
            raise rejection
        has_advanced = progress.positions != previous_positions
        is_waiting_for_records = follow and bool(fetch.offsets) and failure is None
        if has_advanced or is_waiting_for_records:
            deadline.extend()
        elif progress.pending_partitions:
            client.metadata.request_update()  # the leaders may have changed
            deadline.wait_or_raise(failure, client.retry_backoff_ms)


def prefetch_stored_batches(client: BlockingClient, topic: str, partition: int, start: int) -> Call[FetchResponse]:
    """Send a fetch from an offset without waiting for the response.

    The caller must pass the result to `read_stored_batches` or to the client's `abandon`.
    """
    progress = _start_reading_batches(client, topic, partition, start, LONG_MAX)
    return _send_fetch(client, _build_next_fetch(client, progress, max_wait_ms=0))


def read_stored_batches(
    client: BlockingClient,
    topic: str,
    partition: int,
    *,
    start: int,
    stop: int,
    fetch_call: Call[FetchResponse] | None = None,
) -> Iterator[StoredBatch]:
    """Yield a partition's batches as they are stored, including control batches and batches of open transactions.

    `fetch_call`: the result of `prefetch_stored_batches` for the same `start`. If that fetch failed, it is sent again.
    """
    progress = _start_reading_batches(client, topic, partition, start, stop)
    if fetch_call is not None:
        fetch = progress.build_fetch([partition])
        failure = _wait_for_fetch(client, fetch_call)
        if failure is None and fetch.find_rejection_error(fetch_call.responses) is None:
            yield from progress.decode(fetch.parse_partition_data(fetch_call.responses))
    yield from fetch_chunks(client, progress)


def _start_reading_batches(
    client: BlockingClient, topic: str, partition: int, start: int, stop: int
) -> FetchProgress[StoredBatch]:
    topic_id = client.wait_for_topic(topic).topic_id
    isolation = ISOLATION_LEVELS[READ_UNCOMMITTED]
    return FetchProgress(topic, topic_id, isolation, {partition: start}, {partition: stop}, _to_stored_batches)


def _to_stored_batches(
    topic: str, data: FetchResponsePartitionData, start: int, stop: int
) -> Iterator[tuple[StoredBatch, int]]:
    """Yield the batches that overlap the range. A `ChunkDecoder`.

    The first batch may begin before `start`, because brokers send whole batches.
    """
    for batch in iterate_stored_batches(get_records(data)):
        if batch.header.last_offset >= start and batch.header.base_offset < stop:
            yield batch, batch.header.last_offset + 1


def _build_next_fetch(
    client: BlockingClient, progress: FetchProgress[ChunkT], max_wait_ms: int = MAX_FETCH_WAIT_MS
) -> Fetch:
    """Build one round's fetch, for all pending partitions that have a leader.

    Raise BrokerError if the topic was deleted, even if it has been recreated.
    """
    topic = progress.topic
    client.wait_for_topic(topic)  # raises if the topic was deleted
    if client.metadata.snapshot.topic_id(topic) not in (None, progress.topic_id):
        # The positions are offsets in the deleted topic, so they mean nothing in the new one.
        context = f"{format_partition(topic)} was deleted and recreated while it was being read"
        raise build_broker_error(error_codes.UNKNOWN_TOPIC_ID, context)
    leaders = {partition: client.find_leader(topic, partition) for partition in progress.pending_partitions}
    fetchable_partitions = [partition for partition, leader in leaders.items() if leader is not None]
    # All responses of a round are in memory at the same time, so the leaders share the limit.
    leader_count = len({leader for leader in leaders.values() if leader is not None})
    max_bytes_per_leader = MAX_FETCH_BYTES // max(1, leader_count)
    return progress.build_fetch(fetchable_partitions, max_wait_ms, max_bytes_per_leader)


def _send_fetch(client: BlockingClient, fetch: Fetch) -> Call[FetchResponse]:
    """Send the fetch to each leader. It is not retried, because the next round may fetch from other offsets."""
    return client.begin([fetch], should_retry=False)


def _wait_for_fetch(client: BlockingClient, call: Call[FetchResponse]) -> NetworkError | BrokerError | None:
    """Wait for all responses. Return the first network or broker error, which may be temporary, or None."""
    try:
        client.finish(call, timeout_ms=float("inf"))
    except (NetworkError, BrokerError) as error:
        return error
    return None
