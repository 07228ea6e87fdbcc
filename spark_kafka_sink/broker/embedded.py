"""EmbeddedBroker: a cluster, its sockets and its files, started and stopped as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_kafka_sink.broker.cluster import ClusterConfig, EmbeddedCluster
from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.broker.listener_security import ListenerSecurity
from spark_kafka_sink.broker.socket_server import SocketServer
from spark_kafka_sink.broker.storage import ClusterFiles


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
        self._files = None if data is None else ClusterFiles(data)
        try:
            self.cluster = EmbeddedCluster(config, topics=topics, store=self._files)
            self.control = Control(self.cluster, config.seed)
            """Faults on demand."""
            channels = (security or ListenerSecurity()).channels(self.cluster)
            self._server = SocketServer(
                self.cluster,
                self.control,
                host=host,
                advertised_host=advertised_host,
                ports=ports,
                channels=channels,
                processors=processors,
                handlers=handlers,
            )
        except BaseException:
            self._close_files()
            raise
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
        """End all threads and close all sockets and files."""
        self._server.close()
        self._close_files()

    def _close_files(self) -> None:
        if self._files is not None:
            self._files.close()
