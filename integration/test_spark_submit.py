"""The ways of docs/deploying.md to bring the package to a cluster whose machines do not have it."""

from __future__ import annotations

import os
import subprocess
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import venv_pack

from integration.support.spark_cluster import StandaloneCluster, wheel_environment
from spark_kafka_sink.testing import embedded_broker, read_topic
from tests.spark_session import JVM

pytestmark = pytest.mark.needs("java")

ROWS = 10_000
QUIET_AND_SMALL = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": JVM,
    "spark.executor.extraJavaOptions": JVM,
}
JOB = f"""
import sys
from pyspark.sql import SparkSession
import spark_kafka_sink

bootstrap = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
spark_kafka_sink.register(spark)
rows = spark.range(0, {ROWS}, 1, 4).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
writer = rows.write.format("pykafka").option("kafka.bootstrap.servers", bootstrap)
writer.option("kafka.compression.type", sys.argv[2]).option("topic", "t").save()

def places(_):
    import spark_kafka_sink
    yield spark_kafka_sink.__file__, sys.executable

for place in spark.sparkContext.parallelize([0], 1).mapPartitions(places).collect():
    print("WORKER", *place)
"""


@dataclass
class Machines:
    """A cluster, and what one has at hand to submit a job to it."""

    cluster: StandaloneCluster
    folder: Path
    wheel: Path
    with_wheel: Path
    """A Python with the wheel and what it depends on."""
    bare: Path
    """A Python with pyarrow and numpy; what every machine of the cluster has."""

    def submit(self, options: list[str], python: dict[str, str], codec: str) -> list[str]:
        """Where the job's workers found the package, and which Python they are. The job has written all its rows."""
        job = self.folder / "job.py"
        job.write_text(JOB)
        submit = Path(self.cluster.environment["SPARK_HOME"]) / "bin" / "spark-submit"
        settings = [word for name, value in QUIET_AND_SMALL.items() for word in ("--conf", f"{name}={value}")]
        environment = {name: value for name, value in self.cluster.environment.items() if name != "PYTHONPATH"}
        with embedded_broker(topics={"t": 3}) as broker:
            command = [str(submit), "--master", self.cluster.master, *settings, *options]
            done = subprocess.run(
                [*command, str(job), broker.bootstrap_servers, codec],
                cwd=self.folder,
                env=environment | python,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            values = read_topic(broker.bootstrap_servers, "t")["value"].to_pylist()
        assert {int(value) for value in values} == set(range(ROWS))
        lines: list[str] = [line for line in done.stdout.splitlines() if line.startswith("WORKER ")]
        return lines[0].split()[1:]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("submit")
    python = wheel_environment(folder)
    bare = bare_environment(folder / "bare", python)
    (wheel,) = folder.glob("*.whl")
    with StandaloneCluster(tmp_path_factory.mktemp("spark-cluster"), bare) as cluster:
        yield Machines(cluster, folder, wheel, python, bare)


def bare_environment(folder: Path, other: Path) -> Path:
    """A Python with the pyarrow and the numpy of another environment, and nothing else of it."""
    venv.create(folder, with_pip=False)
    (here,), (there,) = ((root / "lib").glob("*/site-packages") for root in (folder, other.parents[1]))
    for package in (*there.glob("numpy*"), *there.glob("pyarrow*")):
        os.symlink(package, here / package.name)
    return folder / "bin" / "python"


def test_py_files_brings_the_wheel_to_machines_that_have_pyarrow(machines: Machines) -> None:
    archive = machines.folder / "spark_kafka_sink.zip"
    archive.write_bytes(machines.wheel.read_bytes())
    python = {"PYSPARK_PYTHON": str(machines.bare), "PYSPARK_DRIVER_PYTHON": str(machines.bare)}
    module, worker = machines.submit(["--py-files", str(archive)], python, codec="zstd")
    assert "spark_kafka_sink.zip" in module
    assert Path(worker).parent == machines.bare.parent


def test_archives_brings_a_whole_environment_by_venv_pack(machines: Machines) -> None:
    archive = machines.folder / "environment.tar.gz"
    venv_pack.pack(prefix=str(machines.with_wheel.parents[1]), output=str(archive), compress_level=0)
    python = {"PYSPARK_PYTHON": "./environment/bin/python", "PYSPARK_DRIVER_PYTHON": str(machines.with_wheel)}
    module, worker = machines.submit(["--archives", f"{archive}#environment"], python, codec="lz4")
    work = str(machines.cluster.folder)
    assert module.startswith(work), "unpacked beside the executor"
    assert worker.startswith(work)
