"""Contents of the wheel and the source archive, which are built here from a copy and without a network."""

from __future__ import annotations

import base64
import copy
import csv
import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any, cast

import pytest

from spark_kafka_sink import __version__
from tools.wheel_sbom import add_to_wheel, complete_bill

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "THIRD-PARTY.md",
    "pyspark_pykafka.py",
)
PACKAGE = "spark_kafka_sink"
INFO = f"{PACKAGE}-{__version__}.dist-info"
BUILD = "from setuptools import build_meta\nbuild_meta.build_wheel('dist')\nbuild_meta.build_sdist('dist')\n"
PROJECT_PAGES = ("CONTRIBUTING.md", "SECURITY.md", "pull_request_template.md", "ISSUE_TEMPLATE/config.yml")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the wheel and the source archive."""
    folder = tmp_path_factory.mktemp("build")
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    for name in (PACKAGE, "conf", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(built / f"{PACKAGE}-{__version__}-py3-none-any.whl")


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return Parser().parsestr(wheel.read(f"{INFO}/METADATA").decode())


def test_wheel_contains_only_package_and_spark_module(wheel: zipfile.ZipFile) -> None:
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / PACKAGE).rglob("*.py")}
    expected = {*sources, f"{PACKAGE}/py.typed", "pyspark_pykafka.py"}
    assert {name for name in wheel.namelist() if not name.startswith(INFO)} == expected


def test_wheel_contains_licence_and_no_compiled_files(wheel: zipfile.ZipFile) -> None:
    assert {f"{INFO}/licenses/LICENSE", f"{INFO}/licenses/THIRD-PARTY.md"} <= set(wheel.namelist())
    assert "Root-Is-Purelib: true" in wheel.read(f"{INFO}/WHEEL").decode()


def test_version_is_defined_once(metadata: Message) -> None:
    assert metadata["Version"] == __version__
    assert not re.search(r'^version *= *"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert f"## {__version__} " in (ROOT / "CHANGELOG.md").read_text() + " "


def test_wheel_metadata_is_complete(metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "kafka" in metadata["Keywords"].split(",")
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert not [line for line in metadata.get_all("Classifier", []) if line.startswith("License")], "PEP 639"


def test_links_in_description_are_absolute(metadata: Message) -> None:
    description = metadata.get_payload()
    assert isinstance(description, str)
    assert "| Run on a cluster or a managed platform | Deploy |" in description
    assert [link for link in re.findall(r"\]\(([^)]*)\)", description) if not link.startswith("https://")] == []


def test_make_build_adds_bill_of_materials_to_wheel() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (recipe,) = re.findall(r"^build:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert "tools.wheel_sbom" in recipe
    assert recipe.index("tools.wheel_sbom") < recipe.index("twine check")
    assert "bill of materials in the wheel of `make build`" in (ROOT / "THIRD-PARTY.md").read_text()


def test_plain_install_does_not_require_spark(metadata: Message) -> None:
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(re.split(r"[<>=]", line)[0] for line in needed) == ["crc32c", "lz4", "numpy", "pyarrow"]
    assert {"spark", "gssapi", "pkcs12", "protobuf"} <= set(metadata.get_all("Provides-Extra", []))


def test_wheel_declares_command_and_pytest_plugin(wheel: zipfile.ZipFile) -> None:
    entries = wheel.read(f"{INFO}/entry_points.txt").decode()
    assert "pykafka = spark_kafka_sink.cli:main" in entries
    assert "spark_kafka_sink = spark_kafka_sink.pytest_plugin" in entries


def test_wheel_works_as_zip_for_py_files(built: Path, tmp_path: Path) -> None:
    (path,) = built.glob("*.whl")
    command = [sys.executable, "-m", PACKAGE, "--version"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(path)}, capture_output=True, text=True, check=False
    )
    assert done.stdout == f"pykafka {__version__}\n", done.stderr


def test_spark_finds_data_source_after_editable_install(tmp_path: Path) -> None:
    """Spark lists the modules on `sys.path`; it does not find those of import hooks."""
    project, target, elsewhere = tmp_path / "project", tmp_path / "target", tmp_path / "elsewhere"
    for folder in (project, target, elsewhere):
        folder.mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / name, project)
    shutil.copytree(ROOT / PACKAGE, project / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    build = f"from setuptools import build_meta; print(build_meta.build_editable({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", build], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(target)
    # Without this machine's site-packages, which may contain the package as well.
    look = f"import pkgutil, site; site.addsitedir({str(target)!r})\n"
    look += "print(*(one.module_finder.path for one in pkgutil.iter_modules() if one.name.startswith('pyspark_')))"
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", look], cwd=elsewhere, capture_output=True, text=True, check=False
    )
    assert found.stdout.split() == [str(project)], found.stderr


def test_source_archive_contains_all_tests_or_none(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", f"{PACKAGE}/py.typed"} <= names
    assert not [name for name in names if name.startswith("tests")]


def test_source_archive_has_the_configuration_files_for_users(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()}
    presets = {file.relative_to(ROOT).as_posix() for file in (ROOT / "conf" / "presets").glob("*.properties")}
    assert presets
    expected = {"conf/logging.json", "conf/spark-defaults.conf", *presets}
    assert {name for name in names if name.startswith("conf/")} == expected


@pytest.mark.parametrize("page", PROJECT_PAGES)
def test_community_files_exist(page: str) -> None:
    assert (ROOT / ".github" / page).read_text().strip()


def test_release_uses_trusted_publishing_with_project_address() -> None:
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "id-token: write" in release
    assert not re.search(r"password:|secrets\.", release)
    for step in ("make build", "project.urls", "attest"):
        assert step in release


def test_third_party_licences_match_package_metadata(metadata: Message) -> None:
    rows = re.findall(r"^\| (\S+) \| ([^|]+) \|", (ROOT / "THIRD-PARTY.md").read_text(), re.MULTILINE)
    named = {name: licence for name, licence in rows if name not in ("package", "---")}
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(named) == sorted(re.split(r"[<>=]", line)[0] for line in needed)
    for name, licence in named.items():
        about = cast(Message, importlib.metadata.metadata(name))
        expression = about.get("License-Expression")
        if expression is not None:
            assert licence == expression, name
        else:  # before PEP 639, packages state a name or only a family, such as BSD
            family = re.split("[- ]", licence)[0]
            assert family in str([about.get("License"), *(about.get_all("Classifier") or [])]), name
    assert named["crc32c"] == "LGPL-2.1-or-later"


BILL: dict[str, Any] = {
    "metadata": {"tools": {}},
    "components": [
        {"name": "crc32c", "version": "2.9", "bom-ref": "crc32c==2.9"},
        {
            "name": "spark-kafka-sink",
            "version": __version__,
            "bom-ref": "spark-kafka-sink",
            "externalReferences": [{"type": "distribution", "url": "file:///home/me/dist/x.whl"}],
        },
    ],
    "dependencies": [{"ref": "spark-kafka-sink", "dependsOn": ["crc32c==2.9"]}],
}


def test_wheel_record_lists_bill_of_materials(built: Path, tmp_path: Path) -> None:
    (original,) = built.glob("*.whl")
    wheel = tmp_path / original.name
    shutil.copy(original, wheel)
    for _ in range(2):  # a second call does no harm
        add_to_wheel(wheel, json.dumps(complete_bill(copy.deepcopy(BILL))))
    place = f"{INFO}/sboms/spark-kafka-sink.cdx.json"
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(original) as before:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == sorted([*before.namelist(), place])
        bill = json.loads(archive.read(place))
        for name, digest, size in csv.reader(archive.read(f"{INFO}/RECORD").decode().splitlines()):
            if not name.endswith("RECORD"):
                data = archive.read(name)
                found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
                assert (digest, size) == (f"sha256={found}", str(len(data)))
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/spark-kafka-sink@{__version__}"
    assert [component["name"] for component in bill["components"]] == ["crc32c"]
    assert bill["dependencies"] == BILL["dependencies"]
    assert "file:" not in json.dumps(bill)


def test_release_actions_are_pinned_by_commit() -> None:
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    used = re.findall(r"uses: (\S+)(.*)", release)
    assert used
    assert [
        name for name, beside in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name) or "# v" not in beside
    ] == []


def test_checks_types_and_syntax_for_oldest_supported_python() -> None:
    """mypy reports names that the oldest version's standard library lacks, without needing that interpreter."""
    text = (ROOT / "pyproject.toml").read_text()
    (oldest,) = re.findall(r'^requires-python = ">=(.*)"', text, re.MULTILINE)
    assert re.findall(r'^python_version = "(.*)"', text, re.MULTILINE) == [oldest]
    assert re.findall(r'^target-version = "(.*)"', text, re.MULTILINE) == [f"py{oldest.replace('.', '')}"]


def test_documented_python_versions_match_ci() -> None:
    ci = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    (matrix,) = re.findall(r"python: \[(.*)\]", ci)
    versions = matrix.replace('"', "").split(", ")
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert f"| Python | {versions[0]} | {versions[-1]} |" in page
    assert f"on Python {', '.join(versions[:-1])} and {versions[-1]}" in " ".join(page.split())
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert named == versions
