"""KafkaCluster: Apache Kafka in KRaft mode with one or several brokers, on free ports of the loopback interface.

A single node is broker and controller in one process. Several brokers have a separate controller, so that the quorum
survives if brokers are killed. Each process has a directory with its configuration, data and `server.log`. The cluster
is a context manager: it is stopped at the end of the block, even if the test fails.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from types import TracebackType

from integration.support.artifacts import ROOT, kafka_classpath
from integration.support.certificates import write_certificates
from integration.support.ports import PortBlock
from integration.support.processes import stop
from tests.runner.class_archive import KAFKA_ARCHIVE, archive_options

TEMPLATES = ROOT / "conf" / "kafka"
LISTENERS = ("PLAINTEXT", "SSL", "MTLS", "EXPIRED", "SASL_PLAINTEXT", "SASL_SSL", "REAUTH", "PROXIED")
SASL_LISTENERS = ("SASL_PLAINTEXT", "SASL_SSL", "REAUTH")
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
CONTROLLER_ID = 100
USERS = {"alice": "alice-secret", "bob": "bob-secret"}
JVM_OPTIONS = ("-Xms64m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
JVM = (*JVM_OPTIONS, *archive_options(KAFKA_ARCHIVE).split())
START_SECONDS = 600.0
STOP_SECONDS = 300.0


def build_rack_name(node_id: int) -> str:
    """Return the value of broker.rack for a node. Each node has a rack of its own."""
    return f"rack-{node_id}"


@dataclass
class KafkaNode:
    """A JVM of the cluster. `process` is None while it is not running."""

    node_id: int
    roles: str
    ports: Mapping[str, int]
    folder: Path
    jvm: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    paused: bool = False

    @property
    def is_broker(self) -> bool:
        return "broker" in self.roles

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def launch(self) -> None:
        with self.log.open("ab") as log:
            command = ["java", *JVM, *self.jvm, f"-Dlog4j2.configurationFile={TEMPLATES / 'log4j2.yaml'}"]
            command += ["-cp", kafka_classpath(), "kafka.Kafka", str(self.folder / "server.properties")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def require_process(self) -> subprocess.Popen[bytes]:
        """Return the process. Raise RuntimeError if it is not running."""
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"node {self.node_id} is not running")
        return self.process

    def send_signal(self, number: int) -> None:
        self.require_process().send_signal(number)

    def wait_or_kill(self, seconds: float = STOP_SECONDS) -> None:
        """Wait for the process to end, and kill it after the timeout."""
        if self.process is not None:
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
            self.paused = False


@dataclass
class KafkaCluster:
    """A cluster with the brokers 1 to n.

    `properties` are added to the configuration of each node, `features` to the command that formats its storage, and
    `jvm` to the options of its JVM, where they override JVM_OPTIONS. Each of the `listeners` costs CPU time, so a
    cluster has only those that its tests need.
    """

    folder: Path
    brokers: int = 1
    listeners: tuple[str, ...] = ("PLAINTEXT",)
    properties: Mapping[str, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    jvm: tuple[str, ...] = ()
    advertised_ports: Mapping[int, int] = field(default_factory=dict)
    """Ports that the PROXIED listeners advertise instead of their own, by broker."""
    nodes: dict[int, KafkaNode] = field(default_factory=dict, init=False)
    _ports: PortBlock | None = field(default=None, init=False)

    def __enter__(self) -> KafkaCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- the whole cluster

    def start(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        write_certificates(self.certificates)
        self._create_nodes()
        self._format_storage()
        for node in self.nodes.values():
            node.launch()
        self.wait_until_ready()

    def stop(self) -> None:
        for node in self.nodes.values():
            if node.process is not None and node.process.poll() is None:
                node.process.kill()
        for node in self.nodes.values():
            node.wait_or_kill()
        if self._ports is not None:
            self._ports.close()

    def bootstrap(self, listener: str = "PLAINTEXT", host: str = "localhost") -> str:
        return ",".join(f"{host}:{node.ports[listener]}" for node in self.nodes.values() if node.is_broker)

    @property
    def certificates(self) -> Path:
        return self.folder / "certificates"

    def wait_until_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until every running broker accepts connections and is in the cluster's metadata."""
        running_ids = {node.node_id for node in self._find_running_brokers()}
        deadline = time.monotonic() + seconds
        while self._find_registered_brokers() < running_ids:
            for node in self.nodes.values():
                if node.process is not None and node.process.poll() is not None:
                    raise RuntimeError(f"node {node.node_id} ended at once:\n{read_log_tail(node.log)}")
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- node {node.node_id}\n{read_log_tail(node.log)}" for node in self.nodes.values())
                raise RuntimeError(f"Kafka was not ready after {seconds:.0f} s\n{logs}")
            time.sleep(0.2)

    # --- one node

    def kill(self, node_id: int) -> None:
        """Kill a node with SIGKILL."""
        self.nodes[node_id].send_signal(signal.SIGKILL)
        self.nodes[node_id].wait_or_kill()

    def stop_node(self, node_id: int) -> None:
        """Shut a node down with SIGTERM, so that the leaders on it move to other nodes first."""
        self.nodes[node_id].send_signal(signal.SIGTERM)
        self.nodes[node_id].wait_or_kill()

    def start_node(self, node_id: int, *, wait: bool = True) -> None:
        self.nodes[node_id].launch()
        if wait:
            self.wait_until_ready()

    def restart(self, node_id: int) -> None:
        self.stop_node(node_id)
        self.start_node(node_id)

    def restart_elsewhere(self, node_id: int, port: int) -> None:
        """Restart a node with a different advertised port of its PROXIED listener."""
        node = self.nodes[node_id]
        self.stop_node(node_id)
        self.advertised_ports = {**self.advertised_ports, node_id: port}
        (node.folder / "server.properties").write_text(self._build_server_properties(node))
        self.start_node(node_id)

    def pause(self, node_id: int) -> None:
        """Suspend all threads of a node with SIGSTOP. Its sockets stay open, but it does not respond."""
        node = self.nodes[node_id]
        stop(node.require_process())
        node.paused = True

    def resume(self, node_id: int) -> None:
        self.nodes[node_id].send_signal(signal.SIGCONT)
        self.nodes[node_id].paused = False

    # --- Kafka's own tools

    def run_tool(self, main_class: str, *arguments: str, stdin: bytes | None = None) -> str:
        """Run one of Kafka's command line tools, by its class, and return what it printed."""
        command = ["java", *JVM, "-cp", kafka_classpath(), main_class, *arguments]
        completed = subprocess.run(command, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        output = completed.stdout.decode(errors="replace")
        if completed.returncode != 0:
            raise RuntimeError(f"{main_class} {' '.join(arguments)} ended with {completed.returncode}:\n{output}")
        return output

    # --- configuration and storage

    def _create_nodes(self) -> None:
        layout = {1: "broker,controller"}
        if self.brokers > 1:
            layout = {CONTROLLER_ID: "controller"} | dict.fromkeys(range(1, self.brokers + 1), "broker")
        self._ports = PortBlock()
        free_port = self._ports.free_ports()
        for node_id, roles in layout.items():
            ports = {name: next(free_port) for name in (self.listeners if "broker" in roles else ())}
            if "controller" in roles:
                ports["CONTROLLER"] = next(free_port)
            self.nodes[node_id] = KafkaNode(node_id, roles, ports, self.folder / f"node-{node_id}", self.jvm)
        for node in self.nodes.values():
            node.folder.mkdir()
            (node.folder / "server.properties").write_text(self._build_server_properties(node))

    def _build_server_properties(self, node: KafkaNode) -> str:
        controllers = [other for other in self.nodes.values() if "controller" in other.roles]
        text = _read_template("node.properties").substitute(
            roles=node.roles,
            node_id=node.node_id,
            voters=",".join(
                f"{controller.node_id}@localhost:{controller.ports['CONTROLLER']}" for controller in controllers
            ),
            log_dir=node.folder / "data",
            replicas=min(self.brokers, 3),
            min_isr=2 if self.brokers > 2 else 1,
        )
        if node.is_broker:
            text += self._build_listener_properties(node)
            text += f"broker.rack={build_rack_name(node.node_id)}\n"
        else:
            text += f"listeners=CONTROLLER://localhost:{node.ports['CONTROLLER']}\n"
        return text + "".join(f"{name}={value}\n" for name, value in self.properties.items())

    def _build_listener_properties(self, node: KafkaNode) -> str:
        advertised = {name: port for name, port in node.ports.items() if name != "CONTROLLER"}
        if "PROXIED" in advertised:
            advertised["PROXIED"] = self.advertised_ports.get(node.node_id, advertised["PROXIED"])
        listeners = _read_template("listeners.properties").substitute(
            listeners=",".join(f"{name}://localhost:{port}" for name, port in node.ports.items()),
            advertised=",".join(f"{name}://localhost:{port}" for name, port in advertised.items()),
            certificates=self.certificates,
        )
        return listeners + _read_template("sasl.properties").substitute() + "".join(_build_jaas_lines(self.listeners))

    def _format_storage(self) -> None:
        """Format the storage of all nodes concurrently, each with its own process."""
        formatting: dict[int, subprocess.Popen[str]] = {}
        for node in self.nodes.values():
            command = ["java", *JVM, "-cp", kafka_classpath(), "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID]
            command += ["-c", str(node.folder / "server.properties")]
            for user, password in USERS.items():
                for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                    command += ["--add-scram", f"{mechanism}=[name={user},password={password}]"]
            for feature in self.features:
                command += ["--feature", feature]
            formatting[node.node_id] = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        outputs = {node_id: process.communicate()[0] for node_id, process in formatting.items()}
        for node_id, process in formatting.items():
            if process.returncode != 0:
                raise RuntimeError(f"formatting the storage of node {node_id} failed:\n{outputs[node_id]}")

    def _find_running_brokers(self) -> list[KafkaNode]:
        """Return the brokers that have been started and are not paused."""
        return [node for node in self.nodes.values() if node.is_broker and node.process and not node.paused]

    def _find_registered_brokers(self) -> set[int]:
        """Return the ids of the brokers in the cluster's metadata, or an empty set if a running one does not listen."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        running_brokers = self._find_running_brokers()
        client_ports = [port for node in running_brokers for name, port in node.ports.items() if name != "CONTROLLER"]
        if not all(is_listening(port) for port in client_ports):
            return set()
        bootstrap = ",".join(f"localhost:{node.ports['PLAINTEXT']}" for node in running_brokers)
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        try:
            return set(admin.list_topics(timeout=5).brokers)
        except KafkaException:
            return set()


def _build_jaas_lines(listeners: Sequence[str]) -> Iterator[str]:
    """Yield the login modules of the SASL listeners."""
    package = "org.apache.kafka.common.security"
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    modules = {
        "plain": f"{package}.plain.PlainLoginModule required {users};",
        "scram-sha-256": f"{package}.scram.ScramLoginModule required;",
        "scram-sha-512": f"{package}.scram.ScramLoginModule required;",
        "oauthbearer": f'{package}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="admin";',
    }
    for listener in SASL_LISTENERS:
        if listener not in listeners:
            continue
        for mechanism, module in modules.items():
            yield f"listener.name.{listener.lower()}.{mechanism}.sasl.jaas.config={module}\n"


def _read_template(name: str) -> Template:
    return Template((TEMPLATES / name).read_text())


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("localhost", port), timeout=1).close()
    except OSError:
        return False
    return True


def read_log_tail(path: Path, characters: int = 4000) -> str:
    if not path.exists():
        return "(no log)"
    with path.open("rb") as log:
        log.seek(max(0, os.path.getsize(path) - characters))
        return log.read().decode(errors="replace")
