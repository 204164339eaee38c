"""Mistakes that are often made with layers: each is told with the layer's name, what was given, and the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from neonlite import gen_backend
from neonlite.initializers import Gaussian
from neonlite.layers import Affine, Conv, GeneralizedCost, Linear, MergeBroadcast, MergeSum, Pooling, Sequential
from neonlite.transforms import CrossEntropyMulti, Softmax, SumSquared

init = Gaussian()


def judged(cost: Any, activation: Any, rows: int) -> None:
    """Judge a network of three outputs by targets of so many rows."""
    be = gen_backend("cpu", batch_size=4)
    net = Sequential(Affine(3, init, activation=activation, name="fc")).configure(5)
    net.allocate()
    judge = GeneralizedCost(cost, name="judge")
    judge.initialize(net)
    judge.get_cost(net.fprop(be.zeros((5, 4))), be.zeros((rows, 4)))


def network(*layers: Any) -> Any:
    return Sequential(layers, name="net")


def image(size: int, name: str, **more: Any) -> Any:
    return Conv((size, size, 2), init, name=name, **more)


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: Affine(0, init, name="fc"), "fc: nout, the number of outputs, is a whole number from 1; got 0"),
    (lambda: network(image(5, "cv")).configure((1, 3, 3)), "cv: a window of 5 .* larger than 3.*use a smaller window"),
    (lambda: network(image(3, "cv", strides=0)).configure((1, 8, 8)), "cv: str_h is a whole number from 1; got 0"),
    (lambda: Pooling(5, name="pl").configure((1, 3, 3)), "pl: a window of 5 .* is larger than 3.*use a smaller window"),
    (lambda: network(Linear(9, init), image(3, "cv")).configure(5), r"cv: .* takes images .* is 9: put Reshape"),
    (
        lambda: MergeBroadcast([image(1, "a"), image(3, "b")], "depth", name="side").configure((1, 8, 8)),
        r"side: .* images of one size: see to their padding; .* a \(2, 8, 8\), b \(2, 6, 6\)",
    ),
    (
        lambda: MergeSum([Linear(3, init, name="a"), Linear(4, init, name="b")], name="plus").configure(5),
        "plus: .* one shape: .* Linear can change it; the branches end with a 3, b 4",
    ),
    (
        lambda: network(Linear(3, init, name="a")).configure(5).set_seq_len(3),
        r"a: inputs with time steps are \(F, T\); this layer has 5",
    ),
    (
        lambda: judged(SumSquared(), None, 2),
        r"judge, at fc 3: .* one shape, \(F, N\); got fc.outputs \(3, 4\), .*\(2, 4\)",
    ),
    (
        lambda: judged(CrossEntropyMulti(), Softmax(), 1),
        r"judge, at fc_Softmax 3: .*; be.onehot\(labels, axis=0, nclass=F\)",
    ),
    (
        lambda: network(Linear(3, init, name="a"), Linear(4, init, name="a")),
        "net: .*; a occurs more than once: pass name=",
    ),
]


@pytest.mark.parametrize(("act", "words"), MISTAKES, ids=[str(i) for i in range(len(MISTAKES))])
def test_a_mistake_names_the_layer_and_the_way_out(act, words):
    gen_backend("cpu", batch_size=4)
    with pytest.raises(ValueError, match=words):
        act()
