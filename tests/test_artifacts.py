"""Downloaded jars: each file is pinned by its checksum."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from integration.support.artifacts import DIGESTS, check_digests

PINNED = {"kafka/a-1.jar": b"a", "connector/b-2.jar": b"b"}


def pinned() -> str:
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in PINNED.items())


def fetched(folder: Path, **changed: bytes) -> Path:
    for name, data in {**PINNED, **changed}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_accepts_files_with_pinned_checksum(tmp_path: Path) -> None:
    check_digests(fetched(tmp_path), pinned())
    assert len(list(tmp_path.glob("*/*"))) == 2


@pytest.mark.parametrize("name", ["kafka/a-1.jar", "kafka/more-3.jar"])
def test_rejects_and_removes_files_without_pinned_checksum(tmp_path: Path, name: str) -> None:
    fetched(tmp_path, **{name: b"other"})
    with pytest.raises(SystemExit, match=name):
        check_digests(tmp_path, pinned())
    assert not (tmp_path / name).exists()


def test_reports_missing_file(tmp_path: Path) -> None:
    fetched(tmp_path)
    (tmp_path / "kafka/a-1.jar").unlink()
    with pytest.raises(SystemExit, match=r"kafka/a-1\.jar"):
        check_digests(tmp_path, pinned())


def test_pins_every_dependency() -> None:
    text = DIGESTS.read_text()
    assert all(len(line.split("  ")[0]) == 64 for line in text.splitlines())
    for name in ("kafka_2.13-", "kafka-tools-", "spark-sql-kafka-0-10_2.13-", "apicurio-registry-app-"):
        assert name in text
