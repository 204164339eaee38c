"""Frequent mistakes with layers: the error names the layer, what was expected, what it got, and how to fix it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from neonlite import gen_backend
from neonlite.initializers import Gaussian
from neonlite.layers import Affine, Conv, GeneralizedCost, Linear, MergeBroadcast, MergeSum, Pooling, Sequential
from neonlite.transforms import CrossEntropyMulti, Softmax, SumSquared

init = Gaussian()


def evaluate_cost(cost: Any, activation: Any, rows: int) -> None:
    """Evaluate a cost of a network with three outputs for targets of ``rows`` rows."""
    be = gen_backend("cpu", batch_size=4)
    net = Sequential(Affine(3, init, activation=activation, name="fc")).configure(5)
    net.allocate()
    loss = GeneralizedCost(cost, name="loss")
    loss.initialize(net)
    loss.get_cost(net.fprop(be.zeros((5, 4))), be.zeros((rows, 4)))


def network(*layers: Any) -> Any:
    return Sequential(layers, name="net")


def image(size: int, name: str, **more: Any) -> Any:
    return Conv((size, size, 2), init, name=name, **more)


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: Affine(0, init, name="fc"), "fc: expected an integer >= 1 for nout, got 0"),
    (lambda: network(image(5, "cv")).configure((1, 3, 3)), "cv: a window of 5 .* larger than 3.*Use a smaller window"),
    (lambda: network(image(3, "cv", strides=0)).configure((1, 8, 8)), "cv: expected an integer >= 1 for str_h, got 0"),
    (lambda: Pooling(5, name="pl").configure((1, 3, 3)), "pl: a window of 5 .* is larger than 3.*Use a smaller window"),
    (
        lambda: network(Linear(9, init), image(3, "cv")).configure(5),
        r"cv: expected images .* input shape 9. Put Reshape",
    ),
    (
        lambda: MergeBroadcast([image(1, "a"), image(3, "b")], "depth", name="side").configure((1, 8, 8)),
        r"side: .* images of the same size, got a \(2, 8, 8\), b \(2, 6, 6\) .* Adjust their padding",
    ),
    (
        lambda: MergeSum([Linear(3, init, name="a"), Linear(4, init, name="b")], name="plus").configure(5),
        "plus: .* the same shape, got a 3, b 4 .* Linear changes the shape",
    ),
    (
        lambda: network(Linear(3, init, name="a")).configure(5).set_seq_len(3),
        r"a: expected inputs with time steps \(F, T\), got the input shape 5",
    ),
    (
        lambda: evaluate_cost(SumSquared(), None, 2),
        r"loss, at fc 3: .* the same shape \(F, N\), got fc.outputs \(3, 4\), .*\(2, 4\)",
    ),
    (
        lambda: evaluate_cost(CrossEntropyMulti(), Softmax(), 1),
        r"loss, at fc_Softmax 3: .* with be.onehot\(labels, axis=0, nclass=F\)",
    ),
    (
        lambda: network(Linear(3, init, name="a"), Linear(4, init, name="a")),
        "net: expected unique layer names, got a twice. Pass name=",
    ),
]


@pytest.mark.parametrize(("act", "words"), MISTAKES, ids=[str(i) for i in range(len(MISTAKES))])
def test_an_error_names_the_layer_and_the_way_out(act, words):
    gen_backend("cpu", batch_size=4)
    with pytest.raises(ValueError, match=words):
        act()
