"""Hashes of results, to show that a change of the code changes no bit: op-trees, primitives and trained networks.

python benchmarks/golden.py hashes.json            # write the hashes of this checkout
python benchmarks/golden.py hashes.json --check    # compare; exit code 1 if any hash differs

Hashes depend on the CPU and on the versions of the libraries: write and compare on one machine, with one environment.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from neonlite import Autodiff, gen_backend
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant, Gaussian, GlorotUniform
from neonlite.layers import (
    GRU,
    LSTM,
    Affine,
    BatchNorm,
    BiLSTM,
    Conv,
    Deconv,
    Dropout,
    MergeSum,
    Pooling,
    Recurrent,
    RecurrentSum,
    Sequential,
    SkipNode,
)
from neonlite.models import Model, zoo
from neonlite.optimizers import Adam, GradientDescentMomentum, RMSProp
from neonlite.transforms import CrossEntropyMulti, Logistic, MeanSquared, Rectlin, Softmax, Tanh

RUNTIMES = ["cpu", *(name for name, module in {"mkl": "mkl", "torch": "torch"}.items() if find_spec(module)), "strict"]
UNARY = [
    "exp",
    "tanh",
    "sig",
    "square",
    "sqrt",
    "fabs",
    "log",
    "sgn",
    "safelog",
    "absolute",
    "negative",
    "reciprocal",
    "exp2",
    "log2",
    "rint",
    "finite",
]
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "greater", "less", "equal"]
REDUCTIONS = ["sum", "max", "min", "mean", "var", "std", "argmax"]


def digest(*arrays: Any) -> str:
    """Return a hash of the bytes, shapes and dtypes of some arrays."""
    parts = hashlib.sha256()
    for array in map(np.ascontiguousarray, arrays):
        parts.update(f"{array.shape}{array.dtype}".encode() + array.tobytes())
    return parts.hexdigest()[:16]


def op_tree(be: Any, seed: int) -> tuple[Any, list[Any]]:
    """Return a random op-tree and its tensors."""
    rng = np.random.default_rng(seed)
    shape = [(7, 5), (64, 33), (300, 200)][seed % 3]
    tensors = [
        be.array(rng.uniform(0.5, 2, s).astype(np.float32), name=n) for n, s in zip("xyz", (shape,) * 3, strict=True)
    ]
    trees = [*tensors, be.array(rng.uniform(0.5, 2, (shape[0], 1)).astype(np.float32), name="b")]
    for _ in range(6):
        one, other = (trees[rng.integers(len(trees))] for _ in range(2))
        kind = rng.integers(3)
        if kind == 0:
            trees.append(getattr(be, UNARY[rng.integers(len(UNARY))])(one))
        elif kind == 1:
            trees.append(getattr(be, BINARY[rng.integers(len(BINARY))])(one, other))
        else:
            trees.append(one + getattr(be, REDUCTIONS[rng.integers(5)])(one, axis=1) * 0.5)
    return trees[-1] + trees[-2], tensors


def op_trees(be: Any) -> Iterator[tuple[str, str]]:
    """Yield hashes of the values and gradients of random op-trees."""
    for seed in range(60):
        tree, tensors = op_tree(be, seed)
        gradients = Autodiff(be.sum(tree), be, allow_unused=True).get_grad_asnumpyarray(tensors)
        yield f"op-tree {seed}", digest(tree.get(), *gradients)
    for purpose in ("rand", "randn"):
        yield purpose, digest(getattr(be, purpose)((50, 70)).get())


def images() -> list[Any]:
    init = GlorotUniform()
    block = [Conv((3, 3, 8), init, padding=1, activation=Rectlin(), batch_norm=True), Pooling(2, strides=2)]
    shortcut = MergeSum([Sequential([Conv((3, 3, 8), init, padding=1, activation=Tanh())]), SkipNode()])
    return [*block, shortcut, Dropout(0.7), Affine(10, init, activation=Softmax())]


def sequence(recurrent: Callable[..., Any]) -> list[Any]:
    return [recurrent, RecurrentSum(), Affine(4, GlorotUniform(), bias=Constant(0), activation=Softmax())]


def networks() -> dict[str, tuple[Callable[[], list[Any]], tuple[int, ...], int, Any]]:
    """Return functions that build networks, with the shape of their inputs, the number of classes, and an optimizer."""
    init, gates = Gaussian(scale=0.2), {"activation": Tanh(), "gate_activation": Logistic()}
    momentum = GradientDescentMomentum(0.05, 0.9, wdecay=1e-4)
    return {
        "mlp": (lambda: zoo.mlp(nclass=10, hidden=(40, 30)), (50,), 10, momentum),
        "batch norm": (
            lambda: [Affine(30, init, batch_norm=True, activation=Rectlin()), *head(10)],
            (50,),
            10,
            RMSProp(),
        ),
        "images": (images, (3, 12, 12), 10, Adam(learning_rate=0.01)),
        "lenet": (lambda: zoo.lenet(nclass=10), (1, 16, 16), 10, momentum),
        "deconvolution": (
            lambda: [Conv((3, 3, 4), init, strides=2), Deconv((3, 3, 2), init, strides=2), BatchNorm(), *head(5)],
            (2, 9, 9),
            5,
            momentum,
        ),
        "recurrent": (lambda: sequence(Recurrent(12, init, activation=Tanh())), (6, 9), 4, momentum),
        "lstm": (lambda: sequence(LSTM(12, init, **gates, reset_cells=True)), (6, 9), 4, Adam(learning_rate=0.01)),
        "gru": (lambda: sequence(GRU(12, init, **gates, reset_cells=True)), (6, 9), 4, RMSProp()),
        "bidirectional": (lambda: sequence(BiLSTM(8, init, **gates, reset_cells=True)), (6, 9), 4, momentum),
    }


def head(nclass: int) -> list[Any]:
    return [Affine(nclass, GlorotUniform(), bias=Constant(0), activation=Softmax())]


def trainings(be: Any) -> Iterator[tuple[str, str]]:
    """Yield hashes of the weights, predictions and costs of trained networks."""
    for name, (build, shape, nclass, optimizer) in networks().items():
        rng = np.random.default_rng(len(name))
        x = rng.normal(size=(72, int(np.prod(shape)))).astype(np.float32)
        y = rng.integers(nclass, size=72)
        data = ArrayIterator(x, y, nclass=nclass, lshape=shape)
        model = Model(build())
        model.fit(data, CrossEntropyMulti(), optimizer, num_epochs=3)
        yield name, digest(*model.get_weights().values(), model.get_outputs(data))
    line = ArrayIterator(np.linspace(-1, 1, 64)[:, None], np.linspace(-3, 5, 64)[:, None], make_onehot=False)
    model = Model([Affine(8, Gaussian(), activation=Tanh()), Affine(1, Gaussian(), bias=Constant(0))])
    model.fit(line, MeanSquared(), Adam(learning_rate=0.05), num_epochs=3)
    yield "regression", digest(*model.get_weights().values(), model.get_outputs(line))


def hashes() -> dict[str, str]:
    """Return the hashes of all results, by runtime and name."""
    results = {}
    for runtime in RUNTIMES:
        be = gen_backend(runtime, rng_seed=7, batch_size=24)
        for part in (op_trees, trainings):
            results |= {f"{runtime}: {name}": value for name, value in part(be)}
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    args = parser.parse_args()
    current = hashes()
    if not args.check:
        args.file.write_text(json.dumps(current, indent=1) + "\n")
        print(f"{len(current)} hashes")
        return 0
    expected = json.loads(args.file.read_text())
    different = [name for name in expected.keys() | current.keys() if expected.get(name) != current.get(name)]
    print(f"{len(current) - len(different)} of {len(expected)} hashes agree", *sorted(different), sep="\n")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
