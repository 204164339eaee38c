"""How does a primitive run a kernel of its own?  By a text for all dtypes, of which a few lines before it tell one.

The texts are CUDA, written by hand. ``Element`` is what lies in memory, ``Wide`` what is computed with: float for
halves. A thread takes V elements side by side, which are images of one pixel: N lies innermost, so threads side by
side read memory side by side.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from neonlite.backend.cuda.blas import CardProducts
from neonlite.backend.cuda.kernels import BLOCKS, PREAMBLE, THREADS
from neonlite.backend.cuda.words import MEMORY, REGISTER, fill
from neonlite.backend.primitives.generic import Generic
from neonlite.backend.primitives.numpy_ import InPlace

HEAD = """
typedef {Element} Element;  // in memory
typedef {Wide} Wide;  // in registers
typedef {Index} Index;  // a parameter takes the low bytes of an argument, which has 64 bits
constexpr int V = {V};  // elements side by side, for one thread at once
#define EACH(i, size) \\
    Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < size; i += (Index)gridDim.x * blockDim.x * V
"""

WORKSPACE = 1 << 28  # bytes that a convolution may work in, unless NEONLITE_WORKSPACE says another number

Arguments = Sequence[Any]  # arrays, None for none, and numbers


def kernels_are_on() -> bool:
    """Tell whether kernels may run: ``NEONLITE_KERNELS=0`` in the environment works everything out without them."""
    return os.environ.get("NEONLITE_KERNELS") != "0"


def workspace() -> int:
    """Return how many bytes a convolution may work in."""
    given = os.environ.get("NEONLITE_WORKSPACE") or str(WORKSPACE)
    if not given.isdecimal():
        raise ValueError(f"NEONLITE_WORKSPACE is a number of bytes; got {given!r}")
    return int(given)


def source(text: str, dtype: str, V: int = 1, large: bool = False, **types: str) -> str:
    """Return the kernel for a dtype; ``large``: places are counted in 64 bits; ``types``: dtypes of other names."""
    index = "long long" if large else "int"
    head = fill(HEAD, Element=MEMORY[dtype], Wide=REGISTER[dtype], Index=index, V=str(V))
    more = "".join(f"typedef {MEMORY[t]} {name};\n" for name, t in types.items())
    return f"{PREAMBLE}{head}{more}{text}"


class Launching(CardProducts, Generic):
    """Primitives on a card; the runtime brings the driver."""

    scratch: Any = InPlace.scratch  # buffers that are kept

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        self.compiled: dict[Any, Any] = {}

    def over(self, text: str, like: Any, size: int, row: int, arguments: Arguments, **types: str) -> None:
        """Run a kernel over elements of the dtype of ``like``, several at once where rows and memory allow it."""
        V = 16 // like.dtype.itemsize
        alike = [x for x in arguments if hasattr(x, "dtype") and x.dtype == like.dtype]
        if row % V or any(self.runtime.layout(x)[0] % 16 for x in alike):
            V = 1
        if size:
            self.launch(text, str(like.dtype), (min(-(-size // (THREADS * V)), BLOCKS), 1), arguments, V, **types)

    def launch(
        self, text: str, dtype: str, grid: tuple[int, int], arguments: Arguments, V: int = 1, **types: str
    ) -> None:
        """Run a kernel on a grid of blocks of 256 threads. In a rehearsal there is no driver, and nothing to do."""
        if (driver := getattr(self.runtime, "driver", None)) is None:
            return
        large = any(math.prod(getattr(x, "shape", ())) >= 2**30 for x in arguments)
        key = text, dtype, V, large, *types.items()
        if key not in self.compiled:
            self.compiled[key] = driver.compile(source(text, dtype, V, large, **types))
        packed = [x if isinstance(x, int | float) else 0 if x is None else self.runtime.layout(x)[0] for x in arguments]
        driver.launch(self.compiled[key], grid, THREADS, packed)
