"""Tests of neon's user guide: its examples, verbatim, and the signatures of its API page."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import each

from neonlite import Autodiff, Backend, Block, NervanaObject, OpTreeNode, Tensor, gen_backend
from neonlite.optree import postorder


def value(tree: Any) -> Any:
    return tree.asnumpyarray()


# --- directly calling the backend ----------------------------------------------------------------------------------


@pytest.fixture
def mine(be: Backend) -> Tensor:
    """100 x 100 numbers from -1 to 1."""
    return be.array(np.linspace(-1, 1, 10_000).reshape(100, 100), name="myTensor")


@pytest.fixture
def yours(be: Backend) -> Tensor:
    return be.array(np.linspace(3, 1, 10_000).reshape(100, 100), name="yourTensor")


def test_a_backend_is_generated_by_name_and_is_the_static_one_of_every_object(be: Backend) -> None:
    assert NervanaObject.be is be
    assert NervanaObject().be is be
    second = gen_backend(backend=be.name)
    assert NervanaObject.be is second
    assert be.name in Backend.backend_choices()
    assert Backend.allocate_backend(be.name).name == be.name
    assert NervanaObject.be is second


def test_zeros_are_made_in_all_the_ways_of_the_guide(be: Backend) -> None:
    array_of_zeros = np.zeros((100, 100))
    third, fourth, other = be.empty((100, 100)), be.empty((100, 100)), be.zeros((100, 100))
    third[:] = 0
    made = [be.zeros((100, 100)), be.zeros_like(array_of_zeros), be.array(array_of_zeros), third, fourth.fill(0)]
    made += [other.copy(other), be.zeros_like(other)]
    for tensor in made:
        assert isinstance(tensor, Tensor)
        assert tensor.shape == (100, 100)
        assert tensor.dtype == np.float32
        assert not tensor.get().any()


def test_copy_copies_from_the_other_tensor_into_this_one(be: Backend, mine: Tensor) -> None:
    copied = be.empty((100, 100))
    assert copied.copy(mine) is copied
    mine[:] = 0
    assert copied.get().any()


def test_get_gives_a_numpy_array_that_is_a_copy(mine: Tensor) -> None:
    array = mine.get()
    assert isinstance(array, np.ndarray)
    array[:] = 7
    assert mine.get()[0, 0] == -1


def test_slices_are_views(mine: Tensor) -> None:
    host = mine.get()
    assert mine[:, 1].shape == (100, 1)
    np.testing.assert_array_equal(mine[:, 1].get(), host[:, 1:2])
    np.testing.assert_array_equal(mine[:, 3:10].get(), host[:, 3:10])
    mine[:, 3:10] = 5
    host[:, 3:10] = 5
    np.testing.assert_array_equal(mine.get(), host)


OPERATIONS = {
    "myTensor * yourTensor": (lambda be, x, y: x * y, lambda x, y: x * y),
    "myTensor + yourTensor": (lambda be, x, y: x + y, lambda x, y: x + y),
    "yourTensor ** myTensor": (lambda be, x, y: y**x, lambda x, y: y**x),
    "exp": (lambda be, x, y: be.exp(x), lambda x, y: np.exp(x)),
    "sqrt": (lambda be, x, y: be.sqrt(y), lambda x, y: np.sqrt(y)),
    "==": (lambda be, x, y: x == x.T, lambda x, y: 1.0 * (x == x.T)),
    ">": (lambda be, x, y: x > x.T, lambda x, y: 1.0 * (x > x.T)),
    "dot": (lambda be, x, y: be.dot(x, y), lambda x, y: x @ y),
    "max": (lambda be, x, y: be.max(x), lambda x, y: x.max(keepdims=True)),
    "mean": (lambda be, x, y: be.mean(x), lambda x, y: x.mean(keepdims=True)),
}


@pytest.mark.parametrize(("tree", "expected"), OPERATIONS.values(), ids=OPERATIONS)
def test_tensors_support_the_operations_that_the_guide_lists(
    be: Backend, mine: Tensor, yours: Tensor, tree: Any, expected: Any
) -> None:
    result = tree(be, mine, yours)
    assert isinstance(result, OpTreeNode)
    x, y = mine.get().astype(np.float64), yours.get().astype(np.float64)
    np.testing.assert_allclose(value(result), expected(x, y), rtol=2e-5, atol=1e-5)


def test_the_logistic_function_is_evaluated_when_it_is_assigned_and_not_before(be: Backend, mine: Tensor) -> None:
    f = 1 / (1 + be.exp(-1 * mine))
    assert isinstance(f, OpTreeNode)
    fval = be.zeros((100, 100))
    assert not fval.get().any()
    mine[:] = 2 * mine  # an operand that changes after f was built
    fval[:] = f
    np.testing.assert_allclose(fval.get(), 1 / (1 + np.exp(-np.linspace(-2, 2, 10_000).reshape(100, 100))), rtol=1e-6)
    mine[:] = 0
    fval[:] = f
    np.testing.assert_array_equal(fval.get(), np.full((100, 100), 0.5))


# --- op-trees ------------------------------------------------------------------------------------------------------


def test_the_minimal_example_prints_as_in_the_guide(be: Backend, capsys: pytest.CaptureFixture[str]) -> None:
    x0 = be.ones((2, 2), name="x0")
    x1 = be.ones((2, 2), name="x1")
    f = x0 + x1
    f_val = be.empty((2, 2))
    f_val[:] = f
    print(f)
    print(f_val.get())
    assert capsys.readouterr().out == "({'shape': (2, 2), 'op': 'add'}, x0, x1)\n[[2. 2.]\n [2. 2.]]\n"


def test_an_op_tree_has_the_items_of_a_tuple_of_an_op_and_two_operands(be: Backend) -> None:
    x0, x1 = be.ones((2, 2), name="x0"), be.ones((2, 2), name="x1")
    f = x0 + x1
    op, left, right = f
    assert (op, left, right) == (f[0], f[1], f[2])
    assert len(f) == 3
    assert f[0] == {"shape": (2, 2), "op": "add"}
    assert f[1] is x0
    assert f[2] is x1
    assert be.sum(f, axis=0)[0] == {"shape": (1, 2), "op": "sum", "axis": (0,)}
    with pytest.raises(TypeError):
        f[1] = x1


@pytest.mark.parametrize("combine", [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b])
def test_tensors_and_op_trees_combine_to_op_trees(be: Backend, combine: Any) -> None:
    x1, x2 = be.array([[1.0, 2.0]]), be.array([[4.0, 8.0]])
    t1, t2 = x1 * 3, be.exp(x2)
    for a, b in [(x1, x2), (x1, t1), (t1, x1), (t1, t2)]:
        f = combine(a, b)
        assert isinstance(f, OpTreeNode)
        assert f[1] is a
        assert f[2] is b
        host = [x.get() if isinstance(x, Tensor) else value(x) for x in (a, b)]
        np.testing.assert_allclose(value(f), combine(*host), rtol=1e-6)


def test_build_returns_checked_nodes_and_evaluates_them_if_out_is_passed(be: Backend) -> None:
    a, b = be.array([[4.0, 9.0]], name="a"), be.ones((2, 1), name="b")
    assert str(OpTreeNode.build("add", a, b)) == "({'shape': (2, 2), 'op': 'add'}, a, b)"
    assert OpTreeNode.build("dot", a, b)[0]["shape"] == (1, 1)
    out_buffer = be.empty((1, 2))
    OpTreeNode.build("sqrt", a, None, out=out_buffer)
    np.testing.assert_array_equal(out_buffer.get(), [[2, 3]])
    assert OpTreeNode.build("sum", a, None, axis=1).shape == (1, 1)
    assert value(OpTreeNode.build("sum", a)).item() == 13


def test_an_assign_node_is_run_when_it_is_built_and_again_by_execute(be: Backend) -> None:
    x, f_val = be.array([[4.0, 9.0]]), be.zeros((1, 2))
    node = OpTreeNode.build("assign", f_val, x + 1)
    np.testing.assert_array_equal(f_val.get(), [[5, 10]])
    f_val[:] = 0
    node.execute()
    np.testing.assert_array_equal(f_val.get(), [[5, 10]])


def test_the_constructor_takes_the_op_at_its_word(be: Backend) -> None:
    x, f_val = be.array([[4.0, 9.0]]), be.zeros((1, 2))
    node = OpTreeNode({"op": "add", "shape": (7, 7)}, x, 1)
    assert node.shape == (7, 7)
    f_val[:] = OpTreeNode({"op": "add", "shape": (1, 2)}, x, 1)
    np.testing.assert_array_equal(f_val.get(), [[5, 10]])
    be.execute(OpTreeNode({"op": "assign", "shape": (1, 2)}, f_val, x * 2))
    np.testing.assert_array_equal(f_val.get(), [[8, 18]])


def test_the_tensors_of_a_tree_are_swapped_in_its_post_order_stack(be: Backend) -> None:
    x1, x2, y = be.array([[1.0]], name="x1"), be.array([[5.0]], name="x2"), be.array([[2.0]], name="y")
    f = x1 * x1 + be.exp(x1 - y)
    stack = f.traverse([])
    assert [x["op"] if isinstance(x, dict) else x.name for x in stack] == [
        *("x1", "x1", "mul", "x1", "y", "sub", "exp", "add")
    ]
    swapped = OpTreeNode.from_postfix([x2 if x is x1 else x for x in stack])
    np.testing.assert_allclose(value(swapped), [[25 + np.exp(3)]], rtol=1e-6)
    np.testing.assert_allclose(value(f), [[1 + np.exp(-1)]], rtol=1e-6)


def test_the_shape_of_a_node_is_an_attribute_and_of_anything_a_function(be: Backend) -> None:
    x = be.ones((3, 4))
    assert (x + 1).shape == (3, 4)
    assert OpTreeNode.shape(x) == OpTreeNode.shape(x + 1) == (3, 4)
    assert OpTreeNode.shape(2.5) == (1, 1)


# --- automatic differentiation -------------------------------------------------------------------------------------


@pytest.fixture
def x0(be: Backend) -> Tensor:
    return be.array(np.ones((3, 3)) * 1.0, name="x0")


@pytest.fixture
def x1(be: Backend) -> Tensor:
    return be.array(np.ones((3, 3)) * 2.0, name="x1")


def test_example_0_is_2_x0_plus_x1_and_x0(be: Backend, x0: Tensor, x1: Tensor) -> None:
    ad = Autodiff(op_tree=x0 * x0 + x0 * x1, be=be, next_error=None)
    first, second = ad.get_grad_asnumpyarray([x0, x1])
    np.testing.assert_array_equal(first, np.full((3, 3), 4.0))
    np.testing.assert_array_equal(second, np.ones((3, 3)))


def test_the_gradients_of_the_compound_tree_are_op_trees_with_the_textbooks_values(
    be: Backend, x0: Tensor, x1: Tensor
) -> None:
    f = be.tanh((x0 * x1) + (x0 / x1))
    ad = Autodiff(op_tree=f, be=be, next_error=None)
    [x0_grad_op_tree, x1_grad_op_tree] = ad.get_grad_op_tree([x0, x1])
    slope = 1 - np.tanh(2.5) ** 2
    for tree, expected in [(x0_grad_op_tree, slope * 2.5), (x1_grad_op_tree, slope * 0.75)]:
        assert isinstance(tree, OpTreeNode)
        np.testing.assert_allclose(value(tree), np.full((3, 3), expected), rtol=1e-4)


def test_the_error_of_a_gradient_is_ones_of_the_trees_shape(be: Backend, x0: Tensor, x1: Tensor) -> None:
    grad = Autodiff(be.dot(x0, x1) * x0, be).get_grad_op_tree([x1])[0]
    leaves = {id(x): x for node in postorder(grad) for x in node.operands if isinstance(x, Tensor)}
    (error,) = [x for x in leaves.values() if x.name == "error"]
    assert ", error" in str(grad)
    np.testing.assert_array_equal(error.get(), np.ones((3, 3)))


def test_autodiff_is_safe_to_call_again_on_the_same_tree(be: Backend, x0: Tensor, x1: Tensor) -> None:
    f, error = x0 * x1, be.ones((3, 3))
    assert Autodiff(f, be) is Autodiff(f, be)
    ad = Autodiff(op_tree=f, be=be, next_error=error)
    assert Autodiff(f, be, next_error=error) is ad
    np.testing.assert_array_equal(Autodiff(f, be).get_grad_asnumpyarray(x0), x1.get())
    error[:] = 3
    np.testing.assert_array_equal(Autodiff(f, be, error).get_grad_asnumpyarray(x0), 3 * x1.get())


@pytest.mark.parametrize("many", [True, False], ids=["list", "one tensor"])
def test_all_ways_to_have_a_gradient_agree_for_a_list_and_for_one_tensor(be: Backend, many: bool) -> None:
    mine = be.array(np.linspace(-3, 3, 100).reshape(10, 10), name="myTensor")
    ad = Autodiff(op_tree=1 / (1 + be.exp(-1 * mine)), be=be)
    grads = be.empty((10, 10))
    of = [mine] if many else mine
    got = [ad.get_grad_op_tree(of), ad.get_grad_tensor(of), ad.get_grad_asnumpyarray(of)]
    assert all(isinstance(x, list) is many for x in got)
    tree, tensor, array = (x[0] if many else x for x in got)
    ad.back_prop_grad(of, [grads] if many else grads)
    assert isinstance(tensor, Tensor)
    assert isinstance(array, np.ndarray)
    logistic = 1 / (1 + np.exp(-np.linspace(-3, 3, 100).reshape(10, 10)))
    for x in (value(tree), tensor.get(), array, grads.get()):
        np.testing.assert_allclose(x, logistic * (1 - logistic), rtol=2e-5)


@pytest.mark.parametrize("top", [0, 3, 6, 7])
def test_a_dynamically_generated_tree_is_differentiated_as_it_was_built(be: Backend, top: int) -> None:
    def my_loop(x: Tensor) -> Any:
        y = be.zeros(OpTreeNode.shape(x), name="tensor-zero")
        for _ in range(int(x.get()[0, 0])):
            y = y + x
        return y

    def my_condition(x: Tensor) -> Any:
        return be.sig(x) if x.get()[0, 0] % 2 == 0 else be.tanh(x)

    host = np.random.default_rng(top).integers(10, size=(3, 3)).astype(np.float64)
    host[0, 0] = top
    x0 = be.array(host, name="x0")
    f = my_loop(x0) + my_condition(x0)
    x0_grad_tree = Autodiff(f, be).get_grad_op_tree([x0])[0]
    logistic = 1 / (1 + np.exp(-host))
    slope = 1 - np.tanh(host) ** 2 if top % 2 else logistic * (1 - logistic)
    np.testing.assert_allclose(value(x0_grad_tree), top + slope, rtol=1e-5, atol=1e-6)


# --- creating new layers: what their methods do ----------------------------------------------------------------------


def test_multiply_by_two_works_in_place_in_both_directions(be: Backend) -> None:
    inputs, error = be.array([[1.0, -2.0]]), be.array([[3.0, 5.0]])
    outputs = inputs
    outputs[:] = inputs * 2
    error[:] = 2 * error
    np.testing.assert_array_equal(inputs.get(), [[2, -4]])
    np.testing.assert_array_equal(error.get(), [[6, 10]])


def test_the_batch_norm_tree_gives_its_error_over_the_error_buffer(be64: Backend) -> None:
    be, rng, eps, rho = be64, np.random.default_rng(0), 1e-6, 0.99
    hx, hgamma, hbeta, herror = (rng.normal(size=shape) for shape in ((4, 30), (4, 1), (4, 1), (4, 30)))
    x, gamma, beta = be.array(hx, name="x"), be.array(hgamma, name="gamma"), be.array(hbeta, name="beta")
    y, grad_gamma, grad_beta = be.empty((4, 30)), be.empty((4, 1)), be.empty((4, 1))
    gmean, gvar, error = be.zeros((4, 1)), be.ones((4, 1)), be.array(herror)

    xvar = be.var(x, axis=1)
    xmean = be.mean(x, axis=1)
    xhat = (x - xmean) / be.sqrt(xvar + eps)
    tree = xhat * gamma + beta
    y[:] = tree
    gmean[:] = gmean * rho + (1.0 - rho) * be.mean(x, axis=1)
    gvar[:] = gvar * rho + (1.0 - rho) * be.var(x, axis=1)

    mean, var = hx.mean(1, keepdims=True), ((hx - hx.mean(1, keepdims=True)) ** 2).mean(1, keepdims=True)
    hat = (hx - mean) / np.sqrt(var + eps)
    np.testing.assert_allclose(y.get(), hat * hgamma + hbeta, rtol=1e-12)
    np.testing.assert_allclose(gmean.get(), 0.01 * mean, rtol=1e-12)
    np.testing.assert_allclose(gvar.get(), 0.99 + 0.01 * var, rtol=1e-12)

    for _ in range(2):  # the second minibatch goes through the same objects
        error[:] = herror
        deltas = error.reshape((4, -1))
        ad = Autodiff(tree, be, next_error=deltas)
        ad.back_prop_grad([x, gamma, beta], [deltas, grad_gamma, grad_beta])
        dgamma, dbeta = (herror * hat).sum(1, keepdims=True), herror.sum(1, keepdims=True)
        dx = (herror - (hat * dgamma + dbeta) / 30) * hgamma / np.sqrt(var + eps)
        np.testing.assert_allclose(grad_gamma.get(), dgamma, rtol=1e-10)
        np.testing.assert_allclose(grad_beta.get(), dbeta, rtol=1e-10)
        np.testing.assert_allclose(error.get(), dx, rtol=1e-10, atol=1e-12)


# --- the API page --------------------------------------------------------------------------------------------------

CREATION = "dtype=None, name=None, persist_values=True, parallel=False, distributed=False"
IOBUF = "dim0, x=None, dtype=None, name=None, persist_values=True, shared=None, parallelism=None"
SIGNATURES = {
    **dict.fromkeys(["absolute", "fabs", "negative", "sgn", "sqrt", "square", "exp", "exp2", "log"], "a, out=None"),
    **dict.fromkeys(["log2", "safelog", "sig", "sig2", "tanh", "tanh2", "rint", "finite"], "a, out=None"),
    **dict.fromkeys(["add", "subtract", "multiply", "divide", "true_divide", "power", "dot"], "a, b, out=None"),
    **dict.fromkeys(["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"], "a, b, out=None"),
    **dict.fromkeys(["maximum", "minimum"], "a, b, out=None"),
    **dict.fromkeys(["sum", "max", "min"], "a, axis=None, out=None, keepdims=True"),
    **dict.fromkeys(["argmax", "argmin"], "a, axis=1, out=None, keepdims=True"),
    **dict.fromkeys(["mean", "std"], "a, axis=None, partial=None, out=None, keepdims=True"),
    **dict.fromkeys(["empty", "zeros", "ones"], f"shape, {CREATION}"),
    "var": "a, axis=None, partial=None, out=None, keepdims=True, binary=False",
    "array": f"ary, {CREATION}",
    "reciprocal": "a, out=None",
    "clip": "a, a_min, a_max, out=None",
    "take": "a, indices, axis, out=None",
    "onehot": "indices, axis, out=None",
    "binarize": "a, stochastic=True, out=None",
    "shift": "a, b, value=True, out=None",
    "iobuf": IOBUF,
    "shared_iobuf_size": "shape, parallelism",
    "make_binary_mask": "out, keepthresh=0.5",
    "gen_rng": "seed=None",
    "rng_get_state": "state",
    "rng_set_state": "state",
    "rng_reset": "",
    "begin": "block, identifier",
    "end": "block, identifier",
    "execute": "node",
    "cleanup_backend": "",
    "backend_choices": "",
    "allocate_backend": "name",
}


def parameters(function: Any) -> list[tuple[str, Any]]:
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]


@each("name", SIGNATURES)
def test_a_method_has_the_parameters_and_defaults_of_the_guide(cpu: Backend, name: str) -> None:
    documented = parameters(eval(f"lambda {SIGNATURES[name]}: None"))
    actual = parameters(getattr(cpu, name))[: len(documented)]
    assert [key for key, _ in actual] == [key for key, _ in documented]
    for (key, default), (_, expected) in zip(actual, documented, strict=True):
        assert expected is inspect.Parameter.empty or default == expected, key


def test_gen_backend_has_the_parameters_and_defaults_of_the_guide() -> None:
    assert parameters(gen_backend)[1:] == [
        *(("rng_seed", None), ("datatype", np.float32), ("batch_size", 0), ("stochastic_round", False)),
        *(("device_id", 0), ("max_devices", None), ("compat_mode", None)),
        *(("deterministic_update", None), ("deterministic", None)),
    ]


def test_tensors_like_another_are_created_by_the_guides_methods(be: Backend) -> None:
    ints = be.ones((2, 3), dtype="int32")
    for like in (be.empty_like, be.zeros_like):
        made = like(other_ary=ints, name="made", persist_values=False)
        assert (made.shape, made.dtype, made.name, made.persist_values) == ((2, 3), np.int32, "made", False)
        assert like(ints, dtype="float32").dtype == np.float32
        assert like(np.ones((2, 3))).dtype == np.float32


def test_without_out_a_method_returns_its_tree_and_with_out_it_is_evaluated(be: Backend) -> None:
    x, y = be.array([[4.0, 9.0]]), be.array([[2.0, 3.0]])
    for make, expected in [
        (lambda **out: be.sqrt(x, **out), [[2, 3]]),
        (lambda **out: be.subtract(x, y, **out), [[2, 6]]),
        (lambda **out: be.clip(x, 5, a_max=8, **out), [[5, 8]]),
        (lambda **out: be.shift(x, 3, value=False, **out), [[32, 72]]),
        (lambda **out: be.binarize(4 - x, stochastic=False, **out), [[1, -1]]),
    ]:
        out = be.zeros((1, 2))
        assert isinstance(make(), OpTreeNode)
        assert not out.get().any()
        make(out=out)
        np.testing.assert_array_equal(out.get(), expected)


def test_reductions_are_over_all_dimensions_and_arguments_of_extremes_over_the_rows(be: Backend) -> None:
    x = be.array([[1.0, 5.0, 5.0], [7.0, 0.0, 0.0]])
    for method, expected in [("sum", 18), ("max", 7), ("min", 0), ("mean", 3)]:
        tree = getattr(be, method)(x)
        assert tree.shape == (1, 1)
        np.testing.assert_allclose(value(tree), [[expected]])
    np.testing.assert_array_equal(value(be.argmax(x)), [[1], [0]])  # the first of equals
    np.testing.assert_array_equal(value(be.argmin(x)), [[0], [1]])
    np.testing.assert_array_equal(value(be.argmax(x, axis=None)), [[3]])
    np.testing.assert_array_equal(value(be.var(x, axis=0, partial=None, keepdims=True)), [[9, 6.25, 6.25]])


def test_take_without_an_axis_takes_of_all_elements(be: Backend) -> None:
    x = be.array([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(value(be.take(x, indices=[3, 0], axis=None)).ravel(), [4, 1])
    np.testing.assert_array_equal(value(be.take(x, np.array([1]), axis=0)), [[3, 4]])


def test_onehot_fills_the_tensor_it_is_assigned_to(be: Backend) -> None:
    labels = be.array([[2, 0]], dtype="int32")
    rows, columns = be.empty((3, 2)), be.empty((2, 3))
    rows[:] = be.onehot(labels, axis=0)
    be.onehot(indices=labels, axis=1, out=columns)
    np.testing.assert_array_equal(rows.get(), [[0, 1], [0, 0], [1, 0]])
    np.testing.assert_array_equal(columns.get(), rows.get().T)


def test_the_random_state_is_read_set_and_reset(be: Backend) -> None:
    mask = be.empty((50, 50))

    def draw() -> Any:
        be.make_binary_mask(mask, keepthresh=0.3)
        return mask.get()

    first = draw()
    state = be.rng_get_state(state=None)
    assert be.rng_get_state() == state
    second = draw()
    assert set(np.unique(first)) == {0.0, 1.0}
    assert 0.2 < first.mean() < 0.4
    assert (first != second).any()
    be.rng_set_state(state)
    np.testing.assert_array_equal(draw(), second)
    be.rng_reset()
    np.testing.assert_array_equal(draw(), first)
    be.gen_rng(seed=be.rng_seed)
    np.testing.assert_array_equal(draw(), first)


def test_blocks_are_marked_without_an_effect(be: Backend) -> None:
    assert [Block.epoch, Block.minibatch, Block.fprop, Block.bprop, Block.update] == [0, 1, 2, 3, 4]
    x = be.array([[2.0]])
    be.begin(Block.minibatch, 1)
    x[:] = x * x
    be.end(Block.minibatch, 1)
    assert x.get().item() == 4


def test_io_buffers_have_the_batch_size_in_their_last_axis(be: Backend) -> None:
    be.bsz = 8
    assert be.iobuf(5).shape == (5, 8)
    assert be.iobuf((5, 3)).shape == (5, 24)
    assert be.iobuf((2, 3, 4)).shape == (24, 8)
    mine = be.ones((1, 1))
    assert be.iobuf(5, x=mine) is mine
    shared = be.ones(be.shared_iobuf_size((5, 8), parallelism=None))
    view = be.iobuf(4, shared=shared, name="view", parallelism="Data")
    view[:] = 3
    assert (shared.get().ravel() == 3).sum() == 32


# --- the tables of docs/from_neon.md --------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[1] / "docs" / "from_neon.md").read_text()
ORDERS = re.findall(r"^\| `(\w+\.\w+)` \| `([\w, ]+)` \|$", PAGE, re.MULTILINE)
IMPORTS = re.findall(r"`(from neonlite[.\w]* import [\w, ]+)`", PAGE)
NAMES = re.findall(r"`(neonlite(?:\.\w+){2,})`", PAGE)


@pytest.mark.parametrize(("name", "arguments"), ORDERS)
def test_the_order_of_arguments_is_the_one_in_the_documentation(name: str, arguments: str) -> None:
    module, _, attribute = name.partition(".")
    signature = inspect.signature(getattr(import_module(f"neonlite.{module}"), attribute))
    assert ", ".join(signature.parameters) == arguments


def test_the_names_in_the_documentation_exist() -> None:
    assert min(len(ORDERS), len(IMPORTS), len(NAMES)) > 2
    for line in IMPORTS:
        exec(line, {})
    for name in NAMES:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute)
