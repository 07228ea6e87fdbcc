"""For tests of your own jobs: a broker in the test's process, and a topic read back as a table.

    with embedded_broker(topics={"orders": 3}) as broker:
        job(broker.bootstrap_servers)
        assert read_topic(broker.bootstrap_servers, "orders").num_rows == 2

The broker speaks the real protocol on a port of 127.0.0.1 and keeps its records in memory; everything is gone when the
`with` ends. `broker.control` makes it misbehave: `help(broker.control)` lists how. With pytest installed there is a
fixture, too: a test that has an argument `kafka_broker` gets one whose topics are created when they are written to.

Nothing here needs Spark. `spark.createDataFrame(read_topic(...))` makes a DataFrame of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from spark_kafka_sink.broker.cluster import MESSAGE_BYTES_MAX, ClusterConfig
from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.broker.embedded import EmbeddedBroker
from spark_kafka_sink.broker.listener_security import ListenerSecurity
from spark_kafka_sink.broker.listening import Listening
from spark_kafka_sink.reader.reader import READ_BYTES_MAX, READ_COMMITTED, read_topic_table

__all__ = ["Control", "EmbeddedBroker", "ListenerSecurity", "embedded_broker", "read_topic"]


def embedded_broker(  # noqa: PLR0913 - the settings of a broker, each by its name
    topics: Mapping[str, int] | None = None,
    *,
    nodes: int = 1,
    auto_create_topics: bool = False,
    default_partitions: int = 1,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    transaction_version: int = 2,
    discard: bool = False,
    check_records: bool = True,
    security: ListenerSecurity | None = None,
    data: Path | None = None,
    host: str = "127.0.0.1",
    advertised_host: str | None = None,
    port: int = 0,
    seed: int = 0,
) -> EmbeddedBroker:
    """A running broker, or a cluster of several nodes, to be used in a `with`.

    topics               number of partitions by name
    auto_create_topics   a topic that a client asks for is made, with `default_partitions`
    transaction_version  2, or 1 as brokers before Kafka 4 have it
    discard              acknowledge and count, and keep nothing: for measuring
    check_records        look into the records of each batch, as brokers do; off, at its header and CRC only
    security             TLS and SASL (ListenerSecurity); for TLS `advertised_host` is the name in the certificate
    data                 a directory in which topics outlive the broker
    host                 where to listen; 0.0.0.0 is all interfaces, and `advertised_host` then a name of this machine
    port                 of the first node, the others follow; 0 for any free ones
    seed                 of everything in `control` that is left to chance
    """
    config = ClusterConfig(
        nodes=nodes,
        auto_create_topics=auto_create_topics,
        default_partitions=default_partitions,
        message_bytes_max=message_bytes_max,
        transaction_version=transaction_version,
        discard=discard,
        check_records=check_records,
        seed=seed,
    )
    listening = Listening(
        host,
        advertised_host,
        ports=[port + number for number in range(nodes)] if port else [],
        security=security or ListenerSecurity(),
    )
    return EmbeddedBroker(config, listening, topics=topics, data=data)


def read_topic(
    bootstrap: str,
    topic: str,
    *,
    isolation: str = READ_COMMITTED,
    options: Mapping[str, object] | None = None,
    bytes_max: int = READ_BYTES_MAX,
) -> pa.Table:
    """All that stands in a topic now, in the columns of Spark's Kafka source.

    key, value, topic, partition, offset, timestamp, timestampType, headers. `isolation` is read_committed or
    read_uncommitted; `options` are client options, such as those of security, by their names. A topic whose rows take
    more than `bytes_max` in memory is a DataError.
    """
    return read_topic_table(bootstrap, topic, isolation=isolation, options=options, bytes_max=bytes_max)
