"""How backends end: what is freed when one is closed or no longer referred to, and at the end of the process."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from helpers.runtimes import RUNTIMES

import neonlite as nl
from neonlite import Autodiff, Backend, gen_backend
from neonlite.data import ArrayIterator
from neonlite.initializers import Gaussian
from neonlite.layers import Affine
from neonlite.models import Model
from neonlite.optimizers import Adam
from neonlite.transforms import CrossEntropyMulti, Softmax

# --- several runtimes ----------------------------------------------------------------------------------------------


def test_cleaning_up_one_backend_leaves_the_others():
    for name in RUNTIMES:
        one, two = Backend(name), Backend(name)
        x, y = one.ones((2, 2)), two.ones((2, 2))
        one.cleanup_backend()
        one.cleanup_backend()  # twice does no harm
        assert (y + y).asnumpyarray().sum() == 8
        assert x.get().sum() == 4
        with pytest.raises(RuntimeError, match="closed by cleanup_backend"):
            one.compound_dot(x, x, x)


def test_a_backend_that_was_cleaned_up_and_that_nobody_holds_is_let_go():
    closed = {}
    for name in RUNTIMES:
        be = Backend(name)
        x = be.ones((3, 3))
        Autodiff(be.exp(x) * x, be).get_grad_asnumpyarray(x)
        closed[name] = weakref.ref(be)
        be.cleanup_backend()
    del be, x
    gc.collect()
    assert {name: ref() for name, ref in closed.items()} == dict.fromkeys(RUNTIMES)


def used(name: str) -> Backend:
    """Return a backend with all that it keeps: plans, structures, an arena, workspaces, primitives."""
    be = Backend(name, batch_size=4)
    x = be.array(np.ones((300, 300)))
    tree = be.sum(be.exp(x) * x, axis=0) @ x
    Autodiff(tree, be).get_grad_asnumpyarray(x)
    layer = be.conv_layer("float32", 4, 3, 8, 1, 6, 6, 1, 3, 3)
    be.fprop_conv(layer, be.ones(layer.dimI2), be.ones(layer.dimF2), be.empty(layer.dimO2))
    pool = be.pool_layer("float32", "max", 4, 8, 1, 4, 4, 1, 1, 2, 2)
    be.fprop_pool(pool, be.ones(pool.dimI2), be.empty(pool.dimO2), be.empty(pool.dimO2, dtype="uint8"))
    be.take(x, [0, 1], axis=0).get()
    be.rand((3, 3)).get()
    be.compile([x], [x + 1])()
    return be


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_backend_that_is_dropped_without_being_cleaned_up_is_let_go(name):
    backends = [weakref.ref(used(name)) for _ in range(5)]
    gc.collect()
    assert [ref() for ref in backends] == [None] * 5


def test_a_current_backend_and_a_model_that_are_dropped_are_let_go():
    be = gen_backend("cpu", rng_seed=1, batch_size=8)
    X, y = np.ones((16, 5), np.float32), np.zeros(16, int)
    model = Model([Affine(3, Gaussian(), activation=Softmax())])
    model.fit(ArrayIterator(X, y, nclass=3), CrossEntropyMulti(), Adam(), 1)
    gone = weakref.ref(be), weakref.ref(model)
    nl.NervanaObject.be = None
    del be, model
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_what_a_thread_keeps_goes_when_it_ends_and_what_others_keep_stays():
    be = Backend("cpu")
    x = be.ones((500, 500))

    def work() -> None:
        (be.sum(be.exp(x) * x, axis=0) @ x).get()

    work()
    alone = be.memory().arena + be.memory().workspaces
    assert alone > 0
    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert be.memory().arena + be.memory().workspaces == alone
    be.cleanup_backend()
    assert be.memory().arena + be.memory().workspaces == 0


@pytest.mark.long
def test_the_end_of_python_is_quiet():
    code = f"""
import neonlite as nl
backends = [nl.Backend(name) for name in {RUNTIMES!r}] + [nl.gen_backend({RUNTIMES[-1]!r})]
kept = [(be.ones((600, 600)) * 2 + 1).astensor() for be in backends]
import atexit
atexit.register(lambda: print("still read:", *[x.get()[0, 0] for x in kept]))
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == ""
    assert run.stdout.split() == ["still", "read:", *["3.0"] * (len(RUNTIMES) + 1)]
