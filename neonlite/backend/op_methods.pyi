# Written by `python docs/make_stubs.py` from the op table, tree_methods.py and tree_operands.py.
from collections.abc import Callable, Sequence
from typing import Any, overload

from neonlite.backend.tensor import Tensor
from neonlite.backend.tree_operands import Padding, Sizes
from neonlite.ops import Op
from neonlite.optree import Operand, OpTreeNode
from neonlite.typing import ArrayLike, AxisLike, BackendBase, DTypeLike, OperandLike, ShapeLike

def make_method(op: Op) -> Callable[..., Any]: ...

class OpMethods(BackendBase):
    num_redefinitions: int

    @overload
    def abs(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return |x|."""

    @overload
    def abs(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return |x|."""

    @overload
    def absolute(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return |x|."""

    @overload
    def absolute(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return |x|."""

    @overload
    def acos(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the inverse cosine of x."""

    @overload
    def acos(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the inverse cosine of x."""

    @overload
    def acosh(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the inverse hyperbolic cosine of x."""

    @overload
    def acosh(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the inverse hyperbolic cosine of x."""

    @overload
    def add(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x + y."""

    @overload
    def add(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x + y."""

    @overload
    def amax(self, a: OperandLike, axis: AxisLike = None, out: None = None, keepdims: bool = True) -> OpTreeNode:
        """Return the largest element, over one axis, several or all."""

    @overload
    def amax(self, a: OperandLike, axis: AxisLike = None, *, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the largest element, over one axis, several or all."""

    @overload
    def amax(self, a: OperandLike, axis: AxisLike, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the largest element, over one axis, several or all."""

    @overload
    def amin(self, a: OperandLike, axis: AxisLike = None, out: None = None, keepdims: bool = True) -> OpTreeNode:
        """Return the smallest element, over one axis, several or all."""

    @overload
    def amin(self, a: OperandLike, axis: AxisLike = None, *, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the smallest element, over one axis, several or all."""

    @overload
    def amin(self, a: OperandLike, axis: AxisLike, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the smallest element, over one axis, several or all."""

    @overload
    def arccos(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the inverse cosine of x."""

    @overload
    def arccos(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the inverse cosine of x."""

    @overload
    def arccosh(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the inverse hyperbolic cosine of x."""

    @overload
    def arccosh(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the inverse hyperbolic cosine of x."""

    @overload
    def arcsin(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the inverse sine of x."""

    @overload
    def arcsin(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the inverse sine of x."""

    @overload
    def arcsinh(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the inverse hyperbolic sine of x."""

    @overload
    def arcsinh(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the inverse hyperbolic sine of x."""

    @overload
    def arctan(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the inverse tangent of x."""

    @overload
    def arctan(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the inverse tangent of x."""

    @overload
    def arctan2(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return the angle of the point (y, x), from -pi to pi."""

    @overload
    def arctan2(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return the angle of the point (y, x), from -pi to pi."""

    @overload
    def arctanh(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the inverse hyperbolic tangent of x."""

    @overload
    def arctanh(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the inverse hyperbolic tangent of x."""

    @overload
    def argmax(self, a: OperandLike, axis: AxisLike = 1, out: None = None, keepdims: bool = True) -> OpTreeNode:
        """Return the index (int64) of the largest element, by default of each row, the first one on ties, over one axis, several or all."""

    @overload
    def argmax(self, a: OperandLike, axis: AxisLike = 1, *, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the index (int64) of the largest element, by default of each row, the first one on ties, over one axis, several or all."""

    @overload
    def argmax(self, a: OperandLike, axis: AxisLike, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the index (int64) of the largest element, by default of each row, the first one on ties, over one axis, several or all."""

    @overload
    def argmin(self, a: OperandLike, axis: AxisLike = 1, out: None = None, keepdims: bool = True) -> OpTreeNode:
        """Return the index (int64) of the smallest element, by default of each row, the first one on ties, over one axis, several or all."""

    @overload
    def argmin(self, a: OperandLike, axis: AxisLike = 1, *, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the index (int64) of the smallest element, by default of each row, the first one on ties, over one axis, several or all."""

    @overload
    def argmin(self, a: OperandLike, axis: AxisLike, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the index (int64) of the smallest element, by default of each row, the first one on ties, over one axis, several or all."""

    @overload
    def argsort(self, a: OperandLike, axis: int = -1, descending: bool = False, out: None = None) -> OpTreeNode:
        """Return the indices (int64) that sort x along an axis, with equal elements in their order."""

    @overload
    def argsort(self, a: OperandLike, axis: int = -1, descending: bool = False, *, out: Tensor) -> Tensor:
        """Return the indices (int64) that sort x along an axis, with equal elements in their order."""

    @overload
    def argsort(self, a: OperandLike, axis: int, descending: bool, out: Tensor) -> Tensor:
        """Return the indices (int64) that sort x along an axis, with equal elements in their order."""

    @overload
    def around(self, a: OperandLike, decimals: int = 0, out: None = None) -> OpTreeNode:
        """Return the values rounded to a number of decimal digits, ties to even."""

    @overload
    def around(self, a: OperandLike, decimals: int = 0, *, out: Tensor) -> Tensor:
        """Return the values rounded to a number of decimal digits, ties to even."""

    @overload
    def around(self, a: OperandLike, decimals: int, out: Tensor) -> Tensor:
        """Return the values rounded to a number of decimal digits, ties to even."""

    @overload
    def asin(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the inverse sine of x."""

    @overload
    def asin(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the inverse sine of x."""

    @overload
    def asinh(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the inverse hyperbolic sine of x."""

    @overload
    def asinh(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the inverse hyperbolic sine of x."""

    @overload
    def astype(self, a: OpTreeNode, dtype: DTypeLike, out: None = None) -> OpTreeNode:
        """Return ``a`` cast to a dtype, like NumPy's ``astype``."""

    @overload
    def astype(self, a: OperandLike, dtype: DTypeLike, out: None = None) -> Operand:
        """Return ``a`` cast to a dtype, like NumPy's ``astype``."""

    @overload
    def astype(self, a: OperandLike, dtype: DTypeLike, out: Tensor) -> Tensor:
        """Return ``a`` cast to a dtype, like NumPy's ``astype``."""

    @overload
    def atan(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the inverse tangent of x."""

    @overload
    def atan(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the inverse tangent of x."""

    @overload
    def atan2(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return the angle of the point (y, x), from -pi to pi."""

    @overload
    def atan2(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return the angle of the point (y, x), from -pi to pi."""

    @overload
    def atanh(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the inverse hyperbolic tangent of x."""

    @overload
    def atanh(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the inverse hyperbolic tangent of x."""

    @overload
    def attention(
        self, q: OperandLike, k: OperandLike, v: OperandLike, mask: OperandLike | None = None, out: None = None
    ) -> OpTreeNode:
        """Return scaled dot-product attention, softmax(q k^T / sqrt(d)) v."""

    @overload
    def attention(
        self, q: OperandLike, k: OperandLike, v: OperandLike, mask: OperandLike | None = None, *, out: Tensor
    ) -> Tensor:
        """Return scaled dot-product attention, softmax(q k^T / sqrt(d)) v."""

    @overload
    def attention(
        self, q: OperandLike, k: OperandLike, v: OperandLike, mask: OperandLike | None, out: Tensor
    ) -> Tensor:
        """Return scaled dot-product attention, softmax(q k^T / sqrt(d)) v."""

    @overload
    def batch_norm(
        self,
        a: OperandLike,
        gamma: OperandLike | None = None,
        beta: OperandLike | None = None,
        eps: float = 1e-05,
        out: None = None,
    ) -> OpTreeNode:
        """Return images (C, H, W, N), each channel normalized over the pixels and samples of the minibatch."""

    @overload
    def batch_norm(
        self,
        a: OperandLike,
        gamma: OperandLike | None = None,
        beta: OperandLike | None = None,
        eps: float = 1e-05,
        *,
        out: Tensor,
    ) -> Tensor:
        """Return images (C, H, W, N), each channel normalized over the pixels and samples of the minibatch."""

    @overload
    def batch_norm(
        self, a: OperandLike, gamma: OperandLike | None, beta: OperandLike | None, eps: float, out: Tensor
    ) -> Tensor:
        """Return images (C, H, W, N), each channel normalized over the pixels and samples of the minibatch."""

    @overload
    def binarize(
        self, a: OperandLike, stochastic: bool | Tensor = True, out: None = None, **ignored: object
    ) -> OpTreeNode:
        """Return +1 where ``a >= 0``, else -1; if stochastic, +1 with probability ``clip((a + 1) / 2, 0, 1)``."""

    @overload
    def binarize(self, a: OperandLike, stochastic: bool | Tensor = True, *, out: Tensor, **ignored: object) -> Tensor:
        """Return +1 where ``a >= 0``, else -1; if stochastic, +1 with probability ``clip((a + 1) / 2, 0, 1)``."""

    @overload
    def binarize(self, a: OperandLike, stochastic: bool | Tensor, out: Tensor, **ignored: object) -> Tensor:
        """Return +1 where ``a >= 0``, else -1; if stochastic, +1 with probability ``clip((a + 1) / 2, 0, 1)``."""

    @overload
    def bitwise_and(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return the bitwise AND of x and y."""

    @overload
    def bitwise_and(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return the bitwise AND of x and y."""

    @overload
    def bitwise_invert(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the bits of x inverted."""

    @overload
    def bitwise_invert(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the bits of x inverted."""

    @overload
    def bitwise_left_shift(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x shifted left by y >= 0 bits."""

    @overload
    def bitwise_left_shift(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x shifted left by y >= 0 bits."""

    @overload
    def bitwise_not(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the bits of x inverted."""

    @overload
    def bitwise_not(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the bits of x inverted."""

    @overload
    def bitwise_or(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return the bitwise OR of x and y."""

    @overload
    def bitwise_or(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return the bitwise OR of x and y."""

    @overload
    def bitwise_right_shift(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x shifted right by y >= 0 bits."""

    @overload
    def bitwise_right_shift(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x shifted right by y >= 0 bits."""

    @overload
    def bitwise_xor(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return the bitwise XOR of x and y."""

    @overload
    def bitwise_xor(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return the bitwise XOR of x and y."""

    @overload
    def broadcast_to(self, a: OpTreeNode, shape: ShapeLike, out: None = None) -> OpTreeNode:
        """Return ``a`` broadcast to a shape."""

    @overload
    def broadcast_to(self, a: OperandLike, shape: ShapeLike, out: None = None) -> Operand:
        """Return ``a`` broadcast to a shape."""

    @overload
    def broadcast_to(self, a: OperandLike, shape: ShapeLike, out: Tensor) -> Tensor:
        """Return ``a`` broadcast to a shape."""

    @overload
    def build(
        self, op: str, a: OperandLike, b: OperandLike | None = None, out: None = None, **attrs: object
    ) -> OpTreeNode:
        """Build the op-tree node of an op."""

    @overload
    def build(self, op: str, a: OperandLike, b: OperandLike | None = None, *, out: Tensor, **attrs: object) -> Tensor:
        """Build the op-tree node of an op."""

    @overload
    def build(self, op: str, a: OperandLike, b: OperandLike | None, out: Tensor, **attrs: object) -> Tensor:
        """Build the op-tree node of an op."""

    @overload
    def cat(self, arrays: Sequence[OperandLike], axis: int = 0, out: None = None) -> OpTreeNode:
        """Return operands concatenated along an axis."""

    @overload
    def cat(self, arrays: Sequence[OperandLike], axis: int = 0, *, out: Tensor) -> Tensor:
        """Return operands concatenated along an axis."""

    @overload
    def cat(self, arrays: Sequence[OperandLike], axis: int, out: Tensor) -> Tensor:
        """Return operands concatenated along an axis."""

    @overload
    def ceil(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the smallest integer >= x."""

    @overload
    def ceil(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the smallest integer >= x."""

    @overload
    def cholesky(self, a: OperandLike, upper: bool = False, out: None = None) -> OpTreeNode:
        """Return the triangular factor L of positive definite matrices, L L^T = (x + x^T) / 2; L^T if upper."""

    @overload
    def cholesky(self, a: OperandLike, upper: bool = False, *, out: Tensor) -> Tensor:
        """Return the triangular factor L of positive definite matrices, L L^T = (x + x^T) / 2; L^T if upper."""

    @overload
    def cholesky(self, a: OperandLike, upper: bool, out: Tensor) -> Tensor:
        """Return the triangular factor L of positive definite matrices, L L^T = (x + x^T) / 2; L^T if upper."""

    @overload
    def clip(self, a: OperandLike, a_min: OperandLike, a_max: OperandLike, out: None = None) -> OpTreeNode:
        """Return ``min(max(a, a_min), a_max)``."""

    @overload
    def clip(self, a: OperandLike, a_min: OperandLike, a_max: OperandLike, out: Tensor) -> Tensor:
        """Return ``min(max(a, a_min), a_max)``."""

    @overload
    def cofactors(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the cofactors of square matrices: the gradient of det, det(x) x^-T for invertible matrices."""

    @overload
    def cofactors(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the cofactors of square matrices: the gradient of det, det(x) x^-T for invertible matrices."""

    @overload
    def concat(self, arrays: Sequence[OperandLike], axis: int = 0, out: None = None) -> OpTreeNode:
        """Return operands concatenated along an axis."""

    @overload
    def concat(self, arrays: Sequence[OperandLike], axis: int = 0, *, out: Tensor) -> Tensor:
        """Return operands concatenated along an axis."""

    @overload
    def concat(self, arrays: Sequence[OperandLike], axis: int, out: Tensor) -> Tensor:
        """Return operands concatenated along an axis."""

    @overload
    def concatenate(self, arrays: Sequence[OperandLike], axis: int = 0, out: None = None) -> OpTreeNode:
        """Return operands concatenated along an axis."""

    @overload
    def concatenate(self, arrays: Sequence[OperandLike], axis: int = 0, *, out: Tensor) -> Tensor:
        """Return operands concatenated along an axis."""

    @overload
    def concatenate(self, arrays: Sequence[OperandLike], axis: int, out: Tensor) -> Tensor:
        """Return operands concatenated along an axis."""

    @overload
    def conv(
        self,
        x: OperandLike,
        f: OperandLike,
        strides: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        layout: str = "CHWN",
        out: None = None,
    ) -> OpTreeNode:
        """Return the convolution of images with filters, which are not flipped (a correlation)."""

    @overload
    def conv(
        self,
        x: OperandLike,
        f: OperandLike,
        strides: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        layout: str = "CHWN",
        *,
        out: Tensor,
    ) -> Tensor:
        """Return the convolution of images with filters, which are not flipped (a correlation)."""

    @overload
    def conv(
        self,
        x: OperandLike,
        f: OperandLike,
        strides: Sizes,
        padding: Padding,
        dilation: Sizes,
        groups: int,
        layout: str,
        out: Tensor,
    ) -> Tensor:
        """Return the convolution of images with filters, which are not flipped (a correlation)."""

    @overload
    def copysign(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return |x| with the sign of y."""

    @overload
    def copysign(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return |x| with the sign of y."""

    @overload
    def cos(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the cosine of x."""

    @overload
    def cos(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the cosine of x."""

    @overload
    def cosh(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the hyperbolic cosine of x."""

    @overload
    def cosh(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the hyperbolic cosine of x."""

    @overload
    def cross_entropy(self, a: OperandLike, t: OperandLike, axis: AxisLike = 0, out: None = None) -> OpTreeNode:
        """Return the mean cross-entropy of the softmax of x with the probabilities t: -mean(sum(t log_softmax(x)))."""

    @overload
    def cross_entropy(self, a: OperandLike, t: OperandLike, axis: AxisLike = 0, *, out: Tensor) -> Tensor:
        """Return the mean cross-entropy of the softmax of x with the probabilities t: -mean(sum(t log_softmax(x)))."""

    @overload
    def cross_entropy(self, a: OperandLike, t: OperandLike, axis: AxisLike, out: Tensor) -> Tensor:
        """Return the mean cross-entropy of the softmax of x with the probabilities t: -mean(sum(t log_softmax(x)))."""

    @overload
    def cumulative_prod(self, a: OperandLike, axis: int = -1, out: None = None) -> OpTreeNode:
        """Return the products of the elements up to each one along an axis (int64 for integers, except uint64)."""

    @overload
    def cumulative_prod(self, a: OperandLike, axis: int = -1, *, out: Tensor) -> Tensor:
        """Return the products of the elements up to each one along an axis (int64 for integers, except uint64)."""

    @overload
    def cumulative_prod(self, a: OperandLike, axis: int, out: Tensor) -> Tensor:
        """Return the products of the elements up to each one along an axis (int64 for integers, except uint64)."""

    @overload
    def cumulative_sum(self, a: OperandLike, axis: int = -1, reverse: bool = False, out: None = None) -> OpTreeNode:
        """Return the sums of the elements up to each one along an axis, or from each one on (int64 for integers, except uint64)."""

    @overload
    def cumulative_sum(self, a: OperandLike, axis: int = -1, reverse: bool = False, *, out: Tensor) -> Tensor:
        """Return the sums of the elements up to each one along an axis, or from each one on (int64 for integers, except uint64)."""

    @overload
    def cumulative_sum(self, a: OperandLike, axis: int, reverse: bool, out: Tensor) -> Tensor:
        """Return the sums of the elements up to each one along an axis, or from each one on (int64 for integers, except uint64)."""

    @overload
    def deconv(
        self,
        x: OperandLike,
        f: OperandLike,
        strides: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        layout: str = "CHWN",
        out: None = None,
    ) -> OpTreeNode:
        """Return the transposed convolution of images: each pixel adds its multiple of the filters to the result."""

    @overload
    def deconv(
        self,
        x: OperandLike,
        f: OperandLike,
        strides: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        layout: str = "CHWN",
        *,
        out: Tensor,
    ) -> Tensor:
        """Return the transposed convolution of images: each pixel adds its multiple of the filters to the result."""

    @overload
    def deconv(
        self,
        x: OperandLike,
        f: OperandLike,
        strides: Sizes,
        padding: Padding,
        dilation: Sizes,
        groups: int,
        layout: str,
        out: Tensor,
    ) -> Tensor:
        """Return the transposed convolution of images: each pixel adds its multiple of the filters to the result."""

    @overload
    def det(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the determinant of square matrices, of shape (..., 1, 1)."""

    @overload
    def det(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the determinant of square matrices, of shape (..., 1, 1)."""

    @overload
    def div(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x / y."""

    @overload
    def div(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x / y."""

    @overload
    def divide(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x / y."""

    @overload
    def divide(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x / y."""

    @overload
    def dot(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return the matrix product of two matrices."""

    @overload
    def dot(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return the matrix product of two matrices."""

    @overload
    def eigh_values(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the eigenvalues of (x + x^T) / 2 in ascending order, as rows."""

    @overload
    def eigh_values(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the eigenvalues of (x + x^T) / 2 in ascending order, as rows."""

    @overload
    def eigh_vectors(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the eigenvectors of (x + x^T) / 2, as columns."""

    @overload
    def eigh_vectors(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the eigenvectors of (x + x^T) / 2, as columns."""

    @overload
    def einsum(self, subscripts: str, *operands: OperandLike, out: None = None) -> OpTreeNode:
        """Return an Einstein summation as an op-tree of pairwise contractions."""

    @overload
    def einsum(self, subscripts: str, *operands: OperandLike, out: Tensor) -> Tensor:
        """Return an Einstein summation as an op-tree of pairwise contractions."""

    @overload
    def elu(self, a: OperandLike, alpha: float = 1.0, out: None = None) -> OpTreeNode:
        """Return max(x, 0) + alpha (e^min(x, 0) - 1)."""

    @overload
    def elu(self, a: OperandLike, alpha: float = 1.0, *, out: Tensor) -> Tensor:
        """Return max(x, 0) + alpha (e^min(x, 0) - 1)."""

    @overload
    def elu(self, a: OperandLike, alpha: float, out: Tensor) -> Tensor:
        """Return max(x, 0) + alpha (e^min(x, 0) - 1)."""

    @overload
    def equal(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 where x equals y, else 0."""

    @overload
    def equal(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return 1 where x equals y, else 0."""

    @overload
    def erf(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the error function of x."""

    @overload
    def erf(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the error function of x."""

    @overload
    def exp(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return e^x."""

    @overload
    def exp(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return e^x."""

    @overload
    def exp2(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return 2^x."""

    @overload
    def exp2(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return 2^x."""

    @overload
    def expit(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 / (1 + e^-x)."""

    @overload
    def expit(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return 1 / (1 + e^-x)."""

    @overload
    def expm1(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return e^x - 1."""

    @overload
    def expm1(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return e^x - 1."""

    @overload
    def fabs(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return |x|."""

    @overload
    def fabs(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return |x|."""

    @overload
    def finite(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 where x is finite, else 0."""

    @overload
    def finite(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return 1 where x is finite, else 0."""

    @overload
    def floor(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the largest integer <= x."""

    @overload
    def floor(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the largest integer <= x."""

    @overload
    def floor_divide(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x / y rounded down; 0 for integers where y is 0."""

    @overload
    def floor_divide(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x / y rounded down; 0 for integers where y is 0."""

    @overload
    def gelu(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""

    @overload
    def gelu(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""

    @overload
    def greater(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 where x > y, else 0."""

    @overload
    def greater(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return 1 where x > y, else 0."""

    @overload
    def greater_equal(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 where x >= y, else 0."""

    @overload
    def greater_equal(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return 1 where x >= y, else 0."""

    @overload
    def group_norm(
        self,
        a: OperandLike,
        gamma: OperandLike | None = None,
        beta: OperandLike | None = None,
        groups: int = 1,
        eps: float = 1e-05,
        out: None = None,
    ) -> OpTreeNode:
        """Return images (C, H, W, N), each group of channels of each sample normalized."""

    @overload
    def group_norm(
        self,
        a: OperandLike,
        gamma: OperandLike | None = None,
        beta: OperandLike | None = None,
        groups: int = 1,
        eps: float = 1e-05,
        *,
        out: Tensor,
    ) -> Tensor:
        """Return images (C, H, W, N), each group of channels of each sample normalized."""

    @overload
    def group_norm(
        self, a: OperandLike, gamma: OperandLike | None, beta: OperandLike | None, groups: int, eps: float, out: Tensor
    ) -> Tensor:
        """Return images (C, H, W, N), each group of channels of each sample normalized."""

    @overload
    def gru(
        self,
        a: OperandLike,
        W_input: OperandLike,
        W_recur: OperandLike,
        b: OperandLike,
        h: OperandLike,
        steps: int = 1,
        reverse: bool = False,
        activation: str = "tanh",
        gate_activation: str = "sig",
        out: None = None,
    ) -> OpTreeNode:
        """Return h of all steps of a GRU, over x (F, T N)."""

    @overload
    def gru(
        self,
        a: OperandLike,
        W_input: OperandLike,
        W_recur: OperandLike,
        b: OperandLike,
        h: OperandLike,
        steps: int = 1,
        reverse: bool = False,
        activation: str = "tanh",
        gate_activation: str = "sig",
        *,
        out: Tensor,
    ) -> Tensor:
        """Return h of all steps of a GRU, over x (F, T N)."""

    @overload
    def gru(
        self,
        a: OperandLike,
        W_input: OperandLike,
        W_recur: OperandLike,
        b: OperandLike,
        h: OperandLike,
        steps: int,
        reverse: bool,
        activation: str,
        gate_activation: str,
        out: Tensor,
    ) -> Tensor:
        """Return h of all steps of a GRU, over x (F, T N)."""

    @overload
    def hypot(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return (x^2 + y^2)^(1/2), without overflow."""

    @overload
    def hypot(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return (x^2 + y^2)^(1/2), without overflow."""

    @overload
    def instance_norm(
        self,
        a: OperandLike,
        gamma: OperandLike | None = None,
        beta: OperandLike | None = None,
        eps: float = 1e-05,
        out: None = None,
    ) -> OpTreeNode:
        """Return images (C, H, W, N), each channel of each sample normalized."""

    @overload
    def instance_norm(
        self,
        a: OperandLike,
        gamma: OperandLike | None = None,
        beta: OperandLike | None = None,
        eps: float = 1e-05,
        *,
        out: Tensor,
    ) -> Tensor:
        """Return images (C, H, W, N), each channel of each sample normalized."""

    @overload
    def instance_norm(
        self, a: OperandLike, gamma: OperandLike | None, beta: OperandLike | None, eps: float, out: Tensor
    ) -> Tensor:
        """Return images (C, H, W, N), each channel of each sample normalized."""

    @overload
    def inv(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the inverse of square matrices."""

    @overload
    def inv(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the inverse of square matrices."""

    @overload
    def invert(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the bits of x inverted."""

    @overload
    def invert(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the bits of x inverted."""

    @overload
    def isfinite(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 where x is finite, else 0."""

    @overload
    def isfinite(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return 1 where x is finite, else 0."""

    @overload
    def isinf(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 where x is infinite, else 0."""

    @overload
    def isinf(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return 1 where x is infinite, else 0."""

    @overload
    def isnan(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 where x is NaN, else 0."""

    @overload
    def isnan(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return 1 where x is NaN, else 0."""

    @overload
    def layer_norm(
        self,
        a: OperandLike,
        gamma: OperandLike | None = None,
        beta: OperandLike | None = None,
        axis: AxisLike = 0,
        eps: float = 1e-05,
        out: None = None,
    ) -> OpTreeNode:
        """Return (x - mean) / sqrt(variance + eps) gamma + beta along an axis."""

    @overload
    def layer_norm(
        self,
        a: OperandLike,
        gamma: OperandLike | None = None,
        beta: OperandLike | None = None,
        axis: AxisLike = 0,
        eps: float = 1e-05,
        *,
        out: Tensor,
    ) -> Tensor:
        """Return (x - mean) / sqrt(variance + eps) gamma + beta along an axis."""

    @overload
    def layer_norm(
        self,
        a: OperandLike,
        gamma: OperandLike | None,
        beta: OperandLike | None,
        axis: AxisLike,
        eps: float,
        out: Tensor,
    ) -> Tensor:
        """Return (x - mean) / sqrt(variance + eps) gamma + beta along an axis."""

    @overload
    def leaky_relu(self, a: OperandLike, slope: float = 0.01, out: None = None) -> OpTreeNode:
        """Return max(x, 0) + slope min(x, 0)."""

    @overload
    def leaky_relu(self, a: OperandLike, slope: float = 0.01, *, out: Tensor) -> Tensor:
        """Return max(x, 0) + slope min(x, 0)."""

    @overload
    def leaky_relu(self, a: OperandLike, slope: float, out: Tensor) -> Tensor:
        """Return max(x, 0) + slope min(x, 0)."""

    @overload
    def left_shift(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x shifted left by y >= 0 bits."""

    @overload
    def left_shift(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x shifted left by y >= 0 bits."""

    @overload
    def less(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 where x < y, else 0."""

    @overload
    def less(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return 1 where x < y, else 0."""

    @overload
    def less_equal(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 where x <= y, else 0."""

    @overload
    def less_equal(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return 1 where x <= y, else 0."""

    @overload
    def log(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return ln x."""

    @overload
    def log(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return ln x."""

    @overload
    def log10(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return log10 x."""

    @overload
    def log10(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return log10 x."""

    @overload
    def log1p(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return ln(1 + x)."""

    @overload
    def log1p(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return ln(1 + x)."""

    @overload
    def log2(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return log2 x."""

    @overload
    def log2(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return log2 x."""

    @overload
    def log_softmax(self, a: OperandLike, axis: AxisLike = 0, out: None = None) -> OpTreeNode:
        """Return x - ln sum(e^x) along an axis, without overflow."""

    @overload
    def log_softmax(self, a: OperandLike, axis: AxisLike = 0, *, out: Tensor) -> Tensor:
        """Return x - ln sum(e^x) along an axis, without overflow."""

    @overload
    def log_softmax(self, a: OperandLike, axis: AxisLike, out: Tensor) -> Tensor:
        """Return x - ln sum(e^x) along an axis, without overflow."""

    @overload
    def logaddexp(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return ln(e^x + e^y)."""

    @overload
    def logaddexp(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return ln(e^x + e^y)."""

    @overload
    def logical_and(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 where x and y are not 0, else 0."""

    @overload
    def logical_and(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return 1 where x and y are not 0, else 0."""

    @overload
    def logical_not(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 where x is 0, else 0."""

    @overload
    def logical_not(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return 1 where x is 0, else 0."""

    @overload
    def logical_or(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 where x or y is not 0, else 0."""

    @overload
    def logical_or(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return 1 where x or y is not 0, else 0."""

    @overload
    def logical_xor(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 where exactly one of x and y is not 0, else 0."""

    @overload
    def logical_xor(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return 1 where exactly one of x and y is not 0, else 0."""

    @overload
    def logsumexp(self, a: OperandLike, axis: AxisLike = 0, out: None = None) -> OpTreeNode:
        """Return ln sum(e^x) along an axis, without overflow; -inf where all elements are -inf."""

    @overload
    def logsumexp(self, a: OperandLike, axis: AxisLike = 0, *, out: Tensor) -> Tensor:
        """Return ln sum(e^x) along an axis, without overflow; -inf where all elements are -inf."""

    @overload
    def logsumexp(self, a: OperandLike, axis: AxisLike, out: Tensor) -> Tensor:
        """Return ln sum(e^x) along an axis, without overflow; -inf where all elements are -inf."""

    @overload
    def lrn(
        self,
        x: OperandLike,
        depth: int,
        ascale: float = 1.0,
        bpower: float = 1.0,
        layout: str = "CHWN",
        out: None = None,
    ) -> OpTreeNode:
        """Return images normalized by the squares in neighboring channels: ``x (1 + ascale / depth sum x^2)^-bpower``."""

    @overload
    def lrn(
        self, x: OperandLike, depth: int, ascale: float = 1.0, bpower: float = 1.0, layout: str = "CHWN", *, out: Tensor
    ) -> Tensor:
        """Return images normalized by the squares in neighboring channels: ``x (1 + ascale / depth sum x^2)^-bpower``."""

    @overload
    def lrn(self, x: OperandLike, depth: int, ascale: float, bpower: float, layout: str, out: Tensor) -> Tensor:
        """Return images normalized by the squares in neighboring channels: ``x (1 + ascale / depth sum x^2)^-bpower``."""

    @overload
    def lstm(
        self,
        a: OperandLike,
        W_input: OperandLike,
        W_recur: OperandLike,
        b: OperandLike,
        h: OperandLike,
        c: OperandLike,
        steps: int = 1,
        reverse: bool = False,
        activation: str = "tanh",
        gate_activation: str = "sig",
        out: None = None,
    ) -> OpTreeNode:
        """Return h of all steps of an LSTM, over x (F, T N)."""

    @overload
    def lstm(
        self,
        a: OperandLike,
        W_input: OperandLike,
        W_recur: OperandLike,
        b: OperandLike,
        h: OperandLike,
        c: OperandLike,
        steps: int = 1,
        reverse: bool = False,
        activation: str = "tanh",
        gate_activation: str = "sig",
        *,
        out: Tensor,
    ) -> Tensor:
        """Return h of all steps of an LSTM, over x (F, T N)."""

    @overload
    def lstm(
        self,
        a: OperandLike,
        W_input: OperandLike,
        W_recur: OperandLike,
        b: OperandLike,
        h: OperandLike,
        c: OperandLike,
        steps: int,
        reverse: bool,
        activation: str,
        gate_activation: str,
        out: Tensor,
    ) -> Tensor:
        """Return h of all steps of an LSTM, over x (F, T N)."""

    @overload
    def masked_softmax(self, a: OperandLike, mask: OperandLike, axis: AxisLike = 0, out: None = None) -> OpTreeNode:
        """Return the softmax along an axis over the elements where the mask is not 0; zeros if it is 0 everywhere."""

    @overload
    def masked_softmax(self, a: OperandLike, mask: OperandLike, axis: AxisLike = 0, *, out: Tensor) -> Tensor:
        """Return the softmax along an axis over the elements where the mask is not 0; zeros if it is 0 everywhere."""

    @overload
    def masked_softmax(self, a: OperandLike, mask: OperandLike, axis: AxisLike, out: Tensor) -> Tensor:
        """Return the softmax along an axis over the elements where the mask is not 0; zeros if it is 0 everywhere."""

    @overload
    def matmul(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return the matrix products of two batches of matrices."""

    @overload
    def matmul(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return the matrix products of two batches of matrices."""

    @overload
    def max(self, a: OperandLike, axis: AxisLike = None, out: None = None, keepdims: bool = True) -> OpTreeNode:
        """Return the largest element, over one axis, several or all."""

    @overload
    def max(self, a: OperandLike, axis: AxisLike = None, *, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the largest element, over one axis, several or all."""

    @overload
    def max(self, a: OperandLike, axis: AxisLike, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the largest element, over one axis, several or all."""

    @overload
    def maximum(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return the elementwise maximum of x and y."""

    @overload
    def maximum(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return the elementwise maximum of x and y."""

    @overload
    def mean(
        self, a: OperandLike, axis: AxisLike = None, partial: object = None, out: None = None, keepdims: bool = True
    ) -> OpTreeNode:
        """Return the mean over one axis, several or all."""

    @overload
    def mean(
        self, a: OperandLike, axis: AxisLike = None, partial: object = None, *, out: Tensor, keepdims: bool = True
    ) -> Tensor:
        """Return the mean over one axis, several or all."""

    @overload
    def mean(self, a: OperandLike, axis: AxisLike, partial: object, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the mean over one axis, several or all."""

    @overload
    def min(self, a: OperandLike, axis: AxisLike = None, out: None = None, keepdims: bool = True) -> OpTreeNode:
        """Return the smallest element, over one axis, several or all."""

    @overload
    def min(self, a: OperandLike, axis: AxisLike = None, *, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the smallest element, over one axis, several or all."""

    @overload
    def min(self, a: OperandLike, axis: AxisLike, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the smallest element, over one axis, several or all."""

    @overload
    def minimum(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return the elementwise minimum of x and y."""

    @overload
    def minimum(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return the elementwise minimum of x and y."""

    @overload
    def mod(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x - y floor(x / y), with the sign of y; 0 for integers where y is 0."""

    @overload
    def mod(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x - y floor(x / y), with the sign of y; 0 for integers where y is 0."""

    @overload
    def mul(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x * y."""

    @overload
    def mul(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x * y."""

    @overload
    def multiply(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x * y."""

    @overload
    def multiply(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x * y."""

    @overload
    def neg(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return -x."""

    @overload
    def neg(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return -x."""

    @overload
    def negative(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return -x."""

    @overload
    def negative(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return -x."""

    @overload
    def nextafter(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return the next representable number after x toward y."""

    @overload
    def nextafter(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return the next representable number after x toward y."""

    @overload
    def normalize(self, a: OperandLike, axis: AxisLike = 0, eps: float = 1e-05, out: None = None) -> OpTreeNode:
        """Return (x - mean) / sqrt(variance + eps) along an axis."""

    @overload
    def normalize(self, a: OperandLike, axis: AxisLike = 0, eps: float = 1e-05, *, out: Tensor) -> Tensor:
        """Return (x - mean) / sqrt(variance + eps) along an axis."""

    @overload
    def normalize(self, a: OperandLike, axis: AxisLike, eps: float, out: Tensor) -> Tensor:
        """Return (x - mean) / sqrt(variance + eps) along an axis."""

    @overload
    def not_equal(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 where x differs from y, else 0."""

    @overload
    def not_equal(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return 1 where x differs from y, else 0."""

    @overload
    def onehot(self, indices: ArrayLike, axis: int, out: None = None, nclass: int | None = None) -> OpTreeNode:
        """Return 1 in the row or column of each label, else 0."""

    @overload
    def onehot(self, indices: ArrayLike, axis: int, out: Tensor, nclass: int | None = None) -> Tensor:
        """Return 1 in the row or column of each label, else 0."""

    @overload
    def permute(self, a: OperandLike, axes: Sequence[int] | None = None, out: None = None) -> OpTreeNode:
        """Return ``a`` with its axes permuted."""

    @overload
    def permute(self, a: OperandLike, axes: Sequence[int] | None = None, *, out: Tensor) -> Tensor:
        """Return ``a`` with its axes permuted."""

    @overload
    def permute(self, a: OperandLike, axes: Sequence[int] | None, out: Tensor) -> Tensor:
        """Return ``a`` with its axes permuted."""

    @overload
    def permute_dims(self, a: OperandLike, axes: Sequence[int] | None = None, out: None = None) -> OpTreeNode:
        """Return ``a`` with its axes permuted."""

    @overload
    def permute_dims(self, a: OperandLike, axes: Sequence[int] | None = None, *, out: Tensor) -> Tensor:
        """Return ``a`` with its axes permuted."""

    @overload
    def permute_dims(self, a: OperandLike, axes: Sequence[int] | None, out: Tensor) -> Tensor:
        """Return ``a`` with its axes permuted."""

    @overload
    def pinv(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return the pseudo-inverse of x; singular values up to y times the largest one count as 0."""

    @overload
    def pinv(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return the pseudo-inverse of x; singular values up to y times the largest one count as 0."""

    @overload
    def pool(
        self,
        x: OperandLike,
        window: Sizes,
        op: str = "max",
        strides: Sizes | None = None,
        padding: Padding = 0,
        ceil: bool = False,
        layout: str = "CHWN",
        out: None = None,
    ) -> OpTreeNode:
        """Return the maximum, the mean or the Euclidean norm of each window. Padding is excluded, also from the mean."""

    @overload
    def pool(
        self,
        x: OperandLike,
        window: Sizes,
        op: str = "max",
        strides: Sizes | None = None,
        padding: Padding = 0,
        ceil: bool = False,
        layout: str = "CHWN",
        *,
        out: Tensor,
    ) -> Tensor:
        """Return the maximum, the mean or the Euclidean norm of each window. Padding is excluded, also from the mean."""

    @overload
    def pool(
        self,
        x: OperandLike,
        window: Sizes,
        op: str,
        strides: Sizes | None,
        padding: Padding,
        ceil: bool,
        layout: str,
        out: Tensor,
    ) -> Tensor:
        """Return the maximum, the mean or the Euclidean norm of each window. Padding is excluded, also from the mean."""

    @overload
    def pow(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x^y."""

    @overload
    def pow(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x^y."""

    @overload
    def power(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x^y."""

    @overload
    def power(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x^y."""

    @overload
    def prod(self, a: OperandLike, axis: AxisLike = None, out: None = None, keepdims: bool = True) -> OpTreeNode:
        """Return the product of the elements (int64 for integers, except uint64), over one axis, several or all."""

    @overload
    def prod(self, a: OperandLike, axis: AxisLike = None, *, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the product of the elements (int64 for integers, except uint64), over one axis, several or all."""

    @overload
    def prod(self, a: OperandLike, axis: AxisLike, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the product of the elements (int64 for integers, except uint64), over one axis, several or all."""

    @overload
    def qr_q(self, a: OperandLike, mode: str = "reduced", out: None = None) -> OpTreeNode:
        """Return q of the QR decomposition x = q r: orthonormal columns."""

    @overload
    def qr_q(self, a: OperandLike, mode: str = "reduced", *, out: Tensor) -> Tensor:
        """Return q of the QR decomposition x = q r: orthonormal columns."""

    @overload
    def qr_q(self, a: OperandLike, mode: str, out: Tensor) -> Tensor:
        """Return q of the QR decomposition x = q r: orthonormal columns."""

    @overload
    def qr_r(self, a: OperandLike, mode: str = "reduced", out: None = None) -> OpTreeNode:
        """Return r of the QR decomposition x = q r: upper triangular matrices."""

    @overload
    def qr_r(self, a: OperandLike, mode: str = "reduced", *, out: Tensor) -> Tensor:
        """Return r of the QR decomposition x = q r: upper triangular matrices."""

    @overload
    def qr_r(self, a: OperandLike, mode: str, out: Tensor) -> Tensor:
        """Return r of the QR decomposition x = q r: upper triangular matrices."""

    @overload
    def rand(self, *shape: ShapeLike, out: None = None) -> OpTreeNode:
        """Return random numbers from the uniform distribution on [0, 1), new ones at each evaluation."""

    @overload
    def rand(self, *shape: ShapeLike, out: Tensor) -> Tensor:
        """Return random numbers from the uniform distribution on [0, 1), new ones at each evaluation."""

    @overload
    def randn(self, *shape: ShapeLike, out: None = None) -> OpTreeNode:
        """Return random numbers from the standard normal distribution, new ones at each evaluation."""

    @overload
    def randn(self, *shape: ShapeLike, out: Tensor) -> Tensor:
        """Return random numbers from the standard normal distribution, new ones at each evaluation."""

    @overload
    def random_mask(self, *shape: ShapeLike, keep: float = 0.5, out: None = None) -> OpTreeNode:
        """Return ones with a probability, and zeros, new ones at each evaluation, as for dropout."""

    @overload
    def random_mask(self, *shape: ShapeLike, keep: float = 0.5, out: Tensor) -> Tensor:
        """Return ones with a probability, and zeros, new ones at each evaluation, as for dropout."""

    @overload
    def reciprocal(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return ``1 / a``."""

    @overload
    def reciprocal(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return ``1 / a``."""

    @overload
    def relu(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return ``max(a, 0)``, the rectified linear unit."""

    @overload
    def relu(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return ``max(a, 0)``, the rectified linear unit."""

    @overload
    def remainder(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x - y floor(x / y), with the sign of y; 0 for integers where y is 0."""

    @overload
    def remainder(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x - y floor(x / y), with the sign of y; 0 for integers where y is 0."""

    @overload
    def reshape(self, a: OpTreeNode, *shape: ShapeLike, out: None = None) -> OpTreeNode:
        """Return ``a`` with another shape of the same size."""

    @overload
    def reshape(self, a: OperandLike, *shape: ShapeLike, out: None = None) -> Operand:
        """Return ``a`` with another shape of the same size."""

    @overload
    def reshape(self, a: OperandLike, *shape: ShapeLike, out: Tensor) -> Tensor:
        """Return ``a`` with another shape of the same size."""

    @overload
    def right_shift(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x shifted right by y >= 0 bits."""

    @overload
    def right_shift(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x shifted right by y >= 0 bits."""

    @overload
    def rint(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return x rounded to the nearest integer, ties to even."""

    @overload
    def rint(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return x rounded to the nearest integer, ties to even."""

    @overload
    def rms_norm(
        self, a: OperandLike, gamma: OperandLike | None = None, axis: AxisLike = 0, eps: float = 1e-05, out: None = None
    ) -> OpTreeNode:
        """Return x / sqrt(mean(x^2) + eps) gamma along an axis."""

    @overload
    def rms_norm(
        self, a: OperandLike, gamma: OperandLike | None = None, axis: AxisLike = 0, eps: float = 1e-05, *, out: Tensor
    ) -> Tensor:
        """Return x / sqrt(mean(x^2) + eps) gamma along an axis."""

    @overload
    def rms_norm(self, a: OperandLike, gamma: OperandLike | None, axis: AxisLike, eps: float, out: Tensor) -> Tensor:
        """Return x / sqrt(mean(x^2) + eps) gamma along an axis."""

    @overload
    def rnn(
        self,
        a: OperandLike,
        W_input: OperandLike,
        W_recur: OperandLike,
        b: OperandLike,
        h: OperandLike,
        steps: int = 1,
        reverse: bool = False,
        activation: str = "tanh",
        out: None = None,
    ) -> OpTreeNode:
        """Return h of all steps of a simple recurrent layer, over x (F, T N)."""

    @overload
    def rnn(
        self,
        a: OperandLike,
        W_input: OperandLike,
        W_recur: OperandLike,
        b: OperandLike,
        h: OperandLike,
        steps: int = 1,
        reverse: bool = False,
        activation: str = "tanh",
        *,
        out: Tensor,
    ) -> Tensor:
        """Return h of all steps of a simple recurrent layer, over x (F, T N)."""

    @overload
    def rnn(
        self,
        a: OperandLike,
        W_input: OperandLike,
        W_recur: OperandLike,
        b: OperandLike,
        h: OperandLike,
        steps: int,
        reverse: bool,
        activation: str,
        out: Tensor,
    ) -> Tensor:
        """Return h of all steps of a simple recurrent layer, over x (F, T N)."""

    @overload
    def round(self, a: OperandLike, decimals: int = 0, out: None = None) -> OpTreeNode:
        """Return the values rounded to a number of decimal digits, ties to even."""

    @overload
    def round(self, a: OperandLike, decimals: int = 0, *, out: Tensor) -> Tensor:
        """Return the values rounded to a number of decimal digits, ties to even."""

    @overload
    def round(self, a: OperandLike, decimals: int, out: Tensor) -> Tensor:
        """Return the values rounded to a number of decimal digits, ties to even."""

    @overload
    def safelog(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return ln max(x, e^-50)."""

    @overload
    def safelog(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return ln max(x, e^-50)."""

    @overload
    def searchsorted(self, a: OperandLike, values: OperandLike, side: str = "left", out: None = None) -> OpTreeNode:
        """Return the index (int64) in the sorted vector x at which each value is inserted to keep the order."""

    @overload
    def searchsorted(self, a: OperandLike, values: OperandLike, side: str = "left", *, out: Tensor) -> Tensor:
        """Return the index (int64) in the sorted vector x at which each value is inserted to keep the order."""

    @overload
    def searchsorted(self, a: OperandLike, values: OperandLike, side: str, out: Tensor) -> Tensor:
        """Return the index (int64) in the sorted vector x at which each value is inserted to keep the order."""

    @overload
    def sgn(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the sign of x: -1, 0 or 1."""

    @overload
    def sgn(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the sign of x: -1, 0 or 1."""

    @overload
    def shift(self, a: OperandLike, b: OperandLike, value: bool = True, out: None = None) -> OpTreeNode:
        """Return ``a`` times the power of two nearest to ``b``, AP2(b)."""

    @overload
    def shift(self, a: OperandLike, b: OperandLike, value: bool = True, *, out: Tensor) -> Tensor:
        """Return ``a`` times the power of two nearest to ``b``, AP2(b)."""

    @overload
    def shift(self, a: OperandLike, b: OperandLike, value: bool, out: Tensor) -> Tensor:
        """Return ``a`` times the power of two nearest to ``b``, AP2(b)."""

    @overload
    def shift_batch_norm(
        self,
        a: OperandLike,
        gamma: OperandLike | None = None,
        beta: OperandLike | None = None,
        eps: float = 1e-05,
        out: None = None,
    ) -> OpTreeNode:
        """Return batch_norm by products with powers of two."""

    @overload
    def shift_batch_norm(
        self,
        a: OperandLike,
        gamma: OperandLike | None = None,
        beta: OperandLike | None = None,
        eps: float = 1e-05,
        *,
        out: Tensor,
    ) -> Tensor:
        """Return batch_norm by products with powers of two."""

    @overload
    def shift_batch_norm(
        self, a: OperandLike, gamma: OperandLike | None, beta: OperandLike | None, eps: float, out: Tensor
    ) -> Tensor:
        """Return batch_norm by products with powers of two."""

    @overload
    def sig(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 / (1 + e^-x)."""

    @overload
    def sig(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return 1 / (1 + e^-x)."""

    @overload
    def sig2(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return ``1 / (1 + 2^-a)``."""

    @overload
    def sig2(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return ``1 / (1 + 2^-a)``."""

    @overload
    def sigmoid(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 / (1 + e^-x)."""

    @overload
    def sigmoid(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return 1 / (1 + e^-x)."""

    @overload
    def sign(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the sign of x: -1, 0 or 1."""

    @overload
    def sign(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the sign of x: -1, 0 or 1."""

    @overload
    def signbit(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return 1 where the sign bit of x is set, also for -0.0, else 0."""

    @overload
    def signbit(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return 1 where the sign bit of x is set, also for -0.0, else 0."""

    @overload
    def silu(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return x / (1 + e^-x)."""

    @overload
    def silu(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return x / (1 + e^-x)."""

    @overload
    def sin(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the sine of x."""

    @overload
    def sin(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the sine of x."""

    @overload
    def sinh(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the hyperbolic sine of x."""

    @overload
    def sinh(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the hyperbolic sine of x."""

    @overload
    def slogdet_logabsdet(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return ln |det x| of square matrices, of shape (..., 1, 1)."""

    @overload
    def slogdet_logabsdet(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return ln |det x| of square matrices, of shape (..., 1, 1)."""

    @overload
    def slogdet_sign(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the sign of the determinant of square matrices, of shape (..., 1, 1)."""

    @overload
    def slogdet_sign(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the sign of the determinant of square matrices, of shape (..., 1, 1)."""

    @overload
    def softmax(self, a: OperandLike, axis: AxisLike = 0, out: None = None) -> OpTreeNode:
        """Return e^x / sum(e^x) along an axis, without overflow."""

    @overload
    def softmax(self, a: OperandLike, axis: AxisLike = 0, *, out: Tensor) -> Tensor:
        """Return e^x / sum(e^x) along an axis, without overflow."""

    @overload
    def softmax(self, a: OperandLike, axis: AxisLike, out: Tensor) -> Tensor:
        """Return e^x / sum(e^x) along an axis, without overflow."""

    @overload
    def softplus(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return ln(1 + e^x)."""

    @overload
    def softplus(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return ln(1 + e^x)."""

    @overload
    def solve(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return the solution z of the linear systems x z = y."""

    @overload
    def solve(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return the solution z of the linear systems x z = y."""

    @overload
    def sort(self, a: OperandLike, axis: int = -1, descending: bool = False, out: None = None) -> OpTreeNode:
        """Return the elements in order along an axis."""

    @overload
    def sort(self, a: OperandLike, axis: int = -1, descending: bool = False, *, out: Tensor) -> Tensor:
        """Return the elements in order along an axis."""

    @overload
    def sort(self, a: OperandLike, axis: int, descending: bool, out: Tensor) -> Tensor:
        """Return the elements in order along an axis."""

    @overload
    def sqrt(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return x^(1/2)."""

    @overload
    def sqrt(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return x^(1/2)."""

    @overload
    def square(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return x^2."""

    @overload
    def square(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return x^2."""

    @overload
    def stack(self, arrays: Sequence[OperandLike], axis: int = 0, out: None = None) -> OpTreeNode:
        """Return operands stacked along a new axis."""

    @overload
    def stack(self, arrays: Sequence[OperandLike], axis: int = 0, *, out: Tensor) -> Tensor:
        """Return operands stacked along a new axis."""

    @overload
    def stack(self, arrays: Sequence[OperandLike], axis: int, out: Tensor) -> Tensor:
        """Return operands stacked along a new axis."""

    @overload
    def std(
        self,
        a: OperandLike,
        axis: AxisLike = None,
        partial: object = None,
        out: None = None,
        keepdims: bool = True,
        binary: bool = False,
    ) -> OpTreeNode:
        """Return the standard deviation, the square root of ``var``, over one axis, several or all."""

    @overload
    def std(
        self,
        a: OperandLike,
        axis: AxisLike = None,
        partial: object = None,
        *,
        out: Tensor,
        keepdims: bool = True,
        binary: bool = False,
    ) -> Tensor:
        """Return the standard deviation, the square root of ``var``, over one axis, several or all."""

    @overload
    def std(
        self, a: OperandLike, axis: AxisLike, partial: object, out: Tensor, keepdims: bool = True, binary: bool = False
    ) -> Tensor:
        """Return the standard deviation, the square root of ``var``, over one axis, several or all."""

    @overload
    def stop_gradient(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return x, with zero gradient."""

    @overload
    def stop_gradient(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return x, with zero gradient."""

    @overload
    def sub(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x - y."""

    @overload
    def sub(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x - y."""

    @overload
    def subtract(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x - y."""

    @overload
    def subtract(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x - y."""

    @overload
    def sum(self, a: OperandLike, axis: AxisLike = None, out: None = None, keepdims: bool = True) -> OpTreeNode:
        """Return the sum of the elements (int64 for integers, except uint64), over one axis, several or all."""

    @overload
    def sum(self, a: OperandLike, axis: AxisLike = None, *, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the sum of the elements (int64 for integers, except uint64), over one axis, several or all."""

    @overload
    def sum(self, a: OperandLike, axis: AxisLike, out: Tensor, keepdims: bool = True) -> Tensor:
        """Return the sum of the elements (int64 for integers, except uint64), over one axis, several or all."""

    @overload
    def svd_s(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the singular values of x in descending order, as rows."""

    @overload
    def svd_s(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the singular values of x in descending order, as rows."""

    @overload
    def svd_u(self, a: OperandLike, full_matrices: bool = False, out: None = None) -> OpTreeNode:
        """Return u of the singular value decomposition x = u diag(s) vh: the left singular vectors."""

    @overload
    def svd_u(self, a: OperandLike, full_matrices: bool = False, *, out: Tensor) -> Tensor:
        """Return u of the singular value decomposition x = u diag(s) vh: the left singular vectors."""

    @overload
    def svd_u(self, a: OperandLike, full_matrices: bool, out: Tensor) -> Tensor:
        """Return u of the singular value decomposition x = u diag(s) vh: the left singular vectors."""

    @overload
    def svd_vh(self, a: OperandLike, full_matrices: bool = False, out: None = None) -> OpTreeNode:
        """Return vh of the singular value decomposition x = u diag(s) vh: the right singular vectors, as rows."""

    @overload
    def svd_vh(self, a: OperandLike, full_matrices: bool = False, *, out: Tensor) -> Tensor:
        """Return vh of the singular value decomposition x = u diag(s) vh: the right singular vectors, as rows."""

    @overload
    def svd_vh(self, a: OperandLike, full_matrices: bool, out: Tensor) -> Tensor:
        """Return vh of the singular value decomposition x = u diag(s) vh: the right singular vectors, as rows."""

    @overload
    def take(self, a: OperandLike, indices: ArrayLike, axis: int | None = None, out: None = None) -> OpTreeNode:
        """Return the slices of ``a`` at the given indices along an axis."""

    @overload
    def take(self, a: OperandLike, indices: ArrayLike, axis: int | None = None, *, out: Tensor) -> Tensor:
        """Return the slices of ``a`` at the given indices along an axis."""

    @overload
    def take(self, a: OperandLike, indices: ArrayLike, axis: int | None, out: Tensor) -> Tensor:
        """Return the slices of ``a`` at the given indices along an axis."""

    @overload
    def take_along_axis(self, a: OperandLike, indices: ArrayLike, axis: int = -1, out: None = None) -> OpTreeNode:
        """Return the elements of x at the given indices along an axis."""

    @overload
    def take_along_axis(self, a: OperandLike, indices: ArrayLike, axis: int = -1, *, out: Tensor) -> Tensor:
        """Return the elements of x at the given indices along an axis."""

    @overload
    def take_along_axis(self, a: OperandLike, indices: ArrayLike, axis: int, out: Tensor) -> Tensor:
        """Return the elements of x at the given indices along an axis."""

    @overload
    def tan(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the tangent of x."""

    @overload
    def tan(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the tangent of x."""

    @overload
    def tanh(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return the hyperbolic tangent of x."""

    @overload
    def tanh(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return the hyperbolic tangent of x."""

    @overload
    def tanh2(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return ``(2^2a - 1) / (2^2a + 1)``."""

    @overload
    def tanh2(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return ``(2^2a - 1) / (2^2a + 1)``."""

    @overload
    def transpose(self, a: OperandLike, axes: Sequence[int] | None = None, out: None = None) -> OpTreeNode:
        """Return ``a`` with its axes permuted."""

    @overload
    def transpose(self, a: OperandLike, axes: Sequence[int] | None = None, *, out: Tensor) -> Tensor:
        """Return ``a`` with its axes permuted."""

    @overload
    def transpose(self, a: OperandLike, axes: Sequence[int] | None, out: Tensor) -> Tensor:
        """Return ``a`` with its axes permuted."""

    @overload
    def tril(self, a: OperandLike, k: int = 0, out: None = None) -> OpTreeNode:
        """Return x with 0 above diagonal k of its matrices."""

    @overload
    def tril(self, a: OperandLike, k: int = 0, *, out: Tensor) -> Tensor:
        """Return x with 0 above diagonal k of its matrices."""

    @overload
    def tril(self, a: OperandLike, k: int, out: Tensor) -> Tensor:
        """Return x with 0 above diagonal k of its matrices."""

    @overload
    def triu(self, a: OperandLike, k: int = 0, out: None = None) -> OpTreeNode:
        """Return x with 0 below diagonal k of its matrices."""

    @overload
    def triu(self, a: OperandLike, k: int = 0, *, out: Tensor) -> Tensor:
        """Return x with 0 below diagonal k of its matrices."""

    @overload
    def triu(self, a: OperandLike, k: int, out: Tensor) -> Tensor:
        """Return x with 0 below diagonal k of its matrices."""

    @overload
    def true_divide(self, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return x / y."""

    @overload
    def true_divide(self, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return x / y."""

    @overload
    def trunc(self, a: OperandLike, out: None = None) -> OpTreeNode:
        """Return x rounded toward zero."""

    @overload
    def trunc(self, a: OperandLike, out: Tensor) -> Tensor:
        """Return x rounded toward zero."""

    @overload
    def var(
        self,
        a: OperandLike,
        axis: AxisLike = None,
        partial: object = None,
        out: None = None,
        keepdims: bool = True,
        binary: bool = False,
    ) -> OpTreeNode:
        """Return the population variance, ``mean((a - mean(a))^2)``, over one axis, several or all."""

    @overload
    def var(
        self,
        a: OperandLike,
        axis: AxisLike = None,
        partial: object = None,
        *,
        out: Tensor,
        keepdims: bool = True,
        binary: bool = False,
    ) -> Tensor:
        """Return the population variance, ``mean((a - mean(a))^2)``, over one axis, several or all."""

    @overload
    def var(
        self, a: OperandLike, axis: AxisLike, partial: object, out: Tensor, keepdims: bool = True, binary: bool = False
    ) -> Tensor:
        """Return the population variance, ``mean((a - mean(a))^2)``, over one axis, several or all."""

    @overload
    def where(self, condition: OperandLike, a: OperandLike, b: OperandLike, out: None = None) -> OpTreeNode:
        """Return ``a`` where the condition is not 0, else ``b``."""

    @overload
    def where(self, condition: OperandLike, a: OperandLike, b: OperandLike, out: Tensor) -> Tensor:
        """Return ``a`` where the condition is not 0, else ``b``."""
