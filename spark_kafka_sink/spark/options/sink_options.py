"""SinkOptions: what the options of a write come to. Tasks import this, and not how options are parsed (parse.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from spark_kafka_sink.producer.config import ProducerConfig

if TYPE_CHECKING:
    from spark_kafka_sink.client.new_topic import NewTopic
    from spark_kafka_sink.exactly_once.delivery import DeliveryOptions
    from spark_kafka_sink.formats.options import FormatOptions
    from spark_kafka_sink.formats.registry_options import RegistryOptions
    from spark_kafka_sink.spark.options.distribution import DistributionOptions


@dataclass(frozen=True)
class SinkOptions:
    """What a write needs to know. `producer` is KafkaProducer's configuration, as given."""

    producer: Mapping[str, str] = field(repr=False)
    topic: str | None = None
    new_topic: NewTopic | None = None
    """How `topic` is made if it is missing. For the driver only."""

    distribution: DistributionOptions | None = None
    """What is still to be done before the write. None: rows stay in their tasks, or are distributed already."""

    dead_letter_topic: str | None = None
    check_connection: bool = True
    report_path: str | None = None
    report_topic: str | None = None
    report_callback: str | None = None
    bytes_per_second: float | None = None
    """of one task: its share of maxBytesPerSecond"""
    formats: tuple[FormatOptions, ...] = ()
    registry: RegistryOptions | None = None
    """For the driver only: it is not pickled to the tasks, which need none of its secrets."""

    exactly_once: DeliveryOptions | None = None
    """None: at least once."""

    def producer_config(self) -> ProducerConfig:
        """The parsed configuration; cannot fail after parse_options."""
        return self._config

    @cached_property
    def _config(self) -> ProducerConfig:
        return ProducerConfig.parse(self.producer)

    def __getstate__(self) -> dict[str, object]:
        """Without the parsed configuration: a task's producer parses what was given itself."""
        return {name: value for name, value in self.__dict__.items() if name != "_config"}
