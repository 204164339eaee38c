"""Backend methods for image primitives: convolution, pooling and local response normalization."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.primitives.geometry import (
    ConvLayer,
    LayerObject,
    LRNLayer,
    PoolLayer,
    array_as,
    as_contiguous,
    check_floats,
    check_ints,
    check_layer_shapes,
    check_tensors,
    output_buffer,
)
from neonlite.backend.tensor import Tensor
from neonlite.backend.validation import IgnoreFPErrors, instance
from neonlite.messages import describe
from neonlite.typing import BackendBase

INPUT_AXES, FILTER_AXES, OUTPUT_AXES = "(C, D, H, W, N)", "(C, T, R, S, K)", "(K, M, P, Q, N)"


def _check_layer(be: BackendBase, primitive: str, layer: LayerObject, kind: type[LayerObject], created_by: str) -> None:
    """Raise an error unless ``layer`` is a layer object of this backend and of the right kind."""
    instance(f"be.{primitive}: layer", layer, kind, f"a layer object of be.{created_by}")
    if layer.backend is not be:
        raise ValueError(
            f"be.{primitive}: expected a layer object of {be!r}, got {layer!r} of {layer.backend!r}. "
            f"Create it with be.{created_by} of this backend."
        )


class ImageMethods(BackendBase):
    """The methods of ``Backend`` for images."""

    # --- convolution ---

    def fprop_conv(
        self,
        layer: ConvLayer,
        I: Tensor,
        F: Tensor,
        O: Tensor,
        X: Tensor | float | None = None,
        bias: Tensor | float | None = None,
        bsum: Tensor | float | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        relu: bool = False,
        brelu: bool = False,
        slope: float = 0.0,
        layer_op: object = None,
        repeat: int = 1,
    ) -> Tensor:
        """Compute a convolution (a correlation: the filters are not flipped).

        ``O = relu(alpha conv(I, F) + bias)``, or with ``beta``: ``O = alpha conv(I, F) + beta X`` without the
        other options. The positional arguments of neon's guide are accepted as well: ``fprop_conv(layer, I, F, O,
        alpha, relu, repeat)``.

        Parameters
        ----------
        layer : ConvLayer
            The layer object, of ``conv_layer``.
        I : Tensor
            Input images (C, D, H, W, N), in any shape of this size.
        F : Tensor
            Filters (C, T, R, S, K), in any shape of this size.
        O : Tensor
            Output (K, M, P, Q, N), in any shape of this size.
        X : Tensor, optional
            The tensor that ``beta`` scales, or whose sign ``brelu`` uses, of O's size; with ``beta``, O by default.
        bias : Tensor, optional
            Bias (K, 1).
        bsum : Tensor, optional
            Output (K, 1): the sum of each output channel.
        alpha, beta : float
            Scale of the convolution and of X.
        relu : bool
            Whether to apply ``max(x, 0) + slope min(x, 0)``; it is also applied if ``layer.relu`` is True.
        brelu : bool
            Whether to multiply by 1 where X > 0, by ``slope`` where X < 0, and by 0 elsewhere, instead of relu.
        slope : float
            The slope of relu and brelu below 0.
        layer_op : object, optional
            Ignored.
        repeat : int
            Number of runs, for timing.

        Returns
        -------
        Tensor
            O.

        Raises
        ------
        ValueError
            If a size does not fit the layer object.
        TypeError
            If a dtype is not the layer object's.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.Backend("cpu")
        >>> layer = be.conv_layer("float32", N=1, C=1, K=1, H=3, W=3, R=2, S=2)
        >>> I, F = be.array([[1], [2], [3], [4], [5], [6], [7], [8], [9]]), be.ones((4, 1))
        >>> be.fprop_conv(layer, I, F, be.empty((4, 1))).get().ravel().tolist()
        [12.0, 16.0, 24.0, 28.0]
        """
        _check_layer(self, "fprop_conv", layer, ConvLayer, "conv_layer")
        options = X, bias, bsum, alpha, beta, relu, brelu, slope, repeat
        epilogue, alpha, beta, repeat = parse_epilogue("fprop_conv", *options, layer_relu=layer.relu)
        i, f, o = (I, layer.dimI, INPUT_AXES), (F, layer.dimF, FILTER_AXES), (O, layer.dimO, OUTPUT_AXES)
        check_layer_shapes(self, "fprop_conv", layer, I=i, F=f, O=o)

        def run(buffer: Tensor, alpha: float, beta: float) -> bool:
            arrays = array_as(self, images, layer.dimI), array_as(self, filters, layer.dimF)
            o = array_as(self, buffer, layer.dimO)
            b = None if alpha != 1 or beta else epilogue.bias
            if b is not None and b.is_contiguous and b.info.dtype == images.info.dtype:
                bias_array = array_as(self, b, (layer.K,))
                if self.primitives.try_conv_bias(layer, *arrays, o, bias_array, epilogue.is_plain_relu):
                    return True
            self.primitives.conv_fprop(layer, *arrays, o, alpha, beta)
            return False

        images, filters = as_contiguous(self, I), as_contiguous(self, F)
        return _run_convolution(self, "fprop_conv", run, O, layer.K, (I, F), epilogue, alpha, beta, repeat)

    def bprop_conv(
        self,
        layer: ConvLayer,
        F: Tensor,
        E: Tensor,
        grad_I: Tensor,
        X: Tensor | float | None = None,
        bias: Tensor | float | None = None,
        bsum: Tensor | float | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        relu: bool = False,
        brelu: bool = False,
        slope: float = 0.0,
        layer_op: object = None,
        repeat: int = 1,
    ) -> Tensor:
        """Compute the gradient of a convolution with respect to its input: ``grad_I = alpha dE/dI``.

        This is also the forward pass of a ``deconv_layer``. The options of ``fprop_conv`` apply to
        ``grad_I`` in place of O.

        Parameters
        ----------
        layer : ConvLayer
            The layer object, of ``conv_layer`` or ``deconv_layer``.
        F : Tensor
            Filters (C, T, R, S, K).
        E : Tensor
            Error (K, M, P, Q, N) at the output of the convolution.
        grad_I : Tensor
            Output (C, D, H, W, N).
        X : Tensor, optional
            The tensor that ``beta`` scales, or whose sign ``brelu`` uses, of grad_I's size; with ``beta``, grad_I by
            default.
        bias : Tensor, optional
            Bias (C, 1).
        bsum : Tensor, optional
            Output (C, 1): the sum of each channel of grad_I.
        alpha, beta : float
            Scale of the gradient and of X.
        relu, brelu, slope, layer_op, repeat
            As in ``fprop_conv``.

        Returns
        -------
        Tensor
            grad_I.

        Raises
        ------
        ValueError
            If a size does not fit the layer object.
        TypeError
            If a dtype is not the layer object's.
        """
        _check_layer(self, "bprop_conv", layer, ConvLayer, "conv_layer")
        options = X, bias, bsum, alpha, beta, relu, brelu, slope, repeat
        epilogue, alpha, beta, repeat = parse_epilogue("bprop_conv", *options)
        f, e, d = (F, layer.dimF, FILTER_AXES), (E, layer.dimO, OUTPUT_AXES), (grad_I, layer.dimI, INPUT_AXES)
        check_layer_shapes(self, "bprop_conv", layer, F=f, E=e, grad_I=d)

        def run(buffer: Tensor, alpha: float, beta: float) -> bool:
            arrays = array_as(self, filters, layer.dimF), array_as(self, errors, layer.dimO)
            self.primitives.conv_bprop(layer, *arrays, array_as(self, buffer, layer.dimI), alpha, beta)
            return False

        filters, errors = as_contiguous(self, F), as_contiguous(self, E)
        return _run_convolution(self, "bprop_conv", run, grad_I, layer.C, (F, E), epilogue, alpha, beta, repeat)

    def update_conv(
        self,
        layer: ConvLayer,
        I: Tensor,
        E: Tensor,
        grad_F: Tensor | None = None,
        alpha: float = 1.0,
        *more: float | Tensor | None,
        beta: float = 0.0,
        grad_bias: Tensor | None = None,
        layer_op: object = None,
        repeat: int = 1,
        U: Tensor | None = None,
    ) -> Tensor:
        """Compute the gradient of a convolution with respect to its filters: ``grad_F = alpha dE/dF + beta grad_F``.

        Parameters
        ----------
        layer : ConvLayer
            The layer object, of ``conv_layer``.
        I : Tensor
            Input images (C, D, H, W, N).
        E : Tensor
            Error (K, M, P, Q, N) at the output.
        grad_F : Tensor
            Output (C, T, R, S, K).
        alpha : float
            Scale of the gradient.
        *more
            Positional beta, grad_bias and layer_op; or a single integer above 1, ``repeat``, as in neon's guide.
        beta : float
            Scale of the old values of grad_F.
        grad_bias : Tensor, optional
            Output (K, 1): the gradient of the bias, the sum of each channel of E.
        layer_op : object, optional
            Ignored.
        repeat : int
            Number of runs, for timing.
        U : Tensor, optional
            Alias of grad_F.

        Returns
        -------
        Tensor
            grad_F.

        Raises
        ------
        ValueError
            If a size does not fit the layer object.
        TypeError
            If a dtype is not the layer object's.
        """
        _check_layer(self, "update_conv", layer, ConvLayer, "conv_layer")
        out: Any = grad_F if U is None else U
        if len(more) > 3:
            raise TypeError(f"be.update_conv: expected at most 8 positional arguments, got {5 + len(more)}")
        if len(more) == 1 and isinstance(more[0], int) and more[0] > 1:
            repeat = more[0]
        else:
            by_name: tuple[Any, ...] = (beta, grad_bias, layer_op)
            beta, grad_bias, _ = more + by_name[len(more) :]
        i, e, u = (I, layer.dimI, INPUT_AXES), (E, layer.dimO, OUTPUT_AXES), (out, layer.dimF, FILTER_AXES)
        check_layer_shapes(self, "update_conv", layer, I=i, E=e, grad_F=u)
        (repeat,) = check_ints("update_conv", 1, repeat=repeat)
        alpha, beta = check_floats("update_conv", alpha=alpha, beta=beta)
        images, errors = as_contiguous(self, I), as_contiguous(self, E)
        if grad_bias is not None:
            check_tensors(self, "update_conv", grad_bias=grad_bias)
            if grad_bias.size != layer.K:
                raise ValueError(
                    f"be.update_conv: expected grad_bias of shape {(layer.K, 1)}, got {describe(grad_bias)}"
                )
            _sum_channels(self, errors.reshape(layer.K, -1), grad_bias)
        for _ in range(repeat):
            with output_buffer(self, out, I, E, copy_in=bool(beta)) as buffer, IgnoreFPErrors():
                arrays = array_as(self, images, layer.dimI), array_as(self, errors, layer.dimO)
                self.primitives.conv_update(layer, *arrays, array_as(self, buffer, layer.dimF), alpha, beta)
        return out

    # --- pooling ---

    def fprop_pool(
        self,
        layer: PoolLayer,
        I: Tensor,
        O: Tensor,
        argmax: Tensor | None = None,
        beta: float = 0.0,
    ) -> Tensor:
        """Compute pooling: ``O = pool(I) + beta O``. Padding is excluded, also from the mean.

        Parameters
        ----------
        layer : PoolLayer
            The layer object, of ``pool_layer``.
        I : Tensor
            Input images (C, D, H, W, N).
        O : Tensor
            Output (K, M, P, Q, N).
        argmax : Tensor, optional
            Output of O's size and an integer dtype: the index of the first maximum in its window, in the order C, D, H,
            W of the window, for ``bprop_pool``.
        beta : float
            Scale of the old values of O.

        Returns
        -------
        Tensor
            O.

        Raises
        ------
        ValueError
            If a size does not fit the layer object.
        TypeError
            If a dtype is not the layer object's, or too small for the indices.
        """
        _check_layer(self, "fprop_pool", layer, PoolLayer, "pool_layer")
        check_layer_shapes(self, "fprop_pool", layer, I=(I, layer.dimI, INPUT_AXES), O=(O, layer.dimO, OUTPUT_AXES))
        indices = _check_argmax(self, "fprop_pool", layer, argmax)
        (beta,) = check_floats("fprop_pool", beta=beta)
        images = array_as(self, as_contiguous(self, I), layer.dimI)
        index_array = _argmax_operand(self, layer, indices)
        with output_buffer(self, O, I, copy_in=bool(beta)) as buffer, IgnoreFPErrors():
            self.primitives.pool_fprop(layer, images, array_as(self, buffer, layer.dimO), index_array, beta)
        if indices is not None and argmax is not None and indices is not argmax:  # argmax is strided
            argmax[:] = indices
        return O

    def bprop_pool(
        self,
        layer: PoolLayer,
        I: Tensor | None = None,
        E: Tensor | None = None,
        grad_I: Tensor | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        *,
        delta: Tensor | None = None,
        argmax: Tensor | None = None,
    ) -> Tensor:
        """Compute the gradient of pooling with respect to its input: ``grad_I = alpha dE/dI + beta grad_I``.

        Call it as ``bprop_pool(layer, I, E, grad_I)`` or ``bprop_pool(layer, E, grad_I, argmax)``, which are
        distinguished by dtypes and sizes. The error of a window is added to the gradient of its first maximum (max),
        distributed equally over its elements (avg), or in proportion to its elements (l2), which requires I.

        Parameters
        ----------
        layer : PoolLayer
            The layer object, of ``pool_layer``.
        I : Tensor, optional
            Input images (C, D, H, W, N) of the forward pass. Avg does not use them.
        E : Tensor
            Error (K, M, P, Q, N) at the output.
        grad_I : Tensor
            Output (C, D, H, W, N).
        alpha, beta : float
            Scale of the gradient, and of the old values of grad_I.
        delta : Tensor, optional
            Alias of grad_I.
        argmax : Tensor, optional
            The indices that ``fprop_pool`` wrote, for max pooling without I.

        Returns
        -------
        Tensor
            grad_I.

        Raises
        ------
        ValueError
            If a size does not fit the layer object, or neither I nor argmax is given where one is needed.
        TypeError
            If a dtype is not the layer object's.
        """
        _check_layer(self, "bprop_pool", layer, PoolLayer, "pool_layer")
        x: Any = I
        error: Any = E
        dx: Any = grad_I if delta is None else delta
        if error is None:
            x, error = None, x
        elif x is not None and (dx is None or _is_argmax_form(layer, error, dx)):
            x, error, dx, argmax = None, x, error, argmax if dx is None else dx
        check_layer_shapes(
            self, "bprop_pool", layer, E=(error, layer.dimO, OUTPUT_AXES), grad_I=(dx, layer.dimI, INPUT_AXES)
        )
        if x is None and (layer.op == "l2" or (layer.op == "max" and argmax is None)):
            expected = "the images I" if layer.op == "l2" else "argmax of fprop_pool, or the images I,"
            raise ValueError(f"be.bprop_pool: expected {expected} for {layer.op} pooling, got None")
        if x is not None:
            check_layer_shapes(self, "bprop_pool", layer, I=(x, layer.dimI, INPUT_AXES))
        alpha, beta = check_floats("bprop_pool", alpha=alpha, beta=beta)
        index_array = _argmax_operand(self, layer, _check_argmax(self, "bprop_pool", layer, argmax))
        x = None if layer.op == "avg" else x
        images = None if x is None else array_as(self, as_contiguous(self, x), layer.dimI)
        errors = array_as(self, as_contiguous(self, error), layer.dimO)
        with output_buffer(self, dx, x, error, copy_in=bool(beta)) as buffer, IgnoreFPErrors():
            out = array_as(self, buffer, layer.dimI)
            self.primitives.pool_bprop(layer, images, errors, out, index_array, alpha, beta)
        return dx

    # --- local response normalization ---

    def fprop_lrn(
        self,
        layer: LRNLayer,
        I: Tensor,
        O: Tensor,
        denom: Tensor,
        alpha: float | None = None,
        beta: float | None = None,
        ascale: float = 1.0,
        bpower: float = 1.0,
    ) -> Tensor:
        """Compute local response normalization over J neighboring channels.

        ``O = alpha I denom^-bpower + beta O``, ``denom = 1 + ascale / J sum I^2``.

        Parameters
        ----------
        layer : LRNLayer
            The layer object, of ``lrn_layer``.
        I : Tensor
            Input images (C, D, H, W, N).
        O : Tensor
            Output, of I's size.
        denom : Tensor
            Output, of I's size, for ``bprop_lrn``.
        alpha, beta : float, optional
            Scale of the result, 1 by default, and of the old values of O, 0 by default.
        ascale, bpower : float
            a and b of the formula.

        Returns
        -------
        Tensor
            O.

        References
        ----------
        Krizhevsky et al. 2012, section 3.3.
        """
        _check_layer(self, "fprop_lrn", layer, LRNLayer, "lrn_layer")
        tensors = {"I": I, "O": O, "denom": denom}
        check_layer_shapes(
            self, "fprop_lrn", layer, **{name: (t, layer.dimI, INPUT_AXES) for name, t in tensors.items()}
        )
        alpha, beta, ascale, bpower = _check_scales("fprop_lrn", alpha, beta, ascale, bpower)
        images = array_as(self, as_contiguous(self, I), layer.dimI)
        with (
            output_buffer(self, O, I, denom, copy_in=bool(beta)) as o,
            output_buffer(self, denom, I) as d,
            IgnoreFPErrors(),
        ):
            outputs = array_as(self, o, layer.dimI), array_as(self, d, layer.dimI)
            self.primitives.lrn_fprop(layer, images, *outputs, alpha, beta, ascale, bpower)
        return O

    def bprop_lrn(
        self,
        layer: LRNLayer,
        I: Tensor,
        O: Tensor,
        E: Tensor,
        delta: Tensor,
        denom: Tensor,
        alpha: float | None = None,
        beta: float | None = None,
        ascale: float = 1.0,
        bpower: float = 1.0,
    ) -> Tensor:
        """Compute the gradient of local response normalization: ``delta = alpha dE/dI + beta delta``.

        ``dE/dI = n - 2 a b / J I sum(n I / denom)``, ``n = E denom^-b``, where a is ascale and b is bpower.

        Parameters
        ----------
        layer : LRNLayer
            The layer object, of ``lrn_layer``.
        I : Tensor
            Input images (C, D, H, W, N) of the forward pass.
        O : Tensor
            Its output, which is not read.
        E : Tensor
            Error at the output, of I's size.
        delta : Tensor
            Output, of I's size.
        denom : Tensor
            ``denom`` of ``fprop_lrn``.
        alpha, beta : float, optional
            Scale of the gradient, 1 by default, and of the old values of delta, 0 by default.
        ascale, bpower : float
            As in ``fprop_lrn``.

        Returns
        -------
        Tensor
            delta.
        """
        _check_layer(self, "bprop_lrn", layer, LRNLayer, "lrn_layer")
        tensors = {"I": I, "O": O, "E": E, "delta": delta, "denom": denom}
        check_layer_shapes(
            self, "bprop_lrn", layer, **{name: (t, layer.dimI, INPUT_AXES) for name, t in tensors.items()}
        )
        alpha, beta, ascale, bpower = _check_scales("bprop_lrn", alpha, beta, ascale, bpower)
        i, e, d = (array_as(self, as_contiguous(self, t), layer.dimI) for t in (I, E, denom))
        with output_buffer(self, delta, I, O, E, denom, copy_in=bool(beta)) as buffer, IgnoreFPErrors():
            out = array_as(self, buffer, layer.dimI)
            self.primitives.lrn_bprop(layer, i, e, out, d, alpha, beta, ascale, bpower)
        return delta


class Epilogue(NamedTuple):
    """What ``fprop_conv`` and ``bprop_conv`` compute of the result of a convolution."""

    X: Tensor | None
    bias: Tensor | None
    bsum: Tensor | None
    relu: bool
    brelu: bool
    slope: float

    @property
    def is_plain_relu(self) -> bool:
        """Whether it is max(x, 0)."""
        return self.relu and not (self.brelu or self.slope)

    def apply(self, be: BackendBase, out: Tensor, channels: int, has_bias: bool) -> None:
        """Add the bias, unless the convolution has done so; apply relu or brelu; sum the channels."""
        X, bias, bsum, relu, brelu, slope = self
        result = out.reshape(channels, -1)
        value: Any = result if bias is None or has_bias else result + as_contiguous(be, bias).reshape(channels, 1)
        has_relu = has_bias and be.primitives.supports_fused_relu and self.is_plain_relu
        if brelu and X is not None:
            x = as_contiguous(be, X).reshape(channels, -1)
            value = value * ((x > 0) + slope * (x < 0) if slope else x > 0)
        elif relu and not has_relu:
            value = be.maximum(value, 0) + slope * be.minimum(value, 0) if slope else be.maximum(value, 0)
        if value is not result:
            result[:] = value
        if bsum is not None:
            _sum_channels(be, result, bsum)


def _run_convolution(
    be: BackendBase,
    name: str,
    run: Callable[[Tensor, float, float], bool],
    out: Tensor,
    channels: int,
    operands: tuple[Tensor, ...],
    epilogue: Epilogue,
    alpha: float,
    beta: float,
    repeat: int,
) -> Tensor:
    """Run a convolution into ``out``, then its epilogue; ``run`` returns whether it added the bias."""
    tensors = {k: getattr(epilogue, k) for k in ("X", "bias", "bsum") if getattr(epilogue, k) is not None}
    check_tensors(be, name, **tensors)
    for k, t in tensors.items():
        if t.size != (out.size if k == "X" else channels):
            expected = f"{out.shape}, that of the result" if k == "X" else f"{(channels, 1)}"
            raise ValueError(f"be.{name}: expected {k} of shape {expected}, got {describe(t)}")
    if epilogue.brelu and epilogue.X is None:
        raise ValueError(f"be.{name}: expected X with brelu, got None. brelu multiplies by X > 0.")
    X = out if beta and epilogue.X is None else epilogue.X
    for _ in range(repeat):
        with output_buffer(be, out, *operands, *(() if beta else (X, epilogue.bias))) as buffer:
            if beta and X is not None and X is not buffer:
                buffer[:] = as_contiguous(be, X).reshape(buffer.shape)
            with IgnoreFPErrors():
                has_bias = run(buffer, alpha, beta)
            if not beta:
                epilogue.apply(be, buffer, channels, has_bias)
    return out


def _sum_channels(be: BackendBase, images: Tensor, out: Tensor) -> None:
    """Write the sum of each row of (channels, pixels) into a tensor of any shape of this size."""
    with output_buffer(be, out, images) as buffer:
        buffer.reshape(-1, 1)[:] = be.sum(images, axis=1)


def _is_argmax_form(layer: PoolLayer, second: Any, third: Any) -> bool:
    """Return whether the tensors after the first are (grad_I, argmax) rather than (E, grad_I)."""
    is_int = isinstance(third, Tensor) and "int" in third.info.dtype
    return is_int or (isinstance(second, Tensor) and second.size == layer.sizeI != layer.sizeO)


def _argmax_operand(be: BackendBase, layer: PoolLayer, indices: Tensor | None) -> Any:
    return None if indices is None else array_as(be, indices, layer.dimO)


def _check_argmax(be: BackendBase, primitive: str, layer: PoolLayer, argmax: Any) -> Tensor | None:
    """Check argmax and return it, or a contiguous copy; None without argmax or if the op is not max."""
    if argmax is None or layer.op != "max":
        return None
    check_tensors(be, primitive, argmax=argmax)
    window = math.prod(layer.JTRS)
    if argmax.size != layer.sizeO:
        raise ValueError(f"be.{primitive}: expected argmax of shape {layer.dimO}, got {describe(argmax)}")
    if "int" not in argmax.info.dtype or np.iinfo(argmax.info.dtype).max < window - 1:
        raise TypeError(
            f"be.{primitive}: expected argmax of an integer dtype that holds 0 to {window - 1}, the indices in a "
            f"window {layer.JTRS}, got {describe(argmax)} of {argmax.info.dtype}. Use dtype='int32'."
        )
    return as_contiguous(be, argmax)


def _check_scales(primitive: str, alpha: Any, beta: Any, ascale: Any, bpower: Any) -> list[float]:
    alpha, beta = 1.0 if alpha is None else alpha, 0.0 if beta is None else beta
    return check_floats(primitive, alpha=alpha, beta=beta, ascale=ascale, bpower=bpower)


def parse_epilogue(
    name: str,
    X: Any,
    bias: Any,
    bsum: Any,
    alpha: float,
    beta: float,
    relu: bool,
    brelu: bool,
    slope: float,
    repeat: int,
    layer_relu: bool | None = None,
) -> tuple[Epilogue, float, float, int]:
    """Return the epilogue, alpha, beta and repeat; X, bias and bsum may be the guide's (alpha, relu, repeat).

    ``layer_relu`` is the relu of the layer object; None for a primitive of which the guide has (alpha, repeat).
    """
    if isinstance(X, Real):
        rest: list[Any] = [x for x in (bias, bsum) if isinstance(x, Real)]
        bias, bsum = (None if isinstance(x, Real) else x for x in (bias, bsum))
        if layer_relu is not None and rest:
            relu = bool(rest.pop(0))
        X, alpha, repeat = None, float(X), rest[0] if rest else repeat
    (repeat,) = check_ints(name, 1, repeat=repeat)
    alpha, beta, slope = check_floats(name, alpha=alpha, beta=beta, slope=slope)
    return Epilogue(X, bias, bsum, relu or bool(layer_relu), brelu, slope), alpha, beta, repeat
