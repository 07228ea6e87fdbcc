"""Suggestions of existing topics for the names of topics that do not exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.preflight.checks import Check, Outcome, topic_name
from spark_kafka_sink.preflight.probe import Probe
from spark_kafka_sink.preflight.reached import DOES_NOT_EXIST
from spark_kafka_sink.requests.topics import DescribeTopics


def suggest_topics(checks: Sequence[Check], probe: Probe) -> list[Check]:
    """Add the nearest name that this user may see to the check of each missing topic, with one request for all."""
    wanted = {topic_name(topic): topic for topic in probe.target.topics}
    missing = {check.name for check in checks if check.outcome is Outcome.FAILED and check.detail == DOES_NOT_EXIST}
    if not missing:
        return list(checks)
    try:
        message = probe.send(DescribeTopics(None)).response
    except NetworkError:
        return list(checks)
    names = [topic.name for topic in message.topics if topic.name and not topic.is_internal]
    return [_suggest_topic(check, wanted[check.name], names) if check.name in missing else check for check in checks]


def _suggest_topic(check: Check, topic: str, names: Sequence[str]) -> Check:
    near = get_close_matches(topic, names, 1)
    return replace(check, remedy=f"Did you mean '{near[0]}'? {check.remedy}") if near else check
