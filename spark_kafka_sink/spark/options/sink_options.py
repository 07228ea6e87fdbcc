"""SinkOptions, the parsed options of a write. Tasks import this module but not the parsers (parse.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from spark_kafka_sink.producer.config import ProducerConfig

if TYPE_CHECKING:
    from spark_kafka_sink.client.new_topic import NewTopic
    from spark_kafka_sink.exactly_once.settings import ExactlyOnceOptions
    from spark_kafka_sink.formats.options import FormatOptions
    from spark_kafka_sink.formats.registry_options import RegistryOptions
    from spark_kafka_sink.spark.options.distribution import DistributionOptions


@dataclass(frozen=True)
class SinkOptions:
    """The parsed options of a write. Only `producer_options` holds unparsed options."""

    producer_options: Mapping[str, str] = field(repr=False)
    topic: str | None = None
    new_topic: NewTopic | None = None
    """The topic to create if `topic` is missing. Only the driver uses it."""

    distribution: DistributionOptions | None = None
    """The distribution of rows over tasks; None if rows stay in their tasks or are already distributed."""

    dead_letter_topic: str | None = None
    check_connection: bool = True
    report_path: str | None = None
    report_topic: str | None = None
    report_callback: str | None = None
    lineage_directory: str | None = None
    """The directory for reports from which the calling program builds OpenLineage events; None if it sends none."""
    include_digests: bool = False
    """Whether to include digests of the written rows in the report."""
    bytes_per_second: float | None = None
    """One task's share of maxBytesPerSecond; None for no limit."""
    rack_env_variable: str | None = None
    """The environment variable that contains a task's rack; None if the option `clientRackEnv` is not set.

    If it is set, partitioner.rack.aware has been removed from `producer_options`.
    """
    formats: tuple[FormatOptions, ...] = ()
    registry: RegistryOptions | None = None
    """The schema registry's options; None if no format needs them.

    The data source removes them before the options are pickled and sent to the tasks, because only the driver needs
    their secrets.
    """

    write_method: str | None = None
    """DATA_SOURCE or MAP_IN_ARROW; None if the user has not set the option."""

    exactly_once_options: ExactlyOnceOptions | None = None
    """The options of exactly-once delivery; None for at-least-once delivery."""

    def producer_config(self) -> ProducerConfig:
        """Return the producer's parsed configuration. This cannot fail, because `parse_options` checked the options."""
        return self._config

    @cached_property
    def _config(self) -> ProducerConfig:
        return ProducerConfig.parse(self.producer_options)

    def __getstate__(self) -> dict[str, object]:
        """Exclude the parsed configuration, because a task's producer parses the options itself."""
        return {name: value for name, value in self.__dict__.items() if name != "_config"}
