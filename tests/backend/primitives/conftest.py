"""Fixtures of the tests of primitives."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from helpers.image_cases import Conv, conv_layer
from helpers.image_primitives import conv_truth, values

from neonlite import Backend


@pytest.fixture
def s(be: Backend) -> SimpleNamespace:
    """A small convolution: its layer object, tensors, and truth."""
    case = Conv(2, 3, 4, (1, 5, 4), (1, 3, 2), (0, 1, 0), (1, 2, 1))
    t = conv_truth(case)
    s = SimpleNamespace(be=be, t=t, layer=conv_layer(be, "float64", case), case=case)
    for name in "ifeodu":
        shape = getattr(t, name).shape
        setattr(s, name.upper(), be.array(getattr(t, name).reshape(-1, shape[-1]), "float64", name=name.upper()))
    for name, n in (("K", 4), ("C", 3)):
        s.__dict__[f"bias_{name}"] = be.array(values(5, n, 1), "float64")
        s.__dict__[f"bsum_{name}"] = be.array(np.full((n, 1), np.nan), "float32")
    s.X = be.array(np.round(values(6, *s.O.shape)), "float64")  # of both signs, and 0
    s.Y = be.array(np.round(values(6, *s.I.shape)), "float64")
    return s
