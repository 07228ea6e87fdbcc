"""The versions of Apache Kafka with which this library is run, and their jars, fetched when they are first asked for.

`python -m integration.support.kafka_versions` fetches those of the oldest and of the newest version, which `make test`
runs, into .jars/versions; with numbers, those of these versions. They are pinned by their bytes; a change of
conf/kafka/versions/ivy.xml or of a number below needs new digests: `cd .jars/versions && sha256sum */*.jar`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from integration.support.artifacts import ATTEMPTS, JARS, ROOT, digests_of, run_ivy

FOLDER = ROOT / "conf" / "kafka" / "versions"
DIGESTS = FOLDER / "jars.sha256"


@dataclass(frozen=True)
class KafkaVersion:
    """`transactions`: the versions of transactions that a cluster can be formatted with. Before Kafka 4 there is one,
    which is not named when the storage is formatted."""

    number: str
    transactions: tuple[int, ...] = (1,)
    has_zookeeper: bool = False
    """It is run with ZooKeeper, as nearly all clusters of that time are: KRaft is for production from 3.3 on."""
    describes_transactions: bool = True
    """KIP-664, Kafka 3.0: brokers say which transactions there are, and whose. Exactly once asks them."""

    @property
    def jars(self) -> Path:
        return JARS / "versions" / self.number

    @property
    def is_before_4(self) -> bool:
        return int(self.number.split(".")[0]) < 4

    def __str__(self) -> str:
        return self.number


VERSIONS = (
    KafkaVersion("2.8.2", has_zookeeper=True, describes_transactions=False),
    KafkaVersion("3.0.2", has_zookeeper=True),
    KafkaVersion("3.3.2"),
    KafkaVersion("3.9.2"),
    KafkaVersion("4.0.2", transactions=(1, 2)),
    KafkaVersion("4.3.1", transactions=(1, 2)),
    KafkaVersion("4.4.0", transactions=(1, 2)),
)
OLDEST, NEWEST = VERSIONS[0], VERSIONS[-1]


def fetched(version: KafkaVersion) -> Path:
    """The folder of its jars, all of which are what is pinned."""
    if not _is_whole(version.jars, version):
        _fetch(version)
    return version.jars


def _fetch(version: KafkaVersion) -> None:
    version.jars.parent.mkdir(parents=True, exist_ok=True)
    arguments = ["-confs", "log4j1" if version.is_before_4 else "log4j2", "-types", "jar", "bundle"]
    for attempt in range(1, ATTEMPTS + 1):
        with tempfile.TemporaryDirectory(dir=version.jars.parent) as folder:
            pattern = f"{folder}/jars/[artifact]-[revision](-[classifier]).[ext]"
            succeeded, said = run_ivy(FOLDER / "ivy.xml", arguments, pattern, kafka=version.number)
            if succeeded and _is_whole(Path(folder) / "jars", version):
                shutil.rmtree(version.jars, ignore_errors=True)
                (Path(folder) / "jars").rename(version.jars)
                return
        print(f"attempt {attempt} of {ATTEMPTS} to fetch Kafka {version} failed", file=sys.stderr)
    raise RuntimeError(f"{said}\nThe jars of Kafka {version} could not be fetched, or are not what is pinned.")


def _is_whole(folder: Path, version: KafkaVersion) -> bool:
    return digests_of(folder, "*.jar") == pinned_of(version)


def pinned_of(version: KafkaVersion) -> dict[str, str]:
    """The digest of each of its jars."""
    lines = (line.split("  ", 1) for line in DIGESTS.read_text().splitlines())
    return {name.partition("/")[2]: digest for digest, name in lines if name.startswith(f"{version}/")}


if __name__ == "__main__":
    for each in VERSIONS:
        if each.number in (sys.argv[1:] or (OLDEST.number, NEWEST.number)):
            fetched(each)
