"""The cluster goes to another version of transactions while a query runs: each row is seen once."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import BrokerError, ExactlyOnceError
from spark_kafka_sink.exactly_once import clients
from spark_kafka_sink.exactly_once.late_attempts import refuse_if_late
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.exactly_once.cases import TOPIC, Query, client_of, open_ids, rows, seen


def set_version(broker: EmbeddedBroker, version: int) -> None:
    """As `kafka-features.sh` does: brokers say it to those that connect from now on."""
    cluster = broker.cluster
    cluster.coordinator.version = version
    object.__setattr__(cluster.config, "transaction_version", version)


def reconnect() -> None:
    """What the driver has of the process before."""
    clients.close_idle()


@pytest.mark.parametrize("versions", [(1, 1, 2, 2), (2, 2, 1, 1), (1, 2, 1, 2)])
def test_a_change_between_two_batches_is_noticed_by_the_next_connection(versions: tuple[int, ...]) -> None:
    with embedded_broker(topics={TOPIC: 2}, transaction_version=versions[0]) as broker:
        query = Query(broker)
        for number, version in enumerate(versions):
            set_version(broker, version)
            reconnect()
            query.run(number)
        assert seen(broker) == rows(*range(len(versions)))
        assert open_ids(broker) == []


@pytest.mark.parametrize("versions", [(1, 1), (1, 2), (2, 2), (2, 1)])
def test_an_attempt_that_is_late_for_the_first_batch_after_a_change_is_refused(versions: tuple[int, int]) -> None:
    with embedded_broker(topics={TOPIC: 2}, transaction_version=versions[0]) as broker:
        query = Query(broker)
        query.run(0)
        query.run(1)
        set_version(broker, versions[1])
        reconnect()
        start = query.begin()
        query.commit(start, 2, query.write_both(start, 2))
        with client_of(broker) as client, pytest.raises(ExactlyOnceError):
            refuse_if_late(client.describe, start)


def test_a_driver_that_keeps_its_connections_goes_on_after_an_upgrade() -> None:
    with embedded_broker(topics={TOPIC: 2}, transaction_version=1) as broker:
        query = Query(broker)
        for number, version in enumerate((1, 2, 2)):
            set_version(broker, version)
            query.run(number)
        assert seen(broker) == rows(0, 1, 2)
        assert open_ids(broker) == []


def test_a_driver_that_keeps_its_connections_fails_once_after_a_downgrade_and_nothing_is_lost_or_doubled() -> None:
    with embedded_broker(topics={TOPIC: 2}, transaction_version=2) as broker:
        query = Query(broker)
        query.run(0)
        set_version(broker, 1)
        start = query.begin()
        written = query.write_both(start, 1)
        with pytest.raises(BrokerError, match="TRANSACTION_ABORTABLE"):
            query.commit(start, 1, written)
        assert query.abort(start, 1)
        query.again().run(1)
        assert seen(broker) == rows(0, 1)
        assert open_ids(broker) == []
