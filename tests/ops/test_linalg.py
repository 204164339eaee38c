"""Linear algebra, products, cumulative ops, sorting and gathers along an axis, against their definitions.

Values are compared with textbook definitions, and gradients of first and second order with finite differences in
float64, on every runtime and on a simulated GPU.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers import standin_cupy
from helpers.op_cases import MATRIX_OPS
from helpers.reference import numerical_gradient
from helpers.runtimes import RUNTIMES, new_backend

from neonlite import Autodiff, Backend, cleanup_backend
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU

WITHOUT_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++")
SIMULATED = [] if "simulated" in RUNTIMES else [pytest.param("simulated", marks=WITHOUT_COMPILER)]


@pytest.fixture(params=[*RUNTIMES, *SIMULATED])
def lin(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A backend with float64 as the default dtype."""
    gpu = request.param == "simulated"
    yield Backend(SimulatedGPU(), default_dtype="float64") if gpu else new_backend(request.param, datatype=np.float64)
    cleanup_backend()


BATCHES = [(), (2,), (2, 1, 3)]
batched = pytest.mark.parametrize("batch", BATCHES, ids=str)


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def positive_definite(batch: tuple[int, ...], n: int = 4) -> Any:
    x = normal(*batch, n, n)
    return x @ x.swapaxes(-1, -2) + np.eye(n)


def close(x: Any, y: Any, tolerance: float = 1e-10) -> None:
    x, y = (a.asnumpyarray() if hasattr(a, "asnumpyarray") else np.asarray(a) for a in (x, y))
    np.testing.assert_allclose(x, np.broadcast_to(y, x.shape), tolerance, tolerance)


def cofactors(a: Any) -> float:
    """Return the determinant by expansion along the first row."""
    minors = (np.delete(a[1:], j, 1) for j in range(len(a)))
    return sum((-1) ** j * a[0, j] * cofactors(minor) for j, minor in enumerate(minors)) if len(a) else 1.0


# --- values ---------------------------------------------------------------------------------------------------------


@batched
def test_the_cholesky_factor_is_triangular_and_multiplies_to_the_matrix(lin: Backend, batch: tuple[int, ...]) -> None:
    a = positive_definite(batch)
    low, up = lin.cholesky(lin.array(a)), lin.cholesky(lin.array(a), upper=True)
    close(low @ low.T, a)
    close(up.T @ up, a)
    close(low, np.tril(low.asnumpyarray()))
    close(up, low.T)


def test_the_cholesky_factor_is_that_of_the_symmetric_part(lin: Backend) -> None:
    a, skew = positive_definite(()), normal(4, 4)
    close(lin.cholesky(lin.array(a + skew - skew.T)), lin.cholesky(lin.array(a)))


@batched
def test_a_solution_solves_its_linear_system(lin: Backend, batch: tuple[int, ...]) -> None:
    a, b = normal(*batch, 4, 4), normal(*batch, 4, 3, seed=1)
    close(lin.array(a) @ lin.solve(lin.array(a), lin.array(b)), b)
    close(lin.array(a) @ lin.inv(lin.array(a)), np.eye(4))


@pytest.mark.parametrize(
    ("a", "b"), [((3, 3), (2, 3, 1)), ((2, 3, 3), (3, 4)), ((2, 1, 3, 3), (4, 3, 2)), ((2, 2, 2), (2, 2))], ids=str
)
def test_the_batches_of_a_linear_system_broadcast(lin: Backend, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = normal(*a), normal(*b, seed=1)
    close(lin.array(x) @ lin.solve(lin.array(x), lin.array(y)), np.broadcast_to(y, (*(x @ y).shape[:-2], *b[-2:])))


@batched
def test_a_determinant_is_the_expansion_by_cofactors(lin: Backend, batch: tuple[int, ...]) -> None:
    a = normal(*batch, 4, 4)
    expected = np.array([cofactors(m) for m in a.reshape(-1, 4, 4)]).reshape(*batch, 1, 1)
    x = lin.array(a)
    close(lin.det(x), expected)
    close(lin.slogdet_sign(x), np.sign(expected))
    close(lin.slogdet_sign(x) * lin.exp(lin.slogdet_logabsdet(x)), expected)


def test_the_logarithm_of_a_determinant_does_not_overflow(lin: Backend) -> None:
    x = lin.array(np.diag([-1e300, 1e300, 1e300]))
    close(lin.slogdet_logabsdet(x), 3 * math.log(1e300))
    close(lin.slogdet_sign(x), -1)


@batched
@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (3, 3), (4, 1)], ids=str)
def test_a_qr_decomposition_is_orthonormal_times_triangular(
    lin: Backend, batch: tuple[int, ...], shape: tuple[int, int]
) -> None:
    x = normal(*batch, *shape)
    for mode, k in (("reduced", min(shape)), ("complete", shape[0])):
        q, r = lin.qr_q(lin.array(x), mode=mode), lin.qr_r(lin.array(x), mode=mode)
        assert (q.shape, r.shape) == ((*batch, shape[0], k), (*batch, k, shape[1]))
        close(q @ r, x)
        close(q.T @ q, np.eye(k))
        close(r, np.triu(r.asnumpyarray()))


@batched
@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (3, 3), (1, 4)], ids=str)
def test_a_singular_value_decomposition_is_orthonormal_diagonal_orthonormal(
    lin: Backend, batch: tuple[int, ...], shape: tuple[int, int]
) -> None:
    x = normal(*batch, *shape)
    u, s, vh = (f(lin.array(x)) for f in (lin.svd_u, lin.svd_s, lin.svd_vh))
    close((u * s) @ vh, x)
    for columns in (u, vh.T, lin.svd_u(lin.array(x), full_matrices=True), lin.svd_vh(lin.array(x), full_matrices=True)):
        close(columns.T @ columns, np.eye(columns.shape[-1]))
    singular = s.asnumpyarray()
    assert singular.shape == (*batch, 1, min(shape))
    assert (singular >= 0).all()
    assert (np.diff(singular) <= 0).all()


@batched
def test_eigenvectors_are_scaled_by_their_eigenvalues(lin: Backend, batch: tuple[int, ...]) -> None:
    a = positive_definite(batch) - 3 * np.eye(4)
    w, v = lin.eigh_values(lin.array(a)), lin.eigh_vectors(lin.array(a))
    close(lin.array(a) @ v, (v * w).asnumpyarray())
    close(v.T @ v, np.eye(4))
    assert w.shape == (*batch, 1, 4)
    assert (np.diff(w.asnumpyarray()) >= 0).all()


def test_products_and_cumulative_ops_are_those_of_python(lin: Backend) -> None:
    x = normal(3, 4, 5)
    for axis in (None, 0, -1, (0, 2)):
        close(lin.prod(lin.array(x), axis=axis), np.prod(x, axis=axis, keepdims=True))
    for axis in (-1, 0, 1):
        rows = np.moveaxis(x, axis, -1)
        sums = [[list(itertools.accumulate(r)) for r in m] for m in rows]
        products = [[list(itertools.accumulate(r, lambda a, b: a * b)) for r in m] for m in rows]
        from_the_end = [[list(itertools.accumulate(r[::-1]))[::-1] for r in m] for m in rows]
        t = lin.array(x)
        close(lin.cumulative_sum(t, axis), np.moveaxis(np.array(sums), -1, axis))
        close(lin.cumulative_sum(t, axis, reverse=True), np.moveaxis(np.array(from_the_end), -1, axis))
        close(lin.cumulative_prod(t, axis), np.moveaxis(np.array(products), -1, axis))


@pytest.mark.parametrize("axis", [0, 1, None])
def test_a_large_product_is_that_of_its_parts(lin: Backend, axis: int | None) -> None:
    x = 1 + 1e-3 * normal(700, 800)
    close(lin.prod(lin.array(x) * 1.0, axis=axis), np.prod(x, axis=axis, keepdims=True), 1e-9)


def test_integers_are_multiplied_and_summed_in_64_bits(be: Backend) -> None:
    x = be.array([[100, 100, 100]], dtype="uint8" if "uint8" in be.runtime.dtypes else "int32")
    for tree, expected in [
        (be.prod(x), [[1_000_000]]),
        (be.cumulative_prod(x), [[100, 10_000, 1_000_000]]),
        (be.cumulative_sum(x), [[100, 200, 300]]),
    ]:
        assert tree.dtype == "int64"
        assert tree.asnumpyarray().tolist() == expected


def test_equal_elements_keep_their_order(lin: Backend) -> None:
    x = lin.array([[1.0, 0, 1, 0, 1]])
    assert lin.argsort(x).asnumpyarray().tolist() == [[1, 3, 0, 2, 4]]
    assert lin.argsort(x, descending=True).asnumpyarray().tolist() == [[0, 2, 4, 1, 3]]
    assert lin.sort(x, descending=True).asnumpyarray().tolist() == [[1, 1, 1, 0, 0]]
    close(lin.take_along_axis(x, lin.argsort(x)), lin.sort(x))
    assert lin.searchsorted(lin.sort(x), np.array([[0.0, 0.5, 1, 2]])).asnumpyarray().tolist() == [[0, 2, 2, 5]]
    assert lin.searchsorted(lin.sort(x).T, np.array([[0.0, 0.5, 1]]), side="right").asnumpyarray().tolist() == [
        [2, 2, 5]
    ]


def test_triangles_have_zeros_beside_their_diagonal(lin: Backend) -> None:
    x = normal(2, 3, 4)
    for k in (-2, -1, 0, 1, 3):
        below = np.array([[j - i <= k for j in range(4)] for i in range(3)])
        close(lin.tril(lin.array(x), k), np.where(below, x, 0))
        close(lin.triu(lin.array(x), k + 1), np.where(below, 0, x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_have_the_dtype_of_their_operand(be: Backend, dtype: str) -> None:
    a = be.array(positive_definite(()), dtype=dtype)
    for tree in (be.cholesky(a), be.solve(a, a), be.det(a), be.svd_s(a), be.qr_q(a), be.eigh_vectors(a)):
        assert tree.dtype == dtype
    close(be.solve(a, a), np.eye(4), 1e-4 if dtype == "float32" else 1e-10)
    out = be.zeros((4, 4), dtype=dtype)
    assert be.inv(a, out=out) is out
    close(be.dot(out, a), np.eye(4), 1e-4 if dtype == "float32" else 1e-10)


def test_integer_matrices_are_computed_in_the_default_dtype(be: Backend) -> None:
    tree = be.inv(be.array([[2, 0], [0, 4]], dtype="int32"))
    assert tree.dtype == "float32"
    assert tree.asnumpyarray().tolist() == [[0.5, 0], [0, 0.25]]


def test_functions_of_cupy_compute_them(cpu: Backend) -> None:
    x = np.array([[5.0, 1, 2], [1, 6, 0], [2, 0, 7]])

    def trees(be: Backend) -> list[Any]:
        t = be.array(x, dtype="float64")
        names = [
            "prod",
            "cumulative_sum",
            "cumulative_prod",
            "sort",
            "argsort",
            "tril",
            *sorted(MATRIX_OPS - {"solve", "pinv", "cofactors_backward"}),
        ]
        return [
            *(getattr(be, name)(t) for name in names),
            be.solve(t, t[:, :2]),
            be.pinv(t[:, :2], 0.0),
            be.build("cofactors_backward", t * 2, t),
            be.searchsorted(be.sort(t[:1]), t),
            be.take_along_axis(t, be.argsort(t)),
            be.build("scatter_add_along_axis", t, be.argsort(t), axis=1, size=4),
        ]

    expected = [tree.asnumpyarray() for tree in trees(cpu)]
    with standin_cupy.installed():
        for tree, value in zip(trees(Backend("gpu")), expected, strict=True):
            close(tree, value)


# --- errors ---------------------------------------------------------------------------------------------------------

WRONG: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda be: be.inv(be.ones((2, 3))), ValueError, r"be\.inv.*expected square matrices, got 2 rows and 3 columns"),
    (lambda be: be.eigh_values(be.ones((2, 3))), ValueError, "expected square matrices"),
    (lambda be: be.solve(be.ones((2, 2)), be.ones((3, 1))), ValueError, r"be\.solve.*expected as many rows as the 2"),
    (lambda be: be.searchsorted(be.ones((2, 2)), be.ones((1, 1))), ValueError, "expected a sorted vector"),
    (lambda be: be.searchsorted(be.ones((1, 2)), be.ones((1, 1)), side="up"), ValueError, "'left', 'right'"),
    (
        lambda be: be.qr_q(be.ones((2, 2)), mode="raw"),
        ValueError,
        r"be\.qr_q: expected one of 'reduced', 'complete' for mode",
    ),
    (lambda be: be.sort(be.ones((2, 2)), axis=2), IndexError, r"be\.sort.*axis 2 is out of range"),
    (
        lambda be: be.sort(be.ones((2, 2)), descending="yes"),
        TypeError,
        r"be\.sort: expected True or False for descending",
    ),
    (lambda be: be.tril(be.ones((2, 2)), k=0.5), TypeError, r"be\.tril: expected an integer for k"),
    (lambda be: be.take_along_axis(be.ones((2, 2)), [[0, 1, 0]], axis=1), ValueError, "along axis 1 only"),
    (lambda be: be.take_along_axis(be.ones((2, 2)), be.ones((2, 2))), TypeError, "expected integers as indices"),
    (lambda be: be.take_along_axis(be.ones((2, 2)), [[0], [2]]).astensor(), IndexError, "index 2 is out of range"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG)
def test_wrong_arguments_raise_an_error_that_names_the_method(
    lin: Backend, call: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(lin)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats_are_refused_when_the_tree_is_built(be: Backend, dtype: str) -> None:
    if dtype in be.runtime.dtypes:
        x = be.zeros((2, 2), dtype=dtype)
        for f in (be.inv, be.cholesky, be.qr_r, be.svd_s, be.eigh_values, be.det):
            with pytest.raises(TypeError, match=f"expected float32 or float64, got {dtype}. Cast x"):
                f(x)


def test_a_matrix_without_a_result_raises_value_error_and_leaves_the_target_unchanged(lin: Backend) -> None:
    out, singular = lin.ones((2, 2)), lin.array([[1.0, 2], [2, 4]])
    for tree in (lin.inv(singular), lin.solve(singular, singular), lin.cholesky(-singular)):
        with pytest.raises(ValueError, match=rf"be\.{tree.op}"):
            out[:] = tree
    close(out, 1)
    close(lin.det(singular), 0)


# --- gradients ------------------------------------------------------------------------------------------------------


def numeric(f: Callable[[], float], x: Any) -> Any:
    """Return the gradient of f with respect to the tensor x by central differences."""
    values = x.get()

    def at_values() -> float:
        x[:] = values
        return f()

    gradient = numerical_gradient(at_values, values, 1e-5)
    x[:] = values
    return gradient


def check_gradients(be: Backend, function: Callable[..., Any], *values: Any) -> None:
    """Compare the gradients of E = sum(w f) of first and second order with finite differences."""
    xs = [be.array(value) for value in values]
    tree = function(*xs)
    energy = be.sum(tree * be.array(normal(*tree.shape, seed=7)))
    first = Autodiff(energy, be).get_grad_op_tree(xs)
    along = be.sum(first[0] * be.array(normal(*xs[0].shape, seed=8)))
    for dx in first[1:]:
        along = along + be.sum(dx * be.array(normal(*dx.shape, seed=9)))
    second = Autodiff(along, be, allow_unused=True).get_grad_op_tree(xs)
    for total, grads in ((energy, first), (along, second)):
        for x, dx in zip(xs, grads, strict=True):
            expected = numeric(lambda total=total: total.asnumpyarray().item(), x)
            close(dx, expected, 1e-6 * max(1.0, abs(expected).max()))


SQUARE = positive_definite(()) @ np.diag([1.0, 2, 3, 4])
FUNCTIONS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "cholesky": (lambda be, x: be.cholesky(x), [positive_definite((2,), 3)]),
    "upper cholesky": (lambda be, x: be.cholesky(x, upper=True), [positive_definite((), 3)]),
    "solve": (lambda be, x, y: be.solve(x, y), [SQUARE, normal(4, 2)]),
    "solve with a batch": (lambda be, x, y: be.solve(x, y), [SQUARE, normal(2, 4, 1)]),
    "inv": (lambda be, x: be.inv(x), [np.stack([SQUARE, SQUARE.T])]),
    "det": (lambda be, x: be.det(x), [SQUARE / 3]),
    "logabsdet": (lambda be, x: be.slogdet_logabsdet(-x), [SQUARE[None]]),
    "q": (lambda be, x: be.qr_q(x), [normal(2, 4, 3)]),
    "r": (lambda be, x: be.qr_r(x), [normal(4, 3)]),
    "q r": (lambda be, x: be.qr_q(x) @ be.qr_r(x), [normal(4, 3)]),
    "singular values": (lambda be, x: be.svd_s(x), [normal(2, 3, 4)]),
    "singular vectors": (lambda be, x: be.svd_u(x) @ be.svd_vh(x), [normal(4, 3)]),
    "singular vectors of wide matrices": (lambda be, x: be.svd_u(x) @ be.svd_vh(x), [normal(3, 4)]),
    "left singular vectors": (lambda be, x: be.square(be.svd_u(x)), [normal(4, 2)]),
    "right singular vectors": (lambda be, x: be.square(be.svd_vh(x)), [normal(2, 4)]),
    "u s vh": (lambda be, x: (be.svd_u(x) * be.svd_s(x)) @ be.svd_vh(x), [normal(2, 3, 2)]),
    "eigenvalues": (lambda be, x: be.eigh_values(x), [positive_definite((2,), 3)]),
    "eigenvectors": (lambda be, x: be.square(be.eigh_vectors(x)), [positive_definite((), 3)]),
    "the exponential of a matrix": (
        lambda be, x: (be.eigh_vectors(x) * be.exp(be.eigh_values(x))) @ be.eigh_vectors(x).T,
        [positive_definite((), 3) / 4],
    ),
    "prod": (lambda be, x: be.prod(x, axis=(0, 2)), [normal(2, 3, 2)]),
    "cumulative_prod": (lambda be, x: be.cumulative_prod(x, axis=0), [normal(4, 2)]),
    "cumulative_sum": (lambda be, x: be.cumulative_sum(be.square(x), reverse=True), [normal(2, 3)]),
    "sort": (lambda be, x: be.square(be.sort(x, axis=0, descending=True)), [normal(4, 3)]),
    "take_along_axis": (lambda be, x: be.take_along_axis(x * x, [[0, 0, -1]] * 2), [normal(2, 3)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_first_and_second_order_are_those_of_finite_differences(lin: Backend, name: str) -> None:
    function, values = FUNCTIONS[name]
    check_gradients(lin, lambda *xs: function(lin, *xs), *values)


@pytest.mark.parametrize("name", ["solve", "cholesky", "q r", "u s vh", "prod", "sort"])
def test_check_grad_agrees(cpu: Backend, name: str) -> None:
    function, values = FUNCTIONS[name]
    report = cpu.check_grad(function(cpu, *(cpu.array(x) for x in values)))
    assert report.ok, report


def test_the_gradient_of_a_product_is_exact_where_elements_are_zero(lin: Backend) -> None:
    x = lin.array([[2.0, 3, 4], [2, 0, 4], [0, 3, 0]])
    expected = [[12, 8, 6], [0, 8, 0], [0, 0, 0]]
    assert Autodiff(lin.prod(x, axis=1), lin).get_grad_asnumpyarray(x).tolist() == expected
    gradient = Autodiff(lin.cumulative_prod(x), lin).get_grad_asnumpyarray(x)
    close(gradient, numeric(lambda: lin.sum(lin.cumulative_prod(x)).asnumpyarray().item(), x), 1e-8)
    assert gradient.tolist() == [[16, 10, 6], [1, 10, 0], [4, 0, 0]]


@pytest.mark.parametrize(
    "tree",
    [
        lambda be: be.qr_q(be.ones((2, 3))),
        lambda be: be.qr_r(be.ones((3, 2)), mode="complete"),
        lambda be: be.svd_u(be.ones((3, 2)), full_matrices=True),
        lambda be: be.svd_vh(be.ones((2, 3)), full_matrices=True),
    ],
)
def test_a_decomposition_without_a_gradient_raises_not_implemented_error(
    lin: Backend, tree: Callable[..., Any]
) -> None:
    node = tree(lin)
    with pytest.raises(NotImplementedError, match="the gradient of"):
        Autodiff(node, lin).get_grad_op_tree([node[1]])


def test_equal_eigenvalues_give_no_finite_gradient_of_their_vectors(lin: Backend) -> None:
    x = lin.array(np.eye(3))
    gradient = Autodiff(lin.eigh_vectors(x), lin, lin.array(normal(3, 3))).get_grad_asnumpyarray(x)
    assert not np.isfinite(gradient).all()


# of rank 2, 1 and 0; and with equal singular values
SINGULAR = [np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]]), np.outer([1.0, 2, -1], [2.0, 0, 1]), np.zeros((3, 3))]


@pytest.mark.parametrize("x", [*SINGULAR, np.eye(3), -2 * np.eye(2), np.zeros((1, 1))], ids=str)
def test_the_gradients_of_a_determinant_are_those_of_its_polynomial(lin: Backend, x: Any) -> None:
    matrices = np.stack([x, x + np.eye(len(x))])
    t = lin.array(matrices)
    (gradient,) = Autodiff(lin.det(t), lin).get_grad_op_tree([t])
    minors = [[np.delete(np.delete(matrices, i, 1), j, 2) for j in range(len(x))] for i in range(len(x))]
    expected = [[(-1) ** (i + j) * np.linalg.det(m) for j, m in enumerate(row)] for i, row in enumerate(minors)]
    close(gradient, np.moveaxis(expected, 2, 0))
    weights = lin.array(normal(*matrices.shape))
    second = Autodiff(lin.sum(weights * gradient), lin).get_grad_asnumpyarray(t)
    close(second, numeric(lambda: lin.sum(weights * gradient).asnumpyarray().item(), t), 1e-7)


def test_the_third_derivative_of_a_determinant_is_that_of_its_polynomial(lin: Backend) -> None:
    x = lin.array(np.eye(3))  # det(1 + h e e^T) for e = (1, 1, 1): d^3/dh^3 of det(1 + h A) is 6 det A
    a, h = lin.array(normal(3, 3)), lin.array([[0.0]])
    tree: Any = lin.det(x + h * a)
    for _ in range(3):
        tree = Autodiff(tree, lin).get_grad_op_tree(h)
    close(tree, 6 * np.linalg.det(a.get()), 1e-8)


@pytest.mark.parametrize("x", [np.eye(3), np.ones((3, 2)), np.diag([2.0, 2, 0]), SINGULAR[0]], ids=str)
def test_the_gradient_of_a_pseudo_inverse_is_that_along_matrices_of_its_rank(lin: Backend, x: Any) -> None:
    m, n = x.shape
    left, right, h = lin.array(normal(m, m)), lin.array(normal(n, n)), lin.array([[0.0]])
    path = (lin.array(np.eye(m)) + h * left) @ lin.array(x) @ (lin.array(np.eye(n)) + h * right)
    weights = lin.array(normal(n, m))
    value = lin.sum(weights * lin.pinv(path, 1e-6))
    (first,) = Autodiff(value, lin).get_grad_op_tree([h])
    close(first, numeric(lambda: value.asnumpyarray().item(), h), 1e-6)
    close(Autodiff(first, lin).get_grad_op_tree(h), numeric(lambda: first.asnumpyarray().item(), h), 1e-4)
    close(lin.pinv(lin.array(x), 1e-6), np.linalg.pinv(x, rtol=1e-6))
