"""User kernels: CUDA expressions (``be.elementwise_kernel``) and whole CUDA kernels (``be.raw_kernel``) as ops."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

from neonlite.backend.planning.plan import Plan
from neonlite.backend.runtimes.cuda.codegen import THREADS_PER_BLOCK, AddressFunction, Launch
from neonlite.backend.runtimes.cuda.op_templates import COMPUTE_TYPES, STORAGE_TYPES, USER_TEMPLATES
from neonlite.ops import Op
from neonlite.ops.shapes import Shape
from neonlite.typing import NativeArray

RAW_KERNELS: dict[Op, RawKernel] = {}


def register_expression(op: Op, expression: str) -> None:
    """Register an expression of x, y and T as the template of an op."""
    USER_TEMPLATES[op] = re.sub(r"\b([xyT])\b", r"{\1}", expression)


def gpu_only_run(name: str) -> Callable[..., Any]:
    """Return a function for ``define_op(run=...)`` that raises NotImplementedError on runtimes without kernels."""

    def run(xp: Any, *operands: Any) -> Any:
        raise NotImplementedError(
            f"be.{name}: expected a GPU runtime, got {xp.__name__}. Pass run=lambda xp, x: ... with array-API "
            "functions to support other runtimes"
        )

    return run


def default_launch(z: Shape, *operands: Shape) -> tuple[Any, ...]:
    """Return the number of blocks for one thread per element of the result, and the number of elements."""
    n = math.prod(z)
    return -(-n // THREADS_PER_BLOCK), n


class RawKernel:
    """The source of a kernel: ``extern "C" __global__ void name(T* z, const T* x, ..., long long n)``.

    Pointers come first: the result, then each operand. ``launch(z, x, y)`` receives their shapes and returns the number
    of blocks (an integer or a pair) and the scalars after the pointers. ValueError for a source with another signature.
    """

    def __init__(self, name: str, source: str, launch: Callable[..., tuple[Any, ...]] = default_launch) -> None:
        self.name, self.source, self.launch = name, source, launch
        match = re.search(rf'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?{name}\(([^)]*)\)', source)
        parameters = [] if match is None else [part.strip() for part in match[1].split(",")]
        pointers = [part for part in parameters if "*" in part]
        if not 2 <= len(pointers) <= 3 or parameters[: len(pointers)] != pointers:
            raise ValueError(
                f'be.raw_kernel: expected extern "C" __global__ void {name}(T* z, const T* x, ...) with pointers to '
                f"the result and to one or two operands, then scalars, got {match[0] if match else source[:200]!r}"
            )
        self.arity, self.num_scalars = len(pointers) - 1, len(parameters) - len(pointers)

    def launch_config(self, *shapes: Shape) -> tuple[tuple[int, int], list[int | float]]:
        """Return the grid and the scalars for the shapes of the result and the operands."""
        blocks, *scalars = self.launch(*shapes)
        if len(scalars) != self.num_scalars:
            raise ValueError(
                f"be.{self.name}: expected {self.num_scalars} scalars from launch_config() after the number of "
                f"blocks, as the kernel's signature has, got {len(scalars)}: {scalars}"
            )
        grid = (blocks, 1) if isinstance(blocks, int) else tuple(blocks)
        return grid, [x if isinstance(x, float) else int(x) for x in scalars]


class UserKernel:
    """A stage that is a user's raw kernel, with the interface of ``FusedKernel``."""

    workspace_bytes = 0

    def __init__(self, plan: Plan, v: int, runtime: Any) -> None:
        self.v, self.runtime, self.step = v, runtime, plan.step_of(v)
        self.raw_kernel = RAW_KERNELS[self.step.op]

    def source(self, name: str = "kernel") -> str:
        """Return the source, with T replaced by the type in memory and Compute by the type in registers."""
        text = re.sub(rf"\b{self.raw_kernel.name}\b", name, self.raw_kernel.source.strip() + "\n")
        text = re.sub(r"\bCompute\b", COMPUTE_TYPES[self.step.dtype], text)
        return re.sub(r"\bT\b", STORAGE_TYPES[self.step.dtype], text)

    def argument_comments(self, describe: Callable[[int], str]) -> Iterator[str]:
        """Yield a comment for each pointer; ``describe`` returns the description of a value."""
        operands = [x for x in self.step.inputs if isinstance(x, int)]
        yield from (f"{name}: {describe(v)}" for name, v in zip("zxy", [self.v, *operands], strict=False))

    def launches(self, values: dict[int, NativeArray], address_of: AddressFunction, workspace: int) -> Iterator[Launch]:
        """Yield (source, grid, threads, arguments). Operands that are not contiguous are copied first."""
        arrays = [values[v] for v in (self.v, *self.step.inputs)]  # type: ignore[index]
        for n, x in enumerate(arrays):
            if address_of(x)[1] != contiguous_strides(x):
                arrays[n] = self.runtime.xp.empty(x.shape, dtype=x.dtype)
                self.runtime.driver.run(
                    operator.setitem, arrays[n], ..., x
                )  # through the driver, so that a captured graph repeats it
        grid, scalars = self.raw_kernel.launch_config(*(tuple(x.shape) for x in arrays))
        if math.prod(grid):
            yield self.source(), grid, THREADS_PER_BLOCK, [*(address_of(x)[0] for x in arrays), *scalars]


def contiguous_strides(array: NativeArray) -> tuple[int, ...]:
    """Return the strides in bytes of a C-contiguous array of the same shape."""
    sizes = [array.itemsize]
    for n in array.shape[:0:-1]:
        sizes.append(sizes[-1] * n)
    return tuple(sizes[::-1])
