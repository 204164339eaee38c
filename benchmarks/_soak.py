"""Soak test: one process that repeatedly changes shapes, models and backends, and prints its resident memory as JSON.

python benchmarks/_soak.py RUNTIME SECONDS SEED CACHED_PRIMITIVES, run by ``survival.py``.
"""

from __future__ import annotations

import gc
import json
import math
import random
import sys
import threading
import time
from typing import Any

import numpy as np
from _trainings import resident

from neonlite import Autodiff, Backend, NervanaObject, gen_backend
from neonlite.backend.runtimes.onednn import bindings
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant, Kaiming
from neonlite.layers import LSTM, Affine, BatchNorm, Conv, Dropout, Pooling, RecurrentLast
from neonlite.models import Model
from neonlite.optimizers import Adam
from neonlite.transforms import Accuracy, CrossEntropyMulti, Logistic, Rectlin, Softmax, Tanh

SAMPLES = 240  # of the resident memory, in the given time
# 4800 in 20 minutes, after which the caches are full also on a busy machine; at least as many as fill that of the plans
WARM_UP_TASKS_PER_SECOND, MIN_WARM_UP_TASKS = 4, 600
CLASSES = 3


def op_trees(be: Backend, rng: random.Random) -> None:
    """Evaluate an op-tree of new shapes, and its gradient."""
    n, m = rng.randrange(1, 400), rng.randrange(1, 400)
    x, w = be.randn((n, m)).astensor(), be.ones((m, rng.randrange(1, 60)), name="w")
    y = x
    for _ in range(rng.randrange(1, 12)):
        y = be.tanh(y * rng.random()) + rng.choice([x, y, 0.5])
    cost = be.sum(be.square(y @ w), axis=None)
    w -= 1e-3 * Autodiff(cost, be).get_grad_op_tree(w)
    assert np.isfinite(float(cost))


def large_tree(be: Backend, rng: random.Random) -> None:
    """Evaluate an op-tree of thousands of nodes."""
    x, y = be.ones((3, 3)), be.ones((3, 3))
    tree = x
    for _ in range(rng.randrange(1000, 4000)):
        tree = tree + y
    tree.get()


def network(rng: random.Random) -> tuple[list[Any], tuple[int, ...]]:
    """Return new layers of random sizes, and the shape of an input."""
    weights, out = Kaiming(), Affine(CLASSES, Kaiming(), Constant(0), activation=Softmax())
    size, side = rng.randrange(4, 80), rng.randrange(6, 14)
    kind = rng.choice(["dense", "images", "sequences"])
    if kind == "dense":
        return [Affine(size, weights, activation=Rectlin(), batch_norm=True), Dropout(0.8), out], (1, side, side)
    if kind == "images":
        conv = Conv((3, 3, rng.randrange(2, 20)), weights, activation=Rectlin())
        return [conv, BatchNorm(), Pooling(2), out], (1, side, side)
    return [LSTM(size, weights, activation=Tanh(), gate_activation=Logistic()), RecurrentLast(), out], (side, size)


def train(be: Backend, rng: random.Random) -> None:
    """Train a new model of random sizes for an epoch, evaluate it, and predict."""
    layers, shape = network(rng)
    be.bsz = rng.randrange(2, 64)
    data_rng = np.random.default_rng(rng.randrange(1 << 30))
    rows = be.bsz * 3
    X, y = data_rng.normal(size=(rows, int(np.prod(shape)))).astype(np.float32), data_rng.integers(0, CLASSES, rows)
    if len(shape) == 2:
        from neonlite.data import NervanaDataIterator

        class Sequences(NervanaDataIterator):
            ndata, nbatches = rows, 3

            def __init__(self) -> None:
                super().__init__("sequences")
                self.shape = shape

            def reset(self) -> None: ...

            def __iter__(self) -> Any:
                t = np.eye(CLASSES)[:, y[: be.bsz]]
                for k in range(3):
                    x = X[k * be.bsz : (k + 1) * be.bsz].reshape(be.bsz, *shape).transpose(1, 2, 0)
                    yield be.array(x.reshape(shape[0], -1)), be.array(t)

        data: Any = Sequences()
    else:
        data = ArrayIterator(X, y, nclass=CLASSES, lshape=shape)
    model = Model(layers)
    model.fit(data, CrossEntropyMulti(), Adam(), 1)
    if len(shape) == 3:
        model.eval(data, Accuracy())


def new_backend(runtime: str, rng: random.Random) -> None:
    """Use a new backend and delete it, or let gen_backend close the current one."""
    dtype = rng.choice(["float32", "float64"])
    be = Backend(runtime, rng_seed=1, default_dtype=dtype)
    op_trees(be, rng)
    before, NervanaObject.be = NervanaObject.be, be
    try:
        train(be, rng)
    finally:
        NervanaObject.be = before
    if rng.random() < 0.2:
        be.cleanup_backend()


def in_a_thread(be: Backend, rng: random.Random) -> None:
    """Evaluate op-trees in a thread that ends."""
    thread = threading.Thread(target=op_trees, args=(be, rng))
    thread.start()
    thread.join()


def main(runtime: str, seconds: float, seed: int, cached_primitives: int) -> None:
    """Run random tasks, and print samples of the resident memory, the time of the warm-up, and the number of each task.

    The warm-up is the first third of the seconds; it takes longer if the machine is too slow for its number of tasks.
    With few ``cached_primitives``, a short warm-up also fills the cache of oneDNN's primitives.
    """
    bindings.primitives.capacity = cached_primitives
    rng, done, seen = random.Random(seed), dict[str, int](), list[tuple[float, int]]()
    be = gen_backend(runtime, rng_seed=1)
    tasks = [op_trees] * 12 + [train] * 4 + [in_a_thread, large_tree]
    warm_up_tasks = max(WARM_UP_TASKS_PER_SECOND * seconds, MIN_WARM_UP_TASKS)
    start, warm_up, end = time.monotonic(), 0.0, math.inf
    while (now := time.monotonic() - start) < end:
        if not warm_up and now >= seconds / 3 and sum(done.values()) >= warm_up_tasks:
            warm_up, end = now, now + seconds * 2 / 3
        if rng.random() < 0.1:
            new_backend(runtime, rng)
            done["new_backend"] = done.get("new_backend", 0) + 1
        elif rng.random() < 0.01:
            be = gen_backend(
                runtime, rng_seed=1, datatype="float64" if be.default_dtype_name == "float32" else "float32"
            )
            done["gen_backend"] = done.get("gen_backend", 0) + 1
        else:
            task = rng.choice(tasks)
            task(be, rng)
            done[task.__name__] = done.get(task.__name__, 0) + 1
        if now * SAMPLES >= len(seen) * seconds:
            gc.collect()
            seen.append((round(now, 1), resident()))
    print(json.dumps({"seen": seen, "warm_up": warm_up, "done": done}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
