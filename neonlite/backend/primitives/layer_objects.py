"""Which layer objects does a backend make?  Those of convolution and its transpose, pooling, and normalization."""

from __future__ import annotations

import inspect
from typing import Any

from neonlite.backend.primitives.geometry import ConvLayer, DeconvLayer, LRNLayer, PoolLayer, input_dim, output_dim
from neonlite.backend.primitives.places import Places
from neonlite.ops import FLOATS


class LayerObjects(Places):
    """The backend's methods that settle the sizes of primitives on images."""

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


DECONV_3D = [
    *("M", "P", "Q", "T", "R", "S"),
    *(f"{what}_{axis}" for what in ("pad", "str", "dil") for axis in "dhw"),
]
DECONV = ["P", "Q", "R", "S", *DECONV_3D[6:12]]


def _deconv_signature() -> inspect.Signature:
    """Return the signature that help shows: the guide's positions, and the rest by name."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    first = list(inspect.signature(LayerObjects.deconv_layer).parameters.values())[:5]
    sizes = [
        inspect.Parameter(n, first[1].kind, default=inspect.Parameter.empty if n in "PQ" else int("pad" not in n))
        for n in DECONV
    ]
    return inspect.Signature(
        [*first, *sizes, *(inspect.Parameter(n, keyword, default=1) for n in DECONV_3D if n not in DECONV)],
        return_annotation=DeconvLayer,
    )


LayerObjects.deconv_layer.__signature__ = _deconv_signature()  # type: ignore[attr-defined]
