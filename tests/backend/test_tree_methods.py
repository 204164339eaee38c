"""Tests of the functions that are composed of ops, against NumPy: values, gradients and ``out=``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.composite_functions import arrays, two
from helpers.parametrize import each
from helpers.reference import gradient_of_operand, off
from helpers.runtimes import ABSENT, RUNTIMES, lacks

from neonlite import Autodiff, Backend

X, Y, Z = (2, 3), (3, 2, 4), (2, 1, 3, 2)
AXES: dict[Any, list[Any]] = {X: [None, 0, 1, -1, (0, 1), (-1,)], Y: [None, 0, 2, (0, 2), (-1, 1)], Z: [(1, 3), -2]}


def ap2(x: Any) -> Any:
    return np.sign(x) * 2.0 ** np.rint(np.log2(abs(x)))


# --- each function, against NumPy -----------------------------------------------------------------------------------


Function = tuple[
    str, Callable[..., Any], Callable[..., Any], tuple[Any, ...]
]  # functions of be and of NumPy, shapes of operands
FUNCTIONS: list[Function] = []


def compare(what: str, function: Callable[..., Any], numpy_function: Callable[..., Any], *shapes: Any) -> None:
    FUNCTIONS.append((f"{what} {' '.join(map(str, shapes))}", function, numpy_function, shapes))


def var(x: Any, axis: Any, keepdims: bool = True) -> Any:
    return np.mean((x - x.mean(axis, keepdims=True)) ** 2, axis, keepdims=keepdims)


def binary_var(x: Any, axis: Any) -> Any:
    d = x - x.mean(axis, keepdims=True)
    return np.mean(d * ap2(d), axis, keepdims=True)


for shape, axes in AXES.items():
    for a in axes:
        for k in (True, False):
            at: dict[str, Any] = {"axis": a, "keepdims": k}
            compare(f"mean {at}", lambda be, x, at=at, **o: be.mean(x, **at, **o), lambda x, at=at: x.mean(**at), shape)
            compare(f"var {at}", lambda be, x, at=at, **o: be.var(x, **at, **o), lambda x, at=at: var(x, **at), shape)
            compare(
                f"std {at}", lambda be, x, at=at, **o: be.std(x, **at, **o), lambda x, at=at: var(x, **at) ** 0.5, shape
            )
        compare(
            f"softmax {a}",
            lambda be, x, a=a, **o: be.softmax(x, a, **o),
            lambda x, a=a: np.exp(x) / np.exp(x).sum(a, keepdims=True),
            shape,
        )
        compare(
            f"logsumexp {a}",
            lambda be, x, a=a, **o: be.logsumexp(x, a, **o),
            lambda x, a=a: np.log(np.exp(x).sum(a, keepdims=True)),
            shape,
        )
for shape in (X, Y):
    compare("reciprocal", lambda be, x, **o: be.reciprocal(x, **o), lambda x: 1 / x, shape)
    compare("clip", lambda be, x, **o: be.clip(x, -1, 0.5, **o), lambda x: np.minimum(np.maximum(x, -1), 0.5), shape)
    compare("sig2", lambda be, x, **o: be.sig2(x, **o), lambda x: 1 / (1 + 2**-x), shape)
    compare("tanh2", lambda be, x, **o: be.tanh2(x, **o), lambda x: (4**x - 1) / (4**x + 1), shape)
    compare("fabs", lambda be, x, **o: be.fabs(x, **o), lambda x: np.sqrt(x**2), shape)
    compare("true_divide", lambda be, x, **o: be.true_divide(3, x, **o), lambda x: 3 / x, shape)
    compare("transpose", lambda be, x, **o: be.transpose(x, **o), lambda x: x.swapaxes(-1, -2), shape)
    compare("reshape", lambda be, x, **o: be.reshape(x, -1, 2, **o), lambda x: x.reshape(-1, 2), shape)
    compare("reshape to a row", lambda be, x, **o: be.reshape(x, (1, -1), **o), lambda x: x.reshape(1, -1), shape)
    compare("take", lambda be, x, **o: be.take(x, [1, 0, 1, -1], 1, **o), lambda x: x[:, [1, 0, 1, -1]], shape)
    compare("take of all", lambda be, x, **o: be.take(x, [5, 0, 5], **o), lambda x: two(x.ravel()[[5, 0, 5]]), shape)
    compare("shift by a number", lambda be, x, **o: be.shift(x, 3, **o), lambda x: x * 4, shape)
    compare("shift to the right", lambda be, x, **o: be.shift(x, -2, False, **o), lambda x: x / 4, shape)
    compare("where a mask", lambda be, x, **o: be.where(x > 0, x, -x, **o), abs, shape)
    compare(
        "max of an operand", lambda be, x, **o: be.max(2 * x, -1, **o), lambda x: 2 * x.max(-1, keepdims=True), shape
    )
compare("transpose by axes", lambda be, x, **o: be.transpose(x, (2, 0, -2), **o), lambda x: x.transpose(2, 0, 1), Y)
compare(
    "transpose by axes of NumPy",
    lambda be, x, **o: be.transpose(x, tuple(np.asarray([2, 0, -2])), **o),
    lambda x: x.transpose(2, 0, 1),
    Y,
)
compare("transpose of a row", lambda be, x, **o: be.transpose(x, **o), lambda x: x.T, (1, 4))
compare("broadcast_to", lambda be, x, **o: be.broadcast_to(x, (4, 2, 3), **o), lambda x: np.ones((4, 2, 1)) * x, (1, 3))
compare("broadcast a column", lambda be, x, **o: be.broadcast_to(x, (2, 3), **o), lambda x: np.repeat(x, 3, 1), (2, 1))
compare("binary var", lambda be, x, **o: be.sum(be.var(x, 1, binary=True), **o), lambda x: binary_var(x, 1).sum(), X)
compare(
    "clip by tensors",
    lambda be, x, a, b, **o: be.clip(x, a, b, **o),
    lambda x, a, b: np.minimum(np.maximum(x, a), b),
    X,
    (2, 1),
    (1, 3),
)
compare("concat rows", lambda be, *xs, **o: be.concat(xs, **o), lambda *xs: np.concatenate(xs), X, (1, 3), X)
compare("concat columns", lambda be, *xs, **o: be.concat(list(xs), -1, **o), lambda *xs: np.hstack(xs), X, (2, 1))
compare("concat one", lambda be, *xs, **o: be.concat(xs, 1, **o), lambda x: x, Y)
compare("concat one twice", lambda be, x, **o: be.concat([x, x], 2, **o), lambda x: np.concatenate([x, x], 2), Y)
compare("concat many", lambda be, *xs, **o: be.concat(xs, 1, **o), lambda *xs: np.concatenate(xs, 1), *[(2, 1)] * 12)
for place in (0, 1, 2, -1, -3):
    compare(
        f"stack {place}",
        lambda be, *xs, a=place, **o: be.stack(xs, a, **o),
        lambda *xs, a=place: np.stack(xs, a),
        X,
        X,
        X,
    )
for s, t in [((2, 3), (3, 2)), ((2, 2, 3), (2, 3, 1)), ((2, 2, 3), (3, 2)), ((1, 3), (4, 3, 2))]:
    compare("x @ y", lambda be, x, y, out=None: be.matmul(x, y, out=out) if out else x @ y, lambda x, y: x @ y, s, t)
every_function = each("name, function, numpy_function, shapes", FUNCTIONS)


@every_function
def test_the_value_is_that_of_numpy(be: Backend, name: str, function: Any, numpy_function: Any, shapes: Any) -> None:
    xs = arrays(shapes)
    expected = two(numpy_function(*xs))
    tree = function(be, *map(be.array, xs))
    assert tree.shape == expected.shape
    assert tree.dtype == "float32"
    np.testing.assert_allclose(tree.asnumpyarray(), expected, 1e-5, 1e-6)
    out = be.empty(expected.shape)
    assert function(be, *map(be.array, xs), out=out) is out
    np.testing.assert_array_equal(out.get(), tree.asnumpyarray())


@every_function
def test_the_gradient_is_that_of_finite_differences_of_numpy(
    be64: Backend, name: str, function: Any, numpy_function: Any, shapes: Any
) -> None:
    xs = arrays(shapes)
    tensors = list(map(be64.array, xs))
    tree = function(be64, *tensors)
    dz = np.random.default_rng(2).uniform(-2, 2, tree.shape)
    for k, dx in enumerate(Autodiff(tree, be64, be64.array(dz)).get_grad_asnumpyarray(tensors)):
        assert off(dx, gradient_of_operand(lambda *xs: two(numpy_function(*xs)), xs, k, dz)) <= 1e-6


TORCH: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "softmax": (lambda be, x: be.softmax(x, 1), lambda torch, x: torch.softmax(x, 1)),
    "logsumexp": (lambda be, x: be.logsumexp(x, 0), lambda torch, x: torch.logsumexp(x, 0, keepdim=True)),
    "var": (lambda be, x: be.var(x, (0, 1)), lambda torch, x: torch.var(x, (0, 1), correction=0, keepdim=True)),
    "std": (lambda be, x: be.std(x, 1), lambda torch, x: torch.std(x, 1, correction=0, keepdim=True)),
    "mean": (lambda be, x: be.mean(x, 0), lambda torch, x: torch.mean(x, 0, keepdim=True)),
    "clip": (lambda be, x: be.clip(x, -1, 1), lambda torch, x: torch.clamp(x, -1, 1)),
    "take": (
        lambda be, x: be.take(x, [0, 2, 0], 1),
        lambda torch, x: torch.index_select(x, 1, torch.tensor([0, 2, 0])),
    ),
    "concat": (lambda be, x: be.concat([x, x * x], 1), lambda torch, x: torch.cat([x, x * x], 1)),
    "stack": (lambda be, x: be.stack([x, x.T.T], 2), lambda torch, x: torch.stack([x, x], 2)),
    "where": (lambda be, x: be.where(x > 0, x, x * x), lambda torch, x: torch.where(x > 0, x, x * x)),
    "max": (lambda be, x: be.max(x, 1), lambda torch, x: torch.amax(x, 1, keepdim=True)),
    "einsum": (
        lambda be, x: be.einsum("ij,kj,kl->il", x, x, x),
        lambda torch, x: torch.einsum("ij,kj,kl->il", x, x, x),
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_torch_agrees_on_value_and_gradient(be64: Backend, name: str) -> None:
    torch = pytest.importorskip("torch")
    function, torch_function = TORCH[name]
    values = np.random.default_rng(3).uniform(-2, 2, (5, 4))
    values[0, 1] = values[0].max() + 1
    values[1, :2] = 3  # a tie in max, which amax shares, too
    x, t = be64.array(values), torch.tensor(values, requires_grad=True)
    tree, result = function(be64, x), torch_function(torch, t)
    np.testing.assert_allclose(tree.asnumpyarray(), result.detach().numpy(), 1e-12, 1e-14)
    dz = np.random.default_rng(4).uniform(-2, 2, tree.shape)
    result.backward(torch.tensor(dz))
    np.testing.assert_allclose(
        Autodiff(tree, be64, be64.array(dz)).get_grad_asnumpyarray(x), t.grad.numpy(), 1e-11, 1e-13
    )


# --- what is not a function of floats alone -------------------------------------------------------------------------


def test_a_product_is_a_dot_of_matrices_or_a_matmul_of_stacks(be: Backend) -> None:
    x, y = be.ones((2, 3)), be.ones((4, 3, 2))
    assert ((x @ x.T).op, (x @ y).op, (y @ x).op) == ("dot", "matmul", "matmul")
    array = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal((x @ array).asnumpyarray(), np.ones((2, 3)) @ array)
    np.testing.assert_array_equal((array @ x).asnumpyarray(), array @ np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"3 columns and 2 rows"):
        x @ x
    with pytest.raises(ValueError, match="expected two matrices"):
        be.dot(x, y)


def test_reshape_and_broadcast_to_the_same_shape_change_nothing(be: Backend) -> None:
    x = be.ones((2, 3))
    assert be.reshape(x, 2, 3) is x
    assert be.broadcast_to(x, (2, 3)) is x
    assert be.reshape(x, 3, -1).shape == be.reshape(x, (3, -1)).shape == (3, 2)


def test_take_reads_a_tensor_of_indices_when_it_is_evaluated(be: Backend) -> None:
    x, indices = be.array([[1.0, 2.0, 3.0]]), be.array([[0, 1]], dtype="int32")
    tree = be.take(x, indices, 1)
    indices[:] = np.array([[2, 2]])
    np.testing.assert_array_equal(tree.asnumpyarray(), [[3, 3]])
    indices[:] = np.array([[3, 0]])
    with pytest.raises(IndexError, match="index 3 is out of range for size 3"):
        tree.asnumpyarray()
    with pytest.raises(IndexError, match="index -4 is out of range"):
        be.take(x, [-4], 1).asnumpyarray()
    with pytest.raises(TypeError, match="expected integers as"):
        be.take(x, [0.5], 1)


@pytest.mark.parametrize("axis", [0, 1])
def test_onehot_is_a_row_or_a_column_of_the_identity(be: Backend, axis: int) -> None:
    labels = [2, 0, 1, 2]
    expected = np.eye(4)[labels] if axis else np.eye(4)[labels].T
    for given in (labels, np.array(labels), *(be.array([labels], dtype=d) for d in be.runtime.dtypes if "int" in d)):
        tree = be.onehot(given, axis, nclass=4)
        assert tree.dtype == "float32"
        np.testing.assert_array_equal(tree.asnumpyarray(), expected)
        out = be.zeros(expected.shape)  # as in the guide: the shape of the target gives the number of classes
        out[:] = be.onehot(given, axis=axis)
        np.testing.assert_array_equal(out.get(), expected)
        assert be.onehot(given, axis, out=out) is out
        np.testing.assert_array_equal(out.get(), expected)
    for wrong in ([4], [-1]):
        with pytest.raises(IndexError, match=f"label {wrong[0]} is out of range"):
            be.onehot(wrong, axis, nclass=4).asnumpyarray()
    with pytest.raises(ValueError, match="expected axis 0"):
        be.onehot(labels, 2)


def test_numbers_alone_make_trees(be: Backend) -> None:
    for tree, value in [
        (be.add(1, 2), 3),
        (be.exp(0.0), 1),
        (be.where(1, 2, 3), 2),
        (be.maximum(2, 3.5), 3.5),
        (be.sum(2), 2),
    ]:
        assert (tree.shape, tree.dtype) == ((1, 1), "float32")
        assert tree.asnumpyarray() == value


def test_binarize_is_the_sign_with_one_at_zero(be: Backend) -> None:
    x, out = be.array([[-2.0, -0.0, 0.0, 0.5]]), be.zeros((1, 4))
    np.testing.assert_array_equal(be.binarize(x, stochastic=False).asnumpyarray(), [[-1, 1, 1, 1]])
    assert be.binarize(x, out, False) is out
    np.testing.assert_array_equal(out.get(), [[-1, 1, 1, 1]])
    assert be.binarize(x, stochastic=False, out=out.fill(0)) is out
    np.testing.assert_array_equal(out.get(), [[-1, 1, 1, 1]])


def test_stochastic_binarize_is_one_with_the_probability_of_the_value(be: Backend) -> None:
    x = np.repeat([[-3.0], [-1.0], [-0.5], [0.0], [0.6], [1.0], [9.0]], 20_000, axis=1)
    drawn = be.binarize(be.array(x)).asnumpyarray()
    assert set(np.unique(drawn)) == {-1, 1}
    share = (drawn == 1).mean(axis=1)
    assert (share[[0, 1]] == 0).all()
    assert (share[[5, 6]] == 1).all()
    np.testing.assert_allclose(share[2:5], [0.25, 0.5, 0.8], atol=4 * math.sqrt(0.25 / 20_000))


@pytest.mark.parametrize("name", ["rand", "randn"])
def test_a_random_node_is_one_draw_in_a_tree_and_drawn_again_each_time(be: Backend, name: str) -> None:
    draw = getattr(be, name)
    node = draw(3, 4)
    assert not (node - node).asnumpyarray().any()
    assert (node - draw((3, 4))).asnumpyarray().all()
    assert (node.asnumpyarray() != node.asnumpyarray()).all()
    out = be.zeros((2, 5))
    assert draw(out=out) is out
    assert out.get().all()


def test_random_numbers_are_the_same_on_every_runtime() -> None:
    cpu, *others = (Backend.allocate_backend(name, rng_seed=5) for name in RUNTIMES)
    for tree in (lambda be: be.rand(7, 3), lambda be: be.randn(2, 3, 4), lambda be: be.random_mask(5, 7, keep=0.3)):
        drawn = tree(cpu).asnumpyarray()
        for be in others:
            np.testing.assert_array_equal(tree(be).asnumpyarray(), drawn)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("keep", [0.0, 0.25, 1.0])
def test_a_random_mask_is_the_mask_that_make_binary_mask_fills(dtype: str, keep: float) -> None:
    for runtime in RUNTIMES:
        one, other = (Backend.allocate_backend(runtime, rng_seed=5, default_dtype=dtype) for _ in range(2))
        for _ in range(2):
            filled = other.empty((9, 11))
            other.make_binary_mask(filled, keep)
            mask = one.random_mask((9, 11), keep=keep)
            assert mask.dtype == dtype
            np.testing.assert_array_equal(mask.asnumpyarray(), filled.get())


def test_the_probability_of_a_random_mask_is_between_0_and_1(be: Backend) -> None:
    with pytest.raises(ValueError, match=r"expected a finite number >= 0 and <= 1 for keep, got 1.5"):
        be.random_mask(2, 3, keep=1.5)


def test_random_numbers_are_constants_to_derivatives(be64: Backend) -> None:
    x = be64.ones((4, 4))
    noise = be64.rand(4, 4)
    out, dx = be64.zeros((4, 4)), be64.zeros((4, 4))
    be64.assign([out, dx], [x * noise, Autodiff(x * noise, be64).get_grad_op_tree(x)])
    np.testing.assert_array_equal(out.get(), dx.get())


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_the_mean_of_many_ints_is_their_mean(be: Backend, dtype: str) -> None:
    x = np.full((300, 2), 100)
    x[::3] = 1
    for tree, expected in [(be.mean(be.array(x, dtype)), x.mean()), (be.var(be.array(x, dtype), 0), x.var(0)[:1])]:
        assert tree.dtype == "float32"
        np.testing.assert_allclose(tree.asnumpyarray().ravel()[:1], expected, 1e-5)


@pytest.mark.parametrize("value", [2.0, 0.001, 60000.0])
def test_the_mean_of_many_halves_neither_overflows_nor_vanishes(be: Backend, value: float) -> None:
    if lacks(be, "float16"):
        return
    x = np.full((1000, 100), value, np.float16)
    tree = be.mean(be.array(x, dtype="float16"))
    assert tree.dtype == "float16"
    np.testing.assert_allclose(tree.asnumpyarray(), x[:1, :1], 1e-3)


# --- extremes -------------------------------------------------------------------------------------------------------


INF = math.inf


@pytest.mark.parametrize(
    ("what", "tree", "values", "expected"),
    [
        ("softmax of large values", lambda be, x: be.softmax(x), [1e4, 0, -1e4], [1, 0, 0]),
        ("softmax of equal large values", lambda be, x: be.softmax(x), [-1e4, -1e4], [0.5, 0.5]),
        ("softmax beside -inf", lambda be, x: be.softmax(x), [0, -INF, 0], [0.5, 0, 0.5]),
        ("logsumexp of large values", lambda be, x: be.logsumexp(x), [1e4, 1e4], [1e4 + math.log(2)]),
        ("logsumexp of small values", lambda be, x: be.logsumexp(x), [-1e4, -1e4], [math.log(2) - 1e4]),
        ("logsumexp beside -inf", lambda be, x: be.logsumexp(x), [-INF, 3], [3]),
        ("logsumexp of -inf", lambda be, x: be.logsumexp(x), [-INF, -INF], [-INF]),
        ("logsumexp of inf", lambda be, x: be.logsumexp(x), [INF, 0], [INF]),
        ("safelog", lambda be, x: be.safelog(x), [0, -3, 1], [-50, -50, 0]),
        ("sig2", lambda be, x: be.sig2(x), [1e4, 64, -1e4, 0, INF, -INF], [1, 1, 0, 0.5, 1, 0]),
        ("tanh2", lambda be, x: be.tanh2(x), [1e4, 64, -64, -1e4, INF, -INF, 0], [1, 1, -1, -1, 1, -1, 0]),
        ("tanh2 near 0", lambda be, x: be.tanh2(x), [1e-10, -1e-10], [math.log(2) * 1e-10, math.log(2) * -1e-10]),
        ("clip", lambda be, x: be.clip(x, -1, 1), [INF, -INF, 0.5], [1, -1, 0.5]),
        ("reciprocal", lambda be, x: be.reciprocal(x), [0, -0.0, INF], [INF, -INF, 0]),
        ("var of a shifted sample", lambda be, x: be.var(x), [4096, 4097, 4098], [2 / 3]),
    ],
)
def test_extreme_inputs(be: Backend, what: str, tree: Any, values: list[float], expected: list[float]) -> None:
    out = tree(be, be.array([[v] for v in values])).asnumpyarray()
    np.testing.assert_allclose(out, [[v] for v in expected], 1e-6, 0, err_msg=what)


@pytest.mark.parametrize(("runtime", "dtype"), [("cpu", "float16"), ("torch", "float16"), ("torch", "bfloat16")])
def test_16_bit_sums_over_long_axes_do_not_overflow(runtime: str, dtype: str) -> None:
    if runtime not in RUNTIMES:
        pytest.skip(ABSENT[runtime])
    be = Backend.allocate_backend(runtime)
    if lacks(be, dtype):
        pytest.skip("ml_dtypes is not installed")
    n = 70_000  # the largest float16 is 65504
    x = be.array(np.zeros((n, 1)), dtype=dtype)
    rtol = 2**-8
    for tree, expected in [
        (be.softmax(x), 1 / n), (be.logsumexp(x), math.log(n)), (be.mean(x + 2), 2), (be.var(x + 2), 0),
        (x - be.logsumexp(x), -math.log(n)), (be.masked_softmax(x, x + 1), 1 / n),
        (Autodiff(be.logsumexp(x), be).get_grad_op_tree(x), 1 / n),
    ]:  # fmt: skip
        assert tree.dtype == dtype
        np.testing.assert_allclose(tree.get().astype("float32"), np.full(tree.shape, expected), rtol)


def test_the_gradient_of_softmax_and_logsumexp_survives_large_values(be: Backend) -> None:
    x = be.array([[1e4], [0.0], [1e4]])
    np.testing.assert_array_equal(Autodiff(be.logsumexp(x), be).get_grad_asnumpyarray(x), [[0.5], [0], [0.5]])
    error = be.array([[1.0], [0.0], [0.0]])
    np.testing.assert_array_equal(Autodiff(be.softmax(x), be, error).get_grad_asnumpyarray(x), [[0.25], [0], [-0.25]])


@pytest.mark.parametrize("name", ["sig", "sig2", "tanh", "tanh2"])
def test_the_gradient_of_a_bounded_function_is_0_far_out(be: Backend, name: str) -> None:
    x = be.array([[200.0, -200.0, 1e30, -1e30, INF, -INF]])
    slope = Autodiff(getattr(be, name)(x), be).get_grad_op_tree(x)
    np.testing.assert_allclose(slope.asnumpyarray(), np.zeros(x.shape), atol=1e-30)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sig2_and_tanh2_of_ints_do_not_wrap(be: Backend, dtype: str) -> None:
    x = be.array([[1, 2, 100]], dtype=dtype)
    np.testing.assert_allclose(be.sig2(x).asnumpyarray(), [[2 / 3, 0.8, 1]], rtol=1e-6)
    np.testing.assert_allclose(be.tanh2(x).asnumpyarray(), [[3 / 5, 15 / 17, 1]], rtol=1e-6)
