"""Fetch the jars of the peers: a real Apache Kafka, Spark's own Kafka connector, a schema registry.

`python -m integration.support.artifacts FOLDER` resolves conf/kafka/ivy.xml with the Ivy that pyspark ships, so that
Java and the Python packages are all that a machine needs. FOLDER/kafka, FOLDER/connector and FOLDER/registry then hold
the jars.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / ".jars"
DIGESTS = ROOT / "conf" / "kafka" / "jars.sha256"
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
            check_digests(folder)
            _unpack(folder / "registry")
            return
        print(f"attempt {attempt} of {ATTEMPTS} to fetch the jars failed", file=sys.stderr)
    sys.exit(f"{result.stdout}\nThe jars could not be fetched from Maven Central; the lines above say which and why.")


def check_digests(folder: Path, expected: str | None = None) -> None:
    """Ends the program unless exactly the pinned files are there; jars with other bytes would be run by the tests.

    A change of conf/kafka/ivy.xml needs new digests, made before the archive is unpacked:
    `cd .jars && sha256sum */*.jar registry/*.tar.gz`.
    """
    lines = (DIGESTS.read_text() if expected is None else expected).splitlines()
    pinned = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    found = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*/*"))
        if path.is_file()
    }
    wrong = sorted(name for name in pinned.keys() | found.keys() if pinned.get(name) != found.get(name))
    if wrong:
        for name in wrong:
            (folder / name).unlink(missing_ok=True)
        sys.exit(f"These files are not what {DIGESTS.name} pins, or are missing, and were removed: {', '.join(wrong)}")


def _unpack(folder: Path) -> None:
    """The registry is published as one archive, with a jar that starts it."""
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()


if __name__ == "__main__":
    fetch(Path(sys.argv[1]).resolve())
