"""The commands of docs/deploying.md that ship the package to a cluster without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.support.artifacts import ROOT
from integration.support.spark_cluster import StandaloneCluster, deploying_commands
from spark_kafka_sink.testing import embedded_broker, read_topic
from tests.spark_session import JVM

pytestmark = pytest.mark.needs("java")

ROWS = 10_000
QUIET_AND_SMALL = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.executor.memory": "512m",
    "spark.cores.max": "1",  # one executor is enough, because all get the same files
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
    """A cluster, and the files that are needed to submit a job to it."""

    cluster: StandaloneCluster
    folder: Path
    wheel: Path
    bare: Path
    """A Python interpreter with only pyarrow and numpy, like that of the cluster's machines."""

    def submit(self, block: str, python: dict[str, str], codec: str) -> list[str]:
        """Run the job and check its rows. Return the path of the package in a worker, and the worker's interpreter."""
        with embedded_broker(topics={"t": 3}) as broker:
            output = self.run(block.replace("job.py", f"job.py {broker.bootstrap_servers} {codec}"), python)
            values = read_topic(broker.bootstrap_servers, "t")["value"].to_pylist()
        assert {int(value) for value in values} == set(range(ROWS))
        lines: list[str] = [line for line in output.splitlines() if line.startswith("WORKER ")]
        return lines[0].split()[1:]

    def run(self, block: str, more: dict[str, str]) -> str:
        """Run the commands on this cluster and return their output. `more`: additional environment variables."""
        environment = {name: value for name, value in self.cluster.environment.items() if name != "PYTHONPATH"}
        first = f"{self.folder / 'bin'}:{Path(sys.executable).parent}"
        environment |= {"PATH": f"{first}:{os.environ['PATH']}"} | more
        block = block.replace("WHEEL", str(self.wheel)).replace("spark://master:7077", self.cluster.master)
        done = subprocess.run(
            ["bash", "-ec", block], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def machines(standalone: StandaloneCluster, wheel: Path, wheel_python: Path) -> Machines:
    folder = wheel_python.parents[2]
    # A configuration folder would be on the class path, and the JVM would not use its class data archive.
    settings = "".join(f"{name} {value}\n" for name, value in QUIET_AND_SMALL.items())
    (folder / "spark.conf").write_text(settings)
    (folder / "bin").mkdir()
    spark_submit = folder / "bin" / "spark-submit"
    real_command = Path(standalone.environment["SPARK_HOME"]) / "bin" / "spark-submit"
    spark_submit.write_text(f'#!/bin/sh\nexec {real_command} --properties-file {folder}/spark.conf "$@"\n')
    spark_submit.chmod(0o755)
    (folder / "job.py").write_text(JOB)
    bare = folder / "bare" / "bin" / "python"
    venv.create(folder / "bare", with_pip=False)
    give_arrow(folder / "bare", folder / "environment")
    return Machines(standalone, folder, wheel, bare)


def give_arrow(folder: Path, other: Path) -> None:
    """Link pyarrow and numpy, and nothing else, from the environment `other` into `folder`."""
    (here,), (there,) = ((root / "lib").glob("*/site-packages") for root in (folder, other))
    for package in (*there.glob("numpy*"), *there.glob("pyarrow*")):
        os.symlink(package, here / package.name)


def test_py_files_brings_the_wheel_to_machines_that_have_pyarrow(machines: Machines) -> None:
    (block,) = deploying_commands("Ship only the wheel")
    python = {"PYSPARK_PYTHON": str(machines.bare), "PYSPARK_DRIVER_PYTHON": str(machines.bare)}
    module, worker = machines.submit(block, python, codec="zstd")
    assert "spark_kafka_sink.zip" in module
    assert Path(worker).parent == machines.bare.parent


def test_archives_brings_a_whole_environment_by_venv_pack(machines: Machines) -> None:
    _, block = deploying_commands("Ship a whole environment")
    module, worker = machines.submit(block, {}, codec="lz4")
    work = str(machines.cluster.folder)
    assert module.startswith(work), "unpacked beside the executor"
    assert worker.startswith(work)


def test_dockerfile_steps_install_wheel_into_bare_python(machines: Machines, tmp_path: Path) -> None:
    """Run the Dockerfile's steps without an image: Spark and the operating system of its base are not tested.

    test_spark_cluster.py writes from executors with such an environment.
    """
    lines = (ROOT / "docs" / "deploying" / "Dockerfile").read_text().splitlines()
    (copied,) = (line.split()[2] for line in lines if line.startswith("COPY dist/*.whl "))
    (step,) = (line.removeprefix("RUN ") for line in lines if line.startswith("RUN "))
    places = tmp_path / "image"
    places.mkdir()
    shutil.copy(machines.wheel, places)
    python = machines.folder / "environment" / "bin"
    block = f"""
        export PATH={python}:$PATH
        python3 -m pip uninstall --quiet --yes spark-kafka-sink
        {step.replace(copied, f"{places}/")}
        python3 -c "import spark_kafka_sink, crc32c, lz4; print(spark_kafka_sink.__file__)"
    """
    output = machines.run(block, {})
    assert output.splitlines()[-1].startswith(str(machines.folder / "environment"))
    assert list(places.iterdir()) == [], "the wheel itself does not stay"
