"""KafkaTopic: a topic in a test, with the client options to write and read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from spark_kafka_sink.reader.fetch import READ_COMMITTED
from spark_kafka_sink.reader.reader import MAX_READ_BYTES, read_topic_table


@dataclass(frozen=True)
class KafkaTopic:
    """A topic on an embedded broker or any cluster: `KafkaTopic("orders", {"bootstrap.servers": "host:9092"})`."""

    name: str
    client_options: Mapping[str, object] = field(repr=False)

    @property
    def spark_options(self) -> dict[str, str]:
        """Options for `df.write.format("pykafka").options(...)`: the topic, the bootstrap servers and security."""
        return {**to_spark_options(self.client_options), "topic": self.name}

    def read(self, *, isolation: str = READ_COMMITTED, max_bytes: int = MAX_READ_BYTES) -> pa.Table:
        """Read all current records of the topic, like `read_topic`."""
        return read_topic_table(
            str(self.client_options["bootstrap.servers"]),
            self.name,
            isolation=isolation,
            options={name: value for name, value in self.client_options.items() if name != "bootstrap.servers"},
            max_bytes=max_bytes,
        )


def to_spark_options(client_options: Mapping[str, object]) -> dict[str, str]:
    """Add Spark's prefix `kafka.` to the names of client options."""
    return {f"kafka.{name}": str(value) for name, value in client_options.items()}


def read_topic(
    bootstrap: str,
    topic: str,
    *,
    isolation: str = READ_COMMITTED,
    options: Mapping[str, object] | None = None,
    max_bytes: int = MAX_READ_BYTES,
) -> pa.Table:
    """Read all current records of a topic into a table with the columns of Spark's Kafka source.

    The columns are key, value, topic, partition, offset, timestamp, timestampType and headers. Raise DataError if
    the records need more than `max_bytes` of memory.

    - `isolation`: read_committed or read_uncommitted
    - `options`: client options, such as security settings
    """
    return read_topic_table(bootstrap, topic, isolation=isolation, options=options, max_bytes=max_bytes)
