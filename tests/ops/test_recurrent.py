"""The ops for recurrence over time: their formulas, functions and errors, and the values and gradients of PyTorch.

``test_every_op.py`` compares values and derivatives with the textbook.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.recurrent_reference import RECURRENT, sequence_backward

from neonlite import Autodiff, Backend
from neonlite.ops import OPS
from neonlite.optree import postorder

GATES = {"rnn": 1, "lstm": 4, "gru": 3}
every_cell = pytest.mark.parametrize("cell", GATES)


def operands(cell: str, F: int = 3, H: int = 2, T: int = 4, N: int = 2, seed: int = 0) -> list[Any]:
    """Return x, W_input, W_recur, b and the initial states as arrays of NumPy."""
    rows, states = GATES[cell] * H, 1 + (cell == "lstm")
    shapes = [(F, T * N), (rows, F), (rows, H), (rows, 1), *[(H, N)] * states]
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def names(cell: str, activation: str = "tanh", gate_activation: str = "sig") -> dict[str, str]:
    """Return the attributes of the activation functions."""
    return {"activation": activation} | ({} if cell == "rnn" else {"gate_activation": gate_activation})


@every_cell
def test_all_steps_are_one_node_whose_formula_has_a_product_for_each(be: Backend, cell: str) -> None:
    tensors = [be.array(x, "float64") for x in operands(cell)]
    tree = getattr(be, cell)(*tensors, steps=4)
    assert [node.op for node in postorder(tree) if node.op != "pair"] == [cell]
    opened = [node.op for node in postorder(tree.open(cell))]
    assert cell not in opened
    assert opened.count("dot") == 1 + 4 * (1 + (cell == "gru"))
    np.testing.assert_allclose(tree.open(cell).get(), tree.get(), rtol=1e-13)


@every_cell
@pytest.mark.parametrize("function", ["relu", "identity", "tanh", "sig"])
def test_every_function_may_be_the_activation(be: Backend, cell: str, function: str) -> None:
    xs, attrs = operands(cell), {"steps": 4, "reverse": True, **names(cell, function, "tanh")}
    tensors = [be.array(x, "float64") for x in xs]
    y = getattr(be, cell)(*tensors, **attrs)
    expected = RECURRENT[cell](*xs, **attrs)
    np.testing.assert_allclose(y.get(), expected, rtol=1e-12)
    e = np.random.default_rng(1).normal(size=expected.shape)
    grads = Autodiff(y, be, be.array(e, "float64")).get_grad_asnumpyarray(tensors)
    row = np.concatenate([grad.ravel() for grad in grads])
    errors = [e, np.zeros((2, 2))][: 1 + (cell == "lstm")]
    expected_row = sequence_backward(cell, *errors, expected, *xs, **attrs)[0]
    np.testing.assert_allclose(row, expected_row, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("cell", "order", "signs"),
    [("rnn", [0], [1]), ("lstm", [0, 1, 3, 2], [1, 1, 1, 1]), ("gru", [0, 1, 2], [1, -1, 1])],
)
def test_values_and_gradients_are_those_of_pytorch(
    cpu: Backend, cell: str, order: list[int], signs: list[int], reverse: bool
) -> None:
    """Of a GRU with r = 1, as PyTorch's multiplies r by the product with W_recur; its update gate is 1 - u."""
    torch, (F, H, T, N) = pytest.importorskip("torch"), (3, 5, 6, 2)
    x, W, U, b, *states = operands(cell, F, H, T, N)
    first = H if cell == "gru" else 0  # the first row that both have
    W[:first], U[:first], b[:first] = 0, 0, 50

    def permute(w: Any) -> Any:
        """Exchange gates g and o, an exchange that is its own inverse."""
        gates = np.split(w, len(order))
        return np.concatenate([gates[k] * sign for k, sign in zip(order, signs, strict=True)])

    def by_step(z: Any) -> Any:
        return z.reshape(len(z), T, N).transpose(1, 2, 0)[:: -1 if reverse else 1].copy()

    net = getattr(torch.nn, cell.upper())(F, H).double()
    for parameter, w in zip(net.parameters(), (W, U, b[:, 0], 0 * b[:, 0]), strict=True):
        parameter.data = torch.tensor(permute(w))
    given, initial = torch.tensor(by_step(x), requires_grad=True), [torch.tensor(s.T.copy())[None] for s in states]
    y, _ = net(given, tuple(initial) if cell == "lstm" else initial[0])
    e = np.random.default_rng(1).normal(size=(H, T * N))
    y.backward(torch.tensor(by_step(e)))
    tensors = [cpu.array(z, "float64") for z in (x, W, U, b, *states)]
    tree = getattr(cpu, cell)(*tensors, steps=T, reverse=reverse)
    np.testing.assert_allclose(by_step(tree.get()), y.detach(), rtol=1e-9)
    dx, *found = Autodiff(tree, cpu, cpu.array(e, "float64")).get_grad_asnumpyarray(tensors)
    np.testing.assert_allclose(by_step(dx), given.grad, rtol=1e-9, atol=1e-12)
    for dw, parameter in zip(found[:3], net.parameters(), strict=False):
        expected = permute(parameter.grad.numpy().reshape(dw.shape))
        np.testing.assert_allclose(dw[first:], expected[first:], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 3}, "expected steps that divide the 8 columns of x, got 3"),
        ({"steps": 0}, "expected steps that divide the 8 columns of x, got 0"),
        ({"activation": "softmax"}, "expected as activation one of tanh, sig, relu, identity, got 'softmax'"),
        ({"gate_activation": "exp"}, "expected as gate_activation one of tanh, sig, relu, identity, got 'exp'"),
        (
            {"steps": 2},
            r"expected W_input, W_recur, b and the initial states of shapes \(8, 3\), \(8, 2\), \(8, 1\), \(2, 4\), "
            r"\(2, 4\), got \(8, 3\), \(8, 2\), \(8, 1\), \(2, 2\), \(2, 2\)",
        ),
    ],
)
def test_operands_that_do_not_fit_are_an_error(be: Backend, change: dict[str, Any], message: str) -> None:
    tensors = [be.array(x) for x in operands("lstm")]
    with pytest.raises(ValueError, match=rf"be\.lstm\(.*{message}"):
        be.lstm(*tensors, **{"steps": 4, **change})


def test_a_backward_op_expects_the_result_and_its_error(be: Backend) -> None:
    x, *rest = (be.array(x) for x in (np.ones((2, 6)), np.ones((2, 8)), *operands("rnn")))
    pairs = rest.pop()
    while rest:
        pairs = be.build("pair", rest.pop(), pairs)
    with pytest.raises(ValueError, match=r"expected the result and its error of the shape \(2, 8\), got \(2, 8\) and"):
        be.build("rnn_backward", x, pairs, steps=4, reverse=False, activation="tanh")


@every_cell
def test_16_bit_floats_are_computed_in_float32(be: Backend, cell: str) -> None:
    if "float16" not in be.runtime.dtypes:
        pytest.skip("no float16")
    xs, attrs = [x.astype("float16") for x in operands(cell, T=8)], {"steps": 8, "reverse": False, **names(cell)}
    found = getattr(be, cell)(*(be.array(x, "float16") for x in xs), **attrs).get()
    expected = OPS[cell].run(np, *(x.astype("float32") for x in xs), **attrs)
    assert found.dtype == "float16"
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
