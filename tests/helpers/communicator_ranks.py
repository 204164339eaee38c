"""Scenarios that the ranks of tests/distributed/test_communicator.py run; each function returns results of its rank."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from helpers.data_parallel import EPOCHS, TOTAL, optimizer, problem
from helpers.mpi import main
from helpers.runtimes import new_backend
from helpers.standin_cupy import LOG, log
from neonlite import cleanup_backend, gen_backend
from neonlite.callbacks import CallbackBase
from neonlite.distributed import NcclCommunicator, communicator
from neonlite.distributed.optimizer import GradientReducer
from neonlite.models import Model

RUNTIMES = ["cpu", "mkl", "torch", "strict"]
DTYPES = ["float32", "float64", "float16", "int8", "uint8", "int32", "int64"]
# 64 kB are 16384 float32: below, equal to and above it, below and above twice of it, not divisible by 2, 3 or 4
SIZES = [1, 5, 12, 1000, 16384, 16385, 40001]


def values(rank: int, size: int, dtype: str) -> Any:
    """Return the array of a rank: floats of very different sizes, whose sums depend on the order."""
    rng = np.random.default_rng([rank, size])
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 20, size).astype(dtype)
    scale = 2.0 ** rng.integers(-4, 4, size)
    return (rng.normal(size=size) * scale).astype(dtype)


def arrays(comm, folder):
    """Sum, broadcast and gather NumPy arrays."""
    result = {}
    for dtype in DTYPES:
        for size in SIZES if dtype in ("float32", "float64", "float16") else SIZES[:4]:
            for deterministic in (False, True):
                x = values(comm.rank, size, dtype)
                assert comm.all_reduce(x, deterministic) is x
                result["sum", dtype, size, deterministic] = x
        x = values(comm.rank, 1000, dtype)
        assert comm.broadcast(x, comm.size - 1) is x
        result["broadcast", dtype] = x
        result["gathered", dtype] = comm.all_gather(values(comm.rank, 12, dtype).reshape(3, 4)[:, ::2])
    return result


def compressed(comm, folder):
    """Sum gradients that are sent as bfloat16: long ones, those of 64 KB, and values that are not finite."""
    result = {}
    for compress in (True, False):
        comm.compress_gradients = compress
        for dtype in ("float32", "float64", "float16"):
            for size in (100, 16385, 2_500_000):
                x = values(comm.rank, size, dtype)
                assert comm.sum_gradients(x) is x
                result[compress, dtype, size] = x
    comm.compress_gradients = True
    x = np.ones(20_000, np.float32)
    x[:2] = [np.nan, np.inf][comm.rank % 2], np.inf
    x[2:3].view(np.uint32)[:] = 0x7FFFFFFF  # NaN
    result["not finite"] = comm.sum_gradients(x)
    comm.compress_gradients = False
    return result


def views(comm, folder):
    """Sum and broadcast arrays that are not contiguous, of several dimensions, of none, and empty."""
    result = {}
    for deterministic in (False, True):
        whole = values(comm.rank, 60, "float32").reshape(6, 10)
        for part in (whole[::2, 1::3], whole[1:3].T, whole[5, ::-1]):
            comm.all_reduce(part, deterministic)
        result["sum", deterministic] = whole
        scalar, empty = np.array(comm.rank + 1.0), np.empty((0, 3))
        assert comm.all_reduce(scalar, deterministic) is scalar
        assert comm.all_reduce(empty, deterministic) is empty
        result["scalar", deterministic] = scalar
    whole = values(comm.rank, 60, "float64").reshape(6, 10)
    comm.broadcast(whole[::2, ::3], root=1)
    comm.broadcast(np.empty((0, 3)))
    result["broadcast"] = whole
    result["flags"] = comm.broadcast(np.array([comm.rank == 1, True]), root=1)
    result["no elements"] = comm.all_gather(np.empty((2, 0))).shape
    return result


def tensors(comm, folder):
    """Sum and broadcast tensors, and parts of them, on every runtime."""
    result = {}
    for runtime in RUNTIMES:
        try:
            be = new_backend(runtime)
        except ImportError:
            continue
        for dtype in ("float32", "float64", "float16"):
            if dtype not in be.runtime.dtypes:
                continue
            for deterministic in (False, True):
                x = be.array(values(comm.rank, 60, dtype).reshape(6, 10), dtype=dtype)
                assert comm.all_reduce(x, deterministic) is x
                assert x.info.dtype == dtype
                result[runtime, "sum", dtype, deterministic] = x.get()
            parts = be.array(values(comm.rank, 60, dtype).reshape(6, 10), dtype=dtype)
            comm.all_reduce(parts[:, 2:5], True)
            comm.all_reduce(parts[1:2].T, True)
            comm.broadcast(parts[3:5, 6:], root=1)
            result[runtime, "parts", dtype] = parts.get()
    return result


def shared_memory():
    """Return the names of MPICH's files in shared memory that this process has mapped."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return sorted({line.partition("/dev/shm/")[2] for line in lines if "/dev/shm/mpich_" in line})


def objects(comm, folder):
    value = {"rank": comm.rank, "list": [None, "text", comm.rank / 7]}
    return {
        "identity": (comm.rank, comm.size, comm.local_rank, type(comm).__name__, repr(comm)),
        "broadcast": [comm.broadcast_object(value, root) for root in range(comm.size)],
        "gathered": comm.all_gather_objects(value),
        "duplicate": comm.duplicate().all_reduce(np.array([comm.rank])).tolist(),
        "world": communicator.world() is comm,
        "shared memory": shared_memory(),
    }


def barriers(comm, folder):
    """Write a file before a barrier, rank 0 late; return the files that there are after it."""
    import time

    if comm.rank == 0:
        time.sleep(0.3)
    (folder / f"barrier-{comm.rank}-of-{comm.size}").touch()
    comm.barrier()
    return sorted(path.name for path in folder.glob(f"barrier-*-of-{comm.size}"))


def refused(comm, folder):
    """Pass what is neither a tensor nor an array."""
    messages = []
    for method in (comm.all_reduce, comm.broadcast):
        try:
            method([1.0, 2.0])
        except TypeError as error:
            messages.append(str(error))
    return messages


# --- NCCL ----------------------------------------------------------------------------------------------------------

NCCL_DTYPES = {"FLOAT16": 6, "FLOAT32": 7, "FLOAT64": 8, "INT8": 0, "UINT8": 1, "INT32": 2, "UINT32": 3, "INT64": 4}


class FakeNcclCommunicator:
    """The interface of ``cupy.cuda.nccl.NcclCommunicator``, over MPI, on the memory of the stand-in for CuPy."""

    calls: list[str] = []  # noqa: RUF012 - shared by all

    def __init__(self, size: int, unique_id: object, rank: int) -> None:
        from mpi4py import MPI

        assert unique_id == ("id of rank 0",)
        self.comm = MPI.COMM_WORLD.Dup()
        assert (size, rank) == (self.comm.size, self.comm.rank)

    def memory(self, pointer: int, count: int, dtype: int) -> Any:
        name = next(name for name, code in NCCL_DTYPES.items() if code == dtype).lower()
        nbytes = count * np.dtype(name).itemsize
        return np.frombuffer((ctypes.c_char * nbytes).from_address(pointer), name)

    def record(self, name: str, stream: int) -> None:
        self.calls.append(name)
        log(name, stream)

    def bcast(self, pointer: int, count: int, dtype: int, root: int, stream: int) -> None:
        self.record("bcast", stream)
        self.comm.Bcast(self.memory(pointer, count, dtype), root)

    def allReduce(self, source: int, target: int, count: int, dtype: int, op: int, stream: int) -> None:
        assert op == 0
        assert dtype != NCCL_DTYPES["FLOAT16"]
        self.record("allReduce", stream)
        sent = self.memory(source, count, dtype).copy()
        self.comm.Allreduce(sent, self.memory(target, count, dtype))

    def allGather(self, source: int, target: int, count: int, dtype: int, stream: int) -> None:
        self.record("allGather", stream)
        sent = self.memory(source, count, dtype).copy()
        self.comm.Allgather(sent, self.memory(target, count * self.comm.size, dtype))


@contextmanager
def fake_nccl():
    """Install the stand-in for CuPy with a module ``cupy.cuda.nccl``."""
    from helpers.standin_cupy import installed

    os.environ["NEONLITE_KERNELS"] = "0"
    module: Any = ModuleType("cupy.cuda.nccl")
    module.available, module.NCCL_SUM, module.NcclCommunicator = True, 0, FakeNcclCommunicator
    module.groupStart, module.groupEnd = (partial(log, name, 0) for name in ("groupStart", "groupEnd"))
    module.get_unique_id = lambda: ("id of rank 0",)
    vars(module).update({f"NCCL_{name}": code for name, code in NCCL_DTYPES.items()})
    with installed():
        import cupy

        cupy.cuda.nccl = sys.modules["cupy.cuda.nccl"] = module
        try:
            yield
        finally:
            cleanup_backend()
            sys.modules.pop("cupy.cuda.nccl", None)


def sum_and_log(gpus):
    """Return what the streams do for a sum and a copy."""
    be = new_backend("gpu")
    x = be.array(np.ones((6, 10), np.float32))
    start = len(LOG)
    gpus.all_reduce(x)
    gpus.broadcast(x, 1)
    cleanup_backend()
    return LOG[start:]


def overlapped_step(gpus):
    """Return what the streams and the layers do in the last step of a training with a bucket for each layer."""
    from neonlite.models import data_parallel

    gen_backend("gpu", rng_seed=7, batch_size=TOTAL // gpus.size)
    layers, dataset, cost = problem("mlp")
    model, original = Model(layers), data_parallel.GradientReducer
    gpus.overlap, data_parallel.GradientReducer = True, partial(GradientReducer, bucket_bytes=1)
    try:
        model.initialize(dataset, cost)
        for layer in model.layers.layers:

            def bprop(*args, wrapped=layer.bprop, **options):
                log("bprop", 0)
                return wrapped(*args, **options)

            layer.bprop = bprop
        record = RecordStep()
        model.fit(dataset, cost, optimizer("sgd"), 1, record, distributed=gpus, cuda_graphs=False)
    finally:
        gpus.overlap, data_parallel.GradientReducer = False, original
    weights = model.get_weights()
    cleanup_backend()
    return record.step, weights


class RecordStep(CallbackBase):
    """Records what the streams and the layers do in the last step."""

    def on_minibatch_begin(self, epoch, minibatch):
        LOG.clear()

    def on_minibatch_end(self, epoch, minibatch):
        self.step = LOG[:]


def nccl(comm, folder):
    """Sum tensors of the stand-in, and train on it."""
    from mpi4py import MPI

    result: dict[Any, Any] = {}
    with fake_nccl():
        gpus = NcclCommunicator(MPI.COMM_WORLD)
        be = new_backend("gpu")
        for dtype in ("float32", "float64", "float16", "int32", "int16"):
            for deterministic in (False, True):
                FakeNcclCommunicator.calls.clear()
                x = be.array(values(comm.rank, 60, dtype).reshape(6, 10), dtype=dtype)
                assert gpus.all_reduce(x, deterministic) is x
                result["sum", dtype, deterministic] = x.get(), FakeNcclCommunicator.calls[:]
        FakeNcclCommunicator.calls.clear()
        x = be.array(values(comm.rank, 60, "float32").reshape(6, 10))
        gpus.all_reduce(x[:, 2:5], True)
        gpus.broadcast(x[3:5, 6:], 1)
        host = gpus.all_reduce(values(comm.rank, 12, "float32"))
        result["by MPI"] = x.get(), host, FakeNcclCommunicator.calls[:]
        cleanup_backend()
        for deterministic in (False, True):
            FakeNcclCommunicator.calls.clear()
            gen_backend("gpu", rng_seed=7, batch_size=TOTAL // comm.size, deterministic=deterministic)
            layers, dataset, cost = problem("partial")
            model = Model(layers)
            model.fit(dataset, cost, optimizer("sgd"), EPOCHS["partial"], distributed=gpus)
            result["fit", deterministic] = model.get_weights(), set(FakeNcclCommunicator.calls)
            cleanup_backend()
        result["order"] = sum_and_log(gpus)
        result["overlap"], result["overlap, weights"] = overlapped_step(gpus)
        for gpus.shard_states in (False, True):
            start = len(LOG)
            gen_backend("gpu", rng_seed=7, batch_size=TOTAL // comm.size)
            layers, dataset, cost = problem("mlp")
            model = Model(layers)
            model.fit(dataset, cost, optimizer("adam"), 2, distributed=gpus)
            result["states", gpus.shard_states] = model.get_weights(), LOG[start:].count(("bcast", "own"))
            cleanup_backend()
        gpus.monitor.close()
    return result


if __name__ == "__main__":
    main(globals())
