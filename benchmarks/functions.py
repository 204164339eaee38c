"""Compare functions of functions with JAX: values of 80 functions in many compositions, and times.

python benchmarks/functions.py            # ten minutes; writes results/functions.json and results/functions.md
python benchmarks/functions.py --quick    # every tenth function, short measurements; writes nothing
python benchmarks/functions.py --times    # measures the times again, and keeps the values
python benchmarks/functions.py --only linalg    # measures the values of these functions again
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from _table import RESULTS, Effort, format_duration, machine, markdown, measure, ratio, save

import neonlite as nl
from neonlite.backend.concurrency import get_num_threads
from neonlite.initializers import GlorotUniform
from neonlite.layers import Sequential, TransformerBlock
from neonlite.optimizers import GradientDescentMomentum

LIMITS = {"float32": 1e-5, "float64": 1e-10}
MAX_JAX, MAX_TORCH = 2.0, 1.0  # times, relative to jax.jit and to torch.func
FULL, QUICK = Effort(4.0, 0.02, 11), Effort(0.0, 0.002, 2)
NOTE = """\
Each function maps an array (4, 3) to an array. "error" is the largest difference from JAX, relative to the largest
element of JAX's result, over all compositions; scalar functions of the others are the sum of the squares of the result.
Compositions: grad, jvp, vjp, jacobian in both modes, hessian, vmap(f), vmap(grad), grad(vmap(f)), jacobian(grad),
grad(grad) of a sum, jvp(grad), vmap(jacobian), vmap(hessian), vmap(jvp), jit(vmap(grad)), grad(jit(f)),
vmap(vmap(grad)) and jacobian(vmap(grad)).
Times are medians of rounds, in each of which every peer runs once; "× jax.jit" and "× torch.func" are medians of the
ratios within a round. "by hand" is a training step of a perceptron 64-32-10 with minibatches of 32 rows, written with
`value_and_grad` and an update of a dict of arrays; eager, it is not compiled. Checkpoints: a compiled training step of
12 blocks of a transformer, of 64 hidden units and 4 heads over 16 texts of 32 steps, with momentum; each block is a
checkpoint, compared with the step without them."""

# --- functions, in the array API -------------------------------------------------------------------------------------

Function = Callable[[Any, Any], Any]
A = np.linspace(-0.9, 1.1, 12).reshape(4, 3)
B = np.cos(np.arange(12.0)).reshape(3, 4)
POSITIVE = np.linspace(0.2, 2.0, 12).reshape(4, 3)
ELEMENTWISE = ["exp", "expm1", "sin", "cos", "tan", "tanh", "sinh", "cosh", "atan", "asinh", "abs", "square", "sign"]
ELEMENTWISE += ["floor", "ceil", "negative", "positive"]


def functions() -> dict[str, tuple[Function, Any]]:
    """Return {name: (function of the namespace and an array, the array)}."""
    found: dict[str, tuple[Function, Any]] = {}

    def add(name: str, f: Function, at: Any = A) -> None:
        found[name] = (f, at)

    for name in ELEMENTWISE:
        add(name, lambda xp, x, name=name: getattr(xp, name)(x))
    for name in ("log", "log1p", "log2", "log10", "sqrt"):
        add(name, lambda xp, x, name=name: getattr(xp, name)(x), POSITIVE)
    add("acosh", lambda xp, x: xp.acosh(x + 1.5), POSITIVE)
    for name in ("asin", "acos", "atanh"):
        add(name, lambda xp, x, name=name: getattr(xp, name)(0.4 * x))
    add("reciprocal", lambda xp, x: 1 / x, POSITIVE)
    add("sigmoid", lambda xp, x: 1 / (1 + xp.exp(-x)))
    add("polynomial", lambda xp, x: x**3 - 2 * x**2 + 5)
    add("power", lambda xp, x: x**1.7, POSITIVE)
    add("power of itself", lambda xp, x: x**x, POSITIVE)
    add("atan2", lambda xp, x: xp.atan2(x, x * x + 1))
    add("hypot", lambda xp, x: xp.hypot(x, x + 2))
    add("logaddexp", lambda xp, x: xp.logaddexp(x, 2 * x))
    add("maximum", lambda xp, x: xp.maximum(x, 0.1 - x))
    add("minimum", lambda xp, x: xp.minimum(x, x * x))
    add("where", lambda xp, x: xp.where(x > 0, x * x, xp.sin(x)))
    add("where at a pole", lambda xp, x: xp.where(x > 0, xp.log(xp.where(x > 0, x, 1.0)), x))
    add("clip", lambda xp, x: xp.clip(x, -0.5, 0.6) * x)
    add("copysign", lambda xp, x: xp.copysign(x * x + 1, x))
    add("remainder", lambda xp, x: xp.remainder(x * 3, 0.77))
    for name in ("sum", "mean", "prod", "max", "min", "var", "std"):
        add(name, lambda xp, x, name=name: getattr(xp, name)(x))
        add(f"{name} over an axis", lambda xp, x, name=name: getattr(xp, name)(x, axis=1) * x[:, 0])
    add("logsumexp", lambda xp, x: xp.log(xp.sum(xp.exp(x - xp.max(x)), axis=0)) + xp.max(x))
    add("softmax", lambda xp, x: (lambda e: e / xp.sum(e, axis=-1, keepdims=True))(xp.exp(x)))
    add("normalized", lambda xp, x: (x - xp.mean(x, axis=0)) / (xp.std(x, axis=0) + 0.1))
    add("matmul", lambda xp, x: x @ xp.asarray(B, dtype=x.dtype))
    add("matmul of itself", lambda xp, x: x.T @ x)
    add("matrix and vector", lambda xp, x: x @ x[0])
    add("vector and vector", lambda xp, x: xp.vecdot(x[:, 0], x[:, 2]) * x)
    add("outer product", lambda xp, x: x[:, None, :] * x[None, :, :])
    add("tensordot", lambda xp, x: xp.tensordot(x, x, axes=((0,), (0,))))
    add("cumulative_sum", lambda xp, x: xp.cumulative_sum(x, axis=0) ** 2)
    add("reshape", lambda xp, x: xp.reshape(x, (2, 6)) * xp.asarray(np.arange(6.0), dtype=x.dtype))
    add("transpose", lambda xp, x: xp.permute_dims(x, (1, 0)) * x[:, 0])
    add("concat", lambda xp, x: xp.concat([x, xp.sin(x[1:])], axis=0))
    add("stack", lambda xp, x: xp.stack([x, x * x], axis=1))
    add("broadcast", lambda xp, x: xp.broadcast_to(x[:1], (5, 3)) * x[0, 0])
    add("flip", lambda xp, x: xp.flip(x, axis=0) * x)
    add("roll", lambda xp, x: xp.roll(x, 1, axis=1) * x)
    add("slice", lambda xp, x: x[1:, ::2] * x[:-1, 1:2])
    add("take", lambda xp, x: xp.take(x, xp.asarray([2, 0, 2]), axis=1) ** 2)
    add("sort", lambda xp, x: xp.sort(xp.sin(3 * x), axis=0) * x)
    add("tril", lambda xp, x: xp.tril(x) * x)
    add("repeat", lambda xp, x: xp.repeat(x, 2, axis=0) ** 2)
    add("finite differences", lambda xp, x: (x[1:] - x[:-1]) ** 2)

    def spd(xp: Any, x: Any) -> Any:
        return x.T @ x + 3 * xp.eye(3, dtype=x.dtype)

    add("linalg inv", lambda xp, x: xp.linalg.inv(spd(xp, x)))
    add("linalg det", lambda xp, x: xp.linalg.det(spd(xp, x)))
    add("linalg slogdet", lambda xp, x: xp.linalg.slogdet(spd(xp, x))[1])
    add("linalg solve", lambda xp, x: xp.linalg.solve(spd(xp, x), x.T))
    add("linalg cholesky", lambda xp, x: xp.linalg.cholesky(spd(xp, x)))
    add("linalg eigenvalues", lambda xp, x: xp.linalg.eigh(spd(xp, x))[0])
    add(
        "linalg singular values",
        lambda xp, x: xp.linalg.svd(x, full_matrices=False)[1],
        np.cos(np.arange(12.0) ** 1.5).reshape(4, 3),
    )
    add("linalg trace", lambda xp, x: xp.linalg.trace(spd(xp, x)) * x)
    add("perceptron", lambda xp, x: xp.tanh(xp.maximum(x @ xp.asarray(B, dtype=x.dtype), 0.0) @ x))
    add("Rosenbrock", lambda xp, x: xp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2))
    return found


# --- compositions, of the functions of a library ---------------------------------------------------------------------


class Neonlite:
    """The names of JAX for the functions of neonlite."""

    grad, jvp, vjp, vmap, jit = nl.grad, nl.jvp, nl.vjp, nl.vmap, nl.jit
    hessian, jacrev = nl.hessian, nl.jacobian

    @staticmethod
    def jacfwd(f: Any) -> Any:
        return nl.jacobian(f, mode="forward")


COMPOSITIONS: dict[str, Callable[[Any, Any, Any, Any, Any], Any]] = {
    "grad": lambda j, f, s, x, v: j.grad(s)(x),
    "jvp": lambda j, f, s, x, v: j.jvp(f, (x,), (v,))[1],
    "vjp": lambda j, f, s, x, v: (lambda y, pull: pull(y))(*j.vjp(f, x))[0],
    "jacobian": lambda j, f, s, x, v: j.jacrev(f)(x),
    "jacobian, forward": lambda j, f, s, x, v: j.jacfwd(f)(x),
    "hessian": lambda j, f, s, x, v: j.hessian(s)(x),
    "vmap": lambda j, f, s, x, v: j.vmap(f)(stacked(x, v)),
    "vmap(grad)": lambda j, f, s, x, v: j.vmap(j.grad(s))(stacked(x, v)),
    "grad(vmap)": lambda j, f, s, x, v: j.grad(lambda a: (j.vmap(s)(a) ** 2).sum())(stacked(x, v)),
    "jacobian(grad)": lambda j, f, s, x, v: j.jacrev(j.grad(s))(x),
    "grad(grad)": lambda j, f, s, x, v: j.grad(lambda a: (j.grad(s)(a) * v).sum())(x),
    "jvp(grad)": lambda j, f, s, x, v: j.jvp(j.grad(s), (x,), (v,))[1],
    "vmap(jacobian)": lambda j, f, s, x, v: j.vmap(j.jacrev(f))(stacked(x, v)),
    "vmap(hessian)": lambda j, f, s, x, v: j.vmap(j.hessian(s))(stacked(x, v)),
    "vmap(jvp)": lambda j, f, s, x, v: j.vmap(lambda a: j.jvp(f, (a,), (v,))[1])(stacked(x, v)),
    "jit(vmap(grad))": lambda j, f, s, x, v: j.jit(j.vmap(j.grad(s)))(stacked(x, v)),
    "grad(jit)": lambda j, f, s, x, v: j.grad(j.jit(s))(x),
    "vmap(vmap(grad))": lambda j, f, s, x, v: j.vmap(j.vmap(j.grad(s)))(stacked(stacked(x, v), stacked(v, x))),
    "jacobian(vmap(grad))": lambda j, f, s, x, v: j.jacrev(j.vmap(j.grad(s)))(stacked(x, v)),
}


def stacked(x: Any, v: Any) -> Any:
    """Return two samples: x, and one near it."""
    xp = nl.array_api if type(x).__module__.startswith("neonlite") else import_module("jax.numpy")
    return xp.stack([x, x + 0.01 * v])


def compare(name: str, f: Function, at: Any, dtype: str) -> dict[str, float]:
    """Return the error of each composition, relative to the largest element of JAX's result."""
    jax, jnp = import_module("jax"), import_module("jax.numpy")
    direction = 0.3 + 0.2 * np.sin(np.arange(at.size)).reshape(at.shape)
    errors = {}
    for label, composition in COMPOSITIONS.items():
        results = []
        for j, xp in ((Neonlite, nl.array_api), (jax, jnp)):
            x, v = (xp.asarray(values, dtype=getattr(xp, dtype)) for values in (at, direction))

            def of(a, xp=xp):
                return f(xp, a)

            def scalar(a, of=of):
                return (of(a) ** 2).sum()

            work = partial(composition, j, of, scalar)
            results.append(np.asarray(value_of((jax.jit(work) if j is jax else work)(x, v))))  # compiled at once
        ours, theirs = results
        if ours.shape != theirs.shape:
            raise ValueError(f"{name}, {label}: expected the shape {theirs.shape}, got {ours.shape}")
        size = max(1.0, float(np.abs(theirs).max(initial=0)))
        errors[label] = float(np.abs(ours - theirs).max(initial=0)) / size
    return errors


def value_of(x: Any) -> Any:
    """Return the values of an array."""
    return x.numpy() if hasattr(x, "numpy") else x


# --- times -----------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
WEIGHTS = {
    "W1": RNG.normal(size=(64, 32)) / 8,
    "b1": np.zeros(32),
    "W2": RNG.normal(size=(32, 10)) / 6,
    "b2": np.zeros(10),
}


def loss(xp: Any) -> Any:
    """Return the cost of a perceptron, in a namespace."""

    def f(p: Any, x: Any, t: Any) -> Any:
        return ((xp.tanh(x @ p["W1"] + p["b1"]) @ p["W2"] + p["b2"] - t) ** 2).mean()

    return f


def rosenbrock(x: Any) -> Any:
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


FILTERS = {
    "F1": RNG.normal(size=(6, 1, 5, 5)) / 5,
    "F2": RNG.normal(size=(16, 6, 5, 5)) / 12,
    "W1": RNG.normal(size=(256, 120)) / 16,
    "W2": RNG.normal(size=(120, 84)) / 11,
    "W3": RNG.normal(size=(84, 10)) / 9,
}


def lenet(conv: Any, pool: Any, tanh: Any, log_softmax: Any, add_up: Any) -> Any:
    """Return the cost of LeNet for one image, by the functions of a library."""

    def f(p: Any, x: Any, t: Any) -> Any:
        h = pool(tanh(conv(pool(tanh(conv(x, p["F1"]))), p["F2"]))).reshape((1, 256))
        return -add_up(t * log_softmax(tanh(tanh(h @ p["W1"]) @ p["W2"]) @ p["W3"], 1))

    return f


def gradients_of_lenet(count: int = 64) -> dict[str, Callable[[], object]]:
    """Return the gradients of LeNet for each of some images, as work of each library."""
    jax, torch, be = import_module("jax"), import_module("torch"), nl.gen_backend("cpu")
    nn = torch.nn.functional
    labels = RNG.integers(0, 10, count)
    given = [{key: w.astype("f") for key, w in FILTERS.items()}, RNG.normal(size=(count, 1, 1, 28, 28)).astype("f")]
    given.append(np.eye(10, dtype="f")[labels][:, None])

    def pool_of_jax(x: Any) -> Any:
        window = (1, 1, 2, 2)
        return jax.lax.reduce_window(x, -np.inf, jax.lax.max, window, window, "VALID")

    mine = lenet(
        partial(be.conv, layout="NCHW"), lambda x: be.pool(x, 2, layout="NCHW"), be.tanh, be.log_softmax, be.sum
    )
    of_jax = lenet(
        lambda x, f: jax.lax.conv(x, f, (1, 1), "VALID"),
        pool_of_jax,
        jax.numpy.tanh,
        jax.nn.log_softmax,
        jax.numpy.sum,
    )
    of_torch = lenet(nn.conv2d, lambda x: nn.max_pool2d(x, 2), torch.tanh, nn.log_softmax, torch.sum)
    found = {}
    for name, array, f in (
        ("neonlite", be.array, nl.jit(nl.vmap(nl.grad(mine), (None, 0, 0)))),
        ("jax.jit", jax.numpy.asarray, jax.jit(jax.vmap(jax.grad(of_jax), (None, 0, 0)))),
        ("torch.func", torch.tensor, torch.func.vmap(torch.func.grad(of_torch), (None, 0, 0))),
    ):
        p, x, t = {key: array(w) for key, w in given[0].items()}, array(given[1]), array(given[2])
        found[name] = partial(f, p, x, t)
    by_jax = found["jax.jit"]
    return found | {"jax.jit": lambda: jax.block_until_ready(by_jax())}


def peers_of_times() -> dict[str, dict[str, Callable[[], object]]]:
    """Return, for each row, the work of each library."""
    jax, jnp, torch = import_module("jax"), import_module("jax.numpy"), import_module("torch")
    ag, anp = import_module("autograd"), import_module("autograd.numpy")
    torch.set_num_threads(get_num_threads())
    xp = nl.array_api
    p32 = {key: value.astype("f") for key, value in WEIGHTS.items()}
    x, t = RNG.normal(size=(32, 64)).astype("f"), RNG.normal(size=(32, 10)).astype("f")
    many = RNG.normal(size=(1000, 1, 64)).astype("f"), RNG.normal(size=(1000, 1, 10)).astype("f")
    point = RNG.normal(size=20).astype("f")
    state: dict[str, Any] = {}

    def trained(name: str, value_and_grad: Any, p: Any, x: Any, t: Any, read: Any = float) -> Callable[[], object]:
        state[name] = p

        def step() -> object:
            value, grads = value_and_grad(state[name], x, t)
            state[name] = {key: w - 0.01 * grads[key] for key, w in state[name].items()}
            for w in state[name].values():
                if hasattr(w, "tensor"):
                    w.tensor()
            return read(value)

        return step

    def compiled(name: str, jit: Any, value_and_grad: Any, p: Any, x: Any, t: Any) -> Callable[[], object]:
        def update(p: Any, x: Any, t: Any) -> Any:
            value, grads = value_and_grad(p, x, t)
            return value, {key: w - 0.01 * grads[key] for key, w in p.items()}

        f, state[name] = jit(update), p

        def step() -> object:
            value, state[name] = f(state[name], x, t)
            return float(value)

        return step

    def torch_gradient(p: Any, x: Any, t: Any) -> Any:
        p = {key: w.detach().requires_grad_() for key, w in p.items()}
        value = loss(torch)(p, x, t)
        return value.detach(), dict(zip(p, torch.autograd.grad(value, list(p.values())), strict=True))

    ours = {key: xp.asarray(w) for key, w in p32.items()}
    theirs = {key: jnp.asarray(w) for key, w in p32.items()}
    tensors = {key: torch.tensor(w) for key, w in p32.items()}
    mine, of_jax, of_torch = ([f(a) for a in (x, t)] for f in (xp.asarray, jnp.asarray, torch.tensor))
    rows = {
        "by hand, eager": {
            "neonlite": trained("eager", nl.value_and_grad(loss(xp)), ours, *mine),
            "autograd": trained("autograd", ag.value_and_grad(loss(anp)), p32, x, t),
            "torch": trained("torch", torch_gradient, tensors, *of_torch),
        },
        "by hand, compiled": {
            "neonlite": compiled("jit", nl.jit, nl.value_and_grad(loss(xp)), ours, *mine),
            "jax.jit": compiled("jax", jax.jit, jax.value_and_grad(loss(jnp)), theirs, *of_jax),
            "torch": trained("torch 2", torch_gradient, tensors, *of_torch),
        },
    }
    hessian, of_samples = nl.jit(nl.hessian(rosenbrock)), nl.jit(nl.vmap(nl.grad(loss(xp)), (None, 0, 0)))
    at, at_jax, at_torch = xp.asarray(point), jnp.asarray(point), torch.tensor(point)
    jax_hessian, torch_hessian = jax.jit(jax.hessian(rosenbrock)), torch.func.hessian(rosenbrock)
    rows["hessian of 20 parameters"] = {
        "neonlite": lambda: hessian(at).numpy(),
        "jax.jit": lambda: np.asarray(jax_hessian(at_jax)),
        "torch.func": lambda: torch_hessian(at_torch).numpy(),
    }
    samples, samples_jax, samples_torch = ([f(a) for a in many] for f in (xp.asarray, jnp.asarray, torch.tensor))
    jax_samples = jax.jit(jax.vmap(jax.grad(loss(jnp)), (None, 0, 0)))
    torch_samples = torch.func.vmap(torch.func.grad(loss(torch)), (None, 0, 0))
    rows["gradients of 1,000 samples"] = {
        "neonlite": lambda: of_samples(ours, *samples)["W1"].tensor(),
        "jax.jit": lambda: jax.block_until_ready(jax_samples(theirs, *samples_jax)),
        "torch.func": lambda: torch_samples(tensors, *samples_torch),
    }
    rows["gradients of LeNet, 64 images"] = gradients_of_lenet()
    return rows


def checkpoint_row() -> tuple[float, dict[str, Callable[[], object]]]:
    """Return the memory of a training step with checkpoints, relative to one without, and both as work."""
    steps, size = 32, 64
    be = nl.gen_backend("cpu", rng_seed=1, batch_size=16)
    blocks = [Sequential([TransformerBlock(size, 4, 4 * size, GlorotUniform(), causal=True)]) for _ in range(12)]
    x = be.array(RNG.normal(size=(size, steps * 16)).astype("f"))
    for block in blocks:
        block.configure((size, steps))
        block(x)
    weights = [w for block in blocks for w in block.parameters]
    optimizer = GradientDescentMomentum(1e-7, 0.9)

    def step_of(wrap: Callable[[Any], Any]) -> Any:
        @nl.jit
        def step(x: Any) -> Any:
            for block in blocks:
                x = wrap(block)(x, training=True)
            cost = be.mean(x * x)
            optimizer.step(weights, nl.Autodiff(cost).get_grad_op_tree(weights))
            return cost

        step(x)
        return step

    plain, checkpointed = step_of(lambda f: f), step_of(nl.checkpoint)
    memory = [f.programs[0][1].plan.peak_bytes for f in (checkpointed, plain)]
    return memory[0] / memory[1], {"plain": lambda: plain(x).get(), "checkpoint": lambda: checkpointed(x).get()}


def measure_values(names: list[str]) -> list[dict[str, Any]]:
    """Return the errors of functions, in all compositions, and print the largest ones."""
    rows, chosen = [], functions()
    for name in names:
        errors = {dtype: compare(name, *chosen[name], dtype) for dtype in LIMITS}
        rows.append({"function": name, "errors": errors})
        print(" | ".join(values_row(rows[-1])), flush=True)
    return rows


def values_row(found: dict[str, Any]) -> list[str]:
    """Return the name of a function, and its largest error in each dtype."""
    texts = []
    for dtype, limit in LIMITS.items():
        label, error = max(found["errors"][dtype].items(), key=lambda pair: pair[1])
        texts.append(f"{error:.1e}{' !' if error > limit else ''} ({label})")
    return [found["function"], *texts]


def measure_times(effort: Effort) -> list[dict[str, Any]]:
    """Return the times of each row, and print them."""
    rows: list[dict[str, Any]] = []
    for row, peers in peers_of_times().items():
        times, _ = measure(peers, effort)
        rows.append({"row": row, "seconds": {peer: statistics.median(taken) for peer, taken in times.items()}})
        rows[-1]["ratios"] = {peer: ratio(times[peer], times["neonlite"]) for peer in times if peer != "neonlite"}
        print(" | ".join(times_row(rows[-1])), flush=True)
    memory, peers = checkpoint_row()
    times, _ = measure(peers, effort)
    rows.append({"row": "checkpoint", "memory": memory, "time": ratio(times["plain"], times["checkpoint"])})
    print(f"checkpoint: {memory:.2f} of the memory, {rows[-1]['time']:.2f} of the time", flush=True)
    return rows


PEERS = ("neonlite", "jax.jit", "torch.func", "autograd", "torch")
MAXIMA = {"jax.jit": MAX_JAX, "torch.func": MAX_TORCH}


def times_row(found: dict[str, Any]) -> list[str]:
    """Return the time of each library, and the ratios that have a target."""
    texts = [format_duration(found["seconds"][peer]) if peer in found["seconds"] else "" for peer in PEERS]
    for peer, limit in MAXIMA.items():
        longer = found["ratios"].get(peer)
        texts.append("" if longer is None else f"{longer:.2f}{' !' if longer > limit else ''}")
    return [found["row"], *texts]


def page(report: dict[str, Any]) -> str:
    """Return the report as a page."""
    words = "\n".join(f"- {key}: {value}" for key, value in report["machine"].items())
    target = (
        f"Targets: errors at most {LIMITS['float32']:g} in float32 and {LIMITS['float64']:g} in float64; times at most "
        f"{MAX_JAX:g} times those of jax.jit and {MAX_TORCH:g} times those of torch.func. A miss has a `!`."
    )
    *rows, last = report["times"]
    times = markdown(["row", *PEERS, *(f"× {peer}" for peer in MAXIMA)], map(times_row, rows))
    checkpoint = f"Checkpoint: {last['memory']:.2f} of the memory (peak of the plan), {last['time']:.2f} of the time."
    values = markdown(["function", *(f"error, {dtype}" for dtype in LIMITS)], map(values_row, report["values"]))
    parts = [
        "# Functions of functions",
        "`python benchmarks/functions.py`",
        words,
        target,
        NOTE,
        times,
        checkpoint,
        values,
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke test, which writes nothing")
    parser.add_argument(
        "--only", default="", metavar="WORD", help="measure the values of functions with this word again"
    )
    parser.add_argument("--times", action="store_true", help="measure the times again, and keep the values")
    options = parser.parse_args()
    nl.gen_backend("cpu")
    import_module("jax").config.update("jax_enable_x64", True)
    names = [name for name in functions() if options.only in name]
    if options.quick:
        measure_values(names[::20])
        measure_times(QUICK)
        return
    path = RESULTS / "functions.json"
    known = json.loads(path.read_text()) if options.only or options.times else {"values": [], "times": []}
    found = {} if options.times else {row["function"]: row for row in measure_values(names)}
    values = [found.pop(row["function"], row) for row in known["values"]] + [*found.values()]
    times = known["times"] if options.only else measure_times(FULL)
    about = machine("numpy", "jax", "torch", "autograd") | {"threads": get_num_threads()}
    report = {"machine": known["machine"] if options.only else about, "values": values, "times": times}
    save("functions", report, page(report))


if __name__ == "__main__":
    main()
