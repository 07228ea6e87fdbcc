"""DecisionLog: reads what is decided under a prefix, in the partition of the log that has the prefix's entries.

Everybody who writes exactly once may write to this topic, so a record is believed only as the word of the prefix's own
driver. The batch that a record came in names the producer id. Brokers give the producer id of `<prefix>-driver` to
those who have the right to that transactional id, and take a transactional batch of it from no one else.

    written outside of a transaction                         never counts
    in a batch that cannot be decoded                        does not count; of the prefix's driver it is an error
    by the producer id that `<prefix>-driver` has now        counts; the newest one is the entry
    by another one, while that has written something         does not count
    by another one, and `<prefix>-driver` has written        the newest counts, unless the producer id is that of
    nothing under the producer id that it has now            another transactional id: brokers forget an id after a
                                                             week, and give a new one when the epochs are used up.
                                                             Of an id with a claim only the latter can be, so the
                                                             epoch must be a late one. It may also be a stranger's
                                                             whose ids this user may not see: it stops what speaks
                                                             against it, but no batch is passed over because of it

A transaction of two records is one of a driver that was not sure to have the last word (query_transactions.py). The
first says what it had found, the second what is to come after that. It counts only if what it had found is what stands
before it in the log. A driver may have read too little, from a broker that did not know yet that it leads the partition
no more. What such a driver writes counts for no reader of the log.

The topic is read to its very end, also past transactions of others that are open: which of the transactions of a
producer were committed is seen by their markers. A driver that has fenced all others of its id finds none of its own
open.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow.compute as pc

from spark_kafka_sink.client.cluster import NO_TOPIC_ID
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import BrokerError, DecodeError
from spark_kafka_sink.exactly_once import refusals
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.entry_json import decoded
from spark_kafka_sink.exactly_once.log_topic import DEFAULT_REPLICATION, LogTopic, partition_of
from spark_kafka_sink.exactly_once.timeout_marks import says_claimed
from spark_kafka_sink.producer.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.producer.transactions.transaction_description import TransactionDescription
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.reader.blocking_client import Asked, BlockingClient
from spark_kafka_sink.reader.fetched import StoredBatch, is_abort_marker
from spark_kafka_sink.reader.reader import READ_UNCOMMITTED, TopicReader
from spark_kafka_sink.records.decoder import DecodedBatch
from spark_kafka_sink.words import placed

_log = logging.getLogger(__name__)

_PLACES_MAX = 64
_WARNED_MAX = _CHECKED_MAX = 1000
_LATE_EPOCH = 30_000
"""Of 32,766 epochs. A driver may begin several times without writing anything, and gets another epoch each time."""


def _epoch_min(*, is_claimed: bool) -> int:
    """Of records by an earlier producer id. An id with a claim has got another one since its epochs were used up."""
    return _LATE_EPOCH if is_claimed else 0


@dataclass(frozen=True)
class Record:
    """`value`: None for a tombstone: the prefix needs no entry any more."""

    offset: int
    written_by: ProducerIdAndEpoch
    value: bytes | None


@dataclass
class _Progress:
    """What was read of one partition, of one prefix or of all, and where to go on."""

    next_offset: int
    newest: dict[bytes, dict[int, Record]] = field(default_factory=dict)
    """Key -> producer id -> what its committed transactions wrote last."""
    plain: dict[bytes, Record] = field(default_factory=dict)
    """Key -> what was written last outside of a transaction."""
    open: dict[int, list[tuple[bytes, Record]]] = field(default_factory=dict)
    """Producer id -> what it wrote in a transaction without a marker so far."""
    unreadable: dict[int, tuple[Record, DecodeError]] = field(default_factory=dict)
    """Producer id -> the first record of its last batch that cannot be decoded, and why. What was written outside of a
    transaction is that of NO_PRODUCER_ID: there anybody may have put any id into the batch."""

    def take(self, stored: StoredBatch, key: bytes | None) -> None:
        header = stored.header
        try:
            batch = stored.decoded()
        except DecodeError as error:  # brokers take what is a thousand times as large when it is unpacked
            written_by = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
            by = header.producer_id if header.transactional else NO_PRODUCER_ID.producer_id
            self.unreadable[by] = Record(header.base_offset, written_by, None), error
            return
        if header.control:
            if batch.columns.num_rows:
                self._end(header.producer_id, aborted=is_abort_marker(batch))
            return
        for row_key, record in _records(batch, key):
            if header.transactional:
                self.open.setdefault(header.producer_id, []).append((row_key, record))
            else:
                self.plain[row_key] = record

    def _end(self, producer_id: int, *, aborted: bool) -> None:
        written: dict[bytes, list[Record]] = {}
        for key, record in self.open.pop(producer_id, ()):
            written.setdefault(key, []).append(record)
        for key, records in written.items() if not aborted else ():
            newest = self.newest.setdefault(key, {})
            if _follows(key, records, newest.get(producer_id)):
                newest[producer_id] = records[-1]


def _follows(key: bytes, records: Sequence[Record], before: Record | None) -> bool:
    """Do the records of one transaction count, where its producer has written `before` as the last one?

    What cannot be read is not compared: a newer version has written it, and the newest record says so.
    """
    if len(records) == 1 or before is None or records[0].value == before.value:
        return True
    try:
        # Another version may have written the same in other bytes, and an older one writes no mark of what is unproven.
        return _entry_of(key, records[0]).as_unproven() == _entry_of(key, before).as_unproven()
    except DecodeError:
        return True


def _entry_of(key: bytes, record: Record) -> Entry:
    return Entry(key.decode("utf-8", "replace")) if record.value is None else decoded(key, record.value)


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

    def entry(
        self,
        prefix: str,
        producer_ids: Sequence[int],
        owners: Callable[[], Mapping[int, str]],
        *,
        is_claimed: bool = False,
    ) -> Entry | None:
        """The newest entry that counts. None if there is none.

        `producer_ids`: those that `<prefix>-driver` was seen to have, the newest first. `owners`: which transactional
        id has which producer id now; asked for only where it decides. `is_claimed`: brokers say that the driver has
        written into the log.
        """
        partition = self.partition(prefix)
        progress = self._read(partition, prefix.encode())
        epoch_min = _epoch_min(is_claimed=is_claimed)
        return self._believed(prefix, partition, progress, producer_ids, owners, epoch_min)

    def entries(
        self,
        drivers: Callable[[list[str]], Mapping[str, TransactionDescription | None]],
        owners: Callable[[], Mapping[int, str]],
    ) -> dict[str, Entry]:
        """The newest entry that counts of each prefix, for people: what cannot be read is left out with a warning.

        `drivers`: who holds the drivers' ids of these prefixes now; None if brokers do not know one. A prefix that is
        missing in it is missing in the result. `owners`: as in `entry`.
        """
        read = [(index, self._read(index, None)) for index in self._reader.partitions(self.topic)]
        prefixes = [key.decode("utf-8", "replace") for _, progress in read for key in progress.newest]
        known, owners = drivers(prefixes), functools.cache(owners)
        found: dict[str, Entry] = {}
        for partition, progress in read:
            for prefix in (key.decode("utf-8", "replace") for key in progress.newest):
                if prefix not in known:
                    continue
                driver = known[prefix]
                producer_ids = () if driver is None else (driver.id_and_epoch.producer_id,)
                epoch_min = _epoch_min(is_claimed=driver is not None and says_claimed(driver.timeout_ms))
                try:
                    entry = self._believed(prefix, partition, progress, producer_ids, owners, epoch_min)
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
        self, progress: _Progress, partition: int, key: bytes | None, end: int, ahead: Asked | None = None
    ) -> None:
        for batch in self._reader.stored(self.topic, partition, start=progress.next_offset, stop=end, ahead=ahead):
            progress.take(batch, key)
        progress.next_offset = end

    def _believed(
        self,
        prefix: str,
        partition: int,
        progress: _Progress,
        producer_ids: Sequence[int],
        owners: Callable[[], Mapping[int, str]],
        epoch_min: int,
    ) -> Entry | None:
        """`epoch_min`: of a record by an earlier producer id."""
        key = prefix.encode()
        newest = progress.newest.get(key, {})
        record = next((newest[each] for each in producer_ids if each in newest), None)
        is_own = record is not None
        if record is None and (earlier := [each for each in newest.values() if each.written_by.epoch >= epoch_min]):
            record = self._of_earlier_id(prefix, partition, earlier, owners())
        for stranger in (*newest.values(), progress.plain.get(key)):
            if stranger is not None and stranger is not record and (record is None or stranger.offset > record.offset):
                self._warn(partition, stranger, f"it is not of the driver of the prefix {prefix}, and is passed over")
        for producer_id, (unread, why) in progress.unreadable.items():
            if producer_id in producer_ids and (record is None or unread.offset > record.offset):
                raise refusals.unreadable_entry(self._place(partition, unread), prefix, why) from why
            self._warn(partition, unread, f"it cannot be read ({why}), and is passed over")
        if record is None or record.value is None:
            return None
        try:
            entry = replace(decoded(key, record.value), written_by=record.written_by)
        except DecodeError as error:
            raise refusals.unreadable_entry(self._place(partition, record), prefix, error) from error
        return entry if is_own else entry.as_unproven()

    def _of_earlier_id(
        self, prefix: str, partition: int, newest: Sequence[Record], owners: Mapping[int, str]
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
        return f"{placed(self.topic, partition)}, offset {record.offset}"


def _records(batch: DecodedBatch, key: bytes | None) -> Iterator[tuple[bytes, Record]]:
    """The rows with this key; with any, where it is None."""
    columns, header = batch.columns, batch.header
    written_by = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
    wanted = columns.column("key").is_valid() if key is None else pc.equal(columns.column("key"), key)
    rows = columns.filter(wanted)
    for row_key, value, offset in zip(
        *(rows.column(name).to_pylist() for name in ("key", "value", "offset")), strict=True
    ):
        yield row_key, Record(offset, written_by, value)
