"""Which methods has a backend for building trees?  Those of the op table's rows, and a few made of ops."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from neonlite.backend.rows import Rows, method_of
from neonlite.ops import FLOATS, HALVES, OPS, TABLE, Op, axes_of, missing
from neonlite.optree import Draw, Operand, build, describe, leaf, shortened, swapped


class Words(Rows):
    """The tree-building half of a backend. Every method takes ``out=``: a tensor to work the tree out into at once."""

    default: str
    assign: Callable[..., list[Any]]
    shape_of: Callable[..., tuple[int, ...]]
    dtype_name: Callable[..., str]
    array: Callable[..., Any]

    def build(self, op: str, a: Any, b: Any = None, out: Any = None, **attrs: Any) -> Any:
        """Return the node of an op of the table; TypeError when an operand is nothing to compute with."""
        return self._node(OPS[op], a, b, out, tuple(attrs.items()))

    def _node(self, op: Op, a: Any, b: Any = None, out: Any = None, attrs: tuple[tuple[str, Any], ...] = ()) -> Any:
        self._check_operands(op.method, *((a, b) if op.arity == 2 or b is not None else (a,)))
        node = build(op, a, b, attrs, self)
        return node if out is None else self.assign([out], [node])[0]

    def _check_operands(self, method: str, *operands: Any) -> None:
        """Raise TypeError when an operand is nothing to compute with."""
        for x in operands:
            if leaf(x, None, self)[0] is NotImplemented if not isinstance(x, Operand) else False:
                raise TypeError(f"be.{method} takes tensors, op-trees, numbers and arrays; got {describe(x)}")

    def _operand(self, x: Any, method: str) -> Any:
        """Return x as something with a shape: a number or array becomes a tensor."""
        if isinstance(x, Operand):
            return x
        self._check_operands(method, x)
        return self.array(x)

    # --- rows with more than operands ---

    def where(self, condition: Any, a: Any, b: Any, out: Any = None) -> Any:
        """Return ``a`` where the condition is not 0, else ``b``."""
        self._check_operands("where", condition, a, b)
        return self._node(OPS["where"], condition, self._node(OPS["pair"], a, b), out)

    def shift(self, a: Any, b: Any, value: bool = True, out: Any = None) -> Any:
        """Return ``a`` times the power of two nearest to ``b``; with ``value=False``, ``a * 2^b``."""
        return self._node(OPS["shift"], a, b, out, (("value", bool(value)),))

    def transpose(self, a: Any, axes: Sequence[int] | None = None, out: Any = None) -> Any:
        """Return ``a`` with its axes in another order; without ``axes``, the last two are swapped."""
        a = self._operand(a, "transpose")
        if axes is None:
            axes = swapped(a.ndim)
        elif not isinstance(axes, tuple | list):
            raise TypeError(f"be.transpose({describe(a)}): axes are {a.ndim} whole numbers; got {describe(axes)}")
        axes = tuple(x % a.ndim if isinstance(x, int) and -a.ndim <= x < a.ndim else x for x in axes)
        return self._node(OPS["transpose"], a, None, out, (("axes", axes),))

    def reshape(self, a: Any, *shape: Any, out: Any = None) -> Any:
        """Return ``a`` in another shape with as many elements; one size may be -1."""
        a = self._operand(a, "reshape")
        to = self.shape_of(shape[0] if len(shape) == 1 else shape, unknown=True)
        if -1 in to:  # the attribute says what the shape is, so that equal nodes are equal
            to = self._node(OPS["reshape"], a, None, None, (("to", to),)).shape
        if to == a.shape and out is None:
            return a
        return self._node(OPS["reshape"], a, None, out, (("to", to),))

    def broadcast_to(self, a: Any, shape: Any, out: Any = None) -> Any:
        """Return ``a`` repeated along axes of size 1 until it has the shape."""
        a, to = self._operand(a, "broadcast_to"), self.shape_of(shape)
        return a if to == a.shape and out is None else self._node(OPS["broadcast"], a, None, out, (("to", to),))

    def astype(self, a: Any, dtype: Any, out: Any = None) -> Any:
        """Return ``a`` in another dtype, cast as NumPy casts."""
        a, to = self._operand(a, "astype"), self.dtype_name(dtype)
        return a if to == a.info.dtype and out is None else self._node(OPS["cast"], a, None, out, (("to", to),))

    def take(self, a: Any, indices: Any, axis: int | None = None, out: Any = None) -> Any:
        """Return the slices of ``a`` with the given indices along an axis; None: of all elements in one column.

        ``indices``: a tensor of ints, or whole numbers (an array or list, taken as they are now); below 0 they count
        from the end. IndexError when one is out of range, at the time the tree is worked out.
        """
        a = self._operand(a, "take")
        if axis is None:
            a, axis = self.reshape(a, -1, 1), 0
        (axis,) = self._axes(a, axis, "take")
        return self._node(OPS["take"], a, self._whole(indices, "take", "indices"), out, (("axis", axis),))

    def onehot(self, indices: Any, axis: int, out: Any = None, nclass: int | None = None) -> Any:
        """Return 1 in the row (axis 0) or column (axis 1) of each label, else 0.

        Without ``nclass`` the number of classes is that of the tensor it is assigned to. IndexError when a label is
        out of range, at the time the tree is worked out.
        """
        if axis not in (0, 1):
            raise ValueError(f"be.onehot: axis is 0 (a row a class) or 1 (a column a class); got {describe(axis)}")
        if out is not None and nclass is None:
            nclass = out.shape[axis]
        if nclass is not None and (not isinstance(nclass, int) or isinstance(nclass, bool) or nclass < 1):
            raise ValueError(f"be.onehot: the number of classes is a whole number from 1; got nclass={nclass!r}")
        labels = self._whole(indices, "onehot", "labels")
        return self._node(OPS["onehot"], labels, None, out, (("axis", axis), ("nclass", nclass or 0)))

    def _whole(self, x: Any, method: str, what: str) -> Any:
        """Return indices as an operand of ints."""
        if not isinstance(x, Operand):
            x = self._snapshot_of_ints(x, method, what)
        if x.info.dtype and "int" not in x.info.dtype:
            raise TypeError(
                f"be.{method}: {what} are whole numbers; {describe(x)} holds {x.info.dtype}: use dtype='int32'"
            )
        return x

    def _snapshot_of_ints(self, x: Any, method: str, what: str) -> Any:
        import numpy as np

        array = np.asarray(x)
        if array.dtype.kind not in "iu" and array.size:
            raise TypeError(f"be.{method}: {what} are whole numbers; got {array.dtype} {describe(x)}")
        return self.array(array, dtype="int64")

    def concat(self, arrays: Sequence[Any], axis: int = 0, out: Any = None) -> Any:
        """Return the operands laid end to end along an axis, on which alone their shapes may differ."""
        arrays = self._several(arrays, "concat")
        (axis,) = self._axes(arrays[0], axis, "concat")
        first, rest = arrays[0], arrays[1:]
        pair = rest.pop() if rest else None
        while rest:
            pair = self._node(OPS["pair"], rest.pop(), pair)
        return self._node(OPS["concat"], first, pair, out, (("axis", axis),))

    def stack(self, arrays: Sequence[Any], axis: int = 0, out: Any = None) -> Any:
        """Return the operands, all of one shape, side by side along a new axis."""
        arrays = self._several(arrays, "stack")
        if len({x.shape for x in arrays}) > 1:
            raise ValueError(f"be.stack: the shapes differ: {describe(*arrays)}")
        (at,) = self._axes(arrays[0], axis, "stack", arrays[0].ndim + 1)
        return self.concat([self.reshape(x, (*x.shape[:at], 1, *x.shape[at:])) for x in arrays], at, out)

    def _several(self, arrays: Any, method: str) -> list[Any]:
        if not isinstance(arrays, list | tuple) or isinstance(arrays, Operand) or not arrays:
            raise TypeError(f"be.{method} takes a list of one operand or more; got {describe(arrays)}")
        return [self._operand(x, method) for x in arrays]

    def rand(self, *shape: Any, out: Any = None) -> Any:
        """Return random numbers, uniform in [0, 1): drawn anew each time the tree is worked out."""
        return self._random("rand", shape, out)

    def randn(self, *shape: Any, out: Any = None) -> Any:
        """Return random numbers, normal with mean 0 and deviation 1: drawn anew each time the tree is worked out."""
        return self._random("randn", shape, out)

    def _random(self, op: str, shape: tuple[Any, ...], out: Any) -> Any:
        if not shape and out is not None:
            shape = out.shape
        to = self.shape_of(shape[0] if len(shape) == 1 else shape)
        return self._node(OPS[op], Draw(self), None, out, (("to", to),))

    def einsum(self, subscripts: str, *operands: Any, out: Any = None) -> Any:
        """Return Einstein's sum: ``be.einsum("ij,jk->ik", x, y)`` is the matrix product.

        The order of contractions is opt_einsum's, chosen when the tree is built; each is a product of two operands,
        as the tree shows. Tensors have two dimensions or more, and need as many letters.
        """
        from neonlite.backend.einsum import einsum

        tree = einsum(self, subscripts, operands)
        return tree if out is None else self.assign([out], [tree])[0]

    # --- made of ops ---

    def reciprocal(self, a: Any, out: Any = None) -> Any:
        """Return ``1 / a``."""
        return self._node(OPS["div"], 1, a, out)

    def clip(self, a: Any, a_min: Any, a_max: Any, out: Any = None) -> Any:
        """Return ``a`` held between two bounds; the derivative at a bound that is a number is 0."""
        self._check_operands("clip", a, a_min, a_max)
        return self._node(OPS["minimum"], self._node(OPS["maximum"], a, a_min), a_max, out)

    def sig2(self, a: Any, out: Any = None) -> Any:
        """Return ``1 / (1 + 2^-a)``."""
        return self._node(OPS["div"], 1, 1 + self._node(OPS["exp2"], self._node(OPS["neg"], a)), out)

    def tanh2(self, a: Any, out: Any = None) -> Any:
        """Return ``(2^2a - 1) / (2^2a + 1)``."""
        e = self._node(OPS["exp2"], self._node(OPS["mul"], 2, a))
        return self._node(OPS["div"], e - 1, e + 1, out)

    def mean(self, a: Any, axis: Any = None, partial: Any = None, out: Any = None, keepdims: bool = True) -> Any:
        """Return the mean over one axis, several (a tuple), or all (None). ``partial`` has no effect."""
        wide, dtype = self._wide(a, axis, "mean")
        return self.astype(self._mean(wide, axis, keepdims), dtype, out)

    def var(
        self,
        a: Any,
        axis: Any = None,
        partial: Any = None,
        out: Any = None,
        keepdims: bool = True,
        binary: bool = False,
    ) -> Any:
        """Return the population variance ``mean((a - mean(a))^2)``; ``binary`` shifts instead of squaring."""
        wide, dtype = self._wide(a, axis, "var")
        return self.astype(self._variance(wide, axis, keepdims, binary), dtype, out)

    def std(
        self,
        a: Any,
        axis: Any = None,
        partial: Any = None,
        out: Any = None,
        keepdims: bool = True,
        binary: bool = False,
    ) -> Any:
        """Return the standard deviation, the root of ``var``."""
        wide, dtype = self._wide(a, axis, "std")
        return self.astype(self.sqrt(self._variance(wide, axis, keepdims, binary)), dtype, out)

    def _wide(self, a: Any, axis: Any, method: str) -> tuple[Any, str]:
        """Return ``a`` in a dtype that holds its sums and squares, and the dtype of the result; ints become floats."""
        a = self._operand(a, method)
        if self._count(a, axis, method) == 0:
            raise ValueError(f"be.{method}({describe(a)}): there is no mean of nothing: axis {axis} is empty")
        dtype = a.info.dtype if a.info.dtype in FLOATS else self.default
        return self.astype(a, "float32" if dtype in HALVES else dtype), dtype

    def _mean(self, a: Any, axis: Any, keepdims: bool = True) -> Any:
        return self.sum(a, axis=axis, keepdims=keepdims) * (1.0 / self._count(a, axis, "mean"))

    def _variance(self, a: Any, axis: Any, keepdims: bool, binary: bool) -> Any:
        d = a - self._mean(a, axis)
        return self._mean(self.shift(d, d) if binary else self.square(d), axis, keepdims)

    def softmax(self, a: Any, axis: Any = 0, out: Any = None) -> Any:
        """Return ``e^a / sum(e^a)`` along an axis; the largest element is taken off first, so nothing overflows."""
        a = self._operand(a, "softmax")
        self._axes(a, axis, "softmax")
        e = self._node(OPS["exp"], a - self._largest(a, axis))
        return self._node(OPS["div"], e, self.sum(e, axis=axis), out)

    def logsumexp(self, a: Any, axis: Any = 0, out: Any = None) -> Any:
        """Return ``ln sum(e^a)`` along an axis without overflow; -inf where all elements are -inf."""
        a = self._operand(a, "logsumexp")
        self._axes(a, axis, "logsumexp")
        m = self._largest(a, axis)
        m = self.where(self._node(OPS["finite"], m), m, 0)
        total = self.sum(self._node(OPS["exp"], a - m), axis=axis)
        return self._node(OPS["add"], m, self._node(OPS["log"], total), out)

    def _largest(self, a: Any, axis: Any) -> Any:
        return self._node(OPS["stop_gradient"], self.max(a, axis=axis))

    def binarize(self, a: Any, stochastic: Any = True, out: Any = None, **more: Any) -> Any:
        """Return +1 where ``a >= 0``, else -1; stochastic: +1 with probability ``clip((a + 1) / 2, 0, 1)``.

        ``binarize(a, out)`` and ``binarize(a, out, stochastic)`` are understood as well.
        """
        if isinstance(stochastic, Operand):
            stochastic, out = (True if out is None else out), stochastic
        a = self._operand(a, "binarize")
        if stochastic:
            return self._node(OPS["sub"], 2 * (self.rand(a.shape) < self.clip((a + 1) / 2, 0, 1)), 1, out)
        return self._node(OPS["sub"], 2 * (a >= 0), 1, out)

    def _axes(self, a: Any, axis: Any, method: str, ndim: int | None = None) -> tuple[int, ...]:
        try:
            return axes_of(axis, a.ndim if ndim is None else ndim)
        except (ValueError, TypeError, IndexError) as error:
            raise type(error)(f"be.{method}({describe(a)}): {shortened(error)}") from None

    def _count(self, a: Any, axis: Any, method: str) -> int:
        """Return how many elements each result is taken of."""
        return math.prod(a.shape[i] for i in self._axes(a, axis, method))

    # --- the door for new ops ---

    defined_anew = 0  # how often an op took the name of another

    @classmethod
    def define_op(
        cls,
        name: str,
        run: Callable[..., Any],
        grad: Callable[..., Any] | None = missing,
        kind: str = "elementwise",
        arity: int = 1,
        doc: str = "an op of the user's",
        shape: Callable[..., tuple[int, ...]] | None = None,
        result: str = "same",
    ) -> Callable[..., Any]:
        """Add a row to the op table and return its method, which is ``be.name`` on every backend from now on.

        ``run(xp, x, y)`` is the value in the words of the array-API standard, ``grad(be, dz, z, x, y)`` the derivative:
        an op-tree for each operand, or None where it is flat. ``kind`` is "elementwise", or "library" for an op that
        needs its operands whole, whose ``shape(x, y)`` gives the result's shape. ValueError for a name that is taken.
        An op of one's own may be defined anew, as when a cell of a notebook is run again: trees that are built from
        then on have the new one, and those that were built before keep the old one.

        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> cube = be.define_op("cube", lambda xp, x: x * x * x, lambda be, dz, z, x: (dz * 3 * x * x,))
        >>> x = be.array([[2.0]], name="x")
        >>> nl.Autodiff(cube(be, x), be).get_grad_asnumpyarray(x)
        array([[12.]], dtype=float32)
        """
        anew = name in OPS and OPS[name] not in TABLE
        if not name.isidentifier() or (not anew and (name in OPS or hasattr(cls, name))):
            raise ValueError(f"be.define_op: the name {name!r} is taken, or no name; the ops are {', '.join(OPS)}")
        if kind not in ("elementwise", "library") or (kind == "library" and shape is None):
            raise ValueError(
                f"be.define_op: kind is 'elementwise', or 'library' together with a shape rule; got {describe(kind)}"
            )
        if not callable(run):
            raise TypeError(f"be.define_op: run is a function run(xp, x); got {describe(run)}")
        if arity not in (1, 2):
            raise ValueError(f"be.define_op: an op has one operand or two; got {describe(arity)}")
        OPS[name] = op = Op(name, run, grad, doc, arity=arity, kind=kind, shape=shape, result=result, may_fail=True)
        method = method_of(op)
        setattr(cls, name, method)
        Words.defined_anew += anew
        return method

    @classmethod
    def elementwise_kernel(
        cls,
        name: str,
        operation: str,
        run: Callable[..., Any] | None = None,
        grad: Callable[..., Any] | None = missing,
        doc: str = "an op of the user's",
        result: str = "same",
    ) -> Callable[..., Any]:
        """Make an op of a CUDA expression, and return its method, ``be.name``: ``define_op`` for cards.

        ``operation``: an expression of x, or of x and y, in which T is their type: "x / (1 + exp(-x))". It becomes a
        line of the kernel that works out the tree around it. ``run`` and ``grad`` are as in ``define_op``; ``run``
        serves other runtimes, which without it raise NotImplementedError. ``result``: "same", or "float" for an op
        that makes floats of whole numbers. ValueError for a name that is taken, but by an op of one's own, and where
        ``run`` takes other operands than the expression.

        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> softsign = be.elementwise_kernel("softsign", "x / (1 + fabs(x))", lambda xp, x: x / (1 + xp.abs(x)))
        >>> print(be.kernel(2 * be.softsign(be.ones((4, 4), name="x"))).split("#pragma unroll")[-1])
        <BLANKLINE>
                for (int q = 0; q < V; ++q) {
                    const float v0 = x0s.at[q] / (1 + fabs(x0s.at[q]));  // softsign
                    const float v1 = 2.0f * v0;  // mul
                    y0s.at[q] = v1;
                }
                ...
        """
        from neonlite.backend.cuda.own import on_cards_only, spell

        if not isinstance(operation, str) or not re.search(r"\bx\b", operation):
            raise ValueError(f"be.elementwise_kernel: an operation is an expression of x; got {describe(operation)}")
        arity = 2 if re.search(r"\by\b", operation) else 1
        if run is not None and not takes(run, 1 + arity):
            names = ("x", "x, y")[arity - 1]
            raise ValueError(
                "be.elementwise_kernel: the operands of an expression are x, or x and y, and run takes the same; "
                f"{operation!r} is of {names}, which takes a run(xp, {names})"
            )
        method = cls.define_op(name, run or on_cards_only(name), grad, "elementwise", arity, doc, None, result)
        spell(OPS[name], operation)
        return method

    @classmethod
    def raw_kernel(
        cls,
        name: str,
        source: str,
        shape: Callable[..., tuple[int, ...]],
        launch: Callable[..., tuple[Any, ...]] | None = None,
        run: Callable[..., Any] | None = None,
        grad: Callable[..., Any] | None = missing,
        doc: str = "an op of the user's",
    ) -> Callable[..., Any]:
        """Make an op of a whole CUDA kernel, and return its method, ``be.name``: ``define_op`` for cards.

        ``source``: the text of ``extern "C" __global__ void name(T* z, const T* x, const T* y, ...)``: pointers to the
        result and to one operand or two, all without gaps, then numbers of 64 bits, ``long long`` or ``double``; T is
        the type of the elements. So that floats of 16 bits are served, too, which have no arithmetic: ``wide(x[i])``
        is an element as ``Wide``, that is float for these and T for others; ``put(z[i], value)`` rounds and stores.
        ``shape(x, y)`` gives the shape of the result. ``launch(z, x, y)`` gives, for the
        shapes, the number of blocks of 256 threads, or that along x and y, and the numbers; without it, as many threads
        as the result has elements, and that number. ``run`` and ``grad``: as in ``elementwise_kernel``. ValueError for
        a name that is taken, but by an op of one's own, and for a source with another kernel.
        """
        from neonlite.backend.cuda.own import RAW, Raw, blocks_for, on_cards_only

        raw = Raw(name, source, launch or blocks_for)
        method = cls.define_op(name, run or on_cards_only(name), grad, "library", raw.arity, doc, shape)
        RAW[OPS[name]] = raw
        return method


def takes(f: Callable[..., Any], n: int) -> bool:
    """Tell whether a function takes n operands, or does not tell."""
    try:
        found = inspect.signature(f)
    except (TypeError, ValueError):
        return True
    try:
        found.bind(*range(n))
    except TypeError:
        return False
    return True
