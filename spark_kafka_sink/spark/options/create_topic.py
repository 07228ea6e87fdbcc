"""The option `createTopic`, and the partitions, replicas and settings of the topic that the driver creates."""

from __future__ import annotations

import re
from collections.abc import Mapping

from spark_kafka_sink.client.new_topic import NewTopic
from spark_kafka_sink.client.option_parsing import ParsedOptions, parse_boolean, parse_optional_text
from spark_kafka_sink.options import Option
from spark_kafka_sink.spark.options.values import parse_partition_count, parse_replication_factor

TOPIC_CONFIG_PREFIX = "createTopic.config."
_CONFIG_NAME_PATTERN = re.compile(r"[a-z][a-z0-9._-]*")

CREATE_TOPIC_OPTIONS = (
    Option(
        "createTopic",
        False,
        parse_boolean,
        "if the topic named by the option `topic` does not exist, create it in the driver before any task starts",
    ),
    Option(
        "createTopic.partitions",
        NewTopic.partitions,
        parse_partition_count,
        "number of partitions; -1 for the brokers' default",
    ),
    Option(
        "createTopic.replicationFactor",
        NewTopic.replicas,
        parse_replication_factor,
        "replication factor; -1 for the brokers' default",
    ),
    Option(
        f"{TOPIC_CONFIG_PREFIX}*",
        None,
        parse_optional_text,
        "topic settings, for example `createTopic.config.cleanup.policy`",
    ),
)
_DEPENDENT_OPTIONS = CREATE_TOPIC_OPTIONS[1:]
"""The options that have no effect unless createTopic is true."""
_ENABLED_CONDITION_TEMPLATE = "{createTopic} is 'true'"
"""Part of a fault's text. When the fault is rendered, `{createTopic}` is replaced by the option's name."""
_TOPIC_REQUIRED_MESSAGE = "requires the option {topic}: topics named in a column are not known until the rows are read."


def extract_topic_configs(sink_options: Mapping[str, str]) -> dict[str, str]:
    """Return the topic settings by name. Spark passes their names in lowercase, which is how Kafka spells them."""
    prefix = TOPIC_CONFIG_PREFIX.lower()
    return {name.removeprefix(prefix): value.strip() for name, value in sink_options.items() if name.startswith(prefix)}


def parse_new_topic(parsed_options: ParsedOptions, topic: str | None, configs: Mapping[str, str]) -> NewTopic | None:
    """Return the topic to create if it is missing. Return None if createTopic is false or no valid topic is set.

    Add faults for options that have no effect, for invalid setting names, and for createTopic without a topic.
    """
    values = parsed_options.values
    if not values["createTopic"]:
        # After an invalid value, it is unknown whether the other options have an effect.
        if "createTopic" not in parsed_options.invalid_fields:
            parsed_options.reject_unused(_DEPENDENT_OPTIONS, _ENABLED_CONDITION_TEMPLATE)
            for name in configs:
                parsed_options.faults.add(
                    f"{TOPIC_CONFIG_PREFIX}{name}", f"has no effect unless {_ENABLED_CONDITION_TEMPLATE}."
                )
        return None
    for name in configs:
        if not _CONFIG_NAME_PATTERN.fullmatch(name):
            parsed_options.faults.add(
                f"{TOPIC_CONFIG_PREFIX}{name}", "does not name a topic setting, such as cleanup.policy."
            )
    if topic is None:
        if "topic" not in parsed_options.invalid_fields:
            parsed_options.faults.add("createTopic", _TOPIC_REQUIRED_MESSAGE)
        return None
    return NewTopic(
        topic,
        values["createTopic_partitions"],
        values["createTopic_replicationFactor"],
        tuple(sorted(configs.items())),
    )
