"""Communicators: sum, broadcast and gather arrays over the processes that train a model together.

``MPICommunicator`` uses mpi4py, ``NcclCommunicator`` sums tensors of GPUs by NCCL, and ``Communicator`` itself is that
of a single process. ``world()`` returns the one that fits.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from neonlite import messages, typing
from neonlite.backend import Backend, Tensor, batch_size, validation
from neonlite.distributed.monitor import LOOPBACK, Monitor
from neonlite.distributed.supervisor import MPICH_PREFIX, SHARED_MEMORY, shared_memory_files, unused_files

if TYPE_CHECKING:
    from mpi4py import MPI

Object = TypeVar("Object")
Buffer = TypeVar("Buffer", bound="Tensor | NDArray[Any]")

INSTALL_COMMAND = 'pip install "neonlite[mpi]"'
DEFAULT_TIMEOUT = 30.0  # seconds
MPI_ERROR_SECONDS = 2.0  # before an error of MPI itself is reported
MAX_GATHERED_BYTES = 1 << 16  # up to here, gathering all buffers to sum them in order is faster than two exchanges
SHARED_BYTES = 1_100_000  # of shared memory that MPICH needs for a process
NCCL_DTYPES = ("float32", "float64", "int8", "uint8", "int32", "uint32", "int64", "uint64")
MAX_NCCL_BYTES = 1 << 31  # of one message: CuPy's count is an int
MAX_LOCAL_BYTES = 4 << 20  # of one message between the processes of a host: MPICH sums 40 MB 3 times as fast in parts
# variables that MPI's launchers set for each process: MPICH and Intel MPI, PMIx (Open MPI, Slurm)
RANK_VARIABLES, SIZE_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"), ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


class Communicator:
    """Connects the processes that train together; this class itself is that of a single process.

    All processes must call a method that communicates, in the same order. An uncaught exception in a process, or its
    end, ends all processes.

    Attributes
    ----------
    rank : int
        The index of this process, from 0.
    size : int
        The number of processes.
    local_rank : int
        The index of this process among those of its host: the GPU to use.
    overlap : bool
        Whether ``Model.fit`` sums the gradients of layers while it computes those of the layers before. Default: False.
    compress_gradients : bool
        Whether ``Model.fit`` and ``Distributed`` send gradients as bfloat16, half the bytes of float32. Default: False.
    shard_states : bool
        Whether each process has the optimizer states of a part of the parameters only, updates these in ``Model.fit``,
        and sends them to the others. Default: False.

    Examples
    --------
    >>> from neonlite.distributed import world
    >>> comm = world()
    >>> comm.rank, comm.size
    (0, 1)
    """

    rank, size, local_rank = 0, 1, 0
    overlap = compress_gradients = shard_states = False
    _address = LOOPBACK  # on which the monitor of rank 0 listens

    def __init__(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.monitor = Monitor(self.rank, self.size, self._exchange, timeout, self._address)

    def _exchange(self, value: Any) -> Any:
        """Return the object of rank 0, before there is a monitor."""
        return value

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank={self.rank}, size={self.size})"

    def all_reduce(self, buffer: Buffer, deterministic: bool = False) -> Buffer:
        """Sum a buffer over all processes, in place.

        16-bit dtypes are summed in float32.

        Parameters
        ----------
        buffer : Tensor or numpy.ndarray
            The buffer, of the same shape and dtype on all processes.
        deterministic : bool
            Whether to sum in the order of the ranks, ``((x0 + x1) + x2) + ...``. Default: False, in the order that is
            fastest; the result is the same on all processes.

        Returns
        -------
        Tensor or numpy.ndarray
            The buffer.
        """
        return buffer

    def sum_gradients(self, buffer: Buffer, deterministic: bool = False) -> Buffer:
        """Sum gradients over all processes, in place: as ``all_reduce``, or with ``compress_gradients``.

        Each process then rounds its buffer to bfloat16, and sums a part of it in float32, in the order of the ranks;
        all get the parts rounded to bfloat16. Buffers of at most 64 KB are not rounded.

        Parameters
        ----------
        buffer : Tensor or numpy.ndarray
            The buffer, of the same shape and dtype on all processes.
        deterministic : bool
            As for ``all_reduce``; compressed buffers are always summed in the order of the ranks.

        Returns
        -------
        Tensor or numpy.ndarray
            The buffer.
        """
        return self.all_reduce(buffer, deterministic)

    def is_asynchronous(self, buffer: Tensor | NDArray[Any]) -> bool:
        """Return whether ``start_sum`` returns before a buffer is summed: that of a GPU.

        Parameters
        ----------
        buffer : Tensor or numpy.ndarray
            The buffer.
        """
        return False

    def start_sum(self, buffer: Tensor | NDArray[Any], deterministic: bool = False) -> None:
        """Start to sum gradients as by ``sum_gradients``; the buffer has the sum after ``finish_sums``.

        Parameters
        ----------
        buffer : Tensor or numpy.ndarray
            The buffer, of the same shape and dtype on all processes.
        deterministic : bool
            As for ``sum_gradients``.
        """
        self.sum_gradients(buffer, deterministic)

    def finish_sums(self) -> None:
        """Let all that is computed from now on wait for the sums that were started."""

    def broadcast(self, buffer: Buffer, root: int = 0) -> Buffer:
        """Copy a buffer of one process to all others, in place.

        Parameters
        ----------
        buffer : Tensor or numpy.ndarray
            The buffer, of the same shape and dtype on all processes.
        root : int
            The rank of the process whose values are copied.

        Returns
        -------
        Tensor or numpy.ndarray
            The buffer.
        """
        self.broadcast_parts([(buffer, root)])
        return buffer

    def broadcast_parts(self, parts: Sequence[tuple[Tensor | NDArray[Any], int]]) -> None:
        """Copy several buffers at the same time, each from one process to all others, in place.

        Parameters
        ----------
        parts : sequence of (Tensor or numpy.ndarray, int)
            Each buffer with the rank of the process whose values are copied.
        """

    def all_gather(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the arrays of all processes.

        Parameters
        ----------
        array : numpy.ndarray
            An array, of the same shape and dtype on all processes.

        Returns
        -------
        numpy.ndarray
            (size, ...), in the order of the ranks.
        """
        return np.asarray(array)[None].copy()

    def broadcast_object(self, value: Object, root: int = 0) -> Object:
        """Return the object of one process on all; it is pickled.

        Parameters
        ----------
        value : object
            The object; ignored on the other processes.
        root : int
            The rank of that process.
        """
        return value

    def all_gather_objects(self, value: Object) -> list[Object]:
        """Return the objects of all processes, in the order of the ranks; they are pickled.

        Parameters
        ----------
        value : object
            The object of this process.
        """
        return [value]

    def barrier(self) -> None:
        """Wait until all processes have called this method."""

    def abort(self, message: str) -> NoReturn:
        """Print a message, and end all processes with the exit status 1.

        Parameters
        ----------
        message : str
            What went wrong.
        """
        self.monitor.fail(RuntimeError(message))

    @contextmanager
    def sharded(self, be: Backend) -> Iterator[batch_size.Shard | None]:
        """Split minibatches over the processes, within a ``with`` block.

        Data iterators of neonlite then yield ``be.bsz`` columns of a minibatch with those of all processes, in the
        order of the ranks. ``Model.fit(distributed=True)`` does this itself; use it for a custom training loop.

        Parameters
        ----------
        be : Backend
            The backend; its batch size is that of this process.
        """
        sizes = self.all_gather_objects(be.bsz)
        if 0 in sizes:
            raise ValueError(
                f"Communicator.sharded: expected a batch size on every process, got {sizes}. Set be.bsz first."
            )
        start = sum(sizes[: self.rank])
        shard = batch_size.Shard(start, start + be.bsz, sum(sizes), self) if self.size > 1 else None
        with batch_size.use_shard(be, shard):
            yield shard


class MPICommunicator(Communicator):
    """Connects processes that MPI has started, by mpi4py.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        MPI's communicator.
    timeout : float
        Seconds after which a process that does not answer ends all others. Default: 30.
    """

    def __init__(self, comm: MPI.Comm, timeout: float = DEFAULT_TIMEOUT) -> None:
        from mpi4py import MPI

        self.mpi, self.comm, self.in_place = MPI, comm.Dup(), MPI.IN_PLACE
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)  # an exception: MPI does not end the processes itself
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.hosts = self.comm.allgather(socket.gethostname())
        self.local_rank = self.hosts[: self.rank].count(self.hosts[self.rank])
        unlink_shared_memory(self.comm)
        processes_of_host = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        if processes_of_host.Get_size() < self.size:
            self._address = ""  # all addresses of the host
        processes_of_host.Free()
        self.buffers: dict[tuple[int, np.dtype[Any]], list[NDArray[Any]]] = {}  # of ordered sums
        super().__init__(timeout)

    def _exchange(self, value: Any) -> Any:
        return self.comm.bcast(value)

    def duplicate(self) -> MPICommunicator:
        """Return a communicator of the same processes, for a second thread."""
        other: MPICommunicator = object.__new__(MPICommunicator)
        vars(other).update(vars(self), comm=self.comm.Dup(), buffers={})
        other.comm.Set_errhandler(self.mpi.ERRORS_RETURN)
        return other

    def all_reduce(self, buffer: Buffer, deterministic: bool = False) -> Buffer:
        return self._sum(buffer, deterministic)

    def sum_gradients(self, buffer: Buffer, deterministic: bool = False) -> Buffer:
        if not self.compress_gradients:
            return self.all_reduce(buffer, deterministic)
        bfloat16 = validation.import_extra("ml_dtypes", "world().compress_gradients", "mpi").bfloat16
        return self._sum(buffer, True, np.dtype(bfloat16))

    def _sum(self, buffer: Buffer, deterministic: bool, sent: np.dtype[Any] | None = None) -> Buffer:
        """Sum a buffer in place; with ``sent``, its values are sent in this dtype."""
        with self.monitor.waiting("all_reduce"), host_array(buffer, np.dtype(np.float32)) as values:
            values = values.reshape(-1)
            width = values.size if len(set(self.hosts)) > 1 else MAX_LOCAL_BYTES // values.itemsize
            for start in range(0, values.size, max(width, 1)):
                part = values[start : start + width]
                if sent is None and (not deterministic or self.size == 2):  # x0 + x1 = x1 + x0
                    self.comm.Allreduce(self.in_place, part)
                else:
                    self._sum_in_order(part, part.dtype if sent is None else sent)
        return buffer

    def _sum_in_order(self, values: NDArray[Any], sent: np.dtype[Any]) -> None:
        """Sum one-dimensional arrays in the order of the ranks, in place; long ones are sent in the dtype ``sent``."""
        n, width = self.size, -(-values.size // self.size)
        if values.nbytes <= MAX_GATHERED_BYTES:
            gathered = np.empty((n, values.size), values.dtype)
            self.comm.Allgather(values, gathered)
            add_in_order(gathered, values)
            return
        if (key := (values.size, sent)) not in self.buffers:
            self.buffers[key] = [np.zeros((n, width), sent) for _ in range(2)]
        padded, parts = self.buffers[key]
        raw = f"u{sent.itemsize}"  # MPI has no bfloat16
        padded.reshape(-1)[: values.size] = values
        self.comm.Alltoall(padded.view(raw), parts.view(raw))  # part r of every process
        total = np.empty(width, values.dtype)
        add_in_order(parts, total)
        self.comm.Allgather(total.astype(sent, copy=False).view(raw), padded.view(raw))
        values[:] = padded.reshape(-1)[: values.size]

    def broadcast_parts(self, parts: Sequence[tuple[Tensor | NDArray[Any], int]]) -> None:
        with self.monitor.waiting("broadcast"), ExitStack() as stack:
            arrays = [(stack.enter_context(host_array(buffer)), root) for buffer, root in parts]
            self.mpi.Request.Waitall([self.comm.Ibcast(values.view(np.uint8), root) for values, root in arrays])

    def all_gather(self, array: NDArray[Any]) -> NDArray[Any]:
        array = np.ascontiguousarray(array)
        result = np.empty((self.size, *array.shape), array.dtype)
        with self.monitor.waiting("all_gather"):
            self.comm.Allgather(array.reshape(-1).view(np.uint8), result.reshape(-1).view(np.uint8))
        return result

    def broadcast_object(self, value: Object, root: int = 0) -> Object:
        with self.monitor.waiting("broadcast_object"):
            result: Object = self.comm.bcast(value, root)
        return result

    def all_gather_objects(self, value: Object) -> list[Object]:
        with self.monitor.waiting("all_gather_objects"):
            gathered: list[Object] = self.comm.allgather(value)
        return gathered

    def barrier(self) -> None:
        with self.monitor.waiting("barrier"):
            self.comm.Barrier()


class NcclCommunicator(MPICommunicator):
    """Sums tensors of GPUs by NCCL, through CuPy, with one GPU for each process; else as ``MPICommunicator``.

    NCCL has another stream than the computations, so that both overlap. Events let it wait for the stream that has
    computed a buffer, and let that stream wait for the sums. The host waits for neither.

    Parameters
    ----------
    comm, timeout
        As for ``MPICommunicator``.
    """

    def __init__(self, comm: MPI.Comm, timeout: float = DEFAULT_TIMEOUT) -> None:
        super().__init__(comm, timeout)
        self.communicator: Any = None
        self.has_started = False  # whether NCCL's stream computes what the current stream has not waited for

    def _connect(self) -> None:
        """Connect the GPUs of all processes: not before a backend has chosen that of this one, by its local rank."""
        from cupy.cuda import Event, Stream, nccl

        self.nccl, self.stream, self.event = nccl, Stream(non_blocking=True), Event(disable_timing=True)
        unique_id = self.broadcast_object(nccl.get_unique_id() if self.rank == 0 else None)
        with self.monitor.waiting("NCCL connection"):
            self.communicator = nccl.NcclCommunicator(self.size, unique_id, self.rank)

    def is_asynchronous(self, buffer: Tensor | NDArray[Any]) -> bool:
        array: Any = buffer._array if isinstance(buffer, Tensor) else buffer
        cupy = sys.modules.get("cupy")  # not imported without a GPU
        is_on_gpu = cupy is not None and isinstance(array, cupy.ndarray) and has_nccl()
        return is_on_gpu and array.flags.c_contiguous and 0 < array.nbytes < MAX_NCCL_BYTES

    def all_reduce(self, buffer: Buffer, deterministic: bool = False) -> Buffer:
        self._start_sum(buffer, deterministic)
        self.finish_sums()
        return buffer

    def start_sum(self, buffer: Tensor | NDArray[Any], deterministic: bool = False) -> None:
        if self.compress_gradients:
            super().start_sum(buffer, deterministic)
        else:
            self._start_sum(buffer, deterministic)

    def _start_sum(self, buffer: Tensor | NDArray[Any], deterministic: bool) -> None:
        """Sum a buffer on NCCL's stream, after what the current stream computes, or at once by MPI."""
        array: Any = buffer._array if isinstance(buffer, Tensor) else buffer
        is_half = array.dtype.name in typing.HALF_DTYPES
        if not self.is_asynchronous(buffer) or not (is_half or array.dtype.name in NCCL_DTYPES):
            super().all_reduce(buffer, deterministic)
            return
        cupy = sys.modules["cupy"]
        with self._on_stream("all_reduce") as stream:
            values = array.astype(np.float32) if is_half else array
            pointer, dtype = values.data.ptr, getattr(self.nccl, f"NCCL_{values.dtype.name.upper()}")
            if not deterministic or self.size == 2:
                self.communicator.allReduce(pointer, pointer, values.size, dtype, self.nccl.NCCL_SUM, stream.ptr)
            else:
                gathered = cupy.empty((self.size, values.size), values.dtype)
                self.communicator.allGather(pointer, gathered.data.ptr, values.size, dtype, stream.ptr)
                add_in_order(gathered, values.reshape(-1))
            if is_half:
                array[...] = values

    def finish_sums(self) -> None:
        if self.has_started:
            self._wait(self.stream, sys.modules["cupy"].cuda.get_current_stream())
            self.has_started = False

    def broadcast_parts(self, parts: Sequence[tuple[Tensor | NDArray[Any], int]]) -> None:
        if not all(self.is_asynchronous(buffer) for buffer, _ in parts):
            super().broadcast_parts(parts)
            return
        with self._on_stream("broadcast") as stream:
            self.nccl.groupStart()
            for buffer, root in parts:
                array: Any = buffer._array if isinstance(buffer, Tensor) else buffer
                self.communicator.bcast(array.data.ptr, array.nbytes, self.nccl.NCCL_UINT8, root, stream.ptr)
            self.nccl.groupEnd()
        self.finish_sums()

    @contextmanager
    def _on_stream(self, operation: str) -> Iterator[Any]:
        """Use NCCL's stream, which waits for what the current stream computes; the host waits for neither."""
        if self.communicator is None:
            self._connect()
        current = sys.modules["cupy"].cuda.get_current_stream()
        with self.monitor.waiting(operation):
            self._wait(current, self.stream)
            with self.stream:
                yield self.stream
        self.has_started = True

    def _wait(self, first: Any, other: Any) -> None:
        """Let what a stream computes from now on wait for what another one has been given to compute."""
        self.event.record(first)
        other.wait_event(self.event)


def unlink_shared_memory(comm: MPI.Comm) -> None:
    """Remove the names of MPICH's shared memory, which is then freed with the last process, however it ends."""
    comm.Barrier()  # all processes have opened it
    with suppress(OSError):  # not Linux
        for name in re.findall(
            rf"{SHARED_MEMORY}/{MPICH_PREFIX}\w+$", os.fsdecode(Path("/proc/self/maps").read_bytes()), re.MULTILINE
        ):
            Path(name).unlink(missing_ok=True)


def check_shared_memory(n: int) -> None:
    """Raise OSError if the shared memory of this host is too full for n processes: MPI would die of SIGBUS."""
    try:
        status = os.statvfs(SHARED_MEMORY)
    except (OSError, AttributeError):  # not Linux
        return
    free, total, needed = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize, n * SHARED_BYTES
    if free < needed:
        left = unused_files(shared_memory_files())
        hint = (
            f", such as {len(left)} of MPICH ({', '.join(sorted(path.name for path in left)[:2])}, ...)" if left else ""
        )
        raise OSError(
            f"{SHARED_MEMORY}: expected {needed / 1e6:.1f} MB of free shared memory for {n} processes, got "
            f"{free / 1e6:.1f} of {total / 1e6:.1f} MB. Remove the files that no process uses{hint}, or increase it: "
            f"docker run --shm-size=1g, or mount -o remount,size=1g {SHARED_MEMORY}."
        )


def add_in_order(parts: Any, out: Any) -> None:
    """Compute ``out = (parts[0] + parts[1]) + parts[2] + ...``; out may be parts[0]."""
    out[...] = parts[0]
    for part in parts[1:]:
        out += part


@contextmanager
def host_array(buffer: Tensor | NDArray[Any], half: np.dtype[Any] | None = None) -> Iterator[NDArray[Any]]:
    """Give a buffer as a contiguous NumPy array, of the dtype ``half`` if it is of a 16-bit one; write it back after.

    The array is the memory of the buffer if that is possible.
    """
    values: Any = buffer
    copied = False
    if isinstance(buffer, Tensor):
        try:
            values = buffer.backend.runtime.numpy_view(buffer._array)
        except BufferError:  # on a GPU
            values, copied = buffer.get(), True
    elif not isinstance(buffer, np.ndarray):
        raise TypeError(f"Communicator: expected a tensor or a NumPy array, got {messages.describe(buffer)}")
    original = values
    if half is not None and values.dtype.name in typing.HALF_DTYPES:
        values = values.astype(half)
    values = np.ascontiguousarray(values)
    yield values
    if values is not original:
        original[...] = values
    if isinstance(buffer, Tensor) and copied:
        buffer[:] = original


# --- the communicator of this process ---

_world: Communicator | None = None


def world(timeout: float | None = None) -> Communicator:
    """Return the communicator of all processes that MPI has started together.

    The first call connects them. Without a launcher, such as mpiexec, it is that of a single process, so that the same
    script runs alone. NCCL sums tensors of GPUs if CuPy has it.

    Parameters
    ----------
    timeout : float, optional
        Seconds after which a process that does not answer ends all others; of the first call. Default: the environment
        variable NEONLITE_TIMEOUT, or 30. Work on a single rank, such as writing a file, must take less.

    Returns
    -------
    Communicator
        The same object for every call.

    Raises
    ------
    ImportError
        A launcher has started the process and mpi4py is not installed.

    Examples
    --------
    >>> from neonlite.distributed import world
    >>> world().size  # without mpiexec
    1
    """
    global _world
    if _world is None:
        _world = connect(
            timeout_of_environment() if timeout is None else validation.check_number("world: timeout", timeout, above=0)
        )
    return _world


def timeout_of_environment() -> float:
    """Return the seconds of NEONLITE_TIMEOUT; the default if it is not set."""
    text = os.environ.get("NEONLITE_TIMEOUT", str(DEFAULT_TIMEOUT))
    try:
        return validation.check_number("NEONLITE_TIMEOUT", float(text), above=0)
    except ValueError:
        raise ValueError(f"NEONLITE_TIMEOUT: expected seconds > 0, such as 300, got {text!r}") from None


def connect(timeout: float) -> Communicator:
    """Return a new communicator of all processes."""
    if not is_launched() and "mpi4py.MPI" not in sys.modules:
        return Communicator(timeout)
    if "mpi4py.MPI" not in sys.modules:
        check_shared_memory(int(os.environ.get("MPI_LOCALNRANKS", 1)))
    try:
        MPI = import_mpi()
    except ImportError as error:
        raise ImportError(f"world: MPI has started this process, and mpi4py is not installed: {INSTALL_COMMAND}") from (
            error
        )
    if MPI.COMM_WORLD.Get_size() == 1:
        return Communicator(timeout)
    communicator = (NcclCommunicator if find_spec("cupy") else MPICommunicator)(MPI.COMM_WORLD, timeout)
    end_all_on_error(communicator)
    return communicator


def import_mpi() -> Any:
    """Return the module of MPI, which is finalized by the process that imports it and not by its forked children."""
    if "mpi4py.MPI" not in sys.modules:
        import mpi4py

        mpi4py.rc.finalize = False  # mpi4py would do it also in a forked child that exits
        process = os.getpid()

        def finalize() -> None:
            if os.getpid() == process and not MPI.Is_finalized():
                MPI.Finalize()

        atexit.register(finalize)
    from mpi4py import MPI

    return MPI


def is_distributed() -> bool:
    """Return whether ``world()`` has connected several processes."""
    return _world is not None and _world.size > 1


def may_become_distributed() -> bool:
    """Return whether ``world()`` has connected several processes, or may do so: a launcher has started this one."""
    return is_launched() if _world is None else _world.size > 1


def is_launched() -> bool:
    """Return whether a launcher of MPI has started this process."""
    return any(name in os.environ for name in RANK_VARIABLES + SIZE_VARIABLES)


def launched_rank_and_size() -> tuple[int, int]:
    """Return the rank and the number of the processes that a launcher has started, by its variables; else (0, 1)."""
    rank, size = (
        next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), default)
        for names, default in ((RANK_VARIABLES, 0), (SIZE_VARIABLES, 1))
    )
    return rank, size


def has_nccl() -> bool:
    """Return whether CuPy, which a backend for GPUs has imported, has NCCL."""
    if "cupy" not in sys.modules:
        return False
    from cupy.cuda import nccl

    return bool(nccl.available)


def end_all_on_error(communicator: Communicator) -> None:
    """Let an uncaught exception end all processes, and a normal exit be one."""
    previous, monitor, process = sys.excepthook, communicator.monitor, os.getpid()

    def handle(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() != process:  # a forked child
            previous(kind, error, trace)
        elif isinstance(error, KeyboardInterrupt):  # of all processes, after the same step; else the monitor ends them
            monitor.close("was interrupted (KeyboardInterrupt)")
            if communicator.rank == 0:
                previous(kind, error, trace)
        else:
            if kind.__module__.startswith("mpi4py"):  # another process may have ended, which the monitor reports
                time.sleep(MPI_ERROR_SECONDS)
            monitor.fail(error)

    def signal_shell(name: str) -> None:
        """Send a signal to the shell of the launcher that runs this rank, if one does."""
        if os.environ.get("NEONLITE_SHELL") == str(os.getppid()):
            os.kill(os.getppid(), getattr(signal, name))

    signal_shell("SIGUSR1")
    atexit.register(signal_shell, "SIGUSR2")
    sys.excepthook = handle
    atexit.register(monitor.close)  # before the monitor's exit handler, as it is registered later
