"""Tests of the chain rule step by step: the texts of textbook cases, and the value of each step of each op.

A gradient of a step is compared with finite differences: the value that it belongs to is changed, and all later steps
are evaluated again.

Tests ``neonlite/explorer.py`` and the derivations of ``neonlite/visualize/__init__.py``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers.op_cases import FLAT_OPERANDS, GRADIENTS, Case, able, call, drawn, fill

import neonlite as nl
from neonlite import Autodiff, Backend
from neonlite.variables import Variable, tensors_of
from neonlite.visualize import Derivation, format_latex

xp = nl.array_api
MAX_PARSED_LINES = 12  # by Matplotlib, which takes milliseconds for each


def matrix(be: Backend, name: str, *shape: int) -> Any:
    return be.array(np.random.default_rng(len(name) + shape[0]).normal(size=shape), name=name)


@pytest.fixture
def be() -> Backend:
    return nl.gen_backend("cpu", rng_seed=0, datatype=np.float64)


@pytest.fixture
def tensors(be: Backend) -> list[Any]:
    """The inputs, weights, bias and targets of a perceptron."""
    shapes = {"x": (4, 2), "W": (2, 3), "b": (1, 3), "t": (4, 3)}
    return [matrix(be, name, *shape) for name, shape in shapes.items()]


def lines(derivation: Derivation) -> list[str]:
    """Return the lines of a derivation, each with single spaces."""
    return [re.sub(" +", " ", line) for line in str(derivation).splitlines()]


# --- textbook cases --------------------------------------------------------------------------------------------------

PERCEPTRON = """
E of x (4, 2), W (2, 3), b (1, 3), t (4, 3):
v1  = x @ W                       (4, 3)
v2  = v1 + b                      (4, 3)
v3  = tanh v2                     (4, 3)
v4  = v3 - t                      (4, 3)
v5  = v4 ** (2)                   (4, 3)
v6  = sum v5 axis=(0, 1)          (1, 1)
E   = v6 * (0.08333333333333333)  (1, 1)
gradients, dx for dE/dx, with the rules of the ops z = op(x, y):
dE  = 1
dv6 = dE * (0.08333333333333333)  mul: dx = dz * (0.08333333333333333)
dv5 = broadcast dv6 to=(4, 3)     sum: dx = dz
dv4 = dv5 * ((2) * v4)            pow: dx = dz * ((2) * x)
dv3 = dv4                         sub: dx = dz
dv2 = dv3 * ((1) - (v3 * v3))     tanh: dx = dz * ((1) - (z * z))
dv1 = dv2                         add: dx = dz
dW  = x.T @ dv1                   dot: dy = x.T @ dz
db  = sum dv2 axis=(0,)           add: dy = dz
"""


def test_the_derivation_of_a_perceptron_is_that_of_the_textbook(be: Backend, tensors: Sequence[Any]) -> None:
    x, W, b, t = tensors
    cost = be.mean((be.tanh(x @ W + b) - t) ** 2)
    assert str(cost.derivation(W, b)) == PERCEPTRON.strip()


def test_without_arguments_all_float_tensors_are_differentiated(be: Backend, tensors: Sequence[Any]) -> None:
    x, W, b, _ = tensors
    rows = be.array([[0, 2]], dtype="int32", name="rows")
    names = [step.name for step in (be.take(x, rows, axis=0) @ W + b).derivation().gradients]
    assert names[-3:] == ["dx", "dW", "db"]


def test_the_derivation_of_softmax_and_cross_entropy_uses_the_rule_of_log_softmax(be: Backend) -> None:
    x, t = matrix(be, "x", 3, 4), be.array(np.eye(3, 4), name="t")
    found = lines(be.cross_entropy(x, t).derivation(x))
    assert found[1] == "v1 = log_softmax x axis=(0,) (3, 4)"
    assert found[6] == "E = neg v5 (1, 1), cross_entropy"
    assert found[-1] == (
        "dx = dv1 - ((exp v1) * (sum dv1 axis=(0,))) log_softmax: dx = dz - ((exp z) * (sum dz axis=(0,)))"
    )


def test_a_tensor_that_is_used_twice_gets_the_sum(be: Backend) -> None:
    x = matrix(be, "x", 2, 3)
    assert lines((x * x + x).derivation())[-2:] == [
        "dv1 = dE add: dx = dz",
        "dx = (dE + (dv1 * x)) + (dv1 * x) add: dy = dz, mul: dx = dz * y, mul: dy = dz * x",
    ]


def test_a_value_that_is_used_twice_is_one_step_and_gets_the_sum(be: Backend) -> None:
    h = be.exp(matrix(be, "x", 2, 3))
    derivation = (h * be.sin(h)).derivation()
    assert [step.name for step in derivation.values] == ["v1", "v2", "E"]
    assert "dv1 = (dE * v2) + (dv2 * (cos v1)) mul: dx = dz * y, sin: dx = dz * (cos x)" in lines(derivation)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 3), "sum dE axis=(0,)"),
        ((4, 1), "sum dE axis=(1,)"),
        ((1, 1), "sum dE axis=(0, 1)"),
        ((4, 3), "dE"),
    ],
)
def test_a_bias_that_was_broadcast_is_summed_over_its_axes(be: Backend, shape: Any, expected: str) -> None:
    tree = matrix(be, "x", 4, 3) + (b := matrix(be, "b", *shape))
    assert lines(tree.derivation(b))[-1] == f"db = {expected} add: dy = dz"


def test_the_gradient_of_a_transposed_tensor_is_that_of_the_tensor(be: Backend, tensors: Sequence[Any]) -> None:
    x, W, _, _ = tensors
    tree = W.T @ x.T
    assert lines(tree.derivation())[-2:] == [
        "dW = x.T @ dE.T dot: dx = dz @ y.T",
        "dx = dE.T @ W.T dot: dy = x.T @ dz",
    ]
    assert lines(tree.derivation())[0] == "E of W (2, 3), x (4, 2):"
    assert lines(tree.derivation(W))[-1] == "dW = x.T @ dE.T dot: dx = dz @ y.T"
    assert lines(tree.derivation(tree.left))[-1] == "dW.T = dE @ x dot: dx = dz @ y.T"


def test_weights_of_layers_in_one_buffer_have_their_names(be: Backend) -> None:
    net = nl.Sequential([nl.layers.Affine(4, activation="tanh"), nl.layers.Affine(2)])
    tree = be.sum(net(matrix(be, "x", 3, 5)))
    names = [w.name for w in net.parameters]
    derivation = tree.derivation(*net.parameters)
    assert {t.name for t in derivation.inputs} == {"x", *names}
    assert [step.name for step in derivation.gradients[-4:]] == [f"d{name}" for name in names]


def test_a_composite_op_below_where_is_opened_where_its_gradient_needs_it(be: Backend) -> None:
    x = matrix(be, "x", 2, 3)
    tree = be.where(x > 0, be.softmax(x, axis=1), x)
    names = [step.name for step in tree.derivation().gradients]
    assert names == ["dE", "dv2", "v3", "v4", "v5", "v6", "v7", "dv7", "dv6", "dv5", "dx"]
    check_steps(be, tree)


def test_random_numbers_are_drawn_once(be: Backend) -> None:
    x = matrix(be, "x", 2, 3)
    derivation = (be.rand(2, 3) * x).derivation()
    gradient, result = derivation.gradients[-1].tree.get(), derivation.values[-1].tree.get()
    np.testing.assert_allclose(gradient * x.get(), result)


# --- names -----------------------------------------------------------------------------------------------------------


def test_names_are_unique_and_tensors_without_a_name_are_numbered(be: Backend) -> None:
    x = matrix(be, "", 1, 2)
    others = [matrix(be, name, 1, 2) for name in ("v1", "v1", "E", "dE")]
    tree = be.exp(x * others[0]) + others[1] * others[2] + others[3]
    derivation = tree.derivation()
    names = [t.name for t in derivation.inputs]
    assert names == ["x1", "v1", "v1'", "E", "dE"]
    names += [step.name for step in (*derivation.values, *derivation.gradients)]
    assert len(set(names)) == len(names)
    check_steps(be, tree)


def test_the_tree_and_its_gradient_are_not_changed(be: Backend, tensors: Sequence[Any]) -> None:
    x, W, _, _ = tensors
    tree = be.sum(x @ W)
    autodiff = Autodiff(tree, be)
    before = tree.pp(), repr(tree)
    tree.derivation(W)
    assert (tree.pp(), repr(tree)) == before
    assert Autodiff(tree, be) is autodiff


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_mistakes_say_what_is_expected(be: Backend, tensors: Sequence[Any]) -> None:
    x, W, b, t = tensors
    tree = x @ W
    with pytest.raises(ValueError, match=r"derivation: expected a float tensor of the tree, W, x, got b \(1, 3\)"):
        tree.derivation(W, b)
    with pytest.raises(TypeError, match=r"derivation: expected an op-tree of floats, got argmax.* dtype int64"):
        be.argmax(tree, axis=1).derivation()
    with pytest.raises(TypeError, match=r"(?s)derivation: expected a tensor of the tree .*\. Pass each: tree"):
        tree.derivation([W, x])
    with pytest.raises(TypeError, match=r"derivation: expected a tensor of the tree .* got 'W'"):
        tree.derivation("W")
    with pytest.raises(TypeError, match=r"derivation: expected an op-tree .* got t \(4, 3\)"):
        be.derivation(t)
    with pytest.raises(
        TypeError, match=r"derivation: expected nl.grad\(f\) or nl.value_and_grad\(f\), got vmap.* one sample"
    ):
        nl.vmap(xp.sin).derivation(xp.ones(3))


def test_an_integer_tensor_of_the_tree_has_no_derivative(be: Backend) -> None:
    x, i = matrix(be, "x", 3, 4), be.array([[0, 2]], dtype="int32", name="i")
    with pytest.raises(ValueError, match="expected a float tensor of the tree, x, got i"):
        be.take(x, i, axis=1).derivation(i)


def test_an_op_without_a_derivative_says_so(be: Backend) -> None:
    cube = be.define_op("cube_without_derivative", run=lambda xp, x: x * x * x)
    with pytest.raises(NotImplementedError, match="'cube_without_derivative' was defined without a derivative"):
        cube(be, matrix(be, "x", 2, 2)).derivation()


# --- functions -------------------------------------------------------------------------------------------------------


def test_the_gradient_of_a_function_shows_its_derivation_in_the_names_of_its_parameters(be: Backend) -> None:
    def loss(params: dict[str, Any], x: Any, scale: float) -> Any:
        return xp.sum(xp.tanh(x @ params["W"] + params["b"])) * scale

    params = {"W": xp.ones((2, 3)), "b": xp.zeros(3), "unused": xp.ones(1)}
    x = xp.ones((4, 2))
    for transform in (nl.grad(loss), nl.value_and_grad(loss)):
        derivation = transform.derivation(params, x, 0.5)
        assert {t.name for t in derivation.inputs} == {"x", "W", "b", "scale"}
        assert [step.name for step in derivation.gradients[-3:]] == ["dW", "db", "dunused"]
        assert lines(derivation)[-1] == "dunused = 0"
        grads = nl.grad(loss)(params, x, 0.5)
        for step, g in zip(derivation.gradients[-3:], grads.values(), strict=True):
            np.testing.assert_allclose(step.tree.get().reshape(g.shape), g.numpy())


def test_functions_with_given_derivatives_and_checkpoints_have_derivations(be: Backend) -> None:
    @nl.custom_grad
    def rounded(x: Any) -> Any:
        return xp.round(x), lambda error: error * xp.cos(x)

    @nl.checkpoint
    def block(x: Any) -> Any:
        return xp.exp(xp.sin(x))

    text = str(nl.grad(lambda x: rounded(x) * 3.0).derivation(2.0))
    assert "dx  = dv1 * (cos x)  rounded: dx = dz * (cos x)" in text
    derivation = nl.grad(lambda x: block(x) ** 2).derivation(2.0)
    assert "block: dx = (dz * (exp (sin (after x dz)))) * (cos (after x dz))" in str(derivation)
    assert np.isclose(derivation.gradients[-1].tree.get().item(), 2 * np.exp(2 * np.sin(2.0)) * np.cos(2.0))


def test_argnums_aux_and_second_derivatives_have_derivations(be: Backend) -> None:
    f = nl.grad(lambda x, y: (xp.sin(x) * y, x), argnums=1, has_aux=True)
    assert lines(f.derivation(0.5, 2.0))[-1] == "dy = dE * v1 mul: dy = dz * x"
    second = nl.grad(nl.grad(xp.sin)).derivation(0.5)
    np.testing.assert_allclose(second.gradients[-1].tree.get(), [[-np.sin(0.5)]], rtol=1e-6)


def test_arrays_have_derivations(be: Backend) -> None:
    x = xp.variable([1.0, 2.0], name="x", dtype=xp.float64)
    derivation = be.derivation(xp.sum(xp.exp(x)), x)
    np.testing.assert_allclose(derivation.gradients[-1].tree.get(), np.exp([[1.0, 2.0]]))


# --- every op of the table: each step is the derivative --------------------------------------------------------------


def placeholders(derivation: Derivation) -> dict[str, Variable]:
    """Return the tensors in the place of inputs and values, by their names."""
    trees = [step.tree for step in (*derivation.values, *derivation.gradients)]
    return {str(t.name): t for t in tensors_of(*trees) if isinstance(t, Variable)}


def numerical_derivative(be: Backend, derivation: Derivation, name: str, direction: Any) -> float:
    """Return the derivative of the sum of the result along a direction of a value, by a fourth-order difference."""
    variables = placeholders(derivation)
    steps = {step.name: step for step in (*derivation.values, *derivation.gradients) if step.name[0] != "d"}
    start, order = variables[name].get(), [*steps]
    later = order[order.index(name) + 1 :] if name in steps else order

    def total(h: float) -> float:
        kept = {x: variables[x].value for x in (name, *later) if x in variables}
        for x in later:
            if x in variables:
                variables[x].value = None
        variables[name].value = be.array(start + h * direction)
        value = derivation.values[-1].tree.get().sum()
        for x, old in kept.items():
            variables[x].value = old
        return float(value)

    h = 1e-3
    return (total(-2 * h) - 8 * total(-h) + 8 * total(h) - total(2 * h)) / (12 * h)


def check_steps(be: Backend, tree: Any, flat: Sequence[str] = ()) -> int:
    """Compare the gradient of each step with finite differences, and return the number of gradients."""
    derivation = tree.derivation()
    names = {t.name for t in derivation.inputs} | {step.name for step in derivation.values}
    count = 0
    for step in derivation.gradients:
        name = step.name[1:]
        if step.name in ("dE", "dE'") or name not in names or name in flat:
            continue
        dx = step.tree.get() if step.tree.name != "0" else np.zeros(step.tree.shape)
        direction = drawn(f"direction of {name}", dx.shape, -2, 2, False)
        numeric = numerical_derivative(be, derivation, name, direction)
        size = max(abs(numeric), np.abs(dx * direction).sum() * 1e-2, 1e-3)
        assert abs((dx * direction).sum() - numeric) <= 1e-6 * size, (step.name, str(derivation))
        count += 1
    return count


def build(be: Backend, case: Case) -> tuple[Any, list[str]]:
    """Return the tree of a case over tensors a0, a1 and so on, and the names of those with derivative 0 everywhere."""
    operands = [
        x if isinstance(x, int | float) else be.array(x, "int32" if x.dtype.kind == "i" else None, name=f"a{k}")
        for k, x in enumerate(fill(case))
    ]
    flat = [f"a{k}" for k in range(len(operands)) if (case.op, k) in FLAT_OPERANDS]
    return call(be, case.op, operands, case.attrs) * 1.5, flat


@pytest.mark.parametrize("name", GRADIENTS)
def test_each_step_of_the_derivation_of_an_op_is_that_of_finite_differences(be: Backend, name: str) -> None:
    tree, flat = build(be, able(be, GRADIENTS[name])[0])
    assert check_steps(be, tree, flat)


def test_each_step_of_a_network_is_that_of_finite_differences(be: Backend, tensors: Sequence[Any]) -> None:
    x, W, b, t = tensors
    y = be.softmax(be.tanh(x @ W + b) @ W.T, axis=1)
    tree = be.mean(be.where(y > 0.5, be.log(y), be.silu(y)) * be.sum(t * t, axis=1)) + 0.1 * be.sum(W * W)
    assert check_steps(be, tree) > 15


# --- LaTeX -----------------------------------------------------------------------------------------------------------


def test_formulas_in_latex_have_parentheses_where_they_are_needed(be: Backend) -> None:
    a, b, c = (matrix(be, name, 2, 2) for name in "abc")
    gamma, W1, hidden = (matrix(be, name, 2, 2) for name in ("gamma", "W1", "w_hidden"))
    for tree, expected in [
        (a - (b - c), r"a - \left(b - c\right)"),
        (a + (b + c), "a + b + c"),
        (a - b - c, "a - b - c"),
        ((a + b) * c, r"\left(a + b\right) \odot c"),
        ((a * b) @ c, r"\left(a \odot b\right) \, c"),
        (a @ b * 2, r"a \, b \cdot 2"),
        (-(a + b), r"-\left(a + b\right)"),
        (-a * b, r"\left(-a\right) \odot b"),
        (a * -0.5, r"a \cdot \left(-0.5\right)"),
        ((a + b) / c, r"\frac{a + b}{c}"),
        ((a / b) ** 2, r"\left(\frac{a}{b}\right)^{2}"),
        (be.tanh(a) ** 2, r"\left(\tanh\left(a\right)\right)^{2}"),
        (be.exp(-a), "e^{-a}"),
        (be.square(be.sqrt(a)), r"\sqrt{a}^{2}"),
        (abs(a), r"\left|a\right|"),
        ((a + b).T, r"\left(a + b\right)^{\top}"),
        (a.T @ b, r"a^{\top} \, b"),
        (be.sum(a, axis=0) * b, r"\left(\sum_{\mathrm{axis}\,0} a\right) \odot b"),
        (be.sum(a + b), r"\sum \left(a + b\right)"),
        (be.max(a, axis=1), r"\max_{\mathrm{axis}\,1}\left(a\right)"),
        (be.softmax(a, axis=0), r"\operatorname{softmax}_{\mathrm{axis}\,0}\left(a\right)"),
        (a <= b, r"\left[a \le b\right]"),
        (be.where(a, b, c), r"\operatorname{where}\left(a,\,b,\,c\right)"),
        (gamma * W1, r"\gamma \odot W_{1}"),
        (hidden * 1e-5, r"\mathrm{w\_hidden} \cdot 1 \cdot 10^{-5}"),
        (be.log(a) + be.sig(b), r"\ln\left(a\right) + \sigma\left(b\right)"),
    ]:
        assert format_latex(tree) == expected


def test_a_notebook_shows_a_gradient_as_a_partial_derivative(be: Backend, tensors: Sequence[Any]) -> None:
    x, W, b, _ = tensors
    text = be.tanh(x @ W + b).derivation(b)._repr_latex_()
    assert text.startswith("$$\\begin{aligned}\nv_{1} &= x \\, W && ")
    last = text.splitlines()[-2]
    assert last == (
        r"\frac{\partial E}{\partial b} &= \sum_{\mathrm{axis}\,0} \frac{\partial E}{\partial v_{2}} "
        r"&& \mathrm{add}:\; \mathrm{dy} = \mathrm{dz}"
    )


def check_latex(text: str) -> None:
    """Assert that braces and parentheses are balanced, and that Matplotlib can read each part of each line, if any."""
    assert text.startswith("$$\\begin{aligned}\n")
    assert text.endswith("\n\\end{aligned}$$")
    plain = re.sub(r"\\[{}_]", "", text)
    depths = np.cumsum([(c == "{") - (c == "}") for c in plain])
    assert depths[-1] == 0
    assert (depths >= 0).all()
    assert text.count(r"\left") == text.count(r"\right")
    for line in text.splitlines()[1:-1][:MAX_PARSED_LINES]:
        for part in line.removesuffix(r"\\").replace("&=", "=").split("&&"):
            if part.strip():
                parse_formula(part.strip())


@functools.cache  # many ops share lines
def parse_formula(text: str) -> None:
    """Raise ValueError if Matplotlib cannot read a formula."""
    pytest.importorskip("matplotlib.mathtext").MathTextParser("path").parse(f"${text}$")


@pytest.mark.long
@pytest.mark.parametrize("name", [*GRADIENTS][::3])
def test_the_latex_of_the_derivation_of_an_op_is_well_formed(be: Backend, name: str) -> None:
    tree, _ = build(be, able(be, GRADIENTS[name])[0])
    check_latex(tree.derivation()._repr_latex_())


def test_the_latex_of_special_names_is_well_formed(be: Backend) -> None:
    x, y = matrix(be, "params['W_1']", 2, 2), matrix(be, "a_b", 2, 2)
    check_latex((x * y.T).derivation()._repr_latex_())


def test_large_expressions_are_abbreviated(be: Backend) -> None:
    x = tree = matrix(be, "x", 2, 2)
    for _ in range(300):
        tree = tree + x
    assert format_latex(tree) == r"\cdots\ \mathrm{(300\ ops)}"
    assert len(str(tree.derivation()).splitlines()) == 603
