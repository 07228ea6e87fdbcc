"""Suggests existing topics with similar names for missing topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.preflight.checks import Check, Outcome, format_topic_check_name
from spark_kafka_sink.preflight.connectivity_checks import TOPIC_DOES_NOT_EXIST
from spark_kafka_sink.preflight.probe import Probe
from spark_kafka_sink.requests.topics import DescribeTopics


def suggest_topics(checks: Sequence[Check], probe: Probe) -> list[Check]:
    """Suggest an existing topic in the check of each missing topic if there is a similar name.

    One request fetches the names of all topics that the user may describe. If it fails, the checks are returned
    unchanged.
    """
    topics_by_check_name = {format_topic_check_name(topic): topic for topic in probe.target.topics}
    missing_topic_check_names = {
        check.name for check in checks if check.outcome is Outcome.FAILED and check.detail == TOPIC_DOES_NOT_EXIST
    }
    if not missing_topic_check_names:
        return list(checks)
    try:
        response = probe.send(DescribeTopics(None)).response
    except NetworkError:
        return list(checks)
    existing_names = [topic.name for topic in response.topics if topic.name and not topic.is_internal]
    return [
        _suggest_topic(check, topics_by_check_name[check.name], existing_names)
        if check.name in missing_topic_check_names
        else check
        for check in checks
    ]


def _suggest_topic(check: Check, missing_topic: str, existing_names: Sequence[str]) -> Check:
    matches = get_close_matches(missing_topic, existing_names, 1)
    return replace(check, remedy=f"Did you mean '{matches[0]}'? {check.remedy}") if matches else check
