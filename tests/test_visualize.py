"""Tests of printing and drawing expressions of any size: repr, formula, text, mermaid, dot, SVG, step tables."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.parametrize import DEEP

import neonlite as nl
from neonlite.ops import OPS
from neonlite.optree import OpTreeNode, postorder
from neonlite.visualize import separate_positions
from neonlite.visualize.text import COMMUTATIVE, format_first_values

SVG = "{http://www.w3.org/2000/svg}"
LIMIT = 200
ODD = 'a"b<c>&amp; \\N #1;`'


@pytest.fixture(scope="module")
def be():
    return nl.gen_backend("cpu", rng_seed=0)


@pytest.fixture(scope="module")
def x(be):
    return be.array(np.array([[0.5, -1.0], [2.0, 3.0]]), name="x")


@pytest.fixture(scope="module")
def y(be):
    return be.ones((2, 2), name="y")


@pytest.fixture(scope="module")
def logistic(be, x):
    return 1 / (1 + be.exp(-1 * x))


@pytest.fixture(scope="module", params=DEEP)
def nodes(request):
    return request.param


@pytest.fixture(scope="module")
def deep(x, y, nodes):
    tree = x
    for _ in range(nodes):
        tree = tree + y
    return tree


@pytest.fixture(scope="module")
def shared(x):
    tree = x
    for _ in range(1000):
        tree = tree + tree
    return tree


def groups(picture, kind):
    """The boxes of one kind in an SVG picture, each as the list of its lines of text."""
    boxes = ElementTree.fromstring(picture).iter(f"{SVG}g")
    return [[line.text for line in box.iter(f"{SVG}text")] for box in boxes if box.get("class") == kind]


def is_edge(line):
    return re.search(r"n\d+ --?>(\|\d\|)? n\d+", line) is not None


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


# --- drawings ------------------------------------------------------------------------------------------------------


def test_text_is_an_indented_tree(logistic):
    assert logistic.draw() == (
        "div (2, 2)\n"
        "├── 1\n"
        "└── add (2, 2)\n"
        "    ├── 1\n"
        "    └── exp (2, 2)\n"
        "        └── mul (2, 2)\n"
        "            ├── -1\n"
        "            └── x (2, 2)"
    )


def test_text_draws_a_shared_part_once_and_refers_to_it(be, x):
    part = be.exp(x)
    assert (part - part * 2).draw("text") == (
        "sub (2, 2)\n├── #1 exp (2, 2)\n│   └── x (2, 2)\n└── mul (2, 2)\n    ├── #1 exp (2, 2), as above\n    └── 2"
    )


def test_mermaid_has_one_line_for_each_box_and_edge(x, y):
    assert (x - y).draw("mermaid").splitlines() == [
        "flowchart BT",
        '    n0["sub (2, 2)"]',
        '    n1(["x (2, 2)"])',
        '    n2(["y (2, 2)"])',
        "    n1 -->|1| n0",
        "    n2 -->|2| n0",
        "    classDef omitted stroke-dasharray: 4",
    ]


def test_dot_has_one_line_for_each_box_and_edge(x):
    assert (x + 1).draw("dot").splitlines() == [
        "digraph tree {",
        "    rankdir=BT",
        "    node [fontname=monospace]",
        '    n0 [label="add (2, 2)", shape=box]',
        '    n1 [label="x (2, 2)", shape=box, style=rounded]',
        '    n2 [label="1", shape=ellipse]',
        "    n1 -> n0",
        "    n2 -> n0",
        "}",
    ]


@pytest.mark.parametrize("form", ["mermaid", "dot"])
def test_every_operand_is_an_edge_and_equal_ones_are_two(be, x, y, form):
    part = x * y
    tree = be.where(part > 0, part + part, y)  # 2 + 2 + 2 + 3 operands
    assert sum(map(is_edge, tree.draw(form).splitlines())) == 9


def test_svg_has_a_box_for_each_distinct_node_and_tensor_and_each_use_of_a_number(be, x, y):
    part = x * y
    tree = be.tanh(part + 1) / (part + 1) - be.sum(part, axis=1) * y
    picture = tree.draw("svg")
    assert len(groups(picture, "op")) == len(list(postorder(tree))) == 8
    assert sorted(groups(picture, "tensor")) == [["x", "(2, 2)"], ["y", "(2, 2)"]]
    assert groups(picture, "number") == [["1"], ["1"]]
    assert ["sum axis=(1,)", "(2, 1)"] in groups(picture, "op")


def test_svg_has_an_arrowhead_for_each_operand(logistic):
    paths = ElementTree.fromstring(logistic.draw("svg")).iter(f"{SVG}path")
    heads = {path.get("class"): path.get("d") for path in paths}["heads"]
    assert heads.count("M") == 2 + 2 + 1 + 2


def test_svg_boxes_of_a_row_do_not_overlap_and_stay_in_the_picture(be, x, y):
    tree = sum((be.exp(x * i) / (y + i) for i in range(1, 9)), be.zeros((2, 2), name="a tensor with a long name"))
    picture = ElementTree.fromstring((tree * tree + x).draw("svg"))
    wide, high = float(picture.get("width")), float(picture.get("height"))
    rows = {}
    for box in picture.iter(f"{SVG}rect"):
        left, top, width, height = (float(box.get(k)) for k in ("x", "y", "width", "height"))
        assert 0 <= left <= left + width <= wide
        assert 0 <= top <= top + height <= high
        rows.setdefault(top, []).append((left, left + width))
    for row in map(sorted, rows.values()):
        assert all(one[1] < other[0] for one, other in pairwise(row))


def test_svg_draws_each_user_above_its_operands(be, x):
    part = be.exp(x)
    boxes = list(ElementTree.fromstring((part + be.tanh(part)).draw("svg")).iter(f"{SVG}g"))
    top = {box.find(f"{SVG}text").text: float(box.find(f"{SVG}rect").get("y")) for box in boxes}
    assert top["add"] < top["tanh"] < top["exp"] < top["x"]


def test_lines_of_a_tree_without_sharing_do_not_cross(be, x):
    leaves = [be.ones((2, 2), name=f"w{i}") for i in range(16)]
    while len(leaves) > 1:
        leaves = [a - b for a, b in zip(leaves[::2], leaves[1::2], strict=True)]
    boxes = ElementTree.fromstring(leaves[0].draw("svg")).iter(f"{SVG}g")
    place = {box.find(f"{SVG}text").text: float(box.find(f"{SVG}rect").get("x")) for box in boxes}
    tensors = [place[f"w{i}"] for i in range(16)]
    assert tensors == sorted(tensors)


def test_names_are_escaped_in_each_language(be):
    tree = be.ones((2, 2), name=ODD) * 2
    assert f"{ODD} (2, 2)" in tree.draw("text")
    assert groups(tree.draw("svg"), "tensor") == [[ODD, "(2, 2)"]]
    assert 'label="a\\"b<c>&amp;amp; \\\\N #1;` (2, 2)"' in tree.draw("dot")
    assert '(["a#34;b#60;c#62;#38;amp#59; #92;N #35;1#59;#96; (2, 2)"])' in tree.draw("mermaid")


def test_names_that_xml_forbids_and_names_too_long_for_a_box_still_draw(be):
    tree = be.ones((2, 2), name="bell\a") + be.ones((2, 2), name="w" * 99)
    first, second = groups(tree.draw("svg"), "tensor")
    assert first[0] == "bell\ufffd"
    assert second[0].endswith("w…")
    assert "w" * 99 in tree.draw("svg")


@pytest.mark.parametrize("form", ["text", "mermaid", "dot", "svg"])
def test_large_trees_are_drawn_from_the_result_down(be, x, deep, shared, form):
    for tree in (deep, shared, be.concat([x * i for i in range(1, 1000)], 0), be.concat([x] * 5000, 0)):
        picture = tree.draw(form)
        assert len(picture) < 30_000
        assert len(picture.splitlines()) < 300
        assert re.search(r"add: [\d,]+ ops|\.\.\. [\d,]+ more operand", picture.replace("#58;", ":"))


def test_a_drawing_counts_the_operands_that_it_omits(be, x):
    picture = be.concat([x] * 5000, 0).draw("svg")
    assert groups(picture, "omitted") == [["... 4,960 more operands"]]


@pytest.fixture(scope="module")
def gradient(be, x, y):
    """The gradient, of 200 ops, of a chain of matrix products with tanh."""
    z = x
    for i in range(29):
        z = be.tanh(be.dot(be.ones((2, 2), name=f"W{i}"), z) + y)
    return nl.Autodiff(be.sum(be.square(z)), be).get_grad_op_tree([x])[0]


def test_the_drawing_of_a_large_gradient_is_of_readable_size(gradient):
    assert len(list(postorder(gradient))) >= 200
    picture = ElementTree.fromstring(gradient.draw("svg"))
    assert float(picture.get("width")) < 1000
    assert float(picture.get("height")) < 2000
    assert gradient._repr_svg_() == gradient.draw("svg")


@pytest.mark.parametrize("max_nodes", [1, 2, 5, 40, 150])
def test_a_drawing_has_at_most_the_given_number_of_nodes(gradient, max_nodes):
    boxes = ElementTree.fromstring(gradient.draw("svg", max_nodes)).iter(f"{SVG}g")
    kinds = [box.get("class") for box in boxes]
    assert len(kinds) - kinds.count("omitted") <= max_nodes


@pytest.mark.parametrize("max_nodes", [3, 4, 5, 6])
def test_an_op_is_drawn_with_all_its_operands_or_folded(x, max_nodes):
    tree = x
    for _ in range(50):
        tree = 2 * tree
    picture = tree.draw("svg", max_nodes)
    assert groups(picture, "omitted") == []
    assert len(groups(picture, "folded")) == 1


def test_a_drawing_without_a_limit_has_all_nodes(gradient):
    picture = gradient.draw("svg", max_nodes=None)
    assert len(groups(picture, "op")) == len(list(postorder(gradient)))
    assert groups(picture, "folded") == groups(picture, "omitted") == []
    assert gradient.draw("svg", max_nodes=10_000) == picture


def test_a_folded_box_has_the_op_the_number_of_ops_and_the_shape_of_its_sub_tree(be, y):
    row = be.sum(y, axis=0)
    for _ in range(30):
        row = row + 1
    tree = be.exp(row) * y
    assert groups(tree.draw("svg", 4), "folded") == [["add: 31 ops", "(1, 2)"]]
    assert tree.draw("text", 4) == "mul (2, 2)\n├── exp (1, 2)\n│   └── add: 31 ops (1, 2)\n└── y (2, 2)"
    assert '[["add#58; 31 ops (1, 2)"]]' in tree.draw("mermaid", 4)
    assert '[label="add: 31 ops (1, 2)", shape=box, peripheries=2]' in tree.draw("dot", 4)


def test_a_folded_box_of_few_ops_has_their_formula(be, x, y):
    assert groups((be.exp(x * 2) - y).draw("svg", 3), "folded") == [["(exp (x * (2)))", "(2, 2)"]]


def test_the_ops_of_a_folded_tree_without_sharing_are_counted_once(be):
    leaves = [be.ones((2, 2), name=f"w{i}") for i in range(256)]
    while len(leaves) > 1:
        leaves = [a - b for a, b in zip(leaves[::2], leaves[1::2], strict=True)]
    picture = leaves[0].draw("svg", 30)
    counts = [int(text.split()[1]) for text, _ in groups(picture, "folded")]
    assert len(groups(picture, "op")) + sum(counts) == 255


def test_a_shared_sub_tree_is_folded_into_one_box_with_an_edge_for_each_use(be, x):
    part = x
    for _ in range(30):
        part = be.tanh(part)
    picture = ((part - 1) * (2 - part) + be.exp(part)).draw("dot", 8)
    (box,) = re.findall(r"(n\d+) \[label=\"tanh: 30 ops", picture)
    assert len(re.findall(rf"{box} -> n", picture)) == 3


def test_a_drawn_op_that_is_also_in_a_folded_sub_tree_is_its_operand(be, x):
    part = be.exp(x)
    other = part
    for _ in range(30):
        other = be.tanh(other)
    assert (other - be.absolute(part)).draw("text", 5) == (
        "sub (2, 2)\n├── tanh (2, 2)\n│   └── tanh: 29 ops (2, 2)\n│       └── #1 (exp x) (2, 2)\n"
        "└── abs (2, 2)\n    └── #1 (exp x) (2, 2), as above"
    )


def test_a_limit_that_is_not_a_positive_integer_is_refused(x):
    with pytest.raises(ValueError, match=r"tree\.draw: expected a positive max_nodes, got 0\. Pass None"):
        (x + 1).draw("svg", 0)
    for wrong in (True, 2.0, "all"):
        with pytest.raises(TypeError, match=r"tree\.draw: expected an integer or None for max_nodes, got"):
            (x + 1).draw("svg", wrong)


def test_an_unknown_form_is_refused_by_naming_the_known_ones(x):
    with pytest.raises(
        ValueError, match=r"tree\.draw: expected a format of 'text', 'mermaid', 'dot', 'svg', got 'png'"
    ):
        (x + 1).draw("png")


def test_notebooks_get_the_svg_picture(logistic):
    assert logistic._repr_svg_() == logistic.draw("svg")


def test_positions_are_spread_by_least_squares():
    assert separate_positions([0.0, 0.0, 0.0], [0.0, 10.0, 20.0]) == [-10.0, 0.0, 10.0]
    assert separate_positions([0.0, 50.0], [0.0, 10.0]) == [0.0, 50.0]


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
