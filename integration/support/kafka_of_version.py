"""KafkaOfVersion: a broker of any version in kafka_versions.py, with ZooKeeper if the version uses it.

It has one listener without TLS and SASL, on free ports of the loopback interface, because versions differ in the APIs
that they support and not in connections. kafka_cluster.py has the other features, for one version.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from string import Template

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from integration.support.kafka_cluster import (
    CLUSTER_ID,
    JVM_OPTIONS,
    START_SECONDS,
    STOP_SECONDS,
    TEMPLATES,
    is_listening,
    read_log_tail,
)
from integration.support.kafka_versions import FOLDER, KafkaVersion, ensure_jars
from integration.support.ports import PortBlock

_KRAFT = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:$other
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://localhost:$port,CONTROLLER://localhost:$other
"""
_ZOOKEEPER = """\
broker.id=1
zookeeper.connect=localhost:$other
listeners=PLAINTEXT://localhost:$port
"""
_ZOOKEEPER_SERVER = """\
dataDir=$data
clientPort=$other
clientPortAddress=127.0.0.1
admin.enableServer=false
"""


class KafkaOfVersion:
    """A running broker. `transactions` is its transaction version, if the Kafka version supports several.

    It is a context manager.
    """

    def __init__(self, folder: Path, version: KafkaVersion, transactions: int | None = None) -> None:
        self.version = version
        self.transactions = transactions if transactions is not None else version.transactions[-1]
        self._folder = folder
        self._jars = ensure_jars(version)
        self._ports = PortBlock()
        ports = self._ports.free_ports()
        self._port, self._quorum_port = next(ports), next(ports)
        self._processes: list[subprocess.Popen[bytes]] = []

    def __str__(self) -> str:
        return f"{self.version}, transactions {self.transactions}"

    def bootstrap(self) -> str:
        return f"localhost:{self._port}"

    def __enter__(self) -> KafkaOfVersion:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait(STOP_SECONDS)
        self._ports.close()

    # --- processes and storage

    def _start(self) -> None:
        self._folder.mkdir(parents=True)
        metadata_properties = _ZOOKEEPER if self.version.has_zookeeper else _KRAFT
        text = (FOLDER / "broker.properties").read_text() + metadata_properties
        properties = self._write_config("server.properties", text)
        if self.version.has_zookeeper:
            settings = self._write_config("zookeeper.properties", _ZOOKEEPER_SERVER)
            self._launch("zookeeper", "org.apache.zookeeper.server.ZooKeeperServerMain", str(settings))
            self._wait_until(lambda: is_listening(self._quorum_port))
        else:
            self._format(properties)
        self._launch("kafka", "kafka.Kafka", str(properties))
        self._wait_until(self._is_registered)

    def _write_config(self, name: str, text: str) -> Path:
        path = self._folder / name
        data = self._folder / f"data-of-{path.stem}"
        path.write_text(Template(text).substitute(port=self._port, other=self._quorum_port, data=data))
        return path

    def _format(self, properties: Path) -> None:
        arguments = ["format", "-t", CLUSTER_ID, "-c", str(properties)]
        if len(self.version.transactions) > 1:
            arguments += ["--feature", f"transaction.version={self.transactions}"]
        command = self._build_command("kafka.tools.StorageTool", *arguments)
        completed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if completed.returncode != 0:
            raise RuntimeError(f"formatting the storage of Kafka {self} failed:\n{completed.stdout}")

    def _build_command(self, main_class: str, *arguments: str) -> list[str]:
        logging = f"-Dlog4j.configuration=file:{FOLDER / 'log4j.properties'}"
        if not self.version.is_before_4:
            logging = f"-Dlog4j2.configurationFile={TEMPLATES / 'log4j2.yaml'}"
        return ["java", *JVM_OPTIONS, logging, "-cp", f"{self._jars}/*", main_class, *arguments]

    def _launch(self, name: str, main_class: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            command = self._build_command(main_class, *arguments)
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))

    def _wait_until(self, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            if any(process.poll() is not None for process in self._processes) or time.monotonic() > deadline:
                logs = "\n".join(read_log_tail(path) for path in sorted(self._folder.glob("*.log")))
                raise RuntimeError(f"Kafka {self} did not start:\n{logs}")
            time.sleep(0.1)

    def _is_registered(self) -> bool:
        if not is_listening(self._port):
            return False
        admin = AdminClient({"bootstrap.servers": self.bootstrap(), "log_level": 0})
        with contextlib.suppress(KafkaException):
            return 1 in admin.list_topics(timeout=5).brokers
        return False
