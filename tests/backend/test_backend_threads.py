"""Several runtimes in one process, and several threads in one backend."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from helpers.runtimes import RUNTIMES

from neonlite import Autodiff, Backend

# --- several runtimes ----------------------------------------------------------------------------------------------


def test_all_runtimes_work_together_in_one_process():
    backends = [Backend(name, rng_seed=3) for name in RUNTIMES]
    values = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    tensors = [be.array(values, name=f"x_{be.name}") for be in backends]
    for _ in range(3):
        found = []
        for be, x in zip(backends, tensors, strict=True):
            tree = be.tanh(be.dot(x, x.T)) + be.rand(4, 4)
            y = be.empty((4, 4))
            y[:] = tree
            found.append((y.get(), Autodiff(tree, be).get_grad_asnumpyarray(x)))
        for y, dx in found[1:]:
            np.testing.assert_allclose(y, found[0][0], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(dx, found[0][1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("first", RUNTIMES)
def test_tensors_of_two_backends_do_not_mix_and_are_copied_across(first):
    for second in RUNTIMES:
        one, two = Backend(first), Backend(second)
        x, y = one.array([[1.0, 2.0]], name="x"), two.array([[3.0, 4.0]], name="y")
        layer = one.conv_layer("float32", 1, 1, 1, W=2)
        for mix in (
            lambda x=x, y=y: x + y,
            lambda x=x, y=y: x.__setitem__(slice(None), y),
            lambda x=x, y=y: x.__setitem__(slice(None), y * 2),
            lambda one=one, x=x, y=y: one.compound_dot(x, y.T, one.empty((1, 1))),
            lambda two=two, x=x, layer=layer: two.fprop_conv(layer, x, x, x),
            lambda two=two, y=y, layer=layer: two.fprop_conv(layer, y, y, y),
        ):
            with pytest.raises(ValueError, match=r"expected .*<backend \w+ \d+>|belong to different backends"):
                mix()
        np.testing.assert_array_equal((x + one.array(y)).asnumpyarray(), [[4, 6]])
        np.testing.assert_array_equal(x.get(), [[1, 2]])


# --- several threads -----------------------------------------------------------------------------------------------


def random_tree(be, leaves, rng):
    """Return a random op-tree over leaves of one shape, and the function of NumPy arrays that it is."""
    ops = [
        (lambda be, a, b: a + b, lambda a, b: a + b),
        (lambda be, a, b: a * b, lambda a, b: a * b),
        (lambda be, a, b: be.maximum(a, b), np.maximum),
        (lambda be, a, b: be.tanh(a) - b, lambda a, b: np.tanh(a) - b),
        (lambda be, a, b: a - be.mean(b, axis=1), lambda a, b: a - b.mean(axis=1, keepdims=True)),
        (lambda be, a, b: be.dot(a, b.T * 0.1), lambda a, b: a @ (b.T * 0.1)),
    ]
    pool = [(x, x.get().astype(np.float64)) for x in leaves]
    for _ in range(int(rng.integers(2, 7))):
        (a, u), (b, v) = (pool[int(rng.integers(len(pool)))] for _ in range(2))
        build, work = ops[int(rng.integers(len(ops)))]
        pool.append((build(be, a, b), work(u, v)))
    return pool[-1]


@pytest.mark.long
@pytest.mark.parametrize("name", RUNTIMES)
def test_eight_threads_evaluate_random_trees_in_one_backend(name):
    be = Backend(name, rng_seed=1)
    count = 200 if name in ("cpu", "mkl") else 50
    errors: list[BaseException] = []
    barrier = threading.Barrier(8)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            barrier.wait()
            for _ in range(count):
                n = int(rng.integers(1, 5))
                leaves = [be.array(rng.uniform(-1, 1, (n, n))) for _ in range(2)]
                tree, expected = random_tree(be, leaves, rng)
                out = be.empty((n, n))
                out[:] = tree
                np.testing.assert_allclose(out.get(), expected, rtol=1e-3, atol=1e-4)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("name", RUNTIMES)
def test_threads_share_primitives_and_large_trees(name):
    be = Backend(name)
    layer = be.conv_layer("float32", 2, 3, 4, 1, 6, 5, 1, 3, 3, pad_h=1, pad_w=1)
    rng = np.random.default_rng(0)
    f = be.array(rng.standard_normal(layer.dimF2))
    images = [be.array(rng.standard_normal(layer.dimI2)) for _ in range(4)]
    large = [be.array(rng.standard_normal((700, 500))) for _ in range(4)]
    alone = [be.fprop_conv(layer, x, f, be.empty(layer.dimO2)).get() for x in images]
    sums = [be.sum(be.tanh(x) * x, axis=1).asnumpyarray() for x in large]
    found: dict[int, list[np.ndarray]] = {}

    def work(i: int) -> None:
        out, row = be.empty(layer.dimO2), be.empty((700, 1))
        for _ in range(10):
            be.fprop_conv(layer, images[i], f, out)
            row[:] = be.sum(be.tanh(large[i]) * large[i], axis=1)
        found[i] = [out.get(), row.get()]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        np.testing.assert_array_equal(found[i][0], alone[i])
        np.testing.assert_array_equal(found[i][1], sums[i])
