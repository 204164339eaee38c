"""Backend methods that build op-trees of images: convolution, pooling, normalization over channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from neonlite.backend.tree_operands import as_operand
from neonlite.backend.validation import boolean, check_number, checks_names, integer, one_of
from neonlite.messages import describe
from neonlite.optree import Operand, OpTreeNode
from neonlite.typing import BackendBase, OperandLike

if TYPE_CHECKING:
    from neonlite.backend.tensor import Tensor

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
