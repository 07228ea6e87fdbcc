"""EmbeddedBroker: a cluster, its sockets and its files, started and stopped as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_kafka_sink.broker.cluster import ClusterConfig, EmbeddedCluster
from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.broker.listener_security import ListenerSecurity
from spark_kafka_sink.broker.refusal import Refusal
from spark_kafka_sink.broker.socket_server import SocketServer
from spark_kafka_sink.broker.storage import ClusterFiles
from spark_kafka_sink.errors import ConfigurationError


class EmbeddedBroker:
    """Listens from its construction on. `close` it, or use it in a `with`."""

    def __init__(  # noqa: PLR0913 - the settings of a broker, each by its name
        self,
        config: ClusterConfig,
        *,
        topics: Mapping[str, int] | None = None,
        security: ListenerSecurity | None = None,
        data: Path | None = None,
        host: str = "127.0.0.1",
        advertised_host: str | None = None,
        ports: Sequence[int] = (),
        processors: int = 2,
        handlers: int = 4,
    ) -> None:
        self.cluster = _cluster(config, topics, data)
        self.control = Control(self.cluster, config.seed)
        """Faults on demand."""
        self._server = SocketServer(
            self.cluster,
            self.control,
            host=host,
            advertised_host=advertised_host,
            ports=ports,
            channels=(security or ListenerSecurity()).channels(self.cluster),
            processors=processors,
            handlers=handlers,
        )
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

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        self.cluster.create_topic(topic, partitions, config)

    def close(self) -> None:
        """End all threads and close all sockets."""
        self._server.close()


def _cluster(config: ClusterConfig, topics: Mapping[str, int] | None, data: Path | None) -> EmbeddedCluster:
    try:
        return EmbeddedCluster(config, topics=topics, store=None if data is None else ClusterFiles(data))
    except (OSError, Refusal) as error:
        raise ConfigurationError(f"{data} cannot be used as the broker's directory: {error}") from error
