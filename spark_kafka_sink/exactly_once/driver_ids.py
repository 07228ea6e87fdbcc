"""The transactional ids of one prefix's driver, with the producer id that brokers say each of them has.

A record of the decision log is the driver's if its producer id is that of one of these transactional ids. Records name
the number of the driver's transactional id, so a reader knows which ids it has to describe. What a record says of the
number proves nothing: brokers say who has the producer id.

A driver's id is handed over in two records under the old id. First a claim: once it counts, nobody else can write under
the old id without reading it. Then, under the epoch after it, a record with the key of decisions, which names the next
id. Compaction keeps that record until a decision under the next id replaces it; it would not keep a claim. Both records
say of the batch and of the newest driver what was said before, so anybody may hand over. A start that dies meanwhile
leaves the next one an id to go on with: before the second record the old one, after it the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.exactly_once.entries import Entry, EntryState
from spark_kafka_sink.exactly_once.timeout_marks import claimed_ms, says_claimed
from spark_kafka_sink.exactly_once.transaction_names import FIRST_DRIVER, driver_id, driver_number
from spark_kafka_sink.requests.transaction_description import COMPLETE_COMMIT, TransactionDescription

Describe = Callable[[Iterable[str]], Mapping[str, TransactionDescription]]
"""Describe transactional ids. Those that brokers do not know are missing in the result."""
Owners = Callable[[], Mapping[int, str]]
"""List which transactional id has which producer id, of those that this user may see."""


_UNKNOWN_TIMEOUT_MS = 60_000
_NUMBERS_MAX = 1000
_numbers: dict[tuple[object, ...], int] = {}
"""The number of the driver's current id when this process last read the log, by brokers, topic and prefix. A hint that
saves a request: a stale number costs one more description, and decides nothing."""


def remembered_number(key: tuple[object, ...]) -> int:
    return _numbers.get(key, FIRST_DRIVER)


def remember_number(key: tuple[object, ...], number: int) -> None:
    if len(_numbers) >= _NUMBERS_MAX:
        _numbers.clear()
    if number != FIRST_DRIVER:
        _numbers[key] = number


@dataclass
class DriverIds:
    prefix: str
    describe: Describe
    owners: Owners
    _producer_ids: dict[int, int | None] = field(default_factory=dict)
    """Producer ids by the number of the driver's id; None if brokers do not know the transactional id."""
    _claimed: set[int] = field(default_factory=set)
    """Numbers of the ids that have written a claim."""

    def note(self, number: int, description: TransactionDescription | None) -> None:
        """Remember a description of the id with this number."""
        self._producer_ids[number] = None if description is None else description.id_and_epoch.producer_id
        if description is not None and has_claimed(description):
            self._claimed.add(number)
        else:
            self._claimed.discard(number)

    def note_granted(self, number: int, driver: ProducerIdAndEpoch) -> None:
        """Remember what brokers have granted under the id with this number."""
        self._producer_ids[number] = driver.producer_id

    def describe_new(self, numbers: Iterable[int]) -> None:
        """Describe the ids with these numbers that were not described yet."""
        new = sorted({number for number in numbers if number >= FIRST_DRIVER} - self._producer_ids.keys())
        if new:
            found = self.describe([driver_id(self.prefix, number) for number in new])
            for number in new:
                self.note(number, found.get(driver_id(self.prefix, number)))

    def describe_listed(self) -> Mapping[int, str]:
        """Describe all of the driver's ids that brokers list. Returns which transactional id has which producer id."""
        owners = self.owners()
        numbers = (driver_number(self.prefix, name) for name in owners.values())
        self.describe_new(number for number in numbers if number is not None)
        return owners

    def is_known(self, number: int) -> bool:
        """Return whether brokers know the id with this number, as it was described last."""
        return self._producer_ids.get(number) is not None

    def number_of(self, producer_id: int) -> int | None:
        """Return which of the ids has this producer id; None if none of those that were described has it."""
        return next((number for number, found in self._producer_ids.items() if found == producer_id), None)

    @property
    def newest(self) -> int:
        """Number of the newest id that brokers know; the first one if they know none."""
        return max((number for number in self._producer_ids if self.is_known(number)), default=FIRST_DRIVER)

    @property
    def has_records(self) -> bool:
        """Return whether one of the ids has written into the log: a claim, or a record that names the next id."""
        return bool(self._claimed) or self.newest > FIRST_DRIVER


def has_claimed(description: TransactionDescription) -> bool:
    return says_claimed(description.timeout_ms)


def is_log_lost(entry: Entry, seen: TransactionDescription | None) -> bool:
    """Return whether the log has nothing of the prefix, though its driver has written into it. `seen`: a look at the
    driver's id that is older than the entry."""
    return not entry.generation and (entry.driver_number > FIRST_DRIVER or (seen is not None and has_claimed(seen)))


def is_left_unused(seen: TransactionDescription, entry: Entry, version: int) -> bool:
    """Has its writer done all that was decided when it wrote this entry, and has no other done anything since?

    The id has the epoch then that its writer was given by the end of this transaction: the next one in version 2, the
    same in version 1. An entry that is not the newest any more is of an older epoch.
    """
    epoch = entry.written_by.epoch + (1 if version >= 2 else 0)
    return (
        entry.state is EntryState.DONE
        and entry.timeout_ms > 0
        and seen.state == COMPLETE_COMMIT
        and seen.id_and_epoch == entry.written_by._replace(epoch=epoch)
    )


def unchanged_timeout_ms(seen: TransactionDescription | None, entry: Entry) -> int:
    """Return the timeout for a request for the next epoch that changes nothing else of the driver's id. `seen`: None
    for an id that was named by this entry, and that nobody has used yet."""
    return claimed_ms(entry.timeout_ms or _UNKNOWN_TIMEOUT_MS) if seen is None else seen.timeout_ms
