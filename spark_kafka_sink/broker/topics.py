"""A cluster's topics and partitions, and the settings that a topic can have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import isfinite
from uuid import UUID

from spark_kafka_sink.broker.log import LogConfig, PartitionLog
from spark_kafka_sink.errors import ConfigurationError


class SettingType(IntEnum):
    """Setting types, with their numbers in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True)
class TopicSetting:
    """The type and valid values of a topic setting, as in Kafka's LogConfig."""

    type: SettingType
    min_value: int | None = None
    allowed_values: tuple[str, ...] = ()
    has_effect: bool = False
    """Whether the embedded broker acts on the setting. If False, it only stores and describes it."""

    def is_valid(self, value: str) -> bool:
        """Return whether the value has the type of the setting and is one of its valid values."""
        if self.type is SettingType.BOOLEAN:
            return value.strip().lower() in ("true", "false")
        if self.type in (SettingType.STRING, SettingType.LIST):
            values = value.split(",") if self.type is SettingType.LIST else [value]
            return not self.allowed_values or all(item.strip() in self.allowed_values for item in values)
        try:
            if self.type is SettingType.DOUBLE:
                number = float(value)
            else:
                number = _parse_integer(value, _INTEGER_BITS[self.type])
        except ValueError:
            return False
        return isfinite(number) and (self.min_value is None or number >= self.min_value)

    def __str__(self) -> str:
        """Describe the valid values, to complete the sentence "must be ..."."""
        if self.allowed_values:
            return f"one of {', '.join(self.allowed_values)}"
        return self.type.name if self.min_value is None else f"{self.type.name} of at least {self.min_value}"


_INTEGER_BITS = {SettingType.INT: 32, SettingType.LONG: 64}
_INTEGER_PATTERN = re.compile(r"[-+]?[0-9]{1,19}")  # int() would also accept spaces and underscores
_BOOLEAN, _STRING, _LIST = SettingType.BOOLEAN, SettingType.STRING, SettingType.LIST
_INT, _LONG, _DOUBLE = SettingType.INT, SettingType.LONG, SettingType.DOUBLE
_COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

TOPIC_SETTINGS = {
    "cleanup.policy": TopicSetting(_LIST, allowed_values=("compact", "delete"), has_effect=True),
    "compression.gzip.level": TopicSetting(_INT, -1),
    "compression.lz4.level": TopicSetting(_INT, 1),
    "compression.type": TopicSetting(_STRING, allowed_values=_COMPRESSION_TYPES),
    "compression.zstd.level": TopicSetting(_INT, -131_072),
    "delete.retention.ms": TopicSetting(_LONG, 0),
    "file.delete.delay.ms": TopicSetting(_LONG, 0),
    "flush.messages": TopicSetting(_LONG, 1),
    "flush.ms": TopicSetting(_LONG, 0),
    "follower.replication.throttled.replicas": TopicSetting(_LIST),
    "index.interval.bytes": TopicSetting(_INT, 0),
    "leader.replication.throttled.replicas": TopicSetting(_LIST),
    "local.retention.bytes": TopicSetting(_LONG, -2),
    "local.retention.ms": TopicSetting(_LONG, -2),
    "max.compaction.lag.ms": TopicSetting(_LONG, 1),
    "max.message.bytes": TopicSetting(_INT, 0, has_effect=True),
    "message.timestamp.after.max.ms": TopicSetting(_LONG, 0),
    "message.timestamp.before.max.ms": TopicSetting(_LONG, 0),
    "message.timestamp.type": TopicSetting(_STRING, allowed_values=("CreateTime", "LogAppendTime"), has_effect=True),
    "min.cleanable.dirty.ratio": TopicSetting(_DOUBLE, 0),
    "min.compaction.lag.ms": TopicSetting(_LONG, 0),
    "min.insync.replicas": TopicSetting(_INT, 1, has_effect=True),
    "preallocate": TopicSetting(_BOOLEAN),
    "remote.log.copy.disable": TopicSetting(_BOOLEAN),
    "remote.log.delete.on.disable": TopicSetting(_BOOLEAN),
    "remote.storage.enable": TopicSetting(_BOOLEAN),
    "retention.bytes": TopicSetting(_LONG),
    "retention.ms": TopicSetting(_LONG, -1),
    "segment.bytes": TopicSetting(_INT),
    "segment.index.bytes": TopicSetting(_INT, 4),
    "segment.jitter.ms": TopicSetting(_LONG, 0),
    "segment.ms": TopicSetting(_LONG, 1),
    "unclean.leader.election.enable": TopicSetting(_BOOLEAN),
}
"""Every topic setting of Kafka 4.3."""


def _parse_integer(value: str, bits: int) -> int:
    """Parse a signed integer. Raise ValueError if the value is not an integer or does not fit into `bits`."""
    if not _INTEGER_PATTERN.fullmatch(value):
        raise ValueError(value)
    number = int(value)
    limit = 1 << (bits - 1)
    if not -limit <= number < limit:
        raise ValueError(value)
    return number


@dataclass(frozen=True)
class TopicDefinition:
    """A topic to create, or a stored one to load, which has an id. A new topic gets its id from the cluster."""

    name: str
    partition_count: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    topic_id: UUID | None = None


@dataclass
class Partition:
    """A partition with its leader, replicas and log. Guarded by the cluster's lock, but the log has its own."""

    index: int
    leader: int | None
    """The leader's node id, or None if no replica is running."""
    replicas: tuple[int, ...]
    log: PartitionLog
    leader_epoch: int = 0


@dataclass
class Topic:
    """A topic, with its partitions and the settings it was created with. Guarded by the cluster's lock."""

    name: str
    id: UUID
    partitions: list[Partition] = field(default_factory=list)
    config: Mapping[str, str] = field(default_factory=dict)
    is_hidden: bool = False
    """Whether Metadata and DescribeConfigs omit the topic (an injected fault)."""
    max_in_sync_replicas: int | None = None
    """Maximum number of in-sync replicas (an injected fault), or None for no limit."""

    @property
    def min_in_sync_replicas(self) -> int:
        return int(self.config.get("min.insync.replicas", "1"))


def build_log_config(settings: Mapping[str, str], cluster_config: LogConfig) -> LogConfig:
    """Return the configuration of a topic's logs: the cluster's configuration, overridden by the topic's settings.

    Raise a ConfigurationError that lists all unknown and invalid settings.
    """
    errors = [f"Topic setting {name} is unknown." for name in settings if name not in TOPIC_SETTINGS]
    errors += [
        f"Topic setting {name} must be {TOPIC_SETTINGS[name]}, not {value}."
        for name, value in settings.items()
        if name in TOPIC_SETTINGS and not TOPIC_SETTINGS[name].is_valid(value)
    ]
    if errors:
        raise ConfigurationError(errors)
    return replace(
        cluster_config,
        max_message_bytes=int(settings.get("max.message.bytes", cluster_config.max_message_bytes)),
        uses_log_append_time=settings.get("message.timestamp.type") == "LogAppendTime",
        is_compacted="compact" in settings.get("cleanup.policy", "delete").split(","),
    )
