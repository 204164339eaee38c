"""What is a user's own kernel?  An expression that joins the table of words, or a whole kernel that is a stage.

``be.elementwise_kernel`` and ``be.raw_kernel`` make ops of them, by ``be.define_op``.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

from neonlite.backend.cuda.kernels import THREADS, Launch, Layout
from neonlite.backend.cuda.words import MEMORY, OWN, REGISTER
from neonlite.backend.plan import Plan
from neonlite.ops import Op, Shape

RAW: dict[Op, Raw] = {}


def spell(op: Op, operation: str) -> None:
    """Enter an expression of x, y and T beside the table of words, as that of an op."""
    OWN[op] = re.sub(r"\b([xyT])\b", r"{\1}", operation)


def on_cards_only(name: str) -> Callable[..., Any]:
    """Return the value of an op that was given none for other runtimes: an error."""

    def run(xp: Any, *operands: Any) -> Any:
        raise NotImplementedError(
            f"be.{name} is a CUDA kernel, and cannot be worked out with {xp.__name__}: give it a function for other "
            "runtimes, run=lambda xp, x: ... in the words of the array-API standard"
        )

    return run


def blocks_for(z: Shape, *operands: Shape) -> tuple[Any, ...]:
    """Return the blocks that give each element of a result a thread, and how many elements it has."""
    n = math.prod(z)
    return -(-n // THREADS), n


class Raw:
    """The text of a kernel: ``extern "C" __global__ void name(T* z, const T* x, ..., long long n)``.

    Pointers come first: to the result, and to each operand. ``launch(z, x, y)`` is given their shapes and returns the
    blocks, a number or (x, y), and the numbers that follow the pointers. ValueError for a text that is not so.
    """

    def __init__(self, name: str, text: str, launch: Callable[..., tuple[Any, ...]] = blocks_for) -> None:
        self.name, self.text, self.launch = name, text, launch
        found = re.search(rf'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?{name}\(([^)]*)\)', text)
        parameters = [] if found is None else [part.strip() for part in found[1].split(",")]
        pointers = [part for part in parameters if "*" in part]
        if not 2 <= len(pointers) <= 3 or parameters[: len(pointers)] != pointers:
            raise ValueError(
                f'be.raw_kernel: the text has a kernel extern "C" __global__ void {name}(T* z, const T* x, ...) of the '
                f"result, one operand or two, and numbers; got {found[0] if found else text[:200]!r}"
            )
        self.arity, self.numbers = len(pointers) - 1, len(parameters) - len(pointers)

    def shared_out(self, *shapes: Shape) -> tuple[tuple[int, int], list[int | float]]:
        """Return the grid and the numbers for the shapes of the result and the operands; ValueError for too few."""
        blocks, *numbers = self.launch(*shapes)
        if len(numbers) != self.numbers:
            raise ValueError(
                f"be.{self.name}: its kernel takes {self.numbers} numbers behind the pointers, and launch() gives "
                f"{len(numbers)} behind the blocks: {numbers}"
            )
        grid = (blocks, 1) if isinstance(blocks, int) else tuple(blocks)
        return grid, [x if isinstance(x, float) else int(x) for x in numbers]


class Own:
    """A stage that is a user's kernel: ``source()`` and ``launches()`` as a ``Kernel`` has them."""

    work = 0

    def __init__(self, plan: Plan, v: int, runtime: Any) -> None:
        self.v, self.runtime, self.step = v, runtime, plan.made(v)
        self.raw = RAW[self.step.op]

    def source(self, name: str = "kernel") -> str:
        """Return the text of the kernel, with types in the places of T, in memory, and Wide, to compute with."""
        text = re.sub(rf"\b{self.raw.name}\b", name, self.raw.text.strip() + "\n")
        text = re.sub(r"\bWide\b", REGISTER[self.step.dtype], text)
        return re.sub(r"\bT\b", MEMORY[self.step.dtype], text)

    def legend(self, named: Callable[[int], str]) -> Iterator[str]:
        """Yield what each pointer is, in the words of ``named``."""
        operands = [x for x in self.step.ins if isinstance(x, int)]
        yield from (f"{name}: {named(v)}" for name, v in zip("zxy", [self.v, *operands], strict=False))

    def launches(self, values: dict[int, Any], layout: Layout, work: int) -> Iterator[Launch]:
        """Yield (source, grid, arguments); operands that are views with gaps are copied first."""
        arrays = [values[v] for v in (self.v, *self.step.ins)]  # type: ignore[index]
        for n, x in enumerate(arrays):
            if layout(x)[1] != dense(x):
                arrays[n] = self.runtime.xp.empty(x.shape, dtype=x.dtype)
                self.runtime.driver.call(operator.setitem, arrays[n], ..., x)  # again when it is replayed
        grid, numbers = self.raw.shared_out(*(tuple(x.shape) for x in arrays))
        if math.prod(grid):
            yield self.source(), grid, THREADS, [*(layout(x)[0] for x in arrays), *numbers]


def dense(array: Any) -> tuple[int, ...]:
    """Return the strides, in bytes, of an array without gaps."""
    sizes = [array.itemsize]
    for n in array.shape[:0:-1]:
        sizes.append(sizes[-1] * n)
    return tuple(sizes[::-1])
