"""Downloads of jars: Apache Kafka, Spark's own Kafka connector and a schema registry.

`python -m integration.support.artifacts FOLDER` resolves conf/kafka/ivy.xml with the Ivy of pyspark, so that a machine
needs only Java and the Python packages. The jars are stored in FOLDER/kafka, FOLDER/connector and FOLDER/registry.
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
SAIL_PYTHON = ROOT / ".venv-sail" / "bin" / "python"
DIGESTS = ROOT / "conf" / "kafka" / "jars.sha256"
CONFIGURATIONS = ("kafka", "connector", "registry")
ATTEMPTS = 3


def kafka_classpath() -> str:
    """Return the class path of the broker and its tools, for `java -cp`."""
    return str(JARS / "kafka" / "*")


def connector_jars() -> list[Path]:
    """Return Spark's own connector and its dependencies, for `spark.jars`."""
    return sorted((JARS / "connector").glob("*.jar"))


def fetch(folder: Path) -> None:
    arguments = ["-confs", *CONFIGURATIONS, "-types", "jar", "bundle", "tar.gz"]
    for attempt in range(1, ATTEMPTS + 1):
        for name in CONFIGURATIONS:
            shutil.rmtree(folder / name, ignore_errors=True)
        pattern = f"{folder}/[conf]/[artifact]-[revision](-[classifier]).[ext]"
        succeeded, output = run_ivy(ROOT / "conf" / "kafka" / "ivy.xml", arguments, pattern)
        if succeeded and list((folder / "connector").glob("*.jar")):
            check_digests(folder)
            _unpack(folder / "registry")
            return
        print(f"Attempt {attempt} of {ATTEMPTS} to download the jars failed.", file=sys.stderr)
    sys.exit(f"{output}\nThe jars could not be downloaded from Maven Central. The lines above have the reason.")


def run_ivy(file: Path, arguments: Sequence[str], pattern: str, **properties: str) -> tuple[bool, str]:
    """Resolve an Ivy file and copy the jars to `pattern`. Return whether that succeeded, and the output."""
    ivy = next(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))
    definitions = [f"-D{name}={value}" for name, value in properties.items()]
    command = ["java", *definitions, "-jar", str(ivy), "-ivy", str(file), *arguments, "-retrieve", pattern]
    completed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return completed.returncode == 0, completed.stdout


def check_digests(folder: Path, expected: str | None = None) -> None:
    """Remove files that do not match the pinned checksums, and end the program if there are any.

    A change of conf/kafka/ivy.xml requires new digests, computed before the archive is unpacked:
    `cd .jars && sha256sum */*.jar registry/*.tar.gz`.
    """
    lines = (DIGESTS.read_text() if expected is None else expected).splitlines()
    pinned = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    actual = compute_digests(folder, "*/*")
    mismatches = sorted(name for name in pinned.keys() | actual.keys() if pinned.get(name) != actual.get(name))
    if mismatches:
        for name in mismatches:
            (folder / name).unlink(missing_ok=True)
        sys.exit(f"These files are missing or differ from {DIGESTS.name}, and were removed: {', '.join(mismatches)}")


def compute_digests(folder: Path, pattern: str) -> dict[str, str]:
    """Return the SHA-256 digests of the files that match a pattern, by relative path."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob(pattern))
        if path.is_file()
    }


def _unpack(folder: Path) -> None:
    """Unpack the archive of the registry, which contains a jar that starts it."""
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()


if __name__ == "__main__":
    fetch(Path(sys.argv[1]).resolve())
