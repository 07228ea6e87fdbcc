"""TopicReader: reads the current contents of a topic as Arrow tables.

Each call reads up to the end offsets at the time of the call. Only `batches(follow=True)` keeps reading.

The reader is not a consumer: it has no group and commits no offsets. It is used by tests and the command line. All
work is done on the calling thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.option_parsing import LONG_MAX
from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import ConfigurationError, DataError, InvalidRecordError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.protocol.messages.fetch import FetchResponsePartitionData
from spark_kafka_sink.reader.fetch import ISOLATION_LEVELS, READ_COMMITTED
from spark_kafka_sink.reader.fetch_loop import FetchProgress, fetch_chunks
from spark_kafka_sink.reader.fetched import ROWS_SCHEMA, get_records, iterate_visible_rows
from spark_kafka_sink.reader.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, list_offsets
from spark_kafka_sink.requests.blocking import BlockingClient

MAX_READ_BYTES = 512 * 1024 * 1024
"""Default limit for `TopicReader.read`."""


class TopicReader:
    """Reads topics. Use it as a context manager.

    `isolation`: READ_COMMITTED or READ_UNCOMMITTED.
    `preserve_header_keys`: whether to return header keys that are not valid UTF-8 unchanged. The table then contains
    invalid strings.
    `timeout_ms`: how long a call may go without progress.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        isolation: str = READ_COMMITTED,
        preserve_header_keys: bool = False,
        timeout_ms: float = 60_000,
        system: System | None = None,
    ) -> None:
        if isolation not in ISOLATION_LEVELS:
            raise ConfigurationError(f"isolation must be one of {', '.join(ISOLATION_LEVELS)}, not {isolation!r}")
        self._isolation = ISOLATION_LEVELS[isolation]
        self._preserve_header_keys = preserve_header_keys
        self._client = BlockingClient(config, timeout_ms=timeout_ms, system=system)

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def partitions(self, topic: str) -> list[int]:
        """Return the numbers of a topic's partitions.

        Raise BrokerError if the topic does not exist or the user is not allowed to describe it.
        """
        return [partition.index for partition in self._client.wait_for_topic(topic, refresh=True).partitions]

    def beginning_offsets(self, topic: str, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """Return the first offset of each partition.

        `partitions`: None for all partitions of the topic.
        """
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

        `partitions`: None for all partitions of the topic.
        `start`: the first offset to read, by partition; defaults to the partition's current start.
        `stop`: the offset to stop before, by partition; defaults to the partition's current end.
        `follow`: ignore the current end offsets and keep yielding new rows as they are written.
        """
        selected_partitions = self._select_partitions(topic, partitions)
        current_end_offsets = (
            dict.fromkeys(selected_partitions, LONG_MAX)  # no offset reaches it, so reading never ends
            if follow
            else self._list_offsets(topic, selected_partitions, LATEST_TIMESTAMP)
        )
        end_offsets = {**current_end_offsets, **_filter_partitions(stop, selected_partitions)}
        positions = {
            **self._list_offsets(topic, selected_partitions, EARLIEST_TIMESTAMP),
            **_filter_partitions(start, selected_partitions),
        }
        topic_id = self._client.wait_for_topic(topic).topic_id
        progress = FetchProgress(topic, topic_id, self._isolation, positions, end_offsets, self._to_visible_rows)
        for rows in fetch_chunks(self._client, progress, follow=follow):
            if rows.num_rows:
                yield rows

    # --- helpers

    def _to_visible_rows(
        self, topic: str, data: FetchResponsePartitionData, start: int, stop: int
    ) -> Iterator[tuple[pa.Table, int]]:
        """Yield chunks of the rows that are visible at the isolation level. A `ChunkDecoder`."""
        is_read_committed = self._isolation == ISOLATION_LEVELS[READ_COMMITTED]
        for chunk in iterate_visible_rows(
            get_records(data),
            data.aborted_transactions if is_read_committed else None,
            topic=topic,
            partition=data.partition_index,
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
                f"{format_partition(topic)} has no partition {' or '.join(map(str, missing_partitions))}: it has "
                f"{len(existing_partitions)}, numbered from 0."
            )
        return selected_partitions

    def _list_offsets(self, topic: str, partitions: list[int], timestamp: int) -> dict[int, int]:
        return list_offsets(self._client, topic, partitions, timestamp, self._isolation)


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
