from __future__ import annotations

from pathlib import Path

from tests.runner.class_archive import archive_options


def test_a_jvm_is_given_the_archive_where_there_is_one(tmp_path: Path) -> None:
    archive = tmp_path / "spark.jsa"
    assert archive_options(archive) == "", "a JVM that is given none that exists goes without Java's own, too"
    archive.touch()
    assert f" -XX:SharedArchiveFile={archive} " in archive_options(archive)
