"""EmbeddedBroker: a cluster, its sockets and its files, started and stopped as one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.broker.cluster import DEFAULT_MAX_MESSAGE_BYTES, ClusterConfig, EmbeddedCluster
from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.broker.listener_config import ListenerConfig
from spark_kafka_sink.broker.listener_security import ListenerSecurity
from spark_kafka_sink.broker.socket_server import SocketServer
from spark_kafka_sink.broker.storage import ClusterFiles, lock_directory
from spark_kafka_sink.errors import ConfigurationError, IllegalStateError
from spark_kafka_sink.network.system import MAX_PORT
from spark_kafka_sink.testing.faults import Faults
from spark_kafka_sink.testing.security_setup import MUTUAL, SCRAM, secured
from spark_kafka_sink.testing.topic import KafkaTopic, spark_options


class EmbeddedBroker:
    """Listens from its construction on. `close` it, or use it in a `with`."""

    def __init__(
        self,
        config: ClusterConfig,
        listening: ListenerConfig,
        *,
        topics: Mapping[str, int] | None = None,
        data: Path | None = None,
        client_options: Mapping[str, object] | None = None,
    ) -> None:
        """`client_options`: what a client needs besides the address, to be let in."""
        with contextlib.ExitStack() as held:
            self.cluster = _cluster(config, topics, data, held)
            self.control = Control(self.cluster, config.seed)
            """Faults on demand, request by request, and the levers of the cluster."""
            self.faults = Faults(self.control)
            """The faults that tests of jobs ask for most, by their names."""
            self._client_options = client_options or {}
            self._server = SocketServer(self.cluster, self.control, listening)
            self._server.start_threads()
            self._held = held.pop_all()

    def __repr__(self) -> str:
        return f"<EmbeddedBroker {self.bootstrap_servers} {len(self.cluster.topics)} topics>"

    @property
    def bootstrap_servers(self) -> str:
        return self._server.bootstrap_servers

    @property
    def client_options(self) -> dict[str, object]:
        """For `KafkaProducer(...)`: the address, and the certificates and login that `tls` and `users` ask for."""
        return {"bootstrap.servers": self.bootstrap_servers, **self._client_options}

    @property
    def spark_options(self) -> dict[str, str]:
        """For `df.write.format("pykafka").options(...)`: the client's options with `kafka.` before their names."""
        return spark_options(self.client_options)

    @property
    def failure(self) -> BaseException | None:
        """What the broker has ended by, if it has; its connections are closed and its ports refuse."""
        return self._server.failure

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> KafkaTopic:
        self.cluster.create_topic(topic, partitions, config)
        return self.topic(topic)

    def topic(self, name: str) -> KafkaTopic:
        """The topic to write to, to read and to compare; it need not exist yet."""
        return KafkaTopic(name, self.client_options)

    def __enter__(self) -> EmbeddedBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all threads and close all sockets. IllegalStateError, if the broker had failed before."""
        with self._held:
            self._server.close()
        if self.failure is not None:
            raise IllegalStateError(
                f"the embedded broker failed: {type(self.failure).__name__}: {self.failure}"
            ) from self.failure


def embedded_broker(  # noqa: PLR0913 - the settings of a broker, each by its name
    topics: Mapping[str, int] | None = None,
    *,
    nodes: int = 1,
    auto_create_topics: bool = False,
    default_partitions: int = 1,
    message_bytes_max: int = DEFAULT_MAX_MESSAGE_BYTES,
    transaction_version: int = 2,
    discard: bool = False,
    check_records: bool = True,
    tls: bool | Literal["mutual"] = False,
    users: Mapping[str, str] | None = None,
    mechanism: str = SCRAM,
    security: ListenerSecurity | None = None,
    data: Path | None = None,
    host: str = "127.0.0.1",
    advertised_host: str | None = None,
    port: int = 0,
    num_network_threads: int = 2,
    num_io_threads: int = 2,
    queued_max_requests: int = 500,
    seed: int = 0,
) -> EmbeddedBroker:
    """A running broker, or a cluster of several nodes, to be used in a `with`.

    topics               number of partitions by name
    auto_create_topics   a topic that a client asks for is made, with `default_partitions`
    transaction_version  2, or 1 as brokers before Kafka 4 have it
    discard              acknowledge and count, and keep nothing: for measuring
    check_records        look into the records of each batch, as brokers do; off, at its header and CRC only
    tls                  True: with certificates made on the spot; "mutual": clients show one, too. Needs trustme
    users                passwords by name: clients log in; `client_options` are those of the first user
    mechanism            how they log in: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512
    security             certificates and mechanisms of your own (ListenerSecurity), in place of the three above
    data                 a directory in which topics outlive the broker
    host                 where to listen; 0.0.0.0 is all interfaces, and `advertised_host` then a name of this machine
    port                 of the first node, the others follow; 0 for any free ones
    num_network_threads  threads that read requests and write responses, as Kafka's num.network.threads
    num_io_threads       threads that handle requests, as num.io.threads; 0: the network threads handle them
    queued_max_requests  requests that may wait for an I/O thread, as queued.max.requests
    seed                 of everything in `control` that is left to chance
    """
    _check_security(tls=tls, users=users, security=security)
    if not 0 <= port <= MAX_PORT - max(nodes - 1, 0):
        raise ConfigurationError(f"{nodes} nodes from port {port} on: ports are numbers up to {MAX_PORT}, or 0 for any")
    config = ClusterConfig(
        nodes=nodes,
        auto_create_topics=auto_create_topics,
        default_partitions=default_partitions,
        max_message_bytes=message_bytes_max,
        transaction_version=transaction_version,
        discard=discard,
        check_records=check_records,
        seed=seed,
    )
    ports = [port + number for number in range(nodes)] if port else []
    with secured(tls=tls, users=users or {}, mechanism=mechanism, names=[host, advertised_host or host]) as made:
        listening = ListenerConfig(
            host,
            advertised_host,
            ports=ports,
            security=security or made.listener,
            network_threads=num_network_threads,
            io_threads=num_io_threads,
            max_queued_requests=queued_max_requests,
        )
        return EmbeddedBroker(config, listening, topics=topics, data=data, client_options=made.client_options)


def _check_security(
    *, tls: bool | Literal["mutual"], users: Mapping[str, str] | None, security: ListenerSecurity | None
) -> None:
    if tls not in (False, True, MUTUAL):
        raise ConfigurationError(f"tls is True, False or {MUTUAL!r}, not {tls!r}")
    if security is not None and (tls or users):
        raise ConfigurationError("security says all of TLS and SASL: leave out tls and users, or security")


def _cluster(
    config: ClusterConfig, topics: Mapping[str, int] | None, data: Path | None, held: contextlib.ExitStack
) -> EmbeddedCluster:
    """`held`: what is to be given back when the broker is closed."""
    try:
        if data is None:
            return EmbeddedCluster(config, topics=topics)
        held.enter_context(lock_directory(data))
        return EmbeddedCluster(config, topics=topics, store=ClusterFiles(data))
    except (OSError, ApiError) as error:
        raise ConfigurationError(f"{data} cannot be used as the broker's directory: {error}") from error
