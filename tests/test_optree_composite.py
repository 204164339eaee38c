"""Tests of composite ops: op-trees with a name, which print as one node and open by it."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest

import neonlite.explorer as explorer
from neonlite import Autodiff, Backend, OpTreeNode
from neonlite.ops import OP_TABLE, OPS


@pytest.fixture
def x(be: Backend) -> Any:
    return be.array([[0.5, -1.0, 2.0], [0.25, 3.0, -0.5]], name="x")


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual.get(), expected.get() if hasattr(expected, "get") else expected, 1e-6, 1e-6)


# --- printing and opening -------------------------------------------------------------------------------------------


def test_a_composite_op_prints_as_one_node(be: Backend, x: Any) -> None:
    tree = be.layer_norm(x, x * 2, axis=1) + be.silu(x)
    assert tree.pp() == "((layer_norm x (x * (2)) axis=(1,) eps=1e-05) + (silu x))"
    assert repr(be.silu(x)) == "({'shape': (2, 3), 'op': 'silu'}, x, None)"
    assert be.softmax(x).draw().splitlines() == ["softmax axis=(0,) (2, 3)", "└── x (2, 3)"]
    assert [node.op for node, _ in tree.step()] == ["mul", "layer_norm", "silu", "add"]
    (op, left, right), attrs = be.softmax(x, axis=1), be.softmax(x, axis=1).attrs
    assert (op, left, right, attrs) == ({"op": "softmax", "shape": (2, 3), "axis": (1,)}, x, None, {"axis": (1,)})


def test_it_opens_by_its_name(be: Backend, x: Any, own: Any) -> None:
    own("mish", formula=lambda be, x: x * be.tanh(be.softplus(x)))
    tree = be.mish(x) + be.silu(x)
    assert tree.open("mish").pp() == "((x * (tanh (softplus x))) + (silu x))"
    assert tree.open("silu").pp() == "((mish x) + (x * (sig x)))"
    assert tree.open("mish", "softplus").pp() == "((x * (tanh (logaddexp x (0)))) + (silu x))"
    assert tree.open().pp() == "((x * (tanh (logaddexp x (0)))) + (x * (sig x)))"
    nested = be.silu(be.silu(x)).open("silu")
    assert nested.pp() == "((x * (sig x)) * (sig (x * (sig x))))"
    assert (x * 2).open().pp() == "(x * (2))"
    close(tree.open(), tree)


@pytest.mark.parametrize("names", [("exp",), ("nothing",), ("silu", "add")])
def test_only_composite_ops_can_be_opened(be: Backend, x: Any, names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=rf"tree\.open: expected names of composite ops, softmax, .*, got {names[-1]}"):
        be.silu(x).open(*names)


def test_a_plan_is_that_of_the_formula(be: Backend, x: Any) -> None:
    tree = be.softmax(x * 2, axis=0)  # over the last axis, a primitive may compute it
    plan, opened = be.plan(tree), be.plan(tree.open())
    assert plan.flops == opened.flops > 0
    assert [step.op.name for step in plan.steps] == [step.op.name for step in opened.steps]


# --- rebuilding -----------------------------------------------------------------------------------------------------


def test_a_tree_is_rebuilt_with_its_composite_ops(be: Backend, x: Any) -> None:
    gamma = be.array([[2.0], [3.0]], name="gamma")
    tree = be.layer_norm(x, gamma, x + 1, axis=1, eps=0.5) * be.softmax(x)
    rebuilt = [
        OpTreeNode.from_postfix(tree.traverse()),
        OpTreeNode.list_to_optree(tree.optree_to_list()),
        copy.deepcopy(tree),
        tree.replace(x, be.array(x, name="x")),
    ]
    for other in rebuilt:
        assert other is not tree
        assert other.pp() == tree.pp()
        assert other.key()[0] is tree.key()[0]
        close(other, tree)


def test_a_replaced_operand_may_have_another_shape(be: Backend, x: Any) -> None:
    y, gamma = be.array([[1.0], [2.0], [4.0]], name="y"), be.array([[1.0], [2.0]], name="gamma")
    tree = be.layer_norm(x).replace(x, y)
    assert tree.shape == (3, 1)
    close(tree, be.layer_norm(y))
    with pytest.raises(ValueError, match=r"be\.layer_norm\(x \(2, 3\), y \(3, 1\)\)"):
        be.layer_norm(x, gamma).replace(gamma, y)


def test_a_node_of_the_constructor_has_its_formula(be: Backend, x: Any) -> None:
    node = OpTreeNode({"op": "softmax", "shape": (2, 3), "axis": (1,)}, x)
    close(node, be.softmax(x, axis=1))
    close(Autodiff(node, be, x).get_grad_tensor(x), Autodiff(be.softmax(x, axis=1), be, x).get_grad_tensor(x))


def test_a_redefined_op_stays_the_old_one_in_trees(be: Backend, x: Any, own: Any) -> None:
    own("scaled", formula=lambda be, x: x * 2)
    tree = be.scaled(x) + 1
    Backend.define_op("scaled", formula=lambda be, x: x * 5)
    y = be.array([[1.0]])
    assert (tree.replace(x, y).get(), be.scaled(y).get()) == (3, 5)
    assert be.check_grad(tree).ok


# --- structures and leaves ------------------------------------------------------------------------------------------


def test_trees_of_one_structure_share_a_plan(be: Backend, x: Any) -> None:
    y = be.array(x * 3)
    trees = [be.gelu(be.layer_norm(z, z[:, :1], axis=1)) for z in (x, y)]
    assert trees[0].info is trees[1].info
    trees[0].get()
    num_compiled = be.plan_cache.num_compiled
    close(trees[1], be.gelu(be.layer_norm(y, y[:, :1], axis=1).astensor()))
    close(trees[1], trees[1].open())
    assert be.plan_cache.num_compiled - num_compiled <= 3  # those of the expected values


@pytest.mark.parametrize("numbers", [(0.044715, 0.7), (0.7, 0.044715), (25.0, 0.044715)])
def test_a_number_of_an_operand_may_be_one_of_the_formula(be: Backend, x: Any, numbers: tuple[float, ...]) -> None:
    for n in numbers:
        scaled = (x * n).astensor()
        close(be.gelu(x * n), be.gelu(scaled))
        close(be.gelu(x * n) * n, be.gelu(scaled).get() * np.float32(n))
        grads = Autodiff(be.gelu(x * n), be, x).get_grad_tensor(x)
        close(grads, Autodiff(be.gelu(scaled), be, x).get_grad_tensor(scaled).get() * np.float32(n))
        close(be.leaky_relu(x * n, slope=n), be.leaky_relu(scaled, slope=n))


@pytest.mark.parametrize("name", [op.name for op in OP_TABLE if op.kind == "composite" and op.has_method])
def test_a_formula_that_is_evaluated_later_has_the_numbers_of_its_structure(
    be: Backend, x: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operands = {"cross_entropy": [x, x], "masked_softmax": [x, x > 0], "attention": [x, x, x]}.get(name, [x])
    method = getattr(be, OPS[name].method)
    for number in (1e-5, 0.5):  # equal to one of the formula, perhaps
        method(*operands)
        node = method(*operands)  # of a known structure
        monkeypatch.setattr("neonlite.tree_inference._float_cache", {})  # as after many other numbers
        tree = be.exp(node * number) + number + method(*operands)
        expected = np.exp(node.astensor().get() * number) + number + node.open().get()
        np.testing.assert_allclose(tree.get(), expected, 1e-5)
        np.testing.assert_allclose(tree.open().get(), expected, 1e-5)
        if not OPS[name].is_estimator:  # of a derivative that the formula does not have
            close(Autodiff(tree, be).get_grad_tensor(x), Autodiff(tree.open(), be).get_grad_tensor(x))


NUMBERS = [0.5, 1e-5, 0.25, 0.044715, 25.0, -25.0, 1 / 3, 2]  # some are those of formulas
RANDOM_OPS: list[Any] = [
    lambda be, a, b, c, n: be.softmax(a, axis=1) * n,
    lambda be, a, b, c, n: be.layer_norm(a, b, c),
    lambda be, a, b, c, n: be.gelu(a * n),
    lambda be, a, b, c, n: be.silu(a) + n,
    lambda be, a, b, c, n: be.where(a > 0, be.normalize(b, axis=1), c),
    lambda be, a, b, c, n: be.attention(a, b, c),
    lambda be, a, b, c, n: be.group_norm(a, groups=3) * b,
    lambda be, a, b, c, n: be.masked_softmax(a, b > 0, axis=1),
    lambda be, a, b, c, n: be.cross_entropy(a, be.softmax(b)) + c,
    lambda be, a, b, c, n: be.leaky_relu(a, slope=n) * be.elu(b, alpha=n),
    lambda be, a, b, c, n: be.tanh(a) * b + n,
]


@pytest.mark.parametrize("seed", range(30))
def test_random_trees_have_the_values_and_gradients_of_their_formulas(
    cpu: Backend, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    xs = [cpu.array(np.random.default_rng(3 * seed + k).normal(size=(3, 4)), dtype="float64") for k in range(3)]
    pool = list(xs)
    for _ in range(draw.randint(2, 7)):
        if draw.random() < 0.2:
            monkeypatch.setattr("neonlite.tree_inference._float_cache", {})
        pool.append(draw.choice(RANDOM_OPS)(cpu, *draw.choices(pool, k=3), draw.choice(NUMBERS)))
    tree = pool[-1] + pool[-2] * 0.5
    for other in (tree.open(), OpTreeNode.from_postfix(tree.traverse())):
        np.testing.assert_allclose(other.get(), tree.get(), 1e-9, 1e-9)
        grads = [Autodiff(t, cpu, allow_unused=True).get_grad_asnumpyarray(xs) for t in (tree, other)]
        for a, b in zip(*grads, strict=True):
            np.testing.assert_allclose(a, b, 1e-6, 1e-8)


def test_a_number_may_be_an_operand(be: Backend, x: Any) -> None:
    for n in (1e-5, 2.5, 25.0, 0.044715):
        z = be.log_softmax(x).get()
        close(be.build("cross_entropy", x, n) * 2, np.reshape(-2 * n * z.sum(axis=0).mean(), (1, 1)))
        close(be.gelu(n) + x * 0, be.gelu(be.array([[n]])).get() + 0 * z)
        close(be.build("layer_norm", x, n) + 1, be.layer_norm(x).get() * n + 1)


def test_composite_ops_may_share_leaves_in_any_order(be: Backend, x: Any) -> None:
    y = be.array(2 * x.get()[:, ::-1], name="y")
    trees = [be.cross_entropy(x, y) - be.cross_entropy(y, x), be.layer_norm(x, y) * be.layer_norm(y, x)]
    trees += [be.cross_entropy(x * y, y * x) - be.cross_entropy(y, y), be.softmax(x) * x + be.softmax(y) * x]
    for tree in trees:
        close(tree, tree.open())
        for a, b in zip(*(Autodiff(t, be).get_grad_tensor([x, y]) for t in (tree, tree.open())), strict=True):
            close(a, b)


def test_a_formula_need_not_use_an_operand(be: Backend, x: Any, own: Any) -> None:
    own("first", formula=lambda be, x, y=None: x * 2)
    y, z = be.array([[7.0]], name="y"), be.array([[9.0]], name="z")
    for tree in (be.first(x), be.first(x, y), be.first(x, y * z), be.first(y, x) * 1):
        close(tree, tree.open())
        assert OpTreeNode.from_postfix(tree.traverse()).pp() == tree.pp()
    dx, dy = Autodiff(be.first(x, y) + 0 * y, be).get_grad_asnumpyarray([x, y])
    assert (dx == 2).all()
    assert (dy == 0).all()


def test_a_formula_may_use_tensors_besides_its_operands(be: Backend, x: Any, own: Any) -> None:
    w = be.array([[2.0], [-1.0]], name="w")
    own("weighted", formula=lambda be, x: x * w)
    close(be.weighted(x), x * w)
    dx, dw = Autodiff(be.weighted(x) * x, be).get_grad_tensor([x, w])
    close(dx, 2 * x * w)
    close(dw, be.sum(x * x, axis=1))
    w[:] = 3.0
    close(be.weighted(x), x * 3)


def test_a_formula_may_return_its_operand(be: Backend, x: Any, own: Any) -> None:
    own("same", formula=lambda be, x: x)
    close(be.same(x), x)
    close(be.same(x * 2), x * 2)
    assert (Autodiff(be.same(x * 2), be).get_grad_asnumpyarray(x) == 2).all()


def test_trees_of_many_leaves(be: Backend, x: Any) -> None:
    xs = [be.array(x * (k / 100)) for k in range(140)]
    total = sum(xs[1:], xs[0])
    tree = be.softmax(total, axis=1) * be.layer_norm(total, xs[5])
    assert tree.leaves is None
    expected = be.array(sum(t.get() for t in xs))
    close(tree, be.softmax(expected, axis=1) * be.layer_norm(expected, xs[5]))
    gradient = Autodiff(be.softmax(expected, axis=1) * be.layer_norm(expected, xs[5]), be).get_grad_tensor(expected)
    close(Autodiff(tree, be).get_grad_tensor(xs[9]), gradient)
    structures = len(be.structures)
    for _ in range(5):
        be.layer_norm(total, xs[5])
    assert len(be.structures) == structures


# --- derivatives ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "softplus"])
def test_known_values_of_a_composite_op_are_used(be: Backend, x: Any, name: str) -> None:
    z = getattr(be, name)(x)
    tree = z * z
    known = z.astensor()
    close(Autodiff(tree, be, values={z: known}).get_grad_tensor(x), Autodiff(tree, be).get_grad_tensor(x))
    known[:] = 0  # dE/dz = 2z
    assert (Autodiff(tree, be, values={z: known}).get_grad_asnumpyarray(x) == 0).all()
    root = Autodiff(z, be, x, values={z: z.astensor()}).get_grad_tensor(x)
    close(root, Autodiff(getattr(be, name)(x), be, x).get_grad_tensor(x))


def test_an_operand_may_depend_on_another(be64: Backend) -> None:
    x = be64.array([[0.5, -1.0, 2.0], [0.25, 3.0, -0.5]], name="x")
    a = be64.tanh(x)
    tree = be64.layer_norm(a, be64.sum(a, axis=1), a * x) + be64.attention(a, a * a, a) + be64.cross_entropy(a, a)
    assert be64.check_grad(tree, x).ok
    assert be64.check_grad(Autodiff(tree, be64).get_grad_op_tree(x), x).ok


@pytest.mark.parametrize("rule", [None, lambda be, dz, z, x: (dz * z / x,)])
def test_value_and_gradient_have_the_same_random_numbers(be: Backend, x: Any, own: Any, rule: Any) -> None:
    own("noisy", formula=lambda be, x: x * (1 + be.rand(x.shape)), **({"grad": rule} if rule else {}))
    value, gradient, again = be.zeros((2, 3)), be.zeros((2, 3)), be.zeros((2, 3))
    for tree in (be.noisy(x), 2 * be.noisy(x)):
        be.assign([value, gradient], [tree, Autodiff(tree, be).get_grad_op_tree(x)])
        close(gradient, value.get() / x.get())
        assert len({*(value / x).get().ravel().tolist()}) == 6
        be.assign([value, again], [tree, tree + 0])
        close(value, again)
        assert (tree.get() != value.get()).all()
        be.assign([value, again], [be.noisy(x), be.noisy(x)])
        assert (value.get() != again.get()).all()
    with pytest.raises(ValueError, match=r"be\.check_grad: expected a tree without random numbers"):
        be.check_grad(be.noisy(x))


def test_an_error_of_an_op_in_a_formula_names_this_op(be: Backend, x: Any, own: Any) -> None:
    def refuse(xp: Any, x: Any) -> Any:
        raise ValueError("expected something else")

    own("picky", refuse)
    own("careful", formula=lambda be, x: 2 * be.picky(x))
    with pytest.raises(ValueError, match=r"be\.picky\(x \(2, 3\)\): expected something else"):
        be.careful(x).get()


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "silu", "gelu", "elu", "layer_norm"])
def test_the_gradient_is_zero_where_another_value_is_selected(be: Backend, name: str) -> None:
    values = np.array([[0.5, np.inf, -1.0], [2.0, -np.inf, 0.25]], np.float32)
    x, finite, error = be.array(values, name="x"), np.isfinite(values), np.array([[3, 1, 2], [-1, 1, 4]], np.float32)
    tree = be.where(be.array(finite), getattr(be, name)(x * 2), 0)
    dx = Autodiff(tree, be, be.array(error)).get_grad_asnumpyarray(x)
    y = be.array(values[:, ::2])
    expected = Autodiff(getattr(be, name)(y * 2), be, be.array(error[:, ::2])).get_grad_asnumpyarray(y)
    np.testing.assert_allclose(dx[:, ::2], expected, 1e-5, 1e-6)
    assert (dx[:, 1] == 0).all()


def test_equal_operands_below_where_get_the_gradient_once(be: Backend, x: Any, own: Any) -> None:
    own("product", formula=lambda be, x, y: x * y, grad=lambda be, dz, z, x, y: (dz * y, dz * x))
    dx = Autodiff(be.where(x > 0, be.product(x, x), 0), be).get_grad_asnumpyarray(x)
    np.testing.assert_allclose(dx, 2 * np.maximum(x.get(), 0))


@pytest.mark.parametrize("name", [op.name for op in OP_TABLE if op.kind == "composite" and op.has_method])
def test_the_explorer_shows_formula_and_rule(be: Backend, x: Any, name: str) -> None:
    operands = {"cross_entropy": [x, x], "masked_softmax": [x, x > 0], "attention": [x, x, x]}.get(name, [x])
    tree = getattr(be, OPS[name].method)(*operands)
    if be.runtime.has_values:
        (text,) = explorer.describe_nodes(tree, [tree])
        assert text["op"].startswith(f"{name}: ")
        assert " x" in text["formula"] or "q" in text["formula"]
        assert (text["gradient rule"] == "that of the formula") == OPS[name].opens_to_differentiate


def test_arrays_are_operands(be: Backend) -> None:
    xp = be.array_api
    values = np.array([[0.5, -1.0, 2.0], [0.25, 3.0, -0.5]], np.float32)
    a, v = xp.asarray(values), xp.variable(values)
    close(be.softmax(a, axis=1), be.softmax(be.array(values), axis=1))
    close(be.softmax(a * 2) + be.array(values), be.softmax(be.array(values * 2)).get() + values)
    np.testing.assert_allclose((a + be.silu(a)).numpy(), values + values / (1 + np.exp(-values)), 1e-6)
    e = xp.exp(v - xp.max(v, axis=0))
    for by_hand, built_in in [(e / xp.sum(e, axis=0), be.softmax(v)), (v / (1 + xp.exp(-v)), be.silu(v))]:
        grads = [Autodiff(tree, be, be.array(values)).get_grad_asnumpyarray(v) for tree in (by_hand, built_in)]
        np.testing.assert_allclose(*grads, 1e-5, 1e-6)


@pytest.mark.parametrize("count", range(124, 131))
def test_an_expression_of_as_many_tensors_as_are_tracked_is_an_operand(be: Backend, x: Any, count: int) -> None:
    total = 1.5 * x
    for n in range(count - 1):
        total = total + be.array(np.full((2, 3), n % 3))
    expected = 1.5 * x.get() + sum(n % 3 for n in range(count - 1))
    close(be.elu(total, alpha=1.5), np.where(expected > 0, expected, 1.5 * np.expm1(np.minimum(expected, 0))))


def test_an_operand_that_the_formula_does_not_use_changes_nothing_among_many_tensors(
    be: Backend, x: Any, own: Any
) -> None:
    own("first", formula=lambda be, x, y: x * 2, grad=lambda be, dz, z, x, y: (dz * 2, None))
    tensors = [be.array(np.full((2, 3), n)) for n in range(140)]
    total = be.first(x, be.array(np.full((2, 3), -7.0)))
    for t in tensors:
        total = total + t * t
    close(total, 2 * x.get() + sum(n * n for n in range(140)))
