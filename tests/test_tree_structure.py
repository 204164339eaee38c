"""The structure of op-trees: what nodes of equal structure share, the triple, keys, and walks over trees."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from neonlite import Backend, OpTreeNode, Tensor
from neonlite.ops import OPS
from neonlite.optree import Operand, new_node, postorder
from neonlite.tree_structure import Info


@pytest.fixture
def x(be: Backend) -> Tensor:
    return be.array([[0.5, 1.0], [2.0, 4.0]], name="x")


@pytest.fixture
def y(be: Backend) -> Tensor:
    return be.array([[3.0, -1.0]], name="y")


def value(tree: Any) -> np.ndarray:
    return tree.asnumpyarray()


# --- as the guide shows it -----------------------------------------------------------------------------------------


def test_a_node_is_a_triple_of_op_left_and_right(x, y):
    tree = x * y
    assert not isinstance(tree, tuple)  # of which % and functions of other libraries read the items
    assert isinstance(tree, Operand)
    assert len(tree) == 3
    op, left, right = tree
    assert isinstance(op, dict)
    assert dict(op) == {"op": "mul", "shape": (2, 2)}
    assert left is tree[1] is x
    assert right is tree[2] is y
    assert (-x)[1] is x
    assert (-x)[2] is None
    assert (x + 2)[2] == 2
    assert tree[-1] is y
    assert tree[1:] == (x, y)
    for index, error in ((3, IndexError), ((0, 1), TypeError), (x > 1, TypeError)):
        with pytest.raises(error, match=r"the triple \(op, left, right\).* tree\.astensor\(\)"):
            tree[index]


# --- truth, membership, hash ---------------------------------------------------------------------------------------


def test_a_key_is_equal_for_the_same_structure_over_the_same_leaves(be, x, y):
    def formula(x: Any, y: Any, c: float = 0.5) -> OpTreeNode:
        return be.exp(x * y + c) - x

    assert formula(x, y).key() == formula(x, y).key()
    assert len({formula(x, y).key(), formula(x, y).key(), formula(x, be.ones((1, 2))).key()}) == 2
    others = [formula(x, x), formula(x, y, 0.25), formula(x, y) * 1, be.sum(x, axis=0), be.sum(x, axis=1), x + 1, x + 2]
    assert len({tree.key() for tree in [formula(x, y), *others]}) == 8


def test_a_wide_tree_has_a_key_too(be, x):
    tensors = [be.ones((2, 2)) for _ in range(200)]

    def wide(last: Any) -> OpTreeNode:
        total = last * 1
        for t in tensors:
            total = total + t
        return total

    assert wide(x).key() == wide(x).key() != wide(be.ones((2, 2))).key()
    assert hash(wide(x).key()) == hash(wide(x).key())


def test_intrinsic_key_maps_number_the_leaves(x, y):
    numbers, leaves = (x * y + x).intrinsic_key_maps()
    assert numbers == {id(x): 0, id(y): 1}
    assert leaves[0] is x
    assert leaves[1] is y


# --- structure is shared -------------------------------------------------------------------------------------------


def test_nodes_of_one_structure_share_their_op(be, x, y):
    u, v = be.ones((2, 2)), be.zeros((1, 2))
    assert (x + y)[0] is (u + v)[0]
    assert (x * 2.5 + y)[0] is (u * -1.25 + v)[0]
    assert be.sum(x, axis=1)[0] is be.sum(u, axis=-1)[0]


@pytest.mark.parametrize(
    "other",
    [
        lambda be, x, y: (x - y)[0],
        lambda be, x, y: (y + x)[0],
        lambda be, x, y: (x + x)[0],
        lambda be, x, y: (x.T + y)[0],
        lambda be, x, y: (be.ones((2, 2), dtype="float64") + y)[0],
        lambda be, x, y: (Backend("cpu").ones((2, 2)) * 1)[0],
        lambda be, x, y: (x + 1)[0],
        lambda be, x, y: (x + 1.0)[0],
    ],
)
def test_nodes_of_another_structure_have_another(be, x, y, other):
    assert (x + y)[0] is not other(be, x, y)


def test_equal_nodes_share_a_structure_whether_they_are_one_object_or_two(x, y):
    z = x + y
    assert (z * z).info is ((x + y) * (x + y)).info
    assert (z * (1 - z)).info is ((x + y) * (1 - (x + y))).info
    assert (z * z).info is not (z * (y + x)).info


TREES = {
    "disjoint leaves": lambda be, x, y: (x + 2.5) * (y - 7) / 1000,
    "shared leaves": lambda be, x, y: (x + y) * (y - x) * x,
    "one set of leaves": lambda be, x, y: (z := x + y) * (1 - z),
    "no leaves on the left": lambda be, x, y: 3 - be.exp(-x) + True,
    "attributes": lambda be, x, y: be.sum(x.T * 2, axis=0) + be.take(y, be.array([[1]], dtype="int32"), 1),
    "pairs": lambda be, x, y: be.where(x > 1, x, y),
    "more leaves than are tracked": lambda be, x, y: sum((be.ones((1, 2)) for _ in range(130)), x) + y,
}


@pytest.mark.parametrize("tree", TREES)
def test_a_node_of_a_known_structure_is_that_which_the_plain_function_builds(be, x, y, tree):
    for _ in range(2):  # the second time, all structures are known
        for node in postorder(TREES[tree](be, x, y)):
            plain = new_node(OPS[node.op], node.left, node.right, tuple(node.attrs.items()), be)
            assert plain.info == node.info
            for name in ("attrs", "shape", "dtype", "compute_dtype", "be", "op_def", "num_children"):
                assert getattr(plain.info, name) == getattr(node.info, name), name
            assert (plain.left is node.left, plain.right is node.right) == (True, True)
            assert (plain.leaves is None) == (node.leaves is None)
            assert list(plain.leaves or ()) == list(node.leaves or ())


def test_small_integers_are_structure_and_other_scalars_are_leaves(x):
    assert (x + 8)[0] is (x + 8)[0] is not (x + 7)[0]
    assert (x + 9)[0] is (x + 10)[0]
    assert (x + 1.5)[0] is (x + 1.0)[0]
    assert len((x + 8).leaves) == 1
    assert len((x + 1.5 + 1.5).leaves) == 2
    assert list((x + 9).leaves.values())[1] == 9


def test_a_tree_and_its_tensors_go_when_nothing_holds_them(be):
    t = be.ones((3, 3))
    reference = weakref.ref(t)
    tree = be.exp(t * 2) + t
    assert value(tree).shape == (3, 3)
    del t, tree
    gc.collect()
    assert reference() is None


# --- traversal, and trees as lists -----------------------------------------------------------------------------------


def test_traverse_gives_the_postfix_list(be, x, y):
    tree = be.exp(x * y) - 2
    stack: list[Any] = ["before"]
    assert tree.traverse(stack) is stack
    assert stack[0] == "before"
    words = [z["op"] if isinstance(z, Info) else z for z in stack[1:]]
    assert [getattr(z, "name", z) for z in words] == ["x", "y", "mul", "exp", 2, "sub"]
    assert [z is w for z, w in zip(tree.traverse(), stack[1:], strict=True)] == [True] * 6


def test_a_tensor_is_swapped_in_the_postfix_list(be, x, y):
    z = be.array([[10.0, 20.0]], name="z")
    for tree in (be.exp(x * y) - 2, be.sum(be.where(x > y, x, y * y), axis=1), be.concat([x, y, y]), x @ (y * 2).T):
        stack = [z if part is y else part for part in tree.traverse()]
        assert str(OpTreeNode.from_postfix(stack)) == str(tree).replace("y", "z")
        again = OpTreeNode.from_postfix(tree.traverse())
        assert str(again) == str(tree)
        np.testing.assert_array_equal(value(again), value(tree))


def test_the_postfix_list_may_hold_plain_dicts(x, y):
    tree = OpTreeNode.from_postfix([x, y, {"op": "add"}, {"op": "sum", "axis": (1,)}, 2, {"op": "mul"}])
    assert tree.shape == (2, 1)
    np.testing.assert_array_equal(value(tree), 2 * (x.get() + y.get()).sum(1, keepdims=True))


def test_the_postfix_list_is_checked(be, x, y):
    with pytest.raises(ValueError, match="one tree, got one of 2"):
        OpTreeNode.from_postfix([x, y])
    with pytest.raises(ValueError, match="one tree, got one of 0"):
        OpTreeNode.from_postfix([])
    stack = [be.ones((3, 3)) if part is x else part for part in (x + y).traverse()]
    with pytest.raises(ValueError, match="do not broadcast"):
        OpTreeNode.from_postfix(stack)


def test_nested_lists_may_be_changed(be, x, y):
    tree = be.exp(x * y) - 2
    nested = tree.optree_to_list()
    product = [{"op": "mul", "shape": (2, 2)}, x, y]
    assert nested == [{"op": "sub", "shape": (2, 2)}, [{"op": "exp", "shape": (2, 2)}, product, None], 2]
    nested[0]["op"] = "add"
    nested[1][1][2] = x
    np.testing.assert_allclose(value(OpTreeNode.list_to_optree(nested)), np.exp(x.get() ** 2) + 2, rtol=1e-5)
    np.testing.assert_allclose(value(tree), np.exp(x.get() * y.get()) - 2, rtol=1e-5, atol=1e-6)
    for other in (tree, be.sum(be.where(x > y, x, y), axis=1), be.concat([x, y, x])):
        assert str(OpTreeNode.list_to_optree(other.optree_to_list())) == str(other)


def test_replace_swaps_an_operand_and_shares_the_rest(be, x, y):
    z, node = be.array([[10.0, 20.0]]), be.exp(x)
    tree = node * y + be.sum(y)
    new = tree.replace(y, z)
    np.testing.assert_allclose(value(new), np.exp(x.get()) * z.get() + 30, rtol=1e-6)
    assert new[1][1] is node
    assert tree.replace(z, x) is tree
    assert tree.replace(node, x)[1][1] is x
    np.testing.assert_allclose(value(tree.replace(y, 2.0)), 2 * np.exp(x.get()) + 2, rtol=1e-6)
    with pytest.raises(ValueError, match="do not broadcast"):
        tree.replace(y, be.ones((1, 3)))


def test_postorder_visits_every_object_once_and_operands_first(be, x, y):
    shared = x + y
    tree = shared * shared - be.exp(shared)
    assert [node.op for node in postorder(tree)] == ["add", "mul", "exp", "sub"]
    assert [node.op for node in postorder(shared, tree)] == ["add", "mul", "exp", "sub"]
    assert list(postorder(x, 3)) == []


def test_operands_are_seen_through_pairs(be, x, y):
    assert [z is w for z, w in zip(be.where(x, y, x).operands, (x, y, x), strict=True)] == [True] * 3
    assert len(be.concat([x, y, y, x]).operands) == 4
    assert (-x).operands[0] is x
    assert len((-x).operands) == 1


def test_pp_prints_infix(be, x):
    assert (1 / (1 + be.exp(-1 * x))).pp() == "((1) / ((1) + (exp ((-1) * x))))"


@pytest.mark.long
def test_walking_and_rebuilding_a_deep_tree_does_not_recurse(be, x, y):
    tree = x
    for _ in range(5_000):
        tree = tree + y
    assert len(tree.traverse()) == 10_001
    assert len(list(postorder(tree))) == 5_000
    np.testing.assert_allclose(value(OpTreeNode.from_postfix(tree.traverse())), x.get() + 5_000 * y.get())
    np.testing.assert_allclose(value(tree.replace(y, x)), 5_001 * x.get())
    assert OpTreeNode.list_to_optree(tree.optree_to_list()).shape == (2, 2)
    assert hash(tree.key()) == hash(tree.key())
    assert len(tree.intrinsic_key_maps()[0]) == 2
