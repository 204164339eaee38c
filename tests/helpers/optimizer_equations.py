"""The equations of every optimizer in NumPy, and a small network that they update."""

from __future__ import annotations

import math

import numpy as np
import pytest

from neonlite.optimizers import (
    LAMB,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    GradientDescentMomentum,
    Lion,
    Muon,
    NAdam,
    PowerSchedule,
    RMSProp,
    ShiftAdaMax,
)

N = 32  # the batch size
SHAPES = [(4, 3), (4, 1), (2, 3, 2), (1, 7)]


class Layer:
    """The attributes of a layer that an optimizer uses."""

    def __init__(self, name, W, dW, states=None):
        self.name, self.W, self.dW, self.states = name, W, dW, [] if states is None else states

    def get_params(self):
        return ((self.W, self.dW), self.states)


def network(be, flat=True, shapes=SHAPES, dtype=None, seed=0):
    """Return layers whose weights are views of one buffer, or separate tensors."""
    rng, sizes, layers, start = np.random.default_rng(seed), [math.prod(s) for s in shapes], [], 0
    buffers = be.zeros((sum(sizes), 1), dtype), be.zeros((sum(sizes), 1), dtype)
    for i, (shape, size) in enumerate(zip(shapes, sizes, strict=True)):
        w, dw = (x[start : start + size].reshape(shape) if flat else be.zeros(shape, dtype) for x in buffers)
        w[:] = rng.normal(size=shape)
        w.name, dw.name = f"W{i}", f"dW{i}"
        layers.append(Layer(f"layer{i}", w, dw))
        start += size
    return layers


def gradients(layers, step):
    """Set and return gradients from 1e-3 to 1e2, some exactly 0, the same for every optimizer and runtime."""
    rng = np.random.default_rng(1000 + step)
    result = []
    for layer in layers:
        g = N * rng.normal(size=layer.W.shape) * 10.0 ** rng.uniform(-3, 2, layer.W.shape)
        g[rng.random(layer.W.shape) < 0.1] = 0
        layer.dW[:] = g
        result.append(layer.dW.get().astype(np.float64))
    return result


def weights(layers):
    return [layer.W.get() for layer in layers]


def train(optimizer, layers, steps, epoch=lambda step: step // 3):
    layers[0].W.backend.bsz = N
    for step in range(steps):
        gradients(layers, step)
        optimizer.optimize(layers, epoch(step))
    return weights(layers)


def textbook(rule, w, gs, epochs, clip_norm=None, clip_value=None, clip_param=None, **options):
    """Update lists of float64 arrays by lists of gradients, one list a step."""
    w, memory = [x.astype(np.float64).copy() for x in w], [{} for _ in w]
    for step, (grads, epoch) in enumerate(zip(gs, epochs, strict=True)):
        norm = math.sqrt(sum((g**2).sum() for g in grads)) / N
        s = clip_norm / max(norm, clip_norm) if clip_norm else 1.0
        for i, g in enumerate(grads):
            g = s * g / N
            if clip_value:
                g = np.minimum(np.maximum(g, -clip_value), clip_value)
            w[i] = rule(w[i], g, memory[i], step + 1, epoch, **options)
            if clip_param:
                w[i] = np.minimum(np.maximum(w[i], -clip_param), clip_param)
    return w


def gdm(w, g, m, t, epoch, lr, mu, wd=0.0, nesterov=False, rate=lambda lr, epoch: lr):
    lr = rate(lr, epoch)
    if mu == 0:
        return (1 - lr * wd) * w - lr * g
    m["v"] = mu * m.get("v", 0) - lr * (g + wd * w)
    return w + mu * m["v"] - lr * (g + wd * w) if nesterov else w + m["v"]


def rmsprop(w, g, m, t, epoch, lr, d, eps):
    m["s"] = d * m.get("s", 0) + (1 - d) * g**2
    return w - g * lr / (np.sqrt(m["s"] + eps) + eps)


def adagrad(w, g, m, t, epoch, lr, eps):
    m["s"] = m.get("s", 0) + g**2
    return w - g * lr / np.sqrt(m["s"] + eps)


def adadelta(w, g, m, t, epoch, d, eps):
    m["g"] = d * m.get("g", 0) + (1 - d) * g**2
    dx = np.sqrt((m.get("x", 0) + eps) / (m["g"] + eps)) * g
    m["x"] = d * m.get("x", 0) + (1 - d) * dx**2
    return w - dx


def adam(w, g, m, t, epoch, lr, b1, b2, eps):
    m["m"] = b1 * m.get("m", 0) + (1 - b1) * g
    m["v"] = b2 * m.get("v", 0) + (1 - b2) * g**2
    return w - lr * math.sqrt(1 - b2**t) / (1 - b1**t) * m["m"] / (np.sqrt(m["v"]) + eps)


def adamw(w, g, m, t, epoch, lr, b1, b2, eps, wd):
    m["m"] = b1 * m.get("m", 0) + (1 - b1) * g
    m["v"] = b2 * m.get("v", 0) + (1 - b2) * g**2
    return w - lr * wd * w - lr * (m["m"] / (1 - b1**t)) / (np.sqrt(m["v"] / (1 - b2**t)) + eps)


def nadam(w, g, m, t, epoch, lr, b1, b2, eps, psi):
    mu = b1 * (1 - 0.5 * 0.96 ** (t * psi))
    after = b1 * (1 - 0.5 * 0.96 ** ((t + 1) * psi))
    m["p"] = m.get("p", 1) * mu
    m["m"] = b1 * m.get("m", 0) + (1 - b1) * g
    m["v"] = b2 * m.get("v", 0) + (1 - b2) * g**2
    step = after * m["m"] / (1 - m["p"] * after) + (1 - mu) * g / (1 - m["p"])
    return w - lr * step / (np.sqrt(m["v"] / (1 - b2**t)) + eps)


def lamb(w, g, m, t, epoch, lr, b1, b2, eps, wd):
    m["m"] = b1 * m.get("m", 0) + (1 - b1) * g
    m["v"] = b2 * m.get("v", 0) + (1 - b2) * g**2
    r = (m["m"] / (1 - b1**t)) / (np.sqrt(m["v"] / (1 - b2**t)) + eps) + wd * w
    size, length = np.linalg.norm(w.ravel()), np.linalg.norm(r.ravel())
    return w - lr * (size / length if size and length else 1) * r


def lion(w, g, m, t, epoch, lr, b1, b2, wd):
    before = m.get("m", np.zeros_like(w))
    m["m"] = b2 * before + (1 - b2) * g
    return w * (1 - lr * wd) - lr * np.sign(b1 * before + (1 - b1) * g)


def newton_schulz(x):
    u, s, v = np.linalg.svd(x, full_matrices=False)
    s = s / (np.sqrt((s**2).sum()) + 1e-7)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ np.diag(s) @ v


def muon(w, g, m, t, epoch, lr, mu, wd):
    m["m"] = mu * m.get("m", 0) + (1 - mu) * g
    d = mu * m["m"] + (1 - mu) * g
    if w.ndim == 2 and 1 not in w.shape:
        d = 0.2 * math.sqrt(max(w.shape)) * newton_schulz(d)
    return w - lr * wd * w - lr * d


def power_of_two(y):
    return np.sign(y) * 2.0 ** np.rint(np.log2(np.abs(y)))


def shiftadamax(w, g, m, t, epoch, lr, b1, b2, eps):
    m["m"] = b1 * m.get("m", 0) + (1 - b1) * g
    m["v"] = np.maximum(b2 * m.get("v", 0), np.abs(g))
    step = m["m"] * power_of_two(1 / (m["v"] + eps)) * power_of_two(lr / (1 - b1 ** (epoch + 1)))
    return np.clip(w - step, -1, 1)


CLIPS = {"gradient_clip_norm": 2.0, "gradient_clip_value": 3.0, "param_clip_value": 1.5}
SAME = {"clip_norm": 2.0, "clip_value": 3.0, "clip_param": 1.5}
GDM = GradientDescentMomentum
EQUATIONS = {
    "momentum": (lambda: GDM(0.01, 0.9), gdm, {"lr": 0.01, "mu": 0.9}),
    "no momentum": (lambda: GDM(0.01, 0), gdm, {"lr": 0.01, "mu": 0}),
    "nesterov": (lambda: GDM(0.01, 0.8, nesterov=True), gdm, {"lr": 0.01, "mu": 0.8, "nesterov": True}),
    "decay": (lambda: GDM(0.01, 0.9, wdecay=0.05), gdm, {"lr": 0.01, "mu": 0.9, "wd": 0.05}),
    "decay alone": (lambda: GDM(0.01, 0.0, wdecay=0.05), gdm, {"lr": 0.01, "mu": 0, "wd": 0.05}),
    "decay and nesterov": (
        lambda: GDM(0.01, 0.8, wdecay=0.05, nesterov=True),
        gdm,
        {"lr": 0.01, "mu": 0.8, "wd": 0.05, "nesterov": True},
    ),
    "momentum, a schedule": (
        lambda: GDM(0.01, 0.9, wdecay=0.05, schedule=PowerSchedule(2, 0.5)),
        gdm,
        {"lr": 0.01, "mu": 0.9, "wd": 0.05, "rate": lambda lr, epoch: lr * 0.5 ** (epoch // 2)},
    ),
    "momentum, clipped": (lambda: GDM(0.1, 0.9, wdecay=0.05, **CLIPS), gdm, {"lr": 0.1, "mu": 0.9, "wd": 0.05, **SAME}),
    "no momentum, clipped": (lambda: GDM(0.1, 0, **CLIPS), gdm, {"lr": 0.1, "mu": 0, **SAME}),
    "rmsprop": (lambda: RMSProp(), rmsprop, {"lr": 0.002, "d": 0.95, "eps": 1e-6}),
    "rmsprop, clipped": (
        lambda: RMSProp(False, 0.5, 0.1, 1e-3, **CLIPS),
        rmsprop,
        {"lr": 0.1, "d": 0.5, "eps": 1e-3, **SAME},
    ),
    "adagrad": (lambda: Adagrad(), adagrad, {"lr": 0.01, "eps": 1e-6}),
    "adagrad, clipped": (lambda: Adagrad(False, 0.1, 1e-2, **CLIPS), adagrad, {"lr": 0.1, "eps": 1e-2, **SAME}),
    "adadelta": (lambda: Adadelta(), adadelta, {"d": 0.95, "eps": 1e-6}),
    "adadelta, clipped": (
        lambda: Adadelta(False, 0.5, 1e-2, **CLIPS),
        adadelta,
        {"d": 0.5, "eps": 1e-2, **SAME},
    ),
    "adam": (lambda: Adam(), adam, {"lr": 0.001, "b1": 0.9, "b2": 0.999, "eps": 1e-8}),
    "adam, clipped": (
        lambda: Adam(False, 0.1, 0.5, 0.8, 1e-2, **CLIPS),
        adam,
        {"lr": 0.1, "b1": 0.5, "b2": 0.8, "eps": 1e-2, **SAME},
    ),
    "adamw": (lambda: AdamW(), adamw, {"lr": 0.001, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "wd": 0.01}),
    "adamw, clipped": (
        lambda: AdamW(False, 0.1, 0.5, 0.8, 1e-2, wdecay=0.3, **CLIPS),
        adamw,
        {"lr": 0.1, "b1": 0.5, "b2": 0.8, "eps": 1e-2, "wd": 0.3, **SAME},
    ),
    "nadam": (lambda: NAdam(), nadam, {"lr": 0.002, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "psi": 0.004}),
    "nadam, clipped": (
        lambda: NAdam(False, 0.1, 0.5, 0.8, 1e-2, momentum_decay=0.3, **CLIPS),
        nadam,
        {"lr": 0.1, "b1": 0.5, "b2": 0.8, "eps": 1e-2, "psi": 0.3, **SAME},
    ),
    "lamb": (lambda: LAMB(), lamb, {"lr": 0.001, "b1": 0.9, "b2": 0.999, "eps": 1e-6, "wd": 0.01}),
    "lamb, clipped": (
        lambda: LAMB(False, 0.1, 0.5, 0.8, 1e-2, wdecay=0.0, **CLIPS),
        lamb,
        {"lr": 0.1, "b1": 0.5, "b2": 0.8, "eps": 1e-2, "wd": 0.0, **SAME},
    ),
    "lion": (lambda: Lion(), lion, {"lr": 0.0001, "b1": 0.9, "b2": 0.99, "wd": 0.0}),
    "lion, clipped": (
        lambda: Lion(0.01, 0.5, 0.8, 0.3, **CLIPS),
        lion,
        {"lr": 0.01, "b1": 0.5, "b2": 0.8, "wd": 0.3, **SAME},
    ),
    "muon": (lambda: Muon(), muon, {"lr": 0.001, "mu": 0.95, "wd": 0.1}),
    "muon, clipped": (lambda: Muon(0.1, 0.5, 0.0, **CLIPS), muon, {"lr": 0.1, "mu": 0.5, "wd": 0.0, **SAME}),
    "shiftadamax": (lambda: ShiftAdaMax(), shiftadamax, {"lr": 0.002, "b1": 0.9, "b2": 0.999, "eps": 1e-8}),
    "shiftadamax, fast": (
        lambda: ShiftAdaMax(False, 0.3, 0.5, 0.8, 1e-2),
        shiftadamax,
        {"lr": 0.3, "b1": 0.5, "b2": 0.8, "eps": 1e-2},
    ),
    "shiftadamax, clipped": (
        lambda: ShiftAdaMax(False, 0.3, 0.5, 0.8, 1e-2, gradient_clip_norm=2.0, gradient_clip_value=3.0),
        shiftadamax,
        {"lr": 0.3, "b1": 0.5, "b2": 0.8, "eps": 1e-2, "clip_norm": 2.0, "clip_value": 3.0},
    ),
}
MAKERS = {name: make for name, (make, _, _) in EQUATIONS.items()}
every_equation = pytest.mark.parametrize("name", EQUATIONS)
