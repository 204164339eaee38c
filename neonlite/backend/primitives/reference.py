"""The reference primitives in array-API functions, and declarations of optional library kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neonlite.backend.primitives.convolution import ConvPrimitives
from neonlite.backend.primitives.pooling import PoolingPrimitives
from neonlite.backend.primitives.roi_pooling import RoiPooling
from neonlite.typing import NativeArray as Array


class ReferencePrimitives(ConvPrimitives, PoolingPrimitives, RoiPooling):
    """The primitives, for any array library. Faster implementations are tested against it.

    Kernels that only some libraries have are declared with a flag that is False, and raise NotImplementedError.
    """

    supports_nhwc = False  # whether images may be cached in NHWC
    supports_batch_norm = False  # by a library kernel, with ``sum_channels``
    supports_nhwc_trees = False  # whether op-trees may run on NHWC matrices (pixels, channels)
    supports_fused_relu = False  # whether ``try_conv_bias`` applies relu
    supports_scatter = False  # whether ``scatter`` computes the scatter-add of op-trees

    def can_normalize(self, shape: Any, eps: float) -> bool:
        """Return whether ``batch_norm_fprop`` and ``batch_norm_bprop`` support NHWC images of a shape."""
        return False

    def batch_norm_fprop(self, shape: Any, *args: Any, **kwargs: Any) -> None:
        """Normalize NHWC images per channel, where ``can_normalize``."""
        raise NotImplementedError

    def batch_norm_bprop(self, shape: Any, *args: Any, **kwargs: Any) -> None:
        """Compute the backward pass of ``batch_norm_fprop``."""
        raise NotImplementedError

    def sum_channels(self, nhwc: Array, out: Array) -> None:
        """Write the sum of each channel of flat NHWC images into ``out`` (C,), where ``supports_batch_norm``."""
        raise NotImplementedError

    def row_norm_fprop(self, x: Array, *args: Any, **kwargs: Any) -> bool:
        """Normalize the rows of a matrix and return True, or return False where that is not supported."""
        return False

    def row_norm_bprop(self, x: Array, *args: Any, **kwargs: Any) -> bool:
        """Compute the backward pass of ``row_norm_fprop`` and return True, or return False."""
        return False

    def recurrent_shape(self, shape: Sequence[Any], dtype: str) -> Any:
        """Return (kind, T, N, F, H, is_reversed) as the key of a fused recurrent layer, or None without a fast one."""
        return None

    def recurrent_workspace_size(self, shape: Any) -> int:
        """Return the elements of the buffer that ``recurrent_fprop`` saves for the backward pass."""
        raise NotImplementedError

    def recurrent_fprop(self, shape: Any, *args: Any, **kwargs: Any) -> None:
        """Compute a recurrent layer over all time steps, for a key of ``recurrent_shape``."""
        raise NotImplementedError

    def recurrent_bprop(self, shape: Any, *args: Any, **kwargs: Any) -> None:
        """Compute the backward pass of ``recurrent_fprop``."""
        raise NotImplementedError

    def gemm_accumulate(self, products: Sequence[tuple[Array, Array, float]], c: Array, beta: float = 0.0) -> bool:
        """Compute ``c = beta c + alpha a b + ...`` and return True, or return False where that is not supported."""
        return False

    def scatter(self, x: Array, indices: Array, y: Array, axis: int = 0, check: tuple[int, int] = (0, 0)) -> None:
        """Compute ``y[p] = sum of x[k] over all k with index p``, where ``supports_scatter``."""
        raise NotImplementedError
