"""Drawings of op-trees of any size: text, Mermaid, dot, SVG."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from helpers.expressions import ODD

import neonlite as nl
from neonlite.optree import postorder
from neonlite.visualize import separate_positions

SVG = "{http://www.w3.org/2000/svg}"


def groups(picture, kind):
    """The boxes of one kind in an SVG picture, each as the list of its lines of text."""
    boxes = ElementTree.fromstring(picture).iter(f"{SVG}g")
    return [[line.text for line in box.iter(f"{SVG}text")] for box in boxes if box.get("class") == kind]


def is_edge(line):
    return re.search(r"n\d+ --?>(\|\d\|)? n\d+", line) is not None


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
    for count, words in ((41, "1 more operand"), (42, "2 more operands")):
        assert groups(be.concat([x] * count, 0).draw("svg"), "omitted") == [[f"... {words}"]]


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
