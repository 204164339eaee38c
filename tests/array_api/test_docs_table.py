"""The two columns of the table in docs/numpy.md give the same values.

Tests ``neonlite/array_api/__init__.py``.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from helpers.parametrize import each

from neonlite.backend import Backend

TEXT = (Path(__file__).parents[2] / "docs" / "numpy.md").read_text()
ROWS = re.findall(r"^\| `(.+)` \| `(.+)` \|$", TEXT.split("## NumPy and neonlite")[1].split("## Conformance")[0], re.M)


@each("numpy_code, our_code", ROWS)
def test_a_row_of_the_table_gives_what_numpy_gives(be: Backend, numpy_code: str, our_code: str) -> None:
    arrays = {"x": np.asarray([[1.0, 3.0, 2.0], [4.0, 0.5, 6.0]]), "y": np.asarray([[2.0, 1.0, 5.0], [3.0, 3.0, 0.5]])}
    expected = eval(numpy_code, {"np": np, **arrays})
    xp = be.array_api
    result = eval(our_code, {"xp": xp, **{name: xp.asarray(array) for name, array in arrays.items()}})
    assert np.shape(result) == np.shape(expected)
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-6)


def test_the_table_has_rows() -> None:
    assert len(ROWS) > 30
