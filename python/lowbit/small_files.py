"""Files that are read whole."""
from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A file for reading. Opening a pipe or a device, whose reading may wait or go on for ever, is an OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "a device or pipe, wanted a regular file", str(path))


def read_text(path: str | os.PathLike[str]) -> str:
    """Errors: OSError as open_regular, UnicodeDecodeError."""
    with open_regular(path) as file:
        return file.read().decode("utf-8")
