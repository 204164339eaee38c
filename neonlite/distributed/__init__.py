"""Data parallel training in several processes, over MPI and NCCL.

``model.fit(X, y, distributed=True)`` trains in all processes that ``mpiexec`` has started; ``world()`` connects them.
"""

from __future__ import annotations

import codecs
import os
import pickle
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

from neonlite import messages, name_hints
from neonlite.backend import objects, validation
from neonlite.distributed import supervisor
from neonlite.distributed.communicator import (
    INSTALL_COMMAND,
    Communicator,
    MPICommunicator,
    NcclCommunicator,
    check_shared_memory,
    import_mpi,
    unlink_shared_memory,
    world,
)
from neonlite.distributed.optimizer import Distributed
from neonlite.files import write_atomic

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Communicator", "Distributed", "MPICommunicator", "NcclCommunicator", "launch", "world"]

if not TYPE_CHECKING:
    __getattr__ = name_hints.module_getattr(__name__)

objects.declare_builtin([Distributed])

# --- start processes by MPI: run a script in each (``run``), or call a Python function in each (``launch``) ---
#
# mpiexec starts the processes, the ranks. It runs in a new session, so that Ctrl-C in a terminal reaches only the
# launching process, which forwards it: mpiexec of MPICH passes SIGINT and SIGTERM to every rank once, on all hosts, and
# waits. SIGHUP would end mpiexec, so it is forwarded as SIGTERM. A second signal kills all ranks. mpiexec of Open MPI
# does not pass signals to the ranks: it ends them at once. Between the launching process and mpiexec is that of
# ``supervisor.py``, which remains if the launching process is killed.

SIGNAL_SECONDS = 2.0  # until a signal that has ended one rank of ``launch`` has ended all others, or it is an error
MAX_ERROR_CHARACTERS = 2000  # of standard error, in the error after the death of a process
SIGHUP = getattr(signal, "SIGHUP", None)  # not on Windows
FORWARDED_SIGNALS = [number for number in (signal.SIGINT, signal.SIGTERM, SIGHUP) if number]

# The shell that runs a rank. mpiexec kills the other ranks as soon as it sees that one has ended irregularly; the delay
# gives their monitors the time to print an error, else the shell prints one. Signals go to the process group: the shell
# must survive them. The rank sends USR1 when it is connected, and USR2 when it exits regularly, not by os._exit(0).
# mpiexec of MPICH does not see the end of a rank for which others wait to be connected or to end, and these would wait
# forever: PMI's message "abort" ends them.
RANK_SHELL = (
    "f= c= e=; trap f=x INT TERM; trap c=+ USR1; trap e=- USR2; "
    'if [ "$f" ]; then s=130; else NEONLITE_SHELL=$$ "$@"; s=$?; fi; '
    'abort() { [ -z "$PMI_FD" ] || "$0" -I -S -c "import time; time.sleep($1); '
    "print('cmd=abort exitcode=$((s ? s : 1))', file=open($PMI_FD, 'w'))\" </dev/null >/dev/null 2>&1; }; "
    'if [ -z "$c" ] && [ "$f$s" != 0 ]; then abort 2 & fi; '
    'case "$f$s $c$e" in x* | "0 " | "0 +-" | [12]" "* | 129" "* | 130" "* | 143" "*) ;; '
    '*) sleep 2; echo "neonlite: rank ${PMI_RANK-$OMPI_COMM_WORLD_RANK} has ended with exit status $s." >&2; '
    "abort 0; [ $s = 0 ] && s=1 ;; esac; exit $s"
)

# Ctrl-C waits until a rank is connected: imports would swallow some KeyboardInterrupts, and the rank would run on.
RUN_CALL = (
    "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]); "
    "from neonlite.distributed import run_call; run_call(sys.argv[1], int(sys.argv[2]))"
)
HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[0-9]+)?")  # with the number of processes
UCX_TRANSPORTS = "self,sm"  # of one host: shared memory; UCX listens on all network interfaces otherwise


# --- run ---


def run(arguments: Sequence[str], n: int, hosts: str | None = None, restarts: int = 0) -> int:
    """Run a command in n processes and wait for all of them; start all again if one fails, if ``restarts`` is given.

    Ctrl-C, SIGTERM and SIGHUP are forwarded to all processes once, so that a training ends after the current step; a
    second one kills them. If this process is killed, all others end (MPICH). OMP_NUM_THREADS is set to the CPUs of this
    host divided by ``n``, and UCX_TLS to shared memory, unless they are set or ``hosts`` is given.

    Parameters
    ----------
    arguments : sequence of str
        The command and its arguments, such as ``[sys.executable, "script.py"]``.
    n : int
        The number of processes.
    hosts : str, optional
        The hosts, such as "host1:2,host2:2" for two processes on each, or the path of a host file. Default: this host.
    restarts : int
        How many times all processes are started again after a failure, but not after a signal. Default: 0.

    Returns
    -------
    int
        The exit status of the last start: 0, 128 + the signal number after a signal, or that of a process that failed.

    Raises
    ------
    ImportError
        mpi4py is not installed.
    NotImplementedError
        The system is Windows.
    FileNotFoundError
        There is no mpiexec, or no host file.
    ValueError
        ``hosts`` contains other text than host names.
    OSError
        The shared memory of this host is full.

    Examples
    --------
    >>> run([sys.executable, "-c", "print('hello')"], n=2)  # doctest: +SKIP
    hello
    hello
    0
    """
    validation.integer("run: restarts", restarts, 0)
    command = mpiexec_command(arguments, n, hosts)
    for count in range(restarts + 1):
        launcher, start = Launcher(), time.monotonic()
        status = launcher.run(command, environment(n, hosts))
        if status in [0, *(128 + number for number in FORWARDED_SIGNALS)] or launcher.signal_number:
            break
        end = f"has ended with exit status {status} after {time.monotonic() - start:.1f} s"
        if count < restarts:
            print(f"neonlite: the job {end}: restart {count + 1} of {restarts}.", file=sys.stderr, flush=True)
        elif restarts:
            print(f"neonlite: the job {end}. No restart of {restarts} is left.", file=sys.stderr, flush=True)
    return status


def mpiexec_command(arguments: Sequence[str], n: int, hosts: str | None = None) -> list[str]:
    """Return the command that starts n processes; the parameters and errors are those of ``run``.

    mpiexec is that beside Python's executable, as of the package mpich, else that on PATH.
    """
    n = validation.integer("mpiexec: n", n)
    if sys.platform == "win32":
        raise NotImplementedError(
            "several processes: expected Linux or macOS, got Windows, where signals cannot be forwarded. Use one "
            "process, or the Windows Subsystem for Linux."
        )
    if find_spec("mpi4py") is None:
        raise ImportError(f"several processes need mpi4py: {INSTALL_COMMAND}")
    folders = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    mpiexec = shutil.which("mpiexec", path=folders)
    if mpiexec is None:
        raise FileNotFoundError(f"several processes need mpiexec, which is not on PATH: {INSTALL_COMMAND}")
    version = subprocess.run(
        [mpiexec, "--version"], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace"
    ).stdout
    is_open_mpi = "Open" in version  # "mpiexec (Open MPI) 5.0", "mpiexec (OpenRTE) 4.1"
    options = ["--bind-to", "none"] if is_open_mpi else []  # its default is one CPU for each process
    if hosts is not None:
        is_file = check_hosts(hosts)
        options += [(("-hosts", "-f"), ("--host", "--hostfile"))[is_open_mpi][is_file], hosts]
    else:
        check_shared_memory(n)
        # also within a job of Slurm, whose hosts MPICH uses otherwise
        options += ["-launcher", "fork", "-hosts", "localhost"] if "HYDRA" in version else []
    return [mpiexec, *options, "-n", str(n), "sh", "-c", RANK_SHELL, sys.executable, *arguments]


def check_hosts(hosts: str) -> bool:
    """Return whether ``hosts`` is a host file; raise ValueError if a name could be read as an option of ssh."""
    is_file = os.path.isfile(hosts)
    if os.sep in hosts and not is_file:
        raise FileNotFoundError(f"mpiexec: expected the names of hosts or the path of a host file, got {hosts!r}")
    names = hosts.split(",")
    if is_file:
        lines = [line.partition("#")[0].split() for line in Path(hosts).read_text(encoding="utf-8").splitlines()]
        names = [words[0] for words in lines if words]
    for name in names or [""]:
        if not HOST_NAME.fullmatch(name):
            where = f" in the host file {hosts}" if is_file else ""
            raise ValueError(
                f"hosts: expected names of letters, digits, '.', '-' and '_' that start with a letter, digit or '_', "
                f"such as host1:2,host2:2 for two processes on each, got {name!r}{where}."
            )
    return is_file


def environment(n: int, hosts: str | None) -> dict[str, str]:
    """Return the environment of the processes: on this host, they share its CPUs, and communicate in its memory."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    defaults = {} if hosts else {"OMP_NUM_THREADS": str(max(1, cpus // n)), "UCX_TLS": UCX_TRANSPORTS}
    return defaults | dict(os.environ)


class Launcher:
    """Runs mpiexec, and forwards signals to it.

    Parameters
    ----------
    folder : str
        The path of a new folder for the command, which is removed also if this process is killed. Default: none.
    call : bytes
        Is written to the file ``call`` in the folder.

    Attributes
    ----------
    signal_number : int or None
        The signal that was forwarded.
    last_errors : str
        The last characters of standard error, if it was read.
    """

    def __init__(self, folder: str = "", call: bytes = b"") -> None:
        self.folder, self.call = folder, call
        self.process: subprocess.Popen[bytes] | None = None
        self.signal_number: int | None = None
        self.is_started = self.is_forwarded = False
        self.last_errors = ""

    def run(self, command: Sequence[str], env: Mapping[str, str], streams: Sequence[TextIO] = ()) -> int:
        """Run a command and return its exit status, as ``run``.

        Parameters
        ----------
        command : sequence of str
            The command of ``mpiexec_command``.
        env : dict
            The environment.
        streams : sequence of text streams
            Standard output and standard error are written to these two. Default: those of this process.
        """
        command = [sys.executable, "-I", "-S", supervisor.__file__, self.folder, *command]
        pipe = subprocess.PIPE if streams else None
        previous_handlers = {}
        try:
            if threading.current_thread() is threading.main_thread():
                for number in FORWARDED_SIGNALS:
                    if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                        previous_handlers[number] = signal.signal(number, self.handle_signal)
            self.process = subprocess.Popen(
                command, env=env, stdin=subprocess.PIPE, stdout=pipe, stderr=pipe, start_new_session=True
            )
            if self.folder:  # not before there is a process that removes it
                os.mkdir(self.folder, 0o700)
                write_atomic(Path(self.folder) / "call", self.call)
            self.send(supervisor.START)
            self.is_started = True
            self.forward_signal()  # that has arrived before
            pipes = (self.process.stdout, self.process.stderr)
            readers = [threading.Thread(target=self.copy, args=x) for x in zip(pipes, streams, strict=False)]
            for reader in readers:
                reader.start()
            status = self.process.wait()
            for reader in readers:
                reader.join()
        finally:
            if self.process:
                self.kill()
                self.process.wait()
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)
        if status and self.signal_number:
            return 128 + self.signal_number
        return status if status >= 0 else 128 - status  # a signal has ended mpiexec itself

    def handle_signal(self, signum: int, frame: object) -> None:
        """Forward the first signal; kill all processes after the second one."""
        if self.signal_number is None:
            self.signal_number = signum
            self.forward_signal()
        else:
            self.kill()

    def forward_signal(self) -> None:
        """Forward the signal to the processes, once."""
        if self.is_started and self.signal_number and not self.is_forwarded:
            self.is_forwarded = True
            self.send(signal.SIGTERM if self.signal_number == SIGHUP else self.signal_number)

    def send(self, number: int) -> None:
        """Send a byte to the supervisor, unless it has ended."""
        if self.process and self.process.stdin:
            with suppress(OSError, ValueError):
                os.write(self.process.stdin.fileno(), bytes([number]))

    def kill(self) -> None:
        """Kill all processes, unless they have ended."""
        if self.process and self.process.stdin:
            with suppress(OSError):
                self.process.stdin.close()  # the supervisor kills mpiexec, and the ranks end with it

    def copy(self, pipe: IO[bytes], stream: TextIO) -> None:
        """Copy standard output or standard error of the processes to a stream, until its end."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with pipe:
            while data := os.read(pipe.fileno(), 1 << 16):
                text = decoder.decode(data)
                if self.process and pipe is self.process.stderr:
                    self.last_errors = (self.last_errors + text)[-MAX_ERROR_CHARACTERS:]
                with suppress(OSError, ValueError):  # a closed stream must not stop the processes
                    stream.write(text)
                    stream.flush()


# --- launch ---


def launch(fn: Callable[..., Any], n: int, *args: Any, hosts: str | None = None, **kwargs: Any) -> Any:
    """Call a function in n new processes, and return the result of rank 0.

    The function may be a lambda, or defined in a notebook or an interactive session. Its output appears in
    ``sys.stdout`` and ``sys.stderr`` of the caller while it runs. Ctrl-C is forwarded to all processes; a second one
    kills them.

    Parameters
    ----------
    fn : callable
        The function. Within it, ``world()`` connects the processes.
    n : int
        The number of processes.
    *args, **kwargs
        The arguments of the function; they are pickled.
    hosts : str, optional
        As that of ``run``. The current folder must be the same on all hosts.

    Returns
    -------
    object
        The result of rank 0; it is pickled.

    Raises
    ------
    RuntimeError
        The function has raised an error, or a process has ended.
    TypeError
        The function, its arguments or its result cannot be pickled.
    ImportError, FileNotFoundError
        mpi4py, cloudpickle or mpiexec is not installed.
    NotImplementedError
        The system is Windows.
    KeyboardInterrupt, SystemExit
        A signal has ended the processes.

    Examples
    --------
    >>> from neonlite.distributed import launch, world
    >>> launch(lambda x: world().size * x, 2, 10)  # doctest: +SKIP
    20
    """
    n, fn = validation.integer("launch: n", n), validation.function("launch: fn", fn)
    command = mpiexec_command([sys.executable, "-c", RUN_CALL], n, hosts)
    call = dump((fn, args, kwargs), f"a function and arguments that can be pickled, got {messages.describe(fn)}")
    python_path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    env = environment(n, hosts) | {"PYTHONPATH": python_path}
    files = Path(os.getcwd() if hosts else tempfile.gettempdir()) / f"neonlite-{secrets.token_hex(8)}"
    launcher = Launcher(str(files), call)
    try:
        status = launcher.run([*command, str(files), str(n)], env, (sys.stdout, sys.stderr))
        if status and launcher.signal_number:
            raise KeyboardInterrupt if launcher.signal_number == signal.SIGINT else SystemExit(status)
        for error in sorted(files.glob("error-*")):  # the first one: the others may result from it
            kind, message = pickle.loads(error.read_bytes())
            raise kind(message)
        if status or not (files / "result").exists():
            raise RuntimeError(
                f"launch: a process has ended without a result or an error of the function (exit status {status}). The "
                f"end of the standard error:\n{launcher.last_errors}"
            )
        return pickle.loads((files / "result").read_bytes())
    finally:
        shutil.rmtree(files, ignore_errors=True)


def dump(value: object, kind: str) -> bytes:
    """Return a pickled object, also with functions of ``__main__``; raise TypeError if it is not ``kind``."""
    try:
        cloudpickle = import_module("cloudpickle")
    except ImportError:
        raise ImportError(f"launch needs cloudpickle: {INSTALL_COMMAND}") from None
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        raise TypeError(
            f"launch: expected {kind}: {error}. Create objects such as files, locks and generators in the function."
        ) from error


def is_entered_by_all(comm: MPI.Comm) -> bool:
    """Return whether all ranks call this function within some seconds: a signal has ended all of them."""
    request, end = comm.Ibarrier(), time.monotonic() + SIGNAL_SECONDS
    while not (is_complete := request.Test()) and time.monotonic() < end:
        time.sleep(0.01)
    return bool(is_complete)


def run_call(folder: str, n: int) -> None:
    """Run the call of ``launch`` in a rank, and write its result or its error to the folder of the call."""
    MPI = import_mpi()
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    unlink_shared_memory(MPI.COMM_WORLD)
    ending = MPI.COMM_WORLD.Dup()
    for stream in (sys.stdout, sys.stderr):  # write complete lines, also with PYTHONUNBUFFERED
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    files = Path(folder)
    kind: type[Exception] = RuntimeError
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        if size != n:
            raise RuntimeError(f"expected {n} processes, got {size}: mpiexec and mpi4py are of different MPI libraries")
        fn, args, kwargs = pickle.loads((files / "call").read_bytes())
        result = fn(*args, **kwargs)
        if rank == 0:
            kind = TypeError
            data = dump(result, f"a result that can be pickled, got {messages.describe(result)}")
            kind = RuntimeError
            write_atomic(files / "result", data)
    except BaseException as error:
        status = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else getattr(error, "code", None)
        if status in [128 + number for number in FORWARDED_SIGNALS] and is_entered_by_all(ending):
            sys.exit(status)
        text = "".join(traceback.format_exception(error))
        message = str(error) if kind is TypeError else f"launch: rank {rank} has raised an error:\n\n{text}"
        write_atomic(files / f"error-{time.time_ns()}-{rank}", pickle.dumps((kind, message)))
        if size > 1:
            MPI.COMM_WORLD.Abort(1)
        sys.exit(1)
