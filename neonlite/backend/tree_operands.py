"""Operands of op-trees, ``build_node``, which evaluates a tree for ``out``, and the backend methods for images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_letters
from typing import Any, SupportsIndex, overload

from neonlite.backend.creation import as_row, to_host_array
from neonlite.backend.tensor import Tensor
from neonlite.backend.validation import boolean, check_number, checks_names, instance, integer, one_of
from neonlite.messages import describe, truncate_message
from neonlite.ops import Op
from neonlite.ops.functions import normalize_axes
from neonlite.optree import Operand, OpTreeNode, create_node
from neonlite.tree_inference import as_leaf, not_an_operand
from neonlite.tree_structure import Attrs
from neonlite.typing import LIMITS, ArrayLike, AxisLike, BackendBase, OperandLike

# --- operands of op-trees: checks, copies of arrays, and einsum ---


@overload
def build_node(
    be: BackendBase, op: Op, a: object, b: object = None, out: None = None, attrs: Attrs = ()
) -> OpTreeNode: ...
@overload
def build_node(
    be: BackendBase, op: Op, a: object, b: object, out: Tensor | None, attrs: Attrs = ()
) -> OpTreeNode | Tensor: ...
def build_node(
    be: BackendBase, op: Op, a: object, b: object = None, out: Tensor | None = None, attrs: Attrs = ()
) -> OpTreeNode | Tensor:
    """Return the node of an op, or ``out``, into which it is evaluated."""
    check_operands(be, op.method, *((a, b) if op.arity == 2 or b is not None else (a,)))
    node = create_node(op, a, b, attrs, be)
    return node if out is None else be.assign([out], [node])[0]


def check_operands(be: BackendBase, method: str, *operands: object) -> None:
    """Raise TypeError for an operand that is not a tensor, op-tree, scalar or array."""
    for x in operands:
        if as_leaf(x, None, be)[0] is NotImplemented if not isinstance(x, Operand) else False:
            raise not_an_operand(method, x)


def as_operand(be: BackendBase, x: OperandLike, method: str) -> Operand:
    """Return x as a tensor or op-tree: a scalar or array is copied to a tensor; a vector is a column."""
    if isinstance(x, Operand):
        return x
    array: Any = x
    if hasattr(x, "operand"):  # an array of neonlite.array_api
        operand: Operand = array.operand
        return operand if array.ndim > 1 else be.reshape(operand, -1, 1)
    check_operands(be, method, x)
    return be.array(x)


def as_rows(be: BackendBase, method: str, *operands: OperandLike) -> list[Any]:
    """Return the operands of an elementwise function of three, with arrays of one dimension as rows."""
    check_operands(be, method, *operands)
    tensors = [x for x in operands if isinstance(x, Operand)]

    def is_vector(x: Any) -> bool:
        return len(getattr(x, "shape", ())) == 1 and not hasattr(x, "operand")  # an array of the namespace is a row

    return [
        as_row(to_host_array(be, x, be.default_dtype_name), *tensors) if tensors and is_vector(x) else x
        for x in operands
    ]


def as_operands(be: BackendBase, arrays: Sequence[OperandLike], method: str) -> list[Operand]:
    """Return a list of one or more operands, each as a tensor or op-tree."""
    if not isinstance(arrays, list | tuple) or not arrays:
        raise TypeError(f"be.{method}: expected a list of one or more operands, got {describe(arrays)}")
    return [as_operand(be, x, method) for x in arrays]


def as_indices(be: BackendBase, x: ArrayLike, method: str, what: str) -> Operand:
    """Return indices as an operand with an integer dtype."""
    if not isinstance(x, Operand):
        x = _copy_indices(be, x, method, what)
    if x.info.dtype and "int" not in x.info.dtype:
        raise TypeError(
            f"be.{method}: expected integers as {what}, got {describe(x)} with dtype {x.info.dtype}. Use dtype='int32'."
        )
    if x.info.dtype == "uint64":  # runtimes compute with int64: an index that it does not hold is out of range
        return be.astype(be.minimum(x, LIMITS["int64"][1]), "int64")
    return x


def _copy_indices(be: BackendBase, x: ArrayLike, method: str, what: str) -> Tensor:
    import numpy as np

    array = np.asarray(x)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"be.{method}: expected integers as {what}, got {describe(x)} with dtype {array.dtype}")
    return be.array(array, dtype="uint64" if array.dtype == np.uint64 else "int64")


def check_axes(a: Operand, axis: AxisLike, method: str, ndim: int | None = None) -> tuple[int, ...]:
    """Return the axes of an operand as integers >= 0; an error names the method and the operand."""
    try:
        return normalize_axes(axis, a.ndim if ndim is None else ndim)
    except (ValueError, TypeError, IndexError) as error:
        raise type(error)(f"be.{method}({describe(a)}): {truncate_message(error)}") from None


def check_axis(a: Operand, axis: object, method: str, ndim: int | None = None) -> int:
    """Return one axis of an operand as an integer >= 0; an error names the method and the operand."""
    if isinstance(axis, bool) or not isinstance(axis, SupportsIndex):
        raise TypeError(f"be.{method}({describe(a)}): expected an integer as axis, got {axis!r}")
    return check_axes(a, (axis.__index__(),), method, ndim)[0]


def reduction_size(a: Operand, axis: AxisLike, method: str) -> int:
    """Return the number of elements that are reduced to one."""
    return math.prod(a.shape[i] for i in check_axes(a, axis, method))


# --- Einstein summation: contract operands pairwise as op-trees, in the order chosen by opt_einsum ---


def einsum(be: BackendBase, subscripts: str, operands: Sequence[OperandLike]) -> Operand:
    """Return the op-tree of an einsum. Raises ValueError if the subscripts and the shapes do not match."""
    from opt_einsum import contract_path

    instance("be.einsum: subscripts", subscripts, str, "a string, such as 'ij,jk->ik',")
    trees = [as_operand(be, x, "einsum") for x in operands]
    call = f"be.einsum({subscripts!r}, {describe(*trees)})"
    shapes = [x.shape for x in trees]
    try:
        terms, output = parse_subscripts(subscripts, shapes)
        sizes = label_sizes(terms, shapes)
        path = contract_path(f"{','.join(terms)}->{output}", *shapes, shapes=True)[0]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{call}: {truncate_message(error)}") from None
    remaining = [Term(be, x, term, sizes) for x, term in zip(trees, terms, strict=True)]
    for chosen in path:
        pair = [remaining.pop(i) for i in sorted(chosen, reverse=True)][::-1]
        needed = set(output).union(*(p.labels for p in remaining))
        result = pair[0].sum_unused(needed.union(*(p.labels for p in pair[1:])))
        for other in pair[1:]:
            result = result.contract(other.sum_unused(needed | set(result.labels)), needed)
        remaining.append(result)
    return remaining[0].sum_unused(set(output)).transpose_to(output).tree


def parse_subscripts(subscripts: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[str], str]:
    """Return the labels of each operand, and those of the result, with letters for "..."."""
    from opt_einsum.parser import parse_einsum_input

    if wrong := sorted(set(subscripts) - set(ascii_letters + ",.-> ")):
        raise ValueError(f"expected letters, commas and '->' as subscripts, got {wrong[0]!r}")
    inputs, output, _ = parse_einsum_input((subscripts, *shapes), shapes=True)
    return inputs.split(","), output


def label_sizes(terms: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """Return {label: size}. Raises ValueError if a label has two sizes."""
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if len(term) != len(shape):
            hint = ". A vector is a column (n, 1) and needs two letters." if len(term) < 2 else ""
            raise ValueError(
                f"expected one letter per axis, got {term!r} with {len(term)} letters for an operand of shape "
                f"{shape}{hint}"
            )
        for label, n in zip(term, shape, strict=True):
            if sizes.setdefault(label, n) != n:
                raise ValueError(f"expected one size for the label {label!r}, got {sizes[label]} and {n}")
    return sizes


class Term:
    """An op-tree and the labels of its axes. A tree has two axes or more: those without a label are last, of size 1."""

    def __init__(self, be: BackendBase, tree: Operand, labels: str, sizes: dict[str, int]) -> None:
        self.be, self.tree, self.labels, self.sizes = be, tree, labels, sizes

    def _replace(self, tree: Operand, labels: str) -> Term:
        return Term(self.be, tree, labels, self.sizes)

    def num_elements(self, labels: str) -> int:
        """Return the product of the sizes of some labels."""
        return math.prod(self.sizes[x] for x in labels)

    def reshape(self, shape: Sequence[int]) -> Any:
        """Return the tree, reshaped."""
        return self.be.reshape(self.tree, tuple(shape))

    def transpose_to(self, labels: str) -> Term:
        """Return the term with its axes in the order of ``labels``."""
        if labels == self.labels or len(labels) < 2:
            return self
        axes = tuple(self.labels.index(x) for x in labels)
        return self._replace(self.be.transpose(self.tree, axes), labels)

    def sum_unused(self, needed: set[str]) -> Term:
        """Return the term with the diagonal of each repeated label, summed over the labels that are not needed."""
        term = self
        while repeated := next((x for x in term.labels if term.labels.count(x) > 1), None):
            term = term._take_diagonal(repeated)
        summed_axes = tuple(i for i, x in enumerate(term.labels) if x not in needed)
        if summed_axes:
            labels = "".join(x for x in term.labels if x in needed)
            term = term._replace(self.be.sum(term.tree, axis=summed_axes, keepdims=False), labels)
        return term

    def _take_diagonal(self, label: str) -> Term:
        """Return the diagonal of two axes with the same label: every (n + 1)th element of the two axes flattened."""
        i = self.labels.index(label)
        j = self.labels.index(label, i + 1)
        rest = [k for k in range(len(self.labels)) if k not in (i, j)]
        n, sizes = self.sizes[label], [self.sizes[self.labels[k]] for k in rest]
        tree = self.be.reshape(self.be.transpose(self.tree, (i, j, *rest)), (n * n, *(sizes or [1])))
        index = ((0, n, n + 1), *((0, m, 1) for m in tree.shape[1:]))
        return self._replace(self.be.build("slice", tree, index=index), label + "".join(self.labels[k] for k in rest))

    def contract(self, other: Term, needed: set[str]) -> Term:
        """Return the product of two terms, summed over the shared labels that are not needed: a batched matmul."""
        shared = [x for x in self.labels if x in other.labels]
        batch = "".join(x for x in shared if x in needed)
        contracted = "".join(x for x in shared if x not in needed)
        rows = "".join(x for x in self.labels if x not in shared)
        columns = "".join(x for x in other.labels if x not in shared)
        labels = batch + rows + columns
        shape = [self.sizes[x] for x in labels]
        if not contracted:
            x = self.transpose_to(batch + rows).reshape([*shape[: len(batch + rows)], *(1 for _ in columns)])
            y = other.transpose_to(batch + columns)
            y = y.reshape([*(self.sizes[a] for a in batch), *(1 for _ in rows), *(self.sizes[a] for a in columns)])
            return self._replace(x * y, labels)
        x = self.transpose_to(batch + rows + contracted)
        y = other.transpose_to(batch + contracted + columns)
        batch_size = [self.num_elements(batch)] if batch else []
        product = x.reshape([*batch_size, self.num_elements(rows), self.num_elements(contracted)]) @ y.reshape(
            [*batch_size, self.num_elements(contracted), self.num_elements(columns)]
        )
        return self._replace(self.be.reshape(product, tuple(shape)), labels)


# --- the methods for images: convolution, pooling, normalization over channels ---

Sizes = int | Sequence[int]
Padding = int | str | Sequence[int | tuple[int, int]]


class ImageTreeMethods(BackendBase):
    """The methods of ``Backend`` that build op-trees of images."""

    @checks_names
    def conv(
        self,
        x: OperandLike,
        f: OperandLike,
        strides: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        layout: str = "CHWN",
        out: Tensor | None = None,
    ) -> OpTreeNode | Tensor:
        """Return the convolution of images with filters, which are not flipped (a correlation).

        ``z[k, p, n] = sum_{c, r} x[c, strides p + dilation r - padding, n] f[c, r, k]``, for one to three axes of
        pixels. All derivatives are convolutions too.

        Parameters
        ----------
        x : Tensor or OpTreeNode
            The images, (C, H, W, N), or (C, W, N) or (C, D, H, W, N).
        f : Tensor or OpTreeNode
            The filters, (C / groups, R, S, K), with as many axes.
        strides, dilation : int or tuple of int, default 1
            The distance of neighboring windows, and of neighboring pixels in a window.
        padding : int, tuple or {"same", "valid"}, default 0
            Zeros around the images: for all axes, for each axis, or (before, after) for each axis. "same": as many as
            make the number of windows the size divided by the stride, rounded up; "valid": none.
        groups : int, default 1
            The groups of channels that are convolved independently; C for a depthwise convolution.
        layout : {"CHWN", "NCHW"}, default "CHWN"
            "NCHW": images are (N, C, H, W), filters (K, C / groups, R, S), and the result (N, K, P, Q).
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of shape (K, P, Q, N); or ``out``.

        Raises
        ------
        ValueError
            The shapes do not match, or a window is larger than the padded images.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> x = be.array([[[1], [2], [3], [4]]], name="x")
        >>> be.conv(x, be.ones((1, 2, 1))).get().ravel()
        array([3., 5., 7.], dtype=float32)
        """
        x, f = as_images(self, "conv", x, f, layout=layout)
        options = window_options("conv", x.shape[1:-1], f.shape[1:-1], strides, padding, dilation)
        options["groups"] = integer("be.conv: groups", groups, 1)
        return from_images(self, self.build("conv", x, f, **options), layout, out)

    @checks_names
    def deconv(
        self,
        x: OperandLike,
        f: OperandLike,
        strides: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        layout: str = "CHWN",
        out: Tensor | None = None,
    ) -> OpTreeNode | Tensor:
        """Return the transposed convolution of images: each pixel adds its multiple of the filters to the result.

        It is the gradient of ``conv`` with respect to its images, for images of the size ``(P - 1) strides - before -
        after + dilation (R - 1) + 1``.

        Parameters
        ----------
        x : Tensor or OpTreeNode
            The images, (K, P, Q, N), or with one or three axes of pixels.
        f : Tensor or OpTreeNode
            The filters, (C / groups, R, S, K).
        strides, padding, dilation, groups, layout, out
            As for ``conv``, without "same".

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of shape (C, H, W, N); or ``out``.
        """
        x, f = as_images(self, "deconv", x, f, layout=layout)
        sizes, window = x.shape[1:-1], f.shape[1:-1]
        if padding == "same":
            raise ValueError("be.deconv: expected padding as integers, got 'same'. Pass (before, after) for each axis.")
        options = window_options("deconv", sizes, window, strides, padding, dilation)
        options["groups"] = groups = integer("be.deconv: groups", groups, 1)
        axes = zip(sizes, window, *(options[name] for name in ("strides", "padding", "dilation")), strict=True)
        to = tuple((n - 1) * stride - sum(pad) + d * (k - 1) + 1 for n, k, stride, pad, d in axes)
        if x.shape[0] != f.shape[-1] or x.shape[0] % groups or min(to) < 1:
            raise ValueError(
                f"be.deconv({describe(x, f)}): expected images with as many channels as there are filters, a multiple "
                f"of {groups} groups, and a result of at least one pixel, got {x.shape[0]} channels, {f.shape[-1]} "
                f"filters and a result of {to} pixels"
            )
        to = (f.shape[0] * groups, *to, x.shape[-1])
        return from_images(self, self.build("conv_backward", x, f, to=to, **options), layout, out)

    @checks_names
    def pool(
        self,
        x: OperandLike,
        window: Sizes,
        op: str = "max",
        strides: Sizes | None = None,
        padding: Padding = 0,
        ceil: bool = False,
        layout: str = "CHWN",
        out: Tensor | None = None,
    ) -> OpTreeNode | Tensor:
        """Return the maximum, the mean or the Euclidean norm of each window. Padding is excluded, also from the mean.

        The error of a maximum goes to the first largest pixel of its window.

        Parameters
        ----------
        x : Tensor or OpTreeNode
            The images, (C, H, W, N), or with one or three axes of pixels.
        window : int or tuple of int
            The size of a window along each axis of pixels; with one more size, along the channels first.
        op : {"max", "avg", "l2"}, default "max"
            What to compute of each window.
        strides : int or tuple of int, optional
            The distance of neighboring windows; by default their size.
        padding : int, tuple or {"same", "valid"}, default 0
            As for ``conv``.
        ceil : bool, default False
            Whether a partial last window is counted if it starts inside the images, or the padding before them.
        layout : {"CHWN", "NCHW"}, default "CHWN"
            "NCHW": images are (N, C, H, W).
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of shape (C, P, Q, N); or ``out``.

        Raises
        ------
        ValueError
            A window is larger than the padded images, or a padding is as large as the window.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> x = be.array([[[1], [2], [3], [4]]], name="x")
        >>> be.pool(x, 2).get().ravel(), be.pool(x, 2, "avg").get().ravel()
        (array([2., 4.], dtype=float32), array([1.5, 3.5], dtype=float32))
        """
        (x,) = as_images(self, "pool", x, layout=layout)
        one_of("be.pool: op", op, ("max", "avg", "l2"))
        sizes = x.shape[:-1]
        windows = _sizes("be.pool: window", window, len(sizes), optional=1)
        steps = windows if strides is None else _sizes("be.pool: strides", strides, len(sizes), optional=1)
        options = window_options("pool", sizes, windows, steps, padding, 1, optional=1)
        del options["dilation"]
        options |= {"window": windows, "ceil": boolean("be.pool: ceil", ceil)}
        for k, (before, after) in zip(windows, options["padding"], strict=True):
            if max(before, after) >= k:
                raise ValueError(
                    f"be.pool: expected a padding smaller than the window of {k}, got {(before, after)}. Use a padding "
                    f"of at most {k - 1}."
                )
        if op == "max":
            z = self.build("max_pool", x, **options)
        elif op == "avg":
            z = self.build("sum_pool", x, mean=True, **options)
        else:
            total = self.build("sum_pool", self.square(x), mean=False, **options)
            z = self.where(total, self.sqrt(self.where(total, total, 1)), 0)  # the gradient at 0 is 0
        return from_images(self, z, layout, out)

    @checks_names
    def lrn(
        self,
        x: OperandLike,
        depth: int,
        ascale: float = 1.0,
        bpower: float = 1.0,
        layout: str = "CHWN",
        out: Tensor | None = None,
    ) -> OpTreeNode | Tensor:
        """Return images normalized by the squares in neighboring channels: ``x (1 + ascale / depth sum x^2)^-bpower``.

        The sum is over ``depth`` channels, from ``depth // 2`` before each.

        Parameters
        ----------
        x : Tensor or OpTreeNode
            The images, (C, H, W, N), or with one or three axes of pixels.
        depth : int
            The number of channels.
        ascale, bpower : float, default 1
            The scale and the exponent.
        layout : {"CHWN", "NCHW"}, default "CHWN"
            "NCHW": images are (N, C, H, W).
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of the shape of the images; or ``out``.

        References
        ----------
        Krizhevsky, Sutskever and Hinton, ImageNet Classification with Deep Convolutional Neural Networks, NeurIPS 2012,
        section 3.3.
        """
        (x,) = as_images(self, "lrn", x, layout=layout)
        ascale, bpower = check_number("be.lrn: ascale", ascale), check_number("be.lrn: bpower", bpower)
        depth, ones = integer("be.lrn: depth", depth, 1), (1,) * (x.ndim - 2)
        padding = ((depth // 2, (depth - 1) // 2), *((0, 0),) * len(ones))
        options: dict[str, Any] = {"window": (depth, *ones), "strides": (1, *ones), "padding": padding}
        total = self.build("sum_pool", self.square(x), ceil=False, mean=False, **options)
        z = x * (1 + (ascale / depth) * total) ** -float(bpower)
        return from_images(self, z, layout, out)


# --- arguments -------------------------------------------------------------------------------------------------------


def as_images(be: BackendBase, method: str, *operands: OperandLike, layout: str) -> list[Operand]:
    """Return images, and filters, as operands with the minibatch, or the filters, as the last axis."""
    one_of(f"be.{method}: layout", layout, ("CHWN", "NCHW"))
    xs = [as_operand(be, x, method) for x in operands]
    if not all(3 <= x.ndim <= 5 and x.ndim == xs[0].ndim for x in xs):
        images, filters, flat = "(C, H, W, N)", "(C, R, S, K)", "(C H W, N)"
        if layout == "NCHW":
            images, filters, flat = "(N, C, H, W)", "(K, C, R, S)", "(N, C H W)"
        raise ValueError(
            f"be.{method}: expected images {images}{f' and filters {filters}' * (len(xs) > 1)}, or with one or three "
            f"axes of pixels, got {describe(*xs)}. Reshape a tensor {flat} with be.reshape(x, {images})."
        )
    return [be.transpose(x, (*range(1, x.ndim), 0)) for x in xs] if layout == "NCHW" else xs


def from_images(be: BackendBase, z: Any, layout: str, out: Tensor | None) -> Any:
    """Return the result in a layout, or written to ``out``."""
    z = be.transpose(z, (z.ndim - 1, *range(z.ndim - 1))) if layout == "NCHW" else z
    return z if out is None else be.assign([out], [z])[0]


def _sizes(where: str, value: Any, count: int, optional: int = 0) -> tuple[int, ...]:
    """Return an integer for each axis; those of optional leading axes are 1."""
    if hasattr(value, "__index__"):
        return (1,) * optional + (integer(where, value, 1),) * (count - optional)
    if not isinstance(value, tuple | list) or len(value) not in (count, count - optional):
        raise ValueError(f"{where}: expected an integer, or one for each of {count - optional} axes, got {value!r}")
    return (1,) * (count - len(value)) + tuple(integer(where, n, 1) for n in value)


def window_options(
    method: str,
    sizes: tuple[int, ...],
    window: tuple[int, ...],
    strides: Any,
    padding: Any,
    dilation: Any,
    optional: int = 0,
) -> dict[str, Any]:
    """Return strides, padding and dilation as a value for each axis."""
    n, where = len(sizes), f"be.{method}: padding"
    strides, dilation = _sizes(f"be.{method}: strides", strides, n), _sizes(f"be.{method}: dilation", dilation, n)
    if hasattr(padding, "__index__"):
        before = integer(where, padding, 0)
        pairs = [(0, 0)] * optional + [(before, before)] * (n - optional)
    elif isinstance(padding, str):
        one_of(where, padding, ("same", "valid"))
        axes = zip(sizes, window, strides, dilation, strict=True)
        totals = [max(0, (-(-size // st) - 1) * st + d * (k - 1) + 1 - size) for size, k, st, d in axes]
        pairs = [(total // 2, total - total // 2) if padding == "same" else (0, 0) for total in totals]
    else:
        if not isinstance(padding, tuple | list) or len(padding) not in (n, n - optional):
            raise ValueError(
                f"{where}: expected an integer, 'same', 'valid', or an integer or a pair (before, after) for each of "
                f"{n - optional} axes, got {padding!r}"
            )
        each = [item if isinstance(item, tuple | list) else (item, item) for item in padding]
        if any(len(pair) != 2 for pair in each):
            raise ValueError(f"{where}: expected pairs (before, after), got {padding!r}")
        pairs = [(0, 0)] * (n - len(each)) + [(integer(where, a, 0), integer(where, b, 0)) for a, b in each]
    return {"strides": strides, "padding": tuple(pairs), "dilation": dilation}
