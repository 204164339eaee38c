"""Gradient checking: compare the gradients of an op-tree with finite differences, op by op and for the whole tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from neonlite import autodiff, messages, tree_structure, typing
from neonlite.backend.tensor import Tensor, replay_view
from neonlite.backend.validation import instance
from neonlite.messages import label
from neonlite.ops import OPS
from neonlite.optree import OpTreeNode, create_node, postorder

if TYPE_CHECKING:
    from neonlite.array_api import Array

STEP_SIZE = 1e-3  # of the central difference in float64, relative to the magnitude of each element
STEPS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)  # tried if the gradient and the first difference disagree
MIN_SIZE = 1e-3  # used instead of the magnitude of smaller elements
NUM_DIRECTIONS = 3


class GradientComparison(NamedTuple):
    """One comparison: the derivative of E along a random direction, by autodiff and by finite differences."""

    op: str
    operand: str
    shape: tuple[int, ...]
    analytic: float
    numeric: float
    error: float


class GradientReport:
    """The result of ``be.check_grad``, which prints as a table.

    Parameters
    ----------
    rows : sequence of NamedTuple
        One comparison for each operand of each op, and for each tensor. An error of NaN means that finite differences
        do not converge at this point.
    tolerance : float
        The largest relative error that counts as correct.
    """

    header: tuple[str, ...] = ("op", "with respect to", "analytic", "numeric", "error")
    line_format = "{:<14} {:<18} {:>13} {:>13} {:>9}"
    verdicts = ("derivatives DISAGREE", "all derivatives agree")

    def __init__(self, rows: Sequence[Any], tolerance: float) -> None:
        self.rows = list(rows)
        self.tolerance = tolerance

    @property
    def worst(self) -> float:
        """The largest relative error."""
        return max((row.error for row in self.rows if not math.isnan(row.error)), default=0.0)

    @property
    def ok(self) -> bool:
        """Whether every error was measured and is within the tolerance."""
        return bool(self.rows) and all(row.error <= self.tolerance for row in self.rows)

    def __bool__(self) -> bool:
        return self.ok

    def _mark(self, error: float) -> str:
        """Return the suffix of a row."""
        return "  not measurable here" if math.isnan(error) else "  WRONG" if error > self.tolerance else ""

    def _cells(self, row: Any) -> tuple[str, ...]:
        """Return the cells of a row."""
        operand, numbers = f"{row.operand} {row.shape}", (f"{row.analytic:.6g}", f"{row.numeric:.6g}")
        return row.op, operand, *numbers, f"{row.error:.1e}"

    def _verdict(self) -> str:
        """Return the last line of the table."""
        passed = [row.error <= self.tolerance for row in self.rows if not math.isnan(row.error)]
        if not self.rows:
            return "there is no derivative to check"
        if not passed:
            return f"{len(self.rows)} of {len(self.rows)} not measurable; nothing is known"
        verdict = self.verdicts[all(passed)]
        if len(passed) < len(self.rows):
            verdict = f"{len(self.rows) - len(passed)} of {len(self.rows)} not measurable; {verdict}"
        return f"{verdict}: worst error {self.worst:.1e}, tolerance {self.tolerance:.0e}"

    def __repr__(self) -> str:
        lines = [self.line_format.format(*self.header)]
        lines += [self.line_format.format(*self._cells(row)) + self._mark(row.error) for row in self.rows]
        return "\n".join([*lines, self._verdict()])

    def _repr_html_(self) -> str:
        rows = [(*self._cells(row), self._mark(row.error).strip()) for row in self.rows]
        return str(messages.stack(messages.table(rows, (*self.header, "")), self._verdict()))


def check_grad(
    be: typing.BackendBase, tree: OpTreeNode | Array, tensors: autodiff.Variables | None = None, tolerance: float = 1e-6
) -> GradientReport:
    """Compare the gradients of an op-tree with finite differences, op by op and for the whole tree.

    Everything is computed in float64 on a temporary backend; the tensors of the tree do not change. Each op is checked
    alone, at the values of its operands and with a random ``next_error``; then the tree, with respect to each tensor.
    Step sizes and errors are relative to the magnitude of each element.

    If the two disagree, smaller and one-sided steps are tried. At a kink, such as ``maximum(x, 0)`` at 0, a one-sided
    derivative or the mean of both counts as correct. At a pole and at the edge of a function's domain no step
    converges: the row is marked "not measurable here", and ``ok`` is False.

    Parameters
    ----------
    be : Backend
        The backend of the tree.
    tree : OpTreeNode
        The op-tree to check.
    tensors : Tensor or list of Tensor, optional
        The tensors to differentiate with respect to; all float tensors of the tree by default.
    tolerance : float, default 1e-6
        The largest relative error that counts as correct.

    Returns
    -------
    GradientReport
        The report: ``ok``, ``worst`` and ``rows``.

    Raises
    ------
    TypeError
        ``tree`` is not an op-tree.
    ValueError
        The tree contains random numbers, so its value changes at each evaluation.

    References
    ----------
    The fourth-order central difference, (f(x-2h) - 8 f(x-h) + 8 f(x+h) - f(x+2h)) / 12h.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> x = be.array([[0.5, -1.0]], name="x")
    >>> be.check_grad(1 / (1 + be.exp(-1 * x)), x).ok
    True
    """
    if not be.runtime.has_values:
        raise RuntimeError(f"be.check_grad: expected a backend with values, got {be!r}")
    root = autodiff.operand_of(tree)
    hint = f"; be.check_grad(1 * {root.name or 't'}) checks a tensor" if isinstance(root, Tensor) else ""
    instance("be.check_grad: tree", root, OpTreeNode, "an op-tree", hint)
    runtime = type(be.runtime)(be.runtime.device_id)
    reference_be = be.allocate_backend(runtime, rng_seed=0, default_dtype="float64")
    copies: dict[int, Any] = {}
    nodes: list[Any] = []
    for node in postorder(root, opens=tree_structure.is_composite):
        if type(node.left) is tree_structure.RandomSource:
            raise ValueError(
                "be.check_grad: expected a tree without random numbers, as they change its value at each evaluation"
            )
    for node in postorder(root):
        a, b = (_copy_operand(x, reference_be, copies) for x in (node.left, node.right))
        copies[id(node)] = create_node(node.info.op_def, a, b, tuple(node.attrs.items()), reference_be)
        nodes.append(copies[id(node)])
    if tensors is None:
        leaves = {id(x): x for node in postorder(root) for x in node.operands if isinstance(x, Tensor)}
        tensors = [x for x in leaves.values() if x.info.dtype in typing.FLOAT_DTYPES]
    rows = []
    for node in {node.key(): node for node in nodes}.values():  # merge equal sub-trees
        if node.op != "pair" and node.info.op_def.grad is not None:
            rows += _check_op_gradient(reference_be, node, tolerance)
    for x in map(autodiff.operand_of, autodiff.as_list(tensors)):
        rows.append(
            _compare_directional(
                reference_be, copies[id(root)], _copy_operand(x, reference_be, copies), "the tree", label(x), tolerance
            )
        )
    reference_be.cleanup_backend()
    return GradientReport(rows, tolerance)


def _copy_operand(x: Any, be: typing.BackendBase, copies: dict[int, Any]) -> Any:
    """Return a copy of a tensor, and of the tensor it is a view of, on another backend; else the operand itself."""
    if id(x) in copies:
        return copies[id(x)]
    if not isinstance(x, Tensor):
        return x
    if x.base is None:
        copied = be.array(x, dtype="float64" if x.info.dtype in typing.FLOAT_DTYPES else x.info.dtype, name=x.name)
    else:
        copied = replay_view(x, _copy_operand(x.base, be, copies))
    copies[id(x)] = copied
    return copied


def _check_op_gradient(be: typing.BackendBase, node: Any, tolerance: float) -> list[GradientComparison]:
    """Check the gradients of one op alone, at the values of its operands."""
    leaves = {}
    for x in node.operands:
        if isinstance(x, Tensor | OpTreeNode) and x.info.dtype in typing.FLOAT_DTYPES and id(x) not in leaves:
            leaves[id(x)] = (x, be.array(x, dtype="float64", name=label(x) if isinstance(x, Tensor) else x.op))
    single_op = _replace_operands(node, leaves)
    rows = []
    for n, (_, leaf) in enumerate(leaves.values()):
        rows.append(
            _compare_directional(be, single_op, leaf, node.op, f"{'xyw'[n] if n < 3 else n}={leaf.name}", tolerance)
        )
    return rows


def _replace_operands(node: Any, leaves: dict[int, Any]) -> Any:
    op: Any = node.info.op_def

    def swap(x: Any) -> Any:
        if id(x) in leaves:
            return leaves[id(x)][1]
        if type(x) is OpTreeNode and x.op == "pair":
            return create_node(OPS["pair"], swap(x.left), swap(x.right), (), x.backend)
        return x

    return create_node(op, swap(node.left), swap(node.right), tuple(node.attrs.items()), node.backend)


def _compare_directional(
    be: typing.BackendBase, tree: Any, x: Tensor, op: str, operand: str, tolerance: float
) -> GradientComparison:
    """Compare derivatives of E = sum(tree * error) along random directions of x; return the worst comparison."""
    error = be.evaluate([be.randn(tree.shape)])[0]
    loss = be.sum(tree * error)
    rounding = 1e-6 * float(be.sum(abs(tree * error)))  # differences below this may be rounding errors only
    grad = autodiff.Autodiff(tree, be, error).get_grad_tensor([x])[0]
    start = be.array(x)
    size = be.evaluate([abs(start)])[0]

    def compare_along(direction: Tensor, rounding: float, derivative: Callable[..., float]) -> GradientComparison:
        def value(t: float) -> float:
            x[:] = start + t * direction
            return float(loss)

        def relative(numeric: float) -> float:
            return abs(analytic - numeric) / max(abs(analytic), abs(numeric), 1e-3 * scale, rounding, 1e-300)

        analytic, scale = map(float, be.evaluate([be.sum(grad * direction), be.sum(abs(grad * direction))]))
        numeric = derivative(value, analytic, lambda numeric: relative(numeric) <= tolerance)
        x[:] = start
        is_comparable = math.isfinite(analytic) or math.isnan(numeric)
        return GradientComparison(
            op, operand, x.shape, analytic, numeric, relative(numeric) if is_comparable else math.inf
        )

    rows = []
    for _ in range(NUM_DIRECTIONS):
        random = be.evaluate([be.randn(x.shape)])[0]
        direction = be.evaluate([random * be.maximum(size, MIN_SIZE)])[0]
        row = compare_along(direction, rounding, lambda value, *_: central_difference(value, STEP_SIZE))
        if not row.error <= tolerance:
            row = compare_along(direction, rounding, numerical_derivative)
        if math.isnan(row.error):  # next to a pole that is closer than MIN_SIZE
            row = compare_along(be.evaluate([random * be.where(size, size, MIN_SIZE)])[0], 0.0, numerical_derivative)
        rows.append(row)
    return max(rows, key=lambda row: (row.error > tolerance, math.isnan(row.error), row.error))


def central_difference(value: Callable[[float], float], h: float) -> float:
    """Return the derivative at 0 by the fourth-order central difference."""
    return (value(-2 * h) - 8 * value(-h) + 8 * value(h) - value(2 * h)) / (12 * h)


def one_sided_difference(value: Callable[[float], float], h: float) -> float:
    """Return the derivative at 0 by the fourth-order one-sided difference towards h."""
    return sum(c * value(k * h) for k, c in enumerate((-25, 48, -36, 16, -3))) / (12 * h)


def numerical_derivative(value: Callable[[float], float], analytic: float, agrees: Callable[[float], bool]) -> float:
    """Return the derivative at 0 by finite differences, or NaN if they do not converge.

    Try step sizes from large to small, and return the first central or one-sided difference that agrees with the
    analytic derivative. If none does, return the central difference with the smallest uncertainty, provided that this
    is small enough to show that the analytic derivative is wrong. The uncertainty of a central difference is its
    change from the previous step size, or the difference of the two one-sided ones if that is larger.
    """
    estimates = []
    for h in STEPS:
        derivatives = central_difference(value, h), one_sided_difference(value, h), one_sided_difference(value, -h)
        for derivative in derivatives:
            if agrees(derivative):
                return derivative
        estimates.append(derivatives)
    candidates = [(max(abs(a[0] - b[0]), abs(b[1] - b[2])), b[0]) for a, b in pairwise(estimates)]
    uncertainty, derivative = min((x for x in candidates if math.isfinite(x[0])), default=(math.inf, math.nan))
    converges = uncertainty <= 1e-3 * max(abs(derivative), 1e-3 * abs(value(0)))
    differs = 10 * uncertainty < abs(analytic - derivative) or not math.isfinite(analytic)
    return derivative if converges and differs else math.nan
