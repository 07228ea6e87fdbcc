"""Fetch the jars of the peers: a real Apache Kafka, Spark's own Kafka connector, a schema registry.

`python -m integration.support.artifacts FOLDER` resolves conf/kafka/ivy.xml with the Ivy that pyspark ships, so that
Java and the Python packages are all that a machine needs. FOLDER/kafka, FOLDER/connector and FOLDER/registry then hold
the jars.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / ".jars"
ATTEMPTS = 3


def kafka_classpath() -> str:
    """The class path of the broker and its tools, for `java -cp`."""
    return str(JARS / "kafka" / "*")


def connector_jars() -> list[Path]:
    """Spark's own connector and what it needs, for `spark.jars`."""
    return sorted((JARS / "connector").glob("*.jar"))


def fetch(folder: Path) -> None:
    ivy = next(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))
    command = [
        "java",
        "-jar",
        str(ivy),
        "-ivy",
        str(ROOT / "conf" / "kafka" / "ivy.xml"),
        "-confs",
        "kafka",
        "connector",
        "registry",
    ]
    command += ["-types", "jar", "bundle", "tar.gz"]
    command += ["-retrieve", f"{folder}/[conf]/[artifact]-[revision](-[classifier]).[ext]"]
    for attempt in range(1, ATTEMPTS + 1):
        for name in ("kafka", "connector", "registry"):
            shutil.rmtree(folder / name, ignore_errors=True)
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if result.returncode == 0 and list((folder / "connector").glob("*.jar")):
            _unpack(folder / "registry")
            return
        print(f"attempt {attempt} of {ATTEMPTS} to fetch the jars failed", file=sys.stderr)
    sys.exit(f"{result.stdout}\nThe jars could not be fetched from Maven Central; the lines above say which and why.")


def _unpack(folder: Path) -> None:
    """The registry is published as one archive, with a jar that starts it."""
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()


if __name__ == "__main__":
    fetch(Path(sys.argv[1]).resolve())
