"""Files in one folder, by name: no path leaves the folder, no link is followed, no half file is ever seen.

A folder is opened once and its files are reached through the descriptor.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...errors import ArgumentError, StateOpenError, StateWriteError

MAX_NAME_BYTES = 255
_IO_BYTES = 1 << 26  # some systems refuse transfers of 2 GiB and more in one call
_TEMP_PREFIX, _TEMP_SUFFIX = ".", ".tmp"


def safe_name(name: str) -> str:
    """The name of a file in a folder, as it came. ArgumentError: empty, hidden, too long, or with a
    character that is none of a plain name."""
    wanted = "wanted a plain file name"
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"file name: found {name!r}, {wanted}")
    if name.startswith("."):
        raise ArgumentError(f"file name: found {name!r}, {wanted} that does not begin with a dot")
    if any(char in "/\\" or not char.isprintable() for char in name):
        raise ArgumentError(f"file name: found {name!r}, {wanted} without separators and control characters")
    size = len(name.encode("utf-8"))
    if size > MAX_NAME_BYTES:
        raise ArgumentError(f"file name: found {size} bytes, wanted at most {MAX_NAME_BYTES}")
    return name


def open_folder(path: str | os.PathLike[str]) -> int:
    """A descriptor of the folder, which is made where it is missing. StateOpenError."""
    try:
        Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StateOpenError(f"{os.fspath(path)}: not usable as a folder: {error.strerror}") from None


def open_in_folder(dir_fd: int, name: str) -> int:
    """A descriptor to read a file of the folder. ArgumentError: name. StateOpenError: missing, a link, or
    not a regular file."""
    # not to wait for a pipe's writer
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(safe_name(name), flags, dir_fd=dir_fd)
    except OSError as error:
        raise StateOpenError(f"{name}: not readable: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StateOpenError(f"{name}: found no regular file, wanted one")
    return fd


def read_into(fd: int, buffer: Any) -> None:
    """Fill a writable buffer from the descriptor's present place. StateOpenError: it ends before."""
    view = memoryview(buffer).cast("B")
    while view:
        try:
            count = os.readv(fd, [view[:_IO_BYTES]])
        except OSError as error:
            raise StateOpenError(f"file: not read: {error.strerror}") from None
        if count == 0:
            raise StateOpenError(f"file: found its end, wanted {len(view)} bytes more")
        view = view[count:]


def read_whole(dir_fd: int, name: str) -> bytes:
    """The bytes of a file. Errors as for `open_in_folder`."""
    fd = open_in_folder(dir_fd, name)
    try:
        data = bytearray(os.fstat(fd).st_size)
        read_into(fd, data)
        return bytes(data)
    finally:
        os.close(fd)


def write_atomic(dir_fd: int, name: str, chunks: Iterable[Any]) -> None:
    """Make or replace a file of the folder by the chunks (bytes-like). A process that is killed, or a full
    disk, leaves the old file whole. ArgumentError: name. StateWriteError: nothing was replaced.
    """
    temp = _temp_name(safe_name(name))
    try:
        _refuse_special(dir_fd, name)
        fd = _open_temp(dir_fd, temp)
        try:
            for chunk in chunks:
                _write_all(fd, chunk)
            os.fsync(fd)
            os.rename(temp, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        except BaseException:
            with suppress(OSError):
                os.unlink(temp, dir_fd=dir_fd)
            raise
        finally:
            os.close(fd)
        os.fsync(dir_fd)
    except OSError as error:
        raise StateWriteError(f"{name}: not written: {error.strerror}") from None


def remove(dir_fd: int, name: str) -> None:
    """Remove a file of the folder; one that is not there is no error."""
    with suppress(OSError):
        os.unlink(safe_name(name), dir_fd=dir_fd)


def remove_stale_temps(dir_fd: int) -> None:
    """Remove the temporary files of writers that are dead."""
    for temp in os.listdir(dir_fd):
        if temp.startswith(_TEMP_PREFIX) and temp.endswith(_TEMP_SUFFIX):
            with suppress(OSError), _locked_temp(dir_fd, temp):
                os.unlink(temp, dir_fd=dir_fd)


def _temp_name(name: str) -> str:
    """Always the same for a name, so that what a killed process left is used up by the next writer. It
    begins with a dot, as no safe name does."""
    digest = hashlib.sha256(name.encode("utf-8")).hexdigest()[:32]
    return f"{_TEMP_PREFIX}{digest}{_TEMP_SUFFIX}"


def _refuse_special(dir_fd: int, name: str) -> None:
    """Renaming would put a file in the place of a device or a link."""
    try:
        mode = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise StateWriteError(f"{name}: found no regular file, wanted one or a new name")


def _open_temp(dir_fd: int, temp: str) -> int:
    """The locked and empty temporary file. OSError, EAGAIN while another writer of the name is at work."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(temp, flags, 0o600, dir_fd=dir_fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        opened, named = os.fstat(fd), os.stat(temp, dir_fd=dir_fd, follow_symlinks=False)
        if opened.st_ino != named.st_ino:  # the other writer has renamed it since it was opened here
            raise BlockingIOError(errno.EAGAIN, "another writer is at work")
        os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def _locked_temp(dir_fd: int, temp: str) -> Iterator[int]:
    """Holds the lock of a temporary file; OSError while its writer lives."""
    fd = os.open(temp, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=dir_fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield fd
    finally:
        os.close(fd)


def _write_all(fd: int, chunk: Any) -> None:
    view = memoryview(chunk).cast("B")
    while view:
        view = view[os.write(fd, view[:_IO_BYTES]) :]
