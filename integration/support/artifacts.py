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
from collections.abc import Sequence
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / ".jars"
DIGESTS = ROOT / "conf" / "kafka" / "jars.sha256"
CONFIGURATIONS = ("kafka", "connector", "registry")
ATTEMPTS = 3


def kafka_classpath() -> str:
    """The class path of the broker and its tools, for `java -cp`."""
    return str(JARS / "kafka" / "*")


def connector_jars() -> list[Path]:
    """Spark's own connector and what it needs, for `spark.jars`."""
    return sorted((JARS / "connector").glob("*.jar"))


def fetch(folder: Path) -> None:
    arguments = ["-confs", *CONFIGURATIONS, "-types", "jar", "bundle", "tar.gz"]
    for attempt in range(1, ATTEMPTS + 1):
        for name in CONFIGURATIONS:
            shutil.rmtree(folder / name, ignore_errors=True)
        pattern = f"{folder}/[conf]/[artifact]-[revision](-[classifier]).[ext]"
        succeeded, said = run_ivy(ROOT / "conf" / "kafka" / "ivy.xml", arguments, pattern)
        if succeeded and list((folder / "connector").glob("*.jar")):
            check_digests(folder)
            _unpack(folder / "registry")
            return
        print(f"attempt {attempt} of {ATTEMPTS} to fetch the jars failed", file=sys.stderr)
    sys.exit(f"{said}\nThe jars could not be fetched from Maven Central; the lines above say which and why.")


def run_ivy(file: Path, arguments: Sequence[str], pattern: str, **properties: str) -> tuple[bool, str]:
    """Whether what `file` asks for was found and copied to where `pattern` says, and what was said about it."""
    ivy = next(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))
    defined = [f"-D{name}={value}" for name, value in properties.items()]
    command = ["java", *defined, "-jar", str(ivy), "-ivy", str(file), *arguments, "-retrieve", pattern]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode == 0, done.stdout


def check_digests(folder: Path, expected: str | None = None) -> None:
    """Ends the program unless exactly the pinned files are there; jars with other bytes would be run by the tests.

    A change of conf/kafka/ivy.xml needs new digests, made before the archive is unpacked:
    `cd .jars && sha256sum */*.jar registry/*.tar.gz`.
    """
    lines = (DIGESTS.read_text() if expected is None else expected).splitlines()
    pinned = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    found = digests_of(folder, "*/*")
    wrong = sorted(name for name in pinned.keys() | found.keys() if pinned.get(name) != found.get(name))
    if wrong:
        for name in wrong:
            (folder / name).unlink(missing_ok=True)
        sys.exit(f"These files are not what {DIGESTS.name} pins, or are missing, and were removed: {', '.join(wrong)}")


def digests_of(folder: Path, pattern: str) -> dict[str, str]:
    """Of the files that the pattern finds in the folder, by their paths there."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob(pattern))
        if path.is_file()
    }


def _unpack(folder: Path) -> None:
    """The registry is published as one archive, with a jar that starts it."""
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()


if __name__ == "__main__":
    fetch(Path(sys.argv[1]).resolve())
