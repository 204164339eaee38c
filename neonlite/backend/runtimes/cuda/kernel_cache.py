"""The disk cache of compiled kernels: a private folder of files with a checksum.

The files contain code that is executed, so only the user or root may have write access to them and to the folder. Each
file ends with the SHA-256 of its contents; a damaged file is compiled again.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from neonlite.files import write_atomic


def cache_folder() -> Path:
    """Return the cache folder: ``NEONLITE_CACHE``, else "neonlite" in the user's cache directory."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("NEONLITE_CACHE") or Path(home, "neonlite"))


def create_folder() -> Path:
    """Return the cache folder, created if it is missing.

    OSError where it cannot be created; RuntimeError if other users have write access to it.
    """
    folder = cache_folder()
    folder.mkdir(0o700, parents=True, exist_ok=True)
    check_private(folder)
    return folder


def read_binary(path: Path) -> bytes | None:
    """Return the contents that ``write_binary`` wrote; None for a missing, damaged or not private file.

    RuntimeError if other users have write access to the folder.
    """
    if path.parent.exists():
        check_private(path.parent)
    try:
        contents, status = path.read_bytes(), path.lstat()
    except OSError:
        return None
    is_intact = append_hash(contents[:-32]) == contents and stat.S_ISREG(status.st_mode) and is_private(status)
    return contents[:-32] if is_intact else None


def write_binary(path: Path, binary: bytes) -> None:
    """Write a compiled kernel to a file of the cache folder. OSError where that fails."""
    create_folder()
    if path.exists() and not is_private(path.lstat()):
        path.unlink()  # a new file gets a private mode
    write_atomic(path, append_hash(binary), 0o600)


def append_hash(contents: bytes) -> bytes:
    """Return the contents followed by their SHA-256, which library loaders ignore."""
    return contents + hashlib.sha256(contents).digest()


def is_private(status: os.stat_result) -> bool:
    """Return whether only the current user or root has write access to a file or folder."""
    return os.name == "nt" or (status.st_uid in (0, os.getuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def check_private(folder: Path) -> None:
    """Raise RuntimeError if other users have write access to a folder, since its files are executed."""
    status = folder.stat()
    if not is_private(status):
        raise RuntimeError(
            f"compiled kernels in {folder} are not loaded: expected a folder of user {os.getuid()} without write "
            f"access for others, got one of user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):o}. "
            f"Run chmod go-w {folder}, or set NEONLITE_CACHE to another folder"
        )
