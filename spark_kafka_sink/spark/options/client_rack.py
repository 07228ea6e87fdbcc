"""The option `clientRackEnv`, which names the environment variable that holds a task's rack.

This module also checks whether the option conflicts with any producer options.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from spark_kafka_sink.client.option_parsing import ParsedOptions, parse_text
from spark_kafka_sink.diagnostics.deferred_log import warn_once
from spark_kafka_sink.options import Option
from spark_kafka_sink.producer.options import ROUND_ROBIN_PARTITIONER
from spark_kafka_sink.spark.constants import CLIENT_RACK_OPTION, RACK_AWARE_OPTION
from spark_kafka_sink.spark.options.distribution import BY_PARTITION, DistributionOptions
from spark_kafka_sink.spark.options.names import KAFKA_PREFIX

_log = logging.getLogger(__name__)

_VARIABLE_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*", re.ASCII)


def parse_variable_name(value: object) -> str:
    """Return the name of an environment variable. Raise ValueError if it is invalid."""
    name = parse_text(value)
    if not _VARIABLE_NAME_PATTERN.fullmatch(name):
        raise ValueError("must be the name of an environment variable, such as AVAILABILITY_ZONE")
    return name


CLIENT_RACK_ENV_OPTION = Option(
    "clientRackEnv",
    None,
    parse_variable_name,
    "name of the environment variable on the executors that holds the value of `kafka.client.rack`; used to "
    "[keep rows without a key in their zone](tuning.md#keep-traffic-in-the-zone)",
)


def parse_shared_kafka_options(parsed_options: ParsedOptions, kafka_options: Mapping[str, str]) -> dict[str, str]:
    """Return the Kafka options that the producers of the driver and of the tasks share.

    If `clientRackEnv` is set, `partitioner.rack.aware` is omitted, because each task adds it together with its
    executor's rack. Add a problem to `parsed_options` if `clientRackEnv` conflicts with these options or has no effect.

    `kafka_options`: the `kafka.` options, by their names without this prefix.
    """
    if CLIENT_RACK_ENV_OPTION.name not in parsed_options.raw_values:
        return dict(kafka_options)
    if CLIENT_RACK_OPTION in kafka_options:
        parsed_options.problems.add(
            CLIENT_RACK_ENV_OPTION.name,
            f"cannot be combined with {KAFKA_PREFIX}{CLIENT_RACK_OPTION}. Remove one of them.",
        )
    if not _is_rack_aware(kafka_options):
        parsed_options.problems.add(
            CLIENT_RACK_ENV_OPTION.name, f"has no effect unless {KAFKA_PREFIX}{RACK_AWARE_OPTION} is true."
        )
    return {name: value for name, value in kafka_options.items() if name != RACK_AWARE_OPTION}


def check_rack_awareness(
    parsed_options: ParsedOptions,
    parsed_producer_options: ParsedOptions,
    kafka_options: Mapping[str, str],
    distribution: DistributionOptions | None,
) -> None:
    """Add a problem to `parsed_options` for each option that makes rack awareness or `clientRackEnv` ineffective.

    If `client.rack` is set without `partitioner.rack.aware`, only log a warning, because a consumer that shares these
    options may use the rack.

    `kafka_options`: all options with the prefix `kafka.`, by their names without the prefix.
    `distribution`: None if the rows are not redistributed between tasks.
    """
    # The producer has a similar check. With `clientRackEnv`, it does not see `partitioner.rack.aware`, because
    # `parse_shared_kafka_options` has removed it.
    if not _is_rack_aware(kafka_options):
        if CLIENT_RACK_OPTION in kafka_options:
            warning = (
                f"{KAFKA_PREFIX}{CLIENT_RACK_OPTION} has no effect unless {KAFKA_PREFIX}{RACK_AWARE_OPTION} is true."
            )
            warn_once(_log, warning)
        return
    if distribution is not None and distribution.strategy == BY_PARTITION:
        parsed_options.problems.add(
            "distribution",
            f"is '{BY_PARTITION}', so {KAFKA_PREFIX}{RACK_AWARE_OPTION} has no effect: Spark chooses the partition of "
            "each row. Remove one of them.",
        )
    has_round_robin = parsed_producer_options.values["partitioner_class"] == ROUND_ROBIN_PARTITIONER
    if has_round_robin and CLIENT_RACK_ENV_OPTION.name in parsed_options.raw_values:
        parsed_options.problems.add(
            CLIENT_RACK_ENV_OPTION.name,
            f"has no effect, because {KAFKA_PREFIX}partitioner.class is {ROUND_ROBIN_PARTITIONER}. Remove one of them.",
        )


def _is_rack_aware(kafka_options: Mapping[str, str]) -> bool:
    return kafka_options.get(RACK_AWARE_OPTION, "").strip().lower() == "true"
