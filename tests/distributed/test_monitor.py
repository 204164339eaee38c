"""The fault monitor: processes that die, hang or raise an error end all others, with one error. No MPI is needed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from neonlite.distributed.monitor import Monitor

TIMEOUT = 2.0
SCRIPT = """
import json, os, sys, time
from pathlib import Path
from neonlite.distributed.monitor import Monitor

rank, size, folder, what = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]

def exchange(value):
    file = folder / "exchanged.json"
    if rank == 0:
        file.with_suffix(".part").write_text(json.dumps(value))
        file.with_suffix(".part").rename(file)
    while not file.exists():
        time.sleep(0.01)
    return json.loads(file.read_text())

def wait_for(other):  # as a collective operation: until another rank is there
    with monitor.waiting("all_reduce"):
        while not (folder / f"{monitor.position} of {other}").exists():
            time.sleep(0.01)

monitor = Monitor(rank, size, exchange, timeout=%(timeout)s)
(folder / f"pid {rank}").write_text(str(os.getpid()))
steps = 1000 if what == "long" else 3
for step in range(steps):
    monitor.position = f"epoch 0, step {step}"
    if step == 1 and rank == 1:
        if what == "raise":
            try:
                raise ValueError("no more data")
            except ValueError as error:
                monitor.fail(error)
        if what == "hang":
            time.sleep(100)
        if what == "slow":
            time.sleep(%(timeout)s / 2)
        if what == "leave":
            monitor.close()
            time.sleep(100)
        if what == "exit":
            sys.exit(3)
    (folder / f"{monitor.position} of {rank}").touch()
    for other in range(size):
        wait_for(other)
    if what == "long":
        time.sleep(0.05)
monitor.close()
"""


class Ranks:
    def __init__(self, folder, size, what):
        self.folder, self.size = folder, size
        script = folder / "rank.py"
        script.write_text(SCRIPT % {"timeout": TIMEOUT})
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(script), str(rank), str(size), str(folder), what],
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]

    def started(self):
        deadline = time.monotonic() + 30
        while not all((self.folder / f"epoch 0, step 1 of {rank}").exists() for rank in range(self.size)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self

    def end(self, stopped=()):
        """Return all errors, the exit statuses, and the seconds until the end; kill the stopped processes then."""
        start = time.monotonic()
        running = [p for rank, p in enumerate(self.processes) if rank not in stopped]
        try:
            for process in running:
                process.wait(TIMEOUT + 15)
            seconds = time.monotonic() - start
        finally:
            for process in self.processes:
                process.kill()
        errors = [process.communicate()[1] for process in self.processes]
        return "".join(errors), [process.returncode for process in running], seconds


def reports(errors):
    return re.findall(r"^neonlite: .*", errors, re.MULTILINE)


def test_ranks_that_end_together_report_nothing(tmp_path):
    assert Ranks(tmp_path, 3, "end").end()[:2] == ("", [0, 0, 0])


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_is_killed_ends_all_at_once_with_one_error(tmp_path, victim):
    ranks = Ranks(tmp_path, 3, "long").started()
    pid = ranks.processes[victim].pid
    ranks.processes[victim].send_signal(signal.SIGKILL)
    errors, statuses, seconds = ranks.end()
    (report,) = reports(errors)
    host = re.escape(socket.gethostname())
    assert re.match(
        rf"neonlite: rank {victim} \(host {host}, process {pid}\) ended unexpectedly after epoch 0, step \d", report
    )
    assert all(statuses)
    assert seconds < TIMEOUT + 2


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="there is no SIGSTOP on this system")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_stopped_is_reported_after_the_timeout(tmp_path, victim):
    ranks = Ranks(tmp_path, 3, "long").started()
    ranks.processes[victim].send_signal(signal.SIGSTOP)
    errors, statuses, seconds = ranks.end(stopped=[victim])
    (report,) = reports(errors)
    assert f"rank {victim} (" in report
    assert "has sent no heartbeat for 2 s" in report
    assert statuses == [1, 1]
    assert TIMEOUT / 2 < seconds < TIMEOUT + 6


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("hang", r"rank 1 \(.*\) has not reached the next all_reduce for 2 s; its last position: epoch 0, step 1"),
        ("leave", r"rank 1 \(.*\) has ended its training, but rank \d waits for it in all_reduce"),
        ("exit", r"rank 1 \(.*\) ended unexpectedly after epoch 0, step 1"),
    ],
)
def test_a_rank_for_which_others_wait_is_reported_once(tmp_path, what, message):
    errors, statuses, seconds = Ranks(tmp_path, 3, what).end()
    (report,) = reports(errors)
    assert re.search(message, report)
    assert all(statuses)
    assert seconds < TIMEOUT + 8


def test_an_error_of_a_rank_is_printed_once_with_its_rank_step_and_traceback(tmp_path):
    errors, statuses, seconds = Ranks(tmp_path, 3, "raise").end()
    assert reports(errors) == ["neonlite: rank 1, epoch 0, step 1:"]
    assert errors.count("ValueError: no more data") == 1
    assert "Traceback" in errors
    assert statuses == [1, 1, 1]
    assert seconds < TIMEOUT + 6


def test_a_rank_that_is_slower_than_others_for_less_than_the_timeout_is_no_error(tmp_path):
    assert Ranks(tmp_path, 3, "slow").end()[:2] == ("", [0, 0, 0])


def test_strangers_on_the_port_are_ignored(tmp_path):
    ranks = Ranks(tmp_path, 2, "end")
    file = tmp_path / "exchanged.json"
    while not file.exists():
        time.sleep(0.005)
    port = json.loads(file.read_text())["port"]
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" + os.urandom(1000) + b"\n")
    except OSError:
        pass  # all ranks are connected: the port is closed
    assert ranks.end()[:2] == ("", [0, 0])


def test_a_single_process_has_no_thread_and_no_connection():
    monitor = Monitor(0, 1, lambda value: pytest.fail("a single process exchanges nothing"))
    with monitor.waiting("all_reduce"):
        pass
    monitor.close()
    assert not hasattr(monitor, "_thread")


def test_the_timeout_must_be_positive():
    with pytest.raises(ValueError, match="expected timeout > 0, got 0"):
        Monitor(0, 1, lambda value: value, timeout=0)


def test_the_monitor_imports_no_mpi():
    code = "import sys, neonlite.distributed.monitor; assert not {'mpi4py', 'mpi4py.MPI'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
