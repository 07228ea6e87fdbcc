"""Where reports are kept: a file that grows, or a folder with a file for each; what cannot be is said early."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.reports import store
from spark_kafka_sink.reports.store import (
    ensure_writable,
    find_path_error,
    find_report,
    read_reports,
    report_file_name,
    save_report,
)
from tests.reports.some_reports import report


def kept(path: str, *batch_ids: int) -> list[int]:
    """Keep reports there; the rows of what is read back."""
    ensure_writable(path)
    for batch_id in batch_ids:
        save_report(path, report(batch_id, rows=10 + batch_id))
    return [one.rows for one in read_reports(path)]


def arrow_that_says(words: str) -> AbstractContextManager[object]:
    """An Arrow that cannot open any file system."""
    return patch("pyarrow.fs.FileSystem", Mock(from_uri=Mock(side_effect=OSError(words))))


def test_a_file_gets_a_line_for_each_report(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    assert kept(str(path), 1, 2) == [11, 12]
    assert len(path.read_text().splitlines()) == 2


def test_a_file_may_be_named_by_a_uri(tmp_path: Path) -> None:
    (tmp_path / "with space").mkdir()
    assert kept(f"file://{tmp_path}/with%20space/reports.jsonl", 1, 2) == [11, 12]
    assert (tmp_path / "with space" / "reports.jsonl").exists()


def test_a_folder_gets_a_file_for_each_report_in_the_order_of_time(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    assert kept(f"{folder}/", 2, 1, 3) == [11, 12, 13]
    assert sorted(each.name for each in folder.iterdir())[0] == "20231114T221330.000Z-6d2a-1.json"
    assert [one.rows for one in read_reports(str(folder), last=2)] == [12, 13]


def test_the_last_reports_of_a_file_are_read(tmp_path: Path) -> None:
    path = str(tmp_path / "reports.jsonl")
    kept(path, 1, 2, 3)
    assert [one.rows for one in read_reports(path, last=2)] == [12, 13]


def test_the_name_of_a_file_has_nothing_that_a_file_system_acts_on() -> None:
    odd = dataclasses.replace(report(), batch="../../etc/passwd\n\0" + "x" * 500)
    name = report_file_name(odd)
    assert name.startswith("20231114T221320.000Z-..-..-etc-passwd-xxx")
    assert "/" not in name
    assert len(name) < 140


def test_databricks_mounts_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_DBFS_MOUNT", str(tmp_path))
    monkeypatch.setattr(store, "_MOUNTS", (f"{tmp_path}/", "/Volumes/"))
    assert kept("dbfs:/reports/orders", 1, 2) == [11, 12]
    assert len(list((tmp_path / "reports" / "orders").iterdir())) == 2


def test_without_the_mount_of_databricks_the_error_names_the_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_DBFS_MOUNT", "/no-such-mount")
    with pytest.raises(ConfigurationError, match="only if /no-such-mount is mounted"):
        ensure_writable("dbfs:/reports/")


@pytest.mark.parametrize("path", ["ftp://host/reports", "hbase:/x", "S4://bucket/x"])
def test_another_file_system_is_refused_with_those_that_are_supported(path: str) -> None:
    fault = find_path_error(path)
    assert fault is not None
    assert "Supported are a path on the driver's machine, file:, dbfs:, s3:" in fault
    with pytest.raises(ConfigurationError, match="Supported are"):
        read_reports(path)


@pytest.mark.parametrize(
    "path", ["/a/b", "a.jsonl", "C:\\reports\\x", "file:/a", "s3a://b/c", "hdfs://name:8020/x", "abfss://c@a.net/x"]
)
def test_what_is_supported_has_no_fault(path: str) -> None:
    assert find_path_error(path) is None


def test_a_password_in_the_path_is_refused_and_not_shown() -> None:
    fault = find_path_error("s3a://AKIA:topsecret@bucket/reports")
    assert fault is not None
    assert "contains a password" in fault
    assert "topsecret" not in fault


def test_a_file_whose_folder_is_missing_is_refused_before_the_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the folder .*/missing does not exist on the driver's machine"):
        ensure_writable(str(tmp_path / "missing" / "reports.jsonl"))


def test_a_file_that_cannot_be_written_to_is_refused_before_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "reports.jsonl"
    file.touch()
    # Root may write everywhere: so the system is asked in the name of a user who may not.
    monkeypatch.setattr(os, "access", lambda path, mode: (str(path), mode) != (str(file), os.W_OK))
    with pytest.raises(ConfigurationError, match="is not writable on the driver's machine"):
        ensure_writable(str(tmp_path / "reports.jsonl"))


def test_a_folder_below_a_file_is_refused_before_the_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        ensure_writable(f"{tmp_path}/file/reports/")


def test_what_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: no such file or folder"):
        read_reports(str(tmp_path / "missing"))


def test_without_hadoop_the_error_says_what_its_file_system_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "HADOOP_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match=r"load lib.*Set JAVA_HOME.*lib/native/libhdfs\.so.*and CLASSPATH"):
        ensure_writable("hdfs://127.0.0.1:1/reports")


def test_the_places_where_arrow_has_looked_for_java_are_not_listed() -> None:
    """There are about ninety."""
    looked = "".join(f"\ndlopen(/usr/{at}/libjvm.so) failed: no such file" for at in range(90))
    with (
        arrow_that_says(f"Unable to load libjvm{looked}"),
        pytest.raises(ConfigurationError, match=r"Unable to load libjvm\. Set JAVA_HOME") as raised,
    ):
        ensure_writable("hdfs://name:8020/reports")
    assert "dlopen" not in str(raised.value)


@pytest.mark.parametrize("use", [ensure_writable, read_reports])
def test_what_a_file_system_says_is_shown_on_one_line_and_not_beyond_bounds(use: Callable[[str], object]) -> None:
    with arrow_that_says("first\n" + 10_000 * "x"), pytest.raises(ConfigurationError, match=r"first x{100}") as raised:
        use("s3://bucket/reports")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 1000
    assert str(raised.value).endswith("&scheme=http.")


@pytest.mark.parametrize("name", ["reports.jsonl", "folder/"])
def test_the_report_of_a_batch_is_found_while_it_is_new(tmp_path: Path, name: str) -> None:
    path = f"{tmp_path}/{name}"
    kept(path, *range(30))
    found = find_report(path, "6d2a/29")
    assert found is not None
    assert found.rows == 39
    assert find_report(path, "6d2a/9") is None or name == "folder/"
    assert find_report(path, "other/29") is None
    assert find_report(f"{tmp_path}/missing", "6d2a/29") is None


def test_the_report_of_a_batch_is_found_in_a_folder_without_a_look_at_each_file(tmp_path: Path) -> None:
    """A listener looks for each micro-batch: with sizes and times of fifty thousand files that took two seconds."""
    kept(f"{tmp_path}/", 1, 2, 3)
    with patch("pyarrow.fs.FileSelector", side_effect=AssertionError):
        found = find_report(f"{tmp_path}/", report(2).batch)
    assert found is not None
    assert found.rows == 12


def test_the_end_of_a_large_file_is_enough_to_find_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MAX_SEARCHED_BYTES", 3_000)
    path = str(tmp_path / "reports.jsonl")
    kept(path, *range(10))
    found = find_report(path, "6d2a/9")
    assert found is not None
    assert found.rows == 19


@pytest.mark.parametrize("name", ["reports.jsonl", ""])
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o600), (0o000, 0o600), (0o277, 0o400)])
def test_a_report_is_for_its_user_alone(tmp_path: Path, name: str, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        save_report(f"{tmp_path}/{name}", report())
    finally:
        os.umask(before)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == mode


def test_a_file_that_is_there_keeps_its_rights(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    path.touch()
    path.chmod(0o640)
    assert kept(str(path), 1) == [11]
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_in_place_of_a_report_is_not_followed(tmp_path: Path) -> None:
    folder, target = tmp_path / "reports", tmp_path / "target"
    folder.mkdir()
    target.write_text("mine")
    (folder / report_file_name(report())).symlink_to(target)
    (tmp_path / "reports.jsonl").symlink_to(target)
    for path in (f"{folder}/", str(tmp_path / "reports.jsonl")):
        with pytest.raises(OSError, match="symbolic links"):
            save_report(path, report())
    assert target.read_text() == "mine"
    with pytest.raises(ConfigurationError, match="is a symbolic link or a device, not a regular file"):
        ensure_writable(str(tmp_path / "reports.jsonl"))


def test_a_device_or_a_pipe_takes_no_reports_and_has_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", str(tmp_path / "pipe")):
        with pytest.raises(ConfigurationError, match="is a symbolic link or a device"):
            ensure_writable(path)
        with pytest.raises(ConfigurationError, match="is neither a file nor a folder"):
            read_reports(path)


@pytest.mark.parametrize("path", ["file://other/reports", "file:///a?b", "file:///a#b", "dbfs://reports/a"])
def test_another_machines_file_is_refused(path: str) -> None:
    fault = find_path_error(path)
    assert fault is not None
    assert "must not have a host" in fault
    assert find_path_error("file://localhost/reports") is None


def test_a_password_in_a_path_that_is_read_is_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="contains a password") as refused:
        read_reports("s3a://AKIA:topsecret@bucket/reports")
    assert "topsecret" not in str(refused.value)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_reads_a_file_whose_reports_contain_unicode_line_separators(tmp_path: Path, separator: str) -> None:
    path = str(tmp_path / "reports.jsonl")
    ensure_writable(path)
    batches = [f"nightly{separator}{number}" for number in (1, 2)]
    for batch in batches:
        save_report(path, dataclasses.replace(report(), batch=batch))
    assert [one.batch for one in read_reports(path)] == batches
    found = find_report(path, batches[0])
    assert found is not None
    assert found.batch == batches[0]


def test_ignores_a_fifo_in_a_report_folder(tmp_path: Path) -> None:
    kept(f"{tmp_path}/", 1)
    os.mkfifo(tmp_path / "later-6d2a-1.json")
    assert [one.rows for one in read_reports(str(tmp_path))] == [11]
    found = find_report(str(tmp_path), report(1).batch)
    assert found is not None
    assert found.rows == 11


def test_rejects_a_fifo_in_place_of_a_new_report(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / report_file_name(report(1)))
    with pytest.raises(OSError, match="No such device or address"):
        save_report(f"{tmp_path}/", report(1))
