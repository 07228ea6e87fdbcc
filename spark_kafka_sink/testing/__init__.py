"""For tests of your own jobs: a broker in the test's process, topics as tables, faults by name, DataFrames compared.

    with embedded_broker({"orders": 3}) as broker:
        job(broker.bootstrap_servers)
        assert broker.topic("orders").read().num_rows == 2

The broker speaks the real protocol on a port of 127.0.0.1 and keeps its records in memory; everything is gone when the
`with` ends. `broker.faults` and `broker.control` make it misbehave.

With pytest installed there are fixtures, too: `kafka_broker` (a broker for one test), `session_kafka_broker` (one for
the whole run), `kafka_topic` and `new_kafka_topic` (topics of a test's own on that one).

Only `assert_topic_equals`, `topic_frame` and the helpers of streams need Spark.
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
