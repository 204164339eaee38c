"""Is a layer right?  What it says is compared with its formula, and with the slopes of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

from neonlite.autodiff import Autodiff
from neonlite.backend import Backend, NervanaObject, Tensor
from neonlite.check import Report
from neonlite.layers.buffers import columns, features
from neonlite.layers.layer import Layer
from neonlite.optree import OpTreeNode, describe

STEP = 1e-5  # of the central differences, in float64
SMALL = 1e-3  # the size of gradients below which they count as being of this size


class LayerRow(NamedTuple):
    """One comparison, at the element where it is worst, or at the largest; None for what there is not."""

    of: str
    shape: tuple[int, ...]
    at: tuple[int, ...]
    layer: float | None
    formula: float | None
    slope: float | None
    error: float


class LayerReport(Report):
    """What ``check_layer`` found: ``ok``, the ``worst`` error, and a row for the outputs and for each gradient."""

    rows: list[Any]

    def __repr__(self) -> str:
        width = max(len(row.of) for row in self.rows)
        lines = [f"{'':<{width}} {'shape':<9} {'at':<8} {'layer':>11} {'formula':>11} {'slope':>11} {'error':>9}"]
        for row in self.rows:
            numbers = "".join(f" {'-' if x is None else format(x, '.5g'):>11}" for x in row[3:6])
            mark = "" if row.error <= self.tolerance else "  WRONG"
            lines.append(f"{row.of:<{width}} {row.shape!s:<9} {row.at!s:<8}{numbers} {row.error:>9.1e}{mark}")
        verdict = "the layer is right" if self.ok else "the layer is WRONG"
        return "\n".join([*lines, f"{verdict}: worst error {self.worst:.1e}, tolerance {self.tolerance:.0e}"])


def check_layer(
    layer: Layer, in_shape: Any, inputs: Any = None, batch_size: int = 3, tolerance: float = 1e-6
) -> LayerReport:
    """Compare what fprop and bprop of a layer say with its formula, where it has one, and with slopes.

    >>> import neonlite as nl
    >>> from neonlite.layers import Layer, check_layer
    >>> class Cube(Layer):
    ...     def configure(self, in_obj):
    ...         super().configure(in_obj)
    ...         self.out_shape = self.in_shape
    ...         return self
    ...
    ...     def formula(self, x):
    ...         return x * x * x
    ...
    ...     def bprop(self, error):
    ...         self.deltas[:] = 3 * self.inputs * self.inputs * error
    ...         return self.deltas
    >>> be = nl.gen_backend("cpu")
    >>> check_layer(Cube(), 5).ok
    True

    ``layer``: a new one, or a container; it is used up. ``inputs``: an array to take in the place of random numbers;
    where its dtype is one of whole numbers, as for words, nobody asks for deltas. All is worked out in float64 on a
    backend of its own. Parameters that begin with one number, such as 0, are moved away from it; gradients and deltas
    hold other numbers before. An error is relative to the largest element; a row shows the element where it is worst,
    or the largest where all agree. Every element is moved, and fprop run, twice: small shapes do.

    Slopes differ rightly at a kink, such as that of ``abs`` at 0, and where a layer learns by something else than its
    derivative: Sign, and the row of a LookupTable that is not trained.

    TypeError or ValueError when there is nothing to compare: a layer that was configured before, several outputs, or
    outputs and deltas that are no tensors of the shapes that the layer says.
    """
    if not isinstance(layer, Layer):
        way_out = "; several layers make a Sequential([...])" if isinstance(layer, list | tuple) else ""
        raise TypeError(f"check_layer takes a layer, such as Linear(3, Gaussian()); got {layer!r}{way_out}")
    if layer.in_shape is not None:
        raise ValueError(f"{layer.name} is configured already, for inputs {layer.in_shape}: check a new layer")
    now = layer.be
    be = Backend(now.name, 0, "float64", now.compat_mode, batch_size=batch_size)
    NervanaObject.be = be  # type: ignore[assignment, method-assign]  # the parts of the layer are to have it, too
    try:
        return LayerReport(compared(layer, be, in_shape, inputs, tolerance), tolerance)
    finally:
        NervanaObject.be = now  # type: ignore[assignment, method-assign]
        be.cleanup_backend()


def compared(layer: Any, be: Backend, in_shape: Any, inputs: Any, tolerance: float) -> list[Any]:
    """Return the rows of a report."""
    layer.configure(in_shape)
    several = any(isinstance(shape, list) for shape in (layer.in_shape, layer.out_shape))
    if several or (isinstance(layer.in_shape, tuple) and not all(isinstance(n, int) for n in layer.in_shape)):
        raise ValueError(f"{layer.name}: one input and one output are checked; it has {in_shape} -> {layer.out_shape}")
    layer.prev_layer = True  # there is somebody who wants the deltas
    layer.allocate()
    layer.allocate_deltas()
    whole = "int" in str(getattr(inputs, "dtype", ""))
    random = be.randn(features(layer.in_shape), columns(layer.in_shape) * be.bsz)
    x = be.array(random if inputs is None else inputs, "int32" if whole else None)
    for p in layer.parameters:
        if (p.get() == p.get().flat[0]).all():  # a factor of 1, or a term of 0, would hide what is done with it
            p[:] = p + be.randn(p.shape) / 2
    start, state = [(t, t.get()) for t in (*layer.parameters, x)], be.rng_get_state()

    def restore() -> None:
        for t, values in start:  # the values that are moved, and an fprop may write over its inputs
            t[:] = values
        for leaf in layer.leaves():
            leaf.carry({})  # what it remembers of the last time
        be.rng_set_state(state)

    def outputs() -> Any:
        restore()
        shape = layer.out_shape and (features(layer.out_shape), columns(layer.out_shape) * be.bsz)
        return checked(f"{layer.name}: fprop returns the outputs", layer.fprop(x), shape).get()

    y = outputs()
    error = be.array(be.randn(y.shape))
    gradients = list(layer.gradients)
    for t in (*gradients, layer.deltas):
        if t is not None:
            t.fill(9)  # bprop is to write, not to add
    deltas = layer.bprop(be.array(error))
    if not whole:
        gradients.append(checked(f"{layer.name}: bprop returns the deltas", deltas, x.shape))
    names = [*(t.name for t in layer.gradients), "deltas"]
    found, e = [t.get() for t in gradients], error.get()

    rows, derived = [], [None] * len(found)
    if getattr(layer.formula, "__func__", None) is not Layer.formula:
        restore()
        tree = layer.formula(x)
        if not isinstance(tree, Tensor | OpTreeNode) or tree.shape != y.shape:
            raise ValueError(f"{layer.name}: formula(x) is an op-tree of the shape {y.shape}; got {describe(tree)}")
        tree = tree * 1 if isinstance(tree, Tensor) else tree
        rows.append(row("outputs", y, tree.asnumpyarray(), None, tolerance))
        restore()
        tensors = [t for t, _ in start][: len(found)]
        derived = Autodiff(tree, be, error, allow_unused=True).get_grad_asnumpyarray(tensors)
    for name, got, want, (_, values) in zip(names, found, derived, start, strict=False):
        rows.append(row(name, got, want, slopes(outputs, values, e), tolerance))
    return rows


def checked(what: str, value: Any, shape: Any) -> Tensor:
    """Return a tensor; TypeError when it is none, ValueError when it has not this shape."""
    if shape is None:
        raise ValueError(f"{what}, whose shape is not known: configure() is to set out_shape")
    if not isinstance(value, Tensor):
        raise TypeError(f"{what}, a tensor {shape}; got {value!r}")
    if value.shape != shape:
        raise ValueError(f"{what}, a tensor {shape}; got {describe(value)}")
    return value


def slopes(outputs: Callable[[], Any], values: Any, error: Any) -> Any:
    """Return ``d sum(error outputs()) / d values`` for values that ``outputs`` looks at, one by one."""
    found = values * 0
    for i in range(values.size):
        was = values.flat[i]
        values.flat[i] = was + STEP
        up = outputs()
        values.flat[i] = was - STEP
        found.flat[i] = (error * (up - outputs())).sum() / (2 * STEP)
        values.flat[i] = was
    return found


def row(of: str, layer: Any, formula: Any, slope: Any, tolerance: float) -> LayerRow:
    """Return the comparison of arrays, at the element where it is worst; where all agree, at the largest."""
    others = [a for a in (formula, slope) if a is not None]
    size = max(SMALL, *(float(abs(a).max()) for a in (layer, *others)))
    xp = layer.__array_namespace__()
    errors = reduce(xp.maximum, [abs(layer - a) / size for a in others])
    error = float(errors.max())
    i = int((abs(layer) if error <= tolerance else errors).argmax())
    at = tuple(int(k) for k in xp.unravel_index(i, layer.shape))
    mine, by_formula, by_slope = (None if a is None else float(a.flat[i]) for a in (layer, formula, slope))
    return LayerRow(of, layer.shape, at, mine, by_formula, by_slope, error)
