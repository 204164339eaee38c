"""Backend utilities: timing marks, copy_transpose, memory, and neon's methods for several devices."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from neonlite.backend.memory import DeviceMemory, MemoryUsage
from neonlite.backend.runtimes.meta import MetaRuntime
from neonlite.backend.tensor import Tensor
from neonlite.messages import describe
from neonlite.optree import Operand

if TYPE_CHECKING:
    from neonlite.backend.backend import Backend
    from neonlite.backend.shard import Shard


class Mark:
    """A timing mark: the clock in seconds, None until recorded."""

    seconds: float | None = None


# --- timing ---


def init_mark(be: Backend) -> Mark:
    """Create a timing mark.

    Returns
    -------
    Mark
        A mark for ``record_mark``.
    """
    return Mark()


def record_mark(be: Backend, marker: Mark) -> None:
    """Record the time at which all work so far is finished.

    Parameters
    ----------
    marker : Mark
        The mark.
    """
    be.runtime.synchronize()
    marker.seconds = time.perf_counter()


def synchronize_mark(be: Backend, marker: Mark) -> None:
    """Wait until the work before a mark is finished.

    Parameters
    ----------
    marker : Mark
        A recorded mark.
    """
    be.runtime.synchronize()


def get_time(be: Backend, start: Mark, end: Mark) -> float:
    """Return the time between two marks.

    Parameters
    ----------
    start, end : Mark
        Recorded marks.

    Returns
    -------
    float
        Milliseconds.

    Raises
    ------
    ValueError
        A mark is not recorded.
    """
    if start.seconds is None or end.seconds is None:
        raise ValueError("be.get_time: expected two recorded marks, got one that is not. Call be.record_mark first.")
    return (end.seconds - start.seconds) * 1e3


# --- copies and devices ---


def copy_transpose(be: Backend, a: Tensor, out: Tensor, axes: Sequence[int] | None = None, repeat: int = 1) -> Tensor:
    """Copy a tensor with its axes in another order.

    Parameters
    ----------
    a : Tensor
        The tensor.
    out : Tensor
        The target, of as many elements.
    axes : sequence of int, optional
        For each axis of the result, the axis of ``a``; default reversed.
    repeat : int
        How many times to copy, for benchmarks; default 1.

    Returns
    -------
    Tensor
        ``out``.
    """
    value = be.transpose(a, list(range(a.ndim))[::-1] if axes is None else list(axes))
    if value.shape != out.shape and a.size == out.size:
        value = be.reshape(value, out.shape)
    for _ in range(repeat):
        out[:] = value
    return out


def distribute_data(be: Backend, tensor: Tensor, layer_parallelism: str) -> Tensor:
    """Return the part of an activation or error tensor that a layer of this process needs.

    Without ``Communicator.sharded``, there is one process, and this is the tensor itself.

    Parameters
    ----------
    tensor : Tensor
        The columns (F, n) of this process, or (F, N) of all processes.
    layer_parallelism : str
        "Data": the columns of this process. "Disabled" or "Unknown": the columns of all processes.

    Returns
    -------
    Tensor
        The tensor if it has these columns, else a view of it or a new tensor.

    Raises
    ------
    ValueError
        The parallelism is another one, such as "Model", or the tensor has another number of columns.
    """
    if (shard := be.minibatch_shard) is None:
        return tensor
    if layer_parallelism not in ("Data", "Disabled", "Unknown"):
        raise ValueError(
            f"be.distribute_data: expected the parallelism 'Data', 'Disabled' or 'Unknown', got {layer_parallelism!r}"
        )
    to_all = layer_parallelism != "Data"
    result = convert_columns(be, shard, tensor, to_all)
    if result is not tensor:
        be.distributed[id(result)] = result
    return result


def revert_tensor(be: Backend, tensor: Tensor) -> Tensor:
    """Return a result of ``distribute_data`` with the columns that its argument had.

    Parameters
    ----------
    tensor : Tensor
        The tensor.

    Returns
    -------
    Tensor
        The tensor itself if ``distribute_data`` returned its argument, else a new one.
    """
    shard = be.minibatch_shard
    if shard is None or be.distributed.get(id(tensor)) is not tensor:
        return tensor
    return convert_columns(be, shard, tensor, to_all=tensor.shape[1] != shard.total)


def convert_columns(be: Backend, shard: Shard, tensor: Tensor, to_all: bool) -> Tensor:
    """Return the columns of all processes, or of this one, of a tensor with the others; or the tensor itself."""
    local, columns = shard.stop - shard.start, tensor.shape[1]
    if columns == (shard.total if to_all else local):
        return tensor
    if columns != (local if to_all else shard.total):
        raise ValueError(
            f"be.distribute_data: expected {local} columns, or {shard.total} of all processes, got {describe(tensor)}"
        )
    if not to_all:
        return tensor[:, shard.start : shard.stop]
    return be.array(np.concatenate(shard.communicator.all_gather_objects(tensor.get()), axis=1), tensor.info.dtype)


# --- memory and generated code ---


def memory(be: Backend) -> MemoryUsage:
    """Return the memory that the backend has allocated.

    Returns
    -------
    MemoryUsage
        Bytes of tensors, of the arena of op-trees and of workspaces, and their peak.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.Backend.allocate_backend("cpu")
    >>> x = be.zeros((1000, 250))
    >>> print(be.memory())
    1 MB: tensors 1 MB, arena 0 B, workspaces 0 B; peak 1 MB
    """
    return be.memory_tracker.usage()


def device_memory(be: Backend) -> DeviceMemory | None:
    """Return the free and total memory of the device; ``be.memory()`` is what this backend has allocated.

    Returns
    -------
    DeviceMemory or None
        Free and total bytes; None for the host.
    """
    info = be.runtime.mem_get_info()
    return None if info is None else DeviceMemory(*info)


def reset_peak(be: Backend) -> None:
    """Reset the peak of ``memory()`` to the bytes allocated now."""
    be.memory_tracker.reset_peak()


def dry_run(be: Backend) -> Backend:
    """Return a backend like this one that counts memory and FLOPs, and computes and allocates nothing.

    Returns
    -------
    Backend
        A backend on which every value reads as 0, and that counts ``flops``.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu").dry_run()
    >>> y = be.dot(be.zeros((100_000, 100_000)), be.zeros((100_000, 100_000))).astensor()
    >>> print(be.memory().peak, be.flops)
    120000000000 2000000000000000
    """
    runtime = MetaRuntime(be.runtime, repr(be))
    dry_run = type(be)(runtime, be.rng_seed, be.default_dtype_name, be.compat_mode, be.deterministic, be.bsz)
    dry_run.hist_bins, dry_run.hist_offset = be.hist_bins, be.hist_offset
    dry_run.rng_set_state(be.rng_get_state())
    return dry_run


def kernel(be: Backend, *trees: Operand, out: Tensor | Sequence[Tensor] | None = None) -> str:
    """Return the source of the CUDA kernels that evaluate op-trees, on any runtime, also without a GPU.

    Parameters
    ----------
    *trees : OpTreeNode
        The op-trees.
    out : Tensor or sequence of Tensor, optional
        The targets, as for ``plan``.

    Returns
    -------
    str
        CUDA C++ source.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> x = be.ones((100, 64), name="x")
    >>> print(be.kernel(1 / (1 + be.exp(-x))).split("---")[-1])  # without the preamble
    <BLANKLINE>
    // x0: x (100, 64) float32
    // y0: div of stage 1 (100, 64) float32
    // y0 = (1 / (1 + exp(neg(x0))))
    extern "C" __global__ void __launch_bounds__(256) stage_1(
        const float* x0, float* y0, long long I)
    {
        ...
            const Pack<float, V> x0s = load<V>(x0 + i);
            Pack<float, V> y0s;
            #pragma unroll
            for (int q = 0; q < V; ++q) {
                const float v0 = -x0s.at[q];  // neg
                const float v1 = expf(v0);  // exp
                const float v2 = 1.0f + v1;  // add
                const float v3 = 1.0f / v2;  // div
                y0s.at[q] = v3;
            }
            store(y0 + i, y0s);
        }
    }
    <BLANKLINE>
    """
    from neonlite.backend.runtimes.cuda.executor import plan_source

    return plan_source(be.plan(*trees, out=out))
