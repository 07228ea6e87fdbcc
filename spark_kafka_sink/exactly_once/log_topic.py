"""The topic of the decision log: made as it must be, and refused or warned of where it is not so.

A log must not forget: its cleanup.policy is `compact`, and nothing beside that. It should outlive a broker: on a
cluster of several, one replica is a warning, and so is an election of brokers that lack its end. It has many
partitions, so that a driver reads the decisions of a few queries when it starts, and not those of all; a prefix has its
entries in the partition that its name is hashed to.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping

from spark_kafka_sink.client.new_topic import BROKER_DEFAULT, NewTopic
from spark_kafka_sink.errors import AuthorizationError, UnsupportedVersionError
from spark_kafka_sink.exactly_once import refusals
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse
from spark_kafka_sink.requests import topic_admin
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.pending import Call
from spark_kafka_sink.requests.transactions import LIST_TRANSACTIONS_PROBE

DEFAULT_REPLICATION = BROKER_DEFAULT
"""As many replicas as the brokers give by themselves."""
PARTITIONS = 32
POLICY, COMPACT = "cleanup.policy", "compact"
UNCLEAN = "unclean.leader.election.enable"

# Small segments, cleaned early, and nothing kept of what is over: a driver reads its whole partition when it starts.
_SETTINGS = {
    POLICY: COMPACT,
    "segment.bytes": "1048576",
    "segment.ms": "60000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "60000",
}

_PURPOSE = ", the log of what is decided"

_log = logging.getLogger(__name__)


def partition_of(prefix: str, partitions: int) -> int:
    """Where the entries of a prefix are, in a log with this number of partitions."""
    return zlib.crc32(prefix.encode()) % partitions


class LogTopic:
    """Asks about one topic. Used by one thread."""

    def __init__(self, client: BlockingClient, name: str) -> None:
        self.name = name
        self._client = client
        self._described: Call[MetadataResponse] | None = None  # requested, and not used yet

    def exists(self) -> bool:
        return topic_admin.topic_exists(self._client, self.name, purpose=_PURPOSE)

    def ask_ahead(self) -> None:
        """Ask whether it is there, and do not wait: the next call takes the answer."""
        self._described = topic_admin.begin_describing(self._client, self.name)

    def create_if_missing(self, replication: int = DEFAULT_REPLICATION) -> None:
        """BrokerError if it is missing and may not be created."""
        topic = NewTopic(self.name, PARTITIONS, replication, tuple(_SETTINGS.items()))
        described, self._described = self._described, None
        topic_admin.create_if_missing(
            self._client, topic, purpose=_PURPOSE, required=LIST_TRANSACTIONS_PROBE, described=described
        )

    def check(self) -> None:
        """PreflightError if it would forget. Warns of what may not be seen, and of what may lose its end."""
        self._warn_of_lone_replicas()
        try:
            settings = topic_admin.topic_settings(self._client, self.name, [POLICY, UNCLEAN])
            policy = self._policy(settings)
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
        if settings.get(UNCLEAN) == "true":
            _log.warning(
                "topic %s, the log of what is decided, has %s=true: if a broker that lacks its newest records is "
                "elected, the last batch of a query is written twice, and nothing says so. Set it to false for this "
                "topic",
                self.name,
                UNCLEAN,
            )

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

    @staticmethod
    def _policy(settings: Mapping[str, str]) -> str:
        policy = settings.get(POLICY)
        if policy is None:
            raise UnsupportedVersionError(f"the broker does not say the {POLICY} of topics")
        return policy
