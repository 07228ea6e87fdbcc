"""The topic that is to be created if it is missing: may it be created? And if it exists, how does it differ?

A broker that is asked to validate a CreateTopics request looks at the user's rights, at its policy and at the numbers,
and makes nothing. A difference is a warning: an existing topic is compared, and never changed.
"""

from __future__ import annotations

from functools import partial

from spark_kafka_sink.client.new_topic import NewTopic, in_brackets, remedy
from spark_kafka_sink.client.preflight.checks import Check, Outcome, topic_name
from spark_kafka_sink.client.preflight.probe import Answer
from spark_kafka_sink.client.preflight.questions import Question
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import error_code
from spark_kafka_sink.protocol.messages.create_topics import CreateTopicsResponse
from spark_kafka_sink.protocol.messages.describe_configs import (
    TOPIC,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from spark_kafka_sink.protocol.messages.metadata import MetadataResponseTopic

CREATION = "creation of "
"""How the names of these checks begin."""
_AS_IT_IS = "It is used as it is. Change the topic (kafka-configs.sh, kafka-topics.sh --alter), or the options."
_UNSEEN = "Grant the user the right DescribeConfigs on the topic, if they should be compared."


def creation_question(wanted: NewTopic, found: MetadataResponseTopic) -> Question | Check:
    """The question about a topic that is missing, or exists; a check where there is no question."""
    name = CREATION + topic_name(wanted.name)
    if found.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
        return Question(name, wanted.request(validate_only=True), partial(_validated, wanted))
    if not wanted.configs or found.error_code:
        return _compared(wanted, found, DescribeConfigsResponse())
    resource = DescribeConfigsResource(
        resource_type=TOPIC, resource_name=wanted.name, configuration_keys=[setting for setting, _ in wanted.configs]
    )
    return Question(name, DescribeConfigsRequest(resources=[resource]), partial(_described, wanted, found))


def _validated(wanted: NewTopic, answer: Answer) -> Check:
    assert isinstance(answer.message, CreateTopicsResponse)
    name = CREATION + topic_name(wanted.name)
    for result in answer.message.topics:
        if result.error_code in (error_codes.NONE, error_codes.TOPIC_ALREADY_EXISTS):
            return Check(name, Outcome.PASSED, f"can be done: {wanted}")
        if result.error_code == error_codes.NOT_CONTROLLER:
            return Check(name, Outcome.SKIPPED, "the controller alone can say whether it may be created")
        words = f"{error_code(result.error_code).name}{in_brackets(result)}: {wanted}"
        return Check(name, Outcome.FAILED, words, remedy(result.error_code))
    return Check(name, Outcome.SKIPPED, "the broker did not say whether it may be created")


def _described(wanted: NewTopic, found: MetadataResponseTopic, answer: Answer) -> Check:
    assert isinstance(answer.message, DescribeConfigsResponse)
    return _compared(wanted, found, answer.message)


def _compared(wanted: NewTopic, found: MetadataResponseTopic, described: DescribeConfigsResponse) -> Check:
    name = CREATION + topic_name(wanted.name)
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
        return Check(name, Outcome.WARNING, detail, _AS_IT_IS)
    unseen = [setting for setting, _ in wanted.configs if setting not in configs]
    if unseen:
        detail = f"it exists already; these settings cannot be seen: {', '.join(unseen)}"
        return Check(name, Outcome.WARNING, detail, _UNSEEN)
    return Check(name, Outcome.PASSED, "it exists already, as it is wanted")
