"""Fault monitor: an error, the death or a hang of one process ends all processes of a data-parallel training.

Each process has a thread that sends heartbeats over TCP: those of ranks 1, 2, ... go to rank 0, which sends its own to
all ranks. Rank 0 detects a rank that ends, hangs or raises, reports it once, and ends all ranks. If rank 0 itself ends
or hangs, the others detect it. One of them, the ``reporter`` of rank 0's last heartbeat, reports it.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import selectors
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

LOOPBACK = "127.0.0.1"
MAX_LINE_BYTES = 65536  # a connection that sends a longer line is closed
MAX_POSITION_CHARACTERS = 1000  # so that a position fits a line
MAX_STRANGERS = 32  # connections that have not sent the secret word yet; the oldest ones are closed
HELLO_SECONDS = 5.0  # until a connection must have sent the secret word
CLOSED_SECONDS = 0.5  # after which ranks that wait for one that has ended its training are an error
MAX_HEARTBEAT_SECONDS = 1.0  # between two heartbeats; less with a short timeout
CONNECT_SECONDS = 5.0  # for each address
ANSWER_SECONDS = 1.0  # a rank that raises asks rank 0 whether to print the error; without an answer, it does
REPORT_SECONDS = 3.0  # a report that takes longer is abandoned: all ranks end


class Connection:
    """TCP connection that sends and receives lines without blocking."""

    def __init__(self, sock: socket.socket, rank: int | None = None) -> None:
        sock.setblocking(False)
        # Messages are sent at once: those that wait for an acknowledgement are lost if the process ends.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket, self.rank = sock, rank  # rank of the other process; on rank 0, from its first heartbeat on
        self.opened_at = time.monotonic()
        self.is_trusted = rank is not None  # on rank 0, after the secret word
        self.incomplete_line = b""

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, unless the connection is closed or its buffer is full."""
        with suppress(OSError):
            self.socket.send(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[bytes] | None:
        """Return the complete lines that have arrived, or None at the end of the connection."""
        try:
            data = self.socket.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self.incomplete_line = (self.incomplete_line + data).split(b"\n")
        return lines if data and len(self.incomplete_line) < MAX_LINE_BYTES else None


@dataclass
class RankState:
    """State of a rank. The first attributes are those of its heartbeats; times are in seconds of the monitor's clock.

    ``entered`` and ``left`` count collective operations; ``operation`` is the name of the last one.
    """

    rank: int
    host: str = "unknown"
    process: int = 0
    position: str = ""
    entered: int = 0
    left: int = 0
    operation: str = ""
    is_closed: bool = False
    ending: str = "has ended its training"
    reporter: int = 1
    heard_at: float = 0.0
    waiting_since: float = 0.0
    last_counts: tuple[int, int] = (0, 0)
    connection: Connection | None = None
    may_report: bool = False

    def heartbeat(self) -> dict[str, Any]:
        """Return the attributes that a rank sends."""
        values = vars(self)
        return {name: values[name] for name in list(values)[: list(values).index("heard_at")]}

    def update(self, heartbeat: dict[str, Any], clock: float) -> None:
        """Set the attributes that a rank has sent."""
        is_closed = self.is_closed  # and stays so: its threads may send their messages in another order
        vars(self).update(heartbeat)
        self.is_closed |= is_closed
        self.heard_at = clock
        if self.last_counts != (counts := (self.entered, self.left)):
            self.last_counts, self.waiting_since = counts, clock

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host}, process {self.process})"


def diagnose(ranks: Collection[RankState], clock: float, timeout: float) -> str:
    """Return an error if a rank has waited in a collective operation for more than ``timeout`` seconds, else "".

    The error names the ranks for which it waits: they have sent no heartbeat for ``timeout`` seconds, have entered
    fewer collective operations, or have ended their training. If all ranks wait, the communication itself hangs. A rank
    that has ended its training never enters another operation, so that waiting for it is an error almost at once.
    """
    running = [r for r in ranks if not r.is_closed]
    entered_by_closed = min((r.entered for r in ranks if r.is_closed), default=float("inf"))

    def has_waited(r: RankState, seconds: float) -> bool:
        return r.entered > r.left and r.heard_at - r.waiting_since > seconds

    waiting = [r for r in running if has_waited(r, CLOSED_SECONDS if r.entered > entered_by_closed else timeout)]
    if not waiting:
        return ""
    first = max(waiting, key=lambda r: r.entered)
    causes = []
    for r in ranks:
        if not r.is_closed and clock - r.heard_at > timeout:
            cause = f"has sent no heartbeat for {timeout:g} s (it is stopped, or in C code that holds the GIL)"
        elif r.is_closed and r.entered < first.entered:
            cause = f"{r.ending}, but rank {first.rank} waits for it in {first.operation}"
        elif r.entered == r.left < first.entered and has_waited(first, timeout):
            cause = f"has not reached the next {first.operation} for {timeout:g} s"
        else:
            continue
        causes.append(f"{r} {cause}; its last position: {r.position or 'before the first step'}")
    if causes:
        return ". ".join(causes[:4]) + (f" (and {len(causes) - 4} more ranks)" if len(causes) > 4 else "")
    if len(waiting) < len(running):
        return ""
    groups: dict[str, list[str]] = {}
    for r in waiting:
        groups.setdefault(f"in {r.operation} (collective operation {r.entered})", []).append(str(r.rank))
    where = "; ".join(f"ranks {', '.join(members)} {what}" for what, members in groups.items())
    return f"communication hangs: all ranks wait for {timeout:g} s, {where}; last position: {first.position}"


class Waiting:
    """Context manager that counts a collective operation. It can be nested, and used in several threads."""

    __slots__ = ("operation", "state")

    def __init__(self, state: RankState, operation: str) -> None:
        self.state, self.operation = state, operation

    def __enter__(self) -> None:
        self.state.operation = self.operation
        self.state.entered += 1

    def __exit__(self, *error: object) -> None:
        self.state.left += 1


class Monitor:
    """Fault monitor of one process.

    If a rank ends unexpectedly, calls ``fail``, or keeps another one waiting in a collective operation for more than
    ``timeout`` seconds, one rank prints an error, and all ranks end with exit status 1. This includes the ranks that
    have called ``close``, until all have. A process that is stopped or holds the GIL cannot end itself: mpiexec ends
    it. The constructor of rank 0 returns when all ranks are connected.

    Parameters
    ----------
    rank : int
        The rank of this process, from 0.
    size : int
        The number of processes. A single one has no thread and no connection.
    exchange : callable
        Called once by every rank; returns the argument of rank 0, as MPI's bcast.
    timeout : float
        Seconds that a rank may keep others waiting: more than the longest step, evaluation or checkpoint of one rank.
    address : str
        The address on which rank 0 listens. Default: all of its host; for one host, use that of the loopback interface.

    Attributes
    ----------
    position : str
        The position of the training, such as "epoch 1, step 17". The training loop sets it.

    Raises
    ------
    RuntimeError
        If rank 0 cannot be reached, or the other ranks do not connect to it.
    """

    def __init__(
        self, rank: int, size: int, exchange: Callable[[Any], Any], timeout: float = 30.0, address: str = ""
    ) -> None:
        if not timeout > 0:
            raise ValueError(f"Monitor: expected timeout > 0, got {timeout}. It is in seconds.")
        self.rank, self.size, self.timeout = rank, size, timeout
        self.position = ""
        self.state = RankState(rank, socket.gethostname(), os.getpid())
        self.ranks = {r: RankState(r) for r in (range(size) if rank == 0 else [0])} | {rank: self.state}
        self._clock = 0.0  # excludes the time in which this process is stopped or gets no CPU time
        self._interval = min(timeout / 15, MAX_HEARTBEAT_SECONDS)
        self._report_lock = threading.Lock()  # never released: a process reports one error
        self._report_deadline = float("inf")
        self._may_report: bool | None = None  # the answer of rank 0
        self._answered, self._all_connected = threading.Event(), threading.Event()
        self._is_exiting = False
        if size == 1:
            return
        self._selector = selectors.DefaultSelector()
        if rank == 0:
            self._listener = Connection(socket.create_server((address, 0), backlog=max(size, 128)))
            self._add(self._listener)
            self._server = server_info(self.state.host, self._listener.socket)
            exchange(self._server)
        else:
            self._server = exchange(None)
            self.ranks[0].host, self.ranks[0].process = self._server["host"], self._server["process"]
            self.ranks[0].connection = self._connect()
            self._add(self.ranks[0].connection)
            self._send_heartbeat()  # rank 0 knows whose connection it is, also if this rank ends at once
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._close_in_child)
        self._thread = threading.Thread(target=self._run, name="neonlite-monitor", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)
        # the thread reports missing ranks after the timeout
        if rank == 0 and not self._all_connected.wait(2 * timeout + REPORT_SECONDS):
            raise RuntimeError(
                f"Monitor: expected connections of {size - 1} ranks, got none of {self._missing_ranks()}."
            )

    def waiting(self, what: str) -> Waiting:
        """Return a context manager for a collective operation, such as "all_reduce"."""
        return Waiting(self.state, what)

    def fail(self, error: BaseException) -> NoReturn:
        """Print an error with its traceback, unless another rank has reported one, and end all ranks."""
        try:
            if self._claim_report() and self._ask_rank_0():
                header = f"neonlite: rank {self.rank}{self.position and ', '}{self.position}:\n"
                write_error(header + "".join(traceback.format_exception(error)))
                self._end()
            time.sleep(2 * REPORT_SECONDS)  # the thread ends this process after the report of another rank
        finally:
            os._exit(1)

    def close(self, ending: str = RankState.ending) -> None:
        """End the training of this rank: it may exit. Does not wait for other ranks, and can be called repeatedly.

        An error says ``ending`` of this rank if others wait for it.
        """
        if not self.state.is_closed:
            self.state.ending, self.state.is_closed = ending, True
            self._send_heartbeat()

    # --- the thread ---

    def _run(self) -> None:
        try:
            self._monitor()
        except Exception as error:  # without this thread, a failure would let all ranks wait forever
            self.fail(error)

    def _monitor(self) -> None:
        now = next_heartbeat = time.monotonic()
        while not self._is_finished():
            events = self._selector.select(max(0.0, next_heartbeat - now))
            previous, now = now, time.monotonic()
            self._clock += min(now - previous, 2 * self._interval)
            for key, _ in events:
                self._read(key.data)
            if now >= next_heartbeat:
                next_heartbeat = now + self._interval
                self._send_heartbeat()
                self._check()
        for key in list(self._selector.get_map().values()):
            self._remove(key.data)
        self._selector.close()
        if self.rank == 0 and len({r.ending for r in self.ranks.values()}) > 1:
            for state in self.ranks.values():
                if state.ending != RankState.ending:
                    write_error(f"neonlite: {state} {state.ending}.\n")

    def _is_finished(self) -> bool:
        """Return whether all ranks are closed. Ranks other than 0 know it when rank 0 closes the connection."""
        is_connected = self.rank and self.ranks[0].connection
        return self._is_exiting or (not is_connected and all(r.is_closed for r in self.ranks.values()))

    def _send_heartbeat(self) -> None:
        others = [r for r, state in self.ranks.items() if r and state.connection and not state.is_closed]
        if self._all_connected.is_set():  # else 1: a rank that has not connected receives no other choice
            self.state.reporter = min(others, default=1)
        self.state.position = str(self.position)[:MAX_POSITION_CHARACTERS]
        self.state.update({}, self._clock)
        self._send(self.state.heartbeat())

    def _send(self, message: dict[str, Any]) -> None:
        """Send a message to all connected ranks."""
        for state in self.ranks.values():
            if connection := state.connection:
                connection.send(message)

    def _check(self) -> None:
        """Report the ranks that keep others waiting; ranks other than 0 do so only if rank 0 sends no heartbeats."""
        if time.monotonic() > self._report_deadline:
            self._end()
        error = ""
        if self.rank == 0 and not self._all_connected.is_set():
            self._close_strangers()
            if self._clock > self.timeout:
                error = f"rank {self._missing_ranks()} has not connected to {self.state} for {self.timeout:g} s"
        elif self.rank == 0 or self._clock - self.ranks[0].heard_at > self.timeout:
            error = diagnose(self.ranks.values(), self._clock, self.timeout)
        if error:
            self._report(error)

    def _missing_ranks(self) -> str:
        return ", ".join(str(r) for r, state in self.ranks.items() if r and not state.connection)

    # --- connections ---

    def _connect(self) -> Connection:
        """Return a connection to rank 0."""
        host, port = self._server["host"], self._server["port"]
        failures = []
        for address in [*[LOOPBACK][: host == self.state.host], host, *self._server["addresses"]]:
            try:
                return Connection(self._open_socket(address, port), rank=0)
            except OSError as error:
                failures.append(f"{address}: {error}")
        raise RuntimeError(
            f"Monitor: expected a connection of rank {self.rank} (host {self.state.host}) to rank 0 (host {host}, TCP "
            f"port {port}), got {'; '.join(failures)}. Allow TCP connections between the hosts, or train on one host."
        )

    def _open_socket(self, address: str, port: int) -> socket.socket:
        """Return a socket that is connected to rank 0, after the exchange of the secret words."""
        sock = socket.create_connection((address, port), timeout=CONNECT_SECONDS)
        try:
            sock.sendall(self._server["hello"].encode() + b"\n")
            with sock.makefile("rb", 0) as stream:
                if stream.readline(64) != self._server["welcome"].encode() + b"\n":
                    raise ConnectionError("the server on this port is not rank 0")
        except OSError:
            sock.close()
            raise
        return sock

    def _add(self, connection: Connection) -> None:
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def _close_in_child(self) -> None:
        """Close the connections in a forked child, which is no rank: else it would hide the end of this process."""
        for key in list((self._selector.get_map() or {}).values()):
            key.data.socket.close()
        self._selector.close()

    def _remove(self, connection: Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _close_strangers(self, limit: int = MAX_STRANGERS) -> None:
        """Close the connections that have not sent the secret word in time, and the oldest ones beyond a number."""
        connections = [key.data for key in self._selector.get_map().values()]
        strangers = [x for x in connections if not x.is_trusted and x is not self._listener]
        strangers.sort(key=lambda x: x.opened_at)
        deadline = time.monotonic() - HELLO_SECONDS
        for i, connection in enumerate(strangers):
            if i < len(strangers) - limit or connection.opened_at < deadline:
                self._remove(connection)

    def _read(self, connection: Connection) -> None:
        """Process what has arrived on a connection."""
        if connection.socket.fileno() == -1:  # closed after another event of the same iteration
            return
        if self.rank == 0 and connection is self._listener:
            try:
                self._add(Connection(connection.socket.accept()[0]))
                self._close_strangers()
            except OSError:  # no more files can be opened
                self._close_strangers(0)
            return
        lines = connection.receive()
        for line in lines or ():
            if connection.is_trusted:
                self._process(self._parse(line), connection)
            elif secrets.compare_digest(line, self._server["hello"].encode()):
                connection.is_trusted = True
                with suppress(OSError):
                    connection.socket.send(self._server["welcome"].encode() + b"\n")
            else:
                lines = None
                break
        if lines is None:
            self._remove(connection)
            self._process_end(connection)

    def _parse(self, line: bytes) -> dict[str, Any]:
        """Return a message, or {} if it is none: an incomplete one, as the buffer of the sender was full."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return {}
        if not isinstance(message, dict):
            return {}
        own = self.state.heartbeat()
        examples: list[dict[str, Any]] = [{"end": True}, {"request": 0}, {"answer": True}, own]
        is_message = any(
            message.keys() == example.keys() and all(type(message[name]) is type(x) for name, x in example.items())
            for example in examples
        )
        return message if is_message and message.get("rank", message.get("request", 0)) in self.ranks else {}

    def _process(self, message: dict[str, Any], connection: Connection) -> None:
        """Process a message: the end of all ranks, a request to report an error, its answer, or a heartbeat."""
        if "end" in message:
            self._end()
        elif "request" in message:
            state = self.ranks[message["request"]]
            state.may_report = self._claim_report()
            connection.send({"answer": state.may_report})
        elif "answer" in message:
            self._may_report = message["answer"]
            self._answered.set()
        elif message and connection.rank in (None, message["rank"]):
            state = self.ranks[message["rank"]]
            state.update(message, self._clock)
            if connection.rank is None:
                connection.rank, state.connection = state.rank, connection
                if all(r.connection for r in self.ranks.values() if r.rank):
                    for key in list(self._selector.get_map().values()):
                        if key.data.rank is None:  # the listener, and connections that are not those of a rank
                            self._remove(key.data)
                    self._all_connected.set()

    def _process_end(self, connection: Connection) -> None:
        """Report the end of a connection to a rank that has not ended its training."""
        if connection.rank is None or (state := self.ranks[connection.rank]).connection is not connection:
            return
        state.connection = None
        if state.may_report:
            self._end()
        if not (state.is_closed or self._is_exiting):
            position = self.position or state.position  # this one is newer, and all ranks take the same steps
            self._report(f"{state} ended unexpectedly {f'after {position}' if position else 'before the first step'}")

    # --- reports ---

    def _claim_report(self) -> bool:
        """Return whether no error has been reported yet; the caller reports one."""
        if not self._report_lock.acquire(blocking=False):
            return False
        self._report_deadline = time.monotonic() + REPORT_SECONDS
        return True

    def _ask_rank_0(self) -> bool:
        """Return whether this rank may report its error."""
        if self.rank == 0 or not (connection := self.ranks[0].connection):
            return True
        connection.send({"request": self.rank})
        self._answered.wait(ANSWER_SECONDS)
        return self._may_report is not False

    def _report(self, error: str) -> None:
        """Print an error if this rank is the reporter, and end all ranks.

        The reporter pauses before: if a signal ends all ranks at the same time, it prints nothing. The others pause
        for longer: mpiexec ends the reporter when another process has ended.
        """
        if self._claim_report():
            is_reporter = self.rank in (0, self.ranks[0].reporter)
            time.sleep(0.2 if is_reporter else 1.0)
            if is_reporter:
                write_error(f"neonlite: {error}. All ranks end.\n")
            self._end()

    def _end(self) -> NoReturn:
        """End all connected ranks, and this one."""
        try:
            self._send({"end": True})
            with suppress(RuntimeError):  # at interpreter shutdown, when no thread can start
                flush = threading.Thread(target=sys.stdout.flush, daemon=True)  # may block
                flush.start()
                flush.join(0.5)
            time.sleep(0.2)  # the other ranks read the message before the connections end
        finally:
            os._exit(1)

    def _at_exit(self) -> None:
        """Disconnect before other exit handlers, which may block. Rank 0 monitors until all ranks are closed."""
        if self.rank == 0 and self.state.is_closed:
            self._thread.join()
        elif not self.state.is_closed:
            self._is_exiting = True
            for state in self.ranks.values():
                if connection := state.connection:
                    with suppress(OSError):
                        connection.socket.shutdown(socket.SHUT_RDWR)


def server_info(host: str, listener: socket.socket) -> dict[str, Any]:
    """Return how to connect to the monitor of rank 0, and the secret words of both sides."""
    address = listener.getsockname()[0]
    addresses = [address] if address == LOOPBACK else []
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if not addresses:
            probe.connect(("192.0.2.1", 9))  # selects the network interface of the default route; sends nothing
            addresses.append(probe.getsockname()[0])
    words = {"hello": secrets.token_hex(16), "welcome": secrets.token_hex(16)}
    return {"host": host, "process": os.getpid(), "port": listener.getsockname()[1], "addresses": addresses, **words}


def write_error(text: str) -> None:
    """Write to standard error, without Python's stream: a thread that hangs may hold its lock."""
    with suppress(OSError):
        os.write(2, text.encode(errors="replace"))
