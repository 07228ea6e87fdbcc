"""The `createTopic` option: the driver creates a missing topic before the first task.

Also logs the preflight warnings that the driver must show, such as differences between an existing topic and the
options.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from spark_kafka_sink.client.new_topic import NewTopic
from spark_kafka_sink.diagnostics.deferred_log import warn_once
from spark_kafka_sink.errors import BrokerError, KafkaSinkError, PreflightError
from spark_kafka_sink.preflight import CheckResult, Outcome
from spark_kafka_sink.preflight.checks import end_sentence
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.requests import topic_admin
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transactions import LIST_TRANSACTIONS_PROBE
from spark_kafka_sink.spark.options.names import add_kafka_prefix
from spark_kafka_sink.spark.options.sink_options import SinkOptions

_TOPIC_OPTIONS_MESSAGE = (
    "The options createTopic.partitions, createTopic.replicationFactor and createTopic.config.* configure the topic."
)
_TOPIC_SETTING_ERRORS = frozenset(
    {
        error_codes.INVALID_PARTITIONS,
        error_codes.INVALID_REPLICATION_FACTOR,
        error_codes.INVALID_CONFIG,
        error_codes.POLICY_VIOLATION,
    }
)
"""Errors with which brokers reject a CreateTopics request because of the topic's settings."""

_log = logging.getLogger(__name__)


def create_topic_if_missing(options: SinkOptions, new_topic: NewTopic) -> bool:
    """Create the topic if it does not exist, and return whether it was missing.

    Raise PreflightError if the topic cannot be created.
    """
    config = options.producer_config()
    try:
        with BlockingClient(config.client_config(), timeout_ms=config.max_block_ms) as client:
            # Do not create the topic if the brokers do not support a request that exactly-once delivery needs.
            prerequisite_request = LIST_TRANSACTIONS_PROBE if options.exactly_once_options is not None else None
            was_missing = topic_admin.create_if_missing(client, new_topic, prerequisite_request=prerequisite_request)
    except KafkaSinkError as error:
        message = add_kafka_prefix(end_sentence(f"Cannot write to Kafka; nothing was written: {error}"))
        if isinstance(error, BrokerError) and error.code in _TOPIC_SETTING_ERRORS:
            message = f"{message} {_TOPIC_OPTIONS_MESSAGE}"
        raise PreflightError(message) from error
    if was_missing:
        _log.info("Created topic %s: %s", new_topic.name, new_topic)
    return was_missing


def log_preflight_warnings(checks: Iterable[CheckResult]) -> None:
    """Log the preflight warnings that the driver must show, each only once in the process."""
    for check in checks:
        if check.should_driver_log_warning and check.outcome is Outcome.WARNING:
            warn_once(_log, str(check))
