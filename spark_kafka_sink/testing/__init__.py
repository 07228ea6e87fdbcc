"""Tools for testing your own jobs: an embedded broker, topics as tables, injected faults and DataFrame comparisons.

    with embedded_broker({"orders": 3}) as broker:
        job(broker.bootstrap_servers)
        assert broker.topic("orders").read().num_rows == 2

The broker runs in the test's process. It serves Kafka's protocol on a port of 127.0.0.1 and by default keeps its
records in memory until the `with` block ends. Use `broker.faults` and `broker.control` to inject faults.

The package is also a pytest plugin with these fixtures: `kafka_broker` (a broker for one test), `session_kafka_broker`
(a broker for the whole session), and `kafka_topic` and `new_kafka_topic` (topics for one test on the session's broker).

Only `assert_topic_equals`, `topic_frame` and the functions for streams require Spark.
"""

from __future__ import annotations

from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.broker.listener_security import ListenerSecurity
from spark_kafka_sink.testing.dataframes import assert_topic_equals, topic_frame
from spark_kafka_sink.testing.embedded import EmbeddedBroker, embedded_broker
from spark_kafka_sink.testing.faults import Faults
from spark_kafka_sink.testing.streams import drain, run_stream, stream_of
from spark_kafka_sink.testing.topic import KafkaTopic, read_topic

__all__ = [
    "Control",
    "EmbeddedBroker",
    "Faults",
    "KafkaTopic",
    "ListenerSecurity",
    "assert_topic_equals",
    "drain",
    "embedded_broker",
    "read_topic",
    "run_stream",
    "stream_of",
    "topic_frame",
]
