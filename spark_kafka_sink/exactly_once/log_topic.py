"""The topic of the decision log: made as it must be, and refused or warned of where it is not so.

A log must not forget: its cleanup.policy is `compact`, and nothing beside that. It should outlive a broker: on a
cluster of several, one replica is a warning. It has many partitions, so that a driver reads the decisions of a few
queries when it starts, and not those of all; a prefix has its entries in the partition that its name is hashed to.
"""

from __future__ import annotations

import logging
import zlib

from spark_kafka_sink.client.cluster import NO_TOPIC_ID
from spark_kafka_sink.errors import (
    AuthorizationError,
    BrokerError,
    KafkaSinkError,
    NetworkError,
    UnsupportedVersionError,
)
from spark_kafka_sink.exactly_once import refusals
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import broker_error
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from spark_kafka_sink.protocol.messages.describe_configs import (
    TOPIC,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from spark_kafka_sink.reader.blocking_client import BlockingClient
from spark_kafka_sink.words import cleaned

DEFAULT_REPLICATION = -1
"""As many replicas as the brokers give by themselves."""
PARTITIONS = 32
POLICY, COMPACT = "cleanup.policy", "compact"

_ASK_AGAIN_MS = 100.0
# Small segments, cleaned early, and nothing kept of what is over: a driver reads its whole partition when it starts.
_SETTINGS = {
    POLICY: COMPACT,
    "segment.bytes": "1048576",
    "segment.ms": "60000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "60000",
}
_LIST_NONE = ListTransactionsRequest(producer_id_filters=[-1])  # no producer has this id

_log = logging.getLogger(__name__)


def partition_of(prefix: str, partitions: int) -> int:
    """Where the entries of a prefix are, in a log with this number of partitions."""
    return zlib.crc32(prefix.encode()) % partitions


class LogTopic:
    """Asks about one topic. Used by one thread."""

    def __init__(self, client: BlockingClient, name: str) -> None:
        self.name = name
        self._client = client
        self._topic_id = NO_TOPIC_ID

    def exists(self) -> bool:
        patience = self._client.patience(f"topic {self.name}")
        while (failure := self._missing()) is not None:
            if _is_unknown(failure):
                return False
            patience.wait(failure, _ASK_AGAIN_MS)
        return True

    def create_if_missing(self, replication: int = DEFAULT_REPLICATION) -> None:
        """BrokerError if it is missing and may not be created, PreflightError if it is there and would forget."""
        patience = self._client.patience(f"topic {self.name}")
        while (failure := self._missing()) is not None:
            refused = self._create(replication) if _is_unknown(failure) else failure
            if refused is not None:
                patience.wait(refused, _ASK_AGAIN_MS)
        if self._client.topic(self.name).topic_id != self._topic_id:
            self._client.topic(self.name, fresh=True)  # the one that was known has been deleted

    def check(self) -> None:
        """PreflightError if it would forget. A policy that may not be seen is a warning, and so is a lone replica."""
        self._warn_of_lone_replicas()
        try:
            policy = self._policy()
        except (AuthorizationError, UnsupportedVersionError) as error:
            _log.warning(
                "the %s of topic %s, the log of what is decided, cannot be seen (%s). Make sure that it is %s: a log "
                "that forgets lets a batch be written twice",
                POLICY,
                self.name,
                error,
                COMPACT,
            )
            return
        if policy != COMPACT:
            raise refusals.log_forgets(self.name, policy)

    # --- parts

    def _warn_of_lone_replicas(self) -> None:
        brokers = len(self._client.metadata.snapshot.nodes)
        replicas = min((len(each.replicas) for each in self._client.topic(self.name).partitions), default=0)
        if brokers > 1 and replicas == 1:
            _log.warning(
                "topic %s, the log of what is decided, has one replica, and the cluster has %d brokers: while the one "
                "broker is down, no exactly-once write of this log goes on, and if its disk is lost, so are the "
                "decisions. Give the topic more replicas (kafka-reassign-partitions.sh); for a new log, set "
                "decisionLogReplication or the brokers' default.replication.factor",
                self.name,
                brokers,
            )

    def _missing(self) -> KafkaSinkError | None:
        """Why the topic cannot be read now; raised, if it will not pass."""
        question = MetadataRequest(topics=[MetadataRequestTopic(name=self.name)], allow_auto_topic_creation=False)
        node = self._client.any_node()
        answer = None if node is None else self._client.attempt(node, MetadataResponse, question)
        if answer is None or isinstance(answer, NetworkError):
            return answer or NetworkError("no broker can be asked")
        code = answer.topics[0].error_code if answer.topics else error_codes.UNKNOWN_TOPIC_OR_PARTITION
        if code == error_codes.NONE:
            self._topic_id = answer.topics[0].topic_id
            return None
        error = broker_error(code, f"topic {self.name}, the log of what is decided")
        if not error_codes.error_code(code).retriable:
            raise error
        return error

    def _create(self, replication: int) -> KafkaSinkError | None:
        settings = [CreatableTopicConfig(name=name, value=value) for name, value in _SETTINGS.items()]
        topic = CreatableTopic(
            name=self.name,
            num_partitions=PARTITIONS,
            replication_factor=replication,
            assignments=[],
            configs=settings,
        )
        node = self._client.metadata.snapshot.controller or self._client.any_node()
        if node is None:
            return NetworkError("no broker can be asked")
        # A broker that is too old to say what transactions there are is found before anything is made.
        asked = self._client.attempt(node, ListTransactionsResponse, _LIST_NONE)
        if isinstance(asked, NetworkError):
            return asked
        answer = self._client.attempt(node, CreateTopicsResponse, CreateTopicsRequest(topics=[topic]))
        if isinstance(answer, NetworkError):
            return answer
        (row,) = answer.topics
        if row.error_code in (error_codes.NONE, error_codes.TOPIC_ALREADY_EXISTS):
            return None
        error = broker_error(
            row.error_code,
            f"topic {self.name}, the log of what is decided, does not exist and could not be created"
            + (f" ({cleaned(row.error_message)})" if row.error_message else ""),
        )
        if error_codes.error_code(row.error_code).retriable:
            return error
        raise error

    def _policy(self) -> str:
        patience = self._client.patience(f"the {POLICY} of topic {self.name}")
        while True:
            failure: BrokerError | NetworkError
            try:
                return self._asked_policy()
            except NetworkError as error:
                failure = error
            except BrokerError as error:
                if not error_codes.error_code(error.code).retriable:
                    raise
                failure = error
            patience.wait(failure, _ASK_AGAIN_MS)

    def _asked_policy(self) -> str:
        node = self._client.any_node()
        if node is None:
            raise NetworkError("no broker can be asked")
        resource = DescribeConfigsResource(resource_type=TOPIC, resource_name=self.name, configuration_keys=[POLICY])
        answer = self._client.ask(node, DescribeConfigsResponse, DescribeConfigsRequest(resources=[resource]))
        for result in answer.results:
            if result.error_code != error_codes.NONE:
                context = f"topic {self.name}: the attempt to see its settings was refused"
                raise broker_error(result.error_code, context)
            for config in result.configs:
                if config.name == POLICY and config.value is not None:
                    return config.value
        raise UnsupportedVersionError(f"the broker does not say the {POLICY} of topics")


def _is_unknown(failure: KafkaSinkError) -> bool:
    return isinstance(failure, BrokerError) and failure.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
