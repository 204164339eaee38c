"""Random programs and networks of image layers, to compare the results of libraries with those of NumPy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import reject

from neonlite import Autodiff, Backend, NervanaObject, jit
from neonlite.backend.runtimes.numpy import NumPyPrimitives
from neonlite.backend.tensor import Tensor
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import (
    Activation,
    BatchNorm,
    Conv,
    Deconv,
    Dropout,
    MergeBroadcast,
    MergeSum,
    Pooling,
    Sequential,
    SkipNode,
)
from neonlite.transforms import Logistic, Rectlin, Tanh

N = 2


def plain() -> Backend:
    """Return a backend whose primitives are NumPy's."""
    be = Backend("cpu", rng_seed=1, batch_size=N)
    be.primitives = NumPyPrimitives(be.runtime)
    be._executor = be.runtime.executor(be.runtime, be.primitives)
    return be


BIG, DEEP, SMALL, THIN = (4, 6, 6), (16, 3, 3), (8, 3, 3), (4, 3, 3)
CONVOLUTIONS = [
    (BIG, BIG, {"C": 4, "K": 4, "H": 6, "W": 6, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1}),
    (BIG, SMALL, {"C": 4, "K": 8, "H": 6, "W": 6, "R": 2, "S": 2, "str_h": 2, "str_w": 2}),
    (SMALL, SMALL, {"C": 8, "K": 8, "H": 3, "W": 3}),
    (DEEP, DEEP, {"C": 16, "K": 16, "H": 3, "W": 3}),  # as many elements as BIG, in another shape
]
ROWS = 4 * 6 * 6 + 30  # of a memory, a range of which holds images


class Machine:
    """Some memories of a backend, and the actions of random programs on parts of them, chosen by a seed."""

    def __init__(self, be: Backend) -> None:
        self.be = be
        numbers = np.random.default_rng(0).integers(-2, 3, (3, ROWS, N))
        self.memories = [be.array(x) for x in numbers]
        self.seen: dict[Any, Tensor] = {}
        self.arrays: list[Any] = []
        self.compiled: list[Any] = []
        self.argmax = [be.zeros((9 * 4, N), "uint8") for _ in range(2)]
        self.layers = [be.conv_layer("float32", N, **sizes) for *_, sizes in CONVOLUTIONS]
        self.pools = {op: be.pool_layer("float32", op, N, C=4, H=6, W=6, R=2, S=2) for op in ("max", "avg")}
        self.pooled = False

    def part(self, rng: Any, shape: tuple[int, ...], among: int = 3) -> Tensor:
        """Return images in a memory, most often from its first row on, with two or four axes."""
        memory, rows = int(rng.integers(among)), int(np.prod(shape))
        start = int(rng.choice([0, 0, 0, 1, ROWS - rows]))
        wide = bool(rng.integers(2))
        key = memory, start, shape, wide
        if key not in self.seen or rng.integers(2):
            part = self.memories[memory][start : start + rows]
            self.seen[key] = part.reshape((*shape, N)) if wide else part
        return self.seen[key]

    def filters(self, rng: Any, n: int) -> Tensor:
        return self.be.array(rng.integers(-1, 2, self.layers[n].dimF2))

    def conv(self, rng: Any) -> None:
        n = int(rng.integers(len(CONVOLUTIONS)))
        small, large, _ = CONVOLUTIONS[n]
        bias = self.be.array(rng.integers(-1, 2, (large[0], 1))) if rng.integers(2) else None
        beta = float(rng.choice([0, 0, 1]))
        alpha = float(rng.choice([1, 1, 2]))
        I, O = self.part(rng, small), self.part(rng, large)
        more = {"bias": bias, "relu": bool(rng.integers(2)), "alpha": alpha, "beta": beta}
        self.be.fprop_conv(self.layers[n], I, self.filters(rng, n), O, **more)

    def bprop_conv(self, rng: Any) -> None:
        n = int(rng.integers(len(CONVOLUTIONS)))
        small, large, _ = CONVOLUTIONS[n]
        E, D = self.part(rng, large), self.part(rng, small)
        self.be.bprop_conv(self.layers[n], self.filters(rng, n), E, D, beta=float(rng.choice([0, 0, 1])))

    def update(self, rng: Any) -> None:
        n = int(rng.integers(len(CONVOLUTIONS)))
        small, large, _ = CONVOLUTIONS[n]
        U, b = self.be.zeros(self.layers[n].dimF2), self.be.zeros((large[0], 1))
        self.be.update_conv(self.layers[n], self.part(rng, small), self.part(rng, large), U, grad_bias=b)
        target = self.memories[int(rng.integers(3))]
        target[: large[0], :1] = b
        target[:8, 1:] = U[:8, :1]

    def pool(self, rng: Any) -> None:
        op = str(rng.choice(["max", "avg"]))
        I, O = self.part(rng, BIG), self.part(rng, THIN)
        self.be.fprop_pool(self.pools[op], I, O, self.argmax[0] if op == "max" else None)
        self.pooled |= op == "max"

    def bprop_pool(self, rng: Any) -> None:
        op = str(rng.choice(["max", "avg"])) if self.pooled else "avg"
        E, D = self.part(rng, THIN), self.part(rng, BIG)
        more = {"argmax": self.argmax[0]} if op == "max" else {}
        self.be.bprop_pool(self.pools[op], None, E, D, **more)

    def ops(self, rng: Any) -> None:
        shape = [BIG, SMALL][int(rng.integers(2))]
        x, y = self.part(rng, shape), self.part(rng, shape)
        out = x if rng.integers(2) else self.part(rng, shape)
        be, (x, y, out) = self.be, (t.reshape(-1, N) for t in (x, y, out))
        trees: list[Callable[[], Any]] = [
            lambda: be.maximum(x, 0),
            lambda: x * (y > 0),
            lambda: x + y,
            lambda: x - 2 * y,
            lambda: be.flip(x, axis=0) if hasattr(be, "flip") else x + 1,
            lambda: x + be.sum(y, axis=1) * 0,
            lambda: x + y[:1, :1],
        ]
        out[:] = trees[int(rng.integers(len(trees)))]()

    def trees(self, rng: Any) -> None:
        """Evaluate op-trees with convolutions and poolings."""
        n, be = int(rng.integers(len(CONVOLUTIONS))), self.be
        small, large, sizes = CONVOLUTIONS[n]
        shapes = (small, large, large, small, large)
        x, e, out, dx, other = (self.part(rng, shape).reshape((*shape, N)) for shape in shapes)
        f = self.filters(rng, n).reshape((sizes["C"], sizes.get("R", 1), sizes.get("S", 1), sizes["K"]))
        options: dict[str, Any] = {"strides": sizes.get("str_h", 1), "padding": sizes.get("pad_h", 0)}
        big, pooled = self.part(rng, BIG), self.part(rng, THIN).reshape((*THIN, N))
        images = be.reshape(big, (*BIG, N))
        op = str(rng.choice(["max", "avg"]))
        z = be.conv(x, f, **options)
        (back,) = Autodiff(z, be, e).get_grad_op_tree([x])
        (unpooled,) = Autodiff(be.pool(images, 2, op), be, pooled).get_grad_op_tree([big])
        assignments: list[tuple[list[Tensor], list[Any]]] = [
            ([out], [z]),
            ([out], [be.maximum(z, 0) + e]),
            ([dx], [back]),
            ([dx], [back - x]),
            ([pooled], [be.pool(images, 2, op)]),
            ([big], [unpooled]),
            ([out, pooled], [z, be.pool(images, 2, op)]),
            ([out, dx], [z, back]),
            ([out, dx], [z + e, x - 1]),
            ([out, other], [z, be.maximum(z, 0)]),
            ([out], [z + x if small == large else z]),
        ]
        targets, values = assignments[int(rng.integers(len(assignments)))]
        if rng.integers(2):
            be.assign(targets, values)
        else:
            self.compiled.append(be.compile(targets, values))
            self.compiled[-1]()

    def two(self, rng: Any) -> None:
        x, y, z = (self.part(rng, BIG).reshape(-1, N) for _ in range(3))
        self.be.assign([x, y], [x + z, self.be.minimum(z, y)])

    def compile(self, rng: Any) -> None:
        if not self.compiled or rng.integers(2):
            x, y = (self.part(rng, BIG).reshape(-1, N) for _ in range(2))
            self.compiled.append(self.be.compile([x], [self.be.maximum(x, y)]))
        self.compiled[int(rng.integers(len(self.compiled)))]()

    def product(self, rng: Any) -> None:
        memory, out = (self.memories[int(n)] for n in rng.integers(3, size=2))
        W = self.be.array(rng.integers(-1, 2, (20, 20)))
        self.be.compound_dot(W, memory[:20], out[:20] if rng.integers(2) else out[5:25], beta=float(rng.integers(2)))

    def write(self, rng: Any) -> None:
        memory = self.memories[int(rng.integers(3))]
        start = int(rng.integers(ROWS))
        target = memory[start :: int(rng.integers(1, 3))] if rng.integers(2) else memory[:, :1]
        target[:] = float(rng.integers(-2, 3)) if rng.integers(2) else rng.integers(-2, 3, target.shape)

    def draw(self, rng: Any) -> None:
        self.be.make_binary_mask(self.part(rng, BIG), 0.5)

    def export(self, rng: Any) -> None:
        """Export a memory to NumPy, and write to it through NumPy now and later."""
        if not self.arrays or rng.integers(2):
            part = self.part(rng, BIG)
            self.arrays.append(np.asarray(part) if rng.integers(2) else np.from_dlpack(part))
        array: Any = self.arrays[int(rng.integers(len(self.arrays)))]
        array[...] = np.clip(array + 1, -3, 3)

    def deepcopy(self, rng: Any) -> None:
        self.memories[0] = copy.deepcopy(self.memories[int(rng.integers(3))])
        self.seen = {key: t for key, t in self.seen.items() if key[0]}

    def read(self, rng: Any) -> Any:
        """Return the values of some part."""
        part = self.part(rng, [BIG, SMALL, THIN][int(rng.integers(3))])
        ways = [
            Tensor.get,
            lambda t: np.array(t, copy=True),
            lambda t: self.be.sum(t).asnumpyarray(),
            lambda t: t.T[:, :9].get(),
        ]
        return ways[int(rng.integers(len(ways)))](part)


def near(got: Any, wanted: Any) -> None:
    tolerance = 1e-5 * max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance)


COMMON = [
    "conv",
    "conv",
    "bprop_conv",
    "update",
    "pool",
    "bprop_pool",
    "ops",
    "ops",
    "trees",
    "trees",
    "two",
    "compile",
]
ACTS = [*COMMON, "product", "write", "draw", "deepcopy", "read", "export"]
PARTS: dict[str, Callable[[], Any]] = {
    "conv": lambda: Conv((3, 3, 4), Gaussian(0.0, 0.3), padding=1, bias=Constant(0.1), activation=Rectlin()),
    "strided": lambda: Conv((3, 3, 6), Gaussian(0.0, 0.3), strides=2, padding=1),
    "normed": lambda: Conv((3, 3, 5), Gaussian(0.0, 0.3), padding=1, batch_norm=True, activation=Rectlin()),
    "deconv": lambda: Deconv((2, 2, 3), Gaussian(0.0, 0.3), bias=Constant(0.1), activation=Tanh()),
    "max": lambda: Pooling(2, strides=1),
    "avg": lambda: Pooling(2, op="avg", strides=1),
    "dropout": lambda: Dropout(0.7),
    "leaky": lambda: Activation(Rectlin(slope=0.1)),
    "logistic": lambda: Activation(Logistic()),
    "norm": lambda: BatchNorm(),
    "normed 16": lambda: Conv((3, 3, 16), Gaussian(0.0, 0.3), padding=1, batch_norm=True, activation=Rectlin()),
    "residual": lambda: MergeSum([Conv((3, 3, 4), Gaussian(0.0, 0.3), padding=1), Conv((1, 1, 4), Gaussian(0.0, 0.3))]),
    "skip": lambda: MergeSum([Sequential([BatchNorm(), Activation(Rectlin())]), SkipNode()]),
    "inception": lambda: MergeBroadcast(
        [Conv((1, 1, 3), Gaussian(0.0, 0.3), activation=Rectlin()), Pooling(3, strides=1, padding=1)], merge="depth"
    ),
}


def trained(be: Backend, parts: list[str]) -> list[Any]:
    """Return what a network computes in two steps, as programs: outputs, errors, gradients; and then for inference."""
    NervanaObject.be = be
    net = Sequential([Conv((1, 1, 4), Gaussian(0.0, 0.3)), *(PARTS[part]() for part in parts)])
    try:
        net.configure((3, 9, 9))
    except ValueError:  # the images are too small
        reject()
    net.allocate_parameters()

    @jit
    def step(x: Any, e: Any) -> list[Any]:
        y = net(x, training=True)
        return [y, *Autodiff(y, be, e).get_grad_op_tree([x, *net.parameters])]

    rng, results = np.random.default_rng(5), []
    x, y = be.zeros((3 * 81, N)), net(be.zeros((3 * 81, N)))
    for _ in range(2):
        x[:] = rng.standard_normal(x.shape)
        results += [t.get() for t in step(x, be.array(rng.standard_normal(y.shape)))]
    return [*results, net(x).get()]
