"""EmbeddedBroker: a cluster, its sockets and its files, started and stopped as one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spark_kafka_sink.broker.cluster import ClusterConfig, EmbeddedCluster
from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.broker.listening import Listening
from spark_kafka_sink.broker.refusal import Refusal
from spark_kafka_sink.broker.socket_server import SocketServer
from spark_kafka_sink.broker.storage import ClusterFiles
from spark_kafka_sink.errors import ConfigurationError, IllegalStateError


class EmbeddedBroker:
    """Listens from its construction on. `close` it, or use it in a `with`."""

    def __init__(
        self,
        config: ClusterConfig,
        listening: Listening,
        *,
        topics: Mapping[str, int] | None = None,
        data: Path | None = None,
    ) -> None:
        self.cluster = _cluster(config, topics, data)
        self.control = Control(self.cluster, config.seed)
        """Faults on demand."""
        self._server = SocketServer(self.cluster, self.control, listening)
        self._server.start_threads()

    def __repr__(self) -> str:
        return f"<EmbeddedBroker {self.bootstrap_servers} {len(self.cluster.topics)} topics>"

    def __enter__(self) -> EmbeddedBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        return self._server.bootstrap_servers

    @property
    def failure(self) -> BaseException | None:
        """What the broker has ended by, if it has; its connections are closed and its ports refuse."""
        return self._server.failure

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        self.cluster.create_topic(topic, partitions, config)

    def close(self) -> None:
        """End all threads and close all sockets. IllegalStateError, if the broker had failed before."""
        self._server.close()
        if self.failure is not None:
            raise IllegalStateError(
                f"the embedded broker failed: {type(self.failure).__name__}: {self.failure}"
            ) from self.failure


def _cluster(config: ClusterConfig, topics: Mapping[str, int] | None, data: Path | None) -> EmbeddedCluster:
    try:
        return EmbeddedCluster(config, topics=topics, store=None if data is None else ClusterFiles(data))
    except (OSError, Refusal) as error:
        raise ConfigurationError(f"{data} cannot be used as the broker's directory: {error}") from error
