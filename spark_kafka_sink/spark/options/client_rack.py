"""The option `clientRackEnv`, and its conflicts with options of the producer."""

from __future__ import annotations

import re
from collections.abc import Mapping

from spark_kafka_sink.client.option_parsing import ParsedOptions, parse_text
from spark_kafka_sink.options import Option
from spark_kafka_sink.spark.options.names import KAFKA_PREFIX

RACK_AWARE_OPTION = "partitioner.rack.aware"
RACK_OPTION = "client.rack"
_VARIABLE_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*", re.ASCII)


def variable_name(value: object) -> str:
    name = parse_text(value)
    if not _VARIABLE_NAME_PATTERN.fullmatch(name):
        raise ValueError("must be the name of an environment variable, such as AVAILABILITY_ZONE")
    return name


CLIENT_RACK_OPTION = Option(
    "clientRackEnv",
    None,
    variable_name,
    "environment variable of the executors from which each task reads `kafka.client.rack`, for "
    "[rows without a key that stay in their zone](tuning.md#keep-traffic-in-the-zone)",
)


def parse_client_rack(parsed_options: ParsedOptions, kafka_options: Mapping[str, str]) -> dict[str, str]:
    """Return the Kafka options that the driver's producers also use.

    With `clientRackEnv`, these are the options without `partitioner.rack.aware`, which each task adds together with the
    rack of its executor.
    """
    if CLIENT_RACK_OPTION.name not in parsed_options.raw_values:
        return dict(kafka_options)
    if RACK_OPTION in kafka_options:
        fault = f"and {KAFKA_PREFIX}{RACK_OPTION} are both set. Remove one of them."
        parsed_options.faults.add(CLIENT_RACK_OPTION.name, fault)
    if kafka_options.get(RACK_AWARE_OPTION, "").strip().lower() != "true":
        fault = f"has no effect unless {KAFKA_PREFIX}{RACK_AWARE_OPTION} is true."
        parsed_options.faults.add(CLIENT_RACK_OPTION.name, fault)
    return {name: value for name, value in kafka_options.items() if name != RACK_AWARE_OPTION}
