"""EmbeddedBroker: a cluster with its sockets and files, which start and stop together."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.broker.cluster import ClusterConfig, EmbeddedCluster
from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.broker.listener_config import ListenerConfig
from spark_kafka_sink.broker.listener_security import ListenerSecurity
from spark_kafka_sink.broker.log import DEFAULT_MAX_MESSAGE_BYTES
from spark_kafka_sink.broker.socket_server import SocketServer
from spark_kafka_sink.broker.storage import ClusterFiles, lock_directory
from spark_kafka_sink.diagnostics.text import format_count
from spark_kafka_sink.errors import ConfigurationError, IllegalStateError
from spark_kafka_sink.network.system import MAX_PORT
from spark_kafka_sink.testing.faults import Faults
from spark_kafka_sink.testing.security_setup import DEFAULT_MECHANISM, MUTUAL_TLS, set_up_security
from spark_kafka_sink.testing.topic import KafkaTopic, to_spark_options


class EmbeddedBroker:
    """A running broker, or a cluster of several nodes. Use it in a `with` block, or call `close`."""

    def __init__(
        self,
        config: ClusterConfig,
        listener_config: ListenerConfig,
        *,
        topics: Mapping[str, int] | None = None,
        data: Path | None = None,
        client_options: Mapping[str, object] | None = None,
    ) -> None:
        """Start the broker. Use `embedded_broker()` instead, which builds the configurations.

        - `config`: the nodes of the cluster, and the behavior of its brokers
        - `listener_config`: the addresses, security and threads of the listeners
        - `topics`: number of partitions by topic name
        - `data`: directory in which topics are stored; by default, they are kept in memory
        - `client_options`: the security options that clients need besides the bootstrap servers
        """
        with contextlib.ExitStack() as resources:
            self.cluster = _create_cluster(config, topics, data, resources)
            self.control = Control(self.cluster, config.seed)
            """Injects any kind of fault and changes the cluster."""
            self.faults = Faults(self.control)
            """Injects common faults by name."""
            self._client_options = client_options or {}
            self._server = SocketServer(self.cluster, self.control, listener_config)
            self.cluster.listeners = self._server
            self._server.start_threads()
            # From now on, `close` releases the resources.
            self._resources = resources.pop_all()

    def __repr__(self) -> str:
        return f"<EmbeddedBroker {self.bootstrap_servers} {len(self.cluster.topics)} topics>"

    @property
    def bootstrap_servers(self) -> str:
        return self._server.bootstrap_servers

    @property
    def client_options(self) -> dict[str, object]:
        """Options for `KafkaProducer(...)`: the bootstrap servers, certificates for `tls`, and a login for `users`."""
        return {"bootstrap.servers": self.bootstrap_servers, **self._client_options}

    @property
    def spark_options(self) -> dict[str, str]:
        """Options for `df.write.format("pykafka").options(...)`: the client options, prefixed with `kafka.`."""
        return to_spark_options(self.client_options)

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the broker, if any. A failed broker closes all connections and refuses new ones."""
        return self._server.failure

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> KafkaTopic:
        """Create a topic with this number of partitions and these topic settings, and return a handle for it."""
        self.cluster.create_topic(topic, partitions, config)
        return self.topic(topic)

    def topic(self, name: str) -> KafkaTopic:
        """Return a handle for writing, reading and comparing a topic. The topic need not exist yet."""
        return KafkaTopic(name, self.client_options)

    def __enter__(self) -> EmbeddedBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all threads and close all sockets. Raise IllegalStateError if the broker failed while it was running."""
        with self._resources:
            self._server.close()
        if self.failure is not None:
            raise IllegalStateError(
                f"The embedded broker failed: {type(self.failure).__name__}: {self.failure}"
            ) from self.failure


def embedded_broker(  # noqa: PLR0913 - one keyword for each setting
    topics: Mapping[str, int] | None = None,
    *,
    nodes: int = 1,
    racks: Sequence[str | None] = (),
    auto_create_topics: bool = False,
    default_partitions: int = 1,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    transaction_version: int = 2,
    discard: bool = False,
    check_records: bool = True,
    tls: bool | Literal["mutual"] = False,
    users: Mapping[str, str] | None = None,
    mechanism: str = DEFAULT_MECHANISM,
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
    """Start a broker, or a cluster of several nodes, for use in a `with` block.

    - `topics`: number of partitions by topic name
    - `nodes`: number of nodes; each one listens on a port of its own
    - `racks`: rack of each node, like Kafka's broker.rack
    - `auto_create_topics`: create missing topics when clients request them, with `default_partitions` partitions
    - `max_message_bytes`: largest size of a batch in bytes, like Kafka's message.max.bytes
    - `transaction_version`: 2, or 1 as in brokers before Kafka 4
    - `discard`: acknowledge and count records without storing them, to measure clients
    - `check_records`: validate the records of each batch, as Kafka does; if False, only its header and CRC
    - `tls`: True to encrypt with generated certificates; "mutual" if clients must present a certificate as well.
      Requires trustme
    - `users`: passwords by name; clients must log in. `client_options` contains the login of the first user
    - `mechanism`: SASL mechanism of `client_options`: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512
    - `security`: your own certificates and mechanisms (ListenerSecurity), instead of `tls` and `users`
    - `data`: directory in which topics are stored, so that they survive the broker
    - `host`: address to listen on. For 0.0.0.0, all interfaces, set `advertised_host` to a name of this machine that
      clients can resolve
    - `port`: port of the first node; the other nodes use the ports after it. 0 for any free ports
    - `num_network_threads`: threads that read requests and write responses, like Kafka's num.network.threads
    - `num_io_threads`: threads that handle requests, like num.io.threads; 0 if the network threads handle them
    - `queued_max_requests`: requests that may wait for an I/O thread, like queued.max.requests
    - `seed`: seed of the random choices in `control`
    """
    _check_security(tls=tls, users=users, security=security)
    ports = _list_ports(port, nodes)
    config = ClusterConfig(
        nodes=nodes,
        racks=racks,
        auto_create_topics=auto_create_topics,
        default_partitions=default_partitions,
        max_message_bytes=max_message_bytes,
        transaction_version=transaction_version,
        discard=discard,
        check_records=check_records,
        seed=seed,
    )
    host_names = [host, advertised_host or host]
    with set_up_security(tls=tls, users=users or {}, mechanism=mechanism, host_names=host_names) as setup:
        listener_config = ListenerConfig(
            host,
            advertised_host,
            ports=ports,
            security=security or setup.listener,
            network_threads=num_network_threads,
            io_threads=num_io_threads,
            max_queued_requests=queued_max_requests,
        )
        return EmbeddedBroker(config, listener_config, topics=topics, data=data, client_options=setup.client_options)


def _list_ports(first_port: int, nodes: int) -> list[int]:
    """Return the port of each node, or an empty list if `first_port` is 0 (any free ports)."""
    max_first_port = MAX_PORT - max(nodes - 1, 0)
    if not 0 <= first_port <= max_first_port:
        raise ConfigurationError(
            f"port must be from 0 to {max_first_port} for {format_count(nodes, 'node')}, not {first_port}."
        )
    return [first_port + number for number in range(nodes)] if first_port else []


def _check_security(
    *, tls: bool | Literal["mutual"], users: Mapping[str, str] | None, security: ListenerSecurity | None
) -> None:
    """Raise ConfigurationError if `tls` is invalid, or if `security` is combined with `tls` or `users`."""
    if tls not in (False, True, MUTUAL_TLS):
        raise ConfigurationError(f"tls must be True, False or {MUTUAL_TLS!r}, not {tls!r}.")
    if security is not None and (tls or users):
        raise ConfigurationError("security replaces tls and users. Set either security, or tls and users.")


def _create_cluster(
    config: ClusterConfig, topics: Mapping[str, int] | None, data: Path | None, resources: contextlib.ExitStack
) -> EmbeddedCluster:
    """Create the cluster. If it is stored in a directory, add the directory's lock to `resources`."""
    try:
        if data is None:
            return EmbeddedCluster(config, topics=topics)
        resources.enter_context(lock_directory(data))
        return EmbeddedCluster(config, topics=topics, store=ClusterFiles(data))
    except (OSError, ApiError) as error:
        raise ConfigurationError(f"{data} cannot be used as the broker's directory: {error}") from error
