"""Other operating systems, simulated in a process on Linux: what is absent, fails, or has other values there.

Usage: ``python -X warn_default_encoding -m helpers.systems SYSTEM FOLDER`` runs the programs of
``platform_programs.py`` on a system, and writes a traceback for each, or an empty text, to FOLDER/results.json.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import ctypes.util
import functools
import importlib
import io
import json
import multiprocessing
import os
import pathlib
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What the simulated system must not affect is imported before: the standard library and other packages, of Linux.
LINUX_MODULES = (
    "asyncio concurrent.futures csv gzip hashlib importlib.metadata inspect logging.handlers mmap "
    "multiprocessing.spawn multiprocessing.util multiprocessing.synchronize platform pickle runpy secrets selectors "
    "shutil signal site socket subprocess tarfile unittest.mock uuid zipfile zoneinfo "
    "array_api_compat.numpy numpy numpy._core._multiarray_umath numpy.testing opt_einsum pytest safetensors.numpy "
    "tqdm.std tqdm.utils"
)
OPTIONAL_PACKAGES = "mkl torch cupy cuda cudnn mpi4py cloudpickle"  # are not installed on the simulated systems

INTEL_ONLY = ("libdnnl", "libmkl", "libiomp5")  # libraries whose packages are for x86-64
WINDOWS_SIGNALS = {"SIGABRT", "SIGBREAK", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"}


@dataclass
class System:
    """What differs from Linux on x86-64 with glibc.

    Attributes
    ----------
    values : dict
        Attributes by their path, such as "sys.platform", with the values that they have there. A value of a function is
        what it returns.
    absent : str
        Modules, and attributes of modules by their path, that do not exist there.
    absent_folders : tuple of str
        Folders that do not exist there.
    missing_library : str
        The error message of ``ctypes.CDLL`` for a library that is not installed; {} is its name.
    absent_functions : str
        Functions that the process's C library lacks.
    features : str
        The CPU features that NumPy reports.
    environment : dict
        Environment variables of a new process.
    start_method : str
        That of ``multiprocessing``.
    stack_bytes : int
        The stack size of threads; 0 for that of Linux.
    locks_open_files : bool
        Whether an open file cannot be replaced, renamed or removed, and a folder cannot be opened.
    has_global_library : bool
        Whether ``ctypes.CDLL(None)`` returns the libraries that the process has loaded.
    """

    values: Mapping[str, Any]
    missing_library: str
    absent: str = ""
    absent_folders: tuple[str, ...] = ()
    absent_functions: str = ""
    features: str = "NEON ASIMD"
    environment: Mapping[str, str] = field(default_factory=dict)
    start_method: str = "fork"
    stack_bytes: int = 0
    locks_open_files: bool = False
    has_global_library: bool = True


SYSTEMS = {
    "windows": System(
        values={
            "sys.platform": "win32",
            "os.name": "nt",
            "platform.system": "Windows",
            "platform.machine": "AMD64",
            "ctypes.util.find_library": None,
        },
        absent="fcntl grp pwd resource syslog termios tty pty readline curses "
        "os.O_CLOEXEC os.O_DIRECTORY os.O_NOFOLLOW os.O_NONBLOCK os.RTLD_GLOBAL os.RTLD_LAZY os.RTLD_LOCAL "
        "os.RTLD_NODELETE os.RTLD_NOLOAD os.RTLD_NOW os.WNOHANG os.chown os.chroot os.confstr os.ctermid os.fchmod "
        "os.fchown os.fork os.forkpty os.getegid os.geteuid os.getgid os.getgroups os.getloadavg os.getpgid os.getpgrp "
        "os.getpriority os.getresuid os.getsid os.getuid os.killpg os.lchown os.memfd_create os.mkfifo os.mknod "
        "os.nice os.openpty os.pathconf os.posix_fallocate os.posix_spawn os.pread os.pwrite os.register_at_fork "
        "os.sched_getaffinity os.sched_setaffinity os.sched_yield os.sendfile os.set_blocking os.setpgid os.setsid "
        "os.setuid os.statvfs os.sync os.sysconf os.uname os.wait os.wait3 os.wait4 os.writev "
        "select.epoll select.poll signal.SIGALRM signal.SIGCHLD signal.SIGHUP signal.SIGKILL signal.SIGPIPE "
        "signal.SIGQUIT signal.SIGUSR1 signal.SIGUSR2 signal.alarm signal.pause signal.pthread_kill "
        "signal.pthread_sigmask signal.setitimer signal.siginterrupt signal.sigpending signal.sigtimedwait "
        "signal.sigwait socket.AF_UNIX socket.socketpair time.clock_gettime time.tzset",
        absent_folders=("/proc", "/dev"),
        missing_library="Could not find module '{}' (or one of its dependencies). Try using the full path.",
        features="SSE SSE2 SSE3 SSE41 SSE42 AVX AVX2 FMA3",
        environment={"PYTHONIOENCODING": "cp1252"},
        start_method="spawn",
        locks_open_files=True,
        has_global_library=False,
    ),
    "macos": System(
        values={"sys.platform": "darwin", "platform.system": "Darwin", "platform.machine": "arm64"},
        absent="os.memfd_create os.pipe2 os.posix_fadvise os.posix_fallocate os.sched_getaffinity "
        "os.sched_setaffinity os.setresuid os.getresuid select.epoll signal.SIGRTMIN signal.sigtimedwait "
        "time.CLOCK_BOOTTIME",
        absent_folders=("/proc", "/dev/shm"),
        missing_library="dlopen({0}, 0x0006): tried: '{0}' (no such file)",
        absent_functions="prctl omp_set_num_threads omp_get_max_threads",
        start_method="spawn",
    ),
    "linux-arm64": System(
        values={"platform.machine": "aarch64", "mmap.PAGESIZE": 1 << 16},
        missing_library="{}: cannot open shared object file: No such file or directory",
        start_method="forkserver",
    ),
    "musl": System(
        values={"ctypes.util.find_library": None, "platform.libc_ver": ("", "")},
        absent_functions="malloc_trim mallopt mallinfo2 gnu_get_libc_version omp_set_num_threads omp_get_max_threads",
        missing_library="Error loading shared library {}: No such file or directory",
        features="SSE SSE2 SSE3",
        stack_bytes=1 << 17,
    ),
}


# --- simulation ------------------------------------------------------------------------------------------------------


def simulate(system: System) -> None:
    """Make this process look like one on a system, to modules that are imported later."""
    for name in LINUX_MODULES.split():
        importlib.import_module(name)
    paths = OpenFiles(os.scandir, os.readlink, os.path.realpath)
    choose_posix_paths()
    for name in f"{system.absent} {OPTIONAL_PACKAGES}".split():
        module, _, attribute = name.rpartition(".")
        if module:
            if hasattr(sys.modules[module], attribute):
                delattr(sys.modules[module], attribute)
        else:
            sys.modules[name] = None  # type: ignore[assignment] # an import then raises ImportError
    for name, value in system.values.items():
        owner, _, attribute = name.rpartition(".")
        before = getattr(sys.modules[owner], attribute)
        setattr(sys.modules[owner], attribute, functools.partial(constant, value) if callable(before) else value)
    features = sys.modules["numpy._core._multiarray_umath"].__dict__["__cpu_features__"]
    features.update({name: name in system.features.split() for name in features})
    multiprocessing.set_start_method(system.start_method)
    if system.stack_bytes:
        threading.stack_size(system.stack_bytes)
    simulate_libraries(system)
    if system.locks_open_files:
        lock_open_files(paths)
        restrict_signals()
    hide_folders(system.absent_folders)


def constant(value: Any, *_: Any, **__: Any) -> Any:
    """Return the value that a function has there."""
    return value


def choose_posix_paths() -> None:
    """Let ``Path`` create paths of Linux, whatever ``os.name`` is."""
    create = pathlib.Path.__new__

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return create(pathlib.PosixPath if cls is pathlib.Path else cls, *args, **kwargs)

    pathlib.Path.__new__ = new  # type: ignore[method-assign, assignment]


def simulate_libraries(system: System) -> None:
    """Let ctypes load and find only what exists there."""
    load = ctypes.CDLL.__init__
    absent = set(system.absent_functions.split())

    def init(self: Any, name: Any, *args: Any, **kwargs: Any) -> None:
        if name is None and not system.has_global_library:
            raise TypeError("bad argument type for built-in operation")
        if name is not None and any(part in os.fspath(name) for part in (*INTEL_ONLY, "libgomp")):
            raise (FileNotFoundError if system.locks_open_files else OSError)(system.missing_library.format(name))
        load(self, name, *args, **kwargs)

    find = ctypes.CDLL.__getattr__

    def getattribute(self: Any, name: str) -> Any:
        if name in absent:
            raise AttributeError(f"function {name!r} not found")
        return find(self, name)

    ctypes.CDLL.__init__ = init  # type: ignore[method-assign, assignment]
    ctypes.CDLL.__getattr__ = getattribute  # type: ignore[method-assign, assignment]


def hide_folders(folders: tuple[str, ...]) -> None:
    """Let the functions that take a path find nothing in some folders."""
    if not folders:
        return
    kept = re.compile(r"/dev/(null|urandom|pts/.*)$")  # of this test

    def hide(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            text = str(path)
            if any(text == folder or text.startswith(f"{folder}/") for folder in folders) and not kept.match(text):
                raise FileNotFoundError(2, "No such file or directory", text)
            return function(path, *args, **kwargs)

        return wrapper

    for module, names in ((os, "open stat lstat listdir scandir access readlink"), (io, "open"), (builtins, "open")):
        for name in names.split():
            setattr(module, name, hide(getattr(module, name)))


@dataclass
class OpenFiles:
    """Finds the files that this process has open, by functions that the simulation does not change."""

    scandir: Callable[..., Any]
    readlink: Callable[..., Any]
    realpath: Callable[..., Any]

    def has(self, path: Any) -> bool:
        """Return whether a file is open, or mapped into memory."""
        target = self.realpath(path)
        for folder in ("/proc/self/fd", "/proc/self/map_files"):
            with self.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):  # it was closed
                        if self.readlink(entry.path) == target:
                            return True
        return False


def lock_open_files(paths: OpenFiles) -> None:
    """Refuse to replace, rename and remove files that are open, and to open folders, as Windows does."""

    def refuse(function: Callable[..., Any], number: int, message: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            for path in args[:2]:
                if isinstance(path, str | os.PathLike) and paths.has(path):
                    raise PermissionError(13, f"[WinError {number}] {message}", os.fspath(path))
            return function(*args, **kwargs)

        return wrapper

    for name in ("replace", "rename"):
        setattr(os, name, refuse(getattr(os, name), 5, "Access is denied"))
    for name in ("unlink", "remove"):
        message = "The process cannot access the file because it is being used by another process"
        setattr(os, name, refuse(getattr(os, name), 32, message))
    open_file = os.open

    def open_no_folder(path: Any, *args: Any, **kwargs: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return open_file(path, *args, **kwargs)

    os.open = open_no_folder


def restrict_signals() -> None:
    """Let ``signal.signal`` accept only the signals of Windows."""
    install = signal.signal
    allowed = {getattr(signal, name) for name in WINDOWS_SIGNALS if hasattr(signal, name)}

    def set_handler(number: Any, handler: Any) -> Any:
        if number not in allowed:
            raise ValueError("invalid signal value")
        return install(number, handler)

    signal.signal = set_handler


# --- programs --------------------------------------------------------------------------------------------------------


def run_programs(name: str, base: Path) -> dict[str, str]:
    """Run all programs on a system, in new folders; return a traceback for each, or an empty text."""
    simulate(SYSTEMS[name])
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=EncodingWarning)
    # open() without an encoding depends on the code page there
    warnings.filterwarnings("error", category=EncodingWarning, module=r"neonlite")
    programs = importlib.import_module("helpers.platform_programs").PROGRAMS
    results = {}
    for key, program in programs.items():
        (base / key).mkdir()
        os.chdir(base / key)
        try:
            program(name)
            results[key] = ""
        except BaseException:
            results[key] = traceback.format_exc()
    return results


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    found = run_programs(sys.argv[1], folder)
    (folder / "results.json").write_text(json.dumps(found), encoding="utf-8")
