"""Functions of the op table for linear algebra on the last two axes: forward functions, shape and gradient rules.

The gradient rules are those of M. B. Giles, "An extended collection of matrix derivative results for forward and
reverse mode automatic differentiation", Oxford University Computing Laboratory, report 08/01, 2008, unless a rule names
another reference. They consist of op-trees, so that they can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neonlite.ops.functions import Gradients, Shape, broadcast_shapes
from neonlite.typing import BackendBase, Namespace, NativeArray, Operand

# --- forward functions ---


def call_linalg(function: Callable[..., Any], *operands: NativeArray, **options: object) -> Any:
    """Call a function of ``xp.linalg``. The error of a library about the values becomes a ValueError."""
    try:
        return function(*operands, **options)
    except Exception as error:
        if type(error).__name__ not in ("LinAlgError", "_LinAlgError"):
            raise
        raise ValueError(str(error).splitlines()[0]) from None


def symmetrize(x: Any) -> Any:
    """Return (x + x^T) / 2, of arrays."""
    return (x + x.mT) / 2


def run_cholesky(xp: Namespace, x: NativeArray, *, upper: bool = False) -> NativeArray:
    """Return the Cholesky factor of (x + x^T) / 2: lower triangular, or its transpose if ``upper``."""
    factor = call_linalg(xp.linalg.cholesky, symmetrize(x))
    return factor.mT if upper else factor


def run_solve(xp: Namespace, x: NativeArray, y: NativeArray) -> NativeArray:
    """Return x^-1 y. The batches are broadcast here, as libraries differ in what they accept."""
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2]) if x.ndim > 2 or y.ndim > 2 else ()
    x, y = (xp.broadcast_to(a, (*batch, *a.shape[-2:])) for a in (x, y))
    return call_linalg(xp.linalg.solve, x, y)


def run_inv(xp: Namespace, x: NativeArray) -> NativeArray:
    """Return the inverse."""
    return call_linalg(xp.linalg.inv, x)


def run_qr(xp: Namespace, x: NativeArray, mode: str, factor: int) -> NativeArray:
    """Return q (factor 0) or r (factor 1) of the QR decomposition."""
    return call_linalg(xp.linalg.qr, x, mode=mode)[factor]


def run_svd(xp: Namespace, x: NativeArray, full_matrices: bool, factor: int) -> NativeArray:
    """Return u (factor 0), s (1) or vh (2) of the singular value decomposition."""
    return call_linalg(xp.linalg.svd, x, full_matrices=full_matrices)[factor]


def run_eigh(xp: Namespace, x: NativeArray, factor: int) -> NativeArray:
    """Return the eigenvalues (factor 0) or eigenvectors (factor 1) of (x + x^T) / 2."""
    return call_linalg(xp.linalg.eigh, symmetrize(x))[factor]


def run_cofactors(xp: Namespace, x: NativeArray) -> NativeArray:
    """Return the cofactor matrices, det(x) x^-T for invertible x, by the singular value decomposition.

    They are det(u) det(vh) u diag(p) vh, where p_i is the product of the other singular values. Computed in float64, as
    the errors of large singular values are added to small cofactors.
    """
    u, s, vh = call_linalg(xp.linalg.svd, xp.astype(x, xp.float64), full_matrices=False)
    before, after = products_before(xp, s), xp.flip(products_before(xp, xp.flip(s, axis=-1)), axis=-1)
    return xp.astype(determinant_sign(xp, u, vh) * ((u * (before * after)[..., None, :]) @ vh), x.dtype)


def run_cofactors_backward(xp: Namespace, dz: NativeArray, x: NativeArray) -> NativeArray:
    """Return the gradient of the cofactor matrices with respect to x.

    For w = u^T dz vh^T it is det(u) det(vh) u (diag(p diag(w)) - p w^T) vh, elementwise in p w^T, where p_ij is the
    product of the singular values other than s_i and s_j, and p_ii = 0.
    """
    dtype, x, dz = x.dtype, xp.astype(x, xp.float64), xp.astype(dz, xp.float64)
    u, s, vh = call_linalg(xp.linalg.svd, x, full_matrices=False)
    n = s.shape[-1]
    index = xp.arange(n)
    is_upper = index[:, None] < index[None, :]
    columns = xp.where(is_upper, s[..., None, :], xp.ones_like(x))  # in row i, the singular values after s_i
    before, after = products_before(xp, s), xp.flip(products_before(xp, xp.flip(s, axis=-1)), axis=-1)
    p = xp.where(is_upper, before[..., :, None] * products_before(xp, columns) * after[..., None, :], xp.zeros_like(x))
    p, w = p + p.mT, u.mT @ dz @ vh.mT
    diagonal = xp.sum(p * xp.sum(w * xp.eye(n, dtype=x.dtype), axis=-2, keepdims=True), axis=-1, keepdims=True)
    dx = determinant_sign(xp, u, vh) * (u @ (xp.eye(n, dtype=x.dtype) * diagonal - p * w.mT) @ vh)
    return xp.astype(dx, dtype)


def determinant_sign(xp: Namespace, u: NativeArray, vh: NativeArray) -> NativeArray:
    """Return det(u) det(vh) of orthogonal matrices, of shape (..., 1, 1)."""
    return (xp.sign(xp.linalg.det(u)) * xp.sign(xp.linalg.det(vh)))[..., None, None]


def products_before(xp: Namespace, x: NativeArray) -> NativeArray:
    """Return the product of the elements before each one along the last axis."""
    return xp.cumulative_prod(xp.concat([xp.ones_like(x[..., :1]), x[..., :-1]], axis=-1), axis=-1)


def run_pinv(xp: Namespace, x: NativeArray, y: Any) -> NativeArray:
    """Return the pseudo-inverse; singular values up to y times the largest one count as 0."""
    if 0 in x.shape:
        return xp.zeros((*x.shape[:-2], x.shape[-1], x.shape[-2]), dtype=x.dtype)
    u, s, vh = call_linalg(xp.linalg.svd, x, full_matrices=False)
    s = s[..., None, :]
    is_significant = s > xp.max(s, axis=-1, keepdims=True) * y
    divisors = xp.where(is_significant, s, xp.ones_like(s))
    return (vh.mT * xp.where(is_significant, 1 / divisors, xp.zeros_like(s))) @ u.mT


# --- shape rules ---


def square_shape(x: Shape, **_: object) -> Shape:
    """(..., n, n) -> (..., n, n)."""
    if x[-1] != x[-2]:
        raise ValueError(f"expected square matrices, got {x[-2]} rows and {x[-1]} columns")
    return x


def determinant_shape(x: Shape, **_: object) -> Shape:
    """(..., n, n) -> (..., 1, 1)."""
    return (*square_shape(x)[:-2], 1, 1)


def solve_shape(x: Shape, y: Shape) -> Shape:
    """(..., n, n), (..., n, k) -> (..., n, k); the batch axes broadcast."""
    if square_shape(x)[-1] != y[-2]:
        raise ValueError(f"expected as many rows as the {x[-1]} of the matrix, got {y[-2]}. Transpose with .T.")
    return (*broadcast_shapes(x[:-2], y[:-2]), *y[-2:]) if len(x) > 2 or len(y) > 2 else y


def left_factor_shape(x: Shape, *, full_matrices: bool = False, mode: str = "reduced") -> Shape:
    """(..., m, n) -> (..., m, min(m, n)), or (..., m, m) of a full decomposition."""
    return (*x[:-1], x[-2] if full_matrices or mode == "complete" else min(x[-2:]))


def qr_r_shape(x: Shape, *, mode: str = "reduced") -> Shape:
    """(..., m, n) -> (..., min(m, n), n), or (..., m, n) of a complete decomposition."""
    return (*x[:-2], x[-2] if mode == "complete" else min(x[-2:]), x[-1])


def svd_s_shape(x: Shape) -> Shape:
    """(..., m, n) -> (..., 1, min(m, n))."""
    return (*x[:-2], 1, min(x[-2:]))


def svd_vh_shape(x: Shape, *, full_matrices: bool = False) -> Shape:
    """(..., m, n) -> (..., min(m, n), n), or (..., n, n) of a full decomposition."""
    return (*x[:-2], x[-1] if full_matrices else min(x[-2:]), x[-1])


def cofactors_backward_shape(dz: Shape, x: Shape) -> Shape:
    """(..., n, n), (..., n, n) -> (..., n, n); the batch axes broadcast."""
    return broadcast_shapes(square_shape(dz), square_shape(x))


def pinv_shape(x: Shape, y: Shape) -> Shape:
    """(..., m, n), (..., 1, 1) -> (..., n, m); the batch axes broadcast."""
    if y[-2:] != (1, 1):
        raise ValueError(f"expected a relative threshold (..., 1, 1), one for each matrix, got {y}")
    return (*broadcast_shapes(x[:-2], y[:-2]), x[-1], x[-2]) if len(x) > 2 or len(y) > 2 else (x[-1], x[-2])


def eigenvalues_shape(x: Shape) -> Shape:
    """(..., n, n) -> (..., 1, n)."""
    return (*square_shape(x)[:-2], 1, x[-1])


# --- gradient rules ---


def identity(be: BackendBase, x: Operand) -> Operand:
    """Return the identity matrix of the size of the columns of x."""
    return be.tril(be.triu(be.ones((x.shape[-1], x.shape[-1]), dtype=x.info.dtype, name="ones")))


def grad_cholesky(be: BackendBase, dz: Operand, z: Operand, x: Operand, *, upper: bool = False) -> Gradients:
    """Return sym(L^-T P L^-1), where P is the lower triangle of L^T dL with half its diagonal.

    The gradient is symmetric, as the op reads (x + x^T) / 2. I. Murray, "Differentiation of the Cholesky
    decomposition", 2016, arXiv:1602.07527.
    """
    factor, d_factor = (z.T, dz.T) if upper else (z, dz)
    product = factor.T @ d_factor
    half = (be.tril(product) + be.tril(product, k=-1)) * 0.5
    dx = be.solve(factor.T, be.solve(factor.T, half.T).T)
    return ((dx + dx.T) * 0.5,)


def grad_solve(be: BackendBase, dz: Operand, z: Operand, x: Operand, y: Operand) -> Gradients:
    """Return dx = -dy z^T and dy = x^-T dz."""
    dy = be.solve(x.T, dz)
    return -(dy @ z.T), dy


def grad_inv(be: BackendBase, dz: Operand, z: Operand, x: Operand) -> Gradients:
    """Return -z^T dz z^T."""
    return (-(z.T @ dz @ z.T),)


def grad_cofactors_backward(be: BackendBase, dz: Operand, z: Operand, y: Operand, x: Operand) -> Gradients:
    """Return the derivatives of H = (<y, c> c - c y^T c) / det(x), where c are the cofactors; H is symmetric in y.

    The one with respect to x, of the third order in det(x), is infinite or NaN where x is singular.
    """

    def inner(a: Operand, b: Operand) -> Operand:
        return be.sum(a * b, axis=(-2, -1))

    c, det = be.cofactors(x), be.det(x)
    dc = (y * inner(dz, c) + dz * inner(y, c) - dz @ c.T @ y - y @ c.T @ dz) / det
    dx = be.build("cofactors_backward", dc, x) - inner(dz, z) / det * c
    return be.build("cofactors_backward", dz, x), dx


def grad_pinv(be: BackendBase, dz: Operand, z: Operand, x: Operand, y: object) -> Gradients:
    """Return -z^T dz z^T + (1 - x z) dz^T z z^T + z^T z dz^T (1 - z x), for matrices of constant rank.

    G. H. Golub and V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems whose
    variables separate", SIAM Journal on Numerical Analysis 10 (1973).
    """
    left, right = dz.T @ z @ z.T, z.T @ z @ dz.T
    return -(z.T @ dz @ z.T) + (left - x @ z @ left) + (right - right @ z @ x), None


def grad_qr_q(be: BackendBase, dz: Operand, z: Operand, x: Operand, *, mode: str = "reduced") -> Gradients:
    """Return the gradient of the orthogonal factor, for matrices of full rank."""
    check_has_qr_gradient(x, mode)
    return (qr_gradient(be, dz, z, be.qr_r(x), -(dz.T @ z)),)


def grad_qr_r(be: BackendBase, dz: Operand, z: Operand, x: Operand, *, mode: str = "reduced") -> Gradients:
    """Return the gradient of the triangular factor, for matrices of full rank."""
    check_has_qr_gradient(x, mode)
    return (qr_gradient(be, None, be.qr_q(x), z, z @ dz.T),)


def check_has_qr_gradient(x: Operand, mode: str) -> None:
    """Raise NotImplementedError for m < n, and for a complete decomposition with m > n."""
    m, n = x.shape[-2:]
    if m < n or (m > n and mode == "complete"):
        raise NotImplementedError(
            f"the gradient of a QR decomposition needs m >= n and mode='reduced', got {m} rows, {n} columns and {mode=}"
        )


def qr_gradient(be: BackendBase, dq: Operand | None, q: Operand, r: Operand, m: Operand) -> Operand:
    """Return (dq + q S) r^-T, where S has the lower triangle of m = r dr^T - dq^T q on both sides of its diagonal.

    S. F. Walter, L. Lehmann and R. Lamour, "On evaluating higher-order derivatives of the QR decomposition of tall
    matrices with full column rank in forward and reverse mode algorithmic differentiation", 2012.
    """
    total = q @ (be.tril(m) + be.tril(m, k=-1).T)
    return be.solve(r, (total if dq is None else dq + total).T).T


def grad_svd_s(be: BackendBase, dz: Operand, z: Operand, x: Operand) -> Gradients:
    """Return u diag(dz) vh."""
    return ((be.svd_u(x) * dz) @ be.svd_vh(x),)


def grad_svd_u(be: BackendBase, dz: Operand, z: Operand, x: Operand, *, full_matrices: bool = False) -> Gradients:
    """Return (u (F + F^T) s + (I - u u^T) dz / s) vh, where F_ij = (u^T dz)_ij / (s_j^2 - s_i^2), F_ii = 0.

    The singular values must be distinct and nonzero.
    """
    check_has_svd_gradient(x, full_matrices, x.shape[-2])
    return (singular_vectors_gradient(be, dz, z, be.svd_s(x), be.svd_vh(x)),)


def grad_svd_vh(be: BackendBase, dz: Operand, z: Operand, x: Operand, *, full_matrices: bool = False) -> Gradients:
    """Return the transposed gradient of svd_u, as the right singular vectors are the left ones of x^T."""
    check_has_svd_gradient(x, full_matrices, x.shape[-1])
    return (singular_vectors_gradient(be, dz.T, z.T, be.svd_s(x), be.svd_u(x).T).T,)


def check_has_svd_gradient(x: Operand, full_matrices: bool, size: int) -> None:
    """Raise NotImplementedError if there are more singular vectors than singular values."""
    if full_matrices and size > min(x.shape[-2:]):
        raise NotImplementedError(
            f"the gradient of singular vectors needs full_matrices=False for {x.shape[-2]} rows and {x.shape[-1]} "
            "columns, as the other vectors are not unique"
        )


def singular_vectors_gradient(be: BackendBase, du: Operand, u: Operand, s: Operand, vh: Operand) -> Operand:
    """Return the gradient of the left singular vectors.

    J. Townsend, "Differentiating the singular value decomposition", 2016.
    """
    product = u.T @ du
    rotation = product * reciprocal_differences(be, s * s)
    total = u @ ((rotation + rotation.T) * s)
    if u.shape[-2] > u.shape[-1]:
        total = total + (du - u @ product) / s
    return total @ vh


def grad_eigh_values(be: BackendBase, dz: Operand, z: Operand, x: Operand) -> Gradients:
    """Return v diag(dz) v^T."""
    vectors = be.eigh_vectors(x)
    return ((vectors * dz) @ vectors.T,)


def grad_eigh_vectors(be: BackendBase, dz: Operand, z: Operand, x: Operand) -> Gradients:
    """Return sym(v F v^T), where F_ij = (v^T dz)_ij / (w_j - w_i), 0 on the diagonal.

    The eigenvalues w must be distinct. The gradient is symmetric, as the op reads (x + x^T) / 2.
    """
    dx = z @ ((z.T @ dz) * reciprocal_differences(be, be.eigh_values(x))) @ z.T
    return ((dx + dx.T) * 0.5,)


def reciprocal_differences(be: BackendBase, w: Operand) -> Operand:
    """Return the matrix of 1 / (w_j - w_i) for a row w, with 0 on the diagonal; infinite for equal elements."""
    eye = identity(be, w)
    return 1 / (w - w.T + eye) - eye
