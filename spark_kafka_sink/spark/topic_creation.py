"""`createTopic`: the driver makes a topic that is missing, before the first task, and warns where one is otherwise."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from spark_kafka_sink.client.new_topic import NewTopic
from spark_kafka_sink.diagnostics.deferred_log import warn_once
from spark_kafka_sink.errors import KafkaSinkError, PreflightError
from spark_kafka_sink.preflight import Check, Outcome
from spark_kafka_sink.requests import topic_admin
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transactions import LIST_TRANSACTIONS_PROBE
from spark_kafka_sink.spark.options.sink_options import SinkOptions

_OPTIONS = "The options are createTopic.partitions, createTopic.replicationFactor and createTopic.config.*."

_log = logging.getLogger(__name__)


def create_if_missing(options: SinkOptions, wanted: NewTopic) -> bool:
    """Was the topic missing? PreflightError if it is, and cannot be created."""
    config = options.producer_config()
    try:
        with BlockingClient(config.client_config(), timeout_ms=config.max_block_ms) as client:
            required = LIST_TRANSACTIONS_PROBE if options.exactly_once is not None else None
            was_missing = topic_admin.create_if_missing(client, wanted, required=required)
    except KafkaSinkError as error:
        raise PreflightError(f"Nothing was written: {error} {_OPTIONS}") from error
    if was_missing:
        _log.info("topic %s was created: %s", wanted.name, wanted)
    return was_missing


def log_warnings(checks: Iterable[Check]) -> None:
    """Log the warnings of preflight about what the options of the write ask for."""
    for check in checks:
        if check.logged_by_driver and check.outcome is Outcome.WARNING:
            warn_once(_log, str(check))
