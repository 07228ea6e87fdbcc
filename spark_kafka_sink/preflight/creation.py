"""The topic that is to be created if it is missing: may it be created? And if it exists, how does it differ?

A broker that is asked to validate a CreateTopics request looks at the user's rights, at its policy and at the numbers,
and makes nothing. A difference is a warning: an existing topic is compared, and never changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from spark_kafka_sink.client.new_topic import NewTopic, broker_message_suffix, remedy
from spark_kafka_sink.preflight.checks import Check, Outcome, Target, topic_name
from spark_kafka_sink.preflight.probe import Exchange
from spark_kafka_sink.preflight.request_check import RequestCheck
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import lookup_error_code
from spark_kafka_sink.protocol.messages.create_topics import CreateTopicsResponse
from spark_kafka_sink.protocol.messages.describe_configs import DescribeConfigsResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataResponseTopic
from spark_kafka_sink.requests.topics import DescribeTopicConfigs, ValidateTopic

_AS_IT_IS = "It is used as it is. Change the topic (kafka-configs.sh, kafka-topics.sh --alter), or the options."
_UNSEEN = "Grant the user the right DescribeConfigs on the topic, if they should be compared."


def creation_check(target: Target, topics: Sequence[MetadataResponseTopic]) -> Iterator[RequestCheck[Any] | Check]:
    """Check the topic that is to be created, if it is missing or has settings to compare by a request."""
    wanted = target.new_topic
    found = next((topic for topic in topics if wanted is not None and topic.name == wanted.name), None)
    if wanted is None or found is None:
        return
    name = _name(wanted)
    if found.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
        yield RequestCheck(name, ValidateTopic(wanted), partial(_validated, wanted))
    elif not wanted.configs or found.error_code:
        yield _compared(wanted, found, DescribeConfigsResponse())
    else:
        request = DescribeTopicConfigs(wanted.name, [setting for setting, _ in wanted.configs])
        yield RequestCheck(name, request, partial(_described, wanted, found))


def _name(wanted: NewTopic) -> str:
    return f"creation of {topic_name(wanted.name)}"


def _validated(wanted: NewTopic, exchange: Exchange[CreateTopicsResponse]) -> Check:
    name = _name(wanted)
    for result in exchange.response.topics:
        if result.error_code in (error_codes.NONE, error_codes.TOPIC_ALREADY_EXISTS):
            return Check(name, Outcome.PASSED, f"can be done: {wanted}")
        if result.error_code == error_codes.NOT_CONTROLLER:
            return Check(name, Outcome.SKIPPED, "the controller alone can say whether it may be created")
        words = f"{lookup_error_code(result.error_code).name}{broker_message_suffix(result)}: {wanted}"
        return Check(name, Outcome.FAILED, words, remedy(result.error_code))
    return Check(name, Outcome.SKIPPED, "the broker did not say whether it may be created")


def _described(wanted: NewTopic, found: MetadataResponseTopic, exchange: Exchange[DescribeConfigsResponse]) -> Check:
    return _compared(wanted, found, exchange.response)


def _compared(wanted: NewTopic, found: MetadataResponseTopic, described: DescribeConfigsResponse) -> Check:
    name = _name(wanted)
    if found.error_code:
        return Check(name, Outcome.SKIPPED, "the topic cannot be compared")
    replicas = min((len(part.replica_nodes) for part in found.partitions), default=0)
    configs = {
        each.name: each.value
        for result in described.results
        if result.error_code == error_codes.NONE
        for each in result.configs
    }
    differences = list(wanted.differences(len(found.partitions), replicas, configs))
    if differences:
        detail = f"it exists already and has {'; '.join(differences)}"
        return Check(name, Outcome.WARNING, detail, _AS_IT_IS, logged_by_driver=True)
    unseen = [setting for setting, _ in wanted.configs if setting not in configs]
    if unseen:
        detail = f"it exists already; these settings cannot be seen: {', '.join(unseen)}"
        return Check(name, Outcome.WARNING, detail, _UNSEEN, logged_by_driver=True)
    return Check(name, Outcome.PASSED, "it exists already, as it is wanted")
