"""A directory that is built beside its place and put there in one step, by the rules of src/io/replace_directory.h."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import shutil
from pathlib import Path

from .errors import LowbitError
from .small_files import read_text

KNOWN_SUFFIXES = {".json", ".safetensors", ".jinja", ".txt", ".md", ".model"}
AT_FDCWD, RENAME_EXCHANGE = -100, 2


def is_checkpoint(path) -> bool:
    try:
        return json.loads(read_text(Path(path) / "config.json"))["quantization_config"]["quant_method"] == "lowbit"
    except (OSError, ValueError, KeyError, TypeError):
        return False


def check_replaceable(target: Path, overwrite: bool) -> None:
    """Only an empty directory or, when asked, a checkpoint with nothing else in it is ever replaced."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not is_checkpoint(target):
        raise LowbitError(target, "a directory or file with other things in it", "a new or empty directory or a lowbit checkpoint")
    if not overwrite:
        raise LowbitError(target, "a checkpoint that is already there", "a new directory", "--force replaces it")
    for entry in target.iterdir():
        if entry.suffix not in KNOWN_SUFFIXES or not entry.is_file():
            raise LowbitError(entry, "something that is not part of a checkpoint", "a directory with nothing else in it",
                              "move it away first")


def _sync(path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _lock(path):
    """Builders hold a lock on their directory, so that another one does not take it for one left behind. None: held
    already."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd
    except OSError:
        os.close(fd)
        return None


def _remove_stale(parent: Path, prefix: str) -> None:
    for entry in parent.iterdir():
        if not entry.name.startswith(prefix) or not re.fullmatch("[0-9-]+", entry.name[len(prefix):]):
            continue
        with contextlib.suppress(OSError):
            fd = _lock(entry)
            if fd is not None:
                shutil.rmtree(entry, ignore_errors=True)
                os.close(fd)


def _exchange(a: Path, b: Path) -> bool:
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError):
        return False
    return renameat2(AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), RENAME_EXCHANGE) == 0


def _keep_permissions(temporary: Path, target: Path) -> None:
    """Nobody may read what is put there who could not read what it replaces."""
    if not target.exists():
        return
    directory = target.stat().st_mode
    for entry in temporary.iterdir():
        old = target / entry.name
        entry.chmod(old.stat().st_mode & 0o777 if old.exists() else entry.stat().st_mode & directory & 0o666)
    temporary.chmod(directory & 0o7777)


def _commit(temporary: Path, target: Path) -> None:
    _keep_permissions(temporary, target)
    _sync(temporary)
    try:
        os.rename(temporary, target)  # no target, or an empty directory
    except OSError:
        if not _exchange(temporary, target):
            aside = temporary.with_name(temporary.name + "-0")
            os.rename(target, aside)
            os.rename(temporary, target)
            temporary = aside
        _sync(target.parent)
        shutil.rmtree(temporary, ignore_errors=True)  # now the old one
    _sync(target.parent)


@contextlib.contextmanager
def replace_directory(target, overwrite=False):
    """Yields the directory to fill (each file synced by its writer); it becomes `target` when the block ends without an
    error."""
    target = Path(os.path.abspath(target))
    if target.is_symlink():
        target = target.resolve()
    check_replaceable(target, overwrite)
    prefix = f".tmp-{target.name[:200]}-"
    _remove_stale(target.parent, prefix)
    for attempt in range(100):
        temporary = target.parent / f"{prefix}{os.getpid()}-{attempt}"
        with contextlib.suppress(FileExistsError):
            temporary.mkdir(0o700 if target.exists() else 0o777)
            break
    else:
        raise LowbitError(target.parent, "no free temporary name", "fewer writers of one target")
    lock = _lock(temporary)
    try:
        yield temporary
        _commit(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if lock is not None:
            os.close(lock)
