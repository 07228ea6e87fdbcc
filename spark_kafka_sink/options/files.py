"""Files as the value of an option: schemas, certificates, keys. They are small, so a large one is the wrong one."""

from __future__ import annotations

import errno
import os
import stat

FILE_BYTES_MAX = 16 << 20
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def read_named_file(
    path: str | os.PathLike[str], bytes_max: int = FILE_BYTES_MAX, *, may_be_pipe: bool = False
) -> bytes:
    """Return the content. Raise OSError, whose `strerror` says why, if this is no regular file or too long.

    A device has no end and a pipe may never have one, so neither is opened; `may_be_pipe`: for a command's arguments,
    where a shell passes the output of another command as one.
    """
    try:
        _refuse_others(os.stat(path).st_mode, may_be_pipe)
        # What lies there may be another thing by now. An open that does not wait for a pipe's writer finds out.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if may_be_pipe else os.O_NONBLOCK))
    except ValueError as error:
        raise OSError(errno.EINVAL, "no path has a NUL character") from error
    with open(descriptor, "rb") as file:
        _refuse_others(os.fstat(descriptor).st_mode, may_be_pipe)
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise OSError(errno.EFBIG, f"it is longer than {bytes_max} bytes")
    return content


def _refuse_others(mode: int, may_be_pipe: bool) -> None:
    if stat.S_ISREG(mode) or (may_be_pipe and stat.S_ISFIFO(mode)):
        return
    kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "something else")
    raise OSError(errno.EINVAL, f"it is {kind}, and must be a regular file")
