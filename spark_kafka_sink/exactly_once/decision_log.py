"""DecisionLog: finds the current state of a query or job in the decision log, a compacted Kafka topic.

A query or job is known by its prefix, the name with which all of its transactional ids begin. There are two main kinds
of records about it: a decision lists the transactions of a batch that must be committed, and a claim names the query's
current driver. Each record contains the whole state of the query or job, which is called the entry. So a reader needs
only one record, but it has to find out which one is valid.

Anyone who uses exactly-once delivery may write to this topic, so a record is trusted only if the prefix's own driver
wrote it. The driver writes under a driver id: the transactional id `<prefix>-driver`, later `<prefix>-driver-2` and so
on. The proof is the producer id in the header of each record batch: brokers give the producer id of a driver id only to
users who may use that transactional id, and accept transactional batches with this producer id from nobody else.

    a record of the prefix was written by    the reader
    -------------------------------------    ---------------------------------------------------------------------------
    the prefix's driver                      Takes the newest such record as the entry. A record of a later driver id is
                                             newer: the last record under an id names the next one, and nothing valid
                                             is written under the old id after that.
    the driver, but it cannot be decoded     Raises an error, unless the driver has written a newer record.
    someone else, in a batch that cannot     Ignores it.
    be decoded
    anyone, outside of a transaction         Ignores it.
    someone else, and the log also has a     Ignores it.
    record of the prefix's driver
    someone else, and the log has no         Takes the newest such record as an unproven entry. An earlier driver may
    record of the prefix's driver            have written it, because brokers forget an id after a week. So may another
                                             user, whose ids this user may not see. An unproven entry stops a batch that
                                             contradicts it, but never causes a batch to be skipped. The record is
                                             ignored if its producer id belongs to another transactional id, or if
                                             brokers report that the driver has written records.

A claim must also meet another condition. A driver writes a claim when another driver may have written since its last
read (query_transactions.py). The claim contains the offset of the prefix's newest record that the driver had read. It
is valid only if there is no valid record between that offset and the claim. So a driver that missed a record, because
it read from a stale partition leader, writes an invalid claim.

Claims have a record key of their own, because compaction keeps only the newest record of each key. Under a common key,
it could keep an invalid claim and delete the decision before it. With two keys, it keeps the newest decision and the
newest claim. Two processes may still disagree about a claim for a while:

    1. A driver misses an earlier claim, so its own claim is invalid.
    2. Compaction deletes the earlier claim.
    3. A process that has read the earlier claim rejects the newer one. A process that reads only the compacted log
       accepts it.
    4. The next driver writes a claim that contains the offset of the newest claim, whether that one is valid or not.
       Both processes accept it.

Unlike a read_committed consumer, the reader does not stop at an open transaction. It reads to the end of the
partition, and learns from the transaction markers which transactions were committed. A driver that has fenced all other
producers of its id finds no open transaction of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from spark_kafka_sink.client.cluster import NO_TOPIC_ID
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import BrokerError, DecodeError
from spark_kafka_sink.exactly_once import precommit_errors
from spark_kafka_sink.exactly_once.driver_ids import DriverIds
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.entry_json import decode_entry
from spark_kafka_sink.exactly_once.job_names import is_generated_job_prefix
from spark_kafka_sink.exactly_once.log_partition import LogPartitionState, LogRecord
from spark_kafka_sink.exactly_once.log_topic import DEFAULT_REPLICATION_FACTOR, LogTopic, partition_for
from spark_kafka_sink.exactly_once.transaction_names import FIRST_DRIVER_NUMBER
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.fetch import FetchResponse
from spark_kafka_sink.reader.fetch import ISOLATION_LEVELS, READ_UNCOMMITTED
from spark_kafka_sink.reader.fetch_loop import prefetch_stored_batches, read_stored_batches
from spark_kafka_sink.reader.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, list_offsets
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.engine import Call

_log = logging.getLogger(__name__)

_MAX_CACHED_PARTITIONS = 64
_MAX_CHECKED_TOPICS = 1000
_MAX_WARNED_RECORDS = 1000

# These are global, because one process plans many micro-batches in turn, each with a new DecisionLog. When one of them
# is full, it is emptied.
_partition_cache: dict[tuple[object, ...], LogPartitionState] = {}
"""The records read from each partition. The key is (brokers, topic, topic id, partition, encoded prefix)."""
_checked_topics: set[tuple[object, ...]] = set()
"""The logs whose configuration this process has checked, as (brokers, topic)."""
_warned_records: set[tuple[object, ...]] = set()
"""The records about which this process has logged a warning, as (brokers, position)."""


class _SelectedRecord(NamedTuple):
    """The record that contains a prefix's current entry."""

    record: LogRecord
    is_written_by_driver: bool
    """Whether the prefix's driver wrote the record. If not, it is not known who did, and the entry is unproven."""


class DecisionLog:
    """A reader of the decision log. Not thread-safe.

    Records that this process has already read are not read again, unless the brokers are too old to support topic ids.
    Without topic ids, a topic that was deleted and recreated looks the same as before, so everything is read again.
    """

    def __init__(self, config: ClientConfig, topic: str, client: BlockingClient) -> None:
        self.topic = topic
        self._brokers = config.bootstrap_servers
        self._client = client
        self._log_topic = LogTopic(client, topic)
        # The cache keys of the partitions that this object has read.
        self._partitions_read: set[tuple[object, ...]] = set()

    def prefetch_topic(self) -> None:
        """Request the topic's description without waiting for the response, which `create_if_missing` then uses."""
        self._log_topic.prefetch_topic()

    def create_if_missing(self, replication_factor: int = DEFAULT_REPLICATION_FACTOR) -> None:
        """Create the topic if it is missing, and check its configuration once per process.

        Raise BrokerError if the brokers reject the creation, and PreflightError if the topic is not compacted.
        """
        self._log_topic.create_if_missing(replication_factor)
        if (self._brokers, self.topic) not in _checked_topics:
            self._log_topic.check()
            if len(_checked_topics) >= _MAX_CHECKED_TOPICS:
                _checked_topics.clear()
            _checked_topics.add((self._brokers, self.topic))

    def exists(self) -> bool:
        return self._log_topic.exists()

    def partition_for(self, prefix: str) -> int:
        """Return the partition that contains the prefix's entry."""
        return partition_for(prefix, len(self._client.wait_for_topic(self.topic).partitions))

    def read_entry(self, driver_ids: DriverIds) -> Entry | None:
        """Read a prefix's newest valid entry. Return None if there is none, or if it was deleted.

        Raise DecodeError, with the record's position, if the newest record of the prefix's driver cannot be decoded.

        `driver_ids`: the transactional ids of the prefix's driver. At least one of them must have been described. This
        method describes others if a newer record may have been written under them.
        """
        partition = self.partition_for(driver_ids.prefix)
        partition_state = self._read_partition(partition, driver_ids.prefix.encode())
        return self._select_entry(partition, partition_state, driver_ids)

    def read_entries(
        self, describe_driver_ids: Callable[[Mapping[str, Collection[int]]], Mapping[str, DriverIds]]
    ) -> dict[str, Entry]:
        """Read the newest valid entry of each prefix, for display. Return the entries by prefix.

        Entries that cannot be decoded are logged and omitted.

        `describe_driver_ids`: maps the driver numbers of each prefix to the prefix's DriverIds, in which the driver ids
        with these numbers are described. If it omits a prefix, this method omits the prefix as well.
        """
        partitions = self._client.wait_for_topic(self.topic, refresh=True).partitions
        partition_states = {
            metadata.index: self._read_partition(metadata.index, encoded_prefix=None) for metadata in partitions
        }
        driver_ids_by_prefix = describe_driver_ids(_collect_driver_numbers(partition_states.values()))
        entries: dict[str, Entry] = {}
        for partition, partition_state in partition_states.items():
            for prefix in map(_decode_prefix, partition_state.newest_records):
                if prefix not in driver_ids_by_prefix:
                    continue
                try:
                    entry = self._select_entry(partition, partition_state, driver_ids_by_prefix[prefix])
                except DecodeError as error:
                    _log.warning("%s", error)
                    continue
                if entry is not None:
                    entries[prefix] = entry
        return entries

    # --- reading

    def _read_partition(self, partition: int, encoded_prefix: bytes | None) -> LogPartitionState:
        """Read a partition to its current end, and return what has been read so far, now or by an earlier call.

        Raise ExactlyOnceError if records have been deleted since this object last read the partition.

        `encoded_prefix`: the prefix whose records to keep; None to keep the records of all prefixes.
        """
        topic_id = self._client.wait_for_topic(self.topic).topic_id
        cache_key = (self._brokers, self.topic, topic_id, partition, encoded_prefix)
        partition_state = _partition_cache.pop(cache_key, None)  # put back only if the read succeeds
        fetch_call = None
        is_first_read = cache_key not in self._partitions_read
        if partition_state is not None and is_first_read:
            # There are probably new records, because the previous batch was decided a moment ago. Fetch them while the
            # broker looks up the end offset, to save a round trip.
            fetch_call = prefetch_stored_batches(self._client, self.topic, partition, partition_state.next_offset)
        self._partitions_read.add(cache_key)
        end_offset = self._fetch_end_offset(partition)
        # Read from the beginning if nothing is cached, if the log was truncated, or if there is no topic id, because
        # only a topic id shows whether the topic was recreated.
        if partition_state is None or partition_state.next_offset > end_offset or topic_id == NO_TOPIC_ID:
            if fetch_call is not None:
                self._client.abandon(fetch_call)
            partition_state, fetch_call = self._create_state(partition), None
        try:
            self._read_until(partition_state, partition, encoded_prefix, end_offset, fetch_call)
        except BrokerError as error:
            if error.code != error_codes.OFFSET_OUT_OF_RANGE:
                raise
            # Records were deleted before they were read. If the caller has an entry from an earlier read, it must not
            # act on that entry together with the current content of the log.
            if not is_first_read:
                raise precommit_errors.build_log_records_deleted_error(self.topic, partition) from error
            partition_state = self._create_state(partition)
            self._read_until(partition_state, partition, encoded_prefix, self._fetch_end_offset(partition))
        if len(_partition_cache) >= _MAX_CACHED_PARTITIONS:
            _partition_cache.clear()
        _partition_cache[cache_key] = partition_state
        return partition_state

    def _fetch_end_offset(self, partition: int) -> int:
        return self._look_up_offset(partition, LATEST_TIMESTAMP)

    def _create_state(self, partition: int) -> LogPartitionState:
        """Return a state without records, for reading the partition from its first offset."""
        return LogPartitionState(self._look_up_offset(partition, EARLIEST_TIMESTAMP))

    def _look_up_offset(self, partition: int, timestamp: int) -> int:
        # Records of open transactions must be read, too. With READ_COMMITTED, the end offset would precede them.
        isolation = ISOLATION_LEVELS[READ_UNCOMMITTED]
        return list_offsets(self._client, self.topic, [partition], timestamp, isolation)[partition]

    def _read_until(
        self,
        partition_state: LogPartitionState,
        partition: int,
        encoded_prefix: bytes | None,
        end_offset: int,
        fetch_call: Call[FetchResponse] | None = None,
    ) -> None:
        """Read all record batches before `end_offset`, and add them to the partition's state.

        `fetch_call`: a fetch request at the state's next offset that is already in flight; None if there is none.
        """
        for batch in read_stored_batches(
            self._client,
            self.topic,
            partition,
            start=partition_state.next_offset,
            stop=end_offset,
            fetch_call=fetch_call,
        ):
            partition_state.add_batch(batch, encoded_prefix)
        partition_state.next_offset = end_offset

    # --- selection of the entry

    def _select_entry(self, partition: int, partition_state: LogPartitionState, driver_ids: DriverIds) -> Entry | None:
        """Select a prefix's newest valid entry from a partition's records. Return None if there is none.

        Log a warning about each newer record that is ignored, and, for each producer, about the newest record batch
        that cannot be decoded. Raise DecodeError, with the record's position, if the newest record of the prefix's
        driver cannot be decoded.
        """
        encoded_prefix = driver_ids.prefix.encode()
        selected = self._select_record(partition, partition_state.newest_records.get(encoded_prefix, {}), driver_ids)
        selected_offset = -1 if selected is None else selected.record.offset
        self._warn_about_ignored_records(partition, partition_state, driver_ids, selected_offset)
        # Do this even if no record was selected, because a driver's batch that cannot be decoded may contain the entry.
        self._report_unreadable_records(partition, partition_state, driver_ids, selected_offset)
        if selected is None:
            return None
        record, is_written_by_driver = selected
        if record.value is None:  # the entry was deleted
            return None
        try:
            entry = decode_entry(encoded_prefix, record.value)
        except DecodeError as error:
            position = self._format_position(partition, record)
            raise precommit_errors.build_unreadable_entry_error(position, driver_ids.prefix, error) from error
        # The driver's next claim will contain this offset. It is the offset of the newest record, even if that record
        # is invalid: a process that reads only the compacted log may consider the record valid, and would then reject a
        # claim with an older offset.
        newest_offset = max(record.offset, record.last_invalid_offset)
        entry = replace(entry, writer_identity=record.writer_identity, offset=newest_offset)
        return entry if is_written_by_driver else entry.as_unproven()

    def _select_record(
        self, partition: int, newest_records: Mapping[int, LogRecord], driver_ids: DriverIds
    ) -> _SelectedRecord | None:
        """Select the record that contains a prefix's current entry. Return None if there is no valid record.

        `newest_records`: the prefix's newest record of each producer, by producer id.
        """
        ids_by_producer: Mapping[int, str] = {}
        records = newest_records.values()
        _describe_possible_writers(records, driver_ids)
        record = _find_newest_driver_record(records, driver_ids)
        # The driver may have written under an id that no record mentions, so look up all of the prefix's driver ids.
        if record is None and _may_have_other_driver_ids(newest_records, driver_ids):
            ids_by_producer = driver_ids.load_all_listed()
            record = _find_newest_driver_record(records, driver_ids)
        if record is not None:
            return _SelectedRecord(record, is_written_by_driver=True)
        # The brokers report that the driver has written records, but none was found, so they are lost. Returning
        # another producer's record would hide the loss.
        if driver_ids.has_written_records:
            return None
        record = self._find_record_of_forgotten_driver_id(driver_ids.prefix, partition, records, ids_by_producer)
        return None if record is None else _SelectedRecord(record, is_written_by_driver=False)

    def _warn_about_ignored_records(
        self, partition: int, partition_state: LogPartitionState, driver_ids: DriverIds, selected_offset: int
    ) -> None:
        """Log a warning about each record of the prefix after the selected one that the prefix's driver did not write.

        `selected_offset`: the offset of the record that contains the prefix's entry; -1 if there is none.
        """
        encoded_prefix = driver_ids.prefix.encode()
        foreign_records = [
            record
            for producer_id, record in partition_state.newest_records.get(encoded_prefix, {}).items()
            if driver_ids.find_driver_number(producer_id) is None
        ]
        for record in (*foreign_records, partition_state.non_transactional_records.get(encoded_prefix)):
            if record is not None and record.offset > selected_offset:
                self._warn_once(
                    partition,
                    record,
                    f"Ignored this record, because the driver of the prefix {driver_ids.prefix} did not write it",
                )

    def _report_unreadable_records(
        self, partition: int, partition_state: LogPartitionState, driver_ids: DriverIds, selected_offset: int
    ) -> None:
        """For each producer, log a warning about its newest record batch that cannot be decoded.

        Raise DecodeError if the prefix's driver wrote such a batch after the selected record, because the batch may
        contain a newer entry.
        """
        for producer_id, (record, error) in partition_state.unreadable_records.items():
            if driver_ids.find_driver_number(producer_id) is not None and record.offset > selected_offset:
                position = self._format_position(partition, record)
                raise precommit_errors.build_unreadable_entry_error(position, driver_ids.prefix, error) from error
            self._warn_once(partition, record, f"Ignored this record batch, because it cannot be read ({error})")

    def _find_record_of_forgotten_driver_id(
        self, prefix: str, partition: int, newest_records: Iterable[LogRecord], ids_by_producer: Mapping[int, str]
    ) -> LogRecord | None:
        """Return the newest record whose writer cannot be found out. Return None if there is none.

        An earlier driver may have written it under an id that brokers have since forgotten. Log a warning, because
        somebody else may have written it. Records whose producer id belongs to a listed transactional id are ignored,
        because their writers are known.

        `ids_by_producer`: all transactional ids that brokers list, by producer id.
        """
        candidates = [record for record in newest_records if record.writer_identity.producer_id not in ids_by_producer]
        if not candidates:
            return None
        record = max(candidates, key=lambda candidate: candidate.offset)
        self._warn_once(
            partition,
            record,
            f"This is the newest record of the prefix {prefix}. Its producer id ({record.writer_identity.producer_id}) "
            "belongs to no transactional id that this user may see, so an earlier driver or someone else may have "
            "written it. The record is used, but it does not cause any batch to be skipped",
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


def _decode_prefix(encoded_prefix: bytes) -> str:
    """Decode a record's key.

    Other programs may write to the topic, so the key may be invalid UTF-8. Its invalid bytes become replacement
    characters, which no prefix contains, so no entry is found for such a key.
    """
    return encoded_prefix.decode("utf-8", "replace")


def _collect_driver_numbers(partition_states: Iterable[LogPartitionState]) -> dict[str, set[int]]:
    """Return, for each prefix in the log, the numbers of the driver ids under which its records may be written."""
    return {
        _decode_prefix(encoded_prefix): {
            FIRST_DRIVER_NUMBER,
            *_find_candidate_driver_numbers(newest_records.values()),
        }
        for partition_state in partition_states
        for encoded_prefix, newest_records in partition_state.newest_records.items()
    }


def _describe_possible_writers(newest_records: Iterable[LogRecord], driver_ids: DriverIds) -> None:
    """Describe the driver ids that may have written a newer record than the driver ids described so far.

    `newest_records`: the prefix's newest record of each producer.
    """
    known_record = _find_newest_driver_record(newest_records, driver_ids)
    newer_candidates = (
        record
        for record in newest_records
        if known_record is None
        or _compute_precedence(record, driver_ids) > _compute_precedence(known_record, driver_ids)
    )
    driver_ids.load_missing(_find_candidate_driver_numbers(newer_candidates))


def _find_newest_driver_record(newest_records: Iterable[LogRecord], driver_ids: DriverIds) -> LogRecord | None:
    """Return the newest record that was written under a described driver id, or None if there is none.

    `newest_records`: the prefix's newest record of each producer.
    """
    own_records = (
        record
        for record in newest_records
        if driver_ids.find_driver_number(record.writer_identity.producer_id) is not None
    )
    return max(own_records, key=lambda record: _compute_precedence(record, driver_ids), default=None)


def _compute_precedence(record: LogRecord, driver_ids: DriverIds) -> tuple[int, int]:
    """Return a sort key, so that the newest record has the greatest key.

    The key is the number of the driver id that the record names as the current one, and then the record's offset. The
    last record under a driver id names the next one, so a greater number is newer. If the record names no driver id,
    the key contains the number of the driver id under which it was written.
    """
    number = (
        record.driver_number or driver_ids.find_driver_number(record.writer_identity.producer_id) or FIRST_DRIVER_NUMBER
    )
    return number, record.offset


def _find_candidate_driver_numbers(records: Iterable[LogRecord]) -> set[int]:
    """Return the numbers of the driver ids under which these records may have been written.

    A record is usually written under the driver id that it names as the current one. The last record under an id is the
    exception: it names the next one.
    """
    named_numbers = {record.driver_number for record in records if record.driver_number}
    return named_numbers | {number - 1 for number in named_numbers if number > FIRST_DRIVER_NUMBER}


def _may_have_other_driver_ids(newest_records: Mapping[int, LogRecord], driver_ids: DriverIds) -> bool:
    """Return whether the brokers may know driver ids of the prefix that no record in the log mentions.

    This is possible if the epochs of the first driver id were used up and the brokers have since forgotten that id. A
    job without a name writes only one batch, so it never uses a second driver id.
    """
    is_first_id_forgotten = not driver_ids.is_known(FIRST_DRIVER_NUMBER) and not is_generated_job_prefix(
        driver_ids.prefix
    )
    return bool(newest_records) or is_first_id_forgotten
