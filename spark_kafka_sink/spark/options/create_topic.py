"""The options of `createTopic`: how the topic of the option `topic` is made if it is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping

from spark_kafka_sink.client.new_topic import NewTopic
from spark_kafka_sink.client.option_parsing import ParsedOptions, parse_boolean, parse_optional_text
from spark_kafka_sink.options import Option
from spark_kafka_sink.spark.options.values import partitions, replication

TOPIC_CONFIG_PREFIX = "createTopic.config."
_SETTING = re.compile(r"[a-z][a-z0-9._-]*")

CREATE_TOPIC_OPTIONS = (
    Option(
        "createTopic",
        False,
        parse_boolean,
        "let the driver create the topic of the option `topic`, if it is missing, before any task starts",
    ),
    Option("createTopic.partitions", NewTopic.partitions, partitions, "its partitions; -1 leaves them to the brokers"),
    Option(
        "createTopic.replicationFactor", NewTopic.replicas, replication, "its replicas; -1 leaves them to the brokers"
    ),
    Option(
        f"{TOPIC_CONFIG_PREFIX}*",
        None,
        parse_optional_text,
        "its settings, each as `createTopic.config.cleanup.policy`",
    ),
)
_NEEDS_TOPIC = "needs the option {topic}: which topics a column names is not known before the rows are read."


def topic_configs(own: Mapping[str, str]) -> dict[str, str]:
    """The settings of the topic by their names. `own` has its names in lower case, as all settings have."""
    prefix = TOPIC_CONFIG_PREFIX.lower()
    return {name.removeprefix(prefix): value.strip() for name, value in own.items() if name.startswith(prefix)}


def parse_new_topic(parsed_options: ParsedOptions, topic: str | None, settings: Mapping[str, str]) -> NewTopic | None:
    """The topic that is to be made if it is missing, None if none is."""
    values = parsed_options.values
    if not values["createTopic"]:
        if "createTopic" not in parsed_options.invalid_fields:
            condition = "{createTopic} is 'true'"
            parsed_options.reject_unused(CREATE_TOPIC_OPTIONS[1:], condition)
            for name in settings:
                parsed_options.faults.add(f"{TOPIC_CONFIG_PREFIX}{name}", f"has no effect unless {condition}.")
        return None
    for name in settings:
        if not _SETTING.fullmatch(name):
            parsed_options.faults.add(
                f"{TOPIC_CONFIG_PREFIX}{name}", "does not name a topic's setting, such as cleanup.policy."
            )
    if topic is None:
        if "topic" not in parsed_options.invalid_fields:
            parsed_options.faults.add("createTopic", _NEEDS_TOPIC)
        return None
    numbers = values["createTopic_partitions"], values["createTopic_replicationFactor"]
    return NewTopic(topic, *numbers, tuple(sorted(settings.items())))
