"""The networks of steps.py in JAX: a whole training step, and inference, each as one function of ``jax.jit``.

Weights, velocities and running statistics are donated to the step, which returns the new ones. The formulas are those
of neonlite, GRU and running statistics included, and the initial weights those of a neonlite network.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

# NHWC takes less time than NCHW: cd benchmarks; for images in NHWC NCHW; do
# python -c "import _jitted, steps; _jitted.IMAGES = '$images'; print(steps.alone('cifar', 'jax.jit', 1))"; done
IMAGES = "NHWC"
FILTERS = {"NHWC": "HWIO", "NCHW": "OIHW"}
RHO, MOMENTUM = 0.9, 0.9  # decays of the running statistics, and of the velocities
BATCH_EPS, LAYER_EPS = 1e-3, 1e-5  # added to the variances

Formula = Callable[..., Any]
Measured = tuple[Callable[[], Any], Callable[[], float], Callable[[], Any], Callable[[Any], Any]]


def load(threads: int) -> Any:
    """Return JAX, after its first call in this process with a client for the CPU with a number of threads."""
    os.environ["NPROC"] = str(threads)  # XLA reads it once, when it creates the client
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    jax.devices()
    return jax


def learner(jax: Any, cost: Formula, formula: Formula, start: tuple[Any, Any], data: Any, rate: float) -> Any:
    """Return step, loss and infer.

    ``formula(weights, statistics, x, training)`` returns outputs and statistics, ``cost(outputs, t)`` a number.
    """
    x, t = map(jax.numpy.asarray, data)
    weights, statistics = jax.tree.map(jax.numpy.asarray, start)
    state = [weights, jax.tree.map(jax.numpy.zeros_like, weights), statistics]

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def update(weights: Any, velocities: Any, statistics: Any, x: Any, t: Any) -> Any:
        def of(weights: Any) -> Any:
            y, moved = formula(weights, statistics, x, True)
            return cost(y, t), moved

        (value, moved), gradients = jax.value_and_grad(of, has_aux=True)(weights)
        velocities = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocities, gradients)
        return value, [jax.tree.map(lambda w, v: w - rate * v, weights, velocities), velocities, moved]

    outputs = jax.jit(lambda weights, statistics, x: formula(weights, statistics, x, False)[0])
    is_cpu = jax.default_backend() == "cpu"  # a GPU queues steps

    def step() -> Any:
        value, state[:] = update(*state, x, t)
        return value.block_until_ready() if is_cpu else value

    return step, lambda: float(step()), lambda: outputs(state[0], state[2], x).block_until_ready()


# --- networks of images ----------------------------------------------------------------------------------------------


def weights_of(layer: Any) -> list[Any]:
    """Return the parameters of a neonlite layer: filters, matrices (inputs, outputs), vectors; a norm's beta first."""
    first, *others = (parameter.get() for parameter in layer.parameters)
    shape = layer.in_shape
    if hasattr(layer, "fshape"):
        first = first.reshape(-1, *layer.fshape[:2], first.shape[1])  # (C, R, S, K)
        first = first.transpose([1, 2, 0, 3] if IMAGES == "NHWC" else [3, 0, 1, 2])
    elif type(layer).__name__ == "Linear":
        if isinstance(shape, tuple) and len(shape) == 3 and IMAGES == "NHWC":  # of the flattened images (C, H, W)
            first = first.reshape(-1, *shape).transpose(0, 2, 3, 1).reshape(first.shape)
        first = first.T
    else:
        first = first.reshape(-1)
    return [np.ascontiguousarray(first), *(vector.reshape(-1) for vector in others)]


def network(jax: Any, layers: list[Any]) -> Formula:
    """Return the formula of layers, each a kind and its sizes, as in ``steps.NETWORKS``."""
    lax, jnp, relu = jax.lax, jax.numpy, jax.nn.relu
    spec = (IMAGES, FILTERS[IMAGES], IMAGES)
    pixels = (1, 2) if IMAGES == "NHWC" else (2, 3)

    def per_channel(v: Any, x: Any) -> Any:
        return v[:, None, None] if x.ndim == 4 and IMAGES == "NCHW" else v

    def formula(weights: Any, statistics: Any, x: Any, training: bool) -> Any:
        w, running, moved = iter(weights), iter(statistics), []

        def conv(x: Any, stride: int = 1, pad: int = 0) -> Any:
            return lax.conv_general_dilated(x, next(w), (stride,) * 2, [(pad, pad)] * 2, dimension_numbers=spec)

        def norm(x: Any) -> Any:
            beta, gamma, (mean, var) = next(w), next(w), next(running)
            if training:
                axes = (0, *pixels) if x.ndim == 4 else (0,)
                old, (mean, var) = (mean, var), (x.mean(axes), x.var(axes))
                moved.append(tuple(RHO * a + (1 - RHO) * b for a, b in zip(old, (mean, var), strict=True)))
            scale = gamma / jnp.sqrt(var + BATCH_EPS)
            return (x - per_channel(mean, x)) * per_channel(scale, x) + per_channel(beta, x)

        def same(x: Any, size: int, stride: int) -> Any:
            return norm(conv(x, stride, size // 2))

        def layer(x: Any, kind: str, n: int = 0, maps: int = 0, stride: int = 1, pad: int = 0) -> Any:
            if kind == "pool":
                window = [n if axis in pixels else 1 for axis in range(4)]
                return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
            if kind == "mean":
                return x.mean(pixels)
            if kind == "same":
                return relu(same(x, n, stride))
            if kind == "block":  # "block maps stride"
                stride = maps
                y = same(relu(same(x, 3, stride)), 3, 1)
                return relu(y + (x if stride == 1 else same(x, 1, stride)))
            if kind in ("deconv", "image"):
                edge = n - 1 - pad
                if stride == 1:  # XLA compiles the weights' gradient for minutes if it knows of the zeros around x
                    padding = [(edge, edge) if axis in pixels else (0, 0) for axis in range(4)]
                    x, edge = lax.optimization_barrier(jnp.pad(x, padding)), 0
                y = lax.conv_transpose(x, next(w), (stride,) * 2, [(edge, edge)] * 2, None, spec, transpose_kernel=True)
                y = y + per_channel(next(w), y)
                return y if kind == "image" else relu(y)
            if kind == "conv":
                y = conv(x)
                return relu(y + per_channel(next(w), y))
            y = x.reshape(len(x), -1) @ next(w)
            if kind == "norm":
                return relu(norm(y))
            y = y + next(w)
            return y if kind == "classes" else relu(y)

        for kind, *sizes in layers:
            x = layer(x, kind, *sizes)
        return x, moved

    return formula


def images(jax: Any, layers: list[Any], x: Any, labels: Any, net: Any, rate: float) -> Measured:
    """Return step, loss, infer and outputs for images (N, C, H, W), or features, with the weights of a network."""
    is_classifier = layers[-1][0] == "classes"
    if x.ndim == 4 and IMAGES == "NHWC":
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    weights = [array for layer in net.layers_to_optimize for array in weights_of(layer)]
    x = x.astype(weights[0].dtype)
    zeros = [np.zeros(layer.nfm, np.float32) for layer in net.leaves() if hasattr(layer, "gmean")]
    formula = network(jax, layers)

    def cost(y: Any, t: Any) -> Any:
        if is_classifier:
            return -jax.numpy.take_along_axis(jax.nn.log_softmax(y), t[:, None], 1).mean()
        return jax.numpy.square(y - t).mean() / 2

    def normalized(weights: Any, statistics: Any, x: Any, training: bool) -> Any:
        y, moved = formula(weights, statistics, x, training)
        return y if training or not is_classifier else jax.nn.softmax(y), moved

    def outputs(y: Any) -> Any:
        y = np.asarray(y)
        return (y.transpose(0, 3, 1, 2) if y.ndim == 4 and IMAGES == "NHWC" else y).reshape(len(y), -1)

    start = weights, [(v, v) for v in zeros]
    return *learner(jax, cost, normalized, start, (x, labels if is_classifier else x), rate), outputs


# --- networks of characters ------------------------------------------------------------------------------------------


def recurrent(jax: Any, kind: str, net: Any) -> tuple[Any, Formula]:
    """Return the weights of an LSTM or a GRU, and its formula, (T, N, inputs) to (T, N, HIDDEN)."""
    jnp, sig, tanh = jax.numpy, jax.nn.sigmoid, jax.numpy.tanh
    layer = net.layers_to_optimize[0]
    W_input, W_recur, b = (part.get() for part in layer.split_weights(layer.W, 0))
    weights = [W_input.T, W_recur.T, b[:, 0]]

    def formula(weights: Any, x: Any) -> Any:
        W_input, W_recur, b = weights
        zeros = jnp.zeros((x.shape[1], W_recur.shape[0]))

        def lstm(previous: Any, z: Any) -> Any:
            h, c = previous
            i, f, o, g = jnp.split(z + h @ W_recur, 4, 1)
            c = sig(f) * c + sig(i) * tanh(g)
            h = sig(o) * tanh(c)
            return (h, c), h

        def gru(h: Any, z: Any) -> Any:
            n = 2 * h.shape[1]
            r, u = jnp.split(sig(z[:, :n] + h @ W_recur[:, :n]), 2, 1)
            k = tanh(z[:, n:] + (r * h) @ W_recur[:, n:])
            h = h + u * (k - h)
            return h, h

        z = x @ W_input + b  # of all steps
        return jax.lax.scan(*((lstm, (zeros, zeros)) if kind == "lstm" else (gru, zeros)), z)[1]

    return weights, formula


def transformer(jax: Any, heads: int, net: Any) -> tuple[Any, Formula]:
    """Return the weights of a transformer, and its formula, token ids (T, N) to (T, N, features)."""
    jnp = jax.numpy
    words, *others = net.layers_to_optimize[:-2]
    weights = [[words.W.get()], *([parameter.get().T.squeeze() for parameter in x.parameters] for x in others)]
    table = next(layer.table for layer in net.leaves() if hasattr(layer, "table")).get().T

    def norm(x: Any, beta: Any, gamma: Any) -> Any:
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / jnp.sqrt(var + LAYER_EPS) * gamma + beta

    def attention(x: Any, W_qkv: Any, W_out: Any, b_qkv: Any, b_out: Any) -> Any:
        q, k, v = jnp.split((x @ W_qkv + b_qkv).reshape(*x.shape[:2], 3 * heads, -1), 3, 2)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return y.reshape(x.shape) @ W_out + b_out

    def formula(weights: Any, x: Any) -> Any:
        (words,), *rest = weights
        y = words[x.T] + table
        for n in range(0, len(rest) - 1, 7):
            norm_1, heads_of, norm_2, *linear = rest[n : n + 7]
            y = y + attention(norm(y, *norm_1), *heads_of)
            (W_1,), (b_1,), (W_2,), (b_2,) = linear
            y = y + jax.nn.gelu(norm(y, *norm_2) @ W_1 + b_1) @ W_2 + b_2
        return norm(y, *rest[-1]).transpose(1, 0, 2)

    return weights, formula


def characters(jax: Any, of: Any, heads: int, vocabulary: int, net: Any, rate: float) -> Measured:
    """Return step, loss, infer and outputs for the texts of ``_characters``, with the weights of a network."""
    T, N = of.ids[1:].shape
    if of.kind == "transformer":
        weights, layers = transformer(jax, heads, net)
        x = of.ids[:-1]
    else:
        weights, layers = recurrent(jax, of.kind, net)
        x = np.eye(vocabulary, dtype=np.float32)[of.ids[:-1]]
    linear = [array for layer in net.layers_to_optimize[-2:] for array in weights_of(layer)]

    def formula(weights: Any, statistics: Any, x: Any, training: bool) -> Any:
        y = layers(weights[0], x) @ weights[1][0] + weights[1][1]
        return y if training else jax.nn.softmax(y), statistics

    def cost(y: Any, t: Any) -> Any:
        return -jax.numpy.take_along_axis(jax.nn.log_softmax(y), t[..., None], -1).sum() / N

    step, loss, infer = learner(jax, cost, formula, ((weights, linear), []), (x, of.ids[1:]), rate)
    return step, lambda: loss() / T, infer, lambda y: np.asarray(y).reshape(-1, vocabulary)
