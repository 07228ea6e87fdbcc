"""A topic, by its name and the options of a client that may read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from spark_kafka_sink.reader.reader import MAX_READ_BYTES, READ_COMMITTED, read_topic_table


@dataclass(frozen=True)
class KafkaTopic:
    """A topic of an embedded broker, or of any Kafka: `KafkaTopic("orders", {"bootstrap.servers": "host:9092"})`."""

    name: str
    client_options: Mapping[str, object] = field(repr=False)

    @property
    def spark_options(self) -> dict[str, str]:
        """For `df.write.format("pykafka").options(...)`: the topic, the address and what security asks for."""
        return {**spark_options(self.client_options), "topic": self.name}

    def read(self, *, isolation: str = READ_COMMITTED, max_bytes: int = MAX_READ_BYTES) -> pa.Table:
        """All rows of the topic, in the columns that `read_topic` gives."""
        return read_topic_table(
            str(self.client_options["bootstrap.servers"]),
            self.name,
            isolation=isolation,
            options={name: value for name, value in self.client_options.items() if name != "bootstrap.servers"},
            max_bytes=max_bytes,
        )


def spark_options(client_options: Mapping[str, object]) -> dict[str, str]:
    """The client's options as Spark has them: with `kafka.` before their names."""
    return {f"kafka.{name}": str(value) for name, value in client_options.items()}


def read_topic(
    bootstrap: str,
    topic: str,
    *,
    isolation: str = READ_COMMITTED,
    options: Mapping[str, object] | None = None,
    max_bytes: int = MAX_READ_BYTES,
) -> pa.Table:
    """All that stands in a topic now, in the columns of Spark's Kafka source.

    key, value, topic, partition, offset, timestamp, timestampType, headers. `isolation` is read_committed or
    read_uncommitted; `options` are client options, such as those of security, by their names. A topic whose rows take
    more than `max_bytes` in memory is a DataError.
    """
    return read_topic_table(bootstrap, topic, isolation=isolation, options=options, max_bytes=max_bytes)
