"""Convolution, pooling and batch norm by oneDNN: primitives, their cache, and the reorders around them.

oneDNN is fast in NHWC only. A plan keeps images in NHWC, (N, D, H, W, C), between its primitives; see
``backend/primitives/rows.py``. Other images, (C, D, H, W, N), are reordered in each call.

Pooling works in both layouts, since it treats channels and images independently: an array (C, H, W, N) is passed to
oneDNN as C images in NHWC with N channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from ctypes import c_float, c_uint
from threading import get_ident
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from neonlite.backend.concurrency import get_num_threads, parallel_for
from neonlite.backend.primitives.geometry import (
    ConvLayer,
    ImageShape,
    Layout,
    PoolLayer,
    ReorderedImages,
    as_chwn,
    chwn_view,
    image_shape,
)
from neonlite.backend.runtimes import data_address, openmp_threads
from neonlite.backend.runtimes.numpy import NumPyPrimitives
from neonlite.backend.runtimes.numpy.stages import MIN_THREADED_ELEMENTS
from neonlite.backend.runtimes.onednn import bindings as dnnl
from neonlite.backend.runtimes.onednn.post_ops import ChainOp, copy_transposed, execute, get_chain
from neonlite.ops.functions import contiguous_strides
from neonlite.typing import NativeArray, NumPyArray as Array

CACHE_LINE_BYTES = 64  # oneDNN's arrays are aligned to it
CONVOLUTION_DIRECT = 1  # dnnl_alg_kind_t; Winograd is less precise
POOLING_ALG = {"max": 0x1FF, "avg": 0x3FF}  # the mean excludes padding
WEIGHT_SCALES = dnnl.ARG_SCALES | dnnl.ARG_WEIGHTS
REDUCTION_MAX, REDUCTION_SUM = 0x2FFF2, 0x2FFF4
BFLOAT16_INFINITY = 0x7F80  # its bits, above which are those of NaN
# Channels of images. Of one channel, an epoch by oneDNN takes 0.75 (28x28, N = 128) to 1.25 (8x8) of NumPy's time, with
# two threads beside a busy process up to 1.7. The gradient of two channels takes NumPy two thirds of the time.
MIN_CHANNELS, MIN_BPROP_CHANNELS = 2, 3
# If the row stride of a transpose is a multiple of this, its rows share few sets of the L1 cache, and NumPy takes 5
# times as long as oneDNN to copy it; with other strides both take the same time. For 128 rows of 784 to 3072, by hand.
ALIASED_BYTES, MIN_ALIASED_ELEMENTS = 1 << 12, 1 << 16
MIN_PARALLEL_SUM = 1 << 20  # elements: both ways take the same time from there to 8 << 20, by thresholds.py
MAX_SUM_PARTS = 64  # partial sums, which NumPy adds
# An implementation of 1 x 1 convolutions in oneDNN 3.2, for AVX2. With strides and two threads, its gradients with
# respect to filters are wrong, as for images of 8 x 8, differ between runs, or never end
STRIDED_1X1 = b"jit_1x1:avx2"
Images: TypeAlias = "Array | ReorderedImages"
UINT8_TEMPLATE = np.empty(0, np.uint8)  # empty arrays that specify a dtype
ARGMAX_TEMPLATES: dict[int, Array] = {1: UINT8_TEMPLATE, 4: np.empty(0, np.int32)}  # by itemsize


class ReorderedPrimitive(NamedTuple):
    """A primitive with the reorders it needs: image arguments in NHWC, and filters in a layout that oneDNN chooses."""

    primitive: dnnl.Primitive
    nhwc_args: tuple[int, ...] = ()  # image arguments in NHWC
    reorders: dict[int, dnnl.Primitive] = {}  # to the primitive's layout; for the output, from it  # noqa: RUF012


class OneDNNConvolution(NumPyPrimitives):
    """Convolution and pooling of float32 by oneDNN, with NumPy as the fallback if it has no fast primitive.

    Images are arrays, or ``ReorderedImages`` of a plan.
    """

    # --- convolution ---

    def conv_fprop(self, layer: ConvLayer, i: Images, f: Array, o: Images, alpha: float, beta: float) -> None:
        """Compute ``o = alpha conv(i, f) + beta o``: (C, D, H, W, N), (C, T, R, S, K), (K, M, P, Q, N)."""
        if conv := self._get_convolution(create_fprop, layer, i):
            self._execute_into(conv, (i, f), o, alpha, beta)
        else:
            super().conv_fprop(layer, as_chwn(i), f, chwn_view(o), alpha, beta)

    def computes(self, op: str, layer: Any) -> bool:
        """Return whether oneDNN computes an op of the table for images: in NHWC, and with groups."""
        like, is_pool = self.xp.empty(0, dtype=layer.dtype), "pool" in op
        if not is_pool:
            is_large = op != "conv_backward" or layer.C >= MIN_BPROP_CHANNELS
            return is_large and self._get_convolution(CONVOLUTION_FACTORIES[op], layer, like) is not None
        factory = (
            create_pooling_backward if "unpool" in op else create_max_pooling if layer.op == "max" else create_pooling
        )
        pooling = self._get_pooling(factory, layer, like, True)
        indices = [UINT8_TEMPLATE if math.prod(layer.JTRS) <= 256 else ARGMAX_TEMPLATES[4]] * (layer.op == "max")
        return pooling is not None and self._has_argmax_size(pooling, layer, indices)

    def try_conv_bias(self, layer: ConvLayer, i: Images, f: Array, o: Images, bias: Array, relu: bool) -> bool:
        """Compute ``o = conv(i, f) + bias`` and return True, or return False without a fast primitive. bias (K,)."""
        conv = self._get_convolution(create_fprop, layer, i, True)
        if conv:
            self._execute_into(conv, (i, f), o, bias=bias)
        return conv is not None

    def conv_bprop(self, layer: ConvLayer, f: Array, e: Images, d: Images, alpha: float, beta: float) -> None:
        """Compute ``d = alpha dE/di + beta d`` of the error e = dE/do."""
        if layer.C >= MIN_BPROP_CHANNELS and (conv := self._get_convolution(create_bprop, layer, e)):
            self._execute_into(conv, (f, e), d, alpha, beta)
        else:
            super().conv_bprop(layer, f, as_chwn(e), chwn_view(d), alpha, beta)

    def conv_update(self, layer: ConvLayer, i: Images, e: Images, u: Array, alpha: float, beta: float) -> None:
        """Compute ``u = alpha dE/df + beta u`` of the error e = dE/do."""
        if conv := self._get_convolution(create_update, layer, i):
            self._execute_into(conv, (i, e), u, alpha, beta)
        else:
            super().conv_update(layer, as_chwn(i), as_chwn(e), u, alpha, beta)

    def _get_convolution(
        self, factory: Factory, layer: ConvLayer, like: Images, *with_bias: bool
    ) -> ReorderedPrimitive | None:
        if layer.C < MIN_CHANNELS:
            return None
        sizes = layer.dimI, layer.dimF, layer.dimO, layer.padding, layer.strides, layer.dilation
        return self._get_primitive(factory, layer, like, sizes, *with_bias)

    # --- int8 and bfloat16 ---

    def computes_quantized(self, dtype: str, layer: Any) -> bool:
        """Return whether oneDNN multiplies int8, or bfloat16 (int16), in a convolution or a product (nout, nin, N)."""
        library = dnnl.get_library()
        if library is None or not library.has_products(dtype):
            return False
        if isinstance(layer, ConvLayer):
            return all(self._get_quantized_conv(layer, np.dtype(dtype), relu) for relu in (False, True))
        return self._get_cached(create_quantized_dot, layer, np.dtype(dtype)) is not None

    def round_to(self, x: Array, out: Array, *, scale: float | None) -> None:
        """Compute ``out = round(x / scale)`` in int8, or x rounded to the bits of bfloat16."""
        factor = () if scale is None else (np.array([1 / scale], np.float32),)
        self._execute(self._get_cached(create_rounding, (x.size,), out.dtype), (x, out, *factor))

    def quantized_dot(self, x: Array, W: Array, bias: Array, *arrays: Array, relu: bool) -> None:
        """Compute ``out = factors (W x) + bias``, or max(., 0) of it: (nin, N), (nout, nin)."""
        *factors, out = arrays
        self._execute(self._get_cached(create_quantized_dot, (*W.shape, x.shape[1]), W.dtype), (W, x, out))
        if not self.runtime.has_values:
            return
        is_fused = relu and self._is_without_nan(x)
        operands: list[Any] = [*factors, bias, *(np.float32(0),) * is_fused]
        names = ["mul"] * len(factors) + ["add"] + ["maximum"] * is_fused
        ops, scalars = tuple(map(ChainOp, names, range(1, 4))), frozenset((len(names),) * is_fused)
        get_chain(ops, len(names) + 1, scalars).run_parallel(out, *operands, out)
        if relu and not is_fused:
            np.maximum(out, 0, out=out)

    def quantized_conv(self, layer: ConvLayer, x: Array, W: Array, bias: Array, *arrays: Array, relu: bool) -> None:
        """Compute ``out = factors conv(x, W) + bias`` of images in NHWC, or max(., 0) of it."""
        *factors, out = arrays
        is_fused = relu and self._is_without_nan(x)
        conv: Any = self._get_quantized_conv(layer, W.dtype, is_fused)
        self._execute(conv.primitive, (x, self._reorder_operand(conv, dnnl.ARG_WEIGHTS, W), out, bias, *factors))
        if relu and not is_fused:
            np.maximum(out, 0, out=out)

    def _is_without_nan(self, x: Array) -> bool:
        """Return whether sums of products with x have no NaN, of which oneDNN's max(., 0) is 0: if x is finite."""
        if x.dtype == np.int8 or not self.runtime.has_values:
            return True
        return bool(x.max() < BFLOAT16_INFINITY and x.view(np.uint16).max() < BFLOAT16_INFINITY | 1 << 15)

    def _get_quantized_conv(self, layer: ConvLayer, dtype: np.dtype[Any], relu: bool) -> ReorderedPrimitive | None:
        sizes = layer.dimI, layer.dimF, layer.dimO, layer.padding, layer.strides, layer.dilation
        conv: ReorderedPrimitive | None = self._get_cached(create_quantized_conv, sizes, dtype, relu, subject=layer)
        return conv

    # --- pooling ---

    def pool_fprop(self, layer: PoolLayer, i: NativeArray, o: NativeArray, argmax: NativeArray, beta: float) -> None:
        """Compute ``o = pool(i) + beta o``; unless ``argmax`` is None, write the window indices of the maxima to it."""
        saves_argmax = layer.op == "max" and argmax is not None
        factory = create_max_pooling if saves_argmax else create_pooling
        if beta == 0 and self._pool_fprop_nhwc(factory, layer, i, [argmax, o] if saves_argmax else [o]):
            return
        i, o, argmax = as_chwn(i), chwn_view(o), chwn_view(argmax)
        pooling = self._get_pooling(factory, layer, i)
        if not pooling or (layer.op == "max" and not self._is_finite(i)):
            super().pool_fprop(layer, i, o, argmax, beta)
        elif saves_argmax:
            argmax_buffer = self._argmax_buffer(pooling, layer, argmax)
            self._execute_into(pooling, (i, argmax_buffer), o, 1.0, beta)
            if argmax_buffer is not argmax:
                np.copyto(argmax, argmax_buffer, casting="unsafe")
        else:
            self._execute_into(pooling, (i,), o, 1.0, beta)

    def _pool_fprop_nhwc(self, factory: Factory, layer: PoolLayer, i: Images, outputs: list[Any]) -> bool:
        """Pool NHWC images into NHWC outputs and return True, or return False if they cannot be in NHWC."""
        if not isinstance(i, ReorderedImages) or not all(isinstance(x, ReorderedImages) for x in outputs):
            return False
        pooling = self._get_pooling(factory, layer, i, True)
        if not pooling or not self._has_argmax_size(pooling, layer, outputs[:-1]):
            return False
        if layer.op == "max" and not self._is_finite(i.flat):
            return False
        self._execute(pooling.primitive, [x.flat for x in (i, *outputs)])
        return True

    def pool_bprop(
        self,
        layer: PoolLayer,
        i: NativeArray,
        e: NativeArray,
        d: NativeArray,
        argmax: NativeArray,
        alpha: float,
        beta: float,
    ) -> None:
        """Compute ``d = alpha dE/di + beta d`` of the error e = dE/do; max uses ``argmax`` or i, l2 uses i."""
        if self._pool_bprop_nhwc(layer, i, e, d, argmax, alpha, beta):
            return
        i = as_chwn(i) if layer.op in ("max", "l2") else None
        e, argmax, d = as_chwn(e), as_chwn(argmax), chwn_view(d)
        needs_argmax = layer.op == "max" and argmax is None
        pooling = None if needs_argmax else self._get_pooling(create_pooling_backward, layer, e)
        if not pooling:
            super().pool_bprop(layer, i, e, d, argmax, alpha, beta)
        elif layer.op == "max":
            argmax_buffer = self._argmax_buffer(pooling, layer, argmax)
            if argmax_buffer is not argmax:
                np.copyto(argmax_buffer, argmax, casting="unsafe")
            self._execute_into(pooling, (e, argmax_buffer), d, alpha, beta)
        else:
            self._execute_into(pooling, (e,), d, alpha, beta)

    def _pool_bprop_nhwc(
        self, layer: PoolLayer, i: NativeArray, e: Images, d: Images, argmax: NativeArray, alpha: float, beta: float
    ) -> bool:
        """Write the gradient in NHWC and return True, or return False if argmax, or else the images, are in CHWN."""
        indices = [argmax] if layer.op == "max" else []
        if not all(isinstance(x, ReorderedImages) for x in (d, *indices)):
            return False
        pooling = self._get_pooling(create_pooling_backward, layer, e, True)
        if not pooling or not self._has_argmax_size(pooling, layer, indices):
            return False
        self._execute_into(pooling, (e, *indices), d)
        return True

    def _get_pooling(
        self, factory: Factory, layer: PoolLayer, like: Images, *is_nhwc: bool
    ) -> ReorderedPrimitive | None:
        sizes = layer.dimI, layer.JTRS, layer.dimO, layer.padding, layer.strides, layer.op
        return self._get_primitive(factory, layer, like, sizes, *is_nhwc)

    def _is_finite(self, i: Array) -> bool:
        """Return whether the sum, and so every element, is finite. Required since oneDNN's maximum ignores NaN."""
        if not self.runtime.has_values:
            return True
        values, rows = i.reshape(-1), count_parts(i.size)
        if values.size >= MIN_PARALLEL_SUM and (row_sum := self._get_row_sum((rows, values.size // rows))):
            sums = self.get_workspace("sums", (rows,), values)
            self._execute(row_sum, (values, sums))
            values = sums
        return math.isfinite(np.einsum("i->", values))  # less precise than np.sum, but several times as fast

    def _get_row_sum(self, shape: tuple[int, int]) -> dnnl.Primitive | None:
        """Return the primitive that sums rows, or None."""
        row_sum: dnnl.Primitive | None = self._get_cached(create_row_reduction, shape, REDUCTION_SUM)
        return row_sum

    def _has_argmax_size(self, pooling: ReorderedPrimitive, layer: PoolLayer, indices: Sequence[Any]) -> bool:
        """Return whether oneDNN's indices have the itemsize of these arrays."""
        memory_descs = pooling.primitive.memory_descs
        return all(x.dtype.itemsize * layer.sizeO == memory_descs[dnnl.ARG_WORKSPACE].nbytes for x in indices)

    def _argmax_buffer(self, pooling: ReorderedPrimitive, layer: PoolLayer, argmax: Array) -> Any:
        """Return an array for oneDNN's indices: ``argmax`` itself if it has their itemsize."""
        size = pooling.primitive.memory_descs[dnnl.ARG_WORKSPACE].nbytes // layer.sizeO
        return argmax if argmax.itemsize == size else self.get_workspace("argmax", layer.dimO, ARGMAX_TEMPLATES[size])

    # --- primitives ---

    def _get_primitive(
        self, factory: Factory, layer: Any, like: Images, sizes: tuple[Any, ...], *options: Any
    ) -> ReorderedPrimitive | None:
        """Return this thread's primitive for some sizes, or None if there is no fast one."""
        return self._get_cached(factory, sizes, *options, subject=layer) if like.dtype == np.float32 else None

    def _get_cached(self, factory: Any, sizes: tuple[Any, ...], *options: Any, subject: Any = None) -> Any:
        """Return this thread's primitive for some sizes, created on first use; None if there is no fast one.

        ``subject``: what the factory gets instead of the sizes.
        """
        library = dnnl.get_library()
        if library is None:
            return None
        key = get_ident(), factory, sizes, options, openmp_threads()
        try:
            return dnnl.primitives[key]
        except KeyError:
            pass
        primitive = None
        with suppress(dnnl.UnsupportedError), library.use_threads():
            primitive = factory(library, sizes if subject is None else subject, *options)
        return dnnl.primitives.add(key, primitive)

    def _execute_into(
        self,
        reordered: ReorderedPrimitive,
        operands: Sequence[Images],
        out: Images,
        alpha: float = 1.0,
        beta: float = 0.0,
        bias: Array | None = None,
    ) -> None:
        """Compute ``out = alpha result + beta out``. ``bias``: the last argument."""
        array = chwn_view(out)
        check_writeable(array)
        primitive, nhwc_args, reorders = reordered
        args, is_plain_write = list(primitive.memory_descs), alpha == 1 and beta == 0
        n = args[len(operands)]
        arrays = [self._reorder_operand(reordered, *pair) for pair in zip(args, operands, strict=False)]
        last = () if bias is None else (bias,)
        if isinstance(out, ReorderedImages):
            self._execute(primitive, (*arrays, out.flat, *last))
            return
        result = array if is_plain_write else self.get_workspace("result", array.shape, array)
        needs_reorder = n in nhwc_args or n in reorders
        buffer = self._arg_buffer(n, primitive.memory_descs[n].nbytes, array.dtype) if needs_reorder else result
        self._execute(primitive, (*arrays, buffer, *last))
        if n in nhwc_args:
            self.reorder(image_shape(array.shape, Layout.NHWC), result, buffer, True)
        elif needs_reorder:
            self._execute(reorders[n], (buffer, result))
        if result is not array:
            if alpha != 1:
                np.multiply(result, alpha, out=result)
            if beta != 0:
                np.add(result, np.multiply(array, beta, out=array), out=result)
            array[...] = result

    def _reorder_operand(self, reordered: ReorderedPrimitive, arg: int, x: NativeArray) -> NativeArray:
        """Return an operand in the layout that the primitive expects."""
        if arg in reordered.nhwc_args:
            return self._nhwc_operand(arg, x)
        if arg not in reordered.reorders:
            return x
        buffer = self._arg_buffer(arg, reordered.primitive.memory_descs[arg].nbytes, x.dtype)
        self._execute(reordered.reorders[arg], (x, buffer))
        return buffer

    def _nhwc_operand(self, arg: int, x: Images) -> Any:
        """Return images in NHWC, reordered into a workspace unless they are."""
        if isinstance(x, ReorderedImages):
            return x.flat
        buffer = self._arg_buffer(arg, x.nbytes, x.dtype)
        self.reorder(image_shape(x.shape, Layout.NHWC), x, buffer, False)
        return buffer

    # --- buffers ---

    def reorder(self, shape: ImageShape, chwn: NativeArray, nhwc: NativeArray, to_chwn: bool) -> None:
        """Copy images from CHWN to NHWC, or back with ``to_chwn``."""
        if primitive := self._get_cached(create_image_reorder, shape, chwn.dtype, to_chwn):
            self._execute(primitive, (nhwc, chwn) if to_chwn else (chwn, nhwc))
        else:
            target, source = nhwc.reshape(shape[::-1]), self.xp.permute_dims(chwn.reshape(shape), (2, 1, 0))
            np.copyto(source, target) if to_chwn else np.copyto(target, source)

    def _arg_buffer(self, arg: int, nbytes: int, dtype: np.dtype[Any]) -> Any:
        """Return this thread's buffer for an argument."""
        return self._align(self._byte_buffer(f"onednn {arg}", nbytes), nbytes, dtype)

    def _byte_buffer(self, purpose: str, nbytes: int) -> Any:
        """Return this thread's byte buffer for a purpose, with spare bytes for alignment to a cache line."""
        return self.get_workspace(purpose, (nbytes + CACHE_LINE_BYTES,), UINT8_TEMPLATE)

    def _align(self, buffer: Array, nbytes: int, dtype: np.dtype[Any]) -> Any:
        """Return ``nbytes`` of a buffer as an array that starts at a cache-line boundary."""
        start = -self.runtime.address_and_strides(buffer)[0] % CACHE_LINE_BYTES
        return buffer[start : start + nbytes].view(dtype)

    def _execute(self, primitive: dnnl.Primitive, arrays: Sequence[Array]) -> None:
        """Execute a primitive on arrays."""
        scratchpad = None
        if primitive.needs_scratchpad:
            scratchpad = self._byte_buffer("onednn scratchpad", primitive.scratchpad_desc.nbytes)
        if self.runtime.has_values:
            last = () if scratchpad is None else (aligned_address(scratchpad),)
            with primitive.library.use_threads():
                primitive(*(data_address(x).value for x in arrays), *last)


Factory = Callable[..., ReorderedPrimitive]


def aligned_address(buffer: Array) -> int:
    """Return the address of the first cache-line boundary in a buffer."""
    start: int = data_address(buffer).value
    return start + -start % CACHE_LINE_BYTES


# --- factories of primitives -----------------------------------------------------------------------------------------


def permuted_desc(
    library: dnnl.Library, sizes: Sequence[int], axes: Sequence[int], dtype: str = "float32"
) -> dnnl.MemoryDesc:
    """Return the descriptor of a C-contiguous array with its axes permuted."""
    strides = contiguous_strides(tuple(sizes))
    return library.memory_desc([sizes[a] for a in axes], [strides[a] for a in axes], dtype)


def create_image_reorder(
    library: dnnl.Library, shape: ImageShape, dtype: np.dtype[Any], to_chwn: bool
) -> dnnl.Primitive:
    """Create the copy of images from CHWN to NHWC, or back with ``to_chwn``."""
    if dtype.name not in dnnl.DATA_TYPES:
        raise dnnl.UnsupportedError(f"oneDNN {library.version}: reorder of {dtype}")
    channels, pixels, batch_size = shape
    dims = batch_size, pixels, channels
    chwn = library.memory_desc(dims, (1, batch_size, pixels * batch_size), dtype.name)
    nhwc = library.memory_desc(dims, (pixels * channels, channels, 1), dtype.name)
    return library.create_reorder(*((nhwc, chwn) if to_chwn else (chwn, nhwc)))


def count_parts(size: int) -> int:
    """Return the largest number of equal parts, at most MAX_SUM_PARTS, that threads can sum separately."""
    return next(n for n in range(MAX_SUM_PARTS, 0, -1) if size % n == 0)


def create_row_reduction(library: dnnl.Library, shape: Sequence[int], kind: int) -> dnnl.Primitive:
    """Create the sums or the maxima of rows."""
    rows, results = library.memory_desc(shape, (shape[1], 1)), library.memory_desc((shape[0], 1), (1, 1))
    norm_args = c_float(0), c_float(0)  # p and eps, which only norms use
    args = library.engine, kind, rows.handle, results.handle, *norm_args, library.default_attr
    descs = {dnnl.ARG_SRC: rows, dnnl.ARG_DST: results}
    return dnnl.Primitive(library, library.primitive_desc("reduction", *args), descs)


class ConvolutionDesc:
    """Descriptors of a convolution. Depth is left out where it is 1.

    Images are NHWC, which is at least as fast as oneDNN's blocked layouts for any number of channels; filters are in a
    layout that oneDNN chooses. ``dtype``: that of images and filters. ``attr``: the attributes of the primitive.
    """

    def __init__(
        self,
        library: dnnl.Library,
        layer: ConvLayer,
        with_bias: bool = False,
        dtype: str = "float32",
        attr: dnnl.Handle | None = None,
    ) -> None:
        self.library, self.attr = library, attr or library.default_attr
        first = 2 if layer.D == layer.T == layer.M == 1 else 1  # axis: depth is left out where it is 1
        inner, (C, *window, K) = slice(first, 4), (layer.dimF[0], *layer.dimF[first:])
        self.src_desc, self.dst_desc = (
            self.nhwc_desc((dim[-1], *dim[inner], dim[0]), x)
            for dim, x in ((layer.dimI, dtype), (layer.dimO, "float32"))
        )  # dims (N, C, H, W)
        weights = (C, *window, K)
        strides, groups = contiguous_strides(weights), (layer.groups,) * (layer.groups > 1)
        dims = (*groups, K // layer.groups, C, *window)  # (K, C, R, S), or with the groups first
        self.weights_desc = library.memory_desc(dims, (*(K // n for n in groups), 1, *strides[:-1]), dtype)
        self.bias_desc = library.memory_desc((K,), (1,)) if with_bias else None
        dilation = [n - 1 for n in layer.dilation]
        each = layer.strides, dilation, layer.padding, layer.padding_after
        self.geometry = [dnnl.dims_array(along[first - 1 :]) for along in each]
        self.avoided = STRIDED_1X1 if max(layer.strides) > 1 else None
        bias = self.bias_desc and self.bias_desc.handle
        self.handles = self.src_desc.handle, library.any_memory_desc(dims, dtype), bias

    def nhwc_desc(self, dims: Sequence[int], dtype: str) -> dnnl.MemoryDesc:
        """Return the descriptor of images with dims (N, C, H, W) in NHWC."""
        last = len(dims) - 1
        return permuted_desc(self.library, dims, (0, last, *range(1, last)), dtype)

    @property
    def forward_desc(self) -> dnnl.Handle:
        """The primitive descriptor of the forward pass, which is also a hint for the backward passes."""
        handles = *self.handles, self.dst_desc.handle
        args = dnnl.FORWARD_TRAINING, CONVOLUTION_DIRECT, *handles, *self.geometry, self.attr
        return self.library.primitive_desc("convolution_forward", self.library.engine, *args, avoided=self.avoided)

    def backward_desc(self, name: str, *handles: Any) -> dnnl.Handle:
        """Return the primitive descriptor of a backward pass."""
        args = CONVOLUTION_DIRECT, *handles, *self.geometry, self.forward_desc, self.library.default_attr
        name = f"convolution_backward_{name}"
        return self.library.primitive_desc(name, self.library.engine, *args, avoided=self.avoided)

    def create_primitive(
        self, primitive_desc: dnnl.Handle, nhwc_args: Sequence[int], weights: int, *args: int
    ) -> ReorderedPrimitive:
        """Create a primitive with these arguments, and the reorder of its filters."""
        known = {arg: self.bias_desc for arg in args if arg in (dnnl.ARG_BIAS, WEIGHT_SCALES) and self.bias_desc}
        primitive = self.library.create_primitive(primitive_desc, *args, known=known)
        pair = self.weights_desc, primitive.memory_descs[weights]
        if pair[0].is_equal(pair[1]):
            return ReorderedPrimitive(primitive, tuple(nhwc_args))
        reorder = self.library.create_reorder(*(pair if weights == dnnl.ARG_WEIGHTS else reversed(pair)))
        return ReorderedPrimitive(primitive, tuple(nhwc_args), {weights: reorder})


def create_fprop(library: dnnl.Library, layer: ConvLayer, with_bias: bool = False) -> ReorderedPrimitive:
    """Create the forward pass, with arguments images, filters, results, and optionally a bias."""
    desc = ConvolutionDesc(library, layer, with_bias)
    return desc.create_primitive(
        desc.forward_desc,
        (dnnl.ARG_SRC, dnnl.ARG_DST),
        dnnl.ARG_WEIGHTS,
        dnnl.ARG_SRC,
        dnnl.ARG_WEIGHTS,
        dnnl.ARG_DST,
        *(dnnl.ARG_BIAS,) * with_bias,
    )


def create_quantized_conv(
    library: dnnl.Library, layer: ConvLayer, dtype: np.dtype[Any], relu: bool
) -> ReorderedPrimitive:
    """Create a convolution with arguments images, filters, results, bias and, for int8, factors of the channels."""
    scales = {dnnl.ARG_WEIGHTS: 1 if layer.groups == 1 else 3} if dtype == np.int8 else {}
    desc = ConvolutionDesc(library, layer, True, dtype.name, library.create_attr(scales, relu))
    args = dnnl.ARG_SRC, dnnl.ARG_WEIGHTS, dnnl.ARG_DST, dnnl.ARG_BIAS, *(WEIGHT_SCALES,) * len(scales)
    return desc.create_primitive(desc.forward_desc, (), dnnl.ARG_WEIGHTS, *args)


def create_quantized_dot(library: dnnl.Library, sizes: tuple[int, int, int], dtype: np.dtype[Any]) -> dnnl.Primitive:
    """Create the product of matrices (nout, nin) and (nin, N) into float32 ones."""
    nout, nin, N = sizes
    W, x = (library.memory_desc(dims, (dims[1], 1), dtype.name) for dims in ((nout, nin), (nin, N)))
    out = library.memory_desc((nout, N), (N, 1))
    args = library.engine, W.handle, x.handle, None, out.handle, library.default_attr
    primitive_desc = library.primitive_desc("matmul", *args)
    return dnnl.Primitive(library, primitive_desc, {dnnl.ARG_SRC: W, dnnl.ARG_WEIGHTS: x, dnnl.ARG_DST: out})


def create_rounding(library: dnnl.Library, shape: tuple[int], dtype: np.dtype[Any]) -> dnnl.Primitive:
    """Create the copy of a float32 vector, for int8 times a factor, to the nearest number, with ties to even."""
    x, out, factor = (
        library.memory_desc(n, (1,), name) for n, name in ((shape, "float32"), (shape, dtype.name), ((1,), "float32"))
    )
    scales = {dnnl.ARG_SRC: 0} if dtype == np.int8 else {}
    args = x.handle, library.engine, out.handle, library.engine, library.create_attr(scales)
    descs = {dnnl.ARG_SRC: x, dnnl.ARG_DST: out} | {dnnl.ARG_SCALES | arg: factor for arg in scales}
    return dnnl.Primitive(library, library.primitive_desc("reorder", *args), descs)


def create_bprop(library: dnnl.Library, layer: ConvLayer) -> ReorderedPrimitive:
    """Create the gradient with respect to images, with arguments filters, errors and gradient."""
    desc = ConvolutionDesc(library, layer)
    src, weights, _ = desc.handles
    primitive_desc = desc.backward_desc("data", src, weights, desc.dst_desc.handle)
    return desc.create_primitive(
        primitive_desc,
        (dnnl.ARG_DIFF_DST, dnnl.ARG_DIFF_SRC),
        dnnl.ARG_WEIGHTS,
        dnnl.ARG_WEIGHTS,
        dnnl.ARG_DIFF_DST,
        dnnl.ARG_DIFF_SRC,
    )


def create_update(library: dnnl.Library, layer: ConvLayer) -> ReorderedPrimitive:
    """Create the gradient with respect to filters, with arguments images, errors and gradient."""
    desc = ConvolutionDesc(library, layer)
    primitive_desc = desc.backward_desc("weights", *desc.handles, desc.dst_desc.handle)
    return desc.create_primitive(
        primitive_desc,
        (dnnl.ARG_SRC, dnnl.ARG_DIFF_DST),
        dnnl.ARG_DIFF_WEIGHTS,
        dnnl.ARG_SRC,
        dnnl.ARG_DIFF_DST,
        dnnl.ARG_DIFF_WEIGHTS,
    )


# by op
CONVOLUTION_FACTORIES: dict[str, Factory] = {
    "conv": create_fprop,
    "conv_backward": create_bprop,
    "conv_update": create_update,
}


class PoolingDesc:
    """Descriptors of a pooling: N images with C channels, or for CHWN C images with N channels."""

    def __init__(self, library: dnnl.Library, layer: PoolLayer, is_nhwc: bool) -> None:
        if layer.op not in POOLING_ALG or layer.J > 1 or layer.dimI[0] != layer.dimO[0] or layer.padding[0]:
            raise dnnl.UnsupportedError(f"{layer!r} with op {layer.op!r} and a window of {layer.J} channels")
        self.library = library
        first = 2 if layer.D == layer.T == layer.M == 1 else 1
        outer, inner = (-1, 0) if is_nhwc else (0, -1)
        dims = [(dim[outer], *dim[first:4], dim[inner]) for dim in (layer.dimI, layer.dimO)]
        last = len(dims[0]) - 1
        self.src_desc, self.dst_desc = (permuted_desc(library, d, (0, last, *range(1, last))) for d in dims)
        each = zip(layer.DHW, layer.MPQ, layer.TRS, layer.strides[1:], layer.padding[1:], strict=True)
        padding_after = [max(0, (m - 1) * stride + t - d - padding) for d, m, t, stride, padding in each]
        each_axis = layer.strides[1:], layer.TRS, (0, 0, 0), layer.padding[1:], padding_after
        self.geometry = [dnnl.dims_array(along[first - 1 :]) for along in each_axis]
        self.op = POOLING_ALG[layer.op]
        self.is_nhwc = is_nhwc

    def create_primitive(self, primitive_desc: dnnl.Handle, *args: int) -> ReorderedPrimitive:
        """Create a primitive with these arguments."""
        return ReorderedPrimitive(self.library.create_primitive(primitive_desc, *args), args if self.is_nhwc else ())

    def forward_desc(self, prop_kind: int) -> dnnl.Handle:
        """Return the primitive descriptor of the forward pass. In training, max pooling has a workspace: argmax."""
        args = prop_kind, self.op, self.src_desc.handle, self.dst_desc.handle, *self.geometry, self.library.default_attr
        return self.library.primitive_desc("pooling_forward", self.library.engine, *args)

    def backward_desc(self) -> dnnl.Handle:
        """Return the primitive descriptor of the backward pass."""
        handles = self.src_desc.handle, self.dst_desc.handle
        args = self.op, *handles, *self.geometry, self.forward_desc(dnnl.FORWARD_TRAINING), self.library.default_attr
        return self.library.primitive_desc("pooling_backward", self.library.engine, *args)


def create_pooling(library: dnnl.Library, layer: PoolLayer, is_nhwc: bool = False) -> ReorderedPrimitive:
    """Create max or mean pooling."""
    desc = PoolingDesc(library, layer, is_nhwc)
    return desc.create_primitive(desc.forward_desc(dnnl.FORWARD_INFERENCE), dnnl.ARG_SRC, dnnl.ARG_DST)


def create_max_pooling(library: dnnl.Library, layer: PoolLayer, is_nhwc: bool = False) -> ReorderedPrimitive:
    """Create max pooling whose second argument receives the indices of the maxima."""
    desc = PoolingDesc(library, layer, is_nhwc)
    return desc.create_primitive(
        desc.forward_desc(dnnl.FORWARD_TRAINING), dnnl.ARG_SRC, dnnl.ARG_WORKSPACE, dnnl.ARG_DST
    )


def create_pooling_backward(library: dnnl.Library, layer: PoolLayer, is_nhwc: bool = False) -> ReorderedPrimitive:
    """Create the backward pass; for maxima the second argument holds their indices."""
    desc = PoolingDesc(library, layer, is_nhwc)
    args = (
        (dnnl.ARG_DIFF_DST, dnnl.ARG_WORKSPACE, dnnl.ARG_DIFF_SRC)
        if layer.op == "max"
        else (dnnl.ARG_DIFF_DST, dnnl.ARG_DIFF_SRC)
    )
    return desc.create_primitive(desc.backward_desc(), *args)


# --- batch normalization of NHWC images: statistics of blocks of rows in the cache, then the normalization ---
#
# oneDNN adds the elements of a channel one after another, which is imprecise for many, and in parts that depend on the
# number of threads. Here it computes the mean and the variance of each column of a block of rows, which have the
# channels of several pixels one after another. Those of the channels are combined from them in float64.

ARG_MEAN, ARG_VARIANCE, ARG_SCALE, ARG_SHIFT = 49, 50, 51, 52
ARG_DIFF_SCALE, ARG_DIFF_SHIFT = 255, 256
USE_GLOBAL_STATS, USE_SCALE, USE_SHIFT, FUSE_RELU = 1, 2, 4, 8  # dnnl_normalization_flags_t
BLOCK_ELEMENTS = 1 << 17  # of the rows whose sums are computed at once; they and the result stay in the L2 cache
MIN_BLOCK_ROWS = 16  # with fewer, the stages of the formula compute it, by benchmarks/thresholds.py on an AMD EPYC
COLUMN_MULTIPLE = 16  # of columns, without which oneDNN takes ten times as long or more
FLOAT64_TEMPLATE = np.empty(0, np.float64)


class OneDNNBatchNorm(OneDNNConvolution):
    """Batch normalization of float32 images in NHWC by oneDNN, on top of convolution and pooling."""

    def computes_batch_norm(self, rows: tuple[int, ...], eps: float) -> bool:
        """Return whether oneDNN has fast primitives for images with these rows of several pixels."""
        block = block_rows(rows), rows[1]
        if block[0] < MIN_BLOCK_ROWS or rows[1] % COLUMN_MULTIPLE:
            return False
        factories = (create_statistics, block), (create_normalization, rows, eps, False)
        return all(self._get_cached(*args) is not None for args in factories)

    def batch_norm(
        self, x: Array, gamma: Array, beta: Array, y: Array, mean: Array, variance: Array, *, eps: float, relu: bool
    ) -> None:
        """Compute ``y = gamma (x - mean) / sqrt(variance + eps) + beta``, or max(., 0) of it, and the statistics."""
        (rows, columns), C = x.shape, mean.shape[1]
        size = block_rows(x.shape)
        parts = self.get_workspace("parts", (2, rows // size, columns), x)
        wide = self.get_workspace("parts", (2, parts[0].size // C, C), FLOAT64_TEMPLATE)
        totals = self.get_workspace("totals", (2, C), FLOAT64_TEMPLATE)
        vectors = self.get_workspace("channels", (4, columns // C, C), x)
        if not self.runtime.has_values:
            return
        check_writeable(y)
        self._compute_parts(x, parts, size)
        np.copyto(wide, parts.reshape(wide.shape))
        combine_parts(*wide, *totals)
        for out, total in zip((mean, variance), totals, strict=True):
            np.copyto(out, total, casting="unsafe")
        for vector, channels in zip(vectors, (gamma, beta, mean, variance), strict=True):
            np.copyto(vector, channels)
        # oneDNN's relu of NaN is 0; with finite parameters and statistics, no result is NaN
        is_fused = relu and bool(np.isfinite(vectors[:, 0]).all())
        self._execute(self._get_cached(create_normalization, x.shape, eps, is_fused), (x, *vectors, y))
        if relu and not is_fused:
            np.maximum(y, 0, out=y)

    # --- transposes ---

    def computes_transposes(self) -> bool:
        """Return whether oneDNN is there, which copies in tiles."""
        return dnnl.get_library() is not None

    def copy_transposed(self, x: Array, out: Array) -> None:
        """Copy a transpose of float32 into a contiguous array."""
        if self.runtime.has_values:
            copy_transposed(x, out)

    def try_copy_transposed(self, x: Array, out: Array) -> bool:
        """Copy a large transpose of float32 from the host and return True, or return False if that is not faster."""
        if x.size < MIN_ALIASED_ELEMENTS or x.strides[-1] % ALIASED_BYTES or not self.computes_transposes():
            return False
        if not self.runtime.has_values or not copy_transposed.is_supported(x, out) or np.may_share_memory(x, out):
            return False
        copy_transposed(x, out)
        return True

    def _execute_alone(self, primitive: dnnl.Primitive, arrays: Sequence[Array]) -> None:
        """Execute a primitive on one thread."""
        buffer = self._byte_buffer("onednn scratchpad", primitive.scratchpad_desc.nbytes)
        last = (aligned_address(buffer),) if primitive.needs_scratchpad else ()
        execute(primitive, 1, (*(data_address(array).value for array in arrays), *last))

    # --- images in NHWC ---

    def _compute_parts(self, x: Array, parts: Array, size: int) -> None:
        """Write the means and the variances of each block of rows."""
        count = parts.shape[1]

        def work(blocks: Iterator[int]) -> None:
            primitive = self._get_cached(create_statistics, (size, x.shape[1]))
            normalized = self.get_workspace("normalized", (size, x.shape[1]), x)
            for i in blocks:
                block = slice(i * size, (i + 1) * size)
                self._execute_alone(primitive, (x[block], parts[0, i], parts[1, i], normalized))

        run_blocks(work, count, x.size)


def run_blocks(work: Callable[[Iterator[int]], None], count: int, size: int) -> None:
    """Do the work of the blocks of an array of some size, on several threads if it is large."""
    workers = min(get_num_threads(), count) if size >= MIN_THREADED_ELEMENTS else 1
    if workers > 1:
        parallel_for(work, count, workers)
    else:
        work(iter(range(count)))


def check_writeable(*arrays: Array) -> None:
    """Raise ValueError for a read-only array, as oneDNN does not check."""
    if not all(array.flags.writeable for array in arrays):
        raise ValueError("output array is read-only")


def combine_parts(means: Array, variances: Array, mean: Array, variance: Array) -> None:
    """Write the mean of means, and the mean of variances plus the variance of means; the parts are overwritten."""
    np.add.reduce(means, axis=0, out=mean)
    np.divide(mean, len(means), out=mean)
    np.square(np.subtract(means, mean, out=means), out=means)
    np.add.reduce(np.add(variances, means, out=variances), axis=0, out=variance)
    np.divide(variance, len(means), out=variance)


# --- factories of primitives -----------------------------------------------------------------------------------------


def block_rows(rows: tuple[int, ...]) -> int:
    """Return the largest number of rows of a block that divides all rows."""
    count, columns = rows
    return next(n for n in range(max(1, min(count, BLOCK_ELEMENTS // columns)), 0, -1) if count % n == 0)


def create_batch_norm(
    library: dnnl.Library, rows: tuple[int, int], prop_kind: int, eps: float, flags: int, *vectors: int
) -> dnnl.Primitive:
    """Create the normalization of each column of a matrix, with the arguments matrix, vectors and result."""
    count, columns = rows
    matrix = library.memory_desc((1, columns, count), (count * columns, 1, columns))
    vector = library.memory_desc((columns,), (1,))
    args = library.engine, prop_kind, matrix.handle, matrix.handle, c_float(eps), c_uint(flags), library.default_attr
    primitive_desc = library.primitive_desc("batch_normalization_forward", *args)
    descs = {dnnl.ARG_SRC: matrix, **dict.fromkeys(vectors, vector), dnnl.ARG_DST: matrix}
    return dnnl.Primitive(library, primitive_desc, descs)


def create_statistics(library: dnnl.Library, rows: tuple[int, int]) -> dnnl.Primitive:
    """Create the normalization of a block in one thread, with the arguments rows, means, variances and result."""
    with library.use_threads(1):
        return create_batch_norm(library, rows, dnnl.FORWARD_TRAINING, 0.0, 0, ARG_MEAN, ARG_VARIANCE)


def create_normalization(library: dnnl.Library, rows: tuple[int, int], eps: float, relu: bool) -> dnnl.Primitive:
    """Create the normalization by given statistics; arguments: rows, gamma, beta, means, variances and result."""
    flags = USE_GLOBAL_STATS | USE_SCALE | USE_SHIFT | FUSE_RELU * relu
    vectors = ARG_SCALE, ARG_SHIFT, ARG_MEAN, ARG_VARIANCE
    return create_batch_norm(library, rows, dnnl.FORWARD_INFERENCE, eps, flags, *vectors)
