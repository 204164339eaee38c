"""Introduction to op-trees with the logistic function: print, draw, evaluate, differentiate, and check the gradient.

Usage: ``python examples/logistic.py [folder of the drawing]``. It does not need any optional packages.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import neonlite as nl

STEP = 1e-4


def say(heading: str, *texts: object) -> None:
    """Print a heading and, below it, the indented texts."""
    print(f"\n\033[1m{heading}\033[0m" if sys.stdout.isatty() else f"\n{heading}")
    for text in texts:
        print("\n".join(f"    {line}" for line in str(text).splitlines()))


def main(folder: Path) -> int:
    """Run the example; return 0 if finite differences confirm the gradient, else 1."""
    be = nl.gen_backend("cpu", datatype=np.float64)
    x = be.array([[-4.0, -2.0, 0.0, 2.0, 4.0]], name="x")

    f = 1 / (1 + be.exp(-1 * x))
    say("1. An expression is data. f = 1 / (1 + be.exp(-1 * x)) computes nothing: f is a tree of tuples.", f)
    print("\n    Pretty-printed, print(f.pp()):", f.pp())

    drawing = folder / "logistic.svg"
    drawing.write_text(f.draw("svg"), encoding="utf-8")
    say("2. Draw it, print(f.draw()):", f.draw(), f"As SVG: {drawing}")

    value = be.empty(x.shape)
    value[:] = f
    say("3. Assignment evaluates it, value[:] = f, in one pass over memory:", be.plan(f, out=value))

    error = be.ones(f.shape, name="error")
    gradient = nl.Autodiff(f, be, error).get_grad_op_tree(x)
    say("4. Its gradient is an op-tree, too, Autodiff(f, be, error).get_grad_op_tree(x):", gradient.pp())

    exact = gradient.asnumpyarray()
    above, below = (f.replace(x, be.array(x.get() + h)).asnumpyarray() for h in (STEP, -STEP))
    numerical = (above - below) / (2 * STEP)
    lines = [f"{'x':>6} {'f(x)':>12} {'gradient':>14} {'numerical':>14}"]
    for row in zip(x.get()[0], value.get()[0], exact[0], numerical[0], strict=True):
        lines.append("{:6.1f} {:12.8f} {:14.10f} {:14.10f}".format(*row))
    say(f"5. Check it numerically: (f(x + h) - f(x - h)) / 2h, with h = {STEP}:", "\n".join(lines))

    report = be.check_grad(f, x)
    say("   Check each op, be.check_grad(f, x):", report)

    correct = report.ok and bool(np.allclose(exact, numerical, rtol=0, atol=1e-8))
    say(
        "The gradient is correct." if correct else "The gradient is WRONG. This is a bug in neonlite: please report it."
    )
    return 0 if correct else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="neonlite-"))))
