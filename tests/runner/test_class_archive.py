"""class_archive: the options of a JVM that uses an archive."""

from __future__ import annotations

from pathlib import Path

from tests.runner.class_archive import archive_options


def test_jvm_uses_archive_only_if_it_exists(tmp_path: Path) -> None:
    archive = tmp_path / "spark.jsa"
    assert archive_options(archive) == "", "a missing archive would disable Java's own archive as well"
    archive.touch()
    assert f" -XX:SharedArchiveFile={archive} " in archive_options(archive)
