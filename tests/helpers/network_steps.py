"""Steps of a network with seeded inputs, and its values."""

from __future__ import annotations

from typing import Any

import numpy as np


def ready(be: Any, net: Any, shape: Any) -> Any:
    net.configure(shape)
    net.allocate()
    net.allocate_deltas()
    return net


def inputs(be: Any, shape: Any, seed: int = 0) -> Any:
    if isinstance(shape, list):
        return [inputs(be, x, seed) for x in shape]
    size = int(np.prod(shape)) if not isinstance(shape, tuple) or len(shape) != 2 else shape[0]
    steps = shape[1] if isinstance(shape, tuple) and len(shape) == 2 else 1
    if size == 1:
        return be.array(np.random.default_rng(seed).integers(5, size=(1, steps * be.bsz)), dtype="int32")
    return be.array(np.random.default_rng(seed).uniform(-1, 1, size=(size, steps * be.bsz)))


def values(outputs: Any) -> list[np.ndarray]:
    return [t.get() for t in (outputs if isinstance(outputs, list) else [outputs])]


def step(be: Any, net: Any, shape: Any, optimizer: Any, seed: int) -> None:
    """Train once, with the outputs for their own error."""
    outputs = net.fprop(inputs(be, shape, seed))
    errors = [be.array(y) for y in values(outputs)]
    net.bprop(errors if isinstance(outputs, list) else errors[0])
    optimizer.optimize(net.layers_to_optimize, epoch=0)
