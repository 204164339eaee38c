"""Methods that are generated from the op table."""

from __future__ import annotations

from neonlite import Backend

# --- what is not a function of floats alone -------------------------------------------------------------------------


def test_aliases_build_the_same_ops(be: Backend) -> None:
    x = be.ones((2, 2))
    assert be.fabs(x).op == be.absolute(x).op == "abs"
    assert be.true_divide(x, x).op == be.divide(x, x).op == "div"
