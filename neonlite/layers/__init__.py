"""Neural-network layers, containers and network costs; check_layer, which compares a layer with its formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

# fmt: off
# ruff: isort: off
from neonlite.autodiff import Autodiff
from neonlite.backend import Backend, Tensor, use_backend
from neonlite.backend.objects import declare_builtin
from neonlite.backend.validation import instance
from neonlite.gradcheck import MIN_SIZE, GradientReport, numerical_derivative
from neonlite.layers.activation import Activation, DataTransform, Dropout, Reshape
from neonlite.layers.attention import (
    LookupTable, MultiHeadAttention, PositionalEncoding, PositionEmbedding, TransformerBlock, attention,
)
from neonlite.layers.bidirectional import BiBNRNN, BiLSTM, BiRNN, BiSum, DeepBiLSTM, DeepBiRNN
from neonlite.layers.buffers import num_features, num_steps
from neonlite.layers.container import GenerativeAdversarial, LayerContainer, Sequential
from neonlite.layers.cost import GeneralizedCost, GeneralizedCostMask, GeneralizedGANCost, Multicost
from neonlite.layers.images import LRN, Convolution, Convolution_bias, Deconvolution, Pooling, RoiPooling
from neonlite.layers.layer import Layer
from neonlite.layers.linear import Affine, Bias, BinaryAffine, BinaryLinear, CompoundLayer, Conv, Deconv, Linear
from neonlite.layers.merge import (
    BranchNode, MergeBroadcast, MergeMultistream, MergeSum, SingleOutputTree, SkipNode, Tree,
)
from neonlite.layers.activation import BatchNorm, BatchNormAutodiff, LayerNorm, ShiftBatchNorm
from neonlite.layers.parameter import ParameterLayer, ParameterSpec, TensorAttribute
from neonlite.layers.recurrent import GRU, LSTM, Recurrent, RecurrentLast, RecurrentMean, RecurrentSum, get_steps
from neonlite.layers.seq2seq import Decoder, Encoder, Seq2Seq, SkipThought
from neonlite.messages import describe
from neonlite.name_hints import module_getattr
from neonlite.optree import OpTreeNode
from neonlite.typing import ArrayLike, LayerShape, NumPyArray

__all__ = [
    "GRU", "LRN", "LSTM", "Activation", "Affine", "BatchNorm", "BatchNormAutodiff", "BiBNRNN", "BiLSTM", "BiRNN",
    "BiSum", "Bias", "BinaryAffine", "BinaryLinear", "BranchNode", "CompoundLayer", "Conv", "Convolution",
    "Convolution_bias", "DataTransform", "Decoder", "Deconv", "Deconvolution", "DeepBiLSTM", "DeepBiRNN", "Dropout",
    "Encoder", "GeneralizedCost", "GeneralizedCostMask", "GeneralizedGANCost", "GenerativeAdversarial", "Layer",
    "LayerContainer", "LayerNorm", "Linear", "LookupTable", "MergeBroadcast", "MergeMultistream", "MergeSum",
    "MultiHeadAttention", "Multicost", "ParameterLayer", "ParameterSpec", "Pooling", "PositionEmbedding",
    "PositionalEncoding", "Recurrent", "RecurrentLast", "RecurrentMean", "RecurrentSum", "Reshape", "RoiPooling",
    "Seq2Seq", "Sequential", "ShiftBatchNorm", "SingleOutputTree", "SkipNode", "SkipThought", "TensorAttribute",
    "TransformerBlock", "Tree", "attention", "check_layer", "get_steps",
]
# fmt: on

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__)

# --- check_layer: compare fprop and bprop of a layer with its formula and with numerical gradients ---

FD_STEP = 1e-5  # step of the finite differences, in float64
MIN_GRADIENT_SCALE = 1e-3  # errors of smaller gradients are relative to this


class LayerRow(NamedTuple):
    """One row of the report: values at the element with the largest error, or at the largest one if all agree."""

    name: str
    shape: tuple[int, ...]
    worst_index: tuple[int, ...]
    layer: float | None
    formula: float | None
    numerical: float | None
    error: float


class LayerReport(GradientReport):
    """The result of ``check_layer``: ``ok``, the ``worst`` error, and a row for the outputs and for each gradient."""

    header = ("", "shape", "index", "layer", "formula", "numerical", "error")
    verdicts = ("check_layer: FAILED", "check_layer: passed")

    def __init__(self, rows: Sequence[LayerRow], tolerance: float) -> None:
        super().__init__(rows, tolerance)
        width = max(len(row.name) for row in rows)
        self.line_format = f"{{:<{width}}} {{:<9}} {{:<8}} {{:>11}} {{:>11}} {{:>11}} {{:>9}}"

    def _cells(self, row: Any) -> tuple[str, ...]:
        numbers = ("-" if x is None else f"{x:.5g}" for x in (row.layer, row.formula, row.numerical))
        return row.name, str(row.shape), str(row.worst_index), *numbers, f"{row.error:.1e}"


def check_layer(
    layer: Layer, in_shape: LayerShape, inputs: ArrayLike | None = None, batch_size: int = 3, tolerance: float = 1e-6
) -> LayerReport:
    """Compare fprop and bprop of a layer with its formula, if it has one, and with numerical gradients.

    Numerical gradients are central finite differences in float64, on a separate backend. They run ``fprop`` twice for
    each element, so use small shapes. Parameters whose elements are all equal, such as 0, are perturbed first;
    gradients and deltas are filled with arbitrary values before ``bprop``, which must overwrite them. Errors are
    relative to the largest element. Elements where finite differences do not converge, at a pole or at the edge of the
    domain, are skipped (NaN); a row in which all are skipped says "not measurable here". Layers that do not compute the
    true derivative fail by design, such as activations with ``Sign``, and ``LookupTable`` with ``pad_idx``, whose row
    has no gradient.

    Parameters
    ----------
    layer : Layer
        A new layer or container. It cannot be used afterwards.
    in_shape : int or tuple
        The input shape.
    inputs : array, optional
        Inputs. Default: random. If they are integers, such as token ids, deltas are not compared.
    batch_size : int
        The batch size.
    tolerance : float
        The largest accepted relative error.

    Returns
    -------
    LayerReport
        Printed, it is a table; ``ok`` is True if all rows agree.

    Raises
    ------
    TypeError, ValueError
        If the layer is already configured, has several outputs, or returns results of a wrong type or shape.

    Examples
    --------
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
    """
    hint = ". Combine several layers in a Sequential([...])" if isinstance(layer, list | tuple) else ""
    instance("check_layer: layer", layer, Layer, "a layer, such as Linear(3, Gaussian()),", hint)
    if layer.in_shape is not None:
        raise ValueError(
            f"check_layer: expected a new layer, got {layer.name}, configured for inputs {layer.in_shape}. Create "
            "another one."
        )
    previous = layer.be
    be = Backend(previous.name, 0, "float64", previous.compat_mode, batch_size=batch_size)
    try:
        with use_backend(be):  # for all layers of a container
            return LayerReport(compare_layer(layer, be, in_shape, inputs, tolerance), tolerance)
    finally:
        be.cleanup_backend()


def compare_layer(
    layer: Any, be: Backend, in_shape: LayerShape, inputs: ArrayLike | None, tolerance: float
) -> list[Any]:
    """Return the rows of a report."""
    layer.configure(in_shape)
    is_multiple = any(isinstance(shape, list) for shape in (layer.in_shape, layer.out_shape))
    if is_multiple or (isinstance(layer.in_shape, tuple) and not all(isinstance(n, int) for n in layer.in_shape)):
        raise ValueError(
            f"check_layer: expected a layer with one input and one output, got {layer.name}: {in_shape} -> "
            f"{layer.out_shape}."
        )
    layer.needs_deltas = True
    layer.allocate()
    layer.allocate_deltas()
    is_integer = "int" in str(getattr(inputs, "dtype", ""))
    random = be.randn(num_features(layer.in_shape), num_steps(layer.in_shape) * be.bsz)
    x = be.array(random if inputs is None else inputs, "int32" if is_integer else None)
    for p in layer.parameters:
        if (p.get() == p.get().flat[0]).all():  # a factor of 1 or a term of 0 would hide errors
            p[:] = p + be.randn(p.shape) / 2
    start, state = [(t, t.get()) for t in (*layer.parameters, x)], be.rng_get_state()

    def restore() -> None:
        for t, values in start:  # changed by finite differences; fprop may overwrite its inputs
            t[:] = values
        for leaf in layer.leaves():
            leaf.set_state({})
        be.rng_set_state(state)

    def outputs() -> Any:
        restore()
        shape = layer.out_shape and (num_features(layer.out_shape), num_steps(layer.out_shape) * be.bsz)
        return require_tensor(f"{layer.name}.fprop", layer.fprop(x), shape).get()

    y = outputs()
    error = be.array(be.randn(y.shape))
    gradients = list(layer.gradients)
    for t in (*gradients, layer.deltas):
        if t is not None:
            t.fill(9)  # bprop must overwrite, not add
    deltas = layer.bprop(be.array(error))
    if not is_integer:
        gradients.append(require_tensor(f"{layer.name}.bprop", deltas, x.shape))
    names = [*(t.name for t in layer.gradients), "deltas"]
    results, e = [t.get() for t in gradients], error.get()

    rows = []
    derived: Sequence[Any] = [None] * len(results)
    if getattr(layer.formula, "__func__", None) is not Layer.formula:
        restore()
        tree = layer.formula(x)
        if not isinstance(tree, Tensor | OpTreeNode) or tree.shape != y.shape:
            raise ValueError(f"{layer.name}.formula: expected an op-tree of shape {y.shape}, got {describe(tree)}.")
        tree = tree * 1 if isinstance(tree, Tensor) else tree
        rows.append(make_row("outputs", y, tree.asnumpyarray(), None, tolerance))
        restore()
        tensors = [t for t, _ in start][: len(results)]
        derived = Autodiff(tree, be, error, allow_unused=True).get_grad_asnumpyarray(tensors)
    for name, got, want, (_, values) in zip(names, results, derived, start, strict=False):
        numerical = numerical_gradient(lambda: (e * (outputs() - y)).sum(), values, got, tolerance)
        rows.append(make_row(name, got, want, numerical, tolerance))
    return rows


def require_tensor(label: str, value: object, shape: LayerShape) -> Tensor:
    """Return ``value``; raise TypeError if it is not a tensor, ValueError if it has another shape."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{label}: expected a tensor of shape {shape}, got {value!r}.")
    if value.shape != shape:
        raise ValueError(f"{label}: expected a tensor of shape {shape}, got {describe(value)}.")
    return value


def numerical_gradient(
    energy: Callable[[], float], values: NumPyArray, gradient: NumPyArray, tolerance: float
) -> NumPyArray:
    """Return ``d energy() / d values`` for each element of values, which ``energy`` reads; NaN if not convergent."""
    result, size = values * 0, largest(gradient)
    for i in range(values.size):
        original, analytic = float(values.flat[i]), float(gradient.flat[i])

        def value(t: float, i: int = i, original: float = original) -> float:
            values.flat[i] = original + t
            return float(energy())

        def agrees(slope: float, analytic: float = analytic) -> bool:
            return math.isfinite(slope) and abs(analytic - slope) <= tolerance * max(size, abs(slope))

        slope = (value(FD_STEP) - value(-FD_STEP)) / (2 * FD_STEP)
        scales = iter((max(abs(original), MIN_SIZE), abs(original) or MIN_SIZE))
        while not agrees(slope) and (scale := next(scales, None)):
            slope = numerical_derivative(lambda t, scale=scale: value(t * scale) / scale, analytic, agrees)  # type: ignore[misc]
            if not math.isnan(slope):
                break
        result.flat[i] = slope
        values.flat[i] = original
    return result


def largest(values: NumPyArray) -> float:
    """Return the largest finite magnitude, at least MIN_GRADIENT_SCALE."""
    xp = values.__array_namespace__()
    return max(MIN_GRADIENT_SCALE, float(xp.max(xp.where(xp.isfinite(values), abs(values), 0), initial=0)))


def make_row(
    name: str, layer: NumPyArray, formula: NumPyArray | None, numerical: NumPyArray | None, tolerance: float
) -> LayerRow:
    """Return the comparison of arrays, at the element with the largest error, or the largest element if all agree."""
    others = [a for a in (formula, numerical) if a is not None]
    size = max(map(largest, (layer, *others)))
    xp = layer.__array_namespace__()
    errors = reduce(
        xp.fmax, [xp.where(xp.isfinite(a) & ~xp.isfinite(layer), math.inf, abs(layer - a) / size) for a in others]
    )
    error = float(xp.fmax.reduce(errors, axis=None)) if numerical is not None else float(errors.max())
    i = int((abs(layer) if error <= tolerance else errors).argmax())
    index = tuple(int(k) for k in xp.unravel_index(i, layer.shape))
    values = [None if a is None else float(a.flat[i]) for a in (layer, formula, numerical)]
    return LayerRow(name, layer.shape, index, values[0], values[1], values[2], error)


declare_builtin([globals()[name] for name in __all__])
