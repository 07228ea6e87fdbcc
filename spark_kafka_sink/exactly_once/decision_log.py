"""DecisionLog: reads a prefix's newest valid entry from its partition of the decision log.

Any producer that uses exactly-once delivery may write to this topic, so a record is trusted only if the prefix's own
driver wrote it. The header of a record batch contains a producer id. Brokers assign the producer ids of
`<prefix>-driver`, `<prefix>-driver-2` and so on only to users who may use these transactional ids, and accept
transactional batches with such a producer id from nobody else.

    written outside of a transaction         never valid
    in a batch that cannot be decoded        not valid; an error if the prefix's driver wrote it
    by the producer id of a driver id        valid. The entry is the record of the driver id with the greatest number,
                                             because the last record under a driver id names the next one, and nothing
                                             is written under an id after that
    by any other producer id, and the log    not valid
    has a record of the driver
    by any other producer id, and the log    the newest is valid, unless its producer id belongs to another
    has no record of the driver              transactional id, or brokers report that the driver has written records.
                                             An earlier driver may have written it, because brokers forget an id after
                                             a week. It may also come from another user, whose ids this user may not
                                             see. The entry is therefore unproven: it stops a batch that contradicts
                                             it, but never causes a batch to be skipped

A driver writes a claim when another driver may have written since its last read (query_transactions.py). A claim
contains the offset of its prefix's newest record that the driver had read, and is valid only if no valid record is
newer than that offset. If a driver read from a stale partition leader and missed a record, its claim is therefore not
valid.

Claims have their own record key. If they shared the key of decisions, compaction could keep an invalid claim as the
only record of its prefix, and delete the decision before it. With their own key, compaction keeps the newest claim and
the newest decision. The newest claim may have missed an earlier claim. It is then valid to a process that reads only
the compacted log, and invalid to a process that has read the missed claim. The next claim is valid to both, because its
driver has read the newest record, whether valid or not.

The reader reads the topic to its end, past the open transactions of other producers, and learns from the transaction
markers which transactions were committed. A driver that has fenced all other producers of its id finds no open
transaction of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from spark_kafka_sink.client.cluster import NO_TOPIC_ID
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import BrokerError, DecodeError
from spark_kafka_sink.exactly_once import precommit_errors
from spark_kafka_sink.exactly_once.driver_ids import DriverIds
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.entry_json import decode_entry
from spark_kafka_sink.exactly_once.job_names import is_job_prefix
from spark_kafka_sink.exactly_once.log_partition import LogPartitionState, LogRecord
from spark_kafka_sink.exactly_once.log_topic import DEFAULT_REPLICATION, LogTopic, partition_for
from spark_kafka_sink.exactly_once.transaction_names import FIRST_DRIVER_NUMBER
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.fetch import FetchResponse
from spark_kafka_sink.reader.fetch import ISOLATION_LEVELS, READ_UNCOMMITTED
from spark_kafka_sink.reader.fetch_loop import prefetch_stored_batches, read_stored_batches
from spark_kafka_sink.reader.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, list_offsets
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.pending import Call

_log = logging.getLogger(__name__)

_MAX_CACHED_PARTITIONS = 64
_MAX_WARNED_RECORDS = _MAX_CHECKED_TOPICS = 1000

_partition_cache: dict[tuple[object, ...], LogPartitionState] = {}
"""States by brokers, topic, topic id, partition and key, kept because this process plans many micro-batches in turn."""
_checked_topics: set[tuple[object, ...]] = set()
"""The logs whose configuration this process has checked, as (brokers, topic)."""
_warned_records: set[tuple[object, ...]] = set()
"""The records about which this process has logged a warning, as (brokers, position)."""


class DecisionLog:
    """Reads entries from one log topic. Not thread-safe.

    Records that this process has already read are not read again, unless the brokers are too old to support topic ids.
    Without ids, a topic that was deleted and recreated could not be recognized.
    """

    def __init__(self, config: ClientConfig, topic: str, client: BlockingClient) -> None:
        self.topic = topic
        self._brokers = config.bootstrap_servers
        self._client = client
        self._log_topic = LogTopic(client, topic)
        # The cache keys of the partitions that this object has read.
        self._partitions_read: set[tuple[object, ...]] = set()

    def prefetch_topic(self) -> None:
        """Request the topic's description without waiting for it. `create_if_missing` uses the response."""
        self._log_topic.prefetch_topic()

    def create_if_missing(self, replication: int = DEFAULT_REPLICATION) -> None:
        """Create the topic if it is missing, and check its configuration once per process.

        Raise BrokerError if the brokers reject the creation, and PreflightError if the topic is not compacted.
        """
        self._log_topic.create_if_missing(replication)
        if (self._brokers, self.topic) not in _checked_topics:
            self._log_topic.check()
            if len(_checked_topics) >= _MAX_CHECKED_TOPICS:
                _checked_topics.clear()
            _checked_topics.add((self._brokers, self.topic))

    def exists(self) -> bool:
        return self._log_topic.exists()

    def partition_for(self, prefix: str) -> int:
        return partition_for(prefix, len(self._client.wait_for_topic(self.topic).partitions))

    def read_entry(self, ids: DriverIds) -> Entry | None:
        """Read the newest valid entry of a prefix. Return None if there is none.

        `ids`: the prefix's driver ids, at least one of which has been described. Further ids are described if the
        result depends on them.

        Raise DecodeError if the driver's newest record cannot be decoded.
        """
        partition = self.partition_for(ids.prefix)
        return self._select_entry(partition, self._read_partition(partition, ids.prefix.encode()), ids)

    def read_entries(
        self, describe_driver_ids: Callable[[Mapping[str, Collection[int]]], Mapping[str, DriverIds]]
    ) -> dict[str, Entry]:
        """Read the newest valid entry of every prefix, for display.

        Entries that cannot be decoded are logged and omitted.

        `describe_driver_ids`: describes the driver ids with the given numbers of each prefix. Prefixes that are missing
        from its result are also omitted here.
        """
        partitions = self._client.wait_for_topic(self.topic, refresh=True).partitions
        partition_states = [(metadata.index, self._read_partition(metadata.index, key=None)) for metadata in partitions]
        # A key need not be valid UTF-8, because other programs may write to the topic.
        numbers_by_prefix = {
            key.decode("utf-8", "replace"): {
                FIRST_DRIVER_NUMBER,
                *_find_candidate_driver_numbers(newest_records.values()),
            }
            for _, partition_state in partition_states
            for key, newest_records in partition_state.newest_records.items()
        }
        ids_by_prefix = describe_driver_ids(numbers_by_prefix)
        entries: dict[str, Entry] = {}
        for partition, partition_state in partition_states:
            for prefix in (key.decode("utf-8", "replace") for key in partition_state.newest_records):
                if prefix not in ids_by_prefix:
                    continue
                try:
                    entry = self._select_entry(partition, partition_state, ids_by_prefix[prefix])
                except DecodeError as error:
                    _log.warning("%s", error)
                    continue
                if entry is not None:
                    entries[prefix] = entry
        return entries

    # --- reading

    def _read_partition(self, partition: int, key: bytes | None) -> LogPartitionState:
        """Read a partition to its current end, starting where the cached state ends, and return its state.

        Only records for the prefix with this key are kept, or all records if the key is None. Raise ExactlyOnceError if
        records have been deleted since this object last read the partition.
        """
        topic_id = self._client.wait_for_topic(self.topic).topic_id
        cache_key = (self._brokers, self.topic, topic_id, partition, key)
        state = _partition_cache.pop(cache_key, None)  # removed, so that a failed read leaves no partial state
        fetch_call = None
        is_first_read = cache_key not in self._partitions_read
        if state is not None and is_first_read:
            # The previous batch was probably decided a moment ago, so fetch its records while the broker looks up the
            # end offset.
            fetch_call = prefetch_stored_batches(self._client, self.topic, partition, state.next_offset)
        self._partitions_read.add(cache_key)
        end_offset = self._fetch_end_offset(partition)
        # Start over if nothing is cached, if the log was truncated, or if it may have been recreated (no topic ids).
        if state is None or state.next_offset > end_offset or topic_id == NO_TOPIC_ID:
            if fetch_call is not None:
                self._client.abandon(fetch_call)
            state, fetch_call = self._create_state(partition), None
        try:
            self._read_until(state, partition, key, end_offset, fetch_call)
        except BrokerError as error:
            if error.code != error_codes.OFFSET_OUT_OF_RANGE:
                raise
            # Records were deleted before they were read, so the records read so far may not be the newest. A result of
            # an earlier read must not be combined with the current content of the log.
            if not is_first_read:
                raise precommit_errors.build_log_records_deleted_error(self.topic, partition) from error
            state = self._create_state(partition)
            self._read_until(state, partition, key, self._fetch_end_offset(partition))
        if len(_partition_cache) >= _MAX_CACHED_PARTITIONS:
            _partition_cache.clear()
        _partition_cache[cache_key] = state
        return state

    def _fetch_end_offset(self, partition: int) -> int:
        return self._look_up_offset(partition, LATEST_TIMESTAMP)

    def _create_state(self, partition: int) -> LogPartitionState:
        return LogPartitionState(self._look_up_offset(partition, EARLIEST_TIMESTAMP))

    def _look_up_offset(self, partition: int, timestamp: int) -> int:
        isolation = ISOLATION_LEVELS[READ_UNCOMMITTED]
        return list_offsets(self._client, self.topic, [partition], timestamp, isolation)[partition]

    def _read_until(
        self,
        state: LogPartitionState,
        partition: int,
        key: bytes | None,
        end_offset: int,
        fetch_call: Call[FetchResponse] | None = None,
    ) -> None:
        """Add all batches before `end_offset` to the state. `fetch_call`: a fetch in flight from the state's offset."""
        for batch in read_stored_batches(
            self._client, self.topic, partition, start=state.next_offset, stop=end_offset, fetch_call=fetch_call
        ):
            state.add_batch(batch, key)
        state.next_offset = end_offset

    # --- selection of the entry

    def _select_entry(self, partition: int, state: LogPartitionState, ids: DriverIds) -> Entry | None:
        """Return the valid entry by the rules in the module's docstring; None if there is none or it was deleted.

        Log a warning about each newer record that is ignored, and about each batch that cannot be decoded. Raise
        DecodeError if the driver's newest record cannot be decoded.
        """
        key = ids.prefix.encode()
        record, is_written_by_driver = self._select_record(partition, state.newest_records.get(key, {}), ids)
        selected_offset = -1 if record is None else record.offset
        self._warn_about_ignored_records(partition, state, ids, selected_offset)
        self._check_unreadable_records(partition, state, ids, selected_offset)
        if record is None or record.value is None:
            return None
        try:
            entry = decode_entry(key, record.value)
        except DecodeError as error:
            position = self._format_position(partition, record)
            raise precommit_errors.build_unreadable_entry_error(position, ids.prefix, error) from error
        # The next claim must follow this producer's newest record, even if that record is invalid.
        newest_offset = max(record.offset, record.last_invalid_offset)
        entry = replace(entry, writer_identity=record.writer_identity, offset=newest_offset)
        return entry if is_written_by_driver else entry.as_unproven()

    def _select_record(
        self, partition: int, newest_records: Mapping[int, LogRecord], ids: DriverIds
    ) -> tuple[LogRecord | None, bool]:
        """Return the record with the prefix's entry, and whether the prefix's driver wrote it.

        `newest_records`: the prefix's newest record of each producer, by producer id.
        """
        ids_by_producer: Mapping[int, str] = {}
        record = _find_driver_record(newest_records.values(), ids)
        # The records may be under driver ids that no record names, so look up all of the prefix's ids.
        if record is None and _may_have_other_driver_ids(newest_records, ids):
            ids_by_producer = ids.describe_all_listed()
            record = _find_driver_record(newest_records.values(), ids)
        if record is not None:
            return record, True
        # If the brokers report that the driver has written, its records are lost, and no other record may replace them.
        if ids.has_written_records:
            return None, False
        return self._find_forgotten_id_record(ids.prefix, partition, newest_records.values(), ids_by_producer), False

    def _warn_about_ignored_records(
        self, partition: int, state: LogPartitionState, ids: DriverIds, selected_offset: int
    ) -> None:
        """Log a warning about each record of the prefix that the driver did not write and that follows the entry."""
        key = ids.prefix.encode()
        foreign_records = [
            record
            for producer_id, record in state.newest_records.get(key, {}).items()
            if ids.find_number(producer_id) is None
        ]
        for record in (*foreign_records, state.non_transactional_records.get(key)):
            if record is not None and record.offset > selected_offset:
                self._warn_once(
                    partition, record, f"The driver of the prefix {ids.prefix} did not write it, so it is ignored"
                )

    def _check_unreadable_records(
        self, partition: int, state: LogPartitionState, ids: DriverIds, selected_offset: int
    ) -> None:
        """Log a warning about each batch that cannot be decoded. Raise DecodeError if it may replace the entry."""
        for producer_id, (record, error) in state.unreadable_records.items():
            if ids.find_number(producer_id) is not None and record.offset > selected_offset:
                position = self._format_position(partition, record)
                raise precommit_errors.build_unreadable_entry_error(position, ids.prefix, error) from error
            self._warn_once(partition, record, f"It cannot be read ({error}), so it is ignored")

    def _find_forgotten_id_record(
        self, prefix: str, partition: int, newest_records: Iterable[LogRecord], ids_by_producer: Mapping[int, str]
    ) -> LogRecord | None:
        """Return the newest record whose producer id belongs to none of the listed transactional ids, or None.

        Log a warning, because it is not known who wrote the record.
        """
        candidates = [record for record in newest_records if record.writer_identity.producer_id not in ids_by_producer]
        if not candidates:
            return None
        record = max(candidates, key=lambda candidate: candidate.offset)
        self._warn_once(
            partition,
            record,
            f"It is the newest record of the prefix {prefix}, by an earlier producer id of its driver "
            f"({record.writer_identity.producer_id}, which belongs to no transactional id that this user may see). "
            "It is used, but it does not cause any batch to be skipped",
        )
        return record

    def _warn_once(self, partition: int, record: LogRecord, message: str) -> None:
        """Log a warning about a record, once per process."""
        if len(_warned_records) >= _MAX_WARNED_RECORDS:
            _warned_records.clear()
        position = self._format_position(partition, record)
        if (self._brokers, position) not in _warned_records:
            _warned_records.add((self._brokers, position))
            _log.warning("%s: %s", position, message)

    def _format_position(self, partition: int, record: LogRecord) -> str:
        return f"{format_partition(self.topic, partition)}, offset {record.offset}"


def _find_driver_record(newest_records: Iterable[LogRecord], ids: DriverIds) -> LogRecord | None:
    """Return the newest record written under one of the prefix's driver ids, or None.

    A driver id is described only if it may have written a newer record than the ids described so far.

    `newest_records`: the newest record of each producer.
    """
    known_record = _find_newest_driver_record(newest_records, ids)
    newer_candidates = (
        record
        for record in newest_records
        if known_record is None or _compute_precedence(record, ids) > _compute_precedence(known_record, ids)
    )
    ids.describe_missing(_find_candidate_driver_numbers(newer_candidates))
    return _find_newest_driver_record(newest_records, ids)


def _find_newest_driver_record(newest_records: Iterable[LogRecord], ids: DriverIds) -> LogRecord | None:
    """Return the newest record under the driver ids that have been described so far, or None."""
    own_records = (
        record for record in newest_records if ids.find_number(record.writer_identity.producer_id) is not None
    )
    return max(own_records, key=lambda record: _compute_precedence(record, ids), default=None)


def _compute_precedence(record: LogRecord, ids: DriverIds) -> tuple[int, int]:
    """Return the sort key of a record: the driver number that it names as current, then its offset.

    A record that names no number counts with the number of the driver id that wrote it.
    """
    number = record.driver_number or ids.find_number(record.writer_identity.producer_id) or FIRST_DRIVER_NUMBER
    return number, record.offset


def _find_candidate_driver_numbers(records: Iterable[LogRecord]) -> set[int]:
    """Return the numbers of the driver ids under which these records may have been written.

    A record was written either under the driver id that it names or under the one before it, if there is one.
    """
    named_numbers = {record.driver_number for record in records if record.driver_number}
    return named_numbers | {number - 1 for number in named_numbers if number > FIRST_DRIVER_NUMBER}


def _may_have_other_driver_ids(newest_records: Mapping[int, LogRecord], ids: DriverIds) -> bool:
    """Return whether the brokers may know driver ids that have no record in the log.

    This happens if the first driver id ran out of epochs and the brokers have since forgotten it. A job without a name
    writes only one batch, so it never uses a second driver id.
    """
    is_first_id_forgotten = not ids.is_known(FIRST_DRIVER_NUMBER) and not is_job_prefix(ids.prefix)
    return bool(newest_records) or is_first_id_forgotten
