"""The supervisor of mpiexec: signals, exit statuses, and the files that a job leaves."""

import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from neonlite.distributed import communicator, supervisor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory of Linux")
PRINT_SIGNALS = """
import signal, subprocess, sys, time
rank = subprocess.Popen(["sh", "-c", "read line"], stdin=subprocess.PIPE)  # signals wait for one
received = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: received.append(number))
print("ready", flush=True)
while not received:
    time.sleep(0.01)
sys.exit(received[0])
"""


def supervise(folder, *command, **pipes):
    arguments = [sys.executable, "-I", "-S", supervisor.__file__, str(folder), sys.executable, "-c", *command]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, text=True, **pipes)
    os.write(process.stdin.fileno(), bytes([supervisor.START]))
    return process


@pytest.mark.parametrize(
    ("code", "status"), [("", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_exit_status_is_that_of_the_command_and_its_folder_stays(tmp_path, code, status):
    with supervise(tmp_path, code) as process:
        assert process.wait(30) == status
    assert tmp_path.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_byte_is_the_number_of_a_signal_for_the_command(tmp_path, number):
    with supervise(tmp_path, PRINT_SIGNALS, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        os.write(process.stdin.fileno(), bytes([number]))
        assert process.wait(30) == number


START_A_RANK_LATE = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as mpiexec of MPICH, which passes it to no rank before it starts them
time.sleep(1)
received = []
signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
script = "trap 'exit 9' INT; echo ready; while :; do sleep 0.1; done"
rank = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)
rank.stdout.readline()
while not received:
    time.sleep(0.01)
rank.send_signal(received[0])
sys.exit(rank.wait())
"""


def test_a_signal_waits_until_the_command_has_started_a_rank(tmp_path):
    with supervise(tmp_path, START_A_RANK_LATE) as process:
        os.write(process.stdin.fileno(), bytes([signal.SIGINT]))
        assert process.wait(30) == 9


def test_the_end_of_standard_input_kills_the_command_and_removes_the_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    with supervise(tmp_path / "folder", PRINT_SIGNALS, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        process.stdin.close()
        assert process.wait(30) == 128 + signal.SIGKILL
    assert not (tmp_path / "folder").exists()


def test_the_end_of_standard_input_before_the_start_removes_the_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    code = "open('started', 'w')"
    command = [sys.executable, "-I", "-S", supervisor.__file__, "folder", sys.executable, "-c", code]
    assert subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=30, check=False).returncode == 137
    assert list(tmp_path.iterdir()) == []


def test_files_of_shared_memory_that_a_process_has_open_or_mapped_are_in_use(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "SHARED_MEMORY", tmp_path)
    names = "mpich_shm_1_0", "mpich_shm_2_0", "mpich_shm_3_0", "other"
    unused, opened, mapped, other = (tmp_path / name for name in names)
    for path in (unused, opened, mapped, other):
        path.write_bytes(b"x" * mmap.PAGESIZE)
    assert supervisor.shared_memory_files() == {unused, opened, mapped}
    with opened.open():
        with mapped.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        with memory:
            assert supervisor.unused_files({unused, opened, mapped}) == {unused}
    assert supervisor.unused_files({unused, opened, mapped}) == {unused, opened, mapped}


def supervise_in(folder, code, end_seconds=supervisor.END_SECONDS):
    """Return the exit status of Python code under a supervisor for which a folder is the shared memory."""
    call = (
        "import pathlib, sys\nfrom neonlite.distributed import supervisor\n"
        "supervisor.SHARED_MEMORY = pathlib.Path.cwd()\n"
        f"supervisor.END_SECONDS, supervisor.CHECK_SECONDS = {end_seconds}, 0.1\n"
        "sys.exit(supervisor.supervise('', [sys.executable, '-c', sys.argv[1]]))"
    )
    with subprocess.Popen([sys.executable, "-c", call, code], cwd=folder, stdin=subprocess.PIPE) as process:
        os.write(process.stdin.fileno(), bytes([supervisor.START]))
        return process.wait(60)


def test_a_job_removes_the_files_that_it_leaves_and_no_others(tmp_path):
    """One file was there before, and one that appears meanwhile is used by another process: this one."""
    (tmp_path / "mpich_before").touch()
    create = "import os; open('mpich_left', 'w'); open('other', 'w'); os.rename('used', 'mpich_used')"
    with (tmp_path / "used").open("w"):
        assert supervise_in(tmp_path, create) == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["mpich_before", "mpich_used", "other"]


def test_a_job_that_has_failed_removes_the_files_of_processes_that_end_after_it(tmp_path):
    late = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(0.6)'], stdout=open('mpich_used', 'w'))"
    assert supervise_in(tmp_path, f"import subprocess, sys; {late}; sys.exit(3)") == 3
    assert list(tmp_path.iterdir()) == []


RANK = """
import os, signal, subprocess, sys, time
helper = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {helper!r}], process_group={{group}})"
def rank(code):
    rank = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    rank.helper = int(rank.stdout.readline())
    return rank
"""


def test_a_process_that_an_ended_rank_has_left_is_killed_while_the_command_runs(tmp_path):
    """The command waits for the end of the output, as mpiexec does."""
    code = "left = rank(start.format(group=None))\nassert left.wait() == 0\nassert left.stdout.read() == ''"
    start = time.monotonic()
    assert supervise_in(tmp_path, RANK + code, 0.3) == 0
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("other", ["rank(start.format(group=None) + '; import time; time.sleep(60)')", "orphan"])
def test_processes_of_a_running_rank_and_those_of_another_process_group_are_not_killed(tmp_path, other):
    code = (
        "orphan = rank(start.format(group=0))\nassert orphan.wait() == 0\n"
        f"other = {other}\ntime.sleep(0.6)\nos.set_blocking(other.stdout.fileno(), False)\n"
        "try:\n    os.read(other.stdout.fileno(), 1)\nexcept BlockingIOError:\n    sys.exit(7)  # it has not ended"
    )
    assert supervise_in(tmp_path, RANK + code, 0.1) == 7


@pytest.mark.parametrize("status", [0, 3])
def test_processes_that_remain_after_the_command_are_killed(tmp_path, status):
    """Also one of another process group."""
    code = f"left = rank(start.format(group=0))\nprint(left.helper, file=open('pid', 'w'))\nsys.exit({status})"
    assert supervise_in(tmp_path, RANK + code, 0.1) == status
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_too_little_shared_memory_is_an_error_with_the_sizes_and_the_files_that_no_process_uses(monkeypatch):
    page, free = 4096, 10 * communicator.SHARED_BYTES
    sizes = os.statvfs_result((page, page, 10**4, free // page, free // page, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: sizes)
    monkeypatch.setattr(communicator, "shared_memory_files", lambda: {Path("/dev/shm/mpich_shm_x_0")})
    communicator.check_shared_memory(9)
    message = r"/dev/shm: expected 12.1 MB of free shared memory for 11 processes, got 11.0 of 41.0 MB. Remove the "
    with pytest.raises(OSError, match=message + r"files .*such as 1 of MPICH \(mpich_shm_x_0, ...\).*--shm-size"):
        communicator.check_shared_memory(11)
