"""What is an op-tree?  The logistic function: written, drawn, worked out, differentiated, and proved right.

Run it: ``python examples/logistic.py [folder for the picture]``. It needs nothing but neonlite's core.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import neonlite as nl

STEP = 1e-4


def say(heading: str, *texts: object) -> None:
    """Print a heading, and what belongs below it."""
    print(f"\n\033[1m{heading}\033[0m" if sys.stdout.isatty() else f"\n{heading}")
    for text in texts:
        print("\n".join(f"    {line}" for line in str(text).splitlines()))


def main(folder: Path) -> int:
    """Show it all; return 0 when finite differences confirm the gradient, else 1."""
    be = nl.gen_backend("cpu", datatype=np.float64)
    x = be.array([[-4.0, -2.0, 0.0, 2.0, 4.0]], name="x")

    f = 1 / (1 + be.exp(-1 * x))
    say("1. An expression is data. f = 1 / (1 + be.exp(-1 * x)) computes nothing: f is a tree of small tuples.", f)
    print("\n    Easier to read, print(f.pp()):", f.pp())

    picture = folder / "logistic.svg"
    picture.write_text(f.draw("svg"), encoding="utf-8")
    say("2. It can be drawn, print(f.draw()):", f.draw(), f"As a picture: {picture}")

    value = be.empty(x.shape)
    value[:] = f
    say("3. It is worked out when it is assigned, value[:] = f, in one pass over memory:", be.plan(f, out=value))

    error = be.ones(f.shape, name="error")
    gradient = nl.Autodiff(f, be, error).get_grad_op_tree(x)
    say("4. Its gradient is an op-tree as well, Autodiff(f, be, error).get_grad_op_tree(x):", gradient.pp())

    slope = gradient.asnumpyarray()
    above, below = (f.replace(x, be.array(x.get() + h)).asnumpyarray() for h in (STEP, -STEP))
    measured = (above - below) / (2 * STEP)
    lines = [f"{'x':>6} {'f(x)':>12} {'gradient':>14} {'measured':>14}"]
    for row in zip(x.get()[0], value.get()[0], slope[0], measured[0], strict=True):
        lines.append("{:6.1f} {:12.8f} {:14.10f} {:14.10f}".format(*row))
    say(f"5. The proof. Measured: (f(x + h) - f(x - h)) / 2h, with h = {STEP}:", "\n".join(lines))

    report = be.check_grad(f, x)
    say("   And op by op, be.check_grad(f, x):", report)

    right = report.ok and bool(np.allclose(slope, measured, rtol=0, atol=1e-8))
    say("The gradient is right." if right else "The gradient is WRONG. This is a fault in neonlite: please report it.")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="neonlite-"))))
