"""An entry of the decision log, as it is written and read."""

from __future__ import annotations

import json

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.exactly_once.content import Content
from spark_kafka_sink.exactly_once.entries import KEYS_MAX, Batch, Entry, KeyedJob, WriterKind
from spark_kafka_sink.exactly_once.entry_json import VALUE_BYTES_MAX, decoded, encoded
from spark_kafka_sink.exactly_once.transaction_names import TaskName, task_id
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity

CONTENT = Content.of({"t": 3, "u": 1}, 40)
TRANSACTION = TransactionIdentity(task_id("p", TaskName(1, 2, 0)), 17, 3, 2)


def test_an_entry_is_read_as_it_was_written() -> None:
    entry = Entry("p").begun("driver-1", "/checkpoint", 900_000).decided(Batch("q", 7), CONTENT, (TRANSACTION,))
    assert decoded(b"p", encoded(entry)) == entry
    assert decoded(b"p", encoded(entry.done())) == entry.done()


@pytest.mark.parametrize(
    "value", [b"", b"x", b"[]", b"{}", b'{"format":3}', b'{"format":3,"state":"dead","transactions":[]}', b"\xff"]
)
def test_what_is_no_entry_is_refused(value: bytes) -> None:
    with pytest.raises(DecodeError, match="it is no record of the decision log"):
        decoded(b"p", value)


WHOLE = (
    Entry("p", keys=(KeyedJob("k", "t", CONTENT),))
    .begun("driver-1", "/checkpoint", 900_000, ProducerIdAndEpoch(17, 3), WriterKind.STREAM)
    .decided(Batch("q", 7, "k", "t"), CONTENT, (TRANSACTION,))
)


UNPROVEN = WHOLE.as_unproven().under_driver_id(2)


@pytest.mark.parametrize("value", [{}, True, 1.5, [[]], ["x", 2], "x" * 5000, -1, 2**63, 2**31])
@pytest.mark.parametrize("field", [name for name in json.loads(encoded(UNPROVEN)) if name != "format"])
def test_a_field_of_another_type_or_size_is_refused(field: str, value: object) -> None:
    if (field, value) in (("batch", 2**31), ("unproven", True)):
        return
    with pytest.raises(DecodeError, match="it is no record of the decision log: "):
        decoded(b"p", json.dumps({**json.loads(encoded(UNPROVEN)), field: value}).encode())


@pytest.mark.parametrize("whole", [WHOLE, UNPROVEN])
def test_an_entry_with_all_its_fields_is_read_as_it_was_written(whole: Entry) -> None:
    assert decoded(b"p", encoded(whole)) == whole


def test_reads_an_entry_of_exactly_the_largest_size() -> None:
    value = encoded(WHOLE)
    assert decoded(b"p", value + b" " * (VALUE_BYTES_MAX - len(value))) == WHOLE


def test_what_is_longer_than_any_entry_is_not_looked_at() -> None:
    with pytest.raises(DecodeError, match=f"{VALUE_BYTES_MAX + 1} bytes, and an entry has at most {VALUE_BYTES_MAX}"):
        decoded(b"p", b"x" * (VALUE_BYTES_MAX + 1))


def test_an_entry_of_a_newer_version_is_refused_as_such() -> None:
    with pytest.raises(DecodeError, match="its format is 4, and this version of the library knows 3"):
        decoded(b"p", b'{"format":4}')


def test_an_entry_with_an_unknown_field_is_refused_with_the_name_of_the_field() -> None:
    """A version that ignores what a newer one has written may act under an id of the driver that is used up."""
    with pytest.raises(DecodeError, match=r"fields that this version does not know: \['nextDriver'\]"):
        decoded(b"p", json.dumps({**json.loads(encoded(WHOLE)), "nextDriver": 2}).encode())


def test_the_greatest_generation_is_followed_by_one_that_can_be_read() -> None:
    greatest = decoded(b"p", encoded(Entry("p", generation=2**31 - 1)))
    following = greatest.begun("driver", "", 60_000)
    assert decoded(b"p", encoded(following)).generation == 1


def test_of_more_keys_and_drivers_than_are_remembered_the_last_ones_count() -> None:
    """A stranger's entry must not grow when a driver writes it again."""
    names = tuple(str(number) for number in range(KEYS_MAX + 5))
    read = decoded(b"p", encoded(Entry("p", drivers=names, keys=tuple(map(KeyedJob, names)))))
    assert [job.key for job in read.keys] == list(names[5:])
    assert read.drivers == names[5:]
