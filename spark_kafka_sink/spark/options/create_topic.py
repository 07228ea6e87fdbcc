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
"""Part of a problem's text. When the problem is rendered, `{createTopic}` is replaced by the option's name."""
_TOPIC_REQUIRED_MESSAGE = "requires the option {topic}: topics named in a column are not known until the rows are read."


def extract_topic_configs(sink_options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the new topic by name, without the prefix `createTopic.config.`.

    `sink_options`: options with names in lowercase, as Spark passes them. Kafka's settings have lowercase names anyway.
    """
    prefix = TOPIC_CONFIG_PREFIX.lower()
    return {name.removeprefix(prefix): value.strip() for name, value in sink_options.items() if name.startswith(prefix)}


def parse_new_topic(parsed_options: ParsedOptions, topic: str | None, configs: Mapping[str, str]) -> NewTopic | None:
    """Return the topic to create if it is missing. Return None if createTopic is false or no valid topic is set.

    Add a problem to `parsed_options` for each option that has no effect, for each invalid name of a topic setting, and
    for createTopic without a topic.

    `topic`: the option `topic`; None if it is not set or invalid.
    `configs`: the topic settings by name.
    """
    option_values = parsed_options.values
    if not option_values["createTopic"]:
        _reject_unused_options(parsed_options, configs)
        return None
    _check_config_names(parsed_options, configs)
    if topic is None:
        if "topic" not in parsed_options.invalid_fields:
            parsed_options.problems.add("createTopic", _TOPIC_REQUIRED_MESSAGE)
        return None
    return NewTopic(
        topic,
        partitions=option_values["createTopic_partitions"],
        replicas=option_values["createTopic_replicationFactor"],
        configs=tuple(sorted(configs.items())),
    )


def _reject_unused_options(parsed_options: ParsedOptions, configs: Mapping[str, str]) -> None:
    """Add a problem for each option of the new topic that the user has set, because createTopic is false."""
    if "createTopic" in parsed_options.invalid_fields:
        # The user may have meant true, so it is unknown whether the other options have an effect.
        return
    parsed_options.reject_unused(_DEPENDENT_OPTIONS, _ENABLED_CONDITION_TEMPLATE)
    for name in configs:
        parsed_options.problems.add(
            f"{TOPIC_CONFIG_PREFIX}{name}", f"has no effect unless {_ENABLED_CONDITION_TEMPLATE}."
        )


def _check_config_names(parsed_options: ParsedOptions, configs: Mapping[str, str]) -> None:
    """Add a problem for each name that cannot be the name of a topic setting."""
    for name in configs:
        if not _CONFIG_NAME_PATTERN.fullmatch(name):
            parsed_options.problems.add(
                f"{TOPIC_CONFIG_PREFIX}{name}", "does not name a topic setting, such as cleanup.policy."
            )
