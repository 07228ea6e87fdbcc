"""Reader of files that options name, such as schemas, certificates and keys, and the reasons why one cannot be read.

Such files are small, so a large file is assumed to be the wrong one and rejected.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import OptionProblem

MAX_FILE_BYTES = 16 << 20
_FILE_TYPES = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_FILE_CONTENT_PATTERN = re.compile(
    r'-----BEGIN|[\r\n]|\{\s*"|^\s*\[\s*"[\w.]+"|(?<![\w-])eyJ[\w-]*\.[\w-]*\.|'
    r'^\s*"(?:null|boolean|int|long|float|double|bytes|string)"\s*$'
)
"""PEM, text with several lines, JSON (an Avro schema may be an array or the name of a type), or a JSON Web Token."""
_QUOTED_PATTERN = re.compile(r"""\s*(?P<quote>["'])(?P<path>.+)(?P=quote)\s*""")
_ENCODED_CHARACTERS = r"A-Za-z0-9+/_=%:\s\\-"
_ENCODED_CONTENT_PATTERN = re.compile(
    rf"(?<![{_ENCODED_CHARACTERS}])[{_ENCODED_CHARACTERS}]{{60,}}(?![{_ENCODED_CHARACTERS}]|(?:\.\w{{1,16}})+$)"
)
"""Content in base64 or hexadecimal: a long run of such characters, unless only file name extensions follow it.

Percent-encoded characters, spaces and the two characters of `\\n` may be part of the run. The content of the shortest
keys, those of Ed25519, has 64 characters. The lookbehind rejects all but the first position of a run, so that the
search takes linear time.
"""


def read_bounded_file(
    path: str | os.PathLike[str], max_bytes: int = MAX_FILE_BYTES, *, allow_pipe: bool = False
) -> bytes:
    """Read a whole file of at most `max_bytes`.

    Only regular files are read, because reading a device or a pipe may never end. Raise OSError if the file has another
    type or is too long. The error's `strerror` contains the reason.

    `allow_pipe`: whether a pipe may be read, too. Set it for command-line arguments, because a shell may pass the
    output of a command as a pipe.
    """
    try:
        _check_file_type(os.stat(path).st_mode, allow_pipe)
        # The file may be replaced between stat and open, so the descriptor is checked again after opening it. With
        # O_NONBLOCK, opening a pipe does not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if allow_pipe else os.O_NONBLOCK))
    except ValueError as error:
        raise OSError(errno.EINVAL, "the path contains a NUL character or is not valid Unicode") from error
    with open(descriptor, "rb") as file:
        _check_file_type(os.fstat(descriptor).st_mode, allow_pipe)
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"the file is longer than {max_bytes} bytes")
    return content


def build_unreadable_file_problem(
    option: str, path: str, error: OSError | ValueError, machine: str, *, content_remedy: str = ""
) -> OptionProblem:
    """Build the problem of an option whose file cannot be read.

    If the option's value is the content of a file, such as a private key, it is not shown. The caller must raise its
    error `from None`, because an OSError contains the value.

    `machine`: the machine that reads the file, for example "the driver".
    `content_remedy`: what to do with the content other than to save it, such as "set {valueSchema} to the schema". It
    is part of the OptionProblem's text.
    """
    if _is_file_content(path):
        alternative = f", or {content_remedy}" if content_remedy else ""
        text = (
            "must be the path of a file, but seems to contain the content itself, which is not shown. Save the "
            f"content to a file and set the option to the path of the file{alternative}."
        )
        return OptionProblem(option, text)
    if isinstance(error, FileNotFoundError) and _QUOTED_PATTERN.fullmatch(path):
        reason: object = "it is in quotes. Remove the quotes"
    else:
        # Unlike `strerror`, the text of an OSError contains the path.
        reason = getattr(error, "strerror", None) or error
    values = {"path": sanitize(path), "machine": machine, "reason": reason}
    return OptionProblem(option, "is {path}, which cannot be read on {machine}: {reason}.", values)


def _is_file_content(value: str) -> bool:
    """Return whether the value of an option that must name a file is probably the content of a file.

    A path without an extension may consist of the characters of base64, but usually its first directory exists.
    """
    if _FILE_CONTENT_PATTERN.search(value):
        return True
    quoted = _QUOTED_PATTERN.fullmatch(value)
    path = quoted["path"] if quoted else value
    first_directory = Path(*Path(path).parts[: 2 if path.startswith("/") else 1])
    return _ENCODED_CONTENT_PATTERN.search(path) is not None and not os.path.exists(first_directory)


def _check_file_type(mode: int, allow_pipe: bool) -> None:
    if stat.S_ISREG(mode) or (allow_pipe and stat.S_ISFIFO(mode)):
        return
    file_type = next((name for has_type, name in _FILE_TYPES if has_type(mode)), "of an unknown type")
    raise OSError(errno.EINVAL, f"it is {file_type}, not a regular file")
