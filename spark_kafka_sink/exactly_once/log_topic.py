"""LogTopic: creates the topic of the decision log and checks its configuration.

The decision log records which batches of each query and job are committed. Each record's key contains the name of a
query or job. All of its transactional ids begin with this name, so the name is called the prefix. The record's value,
called the entry, is the state of the query or job (decision_log.py).

The log must keep the newest record of every key, so its cleanup.policy must be exactly `compact`. It should also
survive the loss of a broker. A warning is therefore logged if the topic has only one replica on a cluster of several
brokers, or if it allows unclean leader election.

The topic has many partitions, because a starting driver reads the whole partition that contains its prefix. The
partition is chosen by a hash of the prefix, so all entries of a prefix are in the same one.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping

from spark_kafka_sink.client.new_topic import BROKER_DEFAULT, NewTopic
from spark_kafka_sink.errors import AuthorizationError, UnsupportedVersionError
from spark_kafka_sink.exactly_once import precommit_errors
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse
from spark_kafka_sink.requests import topic_admin
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.engine import Call
from spark_kafka_sink.requests.transactions import LIST_TRANSACTIONS_PROBE

DEFAULT_REPLICATION_FACTOR = BROKER_DEFAULT
PARTITION_COUNT = 32
"""The number of partitions of a new log. Never change it for an existing log: it determines a prefix's partition."""
CLEANUP_POLICY_CONFIG = "cleanup.policy"
COMPACT_POLICY = "compact"
UNCLEAN_LEADER_ELECTION_CONFIG = "unclean.leader.election.enable"

# A starting driver reads the whole partition of its prefix. Small segments that are compacted early keep it short.
_TOPIC_CONFIGS = {
    CLEANUP_POLICY_CONFIG: COMPACT_POLICY,
    "segment.bytes": "1048576",
    "segment.ms": "60000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "60000",
}

_TOPIC_ROLE = "the decision log"
"""The role of the topic, for error messages."""

_log = logging.getLogger(__name__)


def partition_for(prefix: str, partition_count: int) -> int:
    """Return the partition that contains the records of this prefix, in a topic with this number of partitions."""
    return zlib.crc32(prefix.encode()) % partition_count


class LogTopic:
    """The topic of a decision log. Not thread-safe."""

    def __init__(self, client: BlockingClient, name: str) -> None:
        self.name = name
        self._client = client
        # The request that `prefetch_topic` has sent; None before, and again once its response has been used.
        self._pending_describe_call: Call[MetadataResponse] | None = None

    def exists(self) -> bool:
        return topic_admin.topic_exists(self._client, self.name, role=_TOPIC_ROLE)

    def prefetch_topic(self) -> None:
        """Request the topic's description without waiting for the response, which `create_if_missing` then uses."""
        self._pending_describe_call = topic_admin.begin_describing(self._client, self.name)

    def create_if_missing(self, replication_factor: int = DEFAULT_REPLICATION_FACTOR) -> None:
        """Create the topic if it does not exist.

        Raise BrokerError if the brokers reject the creation, and UnsupportedVersionError if they cannot list
        transactions, which exactly-once delivery requires.
        """
        new_topic = NewTopic(self.name, PARTITION_COUNT, replication_factor, tuple(_TOPIC_CONFIGS.items()))
        # Use the pending describe call only once: by the next call of this method, the topic may have been deleted.
        describe_call, self._pending_describe_call = self._pending_describe_call, None
        topic_admin.create_if_missing(
            self._client,
            new_topic,
            role=_TOPIC_ROLE,
            prerequisite_request=LIST_TRANSACTIONS_PROBE,
            describe_call=describe_call,
        )

    def check(self) -> None:
        """Check the topic's configuration. Raise PreflightError if the topic is not compacted.

        Log a warning if the configuration cannot be read, or if the loss of a broker could cause the loss of decisions.
        """
        self._warn_of_single_replica()
        try:
            settings = topic_admin.fetch_topic_settings(
                self._client, self.name, [CLEANUP_POLICY_CONFIG, UNCLEAN_LEADER_ELECTION_CONFIG]
            )
            policy = self._require_cleanup_policy(settings)
        except (AuthorizationError, UnsupportedVersionError) as error:
            _log.warning(
                "Could not read the %s of topic %s, the decision log (%s). Make sure that this setting is %s: if the "
                "log loses decisions, a batch can be written twice.",
                CLEANUP_POLICY_CONFIG,
                self.name,
                error,
                COMPACT_POLICY,
            )
            return
        if policy != COMPACT_POLICY:
            raise precommit_errors.build_log_not_compacted_error(self.name, policy)
        if settings.get(UNCLEAN_LEADER_ELECTION_CONFIG) == "true":
            _log.warning(
                "Topic %s, the decision log, has %s=true. If a broker that lacks the newest records is elected leader, "
                "a query's last batch may be written twice without an error. Set it to false for this topic.",
                self.name,
                UNCLEAN_LEADER_ELECTION_CONFIG,
            )

    # --- helpers

    def _warn_of_single_replica(self) -> None:
        """Log a warning if a partition has only one replica although the cluster has several brokers."""
        broker_count = len(self._client.metadata.snapshot.nodes)
        partitions = self._client.wait_for_topic(self.name).partitions
        min_replica_count = min((len(partition.replicas) for partition in partitions), default=0)
        if broker_count > 1 and min_replica_count == 1:
            _log.warning(
                "Topic %s, the decision log, has only one replica although the cluster has %d brokers. While a "
                "partition's broker is down, exactly-once writes that use the partition cannot continue, and if its "
                "disk is lost, the decisions are lost. Add replicas to the topic (kafka-reassign-partitions.sh). For a "
                "new log, set decisionLogReplication or the brokers' default.replication.factor.",
                self.name,
                broker_count,
            )

    @staticmethod
    def _require_cleanup_policy(settings: Mapping[str, str]) -> str:
        """Return the topic's cleanup policy. Raise UnsupportedVersionError if the broker has not reported it."""
        policy = settings.get(CLEANUP_POLICY_CONFIG)
        if policy is None:
            raise UnsupportedVersionError(f"The broker does not report the {CLEANUP_POLICY_CONFIG} of topics.")
        return policy
