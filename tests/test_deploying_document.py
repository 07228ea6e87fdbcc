"""The deployment pages name existing spark-submit options and Spark settings, and the image can be built.

integration/test_spark_submit.py runs the commands of the page on a local cluster.
"""

from __future__ import annotations

import re
import zipfile
from functools import cache
from pathlib import Path

import pyspark
import pytest

from tests.documents import ROOT, blocks, command_lines
from tests.test_commands_in_documents import simple_commands

PAGE = "docs/deploying.md"
PLATFORMS = "docs/platforms.md"
JARS = Path(pyspark.__file__).parent / "jars"
SUBMISSIONS = [
    command for line in command_lines(PAGE) for command in simple_commands(line) if command[0] == "spark-submit"
]
AMAZON_SETTINGS = {
    "spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON",
    "spark.emr-serverless.driverEnv.PYSPARK_PYTHON",
}
"""Settings from Amazon's documentation that Apache Spark lacks."""


@cache
def read_jar_strings(jar: str, kind: str) -> str:
    """Return the string constants in the classes of a jar."""
    (path,) = JARS.glob(f"{jar}_*.jar")
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if re.search(kind, name)]
        return "\n".join(archive.read(name).decode("latin-1") for name in names)


def read_spark_settings() -> str:
    core_strings = read_jar_strings("spark-core", r"internal/config/|SparkConf|SparkSubmit")
    platform_strings = read_jar_strings("spark-kubernetes", r"deploy/k8s/Config") + read_jar_strings(
        "spark-yarn", r"deploy/yarn/"
    )
    return core_strings + platform_strings + read_jar_strings("spark-launcher", r"SparkLauncher")


def is_a_setting(name: str) -> bool:
    """Return whether the code contains the name, or a prefix and the rest of it.

    Of a name that ends in a placeholder, only the prefix must exist.
    """
    known = read_spark_settings()
    prefix, _, last = name.rpartition(".")
    if last.isupper():
        return f"{prefix}." in known
    return name in known or (prefix in known and f".{last}" in known)


@pytest.mark.parametrize("command", SUBMISSIONS, ids=lambda command: " ".join(command[1:5]))
def test_documented_spark_submit_options_exist(command: list[str]) -> None:
    options = read_jar_strings("spark-launcher", r"SparkSubmitOptionParser")
    for word in command[1:]:
        if word.startswith("--"):
            assert word in options


def test_settings_in_commands_and_files_exist() -> None:
    lines = [line for line in command_lines(PAGE) if line.startswith("spark-submit")]
    settings = {name for line in lines for name in re.findall(r"--conf ([\w.-]+)=", line)}
    for block in blocks(PLATFORMS, "properties"):
        settings |= {line.partition("=")[0] for line in block.splitlines()}
    assert len(settings) >= 7
    assert {name for name in settings if not is_a_setting(name)} == AMAZON_SETTINGS


def test_settings_in_text_exist() -> None:
    named = set(re.findall(r"`(spark\.[a-z][\w.]*)`", (ROOT / PAGE).read_text()))
    assert len(named) >= 3
    assert {name for name in named if not is_a_setting(name)} == set()


def test_detects_unknown_setting() -> None:
    assert not is_a_setting("spark.kubernetes.container.imagee")
    assert "--archive-files" not in read_jar_strings("spark-launcher", r"SparkSubmitOptionParser")


def test_dockerfile_copies_the_built_wheel() -> None:
    text = (ROOT / "docs" / "deploying" / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    assert {word for word, _ in lines} <= {"ARG", "FROM", "USER", "ENV", "COPY", "RUN"}
    assert [word for word, _ in lines][:2] == ["ARG", "FROM"]
    variable, image = dict(lines)["ARG"].split("=")
    assert dict(lines)["FROM"] == f"${{{variable}}}"
    assert re.match(r"apache/spark:4\.[1-9]\.\d+-", image), "a Spark that is new enough"
    assert dict(lines)["COPY"].split()[0] == "dist/*.whl"
    assert re.search(r"--outdir dist", (ROOT / "Makefile").read_text())


def test_image_build_command_names_its_dockerfile() -> None:
    (build,) = (line for line in command_lines(PAGE) if line.startswith("docker build"))
    arguments = build.split()
    assert (ROOT / arguments[arguments.index("-f") + 1]).exists()
