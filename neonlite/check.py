"""Is a derivative right?  Compare it with finite differences: op by op, and for the whole tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from neonlite.autodiff import Autodiff, listed
from neonlite.backend import Backend, Tensor
from neonlite.ops import FLOATS, OPS, boxed
from neonlite.optree import Draw, OpTreeNode, build, label, postorder

STEP = 1e-3  # of the fourth-order central difference, in float64
DIRECTIONS = 3


class Row(NamedTuple):
    """One comparison: dE along a random direction in ``of``, by the derivative and by finite differences."""

    what: str
    of: str
    shape: tuple[int, ...]
    analytic: float
    numeric: float
    error: float


class Report:
    """What ``be.check_grad`` found: ``ok``, the ``worst`` error, and a row for every op and every tensor."""

    def __init__(self, rows: Sequence[Row], tolerance: float) -> None:
        self.rows = list(rows)
        self.tolerance = tolerance

    @property
    def worst(self) -> float:
        """The largest relative error."""
        return max((row.error for row in self.rows), default=0.0)

    @property
    def ok(self) -> bool:
        """Whether every error is within the tolerance."""
        return all(row.error <= self.tolerance for row in self.rows)  # also false for NaN

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        lines = [f"{'what':<14} {'with respect to':<18} {'analytic':>13} {'numeric':>13} {'error':>9}"]
        for row in self.rows:
            mark = "" if row.error <= self.tolerance else "  WRONG"
            of = f"{row.of} {row.shape}"
            lines.append(f"{row.what:<14} {of:<18} {row.analytic:>13.6g} {row.numeric:>13.6g} {row.error:>9.1e}{mark}")
        verdict = "all derivatives agree" if self.ok else "derivatives DISAGREE"
        return "\n".join([*lines, f"{verdict}: worst error {self.worst:.1e}, tolerance {self.tolerance:.0e}"])


def check_grad(be: Backend, tree: OpTreeNode, tensors: Any = None, tolerance: float = 1e-6) -> Report:
    """Compare the derivatives of a tree with finite differences, and report op by op, then tensor by tensor.

    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> x = be.array([[0.5, -1.0]], name="x")
    >>> be.check_grad(1 / (1 + be.exp(-1 * x)), x).ok
    True

    Each op is taken by itself, with its operands' values and a random error; then the tree as a whole, with respect to
    ``tensors`` (all its floats unless given). Everything is worked out in float64 on a backend of its own; the tree's
    tensors do not change. The error is relative. At a kink, such as that of ``abs`` at 0, the two differ rightly.
    ValueError for a tree that draws random numbers: it has another value each time.
    Source: the fourth-order central difference (f(x-2h) - 8 f(x-h) + 8 f(x+h) - f(x+2h)) / 12h.
    """
    twin = Backend(type(be.runtime)(be.runtime.device_id), rng_seed=0, default_dtype="float64")
    copies: dict[int, Any] = {}
    nodes: list[Any] = []
    for node in postorder(tree):
        a, b = (_copy(x, twin, copies) for x in node[1:])
        copies[id(node)] = build(OPS[node.op], a, b, tuple(node.attrs.items()), twin)
        nodes.append(copies[id(node)])
    top = copies[id(tree)]
    if tensors is None:
        found = {id(x): x for node in postorder(tree) for x in node.operands if isinstance(x, Tensor)}
        tensors = [x for x in found.values() if x.info.dtype in FLOATS]
    rows = []
    for node in {node.key(): node for node in nodes}.values():  # equal sub-trees once
        if node.op != "pair" and node.info.row.grad is not None:
            rows += _check_op(twin, node)
    for x in listed(tensors):
        rows.append(_compare(twin, top, _copy(x, twin, copies), "the tree", label(x)))
    twin.cleanup_backend()
    return Report(rows, tolerance)


def _copy(x: Any, be: Backend, copies: dict[int, Any]) -> Any:
    """Return a tensor, with the tensor it is a view of, on another backend; anything else as it is."""
    if isinstance(x, Draw):
        raise ValueError("the tree draws random numbers, so its value changes each time: check it without them")
    if id(x) in copies:
        return copies[id(x)]
    if not isinstance(x, Tensor):
        return x
    if x.base is None:
        made = be.array(x, dtype="float64" if x.info.dtype in FLOATS else x.info.dtype, name=x.name)
    else:
        base = _copy(x.base, be, copies)
        op, attrs = x.origin  # type: ignore[misc]
        made = {
            "slice": lambda: base[boxed(attrs["index"])],
            "reshape": lambda: base.reshape(attrs["to"]),
            "transpose": lambda: base.permute(attrs["axes"]),
        }[op]()
    copies[id(x)] = made
    return made


def _check_op(be: Backend, node: Any) -> list[Row]:
    """Compare the derivatives of one op by itself, at the values of its operands."""
    fresh = {}
    for x in node.operands:
        if isinstance(x, Tensor | OpTreeNode) and x.info.dtype in FLOATS and id(x) not in fresh:
            fresh[id(x)] = (x, be.array(x, dtype="float64", name=label(x) if isinstance(x, Tensor) else x.op))
    alone = _with_leaves(node, fresh)
    rows = []
    for n, (_, leaf) in enumerate(fresh.values()):
        rows.append(_compare(be, alone, leaf, node.op, f"{'xyw'[n] if n < 3 else n}={leaf.name}"))
    return rows


def _with_leaves(node: Any, fresh: dict[int, Any]) -> Any:
    def swap(x: Any) -> Any:
        if id(x) in fresh:
            return fresh[id(x)][1]
        if type(x) is OpTreeNode and x.op == "pair":
            return build(OPS[x.op], swap(x[1]), swap(x[2]), (), x.backend)
        return x

    return build(OPS[node.op], swap(node[1]), swap(node[2]), tuple(node.attrs.items()), node.backend)


def _compare(be: Backend, tree: Any, x: Tensor, what: str, of: str) -> Row:
    """Compare dE along random directions in x, where E = sum(tree * error) with a random error; the worst of a few."""
    error = be.evaluate([be.randn(tree.shape)])[0]
    energy = be.sum(tree * error)
    rounding = 1e-6 * float(be.sum(abs(tree * error)).asnumpyarray().item())  # what is smaller, the differences lose
    grad = Autodiff(tree, be, error).get_grad_tensor([x])[0]
    start = be.array(x)
    rows = []
    for _ in range(DIRECTIONS):
        way = be.evaluate([be.randn(x.shape)])[0]
        values = []
        for steps in (-2, -1, 1, 2):
            x[:] = start + steps * STEP * way
            values.append(float(energy.asnumpyarray().item()))
        x[:] = start
        a, b, c, d = values
        numeric = (a - 8 * b + 8 * c - d) / (12 * STEP)
        analytic, scale = (float(t.get().item()) for t in be.evaluate([be.sum(grad * way), be.sum(abs(grad * way))]))
        size = max(abs(analytic), abs(numeric), 1e-3 * scale, rounding, 1e-9)
        rows.append(Row(what, of, x.shape, analytic, numeric, abs(analytic - numeric) / size))
    return max(rows, key=lambda row: row.error if row.error == row.error else float("inf"))


Backend.check_grad = check_grad
