"""The versions of Apache Kafka that are tested, and their jars, which are downloaded when they are first used.

`python -m integration.support.kafka_versions` downloads the jars of the oldest and the newest version, which `make
test` uses, to .jars/versions; with arguments, those of the given versions. Jars are pinned by their checksums. A change
of conf/kafka/versions/ivy.xml or of a version below requires new ones: `cd .jars/versions && sha256sum */*.jar`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from integration.support.artifacts import ATTEMPTS, JARS, ROOT, compute_digests, run_ivy

FOLDER = ROOT / "conf" / "kafka" / "versions"
DIGESTS = FOLDER / "jars.sha256"


@dataclass(frozen=True)
class KafkaVersion:
    """A version of Kafka, with its transaction versions and features.

    Before Kafka 4 there is one transaction version, which is not specified when the storage is formatted.
    """

    number: str
    transactions: tuple[int, ...] = (1,)
    has_zookeeper: bool = False
    """Whether tests use ZooKeeper, as most clusters of that version do. KRaft is production-ready since 3.3."""
    describes_transactions: bool = True
    """Whether brokers list and describe transactions (KIP-664, Kafka 3.0), which exactly-once writes require."""

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


def ensure_jars(version: KafkaVersion) -> Path:
    """Return the directory of a version's jars, downloaded if necessary. All jars match the pinned checksums."""
    if not _has_pinned_jars(version.jars, version):
        _fetch(version)
    return version.jars


def _fetch(version: KafkaVersion) -> None:
    version.jars.parent.mkdir(parents=True, exist_ok=True)
    arguments = ["-confs", "log4j1" if version.is_before_4 else "log4j2", "-types", "jar", "bundle"]
    for attempt in range(1, ATTEMPTS + 1):
        with tempfile.TemporaryDirectory(dir=version.jars.parent) as folder:
            pattern = f"{folder}/jars/[artifact]-[revision](-[classifier]).[ext]"
            succeeded, output = run_ivy(FOLDER / "ivy.xml", arguments, pattern, kafka=version.number)
            if succeeded and _has_pinned_jars(Path(folder) / "jars", version):
                shutil.rmtree(version.jars, ignore_errors=True)
                (Path(folder) / "jars").rename(version.jars)
                return
        print(f"Attempt {attempt} of {ATTEMPTS} to download Kafka {version} failed.", file=sys.stderr)
    raise RuntimeError(
        f"{output}\nThe jars of Kafka {version} could not be downloaded, or differ from the pinned ones."
    )


def _has_pinned_jars(folder: Path, version: KafkaVersion) -> bool:
    return compute_digests(folder, "*.jar") == read_pinned_digests(version)


def read_pinned_digests(version: KafkaVersion) -> dict[str, str]:
    """Return the pinned digests of a version's jars, by file name."""
    lines = (line.split("  ", 1) for line in DIGESTS.read_text().splitlines())
    return {name.partition("/")[2]: digest for digest, name in lines if name.startswith(f"{version}/")}


if __name__ == "__main__":
    for version in VERSIONS:
        if version.number in (sys.argv[1:] or (OLDEST.number, NEWEST.number)):
            ensure_jars(version)
