"""Encoding and decoding of entries of the decision log."""

from __future__ import annotations

import json

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.entries import MAX_KEYED_JOBS, Batch, Entry, KeyedJob, WriterKind
from spark_kafka_sink.exactly_once.entry_json import (
    MAX_VALUE_BYTES,
    decode_driver_number,
    decode_entry,
    decode_followed_offset,
    encode_entry,
)
from spark_kafka_sink.exactly_once.transaction_names import FIRST_DRIVER_NUMBER, TaskAttempt, build_task_id
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity

SUMMARY = BatchSummary.from_row_counts({"t": 3, "u": 1}, 40)
TRANSACTION = TransactionIdentity(build_task_id("p", TaskAttempt(1, 2, 0)), 17, 3, 2)


def test_entry_round_trip() -> None:
    entry = (
        Entry("p").with_claim("driver-1", "/checkpoint", 900_000).with_decision(Batch("q", 7), SUMMARY, (TRANSACTION,))
    )
    assert decode_entry(b"p", encode_entry(entry)) == entry
    assert decode_entry(b"p", encode_entry(entry.as_done())) == entry.as_done()


@pytest.mark.parametrize(
    "value", [b"", b"x", b"[]", b"{}", b'{"format":3}', b'{"format":3,"state":"dead","transactions":[]}', b"\xff"]
)
def test_rejects_value_that_is_not_an_entry(value: bytes) -> None:
    with pytest.raises(DecodeError, match="its value is not a decision log entry"):
        decode_entry(b"p", value)


WHOLE = (
    Entry("p", keyed_jobs=(KeyedJob("k", "t", SUMMARY),))
    .with_claim("driver-1", "/checkpoint", 900_000, ProducerIdAndEpoch(17, 3), WriterKind.STREAM)
    .with_decision(Batch("q", 7, "k", "t"), SUMMARY, (TRANSACTION,))
)


UNPROVEN = WHOLE.as_unproven().with_driver_number(2)


@pytest.mark.parametrize("field", [name for name in json.loads(encode_entry(UNPROVEN)) if name != "format"])
def test_rejects_field_of_wrong_type_or_size(field: str) -> None:
    valid_values = {"batch": 2**31, "unproven": True}
    values: tuple[object, ...] = ({}, True, 1.5, [[]], ["x", 2], "x" * 5000, -1, 2**63, 2**31)
    for value in values:
        if value != valid_values.get(field):
            check_rejects_value(field, value)


def check_rejects_value(field: str, value: object) -> None:
    with pytest.raises(DecodeError, match="its value is not a decision log entry: "):
        decode_entry(b"p", json.dumps({**json.loads(encode_entry(UNPROVEN)), field: value}).encode())


@pytest.mark.parametrize("original", [WHOLE, UNPROVEN])
def test_entry_with_all_fields_round_trip(original: Entry) -> None:
    assert decode_entry(b"p", encode_entry(original)) == original


def test_decodes_entry_of_maximum_size() -> None:
    value = encode_entry(WHOLE)
    assert decode_entry(b"p", value + b" " * (MAX_VALUE_BYTES - len(value))) == WHOLE


def test_rejects_oversized_value_without_parsing() -> None:
    with pytest.raises(
        DecodeError, match=f"{MAX_VALUE_BYTES + 1} bytes long, but an entry has at most {MAX_VALUE_BYTES}"
    ):
        decode_entry(b"p", b"x" * (MAX_VALUE_BYTES + 1))


def test_rejects_entry_of_newer_version() -> None:
    with pytest.raises(DecodeError, match="its format version is 4, but this version of the library supports 3"):
        decode_entry(b"p", b'{"format":4}')


def test_rejects_unknown_field_by_name() -> None:
    """An older version that ignored new fields might continue under an exhausted driver id."""
    with pytest.raises(DecodeError, match=r"fields that this version of the library does not know: \['nextDriver'\]"):
        decode_entry(b"p", json.dumps({**json.loads(encode_entry(WHOLE)), "nextDriver": 2}).encode())


def test_generation_wraps_after_maximum() -> None:
    greatest = decode_entry(b"p", encode_entry(Entry("p", generation=2**31 - 1)))
    following = greatest.with_claim("driver", "", 60_000)
    assert decode_entry(b"p", encode_entry(following)).generation == 1


def test_decodes_only_the_last_keys_and_drivers() -> None:
    """An entry of another user must not grow when a driver writes it again."""
    names = tuple(str(number) for number in range(MAX_KEYED_JOBS + 5))
    jobs = tuple(KeyedJob(name, "t", SUMMARY) for name in names)
    read = decode_entry(b"p", encode_entry(Entry("p", driver_names=names, keyed_jobs=jobs)))
    assert [job.key for job in read.keyed_jobs] == list(names[5:])
    assert read.driver_names == names[5:]


def test_decodes_numbers_that_readers_need_before_the_entry() -> None:
    claim = encode_entry(WHOLE.with_driver_number(2), followed_offset=17)
    assert (decode_followed_offset(claim), decode_driver_number(claim)) == (17, 2)
    decision = encode_entry(WHOLE)
    assert (decode_followed_offset(decision), decode_driver_number(decision)) == (None, FIRST_DRIVER_NUMBER)


@pytest.mark.parametrize("number", ["null", '"x"', "[]", "1e400"])
def test_number_that_is_no_integer_cannot_be_decoded(number: str) -> None:
    value = f'{{"follows":{number},"driverNumber":{number}}}'.encode()
    assert (decode_followed_offset(value), decode_driver_number(value)) == (None, None)


@pytest.mark.parametrize("value", [b"", b"[]", b"\xff", b"[" * 100_000, b"{}" + b" " * MAX_VALUE_BYTES])
def test_numbers_of_value_that_is_not_an_entry_cannot_be_decoded(value: bytes) -> None:
    assert (decode_followed_offset(value), decode_driver_number(value)) == (None, None)
