"""Brokers that are not Apache Kafka: kfake of franz-go (tools/kfake_server), and the mock cluster of librdkafka.

Both listen on loopback. Tests are skipped on a broker that `lacks` the capability they need.
"""

from __future__ import annotations

import ctypes
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import ClassVar

import confluent_kafka
from confluent_kafka import KafkaException

from integration.support.artifacts import ROOT
from integration.support.librdkafka import add_partitions, create_topic
from spark_kafka_sink.protocol.message import ApiKey

BROKERS = 3
KFAKE_SOURCE = ROOT / "tools" / "kfake_server"


class Capability(Enum):
    """Something that Apache Kafka can do, and not every other broker."""

    ADD_PARTITIONS = "add partitions to a topic"
    FAIL_AFTER_APPEND = "store the records of a request, and respond to it with an error"
    FENCE = "fence the older of two producers with one transactional.id"
    ISOLATE_TRANSACTIONS = "hide records of open and aborted transactions from read_committed"


class OtherBroker(ABC):
    """A cluster of BROKERS nodes. It is a context manager, and is stopped at the end of the block."""

    lacks: ClassVar[Mapping[Capability, str]] = {}
    """The missing capabilities, each with the behaviour of the broker that replaces it."""
    reader_config: ClassVar[Mapping[str, str]] = {}
    """Settings with which librdkafka can read topics with transactions."""
    max_in_flight: ClassVar[int] = 5
    """The number of requests per connection among which the broker keeps the order of an idempotent producer."""
    bootstrap: str

    @property
    @abstractmethod
    def node_ids(self) -> range:
        """The ids of the brokers."""

    @abstractmethod
    def create_topic(self, topic: str, partitions: int) -> None: ...

    @abstractmethod
    def add_partitions(self, topic: str, partitions: int) -> None:
        """Increase the topic's partition count to `partitions`."""

    @abstractmethod
    def move_leader(self, topic: str, partition: int, node_id: int) -> None: ...

    @abstractmethod
    def move_coordinator(self, transactional_id: str) -> None:
        """Move the transaction coordinator of an id to another broker."""

    @abstractmethod
    def fail_requests(self, api: ApiKey, error_code: int, count: int = 1) -> None:
        """Make brokers respond with an error to the next requests of an API."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> OtherBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def build_kfake_server(folder: Path) -> Path:
    """Build the program in the folder, and return its path."""
    path = folder / "kfake_server"
    subprocess.run(["go", "build", "-o", path, "."], cwd=KFAKE_SOURCE, check=True)
    return path


class Kfake(OtherBroker):
    """kfake in a separate process, which ends with this process at the latest."""

    def __init__(self, server: Path, version: str = "") -> None:
        """`version`: the version of Kafka whose requests the brokers accept; by default all that they implement."""
        command = [str(server), "-brokers", str(BROKERS), "-version", version]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.bootstrap = self._read_line()

    @property
    def node_ids(self) -> range:
        return range(BROKERS)

    def create_topic(self, topic: str, partitions: int) -> None:
        create_topic(self.bootstrap, topic, partitions=partitions, replicas=BROKERS)

    def add_partitions(self, topic: str, partitions: int) -> None:
        add_partitions(self.bootstrap, topic, partitions)

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        self._run(f"move-leader {topic} {partition} {node_id}")

    def move_coordinator(self, transactional_id: str) -> None:
        self._run("move-coordinators")

    def fail_requests(self, api: ApiKey, error_code: int, count: int = 1) -> None:
        self._run(f"fail {int(api)} {error_code} {count}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _run(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        response = self._read_line()
        assert response == "ok", f"{command}: {response}"

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "kfake_server has ended"
        return line


class LibrdkafkaMock(OtherBroker):
    """The mock cluster of librdkafka, in threads of this process. confluent-kafka does not wrap its functions."""

    lacks: ClassVar[Mapping[Capability, str]] = {
        Capability.ADD_PARTITIONS: "supports neither CreatePartitions nor a function for it",
        Capability.FAIL_AFTER_APPEND: "stores no records of a request that it fails",
        Capability.FENCE: "commits transactions of both producers",
        Capability.ISOLATE_TRANSACTIONS: "returns records of open and aborted transactions to every consumer",
    }
    # The mock cluster writes transaction markers with a CRC of 0.
    reader_config: ClassVar[Mapping[str, str]] = {"check.crcs": "false"}
    # The mock cluster checks no sequence numbers: it stores batches that follow a failed one.
    max_in_flight = 1
    _PRODUCER_TYPE = 0  # RD_KAFKA_PRODUCER

    def __init__(self) -> None:
        self._library = _load_librdkafka()
        reason = ctypes.create_string_buffer(512)
        self._host = self._library.rd_kafka_new(self._PRODUCER_TYPE, None, reason, len(reason))
        assert self._host, reason.value.decode()
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._host, BROKERS)
        self.bootstrap = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        self._coordinators: dict[str, int] = {}

    @property
    def node_ids(self) -> range:
        return range(1, BROKERS + 1)

    def create_topic(self, topic: str, partitions: int) -> None:
        _check(self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, BROKERS))

    def add_partitions(self, topic: str, partitions: int) -> None:
        raise NotImplementedError(self.lacks[Capability.ADD_PARTITIONS])

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        _check(self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, node_id))

    def move_coordinator(self, transactional_id: str) -> None:
        node_id = self._coordinators.get(transactional_id, 0) % BROKERS + 1
        self._coordinators[transactional_id] = node_id
        name = transactional_id.encode()
        _check(self._library.rd_kafka_mock_coordinator_set(self._cluster, b"transaction", name, node_id))

    def fail_requests(self, api: ApiKey, error_code: int, count: int = 1) -> None:
        errors = (ctypes.c_int * count)(*[error_code] * count)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, int(api), count, errors)

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._host)


def _load_librdkafka() -> ctypes.CDLL:
    """Return the library that confluent-kafka has loaded, with the types of the functions that LibrdkafkaMock calls."""
    (path,) = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka*.so*")
    library = ctypes.CDLL(str(path))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("rd_kafka_new", pointer, [number, pointer, text, ctypes.c_size_t]),
        ("rd_kafka_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_new", pointer, [pointer, number]),
        ("rd_kafka_mock_cluster_destroy", None, [pointer]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_topic_create", number, [pointer, text, number, number]),
        ("rd_kafka_mock_partition_set_leader", number, [pointer, text, ctypes.c_int32, ctypes.c_int32]),
        ("rd_kafka_mock_coordinator_set", number, [pointer, text, text, ctypes.c_int32]),
        ("rd_kafka_mock_push_request_errors_array", None, [pointer, ctypes.c_int16, ctypes.c_size_t, pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _check(error_code: int) -> None:
    if error_code:
        raise KafkaException(f"librdkafka's mock cluster responded with error {error_code}")
