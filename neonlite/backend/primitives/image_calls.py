"""Which primitives work on images?  Convolution, pooling and normalization, with the layer objects they take."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np

from neonlite.backend.executors.quiet import Silence
from neonlite.backend.primitives.geometry import (
    ConvLayer,
    DeconvLayer,
    LayerShape,
    LRNLayer,
    PoolLayer,
    input_dim,
    output_dim,
)
from neonlite.backend.primitives.places import Places
from neonlite.backend.tensor import Tensor
from neonlite.ops import FLOATS
from neonlite.optree import describe

IMAGE, FILTERS, RESULT = "(C, D, H, W, N)", "(C, T, R, S, K)", "(K, M, P, Q, N)"


class ImageCalls(Places):
    """The backend's methods for layers of images."""

    # --- layer objects ---

    def output_dim(self, X: int, S: int, padding: int, strides: int, pooling: bool = False, dilation: int = 1) -> int:
        """Return how many windows of size S fit along an axis of size X: ``(X - S' + 2 padding) // strides + 1``.

        ``S' = dilation (S - 1) + 1``. Pooling in caffe mode counts windows that fit in part. ValueError when none fits.
        """
        X, S, strides, dilation = self._whole_numbers("output_dim", 1, X=X, S=S, strides=strides, dilation=dilation)
        (padding,) = self._whole_numbers("output_dim", 0, padding=padding)
        caffe = self.check_caffe_compat()
        found = self._named("output_dim", output_dim, X, S, padding, strides, pooling, dilation, caffe)
        return int(found)

    def set_caffe_compat(self) -> None:
        """Size poolings and scale dropouts as Caffe does, from now on."""
        self.compat_mode = "caffe"

    def check_caffe_compat(self) -> bool:
        """Tell whether poolings are sized as Caffe does."""
        return self.compat_mode == "caffe"

    def conv_layer(
        self,
        dtype: Any,
        N: int,
        C: int,
        K: int,
        D: int = 1,
        H: int = 1,
        W: int = 1,
        T: int = 1,
        R: int = 1,
        S: int = 1,
        pad_d: int = 0,
        pad_h: int = 0,
        pad_w: int = 0,
        str_d: int = 1,
        str_h: int = 1,
        str_w: int = 1,
        relu: Any = False,
        bsum: Any = False,
        dil_d: int = 1,
        dil_h: int = 1,
        dil_w: int = 1,
    ) -> ConvLayer:
        """Return the layer object of a convolution of N images (C, D, H, W) with K filters (T, R, S).

        Three whole numbers after ``str_w`` are ``dil_d, dil_h, dil_w``. ``relu`` is the default of ``fprop_conv``'s.
        ValueError when a filter does not fit its padded image, or a size or stride is not a whole number from 1.
        """
        if not isinstance(relu, bool):  # positions as in neon 2.6; what is given by name stays
            dil_d, dil_h, dil_w = relu, dil_h if bsum is False else bsum, dil_w if dil_d == 1 else dil_d
            relu = bsum = False
        sizes = self._whole_numbers("conv_layer", 1, N=N, C=C, K=K, D=D, H=H, W=W, T=T, R=R, S=S)
        strides = self._whole_numbers("conv_layer", 1, str_d=str_d, str_h=str_h, str_w=str_w)
        dilation = self._whole_numbers("conv_layer", 1, dil_d=dil_d, dil_h=dil_h, dil_w=dil_w)
        padding = self._whole_numbers("conv_layer", 0, pad_d=pad_d, pad_h=pad_h, pad_w=pad_w)
        name, (NCK, DHW, TRS) = self._float_name("conv_layer", dtype), (sizes[:3], sizes[3:6], sizes[6:])
        made: ConvLayer = self._named("conv_layer", ConvLayer, self, name, NCK, DHW, TRS, padding, strides, dilation)
        made.relu, made.bsum = relu, bsum
        return made

    def deconv_layer(self, dtype: Any, N: int, C: int, K: int, *sizes: int, **named: int) -> DeconvLayer:
        """Return the layer object of the transpose of a convolution: from N images (K, M, P, Q) to (C, D, H, W).

        ``P, Q, R, S`` and paddings and strides for d, h, w by position or name; ``M, T`` and ``dil_d, dil_h, dil_w`` by
        name, or all of ``M, P, Q, T, R, S``, paddings, strides and dilations by position, in groups of three.
        ``H = (P - 1) str_h - 2 pad_h + dil_h (R - 1) + 1``, and so on.
        """
        positions = DECONV if len(sizes) % 3 else DECONV_3D
        if len(sizes) > len(positions) or (positions is DECONV and len(sizes) not in (0, 1, 2, 4, 7, 10)):
            raise TypeError(f"be.deconv_layer: {len(sizes)} sizes by position are not told apart: give them by name")
        if unknown := {*named} - {*DECONV_3D}:
            raise TypeError(f"be.deconv_layer has no {', '.join(sorted(unknown))}; it has {', '.join(DECONV_3D)}")
        if both := {*positions[: len(sizes)]} & {*named}:
            raise TypeError(f"be.deconv_layer got {', '.join(sorted(both))} twice")
        if missing := {"P", "Q"} - {*positions[: len(sizes)], *named}:
            raise TypeError(f"be.deconv_layer needs {', '.join(sorted(missing))}, the size of the images that come in")
        all_ = (
            {n: 0 if n.startswith("pad") else 1 for n in DECONV_3D} | dict(zip(positions, sizes, strict=False)) | named
        )
        NCK = self._whole_numbers("deconv_layer", 1, N=N, C=C, K=K)
        groups = (DECONV_3D[i : i + 3] for i in range(0, 15, 3))
        MPQ, TRS, padding, strides, dilation = (
            self._whole_numbers("deconv_layer", 0 if "pad_d" in group else 1, **{n: all_[n] for n in group})
            for group in groups
        )
        each = zip(MPQ, TRS, padding, strides, dilation, strict=True)
        DHW = tuple(self._named("deconv_layer", input_dim, *sizes) for sizes in each)
        name = self._float_name("deconv_layer", dtype)
        return DeconvLayer(self, name, NCK, DHW, TRS, padding, strides, dilation, MPQ)

    def pool_layer(
        self,
        dtype: Any,
        op: str,
        N: int,
        C: int,
        D: int = 1,
        H: int = 1,
        W: int = 1,
        J: int = 1,
        T: int = 1,
        R: int = 1,
        S: int = 1,
        pad_j: int = 0,
        pad_d: int = 0,
        pad_h: int = 0,
        pad_w: int = 0,
        str_j: int | None = None,
        str_d: int | None = None,
        str_h: int | None = None,
        str_w: int | None = None,
        *,
        pad_c: int | None = None,
        str_c: int | None = None,
    ) -> PoolLayer:
        """Return the layer object of a pooling of N images (C, D, H, W) over windows (J, T, R, S).

        ``op``: "max", "avg" or "l2". Strides are the window's sizes unless given; ``pad_c`` and ``str_c`` are other
        names of ``pad_j`` and ``str_j``. ValueError when a window does not fit, or could lie in the padding alone.
        """
        if op not in ("max", "avg", "l2"):
            raise ValueError(f"be.pool_layer: op is 'max', 'avg' or 'l2'; got {op!r}")
        pad_j, str_j = pad_j if pad_c is None else pad_c, str_j if str_c is None else str_c
        str_j, str_d = J if str_j is None else str_j, T if str_d is None else str_d
        str_h, str_w = R if str_h is None else str_h, S if str_w is None else str_w
        N, *image = self._whole_numbers("pool_layer", 1, N=N, C=C, D=D, H=H, W=W)
        window = self._whole_numbers("pool_layer", 1, J=J, T=T, R=R, S=S)
        strides = self._whole_numbers("pool_layer", 1, str_j=str_j, str_d=str_d, str_h=str_h, str_w=str_w)
        padding = self._whole_numbers("pool_layer", 0, pad_j=pad_j, pad_d=pad_d, pad_h=pad_h, pad_w=pad_w)
        name, caffe = self._float_name("pool_layer", dtype), self.check_caffe_compat()
        made: PoolLayer = self._named(
            "pool_layer", PoolLayer, self, name, op, N, image, window, padding, strides, caffe
        )
        return made

    def lrn_layer(self, dtype: Any, N: int, C: int, D: int = 1, H: int = 1, W: int = 1, J: int = 1) -> LRNLayer:
        """Return the layer object of a normalization of N images (C, D, H, W) over J neighboring channels."""
        N, *image, J = self._whole_numbers("lrn_layer", 1, N=N, C=C, D=D, H=H, W=W, J=J)
        return LRNLayer(self, self._float_name("lrn_layer", dtype), N, tuple(image), J)

    def _float_name(self, primitive: str, dtype: Any) -> str:
        name: str = self._named(primitive, self.dtype_name, dtype)
        if name not in FLOATS:
            raise TypeError(f"be.{primitive}: the dtype is one of {', '.join(FLOATS)}; got {name}")
        return name

    def _layer(self, primitive: str, layer: LayerShape, kind: type[LayerShape], made_by: str) -> None:
        if not isinstance(layer, kind):
            raise TypeError(f"be.{primitive} takes a layer object, as be.{made_by} returns; got {describe(layer)}")
        if layer.backend is not self:
            raise ValueError(
                f"be.{primitive}: the layer object {layer!r} belongs to {layer.backend!r} and not to {self!r}: "
                f"make it with be.{made_by}"
            )

    # --- convolution ---

    def fprop_conv(
        self,
        layer: ConvLayer,
        I: Tensor,
        F: Tensor,
        O: Tensor,
        X: Any = None,
        bias: Any = None,
        bsum: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        relu: bool = False,
        brelu: bool = False,
        slope: float = 0.0,
        layer_op: Any = None,
        repeat: int = 1,
    ) -> Tensor:
        """Compute ``O = relu(alpha conv(I, F) + bias)``, a correlation (the filters are not flipped), and return O.

        I (C, D, H, W, N), F (C, T, R, S, K), O (K, M, P, Q, N), each in any shape of as many elements; bias (K, 1).
        ``relu``: max(., 0) + slope min(., 0). ``brelu``: times 1 where X > 0, and slope where X < 0, instead. ``bsum``
        (K, 1) takes the sum of each output map. With ``beta``: ``O = alpha conv(I, F) + beta X``, where X is O unless
        given, and nothing else is done, as in neon. ``fprop_conv(layer, I, F, O, alpha, relu, repeat)`` is understood.
        ValueError for sizes that do not fit the layer object, TypeError for another dtype.
        """
        self._layer("fprop_conv", layer, ConvLayer, "conv_layer")
        X, bias, bsum, alpha, relu, repeat = guide_order(X, bias, bsum, alpha, relu, repeat)
        i, f, o = (I, layer.dimI, IMAGE), (F, layer.dimF, FILTERS), (O, layer.dimO, RESULT)
        self._sized("fprop_conv", layer, I=i, F=f, O=o)
        relu = relu or layer.relu

        def run(place: Tensor, alpha: float, beta: float) -> None:
            arrays = self._shaped(images, layer.dimI), self._shaped(filters, layer.dimF)
            self.primitives.conv_fprop(layer, *arrays, self._shaped(place, layer.dimO), alpha, beta)

        images, filters = self._dense(I), self._dense(F)
        more = (X, bias, bsum, alpha, beta, relu, brelu, slope, repeat)
        return self._convolve("fprop_conv", run, O, layer.K, (I, F), *more)

    def bprop_conv(
        self,
        layer: ConvLayer,
        F: Tensor,
        E: Tensor,
        grad_I: Tensor,
        X: Any = None,
        bias: Any = None,
        bsum: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        relu: bool = False,
        brelu: bool = False,
        slope: float = 0.0,
        layer_op: Any = None,
        repeat: int = 1,
    ) -> Tensor:
        """Compute ``grad_I = alpha dE/dI`` of the error E at the output of a convolution, and return it.

        The transpose of ``fprop_conv``, with its shapes: also the forward pass of a ``deconv_layer``. What follows
        ``grad_I`` acts on it as in ``fprop_conv`` on O; bias and bsum are (C, 1).
        """
        self._layer("bprop_conv", layer, ConvLayer, "conv_layer")
        X, bias, bsum, alpha, relu, repeat = guide_order(X, bias, bsum, alpha, relu, repeat, relu_second=False)
        f, e, d = (F, layer.dimF, FILTERS), (E, layer.dimO, RESULT), (grad_I, layer.dimI, IMAGE)
        self._sized("bprop_conv", layer, F=f, E=e, grad_I=d)

        def run(place: Tensor, alpha: float, beta: float) -> None:
            arrays = self._shaped(filters, layer.dimF), self._shaped(errors, layer.dimO)
            self.primitives.conv_bprop(layer, *arrays, self._shaped(place, layer.dimI), alpha, beta)

        filters, errors = self._dense(F), self._dense(E)
        more = (X, bias, bsum, alpha, beta, relu, brelu, slope, repeat)
        return self._convolve("bprop_conv", run, grad_I, layer.C, (F, E), *more)

    def _convolve(
        self,
        name: str,
        run: Callable[[Tensor, float, float], None],
        out: Tensor,
        maps: int,
        operands: tuple[Tensor, ...],
        X: Tensor | None,
        bias: Tensor | None,
        bsum: Tensor | None,
        alpha: float,
        beta: float,
        relu: bool,
        brelu: bool,
        slope: float,
        repeat: int,
    ) -> Tensor:
        """Run a convolution into ``out``, and what is to follow it."""
        (repeat,) = self._whole_numbers(name, 1, repeat=repeat)
        alpha, beta, slope = self._numbers(name, alpha=alpha, beta=beta, slope=slope)
        given = {k: t for k, t in (("X", X), ("bias", bias), ("bsum", bsum)) if t is not None}
        self._own(name, **given)
        for k, t in given.items():
            if t.size != (out.size if k == "X" else maps):
                wanted = f"{out.shape}, as the result" if k == "X" else f"{(maps, 1)}"
                raise ValueError(f"be.{name}: {k} has the shape {wanted}; got {describe(t)}")
        if brelu and X is None:
            raise ValueError(f"be.{name}: brelu multiplies by X > 0: give X")
        X = out if beta and X is None else X
        for _ in range(repeat):
            with self._place(out, *operands, *(() if beta else (X, bias))) as place:
                if beta and X is not None and X is not place:
                    place[:] = self._dense(X).reshape(place.shape)
                with Silence():
                    run(place, alpha, beta)
                if not beta:
                    self._finish(place, maps, X, bias, bsum, relu, brelu, slope)
        return out

    def _finish(
        self,
        place: Tensor,
        maps: int,
        X: Tensor | None,
        bias: Tensor | None,
        bsum: Tensor | None,
        relu: bool,
        brelu: bool,
        slope: float,
    ) -> None:
        """Add the bias, apply relu or brelu, and sum, each where asked for."""
        result = place.reshape(maps, -1)
        value: Any = result if bias is None else result + self._dense(bias).reshape(maps, 1)
        if brelu and X is not None:
            x = self._dense(X).reshape(maps, -1)
            value = value * ((x > 0) + slope * (x < 0) if slope else x > 0)
        elif relu:
            value = self.maximum(value, 0) + slope * self.minimum(value, 0) if slope else self.maximum(value, 0)
        if value is not result:
            result[:] = value
        if bsum is not None:
            self._sum_maps(result, bsum)

    def _sum_maps(self, maps: Tensor, out: Tensor) -> None:
        """Put the sum of each row into a tensor, of any shape of as many elements."""
        with self._place(out, maps) as place:
            place.reshape(-1, 1)[:] = self.sum(maps, axis=1)

    def update_conv(
        self,
        layer: ConvLayer,
        I: Tensor,
        E: Tensor,
        grad_F: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        grad_bias: Tensor | None = None,
        layer_op: Any = None,
        repeat: int = 1,
        *,
        U: Any = None,
    ) -> Tensor:
        """Compute ``grad_F = alpha dE/dF + beta grad_F`` of the error E at the output, and return it.

        I (C, D, H, W, N), E (K, M, P, Q, N), grad_F (C, T, R, S, K), also named U; grad_bias (K, 1) takes the sum of
        each map of E. A whole number above 1 in the place of ``beta`` is ``repeat``, as in the guide.
        """
        self._layer("update_conv", layer, ConvLayer, "conv_layer")
        out = grad_F if U is None else U
        if isinstance(beta, int) and not isinstance(beta, bool) and beta > 1:
            beta, repeat = 0, beta
        i, e, u = (I, layer.dimI, IMAGE), (E, layer.dimO, RESULT), (out, layer.dimF, FILTERS)
        self._sized("update_conv", layer, I=i, E=e, grad_F=u)
        (repeat,) = self._whole_numbers("update_conv", 1, repeat=repeat)
        alpha, beta = self._numbers("update_conv", alpha=alpha, beta=beta)
        images, errors = self._dense(I), self._dense(E)
        if grad_bias is not None:
            self._own("update_conv", grad_bias=grad_bias)
            if grad_bias.size != layer.K:
                raise ValueError(f"be.update_conv: grad_bias has the shape {(layer.K, 1)}; got {describe(grad_bias)}")
            self._sum_maps(errors.reshape(layer.K, -1), grad_bias)
        for _ in range(repeat):
            with self._place(out, I, E, start=bool(beta)) as place, Silence():
                arrays = self._shaped(images, layer.dimI), self._shaped(errors, layer.dimO)
                self.primitives.conv_update(layer, *arrays, self._shaped(place, layer.dimF), alpha, beta)
        return out  # type: ignore[no-any-return]

    # --- pooling ---

    def fprop_pool(
        self,
        layer: PoolLayer,
        I: Tensor,
        O: Tensor,
        argmax: Any = None,
        beta: float = 0.0,
    ) -> Tensor:
        """Compute ``O = pool(I) + beta O`` and return O. Cells of the padding do not count, not even for the mean.

        I (C, D, H, W, N), O (K, M, P, Q, N). ``argmax``, ints of O's size, takes the place of the first maximum in its
        window, in the order C, D, H, W, for ``bprop_pool``.
        """
        self._layer("fprop_pool", layer, PoolLayer, "pool_layer")
        self._sized("fprop_pool", layer, I=(I, layer.dimI, IMAGE), O=(O, layer.dimO, RESULT))
        places = self._places("fprop_pool", layer, argmax)
        (beta,) = self._numbers("fprop_pool", beta=beta)
        images, numbers = self._shaped(self._dense(I), layer.dimI), self._numbered(layer, places)
        with self._place(O, I, start=bool(beta)) as place, Silence():
            self.primitives.pool_fprop(layer, images, self._shaped(place, layer.dimO), numbers, beta)
        if places is not None and places is not argmax:  # argmax has gaps
            argmax[:] = places
        return O

    def bprop_pool(
        self,
        layer: PoolLayer,
        I: Any = None,
        E: Any = None,
        grad_I: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        *,
        delta: Any = None,
        argmax: Any = None,
    ) -> Tensor:
        """Compute ``grad_I = alpha dE/dI + beta grad_I`` of the error E at the output, and return it.

        ``bprop_pool(layer, I, E, grad_I)``, or ``bprop_pool(layer, E, grad_I, argmax)``: told apart by sizes. The
        error goes to the first maximum of each window; to all cells of a mean alike; to x in proportion to x for l2,
        which needs I. Windows that overlap add.
        """
        self._layer("bprop_pool", layer, PoolLayer, "pool_layer")
        grad_I = grad_I if delta is None else delta
        if E is None:
            I, E = None, I
        elif I is not None and (grad_I is None or self._is_places(layer, E, grad_I)):
            I, E, grad_I, argmax = None, I, E, argmax if grad_I is None else grad_I
        self._sized("bprop_pool", layer, E=(E, layer.dimO, RESULT), grad_I=(grad_I, layer.dimI, IMAGE))
        if I is None and (layer.op == "l2" or (layer.op == "max" and argmax is None)):
            wanted = "I, the images" if layer.op == "l2" else "argmax, as fprop_pool filled it, or I, the images"
            raise ValueError(f"be.bprop_pool: {layer.op} pooling needs {wanted}")
        if I is not None:
            self._sized("bprop_pool", layer, I=(I, layer.dimI, IMAGE))
        alpha, beta = self._numbers("bprop_pool", alpha=alpha, beta=beta)
        numbers = self._numbered(layer, self._places("bprop_pool", layer, argmax))
        images = None if I is None else self._shaped(self._dense(I), layer.dimI)
        errors = self._shaped(self._dense(E), layer.dimO)
        with self._place(grad_I, I, E, start=bool(beta)) as place, Silence():
            self.primitives.pool_bprop(layer, images, errors, self._shaped(place, layer.dimI), numbers, alpha, beta)
        return grad_I  # type: ignore[no-any-return]

    def _is_places(self, layer: PoolLayer, second: Any, third: Any) -> bool:
        """Tell whether the tensors after the first are grad_I and argmax, and not E and grad_I."""
        numbers = isinstance(third, Tensor) and "int" in third.info.dtype
        return numbers or (isinstance(second, Tensor) and second.size == layer.sizeI != layer.sizeO)

    def _numbered(self, layer: PoolLayer, places: Tensor | None) -> Any:
        return None if places is None else self._shaped(places, layer.dimO)

    def _places(self, primitive: str, layer: PoolLayer, argmax: Any) -> Tensor | None:
        """Return an argmax buffer, or a copy without gaps, after checks; None where there is, or is to be, none."""
        if argmax is None or layer.op != "max":
            return None
        self._own(primitive, argmax=argmax)
        window = math.prod(layer.JTRS)
        if argmax.size != layer.sizeO:
            raise ValueError(f"be.{primitive}: argmax has the shape {layer.dimO} = {RESULT}; got {describe(argmax)}")
        if "int" not in argmax.info.dtype or np.iinfo(argmax.info.dtype).max < window - 1:
            raise TypeError(
                f"be.{primitive}: argmax holds whole numbers up to {window - 1}, the cells of a window {layer.JTRS}; "
                f"got {describe(argmax)} of {argmax.info.dtype}: use dtype='int32'"
            )
        return self._dense(argmax)

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
        """Compute ``O = I denom^-bpower``, ``denom = 1 + ascale / J sum I^2`` over J neighboring channels; return O.

        All (C, D, H, W, N). With ``alpha`` and ``beta``: ``O = alpha I denom^-bpower + beta O``.
        Source: Krizhevsky et al. 2012, section 3.3.
        """
        self._layer("fprop_lrn", layer, LRNLayer, "lrn_layer")
        tensors = {"I": I, "O": O, "denom": denom}
        self._sized("fprop_lrn", layer, **{name: (t, layer.dimI, IMAGE) for name, t in tensors.items()})
        alpha, beta, ascale, bpower = self._scales("fprop_lrn", alpha, beta, ascale, bpower)
        images = self._shaped(self._dense(I), layer.dimI)
        with self._place(O, I, denom, start=bool(beta)) as o, self._place(denom, I) as d, Silence():
            places = self._shaped(o, layer.dimI), self._shaped(d, layer.dimI)
            self.primitives.lrn_fprop(layer, images, *places, alpha, beta, ascale, bpower)
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
        """Compute ``delta = alpha dE/dI + beta delta`` of the error E at O, and return it.

        ``dE/dI = n - 2 a b / J I sum(n I / denom)``, ``n = E denom^-b``, a and b being ascale and bpower. denom is that
        of ``fprop_lrn``; O is not read. All of one shape.
        """
        self._layer("bprop_lrn", layer, LRNLayer, "lrn_layer")
        tensors = {"I": I, "O": O, "E": E, "delta": delta, "denom": denom}
        self._sized("bprop_lrn", layer, **{name: (t, layer.dimI, IMAGE) for name, t in tensors.items()})
        alpha, beta, ascale, bpower = self._scales("bprop_lrn", alpha, beta, ascale, bpower)
        i, e, d = (self._shaped(self._dense(t), layer.dimI) for t in (I, E, denom))
        with self._place(delta, I, O, E, denom, start=bool(beta)) as place, Silence():
            out = self._shaped(place, layer.dimI)
            self.primitives.lrn_bprop(layer, i, e, out, d, alpha, beta, ascale, bpower)
        return delta

    def _scales(self, primitive: str, alpha: Any, beta: Any, ascale: Any, bpower: Any) -> list[float]:
        alpha, beta = 1.0 if alpha is None else alpha, 0.0 if beta is None else beta
        return self._numbers(primitive, alpha=alpha, beta=beta, ascale=ascale, bpower=bpower)


DECONV_3D = [
    *("M", "P", "Q", "T", "R", "S"),
    *(f"{what}_{axis}" for what in ("pad", "str", "dil") for axis in "dhw"),
]
DECONV = ["P", "Q", "R", "S", *DECONV_3D[6:12]]


def _deconv_signature() -> inspect.Signature:
    """Return the signature that help shows: the guide's positions, and the rest by name."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    first = list(inspect.signature(ImageCalls.deconv_layer).parameters.values())[:5]
    sizes = [
        inspect.Parameter(n, first[1].kind, default=inspect.Parameter.empty if n in "PQ" else int("pad" not in n))
        for n in DECONV
    ]
    return inspect.Signature(
        [*first, *sizes, *(inspect.Parameter(n, keyword, default=1) for n in DECONV_3D if n not in DECONV)],
        return_annotation=DeconvLayer,
    )


ImageCalls.deconv_layer.__signature__ = _deconv_signature()  # type: ignore[attr-defined]


def guide_order(
    X: Any, bias: Any, bsum: Any, alpha: float, relu: bool, repeat: int, relu_second: bool = True
) -> tuple[Any, Any, Any, float, bool, int]:
    """Return X, bias, bsum, alpha, relu and repeat, when the guide's (alpha, relu, repeat) may stand in the first."""
    if not isinstance(X, Real):
        return X, bias, bsum, alpha, relu, repeat
    rest: list[Any] = [x for x in (bias, bsum) if isinstance(x, Real)]
    bias, bsum = (None if isinstance(x, Real) else x for x in (bias, bsum))
    if relu_second and rest:
        relu = bool(rest.pop(0))
    return None, bias, bsum, float(X), relu, rest[0] if rest else repeat
