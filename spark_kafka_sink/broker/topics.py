"""Topics and partitions as a cluster knows them: ids, settings, leaders, replicas in sync."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from spark_kafka_sink.broker.log import LogConfig, PartitionLog
from spark_kafka_sink.errors import ConfigurationError

TOPIC_SETTINGS = {
    "max.message.bytes": "the largest batch that is taken",
    "message.timestamp.type": "CreateTime or LogAppendTime",
    "min.insync.replicas": "how many replicas must be in sync for acks=all",
    "retention.ms": "taken, and not acted on: nothing is deleted by age here",
    "cleanup.policy": "with compact, records without a key are refused; nothing is compacted here",
    "segment.bytes": "taken, and not acted on: a log is one segment here",
    "segment.ms": "taken, and not acted on",
    "min.cleanable.dirty.ratio": "taken, and not acted on",
    "delete.retention.ms": "taken, and not acted on",
    "unclean.leader.election.enable": "taken, and not acted on: all nodes have the same records here",
}


@dataclass(frozen=True)
class NewTopic:
    """A topic to be created. Without an id it gets one."""

    name: str
    partitions: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    topic_id: UUID | None = None


@dataclass
class Partition:
    """Guarded by the cluster's lock; the log guards itself."""

    index: int
    leader: int | None
    replicas: tuple[int, ...]
    log: PartitionLog
    leader_epoch: int = 0


@dataclass
class Topic:
    name: str
    id: UUID
    partitions: list[Partition] = field(default_factory=list)
    config: Mapping[str, str] = field(default_factory=dict)
    hidden: bool = False
    in_sync_max: int | None = None

    @property
    def min_in_sync(self) -> int:
        return int(self.config.get("min.insync.replicas", "1"))


def log_config(settings: Mapping[str, str], *, message_bytes_max: int, check_records: bool, discard: bool) -> LogConfig:
    """ConfigurationError names every setting that is wrong."""
    faults = [f"topic setting {name} is not known here" for name in settings if name not in TOPIC_SETTINGS]
    kind = settings.get("message.timestamp.type", "CreateTime")
    if kind not in ("CreateTime", "LogAppendTime"):
        faults.append(f"message.timestamp.type is CreateTime or LogAppendTime, not {kind}")
    for name, lowest in (("max.message.bytes", 0), ("min.insync.replicas", 1)):
        value = settings.get(name, str(lowest))
        if not value.isdecimal() or int(value) < lowest:
            faults.append(f"{name} is a number of at least {lowest}, not {value}")
    if faults:
        raise ConfigurationError(faults)
    return LogConfig(
        message_bytes_max=int(settings.get("max.message.bytes", message_bytes_max)),
        log_append_time=kind == "LogAppendTime",
        compacted="compact" in settings.get("cleanup.policy", "delete").split(","),
        check_records=check_records,
        discard=discard,
    )
