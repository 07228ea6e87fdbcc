"""Read the files that options name, such as schemas, certificates and keys, and explain why one cannot be read.

Such files are small, so a large file is assumed to be the wrong one and rejected.
"""

from __future__ import annotations

import errno
import os
import re
import stat

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import OptionFault

MAX_FILE_BYTES = 16 << 20
_FILE_TYPES = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_FILE_CONTENT_PATTERN = re.compile(
    r'-----BEGIN|[\r\n]|\{\s*"|eyJ[\w-]*\.[\w-]*\.|'
    r"^(?:M|LS0t|QmFnI|[/_]u3[+-]7|e[wy])[\w+/-]{60,}(?:[=\s]|$)"
)
"""PEM, text with several lines, JSON, a JSON Web Token, or a file in base64.

The second line lists how files in base64 begin: DER and PKCS12 with M; PEM with LS0t, or with QmFnI if OpenSSL has
written "Bag Attributes" before the key; JKS with /u3+7; JSON with ew or ey.
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
        raise OSError(errno.EINVAL, "the path contains a NUL character") from error
    with open(descriptor, "rb") as file:
        _check_file_type(os.fstat(descriptor).st_mode, allow_pipe)
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"the file is longer than {max_bytes} bytes")
    return content


def build_unreadable_file_fault(
    option: str, path: str, error: OSError | ValueError, machine: str, *, content_remedy: str = ""
) -> OptionFault:
    """Build the fault of an option whose file cannot be read.

    If the option's value is the content of a file, such as a private key, it is not shown. The caller must raise its
    error `from None`, because an OSError contains the value.

    `machine`: the machine that reads the file, for example "the driver".
    `content_remedy`: what to do with the content other than to save it, such as "set {valueSchema} to the schema". It
    is part of the OptionFault's text.
    """
    if _FILE_CONTENT_PATTERN.search(path):
        alternative = f", or {content_remedy}" if content_remedy else ""
        text = (
            "must be the path of a file, but contains the content itself. Save the content to a file and set the "
            f"option to the path of the file{alternative}."
        )
        return OptionFault(option, text)
    # Unlike `strerror`, the text of an OSError contains the path.
    reason = getattr(error, "strerror", None) or error
    values = {"path": sanitize(path), "machine": machine, "reason": reason}
    return OptionFault(option, "is {path}, which cannot be read on {machine}: {reason}.", values)


def _check_file_type(mode: int, allow_pipe: bool) -> None:
    if stat.S_ISREG(mode) or (allow_pipe and stat.S_ISFIFO(mode)):
        return
    file_type = next((name for has_type, name in _FILE_TYPES if has_type(mode)), "of an unknown type")
    raise OSError(errno.EINVAL, f"it is {file_type}, not a regular file")
