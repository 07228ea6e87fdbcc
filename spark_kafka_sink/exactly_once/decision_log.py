"""DecisionLog: reads what is decided under a prefix, in the partition of the log that has the prefix's entries.

Everybody who writes exactly once may write to this topic, so a record is believed only as the word of the prefix's own
driver. The batch that a record came in names the producer id. Brokers give the producer ids of `<prefix>-driver`,
`<prefix>-driver-2` and so on to those who have the right to these transactional ids, and take a transactional batch of
such a producer id from no one else.

    written outside of a transaction                         never counts
    in a batch that cannot be decoded                        does not count; of the prefix's driver it is an error
    by the producer id of one of the driver's ids            counts. Of several ids that with the greatest number has
                                                             written the entry: the last record under an id names the
                                                             next one, and nothing is written under an id after that
    by another one, while a driver's record is there         does not count
    by another one, and no driver's record is there          the newest counts, unless the producer id is that of
                                                             another transactional id, or brokers say that the driver
                                                             has records: they forget an id after a week. It may also
                                                             be a stranger's whose ids this user may not see: it stops
                                                             what speaks against it, but no batch is passed over
                                                             because of it

A claim is written by a driver that was not sure to have the last word (query_transactions.py). It names the offset of
the newest record of its prefix that its driver had read, and counts only if no record that counts is newer than that
one. A driver may have read too little, from a stale leader of the partition. Its claim does not count.

Claims have a key of their own. With the key of the decisions, compaction would keep a claim that does not count as the
only record of its prefix, and the decision before it would be lost. Of several claims compaction keeps the newest. It
may be one that missed another claim, but no decision: then it counts for who reads the compacted log, and does not for
a process that has read the other claim before. The next claim counts for both, since its driver has read the newest
record, whether that one counts or not.

The topic is read to its very end, also past transactions of others that are open: which of the transactions of a
producer were committed is seen by their markers. A driver that has fenced all others of its id finds none of its own
open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.client.cluster import NO_TOPIC_ID
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import BrokerError, DecodeError
from spark_kafka_sink.exactly_once import refusals
from spark_kafka_sink.exactly_once.driver_ids import DriverIds
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.entry_json import decoded, followed_offset, stated_driver_number
from spark_kafka_sink.exactly_once.job_names import is_job_prefix
from spark_kafka_sink.exactly_once.log_topic import DEFAULT_REPLICATION, LogTopic, partition_of
from spark_kafka_sink.exactly_once.transaction_names import FIRST_DRIVER, claim_key, split_key
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.fetch import FetchResponse
from spark_kafka_sink.reader.fetched import StoredBatch, is_abort_marker
from spark_kafka_sink.reader.reader import READ_UNCOMMITTED, TopicReader
from spark_kafka_sink.records.decoder import DecodedBatch
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.pending import Call

_log = logging.getLogger(__name__)

_PLACES_MAX = 64
_WARNED_MAX = _CHECKED_MAX = 1000


@dataclass(frozen=True)
class Record:
    """`value`: None for a tombstone: the prefix needs no entry any more."""

    offset: int
    written_by: ProducerIdAndEpoch
    value: bytes | None
    is_claim: bool = False
    last_read: int = -1
    """Offset of the newest record after this one by the same producer, which does not count; -1 if there is none."""

    @cached_property
    def driver_number(self) -> int | None:
        """The driver's transactional id that follows this record, as the record says; None if it cannot be read."""
        return None if self.value is None else stated_driver_number(self.value)


@dataclass
class _Progress:
    """What was read of one partition, of one prefix or of all, and where to go on."""

    next_offset: int
    newest: dict[bytes, dict[int, Record]] = field(default_factory=dict)
    """Prefix -> producer id -> what its committed transactions wrote last that counts."""
    plain: dict[bytes, Record] = field(default_factory=dict)
    """Prefix -> what was written last outside of a transaction."""
    open: dict[int, list[tuple[bytes, Record]]] = field(default_factory=dict)
    """Producer id -> what it wrote in a transaction without a marker so far."""
    unreadable: dict[int, tuple[Record, DecodeError]] = field(default_factory=dict)
    """Producer id -> the first record of its last batch that cannot be decoded, and why. What was written outside of a
    transaction is that of NO_PRODUCER_ID: there anybody may have put any id into the batch."""

    def take(self, stored: StoredBatch, key: bytes | None) -> None:
        header = stored.header
        try:
            batch = stored.decode()
        except DecodeError as error:  # brokers take what is a thousand times as large when it is unpacked
            written_by = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
            by = header.producer_id if header.is_transactional else NO_PRODUCER_ID.producer_id
            self.unreadable[by] = Record(header.base_offset, written_by, None), error
            return
        if header.is_control:
            if batch.columns.num_rows:
                self._end(header.producer_id, aborted=is_abort_marker(batch))
            return
        for row_key, record in _records(batch, key):
            prefix, is_claim = split_key(row_key)
            if is_claim and record.value is None:
                continue
            record = replace(record, is_claim=is_claim)
            if header.is_transactional:
                self.open.setdefault(header.producer_id, []).append((prefix, record))
            else:
                self.plain[prefix] = record

    def _end(self, producer_id: int, *, aborted: bool) -> None:
        written = self.open.pop(producer_id, ())
        for prefix, record in written if not aborted else ():
            newest = self.newest.setdefault(prefix, {})
            before = newest.get(producer_id)
            if before is None or _counts(record, before):
                newest[producer_id] = record
            else:
                newest[producer_id] = replace(before, last_read=record.offset)


def _counts(record: Record, before: Record) -> bool:
    """Return whether a record counts. `before`: the newest record of its producer that counts.

    A claim that cannot be read counts: a newer version has written it, and who reads the prefix gets an error.
    """
    if not record.is_claim or record.value is None or before.value is None:
        return True
    follows = followed_offset(record.value)
    return follows is None or before.offset <= follows


_progress: dict[tuple[object, ...], _Progress] = {}
"""By brokers, topic, its id, partition and key: of this process, which plans one micro-batch after the other."""
_checked: set[tuple[object, ...]] = set()
"""By brokers and topic: the logs that this process has checked."""
_warned: set[tuple[object, ...]] = set()
"""Brokers and place of the records that this process has warned of."""


class DecisionLog:
    """Reads. What this process has read before is not read again, unless brokers give topics no ids: then the topic may
    have been deleted and created again."""

    def __init__(self, config: ClientConfig, topic: str, client: BlockingClient) -> None:
        self.topic = topic
        self._brokers = config.bootstrap_servers
        self._client = client
        self._log_topic = LogTopic(client, topic)
        self._places_read: set[tuple[object, ...]] = set()
        self._reader = TopicReader(config, client=client, isolation=READ_UNCOMMITTED)

    def ask_ahead(self) -> None:
        """Ask whether the topic is there, and do not wait: `create_if_missing` takes the answer."""
        self._log_topic.ask_ahead()

    def create_if_missing(self, replication: int = DEFAULT_REPLICATION) -> None:
        """BrokerError if it is missing and may not be created, PreflightError if it is there and not compacted."""
        self._log_topic.create_if_missing(replication)
        if (self._brokers, self.topic) not in _checked:
            self._log_topic.check()
            if len(_checked) >= _CHECKED_MAX:
                _checked.clear()
            _checked.add((self._brokers, self.topic))

    def exists(self) -> bool:
        return self._log_topic.exists()

    def partition(self, prefix: str) -> int:
        return partition_of(prefix, len(self._client.topic(self.topic).partitions))

    def entry(self, ids: DriverIds) -> Entry | None:
        """The newest entry of the prefix that counts. None if there is none.

        `ids`: those of the prefix's driver, with at least one that was described. Others are described as far as that
        decides what counts.
        """
        partition = self.partition(ids.prefix)
        return self._believed(partition, self._read(partition, ids.prefix.encode()), ids)

    def entries(
        self, driver_ids: Callable[[Mapping[str, Collection[int]]], Mapping[str, DriverIds]]
    ) -> dict[str, Entry]:
        """The newest entry that counts of each prefix, for people: what cannot be read is left out with a warning.

        `driver_ids`: the drivers' ids of these prefixes, of which those with these numbers are described. A prefix that
        is missing in it is missing in the result.
        """
        read = [(index, self._read(index, None)) for index in self._reader.partitions(self.topic)]
        known = driver_ids(
            {
                key.decode("utf-8", "replace"): {FIRST_DRIVER, *_numbers(newest.values())}
                for _, progress in read
                for key, newest in progress.newest.items()
            }
        )
        found: dict[str, Entry] = {}
        for partition, progress in read:
            for prefix in (key.decode("utf-8", "replace") for key in progress.newest):
                if prefix not in known:
                    continue
                try:
                    entry = self._believed(partition, progress, known[prefix])
                except DecodeError as error:
                    _log.warning("%s", error)
                    continue
                if entry is not None:
                    found[prefix] = entry
        return found

    # --- parts

    def _read(self, partition: int, key: bytes | None) -> _Progress:
        topic_id = self._client.topic(self.topic).topic_id
        place = (self._brokers, self.topic, topic_id, partition, key)
        progress = _progress.pop(place, None)
        ahead = None
        is_first = place not in self._places_read
        if progress is not None and is_first:
            # The batch before was decided a moment ago: it is fetched while the broker says where the end is.
            ahead = self._reader.fetch_ahead(self.topic, partition, progress.next_offset)
        self._places_read.add(place)
        end = self._end(partition)
        if progress is None or progress.next_offset > end or topic_id == NO_TOPIC_ID:
            if ahead is not None:
                self._reader.abandon(ahead)
            progress, ahead = self._from_beginning(partition), None
        try:
            self._read_on(progress, partition, key, end, ahead)
        except BrokerError as error:
            if error.code != error_codes.OFFSET_OUT_OF_RANGE:
                raise
            # Records that were not read yet were deleted. What was read before them may not be the newest any more, and
            # what was made of it must not be mixed with what is there now.
            if not is_first:
                raise refusals.log_deleted(self.topic, partition) from error
            progress = self._from_beginning(partition)
            self._read_on(progress, partition, key, self._end(partition))
        if len(_progress) >= _PLACES_MAX:
            _progress.clear()
        _progress[place] = progress
        return progress

    def _end(self, partition: int) -> int:
        return self._reader.end_offsets(self.topic, [partition])[partition]

    def _from_beginning(self, partition: int) -> _Progress:
        return _Progress(self._reader.beginning_offsets(self.topic, [partition])[partition])

    def _read_on(
        self,
        progress: _Progress,
        partition: int,
        key: bytes | None,
        end: int,
        ahead: Call[FetchResponse] | None = None,
    ) -> None:
        for batch in self._reader.stored(self.topic, partition, start=progress.next_offset, stop=end, ahead=ahead):
            progress.take(batch, key)
        progress.next_offset = end

    def _believed(self, partition: int, progress: _Progress, ids: DriverIds) -> Entry | None:
        prefix = ids.prefix
        key = prefix.encode()
        newest = progress.newest.get(key, {})
        record, owners = _of_driver(newest.values(), ids), dict[int, str]()
        if record is None and _may_have_numbered_ids(newest, ids):
            owners |= ids.describe_listed()
            record = _of_driver(newest.values(), ids)
        is_own = record is not None
        if record is None and not ids.has_records:
            record = self._of_forgotten_id(prefix, partition, newest.values(), owners)
        strangers = [each for each in newest.values() if ids.number_of(each.written_by.producer_id) is None]
        for stranger in (*strangers, progress.plain.get(key)):
            if stranger is not None and stranger is not record and (record is None or stranger.offset > record.offset):
                self._warn(partition, stranger, f"it is not of the driver of the prefix {prefix}, and is passed over")
        for producer_id, (unread, why) in progress.unreadable.items():
            if ids.number_of(producer_id) is not None and (record is None or unread.offset > record.offset):
                raise refusals.unreadable_entry(self._place(partition, unread), prefix, why) from why
            self._warn(partition, unread, f"it cannot be read ({why}), and is passed over")
        if record is None or record.value is None:
            return None
        try:
            last_read = max(record.offset, record.last_read)
            entry = replace(decoded(key, record.value), written_by=record.written_by, offset=last_read)
        except DecodeError as error:
            raise refusals.unreadable_entry(self._place(partition, record), prefix, error) from error
        return entry if is_own else entry.as_unproven()

    def _of_forgotten_id(
        self, prefix: str, partition: int, newest: Iterable[Record], owners: Mapping[int, str]
    ) -> Record | None:
        candidates = [record for record in newest if record.written_by.producer_id not in owners]
        if not candidates:
            return None
        record = max(candidates, key=lambda each: each.offset)
        self._warn(
            partition,
            record,
            f"it is the newest under the prefix {prefix}, of an earlier producer id of its driver "
            f"({record.written_by.producer_id}, which no transactional id has that this user may see). It counts, but "
            "no batch is passed over because of it",
        )
        return record

    def _warn(self, partition: int, record: Record, words: str) -> None:
        if len(_warned) >= _WARNED_MAX:
            _warned.clear()
        place = self._place(partition, record)
        if (self._brokers, place) not in _warned:
            _warned.add((self._brokers, place))
            _log.warning("%s: %s", place, words)

    def _place(self, partition: int, record: Record) -> str:
        return f"{format_partition(self.topic, partition)}, offset {record.offset}"


def _of_driver(newest: Iterable[Record], ids: DriverIds) -> Record | None:
    """Return the newest record of a prefix's driver. `newest`: the newest record of each producer.

    Only ids that could have written a newer record than those that are known are described.
    """
    found = _newest_of_driver(newest, ids)
    ids.describe_new(_numbers(each for each in newest if found is None or _rank(each, ids) > _rank(found, ids)))
    return _newest_of_driver(newest, ids)


def _newest_of_driver(newest: Iterable[Record], ids: DriverIds) -> Record | None:
    own = (record for record in newest if ids.number_of(record.written_by.producer_id) is not None)
    return max(own, key=lambda record: _rank(record, ids), default=None)


def _rank(record: Record, ids: DriverIds) -> tuple[int, int]:
    number = record.driver_number or ids.number_of(record.written_by.producer_id) or FIRST_DRIVER
    return number, record.offset


def _numbers(records: Iterable[Record]) -> set[int]:
    """Return the numbers of the driver's ids that may have written these records: the one that a record names, or the
    one before it."""
    return {number for each in records if each.driver_number for number in (each.driver_number, each.driver_number - 1)}


def _may_have_numbered_ids(newest: Mapping[int, Record], ids: DriverIds) -> bool:
    """Return whether brokers may know ids of a driver that the log has no record of: the first one was used up, and
    brokers have forgotten it since. A job without a name writes one batch."""
    return bool(newest) or not (ids.is_known(FIRST_DRIVER) or is_job_prefix(ids.prefix))


def _records(batch: DecodedBatch, key: bytes | None) -> Iterator[tuple[bytes, Record]]:
    """The rows about the prefix with this key, claims included; about any prefix, where it is None."""
    columns, header = batch.columns, batch.header
    written_by = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
    keys = columns.column("key")
    wanted = keys.is_valid() if key is None else pc.is_in(keys, pa.array([key, claim_key(key.decode())], keys.type))
    rows = columns.filter(wanted)
    for row_key, value, offset in zip(
        *(rows.column(name).to_pylist() for name in ("key", "value", "offset")), strict=True
    ):
        yield row_key, Record(offset, written_by, value)
