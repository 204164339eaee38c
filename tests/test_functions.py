"""Tests of functions of functions: gradients, Jacobians and batches of every op and of whole functions.

Derivatives are compared with finite differences in float64, with textbook formulas and with torch.func; batches with a
loop over the samples.

Tests ``neonlite/functions.py``, ``neonlite/variables.py`` and ``neonlite/autodiff.py``.
"""

from __future__ import annotations

import gc
import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.op_cases import (
    CASES,
    FLAT_OPERANDS,
    GRADIENTS,
    INTEGER_OPS,
    Case,
    able,
    call,
    differentiable,
    drawn,
    fill,
    placed,
)
from helpers.reference import REFERENCE, numerical_gradient, off, slope
from helpers.tensors import assert_close, leaves_of

import neonlite as nl
from neonlite import Backend
from neonlite.autodiff import push_forward
from neonlite.variables import Variable, batch

xp = nl.array_api
NUM_CASES = 6  # of an op


def some(cases: list[Case], name: str) -> list[Case]:
    """Return a sample of the cases of an op; bits are shifted by 0 or more."""
    cases = [x for x in cases if "bitwise" not in name or all(np.ndim(y) or y >= 0 for y in x.operands)]
    return cases[:: max(1, len(cases) // NUM_CASES)][:NUM_CASES]


# --- every op of the table -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_derivative_of_an_op_along_a_direction_is_that_of_finite_differences(be64: Backend, name: str) -> None:
    for case in some(able(be64, GRADIENTS[name]), name):
        xs = fill(case)
        operands = variables(be64, xs, "float64")
        tree = call(be64, name, operands, case.attrs)
        places = [k for k in differentiable(case) if (name, k) not in FLAT_OPERANDS]
        ways = [drawn(f"{case} way {k}", xs[k].shape, -0.5, 0.5, False) for k in places]
        tangents = {id(operands[k]): be64.array(way) for k, way in zip(places, ways, strict=True)}
        (found,) = push_forward(be64, [tree], tangents)
        f = partial(REFERENCE[name], **case.attrs)
        got = np.zeros(tree.shape) if found is None else found.get()
        expected = slope(f, xs, dict(zip(places, ways, strict=True))) if places else np.zeros(got.shape)
        assert off(got.reshape(expected.shape), expected) <= 1e-6, case


@pytest.mark.parametrize("name", CASES)
def test_an_op_on_many_samples_has_the_values_of_each_sample(be64: Backend, name: str) -> None:
    dtype = "int32" if name in INTEGER_OPS else "float64"
    for number, case in enumerate(some(able(be64, CASES[name]), name)):
        xs = fill(case)
        values = [x if isinstance(x, int | float) else [x * scale for scale in scales(x)] for x in xs]
        operands = variables(be64, xs, dtype)
        tree = call(be64, name, operands, case.attrs)
        places = [k for k, x in enumerate(xs) if not isinstance(x, int | float)]
        choices = [c for n in range(1, len(places) + 1) for c in itertools.combinations(places, n)]
        chosen = choices[number % len(choices)]
        samples = {id(operands[k]): be64.array(np.stack(values[k]), dtype=operands[k].info.dtype) for k in chosen}
        (found,) = batch(be64, [tree], samples, 3)
        assert found.shape == (3, *tree.shape), case
        got = found.get()
        for i in range(3):
            for k in chosen:
                operands[k].given[:] = values[k][i]
            expected = tree.get()
            assert np.allclose(got[i], expected, rtol=1e-9, atol=1e-9, equal_nan=True), (case, chosen)


def variables(be: Backend, xs: list[Any], dtype: str) -> list[Any]:
    """Return operands as a function gets them that is transformed."""
    tensors = [placed(be, x, dtype, "tensor")[0] for x in xs]
    return [x if isinstance(x, int | float) else Variable(x.info, "x", x) for x in tensors]


def scales(x: Any) -> list[Any]:
    """Return three factors that keep the values of an operand in the domain of its op; indices stay as they are."""
    return [1, 1, 1] if x.dtype.kind == "i" else [1, 0.95, 0.9]


# --- gradients -------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(5)
PARAMS = {"W": [RNG.normal(size=(3, 4)), RNG.normal(size=(4, 2))], "b": (RNG.normal(size=4), np.float64(0.3))}
X, T = RNG.normal(size=(5, 3)), RNG.normal(size=(5, 2))


def loss(params: Any, x: Any, t: Any, tanh: Any = None) -> Any:
    """Return the mean squared error of a perceptron, for arrays of any library."""
    hidden = (tanh or xp.tanh)(x @ params["W"][0] + params["b"][0])
    return ((hidden @ params["W"][1] + params["b"][1] - t) ** 2).mean()


def arrays_of(x: Any) -> Any:
    """Return nested containers with arrays instead of those of NumPy."""
    if isinstance(x, dict):
        return {key: arrays_of(y) for key, y in x.items()}
    return type(x)(map(arrays_of, x)) if isinstance(x, list | tuple) else xp.asarray(x)


def test_the_gradient_has_the_containers_of_the_argument_and_the_values_of_finite_differences(be64: Backend) -> None:
    copies = {"W": [w.copy() for w in PARAMS["W"]], "b": (PARAMS["b"][0].copy(), np.array(PARAMS["b"][1]))}
    value, grads = nl.value_and_grad(loss)(arrays_of(PARAMS), arrays_of(X), arrays_of(T))
    expected = [numerical_gradient(lambda: float(loss(copies, X, T, np.tanh)), x) for x in (*copies["W"], *copies["b"])]
    assert float(value) == pytest.approx(loss(PARAMS, X, T, np.tanh))
    assert (type(grads["W"]), type(grads["b"]), grads["b"][1].shape) == (list, tuple, ())
    assert_close(grads, expected, 1e-7)


def test_derivatives_of_derivatives_of_a_power_are_those_of_the_textbook(be64: Backend) -> None:
    f, x = (lambda x: x**5), 1.5
    for factor in (5 * x**4, 20 * x**3, 60 * x**2, 120 * x, 120):
        f = nl.grad(f)
        assert float(f(xp.asarray(x))) == pytest.approx(factor)


def test_argnums_choose_the_arguments_and_a_tuple_of_them_gives_a_tuple(be64: Backend) -> None:
    def f(x, y, n):
        return x * y**n

    assert float(nl.grad(f, 1)(2.0, 3.0, 2)) == 12
    assert [float(g) for g in nl.grad(f, (1, 0))(2.0, 3.0, 2)] == [12, 9]
    assert float(nl.grad(f, -2)(2.0, 3.0, 2)) == 12
    assert float(nl.grad(lambda x, *, scale: x * scale)(2.0, scale=5)) == 5


def test_a_function_may_return_anything_beside_the_value(be64: Backend) -> None:
    def f(x):
        return (x * x, {"twice": 2 * x, "name": "f"})

    grad, aux = nl.grad(f, has_aux=True)(3.0)
    assert (float(grad), float(aux["twice"]), aux["name"]) == (6, 6, "f")
    (value, aux), grad = nl.value_and_grad(f, has_aux=True)(3.0)
    assert (float(value), float(aux["twice"]), float(grad)) == (9, 6, 6)


def test_an_argument_that_is_not_used_has_the_gradient_zero(be64: Backend) -> None:
    assert_close(nl.grad(lambda p: p["x"] * 2)({"x": xp.asarray(1.0), "y": xp.asarray([1.0, 2.0])}), [2, [0, 0]])


def test_python_may_read_values_of_arguments_unless_they_are_compiled(be64: Backend) -> None:
    def f(x):
        return x * x if x > 0 else -x

    assert (float(nl.grad(f)(3.0)), float(nl.grad(f)(-3.0))) == (6, -1)
    assert float(nl.grad(nl.grad(lambda x: x**3 if float(x) > 0 else x))(2.0)) == 12
    with pytest.raises(TypeError, match="expected expressions while the function is traced"):
        nl.jit(nl.grad(f))(3.0)


def test_tensors_are_differentiated_as_arrays_are(be: Backend) -> None:
    w, x = be.array([[1.0, 2.0]], name="w"), be.array([[3.0], [4.0]])

    def f(w, x):
        return be.sum(be.square(be.dot(w, x)))

    grad = nl.grad(f)(w, x)
    assert isinstance(grad, nl.OpTreeNode)
    assert grad.get().tolist() == [[66, 88]]
    w[:] = 2 * w  # an op-tree of tensors has their current values
    assert grad.get().tolist() == [[132, 176]]


def test_gradients_in_a_compiled_function_are_those_outside(be64: Backend) -> None:
    params, x, t = arrays_of(PARAMS), arrays_of(X), arrays_of(T)
    step = nl.jit(lambda p, x, t: nl.value_and_grad(loss)(p, x, t))
    assert_close(step(params, x, t), leaves_of(nl.value_and_grad(loss)(params, x, t)), 1e-12)
    inner = nl.grad(nl.jit(loss))  # a compiled function inside is a part of the expression
    assert_close(inner(params, x, t), leaves_of(nl.grad(loss)(params, x, t)), 1e-12)


def test_an_assignment_in_a_compiled_function_depends_on_its_arguments(be64: Backend) -> None:
    mean = be64.zeros((1, 2))

    def f(x: Any) -> Any:
        mean[:] = 0.5 * mean + x
        return be64.sum(x * x)

    step, x = nl.jit(lambda x: nl.grad(f)(2 * x)), be64.array([[1.0, 2.0]])
    assert step(x).get().tolist() == [[4, 8]]
    assert step(x).get().tolist() == [[4, 8]]
    assert mean.get().tolist() == [[3, 6]]


def test_a_method_and_a_compiled_method_are_transformed(be64: Backend) -> None:
    class Line:
        slope = 3.0

        @nl.grad
        def derivative(x: Any) -> Any:
            return 2 * x

        def value(self, x: Any) -> Any:
            return self.slope * x

    assert float(nl.grad(Line().value)(1.0)) == 3
    assert float(Line.derivative(1.0)) == 2


# --- products with Jacobians, and Jacobians --------------------------------------------------------------------------


def polar(p: Any) -> Any:
    """Return Cartesian coordinates, in a dict, of polar ones."""
    r, phi = p
    return {"x": r * xp.cos(phi), "y": r * xp.sin(phi)}


def test_the_keys_of_an_error_may_have_another_order_than_those_of_the_value(be64: Backend) -> None:
    _, pull_back = nl.vjp(polar, (2.0, 0.5))
    (found,) = pull_back({"y": 3.0, "x": 7.0})
    expected = [7 * math.cos(0.5) + 3 * math.sin(0.5), 2 * (3 * math.cos(0.5) - 7 * math.sin(0.5))]
    np.testing.assert_allclose([float(x) for x in found], expected, 1e-12)


def test_products_with_a_jacobian_from_both_sides_are_those_of_the_textbook(be64: Backend) -> None:
    r, phi = 2.0, 0.7
    rows = {"x": [math.cos(phi), -r * math.sin(phi)], "y": [math.sin(phi), r * math.cos(phi)]}
    value, change = nl.jvp(polar, ((r, phi),), ((1.0, 10.0),))
    assert_close(value, [r * math.cos(phi), r * math.sin(phi)], 1e-6)
    assert_close(change, [a + 10 * b for a, b in rows.values()], 1e-6)
    value, pull_back = nl.vjp(polar, (r, phi))
    assert_close(pull_back({"x": 1.0, "y": 10.0}), [a + 10 * b for a, b in zip(*rows.values(), strict=True)], 1e-6)


def test_a_derivative_along_a_direction_has_the_dtype_and_the_shape_of_the_value(be64: Backend) -> None:
    x, y = xp.ones((1, 3), dtype=xp.float32), xp.ones((2, 1), dtype=xp.float64)
    value, change = nl.jvp(lambda x: x + y, (x,), (x * 2,))
    assert (change.dtype, change.shape) == (value.dtype, value.shape) == (np.float64, (2, 3))
    assert change.numpy().tolist() == [[2] * 3] * 2


def test_the_changes_of_equal_slices_of_places_of_other_shapes_are_added_as_they_are_broadcast(be: Backend) -> None:
    def place(x: Any, rows: int) -> Any:
        """Return zeros (rows, 4) with x as the elements 1 and 2 of the first row."""
        return nl.vjp(lambda t: t[0:1, 1:3], xp.zeros((rows, 4)))[1](x)[0]

    x, y = xp.asarray([[1.0, 2.0]]), xp.asarray([[10.0, 20.0]])
    value, change = nl.jvp(lambda x, y: place(x, 3) + place(y, 1), (x, y), (x, y))
    assert value.numpy().tolist() == [[0, 11, 22, 0], [0, 10, 20, 0], [0, 10, 20, 0]]
    assert change.numpy().tolist() == value.numpy().tolist()  # the function is linear


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_a_jacobian_has_the_axes_of_the_result_and_then_those_of_the_argument(be64: Backend, mode: str) -> None:
    a, x = RNG.normal(size=(2, 3)), RNG.normal(size=(3, 4))

    def f(p):
        return [xp.asarray(a) @ p["x"], p["x"][0]]

    product, row = nl.jacobian(f, mode=mode)({"x": xp.asarray(x)})
    assert_close(product["x"], [np.einsum("ik,jl->ijkl", a, np.eye(4))], 1e-12)
    assert_close(row["x"], [np.einsum("jl,k->jkl", np.eye(4), np.eye(3)[0])], 1e-12)


def test_a_hessian_is_symmetric_and_has_the_values_of_finite_differences(be64: Backend) -> None:
    def rosenbrock(x):
        return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    x = RNG.normal(size=5)
    found = nl.hessian(rosenbrock)(xp.asarray(x)).numpy()

    def gradient(x):
        return nl.grad(rosenbrock)(xp.asarray(x)).numpy()

    expected = [slope(gradient, [x], {0: direction}) for direction in np.eye(5)]
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.allclose(found, found.T, rtol=1e-12, atol=1e-12)
    vector = RNG.normal(size=5)
    (product,) = nl.hvp(rosenbrock, (xp.asarray(x),), (xp.asarray(vector),))
    assert np.allclose(product.numpy(), found @ vector)


# --- many samples ----------------------------------------------------------------------------------------------------


def test_axes_of_samples_are_chosen_for_each_part_of_the_arguments(be64: Backend) -> None:
    a, b, c = RNG.normal(size=(2, 3)), RNG.normal(size=(4, 3)), RNG.normal(size=2)

    def f(p, c):
        return xp.sum(p["a"] * p["b"]) + c

    found = nl.vmap(f, in_axes=({"a": None, "b": 0}, None))({"a": arrays_of(a[0]), "b": arrays_of(b)}, 2.0)
    assert_close(found, [b @ a[0] + 2], 1e-12)
    every = nl.vmap(nl.vmap(lambda x, y: xp.sum(x * y), (None, 0)), (0, None), out_axes=1)
    assert_close(every(arrays_of(a), arrays_of(b)), [(a @ b.T).T], 1e-12)
    columns = nl.vmap(lambda x, c: x * c, in_axes=1, out_axes=-1)(arrays_of(a), arrays_of(c[None, [0, 1, 0]]))
    assert_close(columns, [a * c[[0, 1, 0]]], 1e-12)


def test_samples_of_tensors_are_columns_or_rows(be64: Backend) -> None:
    x = RNG.normal(size=(3, 4))
    t = be64.array(x)
    norms = nl.vmap(lambda c: be64.sum(c * c), in_axes=1)(t)
    assert np.allclose(norms.get(), (x * x).sum(0).reshape(4, 1, 1))
    rows = nl.vmap(lambda r: 2 * r)(t)
    assert np.allclose(rows.get(), 2 * x.reshape(3, 1, 4))


def test_boolean_and_integer_arrays_have_samples_too(be64: Backend) -> None:
    x, mask = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4)) > 0
    found = nl.vmap(lambda x, m: xp.sum(xp.where(~m, x, 0.0)))(arrays_of(x), arrays_of(mask))
    assert_close(found, [np.where(mask, 0, x).sum(1)], 1e-12)
    picked = nl.vmap(lambda x, i: xp.take(x, i), (0, 0))(arrays_of(x), arrays_of(np.array([[0, 1], [3, 3], [2, 0]])))
    assert_close(picked, [np.take_along_axis(x, np.array([[0, 1], [3, 3], [2, 0]]), 1)], 1e-12)


def test_indices_of_each_sample_and_of_compiled_functions_select_and_are_differentiated(be64: Backend) -> None:
    x, i = RNG.normal(size=(3, 4)), np.array([1, 3, -4])

    def pick(x, i):
        return x[i] ** 2

    for wrap in (nl.vmap, lambda f: nl.jit(nl.vmap(f))):
        assert_close(wrap(pick)(arrays_of(x), arrays_of(i)), [x[[0, 1, 2], i] ** 2], 1e-12)
    expected = np.zeros((3, 4))
    expected[[0, 1, 2], i] = 2 * x[[0, 1, 2], i]
    assert_close(nl.vmap(nl.grad(pick))(arrays_of(x), arrays_of(i)), [expected], 1e-12)
    rows = nl.jit(nl.grad(lambda w, i: xp.sum(w[i])))
    assert_close(rows(xp.ones(3, dtype=xp.float64), xp.asarray([[1, 1], [2, 1]])), [[0, 3, 1]], 1e-12)
    order = nl.vmap(lambda x: xp.take_along_axis(x, xp.argsort(x)))
    assert_close(order(arrays_of(x)), [np.sort(x, axis=1)], 1e-12)
    with pytest.raises(IndexError):
        nl.jit(pick)(arrays_of(x[0]), xp.asarray(4)).tensor()


def test_gradients_of_each_sample_of_a_convolutional_network_are_those_of_one_after_another(be64: Backend) -> None:
    images, filters = RNG.normal(size=(4, 2, 6, 6, 1)), RNG.normal(size=(2, 3, 3, 5))

    def f(w: Any, image: Any) -> Any:
        maps = be64.maximum(be64.conv(image, w, padding=1), 0)
        pooled = be64.build("max_pool", maps, window=(1, 2, 2), strides=(1, 2, 2), padding=((0, 0),) * 3, ceil=False)
        return be64.sum(pooled * pooled)

    w = be64.array(filters)
    found = nl.vmap(nl.grad(f), in_axes=(None, 0))(w, be64.array(images)).get()
    for sample, image in zip(found, images, strict=True):
        assert np.allclose(sample, nl.grad(f)(w, be64.array(image)).get())


# --- derivatives that are given, and those that are computed again ---------------------------------------------------


@nl.custom_grad
def clipped(x: Any) -> Any:
    return x * 1.0, lambda error: xp.clip(error, -1.0, 1.0)


def test_a_given_derivative_is_used_in_reverse_mode_for_one_and_for_many_samples(be64: Backend) -> None:
    def f(x):
        return xp.sum(clipped(x) * xp.asarray([0.5, 5.0]))

    x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    assert_close(nl.grad(f)(x[0]), [[0.5, 1]])
    assert_close(nl.vmap(nl.grad(f))(x), [[[0.5, 1], [0.5, 1]]])
    assert_close(nl.grad(lambda x: xp.sum(nl.vmap(clipped)(x) * 5))(x), [[[1, 1], [1, 1]]])
    assert_close(nl.jit(nl.grad(f))(x[0]), [[0.5, 1]])
    assert_close(f(x[0]), [10.5])
    with pytest.raises(NotImplementedError, match="has no forward mode"):
        nl.jvp(clipped, (2.0,), (1.0,))


def test_a_given_derivative_may_use_what_the_function_has_computed(be64: Backend) -> None:
    @nl.custom_grad
    def scaled(x: Any, p: Any) -> Any:
        y = xp.exp(x) * p["a"]
        return y, lambda error: (error * y * 10, {"a": error * 0 + 7})

    grads = nl.grad(scaled, (0, 1))(1.0, {"a": 2.0})
    assert_close(grads, [20 * math.e, 7], 1e-6)


def test_an_argument_of_a_given_derivative_may_be_no_float_or_have_the_gradient_none(be64: Backend) -> None:
    f = nl.custom_grad(lambda x, n: (x * n, lambda error: (10 * error, None)))
    assert float(nl.grad(lambda x: f(x, 2))(3.0)) == 10
    assert float(nl.grad(lambda x: f(x, xp.asarray(2.0)))(3.0)) == 10
    assert [float(g) for g in nl.grad(f, (0, 1))(3.0, 2.0)] == [10, 0]


def test_repeated_calls_with_given_derivatives_and_checkpoints_are_one_structure(be64: Backend) -> None:
    given = nl.custom_grad(lambda x: (x * x, lambda error: error * x))
    again = nl.checkpoint(lambda x: xp.exp(xp.sin(x)))

    def run(count: int) -> int:
        for k in range(count):
            nl.grad(lambda x: given(again(x)))(xp.asarray(0.5 + k))
        gc.collect()
        return len(gc.get_objects())

    run(5)  # fills caches
    first = run(5)
    assert run(100) <= first + 50


def test_given_derivatives_that_differ_in_a_number_or_in_their_kind_differ(be64: Backend) -> None:
    for factor in (2.5, 3.5):
        f = nl.custom_grad(lambda x, c=factor: (x * 2.0, lambda error: error * c))
        assert float(nl.grad(f)(1.0)) == factor
    given = nl.custom_grad(lambda x: (xp.exp(x), lambda error: error * xp.exp(x)))
    again = nl.checkpoint(lambda x: xp.exp(x))
    for _ in range(2):
        assert float(nl.jvp(again, (0.0,), (3.0,))[1]) == 3
        with pytest.raises(NotImplementedError):
            nl.jvp(given, (0.0,), (3.0,))


def deep(block: Any) -> Any:
    def f(p: Any, x: Any) -> Any:
        for w in p:
            x = block(x, w)
        return xp.mean(x * x)

    return f


def block(x: Any, w: Any) -> Any:
    for _ in range(4):
        x = xp.tanh(x @ w)
    return x


def test_a_checkpoint_changes_the_memory_of_a_gradient_and_not_its_values(be64: Backend) -> None:
    weights, x = [RNG.normal(size=(4, 4)) for _ in range(12)], RNG.normal(size=(64, 4))
    plain, checkpointed = (nl.grad(deep(f)) for f in (block, nl.checkpoint(block)))
    arguments = arrays_of(weights), arrays_of(x)
    expected = leaves_of(plain(*arguments))
    assert_close(checkpointed(*arguments), expected, 1e-12)
    assert_close(nl.jit(checkpointed)(*arguments), expected, 1e-12)
    changes = [arrays_of(RNG.normal(size=(4, 4))) for _ in weights]
    for f in (deep(block), deep(nl.checkpoint(block))):
        change = nl.jvp(lambda p, f=f: f(p, arguments[1]), (arguments[0],), (changes,))[1]
        assert float(change) == pytest.approx(
            sum(np.sum(a * b.numpy()) for a, b in zip(expected, changes, strict=True))
        )
    if be64.runtime.name == "cpu":
        sizes = [f.plan(*arguments).arena_bytes for f in (plain, checkpointed)]
        assert sizes[1] <= 0.45 * sizes[0]


def test_checkpoints_in_an_expression_of_more_tensors_than_are_tracked_change_no_value(be64: Backend) -> None:
    weights = [(be64.array(RNG.normal(size=(3, 3))), be64.array(RNG.normal(size=(3, 1)))) for _ in range(70)]
    x, grads = be64.array(RNG.normal(size=(3, 2))), []
    for wrap in (lambda f: f, nl.checkpoint):
        h = x
        for w, b in weights:
            h = wrap(lambda h, w=w, b=b: be64.tanh(be64.dot(w, be64.tanh(be64.dot(w, h))) + b))(h)
        grads.append(nl.Autodiff(be64.sum(h)).get_grad_asnumpyarray([w for w, _ in weights]))
    assert all(np.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(*grads, strict=True))


def test_a_checkpoint_and_a_given_derivative_may_have_several_results(be64: Backend) -> None:
    def polar(p: Any) -> Any:
        r = xp.sqrt(p["x"] ** 2 + p["y"] ** 2)
        return {"r": r, "angle": (xp.sum(xp.atan2(p["y"], p["x"])),)}

    def cost(f: Any) -> Any:
        return lambda p: xp.sum((q := f(p))["r"] ** 3) * q["angle"][0]

    p = {"x": xp.asarray([1.0, 2.0]), "y": xp.asarray([0.5, -3.0])}
    value, expected = nl.value_and_grad(cost(polar))(p)
    again = cost(nl.checkpoint(polar))
    for f in (nl.value_and_grad(again), nl.jit(nl.value_and_grad(again))):
        assert_close(f(p), leaves_of((value, expected)), 1e-12)
    assert_close(nl.jvp(again, (p,), (p,))[1], [nl.jvp(cost(polar), (p,), (p,))[1]], 1e-12)

    given = nl.custom_grad(lambda x, y: ((x * y, xp.sum(x)), lambda error: (error[0] * 10 + error[1], None)))
    x, y = xp.asarray([1.0, 2.0]), xp.asarray([3.0, 4.0])
    found = nl.grad(lambda x: xp.sum(given(x, y)[0] * y) + 7 * given(x, y)[1])(x)
    assert_close(found, [[37.0, 47.0]], 1e-12)
    each = nl.vmap(nl.grad(lambda x, y: (z := given(x, y))[0] * 2 + z[1]), in_axes=0)(x, y)
    assert_close(each, [[21.0, 21.0]], 1e-12)


def test_a_checkpoint_differentiates_tensors_that_the_function_reads_from_outside(be64: Backend) -> None:
    w, x = be64.array([[2.0]], name="w"), be64.array([[3.0]])
    f = nl.checkpoint(lambda x: be64.square(w * x))
    assert nl.Autodiff(be64.sum(f(2 * x))).get_grad_asnumpyarray([w, x])[0].tolist() == [[144]]


def test_the_derivative_of_a_constant_is_zero_in_containers_and_for_tensors_too(be64: Backend) -> None:
    def f(p):
        return p["x"] * nl.stop_gradient(p)["x"] ** 2

    assert_close(nl.grad(f)({"x": xp.asarray(3.0)}), [9])
    assert nl.grad(lambda t: be64.sum(t * nl.stop_gradient(t)))(be64.array([[3.0]])).get().tolist() == [[3]]
    assert nl.stop_gradient([xp.asarray([True]), 2])[0].dtype == np.bool_


# --- what a transform shows, and errors ------------------------------------------------------------------------------


def test_a_formula_names_loops_and_functions_with_given_derivatives(be64: Backend) -> None:
    def add(x: Any, y: Any) -> Any:  # named as an op that has a symbol
        return x - y, lambda error: (error, error)

    x = be64.ones((1, 1), name="x")
    assert nl.custom_grad(add)(x, x).pp() == "(add x x)"
    doubled = nl.vmap(lambda x: nl.while_loop(lambda y: y < 9, lambda y: y * 2, x))
    assert "(while_loop (reshape (slice" in doubled.pp(xp.asarray([2.0]))


def test_a_transform_shows_formulas_with_the_names_of_the_parameters(be64: Backend) -> None:
    both = nl.grad(lambda params, x: xp.sum(params["w"] * x + params["b"]))
    arguments = {"w": xp.asarray([1.0, 2.0]), "b": 0.5}, xp.asarray([3.0, 4.0])
    lines = both.pp(*arguments).splitlines()
    assert [line.split(":")[0] for line in lines] == ["['w']", "['b']"]
    assert ("x" in lines[0], "params['w']" in lines[0]) == (True, False)
    assert "error" in both.draw(*arguments)
    assert both.plan(*arguments).num_distinct_ops > 0
    assert repr(both) == "grad(<lambda>)"


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda: nl.grad(lambda x: x)(3), "expected floats to differentiate with respect to, got x, 3. Pass 3.0"),
        (lambda: nl.grad(lambda x: x)("a"), "expected floats to differentiate with respect to, got x, 'a'"),
        (lambda: nl.grad(lambda x: x * 2)(xp.asarray([1, 2])), "got x, an array (2,) of int64. Convert it"),
        (lambda: nl.grad(lambda x: x)(xp.asarray([1.0, 2.0])), "expected one number as the result"),
        (lambda: nl.grad(lambda x: float(x))(2.0), "expected arrays, tensors or op-trees as the result, got 2.0"),
        (lambda: nl.grad(lambda x: x, 1)(2.0), "expected argnums below 1, the number of positional arguments, got 1"),
        (lambda: nl.grad(lambda x: x, has_aux=True)(2.0), "expected a pair (value, anything) for has_aux=True"),
        (lambda: nl.grad(3), "expected a function for grad, got 3"),
        (lambda: nl.jacobian(lambda x: x, mode="fwd"), "jacobian: expected one of 'reverse', 'forward' for mode"),
        (lambda: nl.jvp(lambda x: x, (1.0,), (xp.ones(2),)), "expected tangents[0] of the shape (), got an array (2,)"),
        (lambda: nl.hvp(lambda x: x, xp.ones(2), xp.ones(2)), "expected a tuple of the arguments as args, got"),
        (lambda: nl.jvp(lambda x: x, (1.0,), (1.0, 2.0)), "expected tangents in the same containers, (*,), got (*, *)"),
        (lambda: nl.vjp(polar, (1.0, 2.0))[1]([1.0, 2.0]), "in the same containers, {'x': *, 'y': *}, got [*, *]"),
        (lambda: nl.vmap(lambda x, y: x)(xp.ones(3), xp.ones(4)), "equal numbers of samples, 3 as in x, got 4"),
        (lambda: nl.vmap(lambda x: x)(2.0), "expected an array with an axis 0 as x"),
        (lambda: nl.vmap(lambda x: x, in_axes=(0, 0))(xp.ones(3)), "for each of 1 arguments, got in_axes=(0, 0)"),
        (lambda: nl.vmap(lambda x: x, in_axes=None)(xp.ones(3)), "expected an argument with an axis of samples"),
        (lambda: nl.vmap(lambda x: x, out_axes=3)(xp.ones(3)), "expected out_axes below 1"),
        (lambda: nl.vmap(lambda x: x if x > 0 else -x)(xp.ones(3)), "one of many samples. Use where"),
        (lambda: nl.vmap(lambda x: 1.0)(xp.ones(3)), "expected arrays, tensors or op-trees as the result, got 1.0"),
        (lambda: nl.custom_grad(lambda x: x)(2.0), "expected a pair (value, rule)"),
        (lambda: nl.custom_grad(lambda x: (x, lambda e: (e, e)))(2.0), "expected gradients in the same containers"),
        (lambda: nl.checkpoint(lambda x: ())(2.0), "expected arrays or tensors of floats as the result, got"),
        (lambda: nl.checkpoint(lambda x: (x, xp.argmax(x)))(xp.ones(3)), "expected arrays or tensors of floats"),
        (
            lambda: nl.vmap(lambda x: nl.cond(x > 0, lambda x: x, lambda x: (x,), x))(xp.ones(3)),
            "in the same containers and of the same shapes, got *, an array () of float32, and (*,)",
        ),
        (lambda: nl.scan(lambda s, x: (s, x), 1.0, [xp.ones(3), xp.ones(4)]), "inputs with one number of steps"),
        (lambda: nl.scan(lambda s, x: (s, x), 1.0), "got length=None and no inputs"),
        (lambda: nl.scan(lambda s, x: s, 1.0, xp.ones(3)), "expected a pair (state, output) from the function"),
        (lambda: nl.scan(lambda s, x: ((s, s), x), 1.0, xp.ones(3)), "of the shapes of the first one, got"),
    ],
)  # fmt: skip
def test_a_mistake_is_said(be: Backend, f: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        f()
    assert message in str(error.value)


def test_a_function_that_writes_to_its_argument_or_reads_the_tensor_by_another_way_is_refused(be: Backend) -> None:
    w = be.array([[2.0]], name="w")

    def assigns(x: Any) -> Any:
        x[:] = 2 * x
        return x

    with pytest.raises(TypeError, match="expected a function that changes no argument, got an assignment to x"):
        nl.grad(assigns)(w)
    with pytest.raises(ValueError, match=r"the tensor that was passed for it, w \(1, 1\), by another way"):
        nl.grad(lambda x: be.sum(w * w))(w)
    assert w.get().tolist() == [[2]]


def test_a_variable_that_is_kept_after_the_call_still_has_its_value(be: Backend) -> None:
    kept = []
    nl.grad(lambda x: kept.append(x) or x * x)(3.0)
    assert float(kept[0]) == 3


def test_arrays_that_depend_on_a_variable_of_the_namespace_remain_expressions_of_it(be64: Backend) -> None:
    v = xp.variable(2.0, dtype=xp.float64)
    gradient = nl.grad(lambda x: x**3 * v)(v)  # 3 v^2 v
    assert float(nl.Autodiff(gradient).get_grad_asnumpyarray(v)) == pytest.approx(9 * 2**2)
