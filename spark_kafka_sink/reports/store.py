"""Where reports are kept. The driver writes them, in a Python process that has no JVM: Spark's own file systems are out
of its reach, and Arrow's take their place.

A file on the driver's machine gets a line of JSON for each commit. Everywhere else a path is a folder, and each commit
makes a file there, because object stores cannot append. The names of the files begin with the time, so that they sort.

    /data/reports.jsonl, file:///data/reports.jsonl      a file
    /data/reports/ (or a folder that exists)             a folder
    dbfs:/reports, /dbfs/reports, /Volumes/a/b/c         a folder, where Databricks mounts it
    s3://bucket/reports, also s3a: and s3n:              a folder; hdfs:, viewfs:, gs:, abfs: and abfss: as well
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from io import RawIOBase
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.reports.write_report import WriteReport, parse_report

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_LOCAL = ("", "file", "dbfs")
_ARROWS_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "hdfs": "hdfs",
    "viewfs": "viewfs",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfs",
    "abfss": "abfss",
}
"""Spark's name of a file system -> Arrow's."""
_REMEDIES = {
    "s3": (
        "Credentials come from the environment, ~/.aws or the machine's role, and not from Spark's fs.s3a settings; "
        "region and another endpoint from the path: ?region=...&endpoint_override=host:port&scheme=http."
    ),
    "hdfs": (
        "The driver's environment needs JAVA_HOME, HADOOP_HOME with lib/native/libhdfs.so in it (or ARROW_LIBHDFS_DIR, "
        "the folder of libhdfs.so) and CLASSPATH=$(hadoop classpath --glob), all set before the driver starts. Without "
        "Hadoop there, the option reportTopic keeps reports in Kafka."
    ),
    "gs": "Credentials are those of GOOGLE_APPLICATION_CREDENTIALS, or of the machine.",
    "abfs": "Credentials are those of Azure's environment variables, or of the machine.",
}
_REMEDIES |= {"viewfs": _REMEDIES["hdfs"], "abfss": _REMEDIES["abfs"]}
SUPPORTED = "a path on the driver's machine, file:, dbfs:, s3: (also s3a:, s3n:), hdfs:, viewfs:, gs:, abfs: and abfss:"
_MOUNTED = ("/dbfs/", "/Volumes/")
"""Of Databricks; files there cannot be appended to."""
_MOUNT_OF_DBFS = "/dbfs"
_BATCH_CHARACTERS_MAX = 100
_LATEST = 20
_LATEST_BYTES = 4 << 20
"""Where find_report looks: a batch is asked for when it has just been written."""


def find_path_error(path: str) -> str | None:
    """What is wrong with the path itself, if anything is."""
    scheme = _scheme(path)
    if scheme not in _LOCAL and scheme not in _ARROWS_SCHEMES:
        return f"{scheme}: is not a file system that reports can be written to. Supported are {SUPPORTED}."
    parts = urlsplit(path)
    if scheme in _ARROWS_SCHEMES and parts.password is not None:
        return f"the path has a password in it. {_REMEDIES[_ARROWS_SCHEMES[scheme]]}"
    if scheme in _LOCAL and scheme and (parts.netloc not in ("", "localhost") or parts.query or parts.fragment):
        return f"{scheme}: is this machine's, so its path has no host in it, and a '?' or '#' is written as %3F or %23."
    return None


def ensure_writable(path: str) -> None:
    """Before a write: find out whether reports can be kept there. Makes the folder if there is none."""
    local = _local_path(path)
    if local is not None and not _is_folder(local):
        _ensure_can_append(path, local)
        return
    try:
        files, folder = _open(path)
        files.create_dir(folder, recursive=True)
        if local is not None and not os.access(folder, os.W_OK):
            raise PermissionError("the folder cannot be written to")
    except (OSError, ValueError, NotImplementedError) as error:
        raise _error(path, "cannot be written to", error) from error


def save_report(path: str, report: WriteReport) -> None:
    """Append the report, or make a file for it in the folder."""
    line = report.to_json().encode() + b"\n"
    local = _local_path(path)
    if local is not None and not _is_folder(local):
        with _own_file(local, os.O_APPEND) as lines:  # one write, so that two streams may share a file
            lines.write(line)
        return
    files, folder = _open(path)
    place = f"{folder}/{file_name(report)}"
    with _own_file(place, os.O_TRUNC) if local is not None else files.open_output_stream(place) as file:
        file.write(line)


def _own_file(place: str, flags: int) -> RawIOBase:
    """Open a local file that only its owner can read. A link or a FIFO in its place is an error."""
    flags |= os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(place, flags, 0o600)
    return open(descriptor, "wb", buffering=0)


def read_reports(path: str, last: int | None = None) -> list[WriteReport]:
    """What `reportPath` has collected, in the order of time; with `last` only as many as that, the latest."""
    fault = find_path_error(path)
    if fault is not None:
        raise ConfigurationError(fault if urlsplit(path).password else f"{path}: {fault}")
    try:
        lines = deque(_lines(path, last), maxlen=last)
    except (OSError, ValueError, NotImplementedError) as error:
        raise _error(path, "cannot be read", error) from error
    try:
        return [parse_report(line) for line in lines]
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def find_report(path: str, batch: str) -> WriteReport | None:
    """The latest report of this batch, if it is among the last ones."""
    ends = f"-{_as_name(batch)}.json"
    found = [one for one in map(parse_report, _latest_lines(path, ends)) if one.batch == batch]
    return found[-1] if found else None


def file_name(report: WriteReport) -> str:
    return f"{report.started_at:%Y%m%dT%H%M%S}.{report.started_ms % 1000:03}Z-{_as_name(report.batch)}.json"


def _as_name(batch: str) -> str:
    return re.sub(r"[^\w.-]+", "-", batch)[:_BATCH_CHARACTERS_MAX]


def _lines(path: str, last: int | None) -> Iterator[str]:
    from pyarrow.fs import FileType

    files, place = _open(path)
    found = files.get_file_info(place)
    if found.type == FileType.NotFound:
        raise FileNotFoundError("there is no such file or folder")
    if found.type == FileType.Unknown:
        raise OSError("it is neither a file nor a folder")
    names = [place]
    if found.type == FileType.Directory:
        names = _names(files, place, ".json")
        names = names if last is None else names[-last:]
    for name in names:
        with files.open_input_stream(name) as file:
            yield from (line for line in file.read().decode().split("\n") if line.strip())


def _latest_lines(path: str, ends: str) -> list[str]:
    """Of a folder, the files whose names end so; of a file, its last lines."""
    from pyarrow.fs import FileType

    files, place = _open(path)
    found = files.get_file_info(place)
    if found.type == FileType.Directory:
        return [files.open_input_stream(name).read().decode() for name in _names(files, place, ends)[-_LATEST:]]
    if found.type != FileType.File:  # to open a FIFO would wait for a writer
        return []
    with files.open_input_file(place) as file:
        begin = max(0, found.size - _LATEST_BYTES)
        file.seek(begin)
        lines = file.read().decode(errors="replace").split("\n")[1 if begin else 0 :]
    return [line for line in lines if line.strip()][-_LATEST:]


def _names(files: FileSystem, folder: str, ends: str) -> list[str]:
    """The files whose names end so, in the order of time."""
    from pyarrow.fs import FileSelector, LocalFileSystem

    if isinstance(files, LocalFileSystem):
        # Arrow would stat each file, and a stream that has run for a week has left a hundred thousand.
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries if entry.name.endswith(ends) and entry.is_file())
    return sorted(one.path for one in files.get_file_info(FileSelector(folder)) if one.path.endswith(ends))


def _scheme(path: str) -> str:
    scheme = urlsplit(path).scheme.lower()
    return "" if len(scheme) == 1 else scheme  # the drive of Windows


def _local_path(path: str) -> str | None:
    scheme = _scheme(path)
    if scheme not in _LOCAL:
        return None
    if scheme == "":
        return path
    local = unquote(urlsplit(path).path)
    return local if scheme == "file" else _MOUNT_OF_DBFS + local


def _is_folder(local: str) -> bool:
    return local.endswith("/") or local.startswith(_MOUNTED) or os.path.isdir(local)


def _ensure_can_append(path: str, local: str) -> None:
    folder = os.path.dirname(os.path.abspath(local))
    if not os.path.isdir(folder):
        raise ConfigurationError(f"{path}: there is no folder {folder} on the driver's machine.")
    if os.path.islink(local) or (os.path.exists(local) and not os.path.isfile(local)):
        raise ConfigurationError(f"{path}: it is a link or a device, and must be a file itself. Name what it leads to.")
    if not os.access(local if os.path.exists(local) else folder, os.W_OK):
        raise ConfigurationError(f"{path}: it cannot be written to on the driver's machine.")


def _open(path: str) -> tuple[FileSystem, str]:
    """The file system, and the path in it."""
    from pyarrow.fs import FileSystem, LocalFileSystem

    local = _local_path(path)
    if local is not None:
        if _scheme(path) == "dbfs" and not os.path.isdir(_MOUNT_OF_DBFS):
            raise OSError(f"{_MOUNT_OF_DBFS} is not mounted here, and dbfs: is reached through it alone")
        return LocalFileSystem(), os.path.abspath(local)
    files, place = FileSystem.from_uri(_ARROWS_SCHEMES[_scheme(path)] + path[path.index(":") :])
    return files, place.rstrip("/")


def _error(path: str, what: str, error: Exception) -> ConfigurationError:
    remedy = _REMEDIES.get(_ARROWS_SCHEMES.get(_scheme(path), ""), "")
    # Where Arrow finds no JVM, it lists each place where it has looked for one.
    lines = (line for line in str(error).splitlines() if not line.startswith("dlopen("))
    reason = sanitize(" ".join(lines))
    return ConfigurationError(f"{path} {what}: {reason}{'' if reason.endswith('.') else '.'} {remedy}".rstrip())
