"""Tests of op-trees: structure, immutability, printing, traversal, construction and execution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neonlite import Backend, OpTreeNode, Tensor
from neonlite.ops import OP_TABLE, OPS


@pytest.fixture
def x(be: Backend) -> Tensor:
    return be.array([[0.5, 1.0], [2.0, 4.0]], name="x")


@pytest.fixture
def y(be: Backend) -> Tensor:
    return be.array([[3.0, -1.0]], name="y")


def value(tree: Any) -> np.ndarray:
    return tree.asnumpyarray()


# --- as the guide shows it -----------------------------------------------------------------------------------------


def test_the_minimal_example_of_the_guide(be, capsys):
    x0 = be.ones((2, 2), name="x0")
    x1 = be.ones((2, 2), name="x1")
    f = x0 + x1
    f_val = be.empty((2, 2))
    f_val[:] = f
    print(f)
    print(f_val.get())
    assert capsys.readouterr().out == "({'shape': (2, 2), 'op': 'add'}, x0, x1)\n[[2. 2.]\n [2. 2.]]\n"


def test_attributes_stand_in_the_op(be, x):
    assert dict(be.sum(x, axis=1)[0]) == {"op": "sum", "shape": (2, 1), "axis": (1,)}
    assert dict(be.argmax(x)[0]) == {"op": "argmax", "shape": (2, 1), "axis": (1,)}
    assert str(be.sum(x)) == "({'shape': (1, 1), 'op': 'sum', 'axis': (0, 1)}, x, None)"
    assert be.max(x, axis=0).attrs == {"axis": (0,)}
    assert be.max(x, axis=0).op == "max"


@pytest.mark.parametrize(
    "change",
    [
        lambda op: op.__setitem__("op", "sub"),
        lambda op: op.__delitem__("op"),
        lambda op: op.update(op="sub"),
        lambda op: op.pop("op"),
        lambda op: op.popitem(),
        lambda op: op.clear(),
        lambda op: op.setdefault("axis", 1),
        lambda op: op.__ior__({"op": "sub"}),
    ],
)
def test_an_op_tree_does_not_change(x, change):
    tree = x + 1
    with pytest.raises(TypeError, match="an op-tree is immutable"):
        change(tree[0])
    with pytest.raises(TypeError):
        tree[1] = x
    assert dict(tree[0]) == {"op": "add", "shape": (2, 2)}
    assert value(tree)[1, 1] == 5


def test_the_attributes_of_a_node_are_a_copy(be, x):
    tree = be.sum(x, axis=1)
    tree.attrs["axis"] = (0,)
    assert tree.attrs == {"axis": (1,)}


def test_the_names_of_the_table_are_neons():
    words = "finite neg abs sgn sqrt sqr exp log exp2 log2 sig tanh transpose safelog rint rand onehot "
    words += "assign add sub mul div eq ne lt le gt ge pow minimum maximum dot shift sum max min argmax argmin"
    assert set(words.split()) <= set(OPS)
    assert [op.name for op in OP_TABLE] == list(OPS)[: len(OP_TABLE)]


# --- building and running ------------------------------------------------------------------------------------------


def test_the_three_steps_under_the_hood_of_an_assignment(be, x):
    out = be.empty((2, 2), name="out")
    assert OpTreeNode.build("sqrt", x, None, out=out) is out
    np.testing.assert_allclose(out.get(), x.get() ** 0.5)
    tree = OpTreeNode.build("assign", out, x + 1)
    np.testing.assert_array_equal(out.get(), x.get() + 1)
    x[:] = x * 2
    assert tree.execute() is out
    np.testing.assert_array_equal(out.get(), x.get() + 1)
    tree = OpTreeNode({"op": "assign", "shape": (2, 2)}, out, x * 2)
    assert tree.execute() is out
    np.testing.assert_array_equal(out.get(), x.get() * 2)
    tree = OpTreeNode({"op": "assign", "shape": (2, 2)}, out, x)
    assert be.execute(tree) is out
    np.testing.assert_array_equal(out.get(), x.get())


@pytest.mark.parametrize("what", [lambda x: x + 1, lambda x: x, lambda x: 3])
def test_execute_runs_trees_with_assign_at_the_top_alone(be, x, what):
    with pytest.raises(ValueError, match="root 'assign'"):
        be.execute(what(x))


def test_a_node_made_by_hand_runs(be, x, y):
    op = {"op": "add", "shape": (2, 2)}
    tree = OpTreeNode(op, x, OpTreeNode({"op": "mul", "shape": (2, 2)}, x, y))
    assert str(tree) == f"({{'shape': (2, 2), 'op': 'add'}}, x, {x * y})"
    np.testing.assert_array_equal(value(tree), x.get() + x.get() * y.get())
    np.testing.assert_array_equal(value(tree * 2 - x), x.get() + 2 * x.get() * y.get())
    np.testing.assert_array_equal(value(OpTreeNode({"op": "sum", "shape": (1, 2), "axis": (0,)}, x, None)), [[2.5, 5]])
    op["op"] = "sub"  # the node keeps what it was given
    assert tree.op == "add"
    with pytest.raises(TypeError, match=r"name of an op, .*got None"):
        OpTreeNode({}, x, y)


def test_out_runs_at_once_and_gives_the_tensor(be, x):
    out = be.empty((2, 2))
    assert be.exp(x, out=out) is be.add(x, x, out=out) is out
    np.testing.assert_array_equal(out.get(), 2 * x.get())
    row = be.empty((1, 2))
    assert be.max(x, axis=0, out=row) is be.mean(x, axis=0, out=row) is row
    np.testing.assert_array_equal(row.get(), [[1.25, 2.5]])
    assert (x + 1).transpose(out=out) is out
    np.testing.assert_array_equal(out.get(), x.get().T + 1)


def test_a_tree_gives_its_value_in_a_new_tensor_or_array(x):
    tree = x / 2
    tensor = tree.astensor()
    assert type(tensor) is Tensor
    np.testing.assert_array_equal(tensor.get(), x.get() / 2)
    np.testing.assert_array_equal(tree.asnumpyarray(), x.get() / 2)
    assert tree.asnumpyarray().dtype == "float32"


def test_a_tree_has_the_attributes_of_an_operand(be, x):
    tree = be.sum(x, axis=1) * 2
    assert (tree.ndim, tree.dtype, tree.backend, tree.name) == (2, np.dtype("float32"), be, None)
    assert (tree.shape, be.argmax(x).dtype) == ((2, 1), np.dtype("int64"))


def test_a_view_is_printed_as_the_view_of_its_tensor(be, x):
    for view, words in [(x.T, "x.T"), (x[0], "x[...]"), (x.reshape(-1), "x.reshape"), (x[1:].T, "x[...].T")]:
        assert str(view * 2) == f"({{'shape': {view.shape}, 'op': 'mul'}}, {words}, 2)"


def test_T_of_a_tree_is_a_tree(be, x, y):
    assert (x + y).T.op == "transpose"
    np.testing.assert_array_equal(value((x + y).T), (x.get() + y.get()).T)
    np.testing.assert_array_equal(value((x + y).transpose()), (x.get() + y.get()).T)
    cube = be.array(np.arange(24).reshape(2, 3, 4))
    np.testing.assert_array_equal(value((cube * 2).T), 2 * np.arange(24).reshape(2, 3, 4).swapaxes(1, 2))


def test_every_operator_has_its_op(x, y):
    trees = [x + y, x - y, x * y, x / y, x**y, x @ y.T, x == y, x != y, x < y, x <= y, x > y, x >= y, -x, abs(x)]
    words = ["add", "sub", "mul", "div", "pow", "dot", "eq", "ne", "lt", "le", "gt", "ge", "neg", "abs"]
    assert [tree.op for tree in trees] == words
    for tree, word in zip(trees, words, strict=True):
        assert f"'op': '{word}'" in str(tree)
    reflected = [2 + x, 2 - x, 2 * x, 2 / x, 2**x]
    assert [(tree.op, tree[1], tree[2] is x) for tree in reflected] == [(w, 2, True) for w in words[:5]]
    swapped = [2 == x, 2 != x, 2 < x, 2 <= x, 2 > x, 2 >= x]  # noqa: SIM300
    assert [tree.op for tree in swapped] == ["eq", "ne", "gt", "ge", "lt", "le"]


# --- truth, membership, hash ---------------------------------------------------------------------------------------


def test_a_tree_of_one_element_has_its_truth_value(x):
    assert bool(x[0, 0] == x[0, 0])
    assert not bool(x[0, 0] != x[0, 0])
    assert not bool(x[:1, :1] * 0)


def test_a_tree_of_several_elements_has_no_truth_value(x, y):
    for tree in (x == y, x < y, x + y):
        with pytest.raises(TypeError, match=r"evaluate it first: out\[:\] = tree"):
            bool(tree)


def test_in_asks_for_the_very_object(x, y):
    tree = x + y
    assert x in tree
    assert y in tree
    assert tree[0] in tree
    assert x * 1 not in tree
    assert 5 not in tree


def test_trees_are_hashed_by_identity(x, y):
    a, b = x + y, x + y
    assert hash(a) == hash(a) != hash(b)
    assert {a: "a", b: "b"}[a] == "a"
    assert len({a, b, a}) == 2
    assert type(a == b) is OpTreeNode
