"""Options that the sink ignores with a warning: those of Spark's Kafka source, Kafka consumers and schema registries.

Jobs often keep them in the same dictionary as the sink's options. Spark's own sink also ignores them.
"""

from __future__ import annotations

from spark_kafka_sink.formats.registry_transport import REGISTRY_PREFIX

SOURCE_OPTIONS = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    # Misspelt, but common: Spark's source passes it to its consumers, which ignore it.
    "kafka.consumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
)

CONSUMER_OPTIONS = (
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "auto.offset.reset",
    "check.crcs",
    "default.api.timeout.ms",
    "enable.auto.commit",
    "exclude.internal.topics",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "isolation.level",
    "key.deserializer",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "max.poll.records",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "value.deserializer",
)

SERIALIZER_PREFIXES = (REGISTRY_PREFIX, "basic.auth.", "bearer.auth.")
"""Prefixes of registry options of Confluent's serializers. They are not ignored if a format uses a schema registry."""
REGISTRY_PREFIXES = (*SERIALIZER_PREFIXES, "apicurio.")
"""Prefixes of schema registry options."""
