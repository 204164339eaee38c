"""The fault monitor ends all ranks, with one error, when one of them dies, hangs or raises."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neonlite.distributed import monitor
from neonlite.distributed.monitor import Monitor, RankState, diagnose

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")

TIMEOUT = 1.5  # seconds
SLACK = 2.0  # seconds that an end may take longer
STEP = "epoch 1, step 17"

# A rank: it executes the lines of its standard input. It loads the module alone, which needs only the standard library.
PROCESS = """
import atexit, ctypes, importlib.util, json, os, sys, threading, time

path, folder, rank, size, timeout = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]), float(sys.argv[5])
spec = importlib.util.spec_from_file_location("monitor", path)
sys.modules["monitor"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.MAX_HEARTBEAT_SECONDS = 0.1  # so that ranks know each other's position soon, also with a long timeout

def exchange(value):
    file = os.path.join(folder, "server.json")
    if rank == 0:
        with open(file + ".part", "w") as stream:
            json.dump(value, stream)
        os.rename(file + ".part", file)
    while not os.path.exists(file):
        time.sleep(0.01)
    with open(file) as stream:
        return json.load(stream)

def until(condition):
    while not condition():
        time.sleep(0.01)

exit_seconds = 0.0
atexit.register(lambda: time.sleep(exit_seconds))  # after the handler of the monitor

while (line := sys.stdin.readline()) not in ("start\\n", ""):
    exec(line)
if line:
    monitor = module.Monitor(rank, size, exchange, timeout)
    print("ready", flush=True)
    for line in sys.stdin:
        exec(line)
        print("done", flush=True)
"""
WAIT = "with monitor.waiting('all_reduce'): time.sleep(60)"


class Ranks:
    """Processes that each have a monitor."""

    def __init__(self, folder: Path, size: int, timeout: float) -> None:
        command = [sys.executable, "-I", "-S", "-c", PROCESS, monitor.__file__, str(folder)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.server = folder / "server.json"
        self.processes = [
            subprocess.Popen([*command, str(rank), str(size), str(timeout)], text=True, **pipes) for rank in range(size)
        ]

    def start(self) -> None:
        """Start all monitors, and set the position of all ranks, which rank 0 and the others receive."""
        for process in self.processes:
            self.send(process, "start")
        self.expect("ready")
        self.run(f"monitor.position = {STEP!r}")
        if len(self.processes) > 1:
            self.run(f"until(lambda: all(r.position == {STEP!r} for r in monitor.ranks.values()))")

    def send(self, process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()

    def expect(self, text: str, *ranks: int) -> None:
        for process in self.of(*ranks):
            assert process.stdout is not None
            assert process.stdout.readline() == text + "\n"

    def of(self, *ranks: int) -> list[subprocess.Popen[str]]:
        return [self.processes[r] for r in ranks or range(len(self.processes))]

    def begin(self, line: str, *ranks: int) -> None:
        """Let ranks, by default all, execute a line of Python."""
        for process in self.of(*ranks):
            self.send(process, line)

    def run(self, line: str, *ranks: int) -> None:
        """Let ranks, by default all, execute a line of Python, and wait for them."""
        self.begin(line, *ranks)
        self.expect("done", *ranks)

    def kill(self, number: int, *ranks: int) -> None:
        for process in self.of(*ranks):
            process.send_signal(number)

    def end(self, seconds: float, stopped: tuple[int, ...] = ()) -> str:
        """Return what all ranks write to standard error, after they have ended by themselves in time, with errors.

        Processes in ``stopped`` are killed after the others have ended, as mpiexec does.
        """
        deadline = time.monotonic() + seconds
        for r, process in enumerate(self.processes):
            if r not in stopped:
                process.wait(timeout=deadline - time.monotonic())
        for r in stopped:
            self.kill(signal.SIGKILL, r)
        assert all(process.wait(timeout=30) != 0 for process in self.processes)
        return "".join(map(self.errors, self.processes))

    def end_normally(self) -> None:
        """Let all ranks exit, and assert that they write no error."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        ends = [(process.wait(timeout=30), self.errors(process)) for process in self.processes]
        assert ends == [(0, "")] * len(ends)

    def errors(self, process: subprocess.Popen[str]) -> str:
        assert process.stderr is not None
        return process.stderr.read()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    """Return a function that starts ranks with monitors, 3 by default. Several trainings of a test run together."""
    started: list[Ranks] = []

    def start(size: int = 3, timeout: float = TIMEOUT, connect: bool = True) -> Ranks:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(ranks := Ranks(folder, size, timeout))
        if connect:
            ranks.start()
        return ranks

    yield start
    for process in [process for ranks in started for process in ranks.processes]:
        process.kill()
        with process:  # closes its pipes
            pass


def is_one_error(text: str, pattern: str) -> bool:
    """Return whether standard error is a single line of the monitor that matches a pattern."""
    print(text)  # of a test that fails
    return re.fullmatch(f"neonlite: {pattern} All ranks end.\n", text) is not None


def name(ranks: Ranks, rank: int) -> str:
    return rf"rank {rank} \(host {socket.gethostname()}, process {ranks.processes[rank].pid}\)"


# --- a rank dies ---


def test_the_death_of_a_rank_ends_all_others_immediately_with_one_error(start):
    ranks = start(4, timeout=60)
    ranks.begin(WAIT, 0, 2, 3)
    ranks.kill(signal.SIGKILL, 1)
    assert is_one_error(ranks.end(SLACK), f"{name(ranks, 1)} ended unexpectedly after {STEP}.")


def test_the_death_of_rank_0_is_reported_by_the_first_rank_in_training(start):
    both = [start(4, timeout=60) for _ in range(2)]
    both[1].run("monitor.close()", 1)
    both[1].run("until(lambda: monitor.ranks[0].reporter == 2)")
    for ranks in both:
        ranks.kill(signal.SIGKILL, 0)
    for ranks in both:
        assert is_one_error(ranks.end(1 + SLACK), f"{name(ranks, 0)} ended unexpectedly after {STEP}.")


def test_an_exit_without_close_is_an_error_even_if_the_process_does_not_end(start):
    ranks = start(timeout=60)
    ranks.begin("exit_seconds = 60; sys.exit()", 1)  # as with MPI_Finalize, which waits for the other ranks
    assert is_one_error(ranks.end(SLACK, stopped=(1,)), f"{name(ranks, 1)} ended unexpectedly after {STEP}.")


def test_a_signal_that_ends_all_ranks_is_no_error_of_the_monitor(start):
    ranks = start(timeout=60)
    ranks.kill(signal.SIGTERM)
    assert ranks.end(SLACK) == ""


def test_a_rank_that_dies_as_soon_as_it_is_connected_is_named(start):
    ranks = start(2, connect=False, timeout=60)
    ranks.begin("threading.Thread.start = lambda self: os._exit(0)", 1)
    for process in ranks.processes:
        ranks.send(process, "start")
    assert [process.wait(timeout=30) for process in ranks.processes] == [1, 0]
    assert is_one_error(ranks.errors(ranks.processes[0]), f"{name(ranks, 1)} ended unexpectedly before the first step.")


def test_a_forked_child_does_not_hide_the_death_of_a_rank(start):
    both = {culprit: start(timeout=60) for culprit in (0, 1)}
    for culprit, ranks in both.items():
        ranks.run("child = os.fork() or time.sleep(60)", culprit)
        ranks.begin(WAIT, *{0, 1, 2} - {culprit})
        ranks.begin("os.closerange(0, 3); os.kill(os.getpid(), 9)", culprit)
    for culprit, ranks in both.items():
        others = [ranks.processes[rank] for rank in {0, 1, 2} - {culprit}]
        for process in others:
            assert process.wait(timeout=1 + SLACK) == 1
        errors = "".join(map(ranks.errors, others))
        assert is_one_error(errors, f"{name(ranks, culprit)} ended unexpectedly after {STEP}.")


def test_a_forked_child_that_exits_or_fails_is_no_end_of_its_rank(start):
    ranks = start()
    for end in ("sys.exit()", "(monitor.close(), sys.exit())", "monitor._end()"):
        ranks.run(f"child = os.fork() or {end}; os.waitpid(child, 0)", 0, 1)
    ranks.run("with monitor.waiting('all_reduce'): time.sleep(1.2)")
    ranks.run("monitor.close()")
    ranks.end_normally()


def test_a_rank_that_was_interrupted_alone_is_named_at_the_end(start):
    ranks = start()
    ranks.run("monitor.close('was interrupted')", 1)
    ranks.run("monitor.close()")
    for process in ranks.processes:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait(timeout=30) for process in ranks.processes] == [0, 0, 0]
    errors = "".join(map(ranks.errors, ranks.processes))
    assert re.fullmatch(f"neonlite: {name(ranks, 1)} was interrupted.\n", errors)


# --- a rank hangs ---


def test_a_rank_that_hangs_in_python_ends_all_ranks(start):
    both = {culprit: start() for culprit in (0, 1)}
    for culprit, ranks in both.items():
        ranks.begin("time.sleep(60)", culprit)
        ranks.begin(WAIT, *{0, 1, 2} - {culprit})
    for culprit, ranks in both.items():
        error = f"has not reached the next all_reduce for {TIMEOUT:g} s; its last position: {STEP}."
        assert is_one_error(ranks.end(TIMEOUT + SLACK), f"{name(ranks, culprit)} {error}")


def test_a_rank_that_holds_the_gil_ends_all_others(start):
    ranks = start()
    ranks.begin("ctypes.PyDLL(None).sleep(60)", 1)
    ranks.begin(WAIT, 0, 2)
    error = rf"{name(ranks, 1)} has sent no heartbeat for {TIMEOUT:g} s \(.*\); its last position: {STEP}."
    assert is_one_error(ranks.end(TIMEOUT + SLACK, stopped=(1,)), error)


def test_a_rank_that_is_stopped_ends_all_others_and_itself_when_it_continues(start):
    both = {culprit: start() for culprit in (0, 1)}
    for culprit, ranks in both.items():
        ranks.kill(signal.SIGSTOP, culprit)
        ranks.begin(WAIT, *{0, 1, 2} - {culprit})
    deadline = time.monotonic() + TIMEOUT + 1 + SLACK
    for culprit, ranks in both.items():
        for process in ranks.of(*{0, 1, 2} - {culprit}):
            process.wait(timeout=deadline - time.monotonic())
        ranks.kill(signal.SIGCONT, culprit)
        assert is_one_error(ranks.end(SLACK), f"{name(ranks, culprit)} has sent no heartbeat .*")


def test_ranks_that_all_wait_report_that_communication_hangs(start):
    ranks = start()
    ranks.begin(WAIT)
    error = rf"all ranks wait for {TIMEOUT:g} s, ranks 0, 1, 2 in all_reduce \(collective operation 1\); .*"
    assert is_one_error(ranks.end(TIMEOUT + SLACK), f"communication hangs: {error}")


@pytest.mark.parametrize("ending", ["has ended its training", "was interrupted"])
def test_waiting_for_a_rank_that_has_closed_its_monitor_ends_all_ranks_at_once(start, ending):
    both = {closed: start(timeout=60) for closed in (0, 1)}
    for closed, ranks in both.items():
        ranks.run(f"monitor.close({ending!r})", closed)
        ranks.begin(WAIT, *{0, 1, 2} - {closed})
    for closed, ranks in both.items():
        error = f"{name(ranks, closed)} {ending}, but rank . waits for it in all_reduce; .* {STEP}."
        assert is_one_error(ranks.end(2 + SLACK), error)


def test_waiting_and_pauses_below_the_timeout_are_no_error(start):
    ranks = start()

    def wait(pause: Callable[[], None]) -> None:
        ranks.begin("with monitor.waiting('all_reduce'): print('waiting', flush=True); sys.stdin.readline()", 0, 2)
        ranks.expect("waiting", 0, 2)
        pause()
        ranks.run("with monitor.waiting('all_reduce'): pass", 1)
        ranks.begin("", 0, 2)
        ranks.expect("done", 0, 2)

    def stop_all() -> None:  # this time does not count
        ranks.run("until(lambda: monitor.ranks[0].entered > monitor.state.entered)", 1)
        ranks.kill(signal.SIGSTOP)
        time.sleep(1.2 * TIMEOUT)
        ranks.kill(signal.SIGCONT)
        ranks.run("until(lambda t=monitor._clock: monitor._clock > t + 0.5)", 1)

    wait(lambda: time.sleep(0.6 * TIMEOUT))
    wait(lambda: time.sleep(0.6 * TIMEOUT))
    wait(stop_all)
    ranks.run("monitor.close()")
    ranks.end_normally()


# --- a rank raises ---


@pytest.mark.parametrize("culprit", [0, 1])
def test_an_exception_is_printed_once_with_rank_and_step(start, culprit):
    ranks = start(timeout=60)
    ranks.begin(WAIT, *{0, 1, 2} - {culprit})
    ranks.begin("monitor.fail(ValueError('a bad value'))", culprit)
    assert ranks.end(SLACK) == f"neonlite: rank {culprit}, {STEP}:\nValueError: a bad value\n"


def test_of_exceptions_in_all_ranks_one_is_printed(start):
    ranks = start(timeout=60)
    ranks.begin("monitor.fail(ValueError('a bad value'))")
    assert re.fullmatch(f"neonlite: rank ., {STEP}:\nValueError: a bad value\n", ranks.end(SLACK))


def test_an_exception_is_printed_if_rank_0_does_not_answer(start):
    ranks = start()
    ranks.kill(signal.SIGSTOP, 0)
    ranks.begin("monitor.fail(ValueError('a bad value'))", 1)
    ranks.processes[1].wait(timeout=30)
    ranks.kill(signal.SIGCONT, 0)
    assert ranks.end(SLACK) == f"neonlite: rank 1, {STEP}:\nValueError: a bad value\n"


def test_an_error_ends_a_process_whose_standard_output_is_blocked(start):
    ranks = start(timeout=60)
    ranks.begin("print('x' * 10_000_000)", 2)
    ranks.begin("monitor.fail(ValueError('a bad value'))", 1)
    for process in ranks.processes:
        assert process.wait(timeout=30) != 0


def test_a_single_rank_has_no_thread_and_prints_its_exception(start):
    ranks = start(1)
    ranks.run("assert threading.active_count() == 1")
    ranks.begin("monitor.fail(ValueError('a bad value'))")
    assert ranks.end(SLACK) == f"neonlite: rank 0, {STEP}:\nValueError: a bad value\n"


# --- connections ---


def test_ranks_that_close_in_any_order_end_their_threads_and_exit_without_error(start):
    ranks = start()
    ranks.run("monitor.close(); monitor.close()", 2, 0)
    ranks.run("assert threading.active_count() == 2")
    ranks.run("monitor.close()", 1)
    ranks.run("until(lambda: threading.active_count() == 1)")
    ranks.end_normally()


def test_closed_ranks_other_than_0_can_exit_before_the_others(start):
    ranks = start()
    ranks.run("monitor.close()", 0, 1)
    ranks.begin("sys.exit()", 0, 1)
    assert ranks.processes[1].wait(timeout=30) == 0
    ranks.run("monitor.close()", 2)
    ranks.end_normally()


def test_strangers_that_connect_are_ignored(start):
    ranks = start(connect=False)
    for rank in (0, 1):
        ranks.send(ranks.processes[rank], "start")
    ranks.expect("ready", 1)
    server = json.loads(ranks.server.read_text())
    with (
        socket.create_connection(("127.0.0.1", server["port"]), timeout=30) as garbage,
        socket.create_connection(("127.0.0.1", server["port"]), timeout=30) as long,
        socket.create_connection(("127.0.0.1", server["port"]), timeout=30) as silent,
    ):
        garbage.sendall(b'\x00\xff\n{"end": true}\n')
        assert receive(garbage) == b""  # rank 0 closes the connection
        long.sendall(b"x" * (monitor.MAX_LINE_BYTES + 1))
        assert receive(long) == b""
        ranks.send(ranks.processes[2], "start")
        ranks.expect("ready", 0, 2)
        assert receive(silent) == b""  # after all ranks have connected
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server["port"]), timeout=30)
    ranks.run("monitor.close()")
    ranks.end_normally()


def test_the_last_message_arrives_if_its_sender_ends_at_once_and_has_not_read_all():
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = monitor.Connection(socket.create_connection(server.getsockname()))
        receiver = monitor.Connection(server.accept()[0])

    def receive(connection: Any) -> list[bytes]:
        while (lines := connection.receive()) == []:
            time.sleep(0.001)
        return lines or []

    for _ in range(20):  # after some exchanges, the acknowledgement of a message is delayed
        sender.send({})
        receive(receiver)
        receiver.send({})
        receive(sender)
    time.sleep(0.1)
    receiver.send({"is": "unread"})
    sender.send({"message": 1})
    sender.send({"message": 2})
    sender.socket.close()
    time.sleep(0.1)
    assert receive(receiver)[-1] == b'{"message": 2}'
    receiver.socket.close()


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process")
@pytest.mark.parametrize("max_files", [30, 1000])
def test_idle_connections_do_not_keep_ranks_from_connecting(start, max_files):
    import resource

    ranks = start(connect=False, timeout=30)
    resource.prlimit(ranks.processes[0].pid, resource.RLIMIT_NOFILE, (max_files, max_files))
    ranks.send(ranks.processes[0], "start")
    while not ranks.server.exists():
        time.sleep(0.01)
    port = json.loads(ranks.server.read_text())["port"]
    idle = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(100)]
    try:
        for rank in (1, 2):
            ranks.send(ranks.processes[rank], "start")
        ranks.expect("ready")
    finally:
        for connection in idle:
            connection.close()
    ranks.run("monitor.close()")
    ranks.end_normally()


def test_a_connection_without_the_secret_word_is_closed_after_some_seconds(start):
    ranks = start(connect=False, timeout=30)
    ranks.send(ranks.processes[0], "module.HELLO_SECONDS = 0.1")
    for rank in (0, 1):
        ranks.send(ranks.processes[rank], "start")
    ranks.expect("ready", 1)
    with socket.create_connection(("127.0.0.1", json.loads(ranks.server.read_text())["port"]), timeout=30) as silent:
        assert receive(silent) == b""  # before rank 2 has connected
    ranks.send(ranks.processes[2], "start")
    ranks.expect("ready", 0, 2)
    ranks.run("monitor.close()")
    ranks.end_normally()


HEARTBEAT = RankState(1).heartbeat()
UNEXPECTED: list[Any] = [
    *[None, True, 0, -1.5, "text", [], {}, ["end"], {"request": 9}, {"request": -1}, {"request": "1"}, {"request": []}],
    *[{"request": 1, "rank": 1}, {"answer": 1}, {"end": 1}, {"end": "x"}, {"rank": 1}, {"rank": 9}, {"rank": []}],
    *[HEARTBEAT | {"rank": x} for x in (3, -1, 1.0, "1", None, True, [], {})],
    *[HEARTBEAT | {name: x} for name in HEARTBEAT for x in (None, [], {}, 1.5)],
    {**HEARTBEAT, "heard_at": 1e9},
    {name: x for name, x in HEARTBEAT.items() if name != "host"},
]


@pytest.mark.parametrize("receiver", [0, 1])
def test_unexpected_messages_change_nothing(start, receiver):
    ranks = start(timeout=60)
    lines = [json.dumps(message) for message in UNEXPECTED] + ["[" * 60000, '{"rank": ' + "9" * 5000 + "}", "{", "\x00"]
    lines.append(json.dumps(HEARTBEAT | {"rank": (2, 1)[receiver], "host": "that of another rank than the sender"}))
    ranks.run("before = repr({r: dict(s.heartbeat()) for r, s in monitor.ranks.items()})", receiver)
    sender = 1 - receiver
    connection = "monitor.ranks[1 - rank].connection"
    ranks.run(f"{connection}.socket.setblocking(True)", sender)
    for line in lines:
        ranks.run(f"{connection}.socket.sendall({line!r}.encode() + bytes([10]))", sender)
    ranks.run(f"{connection}.socket.setblocking(False)", sender)
    ranks.run("monitor.position = 'the last step'", sender)
    ranks.run("until(lambda: monitor.ranks[1 - rank].position == 'the last step')", receiver)
    ranks.run(f"monitor.position = {STEP!r}", sender)
    ranks.run(f"until(lambda: monitor.ranks[1 - rank].position == {STEP!r})", receiver)
    ranks.run("assert repr({r: dict(s.heartbeat()) for r, s in monitor.ranks.items()}) == before", receiver)
    ranks.run("monitor.close()")
    ranks.end_normally()


@pytest.mark.parametrize("culprit", [0, 1])
def test_an_error_of_the_thread_ends_all_ranks(start, culprit):
    ranks = start(timeout=60)
    ranks.begin("monitor._check = lambda: 1 / 0", culprit)
    errors = ranks.end(2 + SLACK)
    assert errors.startswith(f"neonlite: rank {culprit}, {STEP}:\nTraceback")
    assert errors.endswith("ZeroDivisionError: division by zero\n")


def test_rank_0_does_not_wait_forever_if_its_thread_does_nothing(monkeypatch):
    monkeypatch.setattr(Monitor, "_run", lambda self: None)
    monkeypatch.setattr(Monitor, "_at_exit", lambda self: None)
    monkeypatch.setattr(monitor, "REPORT_SECONDS", 0.0)
    with pytest.raises(RuntimeError, match=r"expected connections of 2 ranks, got none of 1, 2"):
        Monitor(0, 3, lambda value: value, timeout=0.05)


def test_a_long_position_is_shortened(start):
    ranks = start()
    ranks.run("monitor.position = 'é' * 100_000", 1)
    ranks.run("until(lambda: monitor.ranks[1].position == 'é' * 1000)", 0)
    ranks.run("monitor.close()")
    ranks.end_normally()


def receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(100)
    except ConnectionResetError:
        return b""


def test_a_rank_that_does_not_connect_is_an_error(start):
    ranks = start(connect=False)
    for rank in (0, 1):
        ranks.send(ranks.processes[rank], "start")
    error = f"rank 2 has not connected to {name(ranks, 0)} for {TIMEOUT:g} s."
    assert is_one_error(ranks.end(TIMEOUT + SLACK, stopped=(2,)), error)


def test_a_server_that_is_not_rank_0_is_an_error_with_the_addresses():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    info = {"host": socket.gethostname(), "process": 1, "port": port, "addresses": ["127.0.0.2"]}
    info |= {"hello": "a", "welcome": "b"}
    message = (
        rf"expected a connection of rank 1 \(host .*\) to rank 0 \(host .*, TCP port {port}\), got 127.0.0.1: .*refused"
    )
    with pytest.raises(RuntimeError, match=f"{message}.*127.0.0.2: .*Allow TCP connections"):
        Monitor(1, 2, lambda _: info)


def test_a_timeout_that_is_not_positive_is_an_error():
    with pytest.raises(ValueError, match="expected timeout > 0, got 0"):
        Monitor(0, 1, lambda value: value, timeout=0)


# --- diagnosis ---


def states(*counts: tuple[int, int], clock: float = 100.0) -> list[RankState]:
    """Return the states of ranks that have entered and left collective operations, since the time 0."""
    return [
        RankState(rank, entered=entered, left=left, operation=f"op{entered}", heard_at=clock)
        for rank, (entered, left) in enumerate(counts)
    ]


def test_ranks_are_in_order_while_none_waits_or_those_that_wait_have_not_waited_for_long():
    assert diagnose(states((5, 5), (3, 3)), 100.0, 30.0) == ""
    ranks = states((5, 4), (3, 3))
    ranks[0].waiting_since = 80.0
    assert diagnose(ranks, 100.0, 30.0) == ""
    ranks = states((5, 4), (5, 4))
    ranks[1].waiting_since = 80.0  # it has come later
    assert diagnose(ranks, 100.0, 30.0) == ""


def test_ranks_that_are_behind_are_named_and_those_that_wait_are_not():
    error = diagnose(states((5, 4), (4, 4), (5, 4), (3, 3)), 100.0, 30.0)
    assert re.findall(r"rank (\d) .*? has not reached the next op5 for 30 s", error) == ["1", "3"]
    error = diagnose(states((5, 4), *[(4, 4)] * 6), 100.0, 30.0)
    assert re.findall(r"rank (\d)", error) == ["1", "2", "3", "4"]
    assert error.endswith("(and 2 more ranks)")


def test_waiting_for_a_closed_rank_is_an_error_before_the_timeout_that_names_it_alone():
    ranks = states((5, 4), (4, 4), (4, 4))
    for r in ranks:
        r.waiting_since = 99.0
    assert diagnose(ranks, 100.0, 30.0) == ""
    ranks[2].is_closed = True
    error = diagnose(ranks, 100.0, 30.0)
    assert re.findall(r"rank (\d) .*? has ended its training, but rank 0 waits for it in op5", error) == ["2"]
    assert "rank 1" not in error
    ranks[2].entered = ranks[2].left = 5  # it has done its part of this operation
    assert diagnose(ranks, 100.0, 30.0) == ""


def test_ranks_that_wait_in_different_operations_are_listed():
    error = diagnose(states((5, 4), (4, 3), (5, 4)), 100.0, 30.0)
    assert "ranks 0, 2 in op5 (collective operation 5); ranks 1 in op4 (collective operation 4)" in error


def test_nested_and_concurrent_collective_operations_are_counted():
    m = Monitor(0, 1, lambda value: value)
    with m.waiting("all_reduce"):
        with m.waiting("broadcast"):
            assert (m.state.entered, m.state.left, m.state.operation) == (2, 0, "broadcast")
        assert m.state.entered > m.state.left
    assert m.state.entered == m.state.left == 2
