"""Kafka versions for tests: pinned by the checksums of their jars."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from integration.support import kafka_versions
from integration.support.artifacts import ATTEMPTS
from integration.support.kafka_versions import VERSIONS, KafkaVersion, ensure_jars, read_pinned_digests

KNOWN = KafkaVersion("1.2.3")
JARS = {"a-1.jar": b"a", "b-2.jar": b"b"}


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_pins_every_kafka_version(version: KafkaVersion) -> None:
    assert f"kafka_2.13-{version}.jar" in read_pinned_digests(version)
    assert any(name.startswith("zookeeper-") for name in read_pinned_digests(version)) or not version.has_zookeeper


def test_lists_kafka_versions_in_ascending_order() -> None:
    numbers = [[int(part) for part in version.number.split(".")] for version in VERSIONS]
    assert numbers == sorted(numbers)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for the jars of KNOWN. Downloads from Maven return the contents of JARS."""
    digests = tmp_path / "jars.sha256"
    digests.write_text("".join(f"{hashlib.sha256(data).hexdigest()}  {KNOWN}/{name}\n" for name, data in JARS.items()))
    monkeypatch.setattr(kafka_versions, "DIGESTS", digests)
    monkeypatch.setattr(kafka_versions, "JARS", tmp_path)
    return KNOWN.jars


def write_jars(folder: Path, **changed: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in {**JARS, **changed}.items():
        (folder / name).write_bytes(data)


def from_maven(**changed: bytes) -> Any:
    def run_ivy(file: Path, arguments: list[str], pattern: str, **properties: str) -> tuple[bool, str]:
        assert properties == {"kafka": KNOWN.number}
        write_jars(Path(pattern).parent, **changed)
        return True, "said by Ivy"

    return patch.object(kafka_versions, "run_ivy", side_effect=run_ivy)


def test_does_not_download_existing_files_again(folder: Path) -> None:
    write_jars(folder)
    with from_maven() as ivy:
        assert ensure_jars(KNOWN) == folder
    assert ivy.call_count == 0


@pytest.mark.parametrize("name", ["a-1.jar", "more-3.jar"])
def test_downloads_modified_and_missing_files_again(folder: Path, name: str) -> None:
    write_jars(folder, **{name: b"other"})
    with from_maven():
        ensure_jars(KNOWN)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == JARS


def test_rejects_version_that_is_not_pinned(folder: Path) -> None:
    with from_maven(**{"a-1.jar": b"other"}) as ivy, pytest.raises(RuntimeError, match="differ from the pinned ones"):
        ensure_jars(KNOWN)
    assert ivy.call_count == ATTEMPTS
    assert not folder.exists()
