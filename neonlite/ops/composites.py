"""The composite rows of the op table: the formula of each, and derivatives that are faster than the formula's.

A formula is evaluated as any op-tree is. ``evaluate_formula`` casts operands of 16-bit floats to float32, so that the
result is rounded once, at the end; ``Autodiff`` does so for the derivatives.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

from neonlite.ops.functions import Gradients, Shape, build_variadic
from neonlite.typing import HALF_DTYPES, AxisLike, BackendBase, Operand

GELU_SCALE = math.sqrt(8 / math.pi)
GELU_CUBE = 0.044715 * GELU_SCALE
GELU_LIMIT = 25.0  # beyond it the logistic function is 0 or 1, and the square could overflow
TINY = 2.0**-126  # the smallest normal number of float32


# --- softmax ---


def softmax(be: BackendBase, x: Operand, *, axis: AxisLike = 0) -> Operand:
    """Return ``e^x / sum(e^x)``."""
    e = be.exp(x - be.stop_gradient(be.max(x, axis=axis)))
    return e / be.sum(e, axis=axis)


def grad_softmax(be: BackendBase, dz: Operand, z: Operand, x: Operand, axis: AxisLike = 0) -> Gradients:
    """Return ``z (dz - sum(z dz))``."""
    return (z * (dz - be.sum(z * dz, axis=axis)),)


def log_softmax(be: BackendBase, x: Operand, *, axis: AxisLike = 0) -> Operand:
    """Return ``x - ln sum(e^x)``."""
    shifted = x - be.stop_gradient(be.max(x, axis=axis))
    return shifted - be.log(be.sum(be.exp(shifted), axis=axis))


def grad_log_softmax(be: BackendBase, dz: Operand, z: Operand, x: Operand, axis: AxisLike = 0) -> Gradients:
    """Return ``dz - e^z sum(dz)``."""
    return (dz - be.exp(z) * be.sum(dz, axis=axis),)


def masked_softmax(be: BackendBase, x: Operand, mask: Operand, *, axis: AxisLike = 0) -> Operand:
    """Return the softmax over the elements where the mask is not 0; zeros if it is 0 everywhere."""
    x = be.where(mask, x, -math.inf)
    largest = be.stop_gradient(be.max(x, axis=axis))
    e = be.exp(x - be.where(be.finite(largest), largest, 0))
    total = be.sum(e, axis=axis)
    return e / be.where(total == 0, 1, total)


def grad_masked_softmax(
    be: BackendBase, dz: Operand, z: Operand, x: Operand, mask: Operand, axis: AxisLike = 0
) -> Gradients:
    """Return ``z (dz - sum(z dz))``."""
    return *grad_softmax(be, dz, z, x, axis), None


def logsumexp(be: BackendBase, x: Operand, *, axis: AxisLike = 0) -> Operand:
    """Return ``ln sum(e^x)``; -inf where all elements are -inf."""
    largest = be.stop_gradient(be.max(x, axis=axis))
    largest = be.where(be.finite(largest), largest, 0)
    return largest + be.log(be.sum(be.exp(x - largest), axis=axis))


def cross_entropy(be: BackendBase, x: Operand, t: Operand, *, axis: AxisLike = 0) -> Operand:
    """Return ``-mean(sum(t log_softmax(x)))``, the mean over all but the classes."""
    return -be.mean(be.sum(t * be.log_softmax(x, axis=axis), axis=axis))


# --- activation functions ---


def silu(be: BackendBase, x: Operand) -> Operand:
    """Return ``x / (1 + e^-x)``."""
    return x * be.sig(x)


def grad_silu(be: BackendBase, dz: Operand, z: Operand, x: Operand) -> Gradients:
    """Return ``dz s (1 + x (1 - s))``, where s is the logistic function of x."""
    s = be.sig(x)
    return (dz * (s * (1 + x * (1 - s))),)


def leaky_relu(be: BackendBase, x: Operand, *, slope: float = 0.01) -> Operand:
    """Return ``max(x, 0) + slope min(x, 0)``."""
    y = be.maximum(x, 0)
    return y + slope * be.minimum(x, 0) if slope else y


def elu(be: BackendBase, x: Operand, *, alpha: float = 1.0) -> Operand:
    """Return ``max(x, 0) + alpha (e^min(x, 0) - 1)``; the derivative at 0 is alpha."""
    # the derivative of min(x, 0) at 0 is 0, that of min(x, TINY) is 1; e^TINY is 1, too
    return be.maximum(x, 0) + alpha * (be.exp(be.minimum(x, TINY)) - 1)


def gelu_gate(be: BackendBase, x: Operand, square: Operand) -> Operand:
    """Return gelu(x) / x, the logistic function of v, given x^2.

    ``(1 + tanh u) / 2`` is computed as the logistic function of v = 2u, to avoid cancellation for tanh u near -1.
    """
    return be.sig(x * (GELU_SCALE + GELU_CUBE * square))


def gelu(be: BackendBase, x: Operand) -> Operand:
    """Return ``x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))``."""
    return x * gelu_gate(be, x, be.square(x))


def grad_gelu(be: BackendBase, dz: Operand, z: Operand, x: Operand) -> Gradients:
    """Return ``dz (s + x s (1 - s) dv/dx)``, where gelu(x) = x s."""
    square = be.minimum(be.square(x), GELU_LIMIT**2)
    s = gelu_gate(be, x, square)
    return (dz * (s + x * (s * (1 - s)) * (GELU_SCALE + 3 * GELU_CUBE * square)),)


# --- normalization ---


def normalize(be: BackendBase, x: Operand, *, axis: AxisLike = 0, eps: float = 1e-5) -> Operand:
    """Return ``(x - mean) / sqrt(variance + eps)``."""
    d, scale = deviation(be, x, axis, eps)
    return d * scale


def grad_normalize(
    be: BackendBase, dz: Operand, z: Operand, x: Operand, axis: AxisLike = 0, eps: float = 1e-5
) -> Gradients:
    """Return ``(dz - mean(dz) - z mean(z dz)) / sqrt(variance + eps)``."""
    _, scale = deviation(be, x, axis, eps)
    return ((dz - be.mean(dz, axis=axis) - z * be.mean(z * dz, axis=axis)) * scale,)


def deviation(be: BackendBase, x: Operand, axis: AxisLike, eps: float) -> tuple[Any, Any]:
    """Return ``x - mean`` and ``1 / sqrt(variance + eps)``."""
    d = x - be.mean(x, axis=axis)
    return d, 1 / be.sqrt(be.mean(be.square(d), axis=axis) + eps)


def scale_and_shift(z: Any, gamma: Operand | None, beta: Operand | None) -> Operand:
    """Return ``z gamma + beta``."""
    z = z if gamma is None else z * gamma
    return z if beta is None else z + beta


def layer_norm(
    be: BackendBase,
    x: Operand,
    gamma: Operand | None = None,
    beta: Operand | None = None,
    *,
    axis: AxisLike = 0,
    eps: float = 1e-5,
) -> Operand:
    """Return ``(x - mean) / sqrt(variance + eps) gamma + beta``."""
    return scale_and_shift(be.normalize(x, axis=axis, eps=eps), gamma, beta)


def rms_norm(
    be: BackendBase, x: Operand, gamma: Operand | None = None, *, axis: AxisLike = 0, eps: float = 1e-5
) -> Operand:
    """Return ``x / sqrt(mean(x^2) + eps) gamma``."""
    return scale_and_shift(x / be.sqrt(be.mean(be.square(x), axis=axis) + eps), gamma, None)


def batch_norm(
    be: BackendBase, x: Operand, gamma: Operand | None = None, beta: Operand | None = None, *, eps: float = 1e-5
) -> Operand:
    """Return images (C, *sizes, N), each channel normalized."""
    d, scale = deviation(be, x, tuple(range(1, x.ndim)), eps)
    return scale_and_shift(d * scale_and_shift(scale, per_channel(be, x, gamma), None), None, per_channel(be, x, beta))


def grad_batch_norm(
    be: BackendBase,
    dz: Operand,
    z: Operand,
    x: Operand,
    gamma: Operand | None = None,
    beta: Operand | None = None,
    eps: float = 1e-5,
) -> Gradients:
    """Return ``gamma (dz - mean(dz) - n mean(n dz)) / sqrt(variance + eps)``, ``sum(n dz)`` and ``sum(dz)``.

    n are the normalized images.
    """
    d, scale = deviation(be, x, tuple(range(1, x.ndim)), eps)
    dx, *sums = batch_norm_gradients(be, dz, d, scale, per_channel(be, x, gamma))
    return dx, *(be.reshape(s, p.shape) for p, s in zip((gamma, beta), sums, strict=True) if p is not None)


def batch_norm_gradients(be: BackendBase, dz: Operand, d: Any, scale: Any, gamma: Any) -> tuple[Any, Any, Any]:
    """Return the gradients of x, gamma and beta, from ``d = x - mean`` and ``scale = 1 / sqrt(variance + eps)``."""
    axes, m = tuple(range(1, dz.ndim)), math.prod(dz.shape[1:])
    dgamma, dbeta = be.sum(d * dz, axis=axes) * scale, be.sum(dz, axis=axes)
    k = scale * dgamma * (1 / m)
    return (dz - d * k - dbeta * (1 / m)) * scale_and_shift(scale, gamma, None), dgamma, dbeta


def shift_batch_norm(
    be: BackendBase, x: Operand, gamma: Operand | None = None, beta: Operand | None = None, *, eps: float = 1e-5
) -> Operand:
    """Return images (C, *sizes, N), each channel normalized by products with powers of two."""
    z, gamma = be.shift(*shift_deviation(be, x, eps)), per_channel(be, x, gamma)
    return scale_and_shift(z if gamma is None else be.shift(z, gamma), None, per_channel(be, x, beta))


def shift_deviation(be: BackendBase, x: Operand, eps: float) -> tuple[Any, Any]:
    """Return ``x - mean`` and ``1 / sqrt(variance + eps)``, with each square a product with a power of two."""
    axes = tuple(range(1, x.ndim))
    d = x - be.mean(x, axis=axes)
    return d, 1 / be.sqrt(be.mean(be.shift(d, d), axis=axes) + eps)


def grad_shift_batch_norm(
    be: BackendBase,
    dz: Operand,
    z: Operand,
    x: Operand,
    gamma: Operand | None = None,
    beta: Operand | None = None,
    eps: float = 1e-5,
) -> Gradients:
    """Return the gradients of ``batch_norm``, by products with powers of two.

    The formula has another derivative: that of a factor which is rounded to a power of two is 0 almost everywhere.
    """
    dx, *sums = shift_batch_norm_gradients(be, dz, *shift_deviation(be, x, eps), per_channel(be, x, gamma))
    return dx, *(be.reshape(s, p.shape) for p, s in zip((gamma, beta), sums, strict=True) if p is not None)


def shift_batch_norm_gradients(be: BackendBase, dz: Operand, d: Any, scale: Any, gamma: Any) -> tuple[Any, Any, Any]:
    """Return the gradients of x, gamma and beta, as ``batch_norm_gradients`` does, by products with powers of two."""
    axes, m = tuple(range(1, dz.ndim)), math.prod(dz.shape[1:])
    normalized: Any = be.shift(d, scale)
    dgamma, dbeta = be.sum(normalized * dz, axis=axes), be.sum(dz, axis=axes)
    dx: Any = dz - (be.shift(normalized, dgamma) + dbeta) * (1 / m)
    return be.shift(dx if gamma is None else be.shift(dx, gamma), scale), dgamma, dbeta


def group_norm(
    be: BackendBase,
    x: Operand,
    gamma: Operand | None = None,
    beta: Operand | None = None,
    *,
    groups: int = 1,
    eps: float = 1e-5,
) -> Operand:
    """Return images (C, *sizes, N), each group of channels of each sample normalized."""
    C, N = x.shape[0], x.shape[-1]
    if groups < 1 or C % groups:
        raise ValueError(f"expected a number of groups that divides the {C} channels, got {groups}")
    z = be.normalize(be.reshape(x, (groups, math.prod(x.shape[:-1]) // groups, N)), axis=1, eps=eps)
    return scale_and_shift(be.reshape(z, x.shape), per_channel(be, x, gamma), per_channel(be, x, beta))


def per_channel(be: BackendBase, x: Operand, p: Operand | None) -> Operand | None:
    """Return a parameter of C elements in a shape that broadcasts to x (C, ...)."""
    return p if p is None else be.reshape(p, (x.shape[0], *[1] * (x.ndim - 1)))


# --- attention ---


def attention(be: BackendBase, q: Operand, k: Operand, v: Operand, mask: Operand | None = None) -> Operand:
    """Return ``softmax(q k^T / sqrt(d)) v``."""
    if not are_attended(q.shape, k.shape, v.shape):
        raise ValueError(
            f"expected q (..., T, d), k (..., S, d) and v (..., S, e), got {q.shape}, {k.shape} and {v.shape}"
        )
    scores = q * (1 / math.sqrt(q.shape[-1])) @ k.T  # q has fewer elements than the scores
    return (be.softmax(scores, -1) if mask is None else be.masked_softmax(scores, mask, -1)) @ v


def fuse_attention(be: Any, *operands: Operand) -> Any:
    """Return the op of a library for the attention of 16-bit q, k and v; None with a mask, or where there is none."""
    dtypes = [x.info.dtype if hasattr(x, "info") else "" for x in operands]
    if len(dtypes) != 3 or len({*dtypes}) > 1 or dtypes[0] not in HALF_DTYPES:
        return None
    shapes = [x.shape for x in operands]
    if not are_attended(*shapes) or not be.primitives.computes_attention(shapes, dtypes[0], causal=False):
        return None
    return build_variadic(be, "fused_attention", *operands, causal=False)


# --- attention that a library computes ---
#
# The operands are the queries, keys and values (..., T, d), (..., S, d), (..., S, e); or x (T, N, 3, H, d), those of H
# heads, for T steps of N sequences, whose gradient is one array, too. The last axes are those of features, so that
# products write and read such arrays as matrices. These are functions of arrays or of op-trees: the forward functions
# of ops and their formulas.

MAX_EXPONENT = 80.0  # of weights that a mask sets to 0, so that they do not overflow before


def attention_scores(be: Any, *operands: Any) -> list[Any]:
    """Return the scores ``q k^T / sqrt(d)``, and q, k and v (..., T, d)."""
    q, k, v = operands if len(operands) == 3 else split_heads(be, *operands)
    return [q @ transpose_matrices(be, k) * q.shape[-1] ** -0.5, q, k, v]


def split_heads(be: Any, x: Any) -> list[Any]:
    """Return the queries, keys and values (N, H, T, d) of x."""
    T, N, _, H, d = x.shape
    x = be.build("transpose", x, axes=(2, 1, 3, 0, 4))
    box = (0, N, 1), (0, H, 1), (0, T, 1), (0, d, 1)
    return [be.build("reshape", be.build("slice", x, index=((n, 1, 1), *box)), to=(N, H, T, d)) for n in range(3)]


def transpose_matrices(be: Any, x: Any) -> Any:
    """Return the transposes of matrices (..., m, n)."""
    *stack, m, n = range(x.ndim)
    return be.build("transpose", x, axes=(*stack, n, m))


def exponentials(be: Any, scores: Any, largest: Any, causal: bool) -> Any:
    """Return ``e^(scores - largest)``, 0 for later steps if causal."""
    e = be.build("exp", be.build("minimum", scores - largest, MAX_EXPONENT))
    return be.build("tril", e, k=0) if causal else e


def attention_stats(be: Any, *operands: Any, causal: bool, to: str) -> Any:
    """Return ``ln sum(e^scores)``, (..., T, 1), in a dtype."""
    scores, *_ = attention_scores(be, *(be.build("cast", x, to=to) for x in operands))
    return log_sum(be, scores, causal)


def log_sum(be: Any, scores: Any, causal: bool) -> Any:
    """Return ``ln sum(e^scores)`` of the scores of each query, those of later steps excluded if causal."""
    over_keys: Any = {"axis": (scores.ndim - 1,), "keepdims": True}
    lowest = be.build("min", scores, **over_keys)
    above = scores - lowest  # 0 for later steps does not change the maximum
    seen = be.build("tril", above, k=0) if causal else above
    largest = be.build("stop_gradient", lowest + be.build("max", seen, **over_keys))
    e = exponentials(be, scores, largest, causal)
    return largest + be.build("log", be.build("sum", e, **over_keys))


def fused_attention(be: Any, *operands: Any, causal: bool) -> Any:
    """Return ``softmax(scores) v``, (..., T, e); of x (T, N, H, d)."""
    scores, *_, v = attention_scores(be, *operands)
    z = exponentials(be, scores, log_sum(be, scores, causal), causal) @ v
    return z if len(operands) == 3 else be.build("transpose", z, axes=(2, 0, 1, 3))


def fused_attention_backward(be: Any, dz: Any, z: Any, *others: Any, causal: bool, part: int) -> Any:
    """Return the gradient of one of the operands, given the result z, its error dz, the operands and the stats."""
    *operands, stats = others
    scores, q, k, v = attention_scores(be, *operands)
    weights, factor = exponentials(be, scores, stats, causal), q.shape[-1] ** -0.5
    if len(operands) == 1:
        dz, z = (be.build("transpose", x, axes=(1, 2, 0, 3)) for x in (dz, z))
    products = be.build("sum", dz * z, axis=(z.ndim - 1,), keepdims=True)
    dscores = weights * (dz @ transpose_matrices(be, v) - products) * factor
    parts = [dscores @ k, transpose_matrices(be, dscores) @ q, transpose_matrices(be, weights) @ dz]
    if len(operands) == 3:
        return parts[part]
    T, N, _, H, d = operands[0].shape
    parts = [be.build("transpose", x, axes=(2, 0, 1, 3)) for x in parts]
    return be.concat([be.build("reshape", x, to=(T, N, 1, H, d)) for x in parts], axis=2)


def grad_fused_attention(be: BackendBase, dz: Operand, z: Operand, *operands: Operand, causal: bool) -> Gradients:
    """Return the gradients of the operands by the op that reads the stats of the forward pass."""
    dtype = operands[0].info.dtype
    to = dtype if dtype not in HALF_DTYPES else "float32"
    values = dz, z, *operands, build_variadic(be, "attention_stats", *operands, causal=causal, to=to)
    backward = "fused_attention_backward"
    return tuple([build_variadic(be, backward, *values, causal=causal, part=n) for n in range(len(operands))])


def are_attended(q: Shape, k: Shape, v: Shape) -> bool:
    """Return whether these are shapes of queries, keys and values."""
    return len(q) > 1 and (q[:-2], q[-1], k[:-1]) == (k[:-2], k[-1], v[:-1])


def split_shapes(*operands: Shape) -> list[Shape]:
    """Return the shapes of the queries, keys and values (..., T, d)."""
    if len(operands) == 1 and len(operands[0]) == 5 and operands[0][2] == 3:
        T, N, _, H, d = operands[0]
        return [(N, H, T, d)] * 3
    if len(operands) == 3 and are_attended(*operands):
        return [*operands]
    raise ValueError(
        "expected queries, keys and values (T, N, 3, H, d), or q (..., T, d), k (..., S, d) and v (..., S, e), got "
        f"{' and '.join(map(str, operands))}"
    )


def attention_shape(*operands: Shape, **_: object) -> Shape:
    """Return (..., T, e), or (T, N, H, d)."""
    heads = split_shapes(*operands)
    return operands[0][:2] + operands[0][3:] if len(operands) == 1 else heads[0][:-1] + heads[2][-1:]


def attention_stats_shape(*operands: Shape, **_: object) -> Shape:
    """Return (..., T, 1)."""
    return (*split_shapes(*operands)[0][:-1], 1)


def attention_backward_shape(dz: Shape, z: Shape, *others: Shape, part: int, **_: object) -> Shape:
    """Return the shape of an operand."""
    return others[part]


def attention_flops(z: Shape, *operands: Shape) -> int:
    """Return the operations of the two products."""
    q, k, v = split_shapes(*operands)
    return 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def attention_backward_flops(z: Shape, *values: Shape) -> int:
    """Return the operations of the five products, divided by the number of gradients, which are computed together."""
    q, k, v = split_shapes(*values[2:-1])
    return 2 * math.prod(q[:-1]) * k[-2] * (3 * q[-1] + 2 * v[-1]) // len(values[2:-1])


# --- int8 and bfloat16 inference ---


def round_to_int8(be: BackendBase, x: Operand, scale: float) -> Operand:
    """Return ``x / scale`` rounded to the integers from -128 to 127."""
    return be.minimum(be.maximum(be.rint(x * (1 / scale)), -128), 127)


def round_to_bfloat16(be: BackendBase, x: Operand) -> Operand:
    """Return float32 rounded to 8 significant bits, ties to even, as float32; infinities and NaN stay.

    In float64, of 53 bits, the sum ``(2^45 + 1) x`` is rounded to the last bit that remains of x, and then the other
    term, ``2^45 x``, is exact.
    """
    wide = be.astype(x, "float64")
    total = wide * (2.0**45 + 1)
    return be.astype(be.where(be.isfinite(wide), total - (total - wide), wide), "float32")


def from_bfloat16(be: BackendBase, bits: Operand) -> Operand:
    """Return finite numbers of bfloat16, which are given by their bits as int16, as float32."""
    number = be.astype(bits, "float64")
    magnitude = be.where(number < 0, number + 2**15, number)
    exponent = be.floor(magnitude / 128)
    value = be.shift(magnitude - 128 * exponent + 128, exponent - 134, value=False) * be.where(number < 0, -1.0, 1.0)
    return be.astype(be.where(exponent > 0, value, 0), "float32")


def rounded_operands(be: BackendBase, x: Operand, W: Operand, scale: float | None) -> tuple[Operand, Operand]:
    """Return x rounded to the format of W, and W, as floats. W: int8, or without ``scale`` the bits of bfloat16."""
    dtype = x.info.dtype
    if scale is not None:
        return round_to_int8(be, x, scale), be.astype(W, dtype)
    rounded = round_to_bfloat16(be, be.astype(x, "float32"))
    return be.astype(rounded, dtype), be.astype(from_bfloat16(be, W), dtype)


def rescale(be: BackendBase, z: Operand, bias: Operand, factors: Operand | None, relu: bool) -> Operand:
    """Return ``factors z + bias``, with one number for each row or channel, or max(., 0) of it."""
    result = (z if factors is None else z * per_channel(be, z, factors)) + per_channel(be, z, bias)
    return be.maximum(result, 0) if relu else result


def no_gradient_of_rounding(*_: object, **__: object) -> NoReturn:
    """Raise NotImplementedError: the gradient rule of ops that round their inputs."""
    raise NotImplementedError(
        "expected float weights to differentiate, got weights of int8 or bfloat16, for which inputs are rounded. "
        "Differentiate the model that was quantized."
    )


def quantized_dot(
    be: BackendBase,
    x: Operand,
    W: Operand,
    bias: Operand,
    factors: Operand | None = None,
    *,
    scale: float | None,
    relu: bool,
) -> Operand:
    """Return ``factors (W round(x / scale)) + bias``, or max(., 0) of it; bfloat16 has no factors and no scale."""
    x, W = rounded_operands(be, x, W, scale)
    return rescale(be, be.dot(W, x), bias, factors, relu)


def quantized_conv(
    be: BackendBase,
    x: Operand,
    W: Operand,
    bias: Operand,
    factors: Operand | None = None,
    *,
    scale: float | None,
    relu: bool,
    **options: Any,
) -> Operand:
    """Return ``factors conv(round(x / scale), W) + bias``, or max(., 0) of it; bfloat16 has no factors and no scale."""
    x, W = rounded_operands(be, x, W, scale)
    return rescale(be, be.conv(x, W, **options), bias, factors, relu)
