"""Atomic file writes, a limit on the size of files read, and escaping of text for a terminal."""

from __future__ import annotations

import errno
import os
import re
import select
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows, where an open file can be neither replaced nor removed
    fcntl = None  # type: ignore[assignment]

MAX_FILE_BYTES = 1 << 30  # default limit of a file read as a whole, after decompression; see max_file_bytes()
MAX_FIFO_SECONDS = 10  # to wait for a process that opens the other end of a FIFO
O_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # not on Windows
MAX_REPLACE_SECONDS = 5  # to wait for a program that has a file open which is replaced, such as a virus scanner
PART = ".part"  # the suffix of temporary files
# of the first part of NAME.RANDOM.part, the name of a temporary file; file systems allow names of 255 bytes
MAX_STEM_BYTES = 255 - len(f".{'0' * 16}{PART}")
SPECIAL_FILES = {  # file types that are never replaced
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}
# C0 and C1 controls, line separators, bidirectional controls, and lone surrogates
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object, keep: str = "\n\t") -> str:
    r"""Return a text with its control characters escaped, so that text from a file cannot control a terminal.

    The characters of ``keep`` are not escaped.

    >>> print(printable("\x1b[2J cleared"))
    \x1b[2J cleared
    """
    return CONTROL.sub(lambda match: match[0] if match[0] in keep else ascii(match[0])[1:-1], str(text))


def encodable(text: str, stream: object) -> str:
    r"""Return a text with the characters escaped that the encoding of a stream lacks, such as a code page of Windows.

    >>> import io
    >>> encodable("a → b", io.TextIOWrapper(io.BytesIO(), "cp1252"))
    'a \\u2192 b'
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:  # not an encoding
        return ascii(text)[1:-1]


def max_file_bytes() -> int:
    """Return the maximum size of a file that is read as a whole, after decompression.

    Returns
    -------
    int
        The bytes in the environment variable NEONLITE_MAX_FILE_BYTES, or 1 GiB if it is not set.

    Raises
    ------
    ValueError
        NEONLITE_MAX_FILE_BYTES is not an integer >= 1.
    """
    limit = os.environ.get("NEONLITE_MAX_FILE_BYTES")
    if not limit:
        return MAX_FILE_BYTES
    if not limit.isdecimal() or not int(limit):
        raise ValueError(f"NEONLITE_MAX_FILE_BYTES: expected an integer >= 1, in bytes, got {limit!r}")
    return int(limit)


# --- reading ---------------------------------------------------------------------------------------------------------


def open_input(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file or a stream for reading.

    Parameters
    ----------
    path : str or Path
        The path.

    Returns
    -------
    file object
        The open file.

    Raises
    ------
    OSError
        No process writes to the FIFO, or the operating system reports an error.
    """
    if not is_stream(path) or not O_NONBLOCK:
        return open(path, "rb")
    descriptor = os.open(path, os.O_RDONLY | O_NONBLOCK)  # else it waits, for ever if no process writes to a FIFO
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(1000 * MAX_FIFO_SECONDS):
            with suppress(BlockingIOError):  # a process has opened the FIFO, and has not written yet
                os.read(descriptor, 1)
                raise OSError(f"{path}: expected a process that writes to it, a FIFO, got none in {MAX_FIFO_SECONDS} s")
        os.set_blocking(descriptor, True)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


# --- writing ---------------------------------------------------------------------------------------------------------


def descriptor_of(path: str | os.PathLike[str]) -> int | None:
    """Return the file descriptor of this process that a path names, such as 1 for /dev/stdout, or None."""
    file = os.path.abspath(path)
    for _ in range(8):
        if match := re.fullmatch(rf"/(?:dev|proc/(?:self|{os.getpid()}))/fd/(\d+)", file):
            return int(match[1])
        if not os.path.islink(file):
            break
        file = os.path.join(os.path.dirname(file), os.readlink(file))
    return None


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Return whether a path names a FIFO, a pipe such as /dev/stdin, or a character device such as a terminal."""
    return os.path.exists(path) and stat.S_IFMT(os.stat(path).st_mode) in (stat.S_IFIFO, stat.S_IFCHR)


def check_output(what: str, path: str | os.PathLike[str]) -> None:
    """Raise an error unless ``write_output`` can write to a path; see ``check_writable``.

    Parameters
    ----------
    what : str
        The argument's name, for error messages.
    path : str or Path
        The path of a stream, or of a file, which need not exist.
    """
    if descriptor_of(path) is None and not is_stream(path):
        check_writable(what, path)


def write_output(path: str | os.PathLike[str], data: bytes) -> None:
    """Write bytes to a stream, also one of this process such as /dev/stdout, or to a file by ``write_atomic``.

    Parameters
    ----------
    path : str or Path
        The path.
    data : bytes
        The contents.

    Raises
    ------
    OSError
        No process reads the FIFO, or the operating system reports an error.
    """
    number = descriptor_of(path)
    if number is not None:  # opened again, a file would be written from its start
        with open(os.dup(number), "wb") as file:
            file.write(data)
        return
    if not is_stream(path):
        write_atomic(path, data)
        return
    end = time.monotonic() + MAX_FIFO_SECONDS
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > end:
                raise OSError(
                    f"{path}: expected a process that reads it, a FIFO, got none in {MAX_FIFO_SECONDS} s"
                ) from None
        time.sleep(0.05)
    with open(descriptor, "wb") as file:
        if O_NONBLOCK:
            os.set_blocking(descriptor, True)
        file.write(data)


def same_file(one: Any, other: Any) -> bool:
    """Return whether two paths refer to the same file. The file need not exist."""
    return os.path.realpath(one) == os.path.realpath(other) or (
        os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)
    )


def check_writable(what: str, path: str | os.PathLike[str]) -> str:
    """Raise an error unless ``write_atomic`` can write a file at a path. Nothing is written.

    Parameters
    ----------
    what : str
        The argument's name, for error messages.
    path : str or Path
        The path of the file, which need not exist.

    Returns
    -------
    str
        The path.

    Raises
    ------
    TypeError
        Not a path.
    ValueError
        An empty path, or one with a null character.
    OSError
        A folder (IsADirectoryError), a missing folder (FileNotFoundError), a read-only folder (PermissionError), a
        device, a FIFO or a socket.
    """
    file = _path(what, path)
    if file.is_dir():
        raise IsADirectoryError(f"{what}: expected the path of a file, got the folder {file}")
    folder = _target(what, file)[0].parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{what}: {file} can not be written: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{what}: {file} can not be written: the folder {folder} is read-only for you")
    return os.fspath(file)


def write_atomic(path: str | os.PathLike[str], data: bytes, mode: int = 0o666) -> None:
    """Write bytes to a file, completely or not at all.

    They are written to a temporary file in the same folder, NAME.RANDOM.part, which replaces the file once its data is
    on disk. A long NAME is shortened. If several processes write one file at the same time, the last one wins. A
    symbolic link is preserved; its target is replaced. Temporary files of killed processes are removed by the next
    write. On Windows, where a file that is open cannot be replaced, it waits up to MAX_REPLACE_SECONDS.

    Parameters
    ----------
    path : str or Path
        The path of the file.
    data : bytes
        The contents.
    mode : int
        The mode of a new file, before the umask; default 0o666. A replaced file keeps its mode.

    Raises
    ------
    TypeError, ValueError
        Not a path; see ``check_writable``.
    OSError
        The path is a device, a FIFO or a socket, which are never replaced; or the operating system reports an error.
    """
    file, before = _target("write_atomic", _path("write_atomic", path))
    _remove_leftovers(file)
    while not _write_and_replace(file, data, mode, before):  # another process removed the temporary file
        pass
    with suppress(OSError, AttributeError):  # not every system can synchronize a folder
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _write_and_replace(file: Path, data: bytes, mode: int, before: int | None) -> bool:
    """Write a temporary file, and replace a file by it; return False if there is no temporary file any more."""
    part, file_object = _create(file, mode if before is None else 0o600)
    try:
        with file_object:
            file_object.write(data)
            file_object.flush()
            if before is not None:
                os.chmod(file_object.fileno() if os.chmod in os.supports_fd else part, before)
            os.fsync(file_object.fileno())
            if fcntl is None:
                file_object.close()
            return _replace(part, file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _replace(part: Path, file: Path) -> bool:
    """Replace a file by a temporary file, and return True; False if that does not exist. On Windows, wait."""
    end = time.monotonic() + MAX_REPLACE_SECONDS
    while True:
        try:
            os.replace(part, file)
            return True
        except FileNotFoundError:
            if fcntl or not file.parent.is_dir():
                raise
            return False
        except PermissionError as error:
            if fcntl:
                raise
            if time.monotonic() > end:
                raise PermissionError(
                    f"{file}: expected a file that no other program has open, and that is not read-only: {error}. "
                    "Close it there."
                ) from None
        time.sleep(0.05)


def _path(what: str, path: str | os.PathLike[str]) -> Path:
    """Return a path; TypeError or ValueError for anything else."""
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise TypeError(f"{what}: expected a path, got {path!r}")
    if not os.fspath(path) or "\0" in os.fspath(path):
        raise ValueError(f"{what}: expected a path, got {os.fspath(path)!r}")
    return Path(path)


def _target(what: str, path: Path) -> tuple[Path, int | None]:
    """Return the file that a path names, with symbolic links resolved, and its mode, or None if it does not exist."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = None
    if mode is not None and not stat.S_ISREG(mode):
        kind = SPECIAL_FILES.get(stat.S_IFMT(mode), "not a regular file")
        raise OSError(f"{what}: expected the path of a regular file, or of a new one; {path} is {kind}")
    return Path(os.path.realpath(path)) if path.is_symlink() else path, None if mode is None else mode & 0o777


def _stem(file: Path) -> str:
    """Return the prefix of the names of a file's temporary files: its name, shortened to MAX_STEM_BYTES."""
    return os.fsencode(file.name)[:MAX_STEM_BYTES].decode(errors="ignore")


def _create(file: Path, mode: int) -> tuple[Path, BinaryIO]:
    """Create and lock a temporary file in the folder of a file; return its path and the open file.

    After an error it is closed, so that it is not locked, and the next write removes it.
    """

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), mode)

    while True:
        part = file.with_name(f"{_stem(file)}.{os.urandom(8).hex()}{PART}")
        file_object = open(part, "xb", opener=opener)  # noqa: SIM115 - the caller closes it
        try:
            _lock(file_object.fileno())
            if fcntl is None or os.fstat(file_object.fileno()).st_nlink:  # no other process removed it as a leftover
                return part, file_object
        except BaseException:
            file_object.close()
            raise
        file_object.close()


def _lock(descriptor: int, wait: bool = True) -> bool:
    """Lock an open file; return False if another process holds it, or files cannot be locked."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _remove_leftovers(file: Path) -> None:
    """Remove the temporary files of a file that no process has locked, or, on Windows, open."""
    name = re.compile(rf"{re.escape(_stem(file))}\.[0-9a-f]{{16}}{re.escape(PART)}")
    try:
        parts = [entry.path for entry in os.scandir(file.parent) if name.fullmatch(entry.name)]
    except PermissionError:  # a folder that can be written, but not listed
        return
    for part in parts:
        with suppress(OSError):
            if fcntl is None:
                os.unlink(part)
                continue
            descriptor = os.open(part, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
            try:
                if _lock(descriptor, wait=False):
                    os.unlink(part)
            finally:
                os.close(descriptor)
