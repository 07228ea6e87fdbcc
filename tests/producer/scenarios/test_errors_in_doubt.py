"""Errors of failed records that may be stored say so, with and without idempotence."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import BrokerError, DeliveryError
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.records.columns import RecordColumns
from tests.producer.sending.sender_cases import established, send, simulated, wait
from tests.producer.virtual_time import wait_for_result

MAY_BE_STORED = "The records may have been stored."
NAMELESS = {codes.UNKNOWN_SERVER_ERROR: "UNKNOWN_SERVER_ERROR (-1)", 9_999: "UNKNOWN_9999 (9999)"}


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("code", NAMELESS)
def test_unknown_error_code_fails_records_in_doubt(code: int, applied: bool, idempotent: bool) -> None:
    cluster, producer = simulated(enable_idempotence=idempotent)
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).fail(code, execute_first=applied)
    failed = send(producer, b"1")
    wait(producer, failed)
    error = failed.exception(0)
    assert isinstance(error, DeliveryError)
    assert isinstance(error.__cause__, BrokerError)
    assert f"topic t, partition 0: {NAMELESS[code]}" in str(error)
    assert str(error).endswith(MAY_BE_STORED)
    assert wait_for_result(producer, send(producer, b"2")).offset == (2 if applied else 1)
    assert cluster.values("t") == ([b"0", b"1", b"2"] if applied else [b"0", b"2"])
    producer.close()


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("last", ["the same", codes.NOT_LEADER_OR_FOLLOWER, codes.CLUSTER_AUTHORIZATION_FAILED])
def test_final_error_after_lost_response_mentions_doubt_once(last: int | str, idempotent: bool) -> None:
    cluster, producer = simulated(retries=1, enable_idempotence=idempotent)
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).drop(execute_first=True)
    rule = cluster.control.when(api=ApiKey.PRODUCE, nth=2)
    _ = rule.drop() if isinstance(last, str) else rule.fail(last)
    failed = send(producer, b"1")
    wait(producer, failed)
    assert str(failed.exception(0)).count("may have been stored") == 1
    producer.close()


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("was_appended", [True, False])
@pytest.mark.parametrize("code", [codes.NOT_LEADER_OR_FOLLOWER, codes.KAFKA_STORAGE_ERROR])
def test_error_after_the_append_leaves_records_in_doubt(code: int, was_appended: bool, idempotent: bool) -> None:
    """The broker lost the leadership or the disk while it waited for its followers, which may have the records."""
    cluster, producer = simulated(retries=1, enable_idempotence=idempotent)
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).fail(code, execute_first=was_appended)
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).fail(codes.NOT_LEADER_OR_FOLLOWER)
    failed = send(producer, b"1")
    wait(producer, failed)
    error = failed.exception(0)
    assert isinstance(error, DeliveryError)
    assert error.possibly_stored is was_appended
    producer.close()


@pytest.mark.parametrize("idempotent", [True, False])
def test_rejection_without_earlier_lost_response_leaves_no_doubt(idempotent: bool) -> None:
    cluster, producer = simulated(retries=1, enable_idempotence=idempotent)
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE, times=2).fail(codes.NOT_ENOUGH_REPLICAS)
    failed = send(producer, b"1")
    wait(producer, failed)
    assert "Attempts: 2." in str(failed.exception(0))
    assert "may have been stored" not in str(failed.exception(0))
    producer.close()


def test_batch_in_doubt_is_not_stored_twice_after_split() -> None:
    cluster, producer = simulated(batch_size=100_000)
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).drop(execute_first=True)
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).fail(codes.MESSAGE_TOO_LARGE)
    cluster.control.when(api=ApiKey.PRODUCE, nth=3).fail(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
    result = wait_for_result(producer, producer.send_columns("t", RecordColumns(pa.array([b"1", b"2"])), 0))
    values = cluster.values("t")
    assert [values.count(value) for value in (b"1", b"2")] == [1, 1]
    assert result.rows_failed > 0
    assert all(MAY_BE_STORED in str(failure.error) for failure in result.failures)
    producer.close()
