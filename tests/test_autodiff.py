"""Tests of Autodiff: derivatives of any tree, view and order, without redundant computation."""

from __future__ import annotations

import gc
import math
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from helpers.expressions import draw, normed
from helpers.parametrize import DEEP
from helpers.reference import gradient_of_operand, off
from helpers.runtimes import back, refused

from neonlite import Autodiff, Backend, OpTreeNode, check_grad
from neonlite.backend.runtimes.base import ReferenceExecutor
from neonlite.optree import postorder

# --- the guide ------------------------------------------------------------------------------------------------------


def test_example_0_of_the_guide(be: Backend) -> None:
    x0 = be.array(np.ones((3, 3)) * 1.0, name="x0")
    x1 = be.array(np.ones((3, 3)) * 2.0, name="x1")
    ad = Autodiff(op_tree=x0 * x0 + x0 * x1, be=be, next_error=None)
    dx0, dx1 = ad.get_grad_asnumpyarray([x0, x1])
    np.testing.assert_array_equal(dx0, np.full((3, 3), 4.0))  # 2 * x0 + x1
    np.testing.assert_array_equal(dx1, np.full((3, 3), 1.0))  # x0


def test_the_tanh_example_of_the_guide(be: Backend) -> None:
    a, b = draw(1, 3, 3), draw(2, 3, 3)
    x0, x1 = be.array(a, name="x0"), be.array(b, name="x1")
    ad = Autodiff(be.tanh((x0 * x1) + (x0 / x1)), be)
    inner = 1 - np.tanh(a * b + a / b) ** 2
    for gradients, expected in zip(
        ad.get_grad_op_tree([x0, x1]), [inner * (b + 1 / b), inner * (a - a / b**2)], strict=True
    ):
        assert isinstance(gradients, OpTreeNode)
        np.testing.assert_allclose(gradients.asnumpyarray(), expected, 2e-5, 1e-5)


@pytest.mark.parametrize("first", [0, 1, 4, 7])
def test_a_tree_that_a_program_makes(be: Backend, first: int) -> None:
    values = np.arange(first, first + 9.0).reshape(3, 3)
    x0 = be.array(values, name="x0")

    def my_loop(x: Any) -> Any:
        y = be.zeros(OpTreeNode.shape(x), name="tensor-zero")
        for _ in range(int(x.get()[0, 0])):
            y = y + x
        return y

    def my_condition(x: Any) -> Any:
        return be.sig(x) if x.get()[0, 0] % 2 == 0 else be.tanh(x)

    f = my_loop(x0) + my_condition(x0)
    s = 1 / (1 + np.exp(-values))
    slope = s * (1 - s) if first % 2 == 0 else 1 - np.tanh(values) ** 2
    np.testing.assert_allclose(Autodiff(f, be).get_grad_op_tree([x0])[0].asnumpyarray(), first + slope, 1e-5, 1e-6)


# --- the four gradient methods --------------------------------------------------------------------------------------


@pytest.fixture
def product(be: Backend) -> tuple[Backend, Any, Any, Any]:
    x, y = be.array([[1.0, 2.0]], name="x"), be.array([[3.0], [5.0]], name="y")
    return be, x, y, x * y


def test_all_getters_agree_and_take_a_list_or_one_tensor(product: Any) -> None:
    be, x, y, tree = product
    dx, dy = [[8, 8]], [[3], [3]]
    ad = Autodiff(tree, be)
    for gradients, expected in [
        *zip(ad.get_grad_asnumpyarray([x, y]), [dx, dy], strict=True),
        *zip((t.get() for t in ad.get_grad_tensor((y, x))), [dy, dx], strict=True),
        *zip((t.asnumpyarray() for t in ad.get_grad_op_tree([x, x])), [dx, dx], strict=True),
        (ad.get_grad_asnumpyarray(y), dy),
        (ad.get_grad_tensor(x).get(), dx),
        (ad.get_grad_op_tree(y).asnumpyarray(), dy),
        (ad.get_grad_asnumpyarray([y])[0], dy),
    ]:
        np.testing.assert_array_equal(gradients, expected)
    assert ad.get_grad_asnumpyarray([]) == []
    a, b = be.zeros((1, 2)), be.zeros((2, 1))
    assert ad.back_prop_grad([x, y], [a, b]) is None
    np.testing.assert_array_equal(a.get(), dx)
    np.testing.assert_array_equal(b.get(), dy)
    ad.back_prop_grad(y, b.fill(0))
    np.testing.assert_array_equal(b.get(), dy)


def test_gradients_follow_the_values_that_tensors_have_when_they_are_evaluated(product: Any) -> None:
    be, x, y, tree = product
    slope = Autodiff(tree, be).get_grad_op_tree(x)
    y[:] = 10
    np.testing.assert_array_equal(slope.asnumpyarray(), [[20, 20]])


def test_a_gradient_is_an_op_tree_even_if_it_is_the_error_or_zero(be: Backend) -> None:
    x, y, error = be.ones((2, 2), name="x"), be.ones((2, 2)), be.array([[1.0, 2.0], [3.0, 4.0]], name="e")
    dx, dy = Autodiff(x + 1, be, error, allow_unused=True).get_grad_op_tree([x, y])
    assert (type(dx), type(dy)) == (OpTreeNode, OpTreeNode)
    assert "e" in dx.pp()
    np.testing.assert_array_equal(dx.astensor().get(), error.get())
    np.testing.assert_array_equal(dy.get(), np.zeros((2, 2)))


def test_new_tensors_are_not_shared(be: Backend) -> None:
    x, error = be.ones((2, 2)), be.ones((2, 2))
    gradient = Autodiff(x + 1, be, error).get_grad_tensor(x)
    gradient[:] = 7
    assert (error.get() == 1).all()
    assert (x.get() == 1).all()


def test_the_error_comes_in_as_a_tensor_or_a_tree(be64: Backend) -> None:
    x, e = be64.array(draw(3, 2, 3)), be64.array(draw(4, 2, 3))
    for error, value in [(e, e.get()), (2 * e, 2 * e.get()), (x * e, x.get() * e.get())]:
        gradient = Autodiff(be64.exp(x), be64, next_error=error).get_grad_asnumpyarray(x)
        np.testing.assert_allclose(gradient, value * np.exp(x.get()), 1e-14)


def test_the_gradient_has_the_dtype_and_the_backend_of_the_tree(be: Backend) -> None:
    for dtype in {"float16", "float32", "float64"} & set(be.runtime.dtypes):
        x, n = be.array([[2.0, 3.0]], dtype=dtype), be.array([[4, 5]], dtype="int32")
        for tree, expected in [(x * n, [[4, 5]]), (x**2 / 2, [[2, 3]]), (be.where(n > 4, x, 0), [[0, 1]])]:
            gradient = Autodiff(tree, be).get_grad_tensor(x)
            assert gradient.dtype == dtype
            np.testing.assert_array_equal(gradient.get(), expected)
    narrow, wide = be.array([[2.0]], dtype="float32"), be.array([[3.0]], dtype="float64")
    a, b = be.zeros((1, 1), dtype="float32"), be.zeros((1, 1), dtype="float64")
    Autodiff(narrow * wide, be).back_prop_grad([narrow, wide], [a, b])
    assert (a.get(), b.get()) == (3, 2)


def test_without_a_backend_the_current_one_is_used(cpu: Backend) -> None:
    x = cpu.array([[3.0]])
    assert Autodiff(x * x).get_grad_asnumpyarray(x) == 6


# --- invalid arguments ----------------------------------------------------------------------------------------------


def test_operands_without_a_gradient_are_rejected_by_name(product: Any) -> None:
    be, x, _, tree = product
    ad, unused = Autodiff(tree, be), be.ones((1, 2), name="unused")
    with pytest.raises(
        ValueError, match=r"expected a tensor of the tree, x, y, got unused \(1, 2\)\. allow_unused=True"
    ):
        ad.get_grad_op_tree([x, unused])
    with pytest.raises(TypeError, match="tensor to differentiate with respect to"):
        ad.get_grad_op_tree(2 * x)
    n = be.ones((1, 2), dtype="int32", name="n")
    with pytest.raises(TypeError, match=r"expected a float tensor, got n \(1, 2\) with dtype int32"):
        Autodiff(x * n, be).get_grad_tensor(n)
    with pytest.raises(TypeError, match="expected an op-tree"):
        Autodiff(x, be)
    for wrong, error in [(be.ones((1, 2)), ValueError), (1.0, TypeError), (np.ones((2, 2)), TypeError)]:
        with pytest.raises(error, match="next_error"):
            Autodiff(tree, be, wrong)
    assert Autodiff(tree, be).get_grad_asnumpyarray(x).tolist() == [[8, 8]]  # an error leaves no state behind


def test_buffers_that_do_not_match_are_rejected(product: Any) -> None:
    be, x, y, tree = product
    ad, a = Autodiff(tree, be), be.zeros((1, 2))
    with pytest.raises(ValueError, match="expected 2 gradients, one per tensor, got 1"):
        ad.back_prop_grad([x, y], [a])
    with pytest.raises(ValueError, match=r"of the shape of x \(1, 2\)"):
        ad.back_prop_grad([x], [be.zeros((2, 1))])
    with pytest.raises(TypeError, match="expected tensors to write gradients to"):
        ad.back_prop_grad([x], [a + 1])
    base = be.zeros((3, 3))
    with pytest.raises(ValueError, match="do not overlap"):
        Autodiff(x * y.T, be).back_prop_grad([x, y], [base[0, :2], base[:2, 1]])


def test_an_unused_tensor_may_have_the_gradient_zero(product: Any) -> None:
    be, x, _, tree = product
    unused = be.ones((4, 1))
    dx, ds = Autodiff(tree, be, allow_unused=True).get_grad_asnumpyarray([x, unused])
    np.testing.assert_array_equal(dx, [[8, 8]])
    np.testing.assert_array_equal(ds, np.zeros((4, 1)))
    with pytest.raises(ValueError, match="expected a tensor of the tree"):
        Autodiff(tree, be).get_grad_asnumpyarray(unused)


# --- the memo -------------------------------------------------------------------------------------------------------


def test_the_same_tree_has_the_same_autodiff(product: Any) -> None:
    be, x, y, tree = product
    ad = Autodiff(tree, be)
    gradients = ad.get_grad_op_tree([x, y])
    assert Autodiff(tree, be) is ad
    assert all(a is b for a, b in zip(Autodiff(tree, be).get_grad_op_tree([x, y]), gradients, strict=True))
    assert Autodiff(x * y, be) is not ad
    error = be.array([[1.0, 2.0], [0.0, 0.0]])
    other = Autodiff(tree, be, error)
    assert other is not ad
    assert other is Autodiff(tree, be, error)
    np.testing.assert_array_equal(other.get_grad_asnumpyarray(x), [[3, 6]])
    np.testing.assert_array_equal(Autodiff(tree, be).get_grad_asnumpyarray(x), [[8, 8]])


@pytest.mark.parametrize("known", [False, True], ids=["", "with known values"])
def test_the_memo_is_stored_with_the_tree_and_deleted_with_it(be: Backend, known: bool) -> None:
    x = be.ones((2, 2))
    tree = be.exp(x) * x
    values = {tree: be.ones((2, 2))} if known else None
    ad = Autodiff(tree, be, values=values)
    gradients = ad.get_grad_op_tree([x])
    seen, leaf = weakref.ref(ad), weakref.ref(x)
    del ad
    assert Autodiff(tree, be, values=values).get_grad_op_tree([x])[0] is gradients[0]
    gc.collect()
    gc.disable()  # so that only what nothing refers to goes
    try:
        del tree, x, gradients, values
        assert seen() is None
        assert leaf() is None
    finally:
        gc.enable()


def test_a_new_error_never_finds_the_memo_of_an_old_one(be: Backend) -> None:
    x = be.array([[1.0, 2.0]])
    tree = x * x
    for k in range(50):  # a deleted error may leave its id to the next one
        gradient = Autodiff(tree, be, be.array([[k, k]])).get_grad_asnumpyarray(x)
        np.testing.assert_array_equal(gradient, [[2 * k, 4 * k]])


# --- shared parts and depth -----------------------------------------------------------------------------------------


def test_a_part_that_is_used_often_is_one_node(be64: Backend) -> None:
    x = be64.array([[1.0, -2.0]])
    y = x
    for _ in range(1000):
        y = y + y
    assert len(list(postorder(y))) == 1000
    slope = Autodiff(y, be64).get_grad_op_tree(x)
    assert len(list(postorder(slope))) == 1000
    assert be64.plan(y, slope).num_distinct_ops == 2000
    np.testing.assert_array_equal(slope.asnumpyarray(), np.full((1, 2), 2.0**1000))
    np.testing.assert_array_equal(y.asnumpyarray(), 2.0**1000 * np.array([[1.0, -2.0]]))


@pytest.mark.long
@pytest.mark.parametrize("nodes", DEEP)
def test_an_expression_deeper_than_the_stack_has_a_gradient(cpu: Backend, nodes: int) -> None:
    x = cpu.array([[1.0, 2.0]])
    y = x
    for _ in range(nodes):
        y = y + x
    gradient = Autodiff(y, cpu).get_grad_op_tree(x)
    assert len(list(postorder(gradient))) == nodes
    np.testing.assert_array_equal(gradient.asnumpyarray(), [[nodes + 1, nodes + 1]])


@pytest.mark.long
def test_a_tensor_that_is_used_many_times_gets_the_sum(be64: Backend) -> None:
    x = be64.array([[1.0, 2.0]])
    y = 0.0 * x
    for k in range(1, 3001):
        y = y + k * x
    np.testing.assert_array_equal(Autodiff(y, be64).get_grad_asnumpyarray(x), np.full((1, 2), 3000 * 3001 / 2))


def structures(*trees: Any) -> int:
    """Count sub-trees that differ in structure, by hand."""
    known: dict[Any, int] = {}
    number: dict[int, int] = {}
    for node in postorder(*trees):
        if node.op != "pair":
            inner = [
                (number[id(x)],) if isinstance(x, OpTreeNode) else x if isinstance(x, int | float) else id(x)
                for x in node.operands
            ]
            key = repr((node.op, sorted(node.attrs.items()), inner))
            number[id(node)] = known.setdefault(key, len(known))
    return len(known)


def test_batch_norm_has_the_textbook_gradient(be64: Backend) -> None:
    *tensors, error, tree = normed(be64)
    x, gamma, _, d = (t.get() for t in (*tensors, error))
    m = x.shape[1]
    root = np.sqrt(x.var(1, keepdims=True) + 1e-3)
    xhat = (x - x.mean(1, keepdims=True)) / root
    grad_gamma, grad_beta = (xhat * d).sum(1, keepdims=True), d.sum(1, keepdims=True)
    grad_x = (d - (xhat * grad_gamma + grad_beta) / m) * gamma / root
    gradients = Autodiff(tree, be64, error).get_grad_asnumpyarray(tensors)
    for dx, expected in zip(gradients, [grad_x, grad_gamma, grad_beta], strict=True):
        np.testing.assert_allclose(dx, expected, 1e-11, 1e-12)


def test_batch_norm_has_the_gradient_of_torch(be64: Backend) -> None:
    torch = pytest.importorskip("torch")
    *tensors, error, tree = normed(be64)
    x, gamma, beta = (torch.tensor(t.get(), requires_grad=True) for t in tensors)
    y = torch.nn.functional.batch_norm(x.T, None, None, gamma[:, 0], beta[:, 0], training=True, eps=1e-3).T
    y.backward(torch.tensor(error.get()))
    np.testing.assert_allclose(tree.asnumpyarray(), y.detach().numpy(), 1e-12)
    for dx, t in zip(Autodiff(tree, be64, error).get_grad_asnumpyarray(tensors), (x, gamma, beta), strict=True):
        np.testing.assert_allclose(dx, t.grad.numpy(), 1e-11, 1e-12)


def test_every_distinct_part_of_the_gradient_of_batch_norm_is_evaluated_once(be64: Backend) -> None:
    *tensors, error, tree = normed(be64)
    gradients = Autodiff(tree, be64, error).get_grad_op_tree(tensors)
    plan = be64.plan(*gradients)
    assert plan.num_distinct_ops == structures(*gradients) == len(plan.steps)
    assert plan.num_distinct_ops <= 40
    evaluated = [v for stage in plan.stages for v in stage.steps]
    assert len(evaluated) == len(set(evaluated))
    views = [step for step in plan.steps if step.kind == "view"]
    assert len(evaluated) + len(views) == plan.num_distinct_ops
    alone = [be64.plan(gradient).num_distinct_ops for gradient in gradients]
    assert plan.num_distinct_ops < sum(alone)  # what they share is shared


def test_back_prop_grad_runs_each_step_of_one_plan_once(monkeypatch: pytest.MonkeyPatch) -> None:
    be = Backend.allocate_backend("strict", rng_seed=1, default_dtype=np.float64)
    *tensors, error, tree = normed(be)
    ad = Autodiff(tree, be, error)
    steps = be.plan(*ad.get_grad_op_tree(tensors)).steps
    ran: list[Any] = []
    value = ReferenceExecutor.evaluate_step
    monkeypatch.setattr(
        ReferenceExecutor, "evaluate_step", lambda self, step, values: ran.append(step) or value(self, step, values)
    )
    ad.back_prop_grad(tensors, [be.empty(t.shape) for t in tensors])
    assert sorted(step.op.name for step in ran) == sorted(step.op.name for step in steps)


def test_branches_that_lead_to_no_asked_tensor_are_left_out(be: Backend) -> None:
    x, y = be.ones((2, 2)), be.ones((2, 2))
    deep = y
    for _ in range(100):
        deep = be.tanh(deep)
    slope = Autodiff(x * 3 + deep, be).get_grad_op_tree(x)
    assert not [node for node in postorder(slope) if node.op == "tanh"]
    assert (slope.asnumpyarray() == 3).all()


# --- known values --------------------------------------------------------------------------------------------------


def test_known_values_are_neither_evaluated_again_nor_asked_of_their_operands(be64: Backend) -> None:
    x = be64.array(draw(9, 2, 3), name="x")
    hidden = be64.exp(x)
    tree = be64.tanh(hidden * hidden)
    h, out = be64.evaluate([hidden, tree])
    before = Autodiff(tree, be64).get_grad_asnumpyarray(x)
    known = Autodiff(tree, be64, values={hidden: h, tree: out})
    slope = known.get_grad_op_tree(x)
    assert not {"exp", "tanh"} & {node.op for node in postorder(slope)}
    assert not [leaf for node in postorder(slope) for leaf in node.operands if leaf is x]
    x[:] = 99  # overwritten in place after its forward pass
    np.testing.assert_allclose(slope.asnumpyarray(), before, 1e-13)
    assert Autodiff(tree, be64, values={hidden: h, tree: out}) is known
    assert Autodiff(tree, be64) is not known


# --- gradients that overwrite their operands ------------------------------------------------------------------------


def test_the_error_buffer_may_be_a_target(be64: Backend) -> None:
    a, b, e = draw(10, 3, 3), draw(11, 3, 3), draw(12, 3, 3)
    expected = [e * (2 + b), e * (a + 1)]
    for first in (0, 1):
        x, y, error = be64.array(a), be64.array(b), be64.array(e)
        targets = [be64.zeros((3, 3)), be64.zeros((3, 3))]
        targets[first] = error
        Autodiff(2 * x + x * y + y, be64, error).back_prop_grad([x, y], targets)
        for actual, value in zip(targets, expected, strict=True):
            np.testing.assert_allclose(actual.get(), value, 1e-14)


def test_a_gradient_that_shows_the_error_is_not_spoiled_by_another_written_over_it(be64: Backend) -> None:
    x, y, e = (be64.array(draw(k, 3, 3)) for k in (10, 11, 12))
    error, dy = e.get(), be64.zeros((3, 3))
    Autodiff(be64.transpose(x) + y, be64, e).back_prop_grad([x, y], [e, dy])
    np.testing.assert_array_equal(e.get(), error.T)
    np.testing.assert_array_equal(dy.get(), error)


def test_a_part_of_the_error_buffer_may_be_a_target(be64: Backend) -> None:
    base = be64.array(draw(13, 4, 3))
    e, a = base.get(), draw(14, 3, 3)
    x, error, target = be64.array(a), base[:3], base[1:]
    Autodiff(x**2, be64, error).back_prop_grad(x, target)
    np.testing.assert_allclose(target.get(), 2 * a * e[:3], 1e-14)
    np.testing.assert_array_equal(base.get()[0], e[0])


def test_gradients_may_be_written_over_the_tensors_of_the_tree(be64: Backend) -> None:
    a, b = draw(15, 3, 3), draw(16, 3, 3)
    x, y = be64.array(a), be64.array(b)
    Autodiff(be64.dot(x, y) * x, be64).back_prop_grad([x, y], [y, x])  # crosswise
    np.testing.assert_allclose(y.get(), a @ b + a @ b.T, 1e-13)
    np.testing.assert_allclose(x.get(), a.T @ a, 1e-13)


# --- gradients of gradients -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f", "gradients"),
    [
        (lambda be, x: x**4, [lambda x: 4 * x**3, lambda x: 12 * x**2, lambda x: 24 * x, lambda x: 24 + 0 * x]),
        (lambda be, x: be.exp(2 * x), [lambda x, k=k: 2**k * np.exp(2 * x) for k in (1, 2, 3, 4)]),
        (lambda be, x: be.log(x * x), [lambda x: 2 / x, lambda x: -2 / x**2, lambda x: 4 / x**3, lambda x: -12 / x**4]),
        (lambda be, x: 1 / x, [lambda x: -1 / x**2, lambda x: 2 / x**3, lambda x: -6 / x**4, lambda x: 24 / x**5]),
        (
            lambda be, x: be.tanh(x),
            [
                lambda x: 1 - np.tanh(x) ** 2,
                lambda x: -2 * np.tanh(x) * (1 - np.tanh(x) ** 2),
                lambda x: (1 - np.tanh(x) ** 2) * (6 * np.tanh(x) ** 2 - 2),
            ],
        ),
        (lambda be, x: be.maximum(x, 0) * x, [lambda x: 2 * x * (x > 0), lambda x: 2.0 * (x > 0), lambda x: 0 * x]),
    ],
    ids=["x^4", "exp", "log", "1/x", "tanh", "relu"],
)
def test_gradients_of_gradients_of_gradients(be64: Backend, f: Any, gradients: Sequence[Any]) -> None:
    values = draw(17, 2, 3)
    x = be64.array(values)
    tree = f(be64, x)
    for gradient in gradients:
        tree = Autodiff(tree, be64, allow_unused=True).get_grad_op_tree(x)
        tree = tree if isinstance(tree, OpTreeNode) else 1 * tree
        np.testing.assert_allclose(tree.asnumpyarray(), gradient(values), 1e-11, 1e-12)


def test_a_mixed_second_derivative_does_not_depend_on_the_order(be64: Backend) -> None:
    x, y = be64.array(draw(18, 2, 3)), be64.array(draw(19, 2, 3))
    tree = be64.exp(x * y) / (x * x + 1)
    dx, dy = Autodiff(tree, be64).get_grad_op_tree([x, y])
    first = Autodiff(dx, be64).get_grad_asnumpyarray(y)
    second = Autodiff(dy, be64).get_grad_asnumpyarray(x)
    np.testing.assert_allclose(first, second, 1e-12)


# --- views ----------------------------------------------------------------------------------------------------------


VIEWS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a slice": (lambda x: x[1:3], lambda x: x[1:3]),
    "a column": (lambda x: x[:, 1], lambda x: x[:, [1]]),
    "a row": (lambda x: x[-1], lambda x: x[[-1]]),
    "an element": (lambda x: x[2, 0], lambda x: x[2:3, :1]),
    "every second": (lambda x: x[::2, 1::2], lambda x: x[::2, 1::2]),
    "backwards": (lambda x: x[::-1, ::-2], lambda x: x[::-1, ::-2]),
    "nothing": (lambda x: x[2:2], lambda x: x[2:2]),
    "T": (lambda x: x.T, lambda x: x.T),
    "reshape": (lambda x: x.reshape(2, 6), lambda x: x.reshape(2, 6)),
    "n-D": (lambda x: x.reshape(2, 2, 3)[1], lambda x: x.reshape(2, 2, 3)[1]),
    "n-D, two indices": (lambda x: x.reshape(2, 2, 3)[:, 1, ::2], lambda x: x.reshape(2, 2, 3)[:, 1, ::2]),
    "a view of a view of a view": (lambda x: x[1:].reshape(3, 3).T[1:], lambda x: x[1:].reshape(3, 3).T[1:]),
    "T of a slice": (lambda x: x[1:].T[:, ::-1], lambda x: x[1:].T[:, ::-1]),
    "share": (lambda x: x.share((2, 2)), lambda x: x.ravel()[:4].reshape(2, 2)),
}


@pytest.mark.parametrize("what", VIEWS)
def test_the_gradient_through_a_view_reaches_the_base_and_the_view(be64: Backend, what: str) -> None:
    view, part = VIEWS[what]
    values = draw(20, 4, 3)
    x = be64.array(values)
    if refused(be64, lambda: view(x)):
        return
    v = view(x)
    e = draw(21, *v.shape)
    np.testing.assert_array_equal(v.get(), part(values))
    ad = Autodiff(be64.exp(v) * v, be64, be64.array(e))
    in_view, in_base = ad.get_grad_asnumpyarray([v, x])
    np.testing.assert_allclose(in_view, e * (1 + part(values)) * np.exp(part(values)), 1e-13)
    np.testing.assert_allclose(part(in_base), in_view, 1e-15)
    assert np.count_nonzero(in_base) == in_view.size
    np.testing.assert_array_equal(ad.get_grad_asnumpyarray(view(x)), in_view)  # created again, it is the same memory


def f_of_views(x: Any, exp: Any, back: int) -> Any:
    """The base, two views that overlap, one of them twice, and a view of a view, in one expression."""
    top, bottom = x[:3], x[1:]
    return top * bottom + exp(x[1:].T[:, ::back].T) * top + x[2:3] * x[:3] * x[1:4] + top


def test_gradients_of_views_that_overlap_add_up_in_the_base(be64: Backend) -> None:
    values, e = draw(22, 4, 3), draw(23, 3, 3)
    x = be64.array(values, name="x")
    numeric = gradient_of_operand(lambda x: f_of_views(x, np.exp, back(be64)), [values], 0, e)
    ad = Autodiff(f_of_views(x, be64.exp, back(be64)), be64, be64.array(e))
    in_base = ad.get_grad_asnumpyarray(x)
    assert off(in_base, numeric) <= 1e-6
    for part in (lambda x: x[:2], lambda x: x[1:], lambda x: x.T, lambda x: x[1:2].T, lambda x: x[:: back(be64), 1:]):
        gradient = ad.get_grad_asnumpyarray(part(x))  # of any view, in the tree or not
        np.testing.assert_allclose(gradient, part(in_base), 1e-13)


def test_second_derivatives_through_views(be64: Backend) -> None:
    values, way = draw(24, 4, 3), draw(25, 4, 3)
    x = be64.array(values)
    w = be64.array(way)
    slope = Autodiff(f_of_views(x, be64.exp, back(be64)), be64).get_grad_op_tree(x)
    gradient = Autodiff(be64.sum(slope * w), be64).get_grad_asnumpyarray(x)

    def energy(values: Any) -> Any:
        x[:] = values
        return be64.sum(slope * w).asnumpyarray()

    assert off(gradient, gradient_of_operand(energy, [values], 0, 1.0)) <= 1e-6


def test_gradients_into_views_of_one_flat_buffer(be64: Backend) -> None:
    flat, grads = be64.array(draw(26, 10, 1)), be64.zeros((10, 1))
    w, b = flat[:6].reshape(2, 3), flat[6:8]
    dw, db = grads[:6].reshape(2, 3), grads[6:8]
    x = be64.array(draw(27, 3, 5))
    Autodiff(be64.dot(w, x) + b, be64).back_prop_grad([w, b], [dw, db])
    np.testing.assert_allclose(grads.get()[:6].reshape(2, 3), np.ones((2, 5)) @ x.get().T, 1e-13)
    np.testing.assert_array_equal(grads.get()[6:, 0], [5, 5, 0, 0])


# --- broadcasting, and larger expressions beside torch --------------------------------------------------------------


def test_broadcasting_in_three_dimensions_is_summed_back(be64: Backend) -> None:
    shapes = [(2, 1, 3), (4, 1), (1, 1), (2, 4, 3), (1, 4, 1)]
    xs = [draw(30 + i, *shape) for i, shape in enumerate(shapes)]
    tensors = list(map(be64.array, xs))

    def f(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        return (a * b + c) * d / (e * e) - a * e

    error = draw(36, 2, 4, 3)
    gradients = Autodiff(f(*tensors), be64, be64.array(error)).get_grad_asnumpyarray(tensors)
    for k, dx in enumerate(gradients):
        assert off(dx, gradient_of_operand(f, xs, k, error)) <= 1e-6


def attention(m: Any, x: Any, q: Any, k: Any, v: Any) -> Any:
    scores = m.softmax((x @ q) @ m.flip(x @ k) / 2.0)
    return scores @ (x @ v)


class NeonliteFunctions:
    def __init__(self, be: Backend) -> None:
        self.exp, self.tanh, self.log = be.exp, be.tanh, be.log
        self.softmax = lambda x: be.softmax(x, -1)
        self.flip = lambda x: be.transpose(x)
        self.mean = lambda x: be.mean(x, -1)
        self.relu = lambda x: be.maximum(x, 0)


class TorchFunctions:
    def __init__(self, torch: Any) -> None:
        self.exp, self.tanh, self.log, self.relu = torch.exp, torch.tanh, torch.log, torch.relu
        self.softmax = lambda x: torch.softmax(x, -1)
        self.flip = lambda x: x.swapaxes(-1, -2)
        self.mean = lambda x: x.mean(-1, keepdim=True)


EXPRESSIONS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "a perceptron": (
        lambda m, x, w, b, u: m.log(m.softmax(m.relu(x @ w + b) @ u)),
        [(5, 4), (4, 6), (1, 6), (6, 3)],
    ),
    "attention": (attention, [(2, 5, 4), (4, 3), (4, 3), (4, 2)]),
    "a norm of layers": (
        lambda m, x, g: (x - m.mean(x)) / (m.mean((x - m.mean(x)) ** 2) + 1e-3) ** 0.5 * g,
        [(3, 2, 6), (1, 6)],
    ),
    "a recurrence": (
        lambda m, x, w: m.tanh(m.tanh(m.tanh(x) @ w + x) @ w + x) @ w,
        [(3, 4), (4, 4)],
    ),
}


@pytest.mark.parametrize("what", EXPRESSIONS)
def test_torch_finds_the_same_gradients(be64: Backend, what: str) -> None:
    torch = pytest.importorskip("torch")
    f, shapes = EXPRESSIONS[what]
    xs = [draw(40 + i, *shape) for i, shape in enumerate(shapes)]
    tensors, torch_tensors = list(map(be64.array, xs)), [torch.tensor(x, requires_grad=True) for x in xs]
    tree, result = f(NeonliteFunctions(be64), *tensors), f(TorchFunctions(torch), *torch_tensors)
    error = draw(50, *tree.shape)
    result.backward(torch.tensor(error))
    np.testing.assert_allclose(tree.asnumpyarray(), result.detach().numpy(), 1e-11, 1e-12)
    for dx, t in zip(
        Autodiff(tree, be64, be64.array(error)).get_grad_asnumpyarray(tensors), torch_tensors, strict=True
    ):
        np.testing.assert_allclose(dx, t.grad.numpy(), 1e-10, 1e-11)


# --- where the derivative of an op is infinite, or there is none ------------------------------------------------------


AT = [0.0, -1.0, 2.0, 0.5]
# expressions that are not finite at some of AT, and the branch that NumPy selects there
SELECTED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "log": (lambda xp, x: xp.where(x > 0, xp.log(x), 0), lambda x: math.log(x) if x > 0 else 0),
    "sqrt": (lambda xp, x: xp.where(x > 0, xp.sqrt(x), x * x), lambda x: math.sqrt(x) if x > 0 else x * x),
    "1 / x": (lambda xp, x: xp.where(x > 0, 3 * (1 / x), x), lambda x: 3 / x if x > 0 else x),
    "x ** y": (lambda xp, x: xp.where(x > 0, (x * 1) ** (x / 2), 1), lambda x: x ** (x / 2) if x > 0 else 1),
    "products": (lambda xp, x: xp.where(x > 0, x * xp.log(x) * xp.exp(-1 / x), 0),
                 lambda x: x * math.log(x) * math.exp(-1 / x) if x > 0 else 0),
    "nested": (lambda xp, x: xp.where(x > 1, xp.log(xp.where(x > 0, xp.sqrt(x), 0)), x),
               lambda x: math.log(math.sqrt(x)) if x > 1 else x),
    "reduced": (lambda xp, x: xp.where(x > 0, xp.max(xp.log(x) * xp.ones_like(x), axis=0), 0),
                lambda x: math.log(x) if x > 0 else 0),
}  # fmt: skip


@pytest.mark.parametrize("name", SELECTED)
def test_an_element_that_where_does_not_select_has_no_gradient_to_any_order(name: str) -> None:
    be, (tree_of, scalar) = Backend.allocate_backend("cpu", default_dtype="float64"), SELECTED[name]
    for at in AT:
        x = be.array([[at]])
        tree, f = tree_of(be, x), scalar
        for _ in range(3):
            tree = Autodiff(tree, be, allow_unused=True).get_grad_op_tree(x)
            f = slope(f)
        first = Autodiff(tree_of(be, x), be).get_grad_asnumpyarray(x).item()
        assert first == pytest.approx(slope(scalar)(at or -1e-200), rel=1e-6, abs=1e-6), at
        assert math.isfinite(tree.asnumpyarray().item())
        if at == 0.5:
            assert tree.asnumpyarray().item() == pytest.approx(f(at), rel=1e-2, abs=1e-2)


def slope(f: Callable[[float], float]) -> Callable[[float], float]:
    """Return the function of central differences of a function."""
    return lambda x: (f(x + 1e-3 * abs(x)) - f(x - 1e-3 * abs(x))) / (2e-3 * abs(x))


def test_only_a_gradient_through_where_is_masked(be: Backend) -> None:
    x = be.array([[0.5, 2.0]])
    gradient = Autodiff(be.exp(x) * be.log(x), be).get_grad_op_tree(x)
    assert "where" not in {node.op for node in postorder(gradient)}
    assert np.isnan(Autodiff(be.sqrt(x * 0) ** 2, be).get_grad_asnumpyarray(x)).all()  # 0 * inf, without where


INF, NAN = math.inf, math.nan
# values where there is no derivative, and a subgradient; all but the last ones are those of PyTorch
SUBGRADIENTS: dict[str, tuple[Callable[..., Any], list[list[float]], list[list[float]]]] = {
    "abs": (lambda xp, x: xp.abs(x), [[0.0]], [[0]]),
    "std": (lambda xp, x: xp.std(x), [[2.0, 2, 2]], [[0, 0, 0]]),
    "vector_norm": (lambda xp, x: xp.linalg.vector_norm(x), [[0.0, 0]], [[0, 0]]),
    "vector_norm 3": (lambda xp, x: xp.linalg.vector_norm(x, ord=3), [[0.0, 0]], [[0, 0]]),
    "vector_norm 1.5": (lambda xp, x: xp.linalg.vector_norm(x, ord=1.5), [[0.0, 0]], [[0, 0]]),
    "vector_norm 0.5": (lambda xp, x: xp.linalg.vector_norm(x, ord=0.5), [[0.0, 4]], [[0, 1]]),
    "vector_norm -1": (lambda xp, x: xp.linalg.vector_norm(x, ord=-1), [[0.0, 4]], [[0, 0]]),
    "vector_norm inf": (lambda xp, x: xp.linalg.vector_norm(x, ord=INF), [[0.0, 0]], [[0, 0]]),
    "matrix_norm": (lambda xp, x: xp.linalg.matrix_norm(xp.reshape(x, (2, 1))), [[0.0, 0]], [[0, 0]]),
    "atan2": (lambda xp, x, y: xp.atan2(x, y), [[0.0], [0.0]], [[0], [0]]),
    "pow": (lambda xp, x, y: x**y, [[INF, -INF, NAN, 0], [0.0, 0, 0, 0]], [[0] * 4, [INF, NAN, NAN, 0]]),
    "atan2 of large and small values": (lambda xp, x, y: xp.atan2(x, y), [[1e200, 1e-200], [1e200, 1e-200]],
                                        [[5e-201, 5e199], [-5e-201, -5e199]]),
    "hypot": (lambda xp, x, y: xp.hypot(x, y), [[0.0], [0.0]], [[0], [0]]),
    "logaddexp": (lambda xp, x, y: xp.logaddexp(x, y), [[-INF, INF, -INF, 1], [-INF, INF, 1, 1]],
                  [[0.5, 0.5, 0, 0.5], [0.5, 0.5, 1, 0.5]]),
}  # fmt: skip


@pytest.mark.parametrize("name", SUBGRADIENTS)
def test_a_subgradient_is_the_gradient_where_there_is_no_derivative(name: str) -> None:
    be = Backend.allocate_backend("cpu", default_dtype="float64")
    xp, (function, values, expected) = be.array_api, SUBGRADIENTS[name]
    operands = [xp.variable(x) for x in values]
    gradients = Autodiff(xp.sum(function(xp, *operands)), be).get_grad_op_tree(operands)
    for gradient, value in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient.numpy(), value, rtol=1e-12)


def test_the_second_derivatives_of_std_logaddexp_and_powers_are_those_of_finite_differences() -> None:
    be = Backend.allocate_backend("cpu", default_dtype="float64")
    x, y = be.array([[1.0, 2.0, -3.0]]), be.array([[1.0, 0.0, 2.0]])
    for tree in (be.std(x), be.logaddexp(x, y), (x * x) ** y, be.hypot(x, y), be.atan2(x, y)):
        (first,) = Autodiff(tree, be).get_grad_op_tree([x])
        report = check_grad(be, first)
        assert report.ok, report


# --- many operands ----------------------------------------------------------------------------------------------------


def calls_of(function: Callable[[], Any]) -> int:
    """Return how many Python functions a call calls."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(trace)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


MANY: dict[str, Callable[[Backend, list[Any]], Any]] = {
    "concat": lambda be, xs: be.concat(xs).get(),
    "stack": lambda be, xs: be.stack(xs).get(),
    "assign": lambda be, xs: be.assign(xs, [x * 2 for x in xs]),
    "gradient of concat": lambda be, xs: Autodiff(be.sum(be.concat(xs)), be).get_grad_tensor(xs),
    "gradient of a sum": lambda be, xs: Autodiff(sum(x * x for x in xs[1:]) + xs[0], be).get_grad_tensor(xs),
    "lists": lambda be, xs: OpTreeNode.list_to_optree(be.concat(xs).optree_to_list()),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MANY)
def test_a_tree_of_many_operands_takes_time_proportional_to_their_number(cpu: Backend, name: str) -> None:
    def calls(n: int) -> int:
        xs = [cpu.array([[float(i)]]) for i in range(n)]
        return calls_of(lambda: MANY[name](cpu, xs))

    calls(20)
    assert calls(800) < 5 * calls(200)


def test_the_gradients_of_slices_of_one_place_are_added_before_they_are_placed(be64: Backend) -> None:
    values = np.random.default_rng(0).normal(size=(1, 6))
    x = be64.array(values)
    tree = be64.sum((x[:, 1:] - x[:, :-1] ** 2) ** 2 + (1 - x[:, :-1]) ** 2)  # x[:, :-1] has two gradients
    gradient = Autodiff(tree, be64).get_grad_op_tree(x)
    assert gradient.pp().count("slice_backward") == 2
    v = values[0]
    error = v[1:] - v[:-1] ** 2
    expected = np.append(-4 * v[:-1] * error - 2 * (1 - v[:-1]), 0) + np.insert(2 * error, 0, 0)
    np.testing.assert_allclose(gradient.get(), [expected], rtol=1e-12)


@pytest.mark.parametrize("shape", [(2, 4, 3), (2, 2, 4, 3)])
def test_the_gradient_of_a_transposed_operand_of_a_product_is_a_product(be: Backend, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    x, y, e = (be.array(rng.normal(size=(*shape[:-2], *n))) for n in ((4, 3), (4, 5), (3, 5)))
    tree = Autodiff(be.matmul(x.T, y), be, e).get_grad_op_tree([x])[0]
    assert (tree.op, tree.shape) == ("matmul", shape)
    np.testing.assert_allclose(tree.get(), y.get() @ e.get().swapaxes(-1, -2), 1e-4, 1e-5)
    z = be.transpose(x, (1, 0, *range(2, len(shape))))
    assert be.check_grad(be.sum(be.matmul(z, be.matmul(z.T, z)), axis=0)).ok
    assert be.check_grad(be.sum(be.matmul(z, be.ones((*z.shape[:-2], 3, 6)) * 0.5), axis=0)).ok
