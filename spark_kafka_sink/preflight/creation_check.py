"""Check of the topic that the writer creates if it is missing.

If the topic is missing, a broker validates a CreateTopics request without creating anything. The broker checks the
user's permissions, its own policy, and the partition and replica counts. If the topic exists but differs from the
requested one, the check reports a warning, because the writer never changes an existing topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from spark_kafka_sink.client.new_topic import NewTopic, find_remedy, format_broker_message
from spark_kafka_sink.preflight.checks import CheckResult, Outcome, Target, format_topic_check_name
from spark_kafka_sink.preflight.probe import Exchange
from spark_kafka_sink.preflight.request_check import RequestCheck
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import lookup_error_code
from spark_kafka_sink.protocol.messages.create_topics import CreateTopicsResponse
from spark_kafka_sink.protocol.messages.describe_configs import DescribeConfigsResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataResponseTopic
from spark_kafka_sink.requests.topics import DescribeTopicConfigs, ValidateTopic

_DIFFERENCES_REMEDY = (
    "The sink uses the topic as it is. Change the topic (kafka-configs.sh, kafka-topics.sh --alter), or the options."
)
_CONFIGS_NOT_VISIBLE_REMEDY = (
    "Grant this user the DescribeConfigs permission on the topic, if the settings should be compared."
)


def check_topic_creation(
    target: Target, topics: Sequence[MetadataResponseTopic]
) -> Iterator[RequestCheck[Any] | CheckResult]:
    """Yield the check for the topic that the writer creates if it is missing.

    Yield nothing if the writer creates no topic, or if `topics` does not contain it.

    The check sends a request only if the topic is missing, or if the topic's settings must be fetched and compared.
    """
    new_topic = target.new_topic
    if new_topic is None:
        return
    metadata = next((topic for topic in topics if topic.name == new_topic.name), None)
    if metadata is None:
        return
    name = _build_check_name(new_topic)
    if metadata.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
        yield RequestCheck(name, ValidateTopic(new_topic), partial(_evaluate_validation, new_topic))
    elif not new_topic.configs or metadata.error_code:
        # There are no settings to fetch, or no topic to compare them with.
        yield _compare_topic(new_topic, metadata, config_values={})
    else:
        request = DescribeTopicConfigs(new_topic.name, [config_name for config_name, _ in new_topic.configs])
        yield RequestCheck(name, request, partial(_evaluate_configs, new_topic, metadata))


def _build_check_name(new_topic: NewTopic) -> str:
    return f"creation of {format_topic_check_name(new_topic.name)}"


def _evaluate_validation(new_topic: NewTopic, exchange: Exchange[CreateTopicsResponse]) -> CheckResult:
    """Pass if the controller would create the topic, or if somebody has created it since the metadata request."""
    name = _build_check_name(new_topic)
    for result in exchange.response.topics:
        if result.error_code in (error_codes.NONE, error_codes.TOPIC_ALREADY_EXISTS):
            return CheckResult(name, Outcome.PASSED, f"possible: {new_topic}")
        if result.error_code == error_codes.NOT_CONTROLLER:
            return CheckResult(name, Outcome.SKIPPED, "only the controller can validate the topic")
        detail = f"{lookup_error_code(result.error_code).name}{format_broker_message(result)}: {new_topic}"
        return CheckResult(name, Outcome.FAILED, detail, find_remedy(result.error_code))
    return CheckResult(name, Outcome.SKIPPED, "the response of the broker does not contain the topic")


def _evaluate_configs(
    new_topic: NewTopic, metadata: MetadataResponseTopic, exchange: Exchange[DescribeConfigsResponse]
) -> CheckResult:
    return _compare_topic(new_topic, metadata, DescribeTopicConfigs.parse_values(exchange.response))


def _compare_topic(
    new_topic: NewTopic, metadata: MetadataResponseTopic, config_values: Mapping[str, str]
) -> CheckResult:
    """Compare the existing topic with the requested one. `config_values`: the existing topic's settings by name."""
    name = _build_check_name(new_topic)
    if metadata.error_code:
        return CheckResult(
            name, Outcome.SKIPPED, "the metadata of the topic contains an error, so the topic was not compared"
        )
    replication_factor = min((len(partition.replica_nodes) for partition in metadata.partitions), default=0)
    differences = list(new_topic.find_differences(len(metadata.partitions), replication_factor, config_values))
    if differences:
        detail = f"the topic exists and has {'; '.join(differences)}"
        return CheckResult(name, Outcome.WARNING, detail, _DIFFERENCES_REMEDY, should_driver_log_warning=True)
    invisible_configs = [config_name for config_name, _ in new_topic.configs if config_name not in config_values]
    if invisible_configs:
        detail = f"the topic exists; this user cannot see these settings: {', '.join(invisible_configs)}"
        return CheckResult(name, Outcome.WARNING, detail, _CONFIGS_NOT_VISIBLE_REMEDY, should_driver_log_warning=True)
    return CheckResult(name, Outcome.PASSED, "the topic exists and matches the options")
