"""New epochs at the beginning of a version 2 transaction that follows one of version 1."""

from __future__ import annotations

from spark_kafka_sink.requests.init_producer_id import InitProducerId
from tests.producer.transactions.transaction_cases import Talk


def test_version_2_requests_epoch_after_take_over_in_version_1() -> None:
    prepared = Talk(1).started().manager.prepare()
    assert prepared is not None
    other = Talk(1)
    other.manager.take_over(prepared)
    other.commit()
    other.manager.begin(2)
    assert type(other.due()) is InitProducerId


def test_version_2_requests_no_epoch_after_new_init() -> None:
    talk = Talk(1).started()
    talk.manager.prepare()
    talk.init()
    talk.manager.begin(2)
    assert talk.next() is None
