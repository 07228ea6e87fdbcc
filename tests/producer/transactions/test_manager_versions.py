"""New epochs at the beginning of a version 2 transaction that follows one of version 1."""

from __future__ import annotations

from spark_kafka_sink.requests.init_producer_id import InitProducerId
from tests.producer.transactions.transaction_cases import TransactionHarness


def test_version_2_requests_epoch_after_take_over_in_version_1() -> None:
    prepared = TransactionHarness(1).with_added_partitions().manager.prepare()
    assert prepared is not None
    other = TransactionHarness(1)
    other.manager.take_over(prepared)
    other.commit()
    other.manager.begin(2)
    assert type(other.require_due_request()) is InitProducerId


def test_version_2_requests_no_epoch_after_new_init() -> None:
    harness = TransactionHarness(1).with_added_partitions()
    harness.manager.prepare()
    harness.init()
    harness.manager.begin(2)
    assert harness.find_due_request() is None
