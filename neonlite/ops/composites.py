"""The composite rows of the op table: the formula of each, and derivatives that are faster than the formula's.

A formula is evaluated as any op-tree is. 16-bit floats are computed in float32, and rounded once, at the end.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from neonlite.ops.functions import widen_half
from neonlite.ops.shapes import normalize_axes

if TYPE_CHECKING:
    from neonlite.backend.base import BackendBase
    from neonlite.ops.functions import Gradients
    from neonlite.typing import AxisLike, Operand

GELU_SCALE, GELU_CUBE = math.sqrt(8 / math.pi), 0.044715
GELU_LIMIT = 25  # beyond it the logistic function is 0 or 1, and the cube could overflow


def narrow(be: BackendBase, z: Operand, x: Operand) -> Operand:
    """Return z, computed from ``widen_half(be, x)``, in the dtype of x if it has 16 bits."""
    return z if widen_half(be, x) is x else be.astype(z, x.info.dtype)


# --- softmax ---


def softmax(be: BackendBase, x: Operand, *, axis: AxisLike = 0) -> Operand:
    """Return ``e^x / sum(e^x)``."""
    wide = widen_half(be, x)
    e = be.exp(wide - be.stop_gradient(be.max(wide, axis=axis)))
    return narrow(be, e / be.sum(e, axis=axis), x)


def grad_softmax(be: BackendBase, dz: Operand, z: Operand, x: Operand, axis: AxisLike) -> Gradients:
    """Return ``z (dz - sum(z dz))``."""
    dz, z = widen_half(be, dz), widen_half(be, z)
    return (z * (dz - be.sum(z * dz, axis=axis)),)


def log_softmax(be: BackendBase, x: Operand, *, axis: AxisLike = 0) -> Operand:
    """Return ``x - ln sum(e^x)``."""
    wide = widen_half(be, x)
    shifted = wide - be.stop_gradient(be.max(wide, axis=axis))
    return narrow(be, shifted - be.log(be.sum(be.exp(shifted), axis=axis)), x)


def grad_log_softmax(be: BackendBase, dz: Operand, z: Operand, x: Operand, axis: AxisLike) -> Gradients:
    """Return ``dz - e^z sum(dz)``."""
    dz, z = widen_half(be, dz), widen_half(be, z)
    return (dz - be.exp(z) * be.sum(dz, axis=axis),)


def logsumexp(be: BackendBase, x: Operand, *, axis: AxisLike = 0) -> Operand:
    """Return ``ln sum(e^x)``; -inf where all elements are -inf."""
    wide = widen_half(be, x)
    largest = be.stop_gradient(be.max(wide, axis=axis))
    largest = be.where(be.finite(largest), largest, 0)
    return narrow(be, largest + be.log(be.sum(be.exp(wide - largest), axis=axis)), x)


def cross_entropy(be: BackendBase, x: Operand, t: Operand, *, axis: AxisLike = 0) -> Operand:
    """Return ``-mean(sum(t log_softmax(x)))``, the mean over all but the classes."""
    wide = widen_half(be, x)
    total = be.sum(t * be.log_softmax(wide, axis=axis))
    num_classes = math.prod(x.shape[a] for a in normalize_axes(axis, x.ndim))
    return narrow(be, total * (-num_classes / math.prod(x.shape)), x)


# --- activation functions ---


def silu(be: BackendBase, x: Operand) -> Operand:
    """Return ``x / (1 + e^-x)``."""
    return x * be.sig(x)


def grad_silu(be: BackendBase, dz: Operand, z: Operand, x: Operand) -> Gradients:
    """Return ``dz s (1 + x (1 - s))``, where s is the logistic function of x."""
    s = be.sig(x)
    return (dz * (s * (1 + x * (1 - s))),)


def gelu_gate(be: BackendBase, x: Operand) -> tuple[Operand, Operand]:
    """Return gelu(x) / x, which is the logistic function of a v, and dv/dx.

    ``(1 + tanh u) / 2`` is computed as the logistic function of v = 2u, to avoid cancellation for tanh u near -1.
    """
    c = be.clip(x, -GELU_LIMIT, GELU_LIMIT)
    cubic = GELU_CUBE * be.square(c)
    return be.sig(GELU_SCALE * c * (1 + cubic)), GELU_SCALE * (1 + 3 * cubic)


def gelu(be: BackendBase, x: Operand) -> Operand:
    """Return ``x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))``."""
    return x * gelu_gate(be, x)[0]


def grad_gelu(be: BackendBase, dz: Operand, z: Operand, x: Operand) -> Gradients:
    """Return ``dz (s + x s (1 - s) dv/dx)``, where gelu(x) = x s."""
    s, slope = gelu_gate(be, x)
    return (dz * (s + x * (s * (1 - s)) * slope),)


# --- normalization ---


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
    wide = widen_half(be, x)
    d = wide - be.mean(wide, axis=axis)
    z = d / be.sqrt(be.mean(be.square(d), axis=axis) + eps)
    return narrow(be, scale_and_shift(z, gamma, beta), x)


def rms_norm(
    be: BackendBase, x: Operand, gamma: Operand | None = None, *, axis: AxisLike = 0, eps: float = 1e-5
) -> Operand:
    """Return ``x / sqrt(mean(x^2) + eps) gamma``."""
    wide = widen_half(be, x)
    z = wide / be.sqrt(be.mean(be.square(wide), axis=axis) + eps)
    return narrow(be, scale_and_shift(z, gamma, None), x)


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
    C, N, wide = x.shape[0], x.shape[-1], widen_half(be, x)
    if C % groups:
        raise ValueError(f"expected a number of groups that divides the {C} channels, got {groups}")
    z: Any = layer_norm(be, be.reshape(wide, (groups, -1, N)), axis=1, eps=eps)
    z = be.reshape(z, (C, -1, N))
    shape = (C, 1, 1)
    gamma, beta = (p if p is None else be.reshape(p, shape) for p in (gamma, beta))
    return narrow(be, be.reshape(scale_and_shift(z, gamma, beta), x.shape), x)


def scale_and_shift(z: Any, gamma: Operand | None, beta: Operand | None) -> Operand:
    """Return ``z gamma + beta``."""
    z = z if gamma is None else z * gamma
    return z if beta is None else z + beta
