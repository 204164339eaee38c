"""The primitives of the GPU runtimes: cuDNN and im2col convolution, pooling, LRN, scatter-add and ROI pooling.

All others are those of ``ReferencePrimitives``. Batch normalization, softmax, dropout and look-ups are op-trees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neonlite.backend.bfloat16 import is_available
from neonlite.backend.primitives.reference import ReferencePrimitives
from neonlite.backend.runtimes.cuda.cudnn import CudnnConvolution
from neonlite.backend.runtimes.cuda.launch import are_kernels_enabled
from neonlite.backend.runtimes.cuda.pooling import CudaPooling
from neonlite.backend.runtimes.cuda.scatter import CudaScatter

if TYPE_CHECKING:
    from neonlite.backend.runtimes.cuda.runtime import CudaRuntime


class CudaPrimitives(CudnnConvolution, CudaPooling, CudaScatter):
    """Primitives on a GPU. Half-precision operands are computed in float32 and rounded once."""


def install_primitives(runtime: CudaRuntime) -> None:
    """Set a runtime's primitives: those of the GPU, or the reference primitives if kernels are disabled."""
    runtime.primitives, runtime.supports_half = (
        (CudaPrimitives, True) if are_kernels_enabled() else (ReferencePrimitives, False)
    )
    runtime.dtypes += ("bfloat16",) * is_available()
