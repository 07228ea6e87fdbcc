"""Does the topic with the decisions keep them? Kafka deletes what is a week old from a topic that is not compacted."""

from __future__ import annotations

import logging

from spark_kafka_sink.errors import AuthorizationError, BrokerError, NetworkError, UnsupportedVersionError
from spark_kafka_sink.exactly_once import refusals
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import broker_error
from spark_kafka_sink.protocol.messages.describe_configs import (
    TOPIC,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from spark_kafka_sink.reader.blocking_client import BlockingClient

POLICY, COMPACT = "cleanup.policy", "compact"

_ASK_AGAIN_MS = 100.0

_log = logging.getLogger(__name__)


def ensure_compacted(client: BlockingClient, topic: str) -> None:
    """PreflightError if it is not compacted, or not only that. A policy that may not be seen is a warning."""
    try:
        policy = _policy(client, topic)
    except (AuthorizationError, UnsupportedVersionError) as error:
        _log.warning(
            "the %s of topic %s, the log of what is decided, cannot be seen (%s). Make sure that it is %s: a log that "
            "forgets lets a batch be written twice",
            POLICY,
            topic,
            error,
            COMPACT,
        )
        return
    if policy != COMPACT:
        raise refusals.log_forgets(topic, policy)


def _policy(client: BlockingClient, topic: str) -> str:
    patience = client.patience(f"the {POLICY} of topic {topic}")
    while True:
        failure: BrokerError | NetworkError
        try:
            return _asked(client, topic)
        except NetworkError as error:
            failure = error
        except BrokerError as error:
            if not error_codes.error_code(error.code).retriable:
                raise
            failure = error
        patience.wait(failure, _ASK_AGAIN_MS)


def _asked(client: BlockingClient, topic: str) -> str:
    node = client.any_node()
    if node is None:
        raise NetworkError("no broker can be asked")
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name=topic, configuration_keys=[POLICY])
    answer = client.ask(node, DescribeConfigsResponse, DescribeConfigsRequest(resources=[resource]))
    for result in answer.results:
        if result.error_code != error_codes.NONE:
            raise broker_error(result.error_code, f"topic {topic}: the attempt to see its settings was refused")
        for config in result.configs:
            if config.name == POLICY and config.value is not None:
                return config.value
    raise UnsupportedVersionError(f"the broker does not say the {POLICY} of topics")
