"""Tests of the explorer of op-trees: the texts of its boxes, and the state that it exchanges with a notebook."""

from __future__ import annotations

import json
import math
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

import neonlite as nl
import neonlite.explorer as explorer
from neonlite.optree import OpTreeNode

anywidget = pytest.importorskip("anywidget")

W = np.array([[0.5, -1.0], [2.0, 0.25]], np.float32)
X = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]], np.float32)


@pytest.fixture(scope="module")
def be():
    return nl.gen_backend("cpu", rng_seed=0)


@pytest.fixture
def tree(be):
    return be.sum(be.tanh(be.dot(be.array(W, name="W"), be.array(X, name="<x>"))) * 2, axis=1)


def texts(widget, start):
    (found,) = [node for node in widget.nodes if node["node"].startswith(start)]
    return found


def numbers(text):
    """The numbers of an array in the first lines of a text."""
    rows = text.rpartition("\n")[0].replace("[", "").replace("]", "").split()
    return np.array(rows, float)


def test_there_is_a_text_for_each_box_of_the_drawing(tree):
    for max_nodes in (None, 4, 1):
        widget = nl.explore(tree, max_nodes)
        assert widget.svg == tree.draw("svg", max_nodes)
        boxes = ElementTree.fromstring(widget.svg).findall("{http://www.w3.org/2000/svg}g")
        assert len(boxes) == len(widget.nodes)


def test_a_box_has_shape_dtype_value_gradient_and_the_row_of_its_op(tree):
    node = texts(nl.explore(tree), "tanh")
    assert node["node"] == "tanh (2, 3)"
    assert node["dtype"] == "float32"
    assert node["op"] == "tanh: the hyperbolic tangent of x"
    assert node["gradient rule"] == "dx = (dz * ((1) - (z * z)))"
    np.testing.assert_allclose(numbers(node["value"]), np.tanh(W @ X).ravel(), atol=1e-4)
    np.testing.assert_allclose(numbers(node["gradient"]), np.full(6, 2.0))


def test_values_have_statistics(tree):
    expected = np.tanh(W @ X).astype(float)
    last = texts(nl.explore(tree), "tanh")["value"].splitlines()[-1]
    statistics = [f"{f(expected):.4g}" for f in (np.min, np.max, np.mean, np.std)]
    assert last == "min {}, max {}, mean {}, std {}".format(*statistics)


def test_tensors_and_ops_have_the_gradients_of_the_sum_of_the_result(tree):
    widget = nl.explore(tree)
    dz = 2 * (1 - np.tanh(W @ X) ** 2)
    np.testing.assert_allclose(numbers(texts(widget, "dot")["gradient"]), dz.ravel(), atol=1e-4)
    np.testing.assert_allclose(numbers(texts(widget, "W ")["gradient"]), (dz @ X.T).ravel(), atol=1e-4)
    np.testing.assert_allclose(numbers(texts(widget, "<x>")["gradient"]), (W.T @ dz).ravel(), atol=1e-4)


def test_an_op_has_its_attributes_and_a_scalar_its_value(tree):
    widget = nl.explore(tree)
    assert texts(widget, "sum")["attributes"] == "axis=(1,)"
    assert {"node": "2"} in widget.nodes


def test_an_operand_without_a_gradient_has_0(be):
    x, i = be.array(X, name="x"), be.array([[0, 1]], dtype="int32", name="i")
    widget = nl.explore(be.take(x, i, axis=1) * be.greater(x[:, :2], 0))
    assert texts(widget, "i ")["gradient"] == "0"
    assert texts(widget, "gt")["gradient rule"] == "0"
    assert texts(widget, "take")["gradient rule"].splitlines()[1] == "dindices = 0"


def test_a_result_or_an_op_without_derivative_says_why(be):
    labels = nl.explore(be.argmax(be.array(X), axis=0))
    assert labels.nodes[0]["gradient"] == "none: the result has dtype int64"
    assert "value" in labels.nodes[0]


def test_a_random_sample_is_the_same_in_the_value_of_each_box(be):
    widget = nl.explore(be.rand(2, 3) * 10)
    sample, product = (numbers(texts(widget, op)["value"]) for op in ("rand (", "mul"))
    np.testing.assert_allclose(product, 10 * sample, atol=1e-2)


def test_large_tensors_are_truncated_and_infinities_are_counted(be):
    values = np.ones((300, 400), np.float32)
    values[0, 0], values[1, 1] = math.inf, math.nan
    node = nl.explore(be.array(values, name="x") * 1).nodes[0]
    assert len(node["value"]) < 500
    assert node["value"].endswith("std 0\n2 of 120,000 elements are NaN or infinite")
    assert "min 1, max 1" in node["value"]


def test_empty_tensors_and_omitted_operands_have_texts(be):
    assert nl.explore(be.zeros((0, 3)) + 1).nodes[0]["node"] == "add (0, 3)"
    assert nl.explore(be.concat([be.array(X)] * 99, 0)).nodes[-1] == {"node": "more operands"}


def test_the_tree_is_evaluated_once(be, tree, monkeypatch):
    calls = []
    evaluate = type(be).evaluate
    monkeypatch.setattr(type(be), "evaluate", lambda *args: calls.append(args) or evaluate(*args))
    widget = nl.explore(tree)
    widget.selected = 3
    assert len(calls) == 1


def test_a_selection_in_the_notebook_sets_the_attribute_and_python_observes_it(tree):
    widget, seen = nl.explore(tree), []
    widget.observe(lambda change: seen.append(change["new"]), "selected")
    widget.set_state({"selected": 2})  # the message of a click
    assert (widget.selected, seen) == (2, [2])


def test_the_state_is_json_and_the_module_has_no_external_resource(tree):
    state = nl.explore(tree).get_state(["svg", "nodes", "selected", "_esm"])
    assert json.loads(json.dumps(state)) == state
    assert "export default { render }" in state["_esm"]
    assert "import" not in state["_esm"]
    assert "http" not in state["_esm"]


def test_the_static_drawing_is_shown_where_scripts_do_not_run(tree):
    widget = nl.explore(tree)
    bundle, _ = widget._repr_mimebundle_()
    assert bundle["image/svg+xml"] == tree.draw("svg")
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/plain"] == repr(widget) == "Explorer(sum (2, 1), 7 nodes)"


def test_without_anywidget_the_error_says_how_to_install_it(tree, monkeypatch):
    explorer.widget_class.cache_clear()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ImportError, match=r'explore: expected anywidget.* pip install "neonlite\[notebook\]"'):
        nl.explore(tree)


def test_other_objects_and_dry_runs_are_refused(be):
    with pytest.raises(TypeError, match=r"explore: expected an op-tree, got x \(2, 2\)"):
        nl.explore(be.array(W, name="x"))
    dry_run = be.dry_run()
    with pytest.raises(RuntimeError, match="explore: expected a backend with values, got"):
        nl.explore(dry_run.zeros((2, 2)) + 1)


def test_each_op_of_the_table_that_can_be_drawn_has_a_text(be):
    from helpers.op_cases import INTEGER_OPS, OP_TABLE

    ops = [
        op
        for op in OP_TABLE
        if op.kind == "elementwise" and op.arity in (1, 2) and op.name not in ("cast", "shift", *INTEGER_OPS)
    ]
    assert len(ops) > 20
    for op in ops:
        x, y = be.array([[0.5, 0.25]], name="x"), be.array([[1.5, 0.75]], name="y")
        node = nl.explore(OpTreeNode.build(op.name, *[x, y][: op.arity])).nodes[0]
        assert node["op"] == f"{op.name}: {op.doc}"
        assert node["gradient rule"] == "0" if op.grad is None else "dx = " in node["gradient rule"]
