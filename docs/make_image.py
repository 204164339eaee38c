"""Draw the image of the README, the op-tree of its derivative: ``python docs/make_image.py``."""

from __future__ import annotations

from pathlib import Path

import neonlite as nl

IMAGE = Path(__file__).parent / "images" / "gradient.svg"


def svg() -> str:
    """Return the drawing of ``dx`` in the README."""
    be = nl.gen_backend("cpu")
    x = be.array([[-1.0, 0.0, 2.0]], name="x")
    f = be.log(1 + be.exp(x))
    e = be.ones(f.shape, name="e")
    return nl.Autodiff(f, be, e).get_grad_op_tree(x).draw("svg")


if __name__ == "__main__":
    IMAGE.write_text(svg(), encoding="utf-8")
