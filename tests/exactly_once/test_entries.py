from __future__ import annotations

import pytest

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.exactly_once.content import Content
from spark_kafka_sink.exactly_once.entries import (
    DRIVERS_MAX,
    KEYS_MAX,
    Batch,
    Entry,
    EntryState,
    decoded,
    encoded,
)
from spark_kafka_sink.exactly_once.names import TaskName, task_id
from spark_kafka_sink.producer.transactions.prepared_transaction import PreparedTransaction

CONTENT = Content.of({"t": 3, "u": 1}, 40)
TRANSACTION = PreparedTransaction(task_id("p", TaskName(1, 2, 0)), 17, 3, 2)


def test_an_entry_is_read_as_it_was_written() -> None:
    entry = Entry("p").begun("driver-1", "/checkpoint", 900_000).decided(Batch("q", 7), CONTENT, (TRANSACTION,))
    assert decoded(b"p", encoded(entry)) == entry
    assert decoded(b"p", encoded(entry.done())) == entry.done()


def test_what_is_done_has_no_transactions_and_remembers_its_batch() -> None:
    entry = Entry("p").decided(Batch("q", 7), CONTENT, (TRANSACTION,)).done()
    assert (entry.state, entry.transactions) == (EntryState.DONE, ())
    assert entry.has_committed(Batch("q", 7))
    assert not entry.has_committed(Batch("q", 8))
    assert not entry.has_committed(Batch("other", 7))


def test_a_key_counts_from_the_decision_on_and_the_last_ones_are_remembered() -> None:
    entry = Entry("p")
    assert not entry.has_committed(Batch(key="0"))
    for number in range(KEYS_MAX + 5):
        entry = entry.decided(Batch(key=str(number)), CONTENT, (TRANSACTION,))
        assert entry.has_committed(Batch(key=str(number)))
        entry = entry.done()
    assert len(entry.keys) == KEYS_MAX
    assert entry.has_committed(Batch(key="5"))
    assert not entry.has_committed(Batch(key="4"))


def test_a_job_without_a_key_is_never_committed_already() -> None:
    assert not Entry("p").decided(Batch(), CONTENT, (TRANSACTION,)).done().has_committed(Batch())


def test_the_last_drivers_are_remembered_and_the_newest_of_them_drives() -> None:
    entry = Entry("p")
    for number in range(DRIVERS_MAX + 5):
        entry = entry.begun(f"driver-{number}", "", 1)
    assert len(entry.drivers) == DRIVERS_MAX
    assert entry.generation == DRIVERS_MAX + 5
    assert entry.has_superseded("driver-20")
    assert not entry.has_superseded(f"driver-{DRIVERS_MAX + 4}")
    assert not entry.has_superseded("driver-of-tomorrow")


@pytest.mark.parametrize(
    "value", [b"", b"x", b"[]", b"{}", b'{"format":1}', b'{"format":1,"state":"dead","transactions":[]}', b"\xff"]
)
def test_what_is_no_entry_is_refused(value: bytes) -> None:
    with pytest.raises(DecodeError, match="it is no record of the decision log"):
        decoded(b"p", value)


def test_an_entry_of_a_newer_version_is_refused_as_such() -> None:
    with pytest.raises(DecodeError, match="its format is 3, and this version of the library knows 2"):
        decoded(b"p", b'{"format":3}')
