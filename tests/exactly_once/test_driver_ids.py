"""Driver ids of a prefix: the ids that a client describes, and the meaning of their descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.exactly_once import driver_ids
from spark_kafka_sink.exactly_once.driver_ids import (
    DriverIds,
    get_remembered_driver_number,
    has_been_idle_since,
    is_log_lost,
    remember_driver_number,
)
from spark_kafka_sink.exactly_once.entries import Entry, EntryState
from spark_kafka_sink.exactly_once.timeout_marks import compute_driver_claimed_timeout_ms
from spark_kafka_sink.requests.transaction_description import COMPLETE_ABORT, COMPLETE_COMMIT, TransactionDescription

CLAIMED_TIMEOUT_MS, UNCLAIMED_TIMEOUT_MS = compute_driver_claimed_timeout_ms(60_000), 60_000


def build_description(producer_id: int, timeout_ms: int = UNCLAIMED_TIMEOUT_MS) -> TransactionDescription:
    return TransactionDescription("p-driver", COMPLETE_COMMIT, ProducerIdAndEpoch(producer_id, 3), timeout_ms)


class Brokers:
    """Brokers that know the driver ids 1, 2 and 4 of the prefix p."""

    def __init__(self) -> None:
        self.described: list[list[str]] = []
        self.ids = {70: "p-driver", 71: "p-driver-2", 72: "q-driver", 73: "p-1-0-0", 74: "p-driver-4"}

    def describe(self, transactional_ids: Iterable[str]) -> Mapping[str, TransactionDescription]:
        names = list(transactional_ids)
        self.described.append(names)
        return {name: build_description(number) for number, name in self.ids.items() if name in names}


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def ids(brokers: Brokers) -> DriverIds:
    return DriverIds("p", brokers.describe, lambda: brokers.ids)


def test_describes_each_id_once(brokers: Brokers, ids: DriverIds) -> None:
    ids.load_missing([2, 1, 2])
    ids.load_missing([1, 2])
    ids.load_missing([3, 2])
    assert brokers.described == [["p-driver", "p-driver-2"], ["p-driver-3"]]
    assert [ids.is_known(number) for number in range(1, 5)] == [True, True, False, False]


def test_describes_all_ids_of_the_prefix_that_brokers_list(brokers: Brokers, ids: DriverIds) -> None:
    assert ids.load_all_listed() == brokers.ids
    assert brokers.described == [["p-driver", "p-driver-2", "p-driver-4"]]
    assert ids.newest_known_number == 4
    assert [ids.find_driver_number(producer_id) for producer_id in (70, 71, 72, 73, 74)] == [1, 2, None, None, 4]


def test_recorded_producer_id_replaces_described_one(ids: DriverIds) -> None:
    ids.load_missing([1])
    ids.record_producer_id(1, ProducerIdAndEpoch(99, 0))
    assert (ids.find_driver_number(70), ids.find_driver_number(99)) == (None, 1)


def test_claimed_or_second_id_has_written_records(ids: DriverIds) -> None:
    has_written_records = []
    for number, description in [
        (1, build_description(70)),
        (1, build_description(70, CLAIMED_TIMEOUT_MS)),
        (1, None),  # brokers have forgotten the id
        (2, build_description(71)),
    ]:
        ids.record_description(number, description)
        has_written_records.append(ids.has_written_records)
    assert has_written_records == [False, True, False, True]


def test_log_is_lost_if_driver_that_claimed_has_no_entry() -> None:
    claimed = build_description(70, CLAIMED_TIMEOUT_MS)
    assert is_log_lost(Entry("p"), claimed)
    assert is_log_lost(Entry("p", driver_number=2), None)
    assert not is_log_lost(Entry("p", generation=1), claimed)
    assert not is_log_lost(Entry("p"), build_description(70))
    assert not is_log_lost(Entry("p"), None)


@pytest.mark.parametrize(("version", "epoch"), [(1, 2), (2, 3)])
def test_driver_id_is_unused_while_it_has_the_epoch_after_the_entry(version: int, epoch: int) -> None:
    writer_identity = ProducerIdAndEpoch(70, 2)
    entry = Entry("p", EntryState.DONE, timeout_ms=60_000, writer_identity=writer_identity)
    unused = TransactionDescription("p-driver", COMPLETE_COMMIT, ProducerIdAndEpoch(70, epoch))
    assert has_been_idle_since(entry, unused, version)
    used = TransactionDescription("p-driver", COMPLETE_COMMIT, ProducerIdAndEpoch(70, epoch + 1))
    aborted = TransactionDescription("p-driver", COMPLETE_ABORT, unused.id_and_epoch)
    decided = Entry("p", EntryState.DECIDED, timeout_ms=60_000, writer_identity=writer_identity)
    timeout_unknown = Entry("p", EntryState.DONE, writer_identity=writer_identity)
    assert not any(has_been_idle_since(entry, description, version) for description in (used, aborted))
    assert not any(has_been_idle_since(other, unused, version) for other in (decided, timeout_unknown))


def test_remembers_numbers_of_prefixes_after_the_first_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered: dict[tuple[object, ...], int] = {}
    monkeypatch.setattr(driver_ids, "_remembered_numbers", remembered)
    monkeypatch.setattr(driver_ids, "_MAX_REMEMBERED_NUMBERS", 2)
    remember_driver_number(("a",), 1)
    assert remembered == {}
    for name in "abc":
        remember_driver_number((name,), 3)
    assert [get_remembered_driver_number((name,)) for name in "abc"] == [1, 1, 3]
