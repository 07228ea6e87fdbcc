"""Suggestions of existing topics with similar names for missing topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.preflight.checks import CheckResult, format_topic_check_name
from spark_kafka_sink.preflight.probe import Probe
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.metadata import MetadataResponseTopic
from spark_kafka_sink.requests.topics import DescribeTopics


def add_topic_suggestions(
    checks: Sequence[CheckResult], probe: Probe, topics: Sequence[MetadataResponseTopic]
) -> list[CheckResult]:
    """Return the checks, and name the most similar existing topic in the remedy of each missing topic.

    If no existing topic has a similar name, the remedy stays as it is. One request fetches the names of all topics that
    the user may describe. If it fails, return the checks unchanged.

    `topics`: the target's topics in the metadata.
    """
    # A topic that is named by an option gets no suggestion, because its check already says which option to correct.
    option_topics = dict(probe.target.topic_option_names)
    missing_topics = [
        topic.name or ""
        for topic in topics
        if topic.error_code in error_codes.UNKNOWN_TOPIC_ERRORS and not probe.should_create(topic)
    ]
    missing_topics_by_check_name = {
        format_topic_check_name(topic): topic for topic in missing_topics if topic not in option_topics
    }
    if not missing_topics_by_check_name:
        return list(checks)
    try:
        response = probe.send(DescribeTopics(topics=None)).response
    except NetworkError:
        return list(checks)
    existing_names = [topic.name for topic in response.topics if topic.name and not topic.is_internal]
    return [
        _suggest_topic(check, missing_topics_by_check_name[check.name], existing_names)
        if check.name in missing_topics_by_check_name
        else check
        for check in checks
    ]


def _suggest_topic(check: CheckResult, missing_topic: str, existing_names: Sequence[str]) -> CheckResult:
    similar_names = get_close_matches(missing_topic, existing_names, n=1)
    return replace(check, remedy=f"Did you mean '{similar_names[0]}'? {check.remedy}") if similar_names else check
