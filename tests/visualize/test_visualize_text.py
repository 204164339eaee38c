"""Op-trees as text: repr, formula, indented tree, step tables, of expressions of any size."""

import math
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.expressions import ODD

from neonlite.ops import OPS
from neonlite.optree import OpTreeNode
from neonlite.visualize import COMMUTATIVE, format_first_values, sort_by_distance

LIMIT = 200

# --- triples -------------------------------------------------------------------------------------------------------


def test_a_tree_prints_as_the_guide_shows(be):
    x0, x1 = be.ones((2, 2), name="x0"), be.ones((2, 2), name="x1")
    assert str(x0 + x1) == "({'shape': (2, 2), 'op': 'add'}, x0, x1)"


def test_nested_nodes_missing_operands_and_numbers_are_printed_in_place(be, x):
    assert repr(be.exp(x) * 0.5) == ("({'shape': (2, 2), 'op': 'mul'}, ({'shape': (2, 2), 'op': 'exp'}, x, None), 0.5)")


def test_the_shape_comes_first_and_attributes_last(x):
    node = OpTreeNode({"axis": (1,), "op": "sum", "shape": (2, 1)}, x)
    assert str(node) == "({'shape': (2, 1), 'op': 'sum', 'axis': (1,)}, x, None)"


def test_a_tensor_without_a_name_prints_its_identity(be):
    t = be.ones((2, 2))
    assert str(t + 1) == f"({{'shape': (2, 2), 'op': 'add'}}, tensor-{id(t):#x}, 1)"


def test_a_deep_tree_prints_its_last_parts_and_how_many_are_left_out(deep, nodes):
    lines = str(deep).splitlines()
    assert len(lines) == LIMIT
    assert f"{nodes - 199:,} of {nodes:,} lines" in lines[0]
    assert lines[1] == f"t{nodes - 198} = ({{'shape': (2, 2), 'op': 'add'}}, t{nodes - 199}, y)"
    assert lines[-1] == f"({{'shape': (2, 2), 'op': 'add'}}, t{nodes - 1}, y)"


def test_shared_parts_are_named_once_when_the_tree_would_unfold_into_too_many(x):
    tree = x
    for _ in range(8):
        tree = tree + tree
    assert str(tree).count("\n") == 7
    assert str(tree).splitlines()[:2] == [
        "t1 = ({'shape': (2, 2), 'op': 'add'}, x, x)",
        "t2 = ({'shape': (2, 2), 'op': 'add'}, t1, t1)",
    ]
    assert "\n" not in str(tree[1])  # 127 nodes unfolded


def test_a_tree_of_200_nodes_is_one_line_and_of_201_is_a_list(x, y):
    tree = x
    for _ in range(LIMIT):
        tree = tree + y
    assert "\n" not in str(tree)
    assert len(str(tree + y).splitlines()) == LIMIT


def test_parts_are_not_called_as_a_tensor_is(be):
    tree = be.ones((2, 2), name="t7")
    for _ in range(10):
        tree = tree * tree
    assert str(tree).startswith("tt1 = ({'shape': (2, 2), 'op': 'mul'}, t7, t7)\ntt2 = ")


def test_a_tree_that_doubles_a_thousand_times_prints_in_200_lines(shared):
    assert len(str(shared).splitlines()) == LIMIT
    assert len(shared.pp().splitlines()) == LIMIT


# --- formulas ------------------------------------------------------------------------------------------------------


def test_a_formula_has_numbers_in_brackets_and_tensors_bare(logistic):
    assert logistic.pp() == "((1) / ((1) + (exp ((-1) * x))))"


@pytest.mark.parametrize(
    ("op", "symbol"),
    (
        {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "eq": "==", "ne": "!=", "lt": "<", "le": "<="}
        | {"gt": ">", "ge": ">=", "dot": "@", "matmul": "@"}
    ).items(),
)
def test_an_op_with_a_symbol_stands_between_its_operands(x, y, op, symbol):
    assert OpTreeNode.build(op, x, y).pp() == f"(x {symbol} y)"


def test_other_ops_stand_before_their_operands_and_attributes(be, x, y):
    assert be.maximum(x, y).pp() == "(maximum x y)"
    assert be.sum(x, axis=1).pp() == "(sum x axis=(1,))"
    assert be.where(x > 0, x, y).pp() == "(where (x > (0)) x y)"


def test_a_large_formula_is_written_as_named_parts(deep, nodes):
    lines = deep.pp().splitlines()
    assert len(lines) == LIMIT
    assert lines[-2:] == [f"t{nodes - 1} = (t{nodes - 2} + y)", f"(t{nodes - 1} + y)"]


def test_a_formula_names_200_operands_of_one_op_and_counts_the_rest(be, x):
    assert be.concat([x] * 5000, 0).pp() == f"(concat {'x ' * LIMIT}... 4,800 more axis=0)"


# --- steps ---------------------------------------------------------------------------------------------------------


def test_steps_hold_the_value_of_each_node_in_order(logistic, x):
    v = x.get()
    expected = [-v, np.exp(-v), 1 + np.exp(-v), 1 / (1 + np.exp(-v))]
    steps = logistic.step()
    assert len(steps) == 4
    assert [node.op for node, _ in steps] == ["mul", "exp", "add", "div"]
    for (_, value), right in zip(steps, expected, strict=True):
        assert isinstance(value, np.ndarray)
        np.testing.assert_allclose(value, right, rtol=1e-6)


def test_steps_print_a_table_that_refers_to_earlier_steps(be, y):
    x = be.array(np.array([[0.5, -1.0, 2.0]]), name="x")
    part = x * 2
    assert repr((part + be.sum(part, axis=1)).step()).splitlines() == [
        "step  op                shape   value",
        "#1    x * 2             (1, 3)  1 -2 4",
        "#2    sum #1 axis=(1,)  (1, 1)  3",
        "#3    #1 + #2           (1, 3)  4 1 7",
    ]


def test_steps_evaluate_a_shared_part_and_a_random_draw_once(be):
    draw = be.rand(3, 4)
    steps = (draw - draw * 2).step()
    values = [value for _, value in steps]
    assert len(values) == 3
    np.testing.assert_array_equal(values[1], values[0] * 2)
    np.testing.assert_array_equal(values[2], -values[0])


def test_steps_pass_over_pairs(be, x, y):
    steps = be.where(x > 0, x, y).step()
    assert [node.op for node, _ in steps] == ["gt", "where"]
    assert "where #1 x y" in repr(steps)
    np.testing.assert_array_equal(steps[1][1], np.where(x.get() > 0, x.get(), 1))


def test_steps_show_the_first_few_elements_and_only_the_last_rows(y):
    tree = y * 0
    for _ in range(300):
        tree = tree + 1
    lines = repr(tree.step()).splitlines()
    assert len(lines) == LIMIT + 2
    assert lines[1].split()[:2] == ["...", "101"]
    assert lines[-1].split() == ["#301", "#300", "+", "1", "(2,", "2)", "300", "300", "300", "300"]
    assert format_first_values(np.arange(6).reshape(2, 3)) == "0 1 2 3 ..."
    assert format_first_values(np.array([[math.pi, math.inf]])) == "3.142 inf"


def test_steps_in_a_notebook_are_an_escaped_table(be):
    steps = (be.ones((2, 2), name=ODD) * 2).step()
    table = ElementTree.fromstring(steps._repr_html_())
    cells = [[cell.text for cell in row] for row in table.iter("tr")]
    assert cells == [["step", "op", "shape", "value"], ["#1", f"{ODD} * 2", "(2, 2)", "2 2 2 2"]]


def test_every_commutative_name_is_an_op():
    assert set(OPS) >= COMMUTATIVE


def test_a_node_comes_after_all_its_users_in_the_order_of_distance(be, x):
    shared = be.exp(x)
    short, long = -shared, be.sig(be.tanh(be.sqrt(shared)))
    for tree in (short - long, long - short):
        assert [node.op for node in sort_by_distance(tree)][-1] == "exp"
