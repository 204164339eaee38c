"""Which primitives work on images?  Convolution, pooling and normalization, with layer objects."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np

from neonlite.backend.executors.quiet import Silence
from neonlite.backend.primitives.geometry import ConvLayer, LayerShape, LRNLayer, PoolLayer
from neonlite.backend.primitives.layer_objects import LayerObjects
from neonlite.backend.stored import found
from neonlite.backend.tensor import Tensor
from neonlite.optree import describe

IMAGE, FILTERS, RESULT = "(C, D, H, W, N)", "(C, T, R, S, K)", "(K, M, P, Q, N)"


class ImageCalls(LayerObjects):
    """The backend's methods for layers of images."""

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

        def run(place: Tensor, alpha: float, beta: float) -> bool:
            arrays = self._images(images, layer.dimI), self._shaped(filters, layer.dimF)
            o = self._images(place, layer.dimO)
            simple = bias is not None and bias.is_contiguous and bias.info.dtype == images.info.dtype
            if simple and alpha == 1 and not beta:
                more = o, self._shaped(bias, (layer.K,)), relu and not (brelu or slope)
                if self.primitives.conv_with_bias(layer, *arrays, *more):
                    return True
            self.primitives.conv_fprop(layer, *arrays, o, alpha, beta)
            return False

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

        def run(place: Tensor, alpha: float, beta: float) -> bool:
            arrays = self._shaped(filters, layer.dimF), self._images(errors, layer.dimO)
            self.primitives.conv_bprop(layer, *arrays, self._images(place, layer.dimI), alpha, beta)
            return False

        filters, errors = self._dense(F), self._dense(E)
        more = (X, bias, bsum, alpha, beta, relu, brelu, slope, repeat)
        return self._convolve("bprop_conv", run, grad_I, layer.C, (F, E), *more)

    def _convolve(
        self,
        name: str,
        run: Callable[[Tensor, float, float], bool],
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
        """Run a convolution into ``out``, and what is to follow it; ``run`` tells whether it has added the bias."""
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
                    added = run(place, alpha, beta)
                if not beta:
                    done = added and self.primitives.rectifies and not (brelu or slope)
                    self._finish(place, maps, X, None if added else bias, bsum, relu and not done, brelu, slope)
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
        result, column, apart = place.reshape(maps, -1), (maps, 1), None
        if (bias is not None or relu) and not brelu and (apart := self._by_pixels([result], [bias], result)):
            (result,), column = apart.operands, (1, maps)
        value: Any = result if bias is None else result + self._dense(bias).reshape(column)
        if brelu and X is not None:
            x = self._dense(X).reshape(maps, -1)
            value = value * ((x > 0) + slope * (x < 0) if slope else x > 0)
        elif relu:
            value = self.maximum(value, 0) + slope * self.minimum(value, 0) if slope else self.maximum(value, 0)
        if value is not result:
            result[:] = value
        if apart:
            apart.end()
        if bsum is not None:
            self._sum_maps(place.reshape(maps, -1), bsum)

    def _sum_maps(self, maps: Tensor, out: Tensor) -> None:
        """Put the sum of each row into a tensor, of any shape of as many elements."""
        with self._place(out, maps) as place:
            column = place.reshape(-1, 1)
            if maps.info.dtype != column.info.dtype or not self._sum_apart(maps, column):
                column[:] = self.sum(maps, axis=1)

    def _sum_apart(self, maps: Tensor, column: Tensor) -> bool:
        """Put the sums of rows into a column, if these lie apart as the maps of images; tell whether they do."""
        if apart := self._by_pixels([maps], [column]):
            column.reshape(1, -1)[:] = self.sum(apart.operands[0], axis=0)
            return True
        stored = found(maps) if self.primitives.norms else None
        if stored is None or stored.in_order or not stored.has(maps, stored.form) or stored.form.maps != len(maps):
            return False
        with Silence():
            self.primitives.sum_maps(stored.room, self._target(column, (len(maps),)))
        return True

    def update_conv(
        self,
        layer: ConvLayer,
        I: Tensor,
        E: Tensor,
        grad_F: Any = None,
        alpha: float = 1.0,
        *more: Any,
        beta: float = 0.0,
        grad_bias: Tensor | None = None,
        layer_op: Any = None,
        repeat: int = 1,
        U: Any = None,
    ) -> Tensor:
        """Compute ``grad_F = alpha dE/dF + beta grad_F`` of the error E at the output, and return it.

        I (C, D, H, W, N), E (K, M, P, Q, N), grad_F (C, T, R, S, K), also named U; grad_bias (K, 1) takes the sum of
        each map of E. By position follow beta, grad_bias and layer_op, or a whole number above 1: ``repeat``, as in the
        guide.
        """
        self._layer("update_conv", layer, ConvLayer, "conv_layer")
        out = grad_F if U is None else U
        if len(more) > 3:
            raise TypeError(f"be.update_conv takes 8 arguments by position; got {5 + len(more)}")
        if len(more) == 1 and isinstance(more[0], int) and more[0] > 1:
            (repeat,) = more
        else:
            given: list[Any] = [beta, grad_bias, layer_op]
            beta, grad_bias, _ = more + tuple(given[len(more) :])
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
                arrays = self._images(images, layer.dimI), self._images(errors, layer.dimO)
                self.primitives.conv_update(layer, *arrays, self._target(place, layer.dimF), alpha, beta)
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
        images, numbers = self._images(self._dense(I), layer.dimI), self._numbered(layer, places)
        with self._place(O, I, start=bool(beta)) as place, Silence():
            self.primitives.pool_fprop(layer, images, self._images(place, layer.dimO), numbers, beta)
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
        images = None if I is None else self._images(self._dense(I), layer.dimI)
        errors = self._images(self._dense(E), layer.dimO)
        with self._place(grad_I, I, E, start=bool(beta)) as place, Silence():
            self.primitives.pool_bprop(layer, images, errors, self._images(place, layer.dimI), numbers, alpha, beta)
        return grad_I  # type: ignore[no-any-return]

    def _is_places(self, layer: PoolLayer, second: Any, third: Any) -> bool:
        """Tell whether the tensors after the first are grad_I and argmax, and not E and grad_I."""
        numbers = isinstance(third, Tensor) and "int" in third.info.dtype
        return numbers or (isinstance(second, Tensor) and second.size == layer.sizeI != layer.sizeO)

    def _numbered(self, layer: PoolLayer, places: Tensor | None) -> Any:
        return None if places is None else self._images(places, layer.dimO)

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
        images = self._images(self._dense(I), layer.dimI)
        with self._place(O, I, denom, start=bool(beta)) as o, self._place(denom, I) as d, Silence():
            places = self._images(o, layer.dimI), self._images(d, layer.dimI)
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
        i, e, d = (self._images(self._dense(t), layer.dimI) for t in (I, E, denom))
        with self._place(delta, I, O, E, denom, start=bool(beta)) as place, Silence():
            out = self._images(place, layer.dimI)
            self.primitives.lrn_bprop(layer, i, e, out, d, alpha, beta, ascale, bpower)
        return delta

    def _scales(self, primitive: str, alpha: Any, beta: Any, ascale: Any, bpower: Any) -> list[float]:
        alpha, beta = 1.0 if alpha is None else alpha, 0.0 if beta is None else beta
        return self._numbers(primitive, alpha=alpha, beta=beta, ascale=ascale, bpower=bpower)


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
