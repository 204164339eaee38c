"""Backends of a simulated GPU that record their launches or use a stand-in for cuDNN, and their reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ml_dtypes  # noqa: F401 (registers bfloat16 with NumPy)
import numpy as np

from helpers import op_cases
from helpers.standin_cudnn import Frontend
from neonlite import Backend
from neonlite.backend.runtimes import cuda as images
from neonlite.backend.runtimes.base import ReferenceExecutor
from neonlite.backend.runtimes.cuda import codegen as kernels_module, kernels
from neonlite.backend.runtimes.cuda.convolution import IM2COL_KERNEL, Cudnn, reorder_kernel
from neonlite.backend.runtimes.cuda.libraries import GemmDesc
from neonlite.backend.runtimes.cuda.op_templates import OP_TEMPLATES
from neonlite.backend.runtimes.cuda.simulator import SimulatedDriver, SimulatedGPU
from neonlite.backend.runtimes.numpy import NumPyRuntime
from neonlite.ops import OPS
from neonlite.typing import FLOAT_DTYPES, INT_DTYPES


class OpByOp(NumPyRuntime):
    """The reference: NumPy arrays, op by op. bfloat16 results are computed in float32 and rounded by ml_dtypes."""

    name = "op by op"
    executor: Any = ReferenceExecutor
    dtypes = (*NumPyRuntime.dtypes, "bfloat16")


class Counting(SimulatedDriver):
    """A driver that records its launches and matrix products."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, tuple[int, int]]] = []
        self.products: list[tuple[int, int, int]] = []  # (m, n, k)

    def compile(self, source: str) -> Any:
        return source, super().compile(source)

    def launch(self, kernel: Any, grid: tuple[int, int], block: int, arguments: Sequence[int | float]) -> None:
        self.ran.append((kernel[0].removeprefix(kernels_module.PREAMBLE).strip(), grid))
        super().launch(kernel[1], grid, block, arguments)

    def gemm(self, form: GemmDesc, alpha: float, beta: float) -> bool:
        self.products.append((form.m, form.n, form.k))
        return super().gemm(form, alpha, beta)


def simulated(default_dtype: str = "float32") -> Backend:
    be = Backend(SimulatedGPU(), rng_seed=1, default_dtype=default_dtype)
    be.runtime.driver = be._executor.driver = Counting()
    return be


def ran(be: Backend) -> list[tuple[str, tuple[int, int]]]:
    """Return the launches since the last call."""
    launches, be.runtime.driver.ran = be.runtime.driver.ran, []
    return launches


CLOSE = {"float16": 2e-3, "bfloat16": 2.0**-6, "float32": 2e-6, "float64": 1e-14}


def copied(be: Backend, x: Any, view: Callable[[Any], Any], shape: tuple[int, ...]) -> Any:
    """Return the values of x in a view of a larger tensor, all of whose other elements are 77."""
    target = view(be.zeros(shape, x.info.dtype).fill(77))
    target[:] = x
    return target


def doubled(be: Backend, x: Any) -> Any:
    return copied(be, x, lambda t: t[tuple(slice(1, None, 2) for _ in x.shape)], tuple(2 * n + 1 for n in x.shape))


LAYOUTS: dict[str, Callable[[Backend, Any], Any]] = {
    "whole": lambda be, x: x,
    "transposed": lambda be, x: copied(be, x, lambda t: t.T, (*x.shape[:-2], x.shape[-1], x.shape[-2])),
    "strided": doubled,
    "backwards": lambda be, x: copied(be, x, lambda t: t[(slice(None, None, -1),) * x.ndim], x.shape),
    "misaligned": lambda be, x: copied(be, x, lambda t: t[1:].reshape(x.shape), (x.size + 1, 1)),
    "part of rows": lambda be, x: copied(be, x, lambda t: t[..., 1:-2], (*x.shape[:-1], x.shape[-1] + 3)),
}


def numbers(*shape: int, seed: int = 0, low: float = -3, high: float = 3) -> Any:
    return np.random.default_rng(seed).uniform(low, high, shape)


def elementwise(be: Backend, x: Any, y: Any, positive: Any, names: Iterable[str] = OP_TEMPLATES) -> dict[str, Any]:
    """Return a tree for each op, by default those with a template, that the dtype has without an error."""
    trees, whole = {}, x.info.dtype not in FLOAT_DTYPES
    for name in names:
        op = OPS[name]
        a = positive if op.sample_range[0] > 0 else x
        more = {1: (), 2: (positive if op.sample_range[0] > 0 or name == "shift" else y,), 3: (y, positive)}[op.arity]
        if op.integers_only and not whole:
            a, *more = (be.astype(x, "int32") for x in (a, *more))
        if name == "cast":
            trees |= {f"to {to}": be.astype(x, to) for to in (*FLOAT_DTYPES, *INT_DTYPES) if to != x.info.dtype}
        elif name == "pow" and whole:
            trees |= {f"to the {n}": a**n for n in (0, 1, 2, 3, 5)}
        elif name == "shift":
            trees |= {"shift": be.shift(a, *more), "shift by": be.shift(x, y, value=False)}
        else:
            trees[name] = op_cases.call(be, name, [a, *more], {})
    trees |= {"a number": x * 2.5 - 3 + 100, "a small one": 2 - x, "powers": positive**2 + positive**1}
    return trees


def standardized(be: Any, x: Any, axis: Any) -> Any:
    far = x - be.mean(x, axis=axis)
    return (x - be.mean(x, axis=axis)) / be.sqrt(be.mean(far * far, axis=axis) + 1e-5)


class ByCudnn(SimulatedDriver):
    """A driver with a stand-in for cuDNN; ``times`` are the measured times of its plans."""

    def __init__(self, frontend: Frontend | None = None) -> None:
        self.tf32, self.stream, self.times = False, 1, iter([3.0, 1.0, 2.0])
        self.cudnn = Cudnn(frontend or Frontend(), lambda: self.stream, lambda f: (f(), next(self.times))[1])


def by_cudnn(frontend: Frontend | None = None) -> tuple[Backend, Frontend]:
    be = Backend(SimulatedGPU())
    be.runtime.driver = driver = ByCudnn(frontend)
    return be, driver.cudnn.frontend


def texts() -> dict[str, tuple[str, dict[str, str]]]:
    """Return the source of every kernel, and the types that it takes besides the dtype."""
    return {
        **{
            f"pool {op}": (text, {"Out": "{dtype}", "ArgIndex": "uint8"})
            for op, text in images.POOL_FPROP_SOURCES.items()
        },
        **{f"pool {op} back": (text, {"ArgIndex": "int32"}) for op, text in images.POOL_BPROP_SOURCES.items()},
        "columns": (IM2COL_KERNEL, {}),
        "sums by place": (kernels.SCATTER_KERNEL, {}),
        "sums of segments": (kernels.SEGMENT_SUM_KERNEL, {}),
        "indices in order": (kernels.RANK_SORT_KERNEL, {}),
        "regions": (kernels.ROI_POOL_KERNEL, {"ArgIndex": "int32"}),
        "lrn": (images.LRN_FPROP, {}),
        "lrn back": (images.LRN_BPROP, {}),
        "turn": (reorder_kernel((1, 2)), {}),
    }
