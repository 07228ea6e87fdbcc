"""DriverIds: the transactional ids of a query's driver, and the producer id that brokers report for each of them.

The driver of a query or job writes to the decision log under a transactional id of its own, the driver id. It consists
of the name of the query or job, called the prefix, and a suffix: `<prefix>-driver`. When the epochs of this id are used
up, the driver continues under `<prefix>-driver-2`, and so on.

A record in the log was written by the prefix's driver if the record's producer id belongs to one of these ids. Only the
brokers know which transactional id a producer id belongs to, so a reader asks them to describe the driver ids. Each
record contains the number of the current driver id, so the reader knows which ids to describe. By itself, that number
proves nothing.

When the epochs of a driver id are used up, a driver hands over to the next id by writing two records under the old id:

    1. A claim: a record that names the current driver. If it is valid, the driver has read the newest decision, so that
       record 2 does not replace a decision that it has missed
       (test_hand_over_after_stale_read_replaces_decision_without_claim).
    2. A record that names the next driver id. It is written under a later epoch, and has the key of decisions, so that
       compaction keeps it until a decision under the next id replaces it. Compaction might remove a claim earlier
       (test_compaction_loses_hand_over_written_with_key_of_claims).

For example, the log contains these records of the prefix `orders`, oldest first:

    written under                                        key             content
    orders-driver, producer id 4711, epoch 31,990        orders          batch 7 is done; driver number 1
    orders-driver, producer id 4711, epoch 32,000        orders/claim    the same, claimed under epoch 32,000
    orders-driver, producer id 4711, a later epoch       orders          batch 7 is done; driver number 2
    orders-driver-2, producer id 5822                    orders/claim    the same, claimed by the next driver

Both records repeat everything that is known about the current batch and driver, so any driver may perform the
hand-over. If a driver crashes during the hand-over, the next driver uses the old id if the second record is missing,
and the new id if it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.exactly_once.entries import Entry, EntryState
from spark_kafka_sink.exactly_once.timeout_marks import is_marked_claimed
from spark_kafka_sink.exactly_once.transaction_names import FIRST_DRIVER_NUMBER, build_driver_id, parse_driver_number
from spark_kafka_sink.requests.transaction_description import COMPLETE_COMMIT, TransactionDescription

DescribeTransactions = Callable[[Iterable[str]], Mapping[str, TransactionDescription]]
"""Describes transactional ids. The result omits ids that the brokers do not know."""
ListIdsByProducer = Callable[[], Mapping[int, str]]
"""Lists all transactional ids that this user may see, by producer id."""
LogKey = tuple[object, ...]
"""Identifies a prefix's entry across logs: the brokers, the log's topic and the prefix."""

_MAX_REMEMBERED_NUMBERS = 1000
_remembered_numbers: dict[LogKey, int] = {}
"""The number of each prefix's current driver id when this process last read the log. The number 1 is not stored."""


def get_remembered_driver_number(log_key: LogKey) -> int:
    """Return the number of the driver id that a prefix probably uses now, so that the caller describes the right id.

    If the number is stale, the log names another one, and the caller has to describe that id as well.
    """
    return _remembered_numbers.get(log_key, FIRST_DRIVER_NUMBER)


def remember_driver_number(log_key: LogKey, number: int) -> None:
    """Remember the number of the driver id that the log names as a prefix's current one."""
    if len(_remembered_numbers) >= _MAX_REMEMBERED_NUMBERS:
        _remembered_numbers.clear()
    if number != FIRST_DRIVER_NUMBER:
        _remembered_numbers[log_key] = number


@dataclass
class DriverIds:
    """The driver ids of a prefix, and what brokers have reported about those that were described so far.

    A driver id has a number: 1 for `<prefix>-driver`, 2 for `<prefix>-driver-2`. To describe an id means to fetch its
    producer id, epoch and transaction timeout from the brokers.
    """

    prefix: str
    describe_transactions: DescribeTransactions
    list_ids_by_producer: ListIdsByProducer
    _producer_ids: dict[int, int | None] = field(default_factory=dict)
    """Producer ids by driver number; None if the brokers do not know the driver id."""
    _claimed_numbers: set[int] = field(default_factory=set)
    """Numbers of the driver ids whose transaction timeout shows that they have claimed the prefix."""

    def record_description(self, number: int, description: TransactionDescription | None) -> None:
        """Store a description of the driver id with this number. None means that the brokers do not know the id."""
        self._producer_ids[number] = None if description is None else description.id_and_epoch.producer_id
        if description is not None and has_claimed(description):
            self._claimed_numbers.add(number)
        else:
            self._claimed_numbers.discard(number)

    def record_producer_id(self, number: int, identity: ProducerIdAndEpoch) -> None:
        """Store the producer id that InitProducerId returned for the driver id with this number."""
        # If the id was described with another producer id, or as unknown, the mark in that description says nothing
        # about this producer id. Brokers assign a new producer id if they create the id, if they create it again after
        # they have forgotten it, or if the epochs of the old producer id are used up.
        if self._producer_ids.get(number) != identity.producer_id:
            self._claimed_numbers.discard(number)
        self._producer_ids[number] = identity.producer_id

    def load_missing(self, numbers: Iterable[int]) -> None:
        """Describe the driver ids with these numbers, unless they have been described, and store the descriptions."""
        missing_numbers = sorted(set(numbers) - self._producer_ids.keys())
        if missing_numbers:
            ids_by_number = {number: build_driver_id(self.prefix, number) for number in missing_numbers}
            descriptions = self.describe_transactions(list(ids_by_number.values()))
            for number, driver_id in ids_by_number.items():
                self.record_description(number, descriptions.get(driver_id))

    def load_all_listed(self) -> Mapping[int, str]:
        """Describe all of the prefix's driver ids that brokers list, and store the descriptions.

        Return every transactional id that brokers list, of this and other prefixes, by producer id.
        """
        ids_by_producer = self.list_ids_by_producer()
        numbers = (parse_driver_number(self.prefix, transactional_id) for transactional_id in ids_by_producer.values())
        self.load_missing(number for number in numbers if number is not None)
        return ids_by_producer

    def is_known(self, number: int) -> bool:
        """Return whether the brokers knew the driver id with this number when it was last described."""
        return self._producer_ids.get(number) is not None

    def find_driver_number(self, producer_id: int) -> int | None:
        """Return the number of the driver id with this producer id. Return None if no described id has it."""
        return next((number for number, known_id in self._producer_ids.items() if known_id == producer_id), None)

    @property
    def newest_known_number(self) -> int:
        """The greatest number of a driver id that brokers know; the first number if they know none."""
        return max((number for number in self._producer_ids if self.is_known(number)), default=FIRST_DRIVER_NUMBER)

    @property
    def has_written_records(self) -> bool:
        """Whether, according to the brokers, a driver of the prefix has written a record to the log.

        This is the case if a driver id has the mark for a claimed prefix. It is also the case if brokers know a later
        driver id than the first, because drivers use a later id only after a record has named it.
        """
        return bool(self._claimed_numbers) or self.newest_known_number > FIRST_DRIVER_NUMBER


def has_claimed(description: TransactionDescription) -> bool:
    """Return whether a driver has claimed the prefix under this driver id. The mark in the id's timeout shows this.

    If brokers forget the id just before a driver requests its next epoch, the request creates the id again, with the
    mark and the first epoch. A claim leaves a greater epoch, because the driver requests another one after it.
    """
    return is_marked_claimed(description.timeout_ms) and description.id_and_epoch.epoch > 0


def is_log_lost(entry: Entry, description: TransactionDescription | None) -> bool:
    """Return whether the log has no entry for the prefix, although the prefix's driver has written to the log.

    `entry`: the prefix's newest entry; an entry of generation 0 if the log has none.
    `description`: the description of the driver id, requested before the entry was read.
    """
    # A driver uses a later driver id than the first only after it has read the record that names this id in the log.
    has_written = entry.driver_number > FIRST_DRIVER_NUMBER or (description is not None and has_claimed(description))
    has_entry = entry.generation > 0
    return has_written and not has_entry


def has_been_idle_since(entry: Entry, description: TransactionDescription, transaction_version: int) -> bool:
    """Return whether the entry records its batch as done, and nothing has happened under the driver id since.

    In that case, the driver id still has the epoch that it had right after the entry's transaction. In transaction
    version 1, this is the entry's own epoch. In version 2, it is the next one. If there were a newer entry, the epoch
    would be greater.

    `description`: the description of the driver id, requested before the entry was read.
    """
    expected_epoch = entry.writer_identity.epoch + (1 if transaction_version >= 2 else 0)
    has_known_timeout = entry.timeout_ms > 0  # the tasks of the next batch need it
    return (
        entry.state is EntryState.DONE
        and has_known_timeout
        and description.state == COMPLETE_COMMIT
        and description.id_and_epoch == entry.writer_identity._replace(epoch=expected_epoch)
    )
