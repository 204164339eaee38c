"""How is an image filtered?  A window slides over it; what lies in the window is multiplied by weights, and summed.

Images are (C, H, W), or (C, D, H, W) with a depth; each is a column of inputs (C D H W, N). The backend's primitives do
the work. The formulas say the same in op-trees: what lies in one place of all windows is a slice of the images; such
slices side by side are columns; and a convolution is the product of weights and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from neonlite.layers.layer import Layer, accumulates
from neonlite.layers.parameter import Learned, ParameterLayer, Slot

# --- what all layers of images share ---------------------------------------------------------------------------------


class ImageLayer(Layer):
    """A layer from images to images. One of your own says ``layer_object(N)``; it becomes ``nglayer``."""

    reads_outputs = False
    nglayer: Any = None
    axes = "dhw"  # those that strides and padding have names for

    def layer_object(self, N: int) -> Any:
        """Return the backend's layer object for N images of ``in_shape``."""
        raise NotImplementedError(f"{self.classnm} has no layer object: write layer_object(N)")

    @property
    def result(self) -> tuple[int, ...]:
        """(K, M, P, Q) of the outputs."""
        return tuple(self.nglayer.dimO[:4])

    def configure(self, in_obj: Any) -> Any:
        """Take the inputs' shape. ValueError when they are no images, or a window does not fit them."""
        super().configure(in_obj)
        if not isinstance(self.in_shape, tuple) or len(self.in_shape) not in (3, 4):
            raise ValueError(
                f"{self.name}: {self.classnm} takes images (C, H, W) or (C, D, H, W); the inputs' shape is "
                f"{self.in_shape}: put Reshape((C, H, W)) before it, or give the data set such a shape"
            )
        try:
            self.nglayer = self.layer_object(self.be.bsz or 1)
        except (TypeError, ValueError) as error:
            what = str(error).split(": ", 1)[-1]  # without the word of who found it
            raise type(error)(f"{self.name}: {what}; the inputs' shape is {self.in_shape}") from None
        K, M, P, Q = self.result
        self.out_shape = (K, P, Q) if M == 1 and len(self.in_shape) == 3 else (K, M, P, Q)
        return self

    def allocate(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        """Make the buffers, for as many images as ``be.bsz`` says by now."""
        super().allocate(shared_outputs, accumulate_updates)
        if self.be.bsz != self.nglayer.N:
            self.nglayer = self.layer_object(self.be.bsz)

    def prepare(self, inputs: Any, inference: bool) -> Any:
        """Check the inputs and keep them. Primitives do the work, so the formula, which may be long, is not built."""
        self.accept(inputs)
        self.inputs, self.tree = inputs, None if inference else inputs
        return self.tree

    def image(self, names: str = "CDHW") -> dict[str, int]:
        """Return the sizes of the inputs by name."""
        C, *depth, H, W = self.in_shape
        return dict(zip(names, (C, *(depth or [1]), H, W), strict=True))

    def steps(self, deep: bool, **given: Any) -> dict[str, Any]:
        """Return strides, paddings and dilations by name. One number goes along depth if ``deep``, and the inputs."""
        single = 3 if deep and len(self.in_shape) == 4 else 2
        found: dict[str, Any] = {}
        for what, (prefix, value) in given.items():
            found |= sizes(self.name, what, value, [f"{prefix}_{axis}" for axis in self.axes], 2, single)
        return found


def sizes(owner: str, what: str, given: Any, names: Sequence[str], fewest: int, single: int = 0) -> dict[str, Any]:
    """Return sizes by name: of a dict, or of numbers for the last of the names, which are ``fewest`` or more.

    One number stands for the last ``single`` names. ValueError for anything else.
    """
    if single and hasattr(given, "__index__"):
        given = (given,) * single
    if isinstance(given, tuple | list) and fewest <= len(given) <= len(names):
        return dict(zip(names[-len(given) :], given, strict=True))
    if isinstance(given, dict) and set(given) <= set(names):
        return given
    ways = [f"({', '.join(names[-n:])})" for n in range(fewest, len(names) + 1)]
    ways = ["a whole number", *ways] if single else ways
    raise ValueError(f"{owner}: {what} is {', '.join(ways)}, or a dict of such names; got {given!r}")


def boxes(g: Any, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int], counts: Any) -> list[Any]:
    """Return, for each place in a window, the box of padded images that it takes, from under all windows."""
    found = []
    for place in product(*map(range, window)):
        each = zip(place, counts, strides, dilation, strict=True)
        found.append((*((k * apart, count, stride) for k, count, stride, apart in each), (0, g.N, 1)))
    return found


def padded(be: Any, x: Any, padding: Sequence[int], found: list[Any]) -> Any:
    """Return images (C, D, H, W, N) with zeros around them, large enough for all boxes."""
    ends = [max(start + (n - 1) * step + 1 for start, n, step in axis) for axis in zip(*found, strict=True)]
    each = list(zip(x.shape, (*padding, 0), ends, strict=True))
    to = tuple(max(n + 2 * pad, end) for n, pad, end in each)
    return be.build("unslice", x, index=tuple((pad, n, 1) for n, pad, _ in each), to=to)


# --- convolution -----------------------------------------------------------------------------------------------------


class Filters(ImageLayer, ParameterLayer):
    """What a convolution and its transpose share: weights (C T R S, K), and how filters slide.

    Strides, padding and dilation are a number for height and width, and for depth where ``fshape`` and the inputs have
    one; (height, width); (depth, height, width); or a dict of ``str_h``, ``pad_w``, ``dil_d`` and so on. With ``bsum``,
    ``batch_sum``, a column, takes the sum of each map of the outputs.
    """

    names = "TRSK"  # of the sizes in fshape
    weight_bias: Any = None  # what Convolution_bias has
    grad_bias: Any = None

    def __init__(
        self,
        fshape: Any,
        strides: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        init: Any = None,
        bsum: bool = False,
        name: str | None = None,
        parallelism: str = "Data",
    ) -> None:
        super().__init__(init, name, parallelism)
        self.fshape, self.strides, self.padding, self.dilation, self.bsum = fshape, strides, padding, dilation, bsum
        self.batch_sum: Any = None
        self.window = sizes(self.name, "fshape", fshape, self.names, 3)
        if missing := [n for n in self.names[1:] if n not in self.window]:
            raise ValueError(f"{self.name}: fshape has {', '.join(self.names[1:])}; got {fshape}, no {missing[0]}")

    def geometry(self) -> dict[str, Any]:
        """Return all sizes that a layer object is made of, but those of the inputs, by name."""
        given = {"strides": ("str", self.strides), "padding": ("pad", self.padding), "dilation": ("dil", self.dilation)}
        return self.window | self.steps("T" in self.window, **given)

    def configure(self, in_obj: Any) -> Any:
        super().configure(in_obj)
        self.weight_shape = self.nglayer.dimF2
        return self

    def allocate(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        super().allocate(shared_outputs, accumulate_updates)
        if self.bsum and self.batch_sum is None:
            self.batch_sum = self.be.zeros((self.result[0], 1), name=f"{self.name}.batch_sum")

    def boxes(self) -> list[Any]:
        """Return the box of padded images (C, D, H, W, N) that each place in a filter takes."""
        g = self.nglayer
        return boxes(g, (1, *g.TRS), (1, *g.strides), (1, *g.dilation), (g.C, *g.MPQ))

    def finish(self) -> Any:
        """Add the bias to the outputs and sum them, which primitives leave out where they add to the outputs."""
        maps = self.outputs.reshape(self.result[0], -1)
        if self.weight_bias is not None:
            maps[:] = maps + self.weight_bias
        if self.batch_sum is not None:
            self.batch_sum[:] = self.be.sum(maps, axis=1)
        return self.outputs


class Convolution(Filters):
    """Images (C, H, W) to (K, P, Q), by K filters that reach over all C maps: ``fshape`` is (R, S, K), R high, S wide.

    ``P = (H + 2 pad_h - dil_h (R - 1) - 1) // str_h + 1``, and so on. With depth: (C, D, H, W) to (K, M, P, Q), by
    (T, R, S, K). Weights W are (C T R S, K). Filters are not flipped.

    >>> import neonlite as nl
    >>> from neonlite.initializers import Gaussian
    >>> be = nl.gen_backend("cpu", batch_size=32)
    >>> layer = Convolution((5, 5, 16), strides=2, padding={"pad_w": 1}, init=Gaussian()).configure((3, 28, 28))
    >>> layer.out_shape, layer.weight_shape
    ((16, 12, 13), (75, 16))
    """

    def layer_object(self, N: int) -> Any:
        return self.be.conv_layer(self.be.default_dtype, N, **self.image(), **self.geometry())

    def formula(self, x: Any) -> Any:
        """Return ``W^T columns``: a column (C T R S) is what lies under the filters in one place."""
        be, g, found = self.be, self.nglayer, self.boxes()
        canvas = padded(be, be.reshape(x, g.dimI), (0, *g.padding), found)
        slices = [be.reshape(be.build("slice", canvas, index=box), (g.C, 1, -1)) for box in found]
        columns = be.reshape(be.concat(slices, axis=1), (g.dimF2[0], -1))
        return be.reshape(be.dot(self.W.T, columns), g.dimO2)

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute the outputs, plus ``beta outputs``."""
        self.prepare(inputs, inference)
        more = {"bias": self.weight_bias, "bsum": self.batch_sum, "beta": beta}
        self.be.fprop_conv(self.nglayer, inputs, self.W, self.outputs, **more)
        return self.finish() if beta else self.outputs

    @accumulates
    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute the gradients of the parameters, and ``deltas = alpha dE/dinputs + beta deltas``."""
        self.check_error(error)
        self.be.update_conv(self.nglayer, self.inputs, error, self.dW, grad_bias=self.grad_bias)
        if self.deltas is not None:
            self.be.bprop_conv(self.nglayer, self.W, error, self.deltas, alpha=alpha, beta=beta)
        return self.deltas


class Convolution_bias(Convolution):
    """A convolution plus ``weight_bias`` (K, 1), one for each map of the outputs; its gradient is ``grad_bias``."""

    weight_bias = Learned()
    grad_bias = Learned()

    def __init__(
        self,
        fshape: Any,
        strides: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        init: Any = None,
        bsum: bool = False,
        name: str | None = None,
        parallelism: str = "Data",
        bias: Any = None,
    ) -> None:
        super().__init__(fshape, strides, padding, dilation, init, bsum, name, parallelism)
        if bias is None:
            raise TypeError(f"{self.name}: bias is missing, an initializer such as Constant(0); without: Convolution")
        self.bias = bias

    def slots(self) -> list[Slot]:
        return [*super().slots(), Slot("weight_bias", "grad_bias", (self.nglayer.K, 1), self.bias)]

    def formula(self, x: Any) -> Any:
        """Return ``W^T columns + weight_bias``."""
        maps = self.be.reshape(super().formula(x), (self.nglayer.K, -1))
        return self.be.reshape(maps + self.weight_bias, self.nglayer.dimO2)


class Deconvolution(Filters):
    """The transpose of a convolution: images (K, P, Q) to (C, H, W), by ``fshape`` (R, S, C), R high, S wide.

    Each pixel stamps K weighted filters on the result: ``H = (P - 1) str_h - 2 pad_h + dil_h (R - 1) + 1``, and so on.
    With depth: (K, M, P, Q) to (C, D, H, W), by (T, R, S, C). Weights W are (C T R S, K). ``nglayer`` is that of the
    convolution from (C, H, W) to (K, P, Q): its ``dimI`` is what comes out.
    """

    names = "TRSC"

    def layer_object(self, N: int) -> Any:
        return self.be.deconv_layer(self.be.default_dtype, N, **self.image("KMPQ"), **self.geometry())

    @property
    def result(self) -> tuple[int, ...]:
        """(C, D, H, W) of the outputs."""
        return tuple(self.nglayer.dimI[:4])

    def formula(self, x: Any) -> Any:
        """Return the sum of what the pixels stamp, ``W x``, each place of the filters shifted to where it lands."""
        be, g, found = self.be, self.nglayer, self.boxes()
        stamped = be.reshape(be.dot(self.W, be.reshape(x, (g.K, -1))), (g.C, len(found), -1))
        to = (g.C, *(n + 2 * pad for n, pad in zip(g.DHW, g.padding, strict=True)), g.N)
        canvas: Any = 0
        for place, box in enumerate(found):
            stamp = be.build("slice", stamped, index=((0, g.C, 1), (place, 1, 1), (0, stamped.shape[2], 1)))
            canvas = canvas + be.build("unslice", be.reshape(stamp, (g.C, *g.dimO[1:])), index=box, to=to)
        inner = tuple((pad, n, 1) for n, pad in zip(g.dimI, (0, *g.padding, 0), strict=True))
        return be.reshape(be.build("slice", canvas, index=inner), g.dimI2)

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute the outputs, plus ``beta outputs``."""
        self.prepare(inputs, inference)
        self.be.bprop_conv(self.nglayer, self.W, inputs, self.outputs, bsum=self.batch_sum, beta=beta)
        return self.finish() if beta else self.outputs

    @accumulates
    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute the gradients of the parameters, and ``deltas = alpha dE/dinputs + beta deltas``."""
        self.check_error(error)
        self.be.update_conv(self.nglayer, error, self.inputs, self.dW)
        if self.deltas is not None:
            self.be.fprop_conv(self.nglayer, error, self.W, self.deltas, alpha=alpha, beta=beta)
        return self.deltas
