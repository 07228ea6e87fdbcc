"""The log of what is decided: made, read to its end, and refused where it is not ours."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from spark_kafka_sink.errors import BrokerError, DecodeError
from spark_kafka_sink.exactly_once.decision_log import DRIVER_TIMEOUT_MS, DecisionLog
from spark_kafka_sink.exactly_once.decision_writer import DecisionWriter
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.names import driver_id
from spark_kafka_sink.exactly_once.transactions_client import TransactionsClient
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.reader.blocking_client import Patience
from spark_kafka_sink.reader.reader import TopicReader
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.cases import LOG, client_of
from tests.exactly_once.cases import broker as broker
from tests.waiting import PATIENCE_SECONDS


def log_of(broker: EmbeddedBroker, client: TransactionsClient) -> DecisionLog:
    config = ProducerConfig.parse({"bootstrap.servers": broker.bootstrap_servers}).client_config()
    return DecisionLog(config, LOG, client.blocking)


def writer_of(broker: EmbeddedBroker, client: TransactionsClient, prefix: str) -> DecisionWriter:
    driver = client.init_producer_id(driver_id(prefix), DRIVER_TIMEOUT_MS)
    return DecisionWriter({"bootstrap.servers": broker.bootstrap_servers}, LOG, prefix, driver)


def test_it_is_created_compacted_and_only_once(broker: EmbeddedBroker) -> None:
    with client_of(broker) as client:
        log = log_of(broker, client)
        assert not log.exists()
        log.create_if_missing()
        log.create_if_missing()
        assert log.exists()
        assert log.read() == {}
    assert broker.cluster.topic(LOG).config["cleanup.policy"] == "compact"


@pytest.mark.parametrize("code", [error_codes.TOPIC_AUTHORIZATION_FAILED, error_codes.POLICY_VIOLATION])
def test_that_it_may_not_be_created_is_an_error_which_names_it(broker: EmbeddedBroker, code: int) -> None:
    broker.control.when(api=ApiKey.CREATE_TOPICS, times=None).fail(code)
    with client_of(broker) as client, pytest.raises(BrokerError, match="topic decisions, the log of what is decided"):
        log_of(broker, client).create_if_missing()


def test_a_controller_that_moves_is_asked_again(broker: EmbeddedBroker) -> None:
    broker.control.when(api=ApiKey.CREATE_TOPICS, times=2).fail(error_codes.NOT_CONTROLLER)
    with client_of(broker) as client:
        log = log_of(broker, client)
        log.create_if_missing()
        assert log.exists()


def test_the_newest_entry_of_each_prefix_counts_and_what_is_forgotten_is_gone(broker: EmbeddedBroker) -> None:
    with client_of(broker) as client:
        log = log_of(broker, client)
        log.create_if_missing()
        with writer_of(broker, client, "p") as writer:
            writer.write(Entry("p", generation=1))
            assert log.read() == {"p": Entry("p", generation=1)}
            writer.write(Entry("p", generation=2))
        with writer_of(broker, client, "q") as writer:
            writer.write(Entry("q"))
        assert log.read() == {"p": Entry("p", generation=2), "q": Entry("q")}
        assert log_of(broker, client).read() == log.read()
        with writer_of(broker, client, "p") as writer:
            writer.forget()
        assert log.read() == {"q": Entry("q")}


def test_it_is_read_past_an_open_transaction_of_another_query(broker: EmbeddedBroker) -> None:
    """What is decided may stand behind it: a reader that stopped there would have the batch written twice."""
    with client_of(broker) as client:
        log = log_of(broker, client)
        log.create_if_missing()
        other = KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "other-driver"})
        other.init_transactions()
        other.begin_transaction()
        other.send(ProducerRecord(LOG, b"{}", key="other", partition=0)).result(PATIENCE_SECONDS)
        with writer_of(broker, client, "p") as writer:
            writer.write(Entry("p"))
        assert log.glance() == {}
        whole = Patience.wait

        def wait(patience: Patience, *arguments: object) -> None:
            if other._transactions is not None and other._transactions.manager.is_open:
                other.abort_transaction()
            whole(patience, *arguments)  # type: ignore[arg-type]

        with patch.object(Patience, "wait", wait):
            assert log.read() == {"p": Entry("p")}
        other.close()


def test_a_topic_with_other_records_is_refused_with_the_place_and_the_remedy(broker: EmbeddedBroker) -> None:
    with client_of(broker) as client:
        log = log_of(broker, client)
        log.create_if_missing()
        with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            producer.send(ProducerRecord(LOG, b"mine", key="mine", partition=0)).result(PATIENCE_SECONDS)
        with pytest.raises(DecodeError, match=r"topic decisions, partition 0, offset 0: .*decisionLogTopic"):
            log.read()


def test_what_was_read_is_not_read_again_by_this_process(broker: EmbeddedBroker) -> None:
    fetched: list[dict[int, int] | None] = []
    whole = TopicReader.batches

    def batches(reader: TopicReader, topic: str, **where: Any) -> Any:
        fetched.append(where["start"])
        return whole(reader, topic, **where)

    with client_of(broker) as client, patch.object(TopicReader, "batches", batches):
        log_of(broker, client).create_if_missing()
        with writer_of(broker, client, "p") as writer:
            writer.write(Entry("p", generation=1))
            assert log_of(broker, client).read() == {"p": Entry("p", generation=1)}
            writer.write(Entry("p", generation=2))
            assert log_of(broker, client).read() == {"p": Entry("p", generation=2)}
    assert fetched == [{0: 0}, {0: 2}], "a record and its marker"


def test_a_log_that_was_created_again_is_read_from_its_beginning(broker: EmbeddedBroker) -> None:
    with client_of(broker) as client:
        log_of(broker, client).create_if_missing()
        with writer_of(broker, client, "p") as writer:
            writer.write(Entry("p"))
        assert log_of(broker, client).read() == {"p": Entry("p")}
    broker.control.delete_topic(LOG)
    with client_of(broker) as client:
        log_of(broker, client).create_if_missing()
        with writer_of(broker, client, "q") as writer:
            writer.write(Entry("q"))
        assert log_of(broker, client).read() == {"q": Entry("q")}
