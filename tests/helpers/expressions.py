"""Op-trees of batch normalization, and names with characters that languages of drawings escape."""

from __future__ import annotations

from typing import Any

import numpy as np

from neonlite import Backend

ODD = 'a"b<c>&amp; \\N #1;`'


def draw(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).uniform(0.5, 2.0, shape) * np.random.default_rng(-seed % 97).choice(
        [-1, 1], shape
    )


def batch_norm(be: Any, x: Any, gamma: Any, beta: Any, eps: float = 1e-3) -> Any:
    """spec: (x - mean) / sqrt(var + eps) * gamma + beta, a feature map over everything else."""
    return (x - be.mean(x, axis=1)) / be.sqrt(be.var(x, axis=1) + eps) * gamma + beta


def normed(be: Backend, f: int = 4, n: int = 7) -> tuple[Any, ...]:
    x, gamma, beta = (
        be.array(draw(5, f, n), name="x"),
        be.array(draw(6, f, 1), name="g"),
        be.array(draw(7, f, 1), name="b"),
    )
    error = be.array(draw(8, f, n), name="error")
    return x, gamma, beta, error, batch_norm(be, x, gamma, beta)
