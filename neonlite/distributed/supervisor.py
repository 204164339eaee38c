"""Supervisor of mpiexec: signals, the end of all processes with the launching one, and what the ranks leave.

The launcher runs this file as a script, ``supervisor.py FOLDER COMMAND...``, which needs only the standard library.
The command starts after the first byte on standard input. Each other byte is the number of a signal for the command;
the end of standard input kills it. So all processes end with the launching one, also after SIGKILL. On Linux, processes
that a rank has started and left are killed some seconds after it: they may keep the output open that mpiexec reads.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
START = 0  # the first byte on standard input
MPICH_PREFIX = "mpich_"
END_SECONDS = 5.0  # after the end of a rank, or of the command, in which its processes may end by themselves
CHECK_SECONDS = 2.0  # between two searches for processes of ended ranks
START_SECONDS = 5.0  # after the start of the command, in which a signal waits for ranks; it sees those of this host
SET_PARENT_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36  # options of Linux's prctl


def supervise(folder: str, command: Sequence[str]) -> int:
    """Run a command, and return its exit status; remove ``folder`` if the launching process has ended or killed it."""
    is_linux = sys.platform == "linux"
    prctl = ctypes.CDLL(None).prctl if is_linux else None
    if prctl:
        prctl(SET_CHILD_SUBREAPER, 1)  # the ranks are children of this process when mpiexec has ended

    def end_with_supervisor() -> None:
        if prctl:
            prctl(SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL))

    before = shared_memory_files()
    if not os.read(0, 1):
        shutil.rmtree(folder, ignore_errors=True)
        return 128 + signal.SIGKILL
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=end_with_supervisor if is_linux else None)
    is_killed = threading.Event()

    def forward() -> None:
        start = time.monotonic()
        while byte := os.read(0, 1):
            # mpiexec of MPICH loses a signal that arrives before it has started the ranks
            while is_linux and not has_ranks() and time.monotonic() < start + START_SECONDS:
                time.sleep(0.02)
            process.send_signal(byte[0])
        is_killed.set()
        process.kill()

    threading.Thread(target=forward, daemon=True).start()
    if is_linux:
        threading.Thread(target=end_groups, daemon=True).start()
    status = process.wait()
    end_children()
    for path in unused_files(shared_memory_files() - before):
        path.unlink(missing_ok=True)
    if is_killed.is_set() and folder:
        shutil.rmtree(folder, ignore_errors=True)
    return status if status >= 0 else 128 - status


def has_ranks() -> bool:
    """Return whether the command has started a rank on this host: a descendant that is a shell."""
    parents = running_processes()
    descendants = [os.getpid()]
    for parent in descendants:  # grows in the loop
        descendants += [pid for pid, its_parent in parents.items() if its_parent == parent]
    for pid in descendants:
        with suppress(OSError):  # it has ended
            if Path(f"/proc/{pid}/comm").read_text() == "sh\n":
                return True
    return False


def end_groups() -> None:
    """Kill each process group some seconds after its leader, the shell of a rank, has ended.

    A process of the group is then a child of this one, as it is the subreaper.
    """
    ended_at: dict[int, float] = {}
    while True:
        time.sleep(CHECK_SECONDS)
        now, parents = time.monotonic(), running_processes()
        groups = {os.getpgid(pid) for pid in children(parents)} - {os.getpgrp(), *parents}
        ended_at = {group: ended_at.get(group, now) for group in groups}
        for group, end in ended_at.items():
            if now - end >= END_SECONDS:
                with suppress(OSError):
                    os.killpg(group, signal.SIGKILL)


def end_children() -> None:
    """Wait until the remaining processes have ended; kill them after some seconds."""
    end = time.monotonic() + END_SECONDS
    with suppress(OSError):  # no child is left
        while (now := time.monotonic()) < end + END_SECONDS:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                for pid in children(running_processes()) if now > end else ():
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)


def running_processes() -> dict[int, int]:
    """Return the parents of all running processes of this host by their ids; none without /proc."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            state, parent = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(process.name)] = int(parent)
    return parents


def children(parents: Mapping[int, int]) -> list[int]:
    """Return the running processes whose parent is this one."""
    return [pid for pid, parent in parents.items() if parent == os.getpid()]


def shared_memory_files() -> set[Path]:
    """Return the files of MPICH in shared memory that belong to this user."""
    files = set()
    with suppress(OSError):
        for path in SHARED_MEMORY.glob(f"{MPICH_PREFIX}*"):
            with suppress(OSError):
                if path.stat().st_uid == os.geteuid():
                    files.add(path)
    return files


def unused_files(files: set[Path]) -> set[Path]:
    """Return the files that no process has open or mapped; those of other running jobs are not among them."""
    unused = set(files)
    for process in Path("/proc").glob("[0-9]*") if files else ():
        with suppress(OSError):  # the process has ended, or is that of another user
            # descriptors first: a process closes that of a file after it has mapped it
            for link in (process / "fd").iterdir():
                with suppress(OSError):  # it is closed
                    unused.discard(Path(os.readlink(link)))
            maps = os.fsdecode((process / "maps").read_bytes())
            unused -= {path for path in unused if str(path) in maps}
    return unused


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1], sys.argv[2:]))
