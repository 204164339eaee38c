"""Calls of functions with variables, and what is made of their expressions.

``Call`` calls a function with variables instead of its arguments. ``substitute`` puts the arguments in the place of the
variables, ``node_of_call`` gives an expression another gradient, and ``batch`` has the rules of ``vmap``, by which the
expression of one sample becomes one of many samples.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from operator import or_
from threading import get_ident
from typing import Any

from neonlite import typing
from neonlite.autodiff import Autodiff, build_node, is_array, operand_of
from neonlite.backend.tensor import Tensor, overlap
from neonlite.messages import describe
from neonlite.ops import Op
from neonlite.optree import Operand, OpTreeNode
from neonlite.programs import Argument, flatten, label_leaves, name_parameters, tracing, unflatten
from neonlite.tree_structure import Info, is_composite, postorder, transforms, untraced
from neonlite.typing import FLOAT_DTYPES

Values = dict[int, Any]  # {id of a tensor or node: the operand in its place}


class Variable(Argument):
    """An argument of a function that is transformed: its value, if it has one, is computed when the function reads it.

    Parameters
    ----------
    info : Info
        Shape, dtype and backend.
    name : str
        The name in errors.
    given : Tensor or OpTreeNode, optional
        The argument itself; none for one of many samples of ``vmap``.
    """

    __slots__ = ("given", "value")
    has_values = True

    def __init__(self, info: Info, name: str, given: Operand | None = None) -> None:
        super().__init__(None, info, name)
        self.given, self.value = given, given if isinstance(given, Tensor) else None

    @property
    def storage(self) -> Any:
        """The runtime's array of the argument. TypeError if there is none."""
        if self.given is None:
            raise TypeError(
                f"vmap: expected a function that reads no values, as by if, max, float or get, got one that reads "
                f"{self.name}, which is one of many samples. Use where(condition, x, y) instead of if, and take(x, i) "
                "for several indices."
            )
        if self.value is None:
            self.value = self.backend.evaluate([self.given])[0]
        return self.value.storage

    @storage.setter
    def storage(self, value: object) -> None:
        """Ignore the array, None."""

    def __setitem__(self, index: object, value: object) -> None:
        raise TypeError(
            f"expected a function that changes no argument, got an assignment to {self.name} {self.shape}. Return the "
            "new value; instead of x += y write x = x + y."
        )

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.shape}, {self.info.dtype}, {self.backend.name})"


def parts_of(x: Any) -> tuple[Any, list[Any]]:
    """Return the structure of nested lists, tuples and dicts, and their leaves."""
    leaves: list[Any] = []
    return flatten(x, leaves), leaves


def as_tree(x: Operand) -> OpTreeNode:
    """Return an operand as an op-tree."""
    return x if isinstance(x, OpTreeNode) else x * 1


def tensors_of(*trees: Any) -> list[Tensor]:
    """Return the distinct tensors of op-trees."""
    operands = [*trees, *[x for z in postorder(*trees) for x in (z.left, z.right)]]
    return list({id(x): x for x in operands if isinstance(x, Tensor)}.values())


def without(tensors: Sequence[Tensor], excluded: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that are not among others."""
    ids = set(map(id, excluded))
    return [x for x in tensors if id(x) not in ids]


def substitute(trees: Sequence[Any], values: Values, be: Any = None) -> list[Any]:
    """Return op-trees with other operands in the place of some nodes and tensors; equal parts remain shared."""
    built = dict(values)
    with untraced():  # the operands, and not what has been assigned to them since
        for node in postorder(*trees):
            if id(node) in values:
                continue
            a, b = built.get(id(node.left), node.left), built.get(id(node.right), node.right)
            is_same = a is node.left and b is node.right
            built[id(node)] = node if is_same else node._rebuild(node.info, a, b, be)
    return [built.get(id(tree), tree) for tree in trees]


# --- a call with variables -------------------------------------------------------------------------------------------


class Call:
    """A call of a function in which variables take the place of arguments.

    Parameters
    ----------
    name : str
        The name of the transform, for errors.
    f : callable
        The function.
    args, kwargs : tuple and dict
        The arguments.
    argnums : int or tuple of int, optional
        The positional arguments that variables take the place of, as do their parts; None: all.
    """

    def __init__(
        self,
        name: str,
        f: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        argnums: int | Sequence[int] | None = None,
    ) -> None:
        self.name = name
        numbers = range(len(args)) if argnums is None else [argnums] if isinstance(argnums, int) else argnums
        for k in numbers:
            if not isinstance(k, int) or not -len(args) <= k < len(args):
                raise ValueError(
                    f"{self.name}: expected argnums below {len(args)}, the number of positional arguments, got {k}. "
                    "Pass what is differentiated by position."
                )
        self.numbers = [k % len(args) for k in numbers]
        leaves: list[Any] = []
        structures = [flatten(args[k], leaves) for k in self.numbers]
        self.is_single = isinstance(argnums, int)
        self.structure = structures[0] if self.is_single else (tuple, tuple(structures))
        names = name_parameters(f, len(args))
        self.labels = [x for k, s in zip(self.numbers, structures, strict=True) for x in label_leaves(s, names[k])]
        self.be = backend_of(*leaves, *args)
        has_tensors = any(isinstance(x, Operand) for x in leaves)
        self.like = [self._as_operand(x, has_tensors) for x in leaves]
        self.given: list[Any] = [operand_of(x) for x in self.like]
        self.variables: list[Any] = []
        count = transforms.get(get_ident(), 0)
        self.level = 2 << count  # ``Array.is_live`` of an expression of these variables
        values = iter(self.new_arguments())
        replaced = {k: unflatten(s, values) for k, s in zip(self.numbers, structures, strict=True)}
        transforms[get_ident()] = count + 1
        try:
            self.result: Any = f(*[replaced.get(k, x) for k, x in enumerate(args)], **kwargs)
        finally:
            if count:
                transforms[get_ident()] = count
            else:
                del transforms[get_ident()]
        if (trace := tracing()) is not None:
            self.close_assignments(trace)

    def _as_operand(self, x: Any, has_tensors: bool) -> Any:
        """Return a float or an array of NumPy as an array, or beside tensors as a tensor; anything else unchanged."""
        if is_expression(x) or not (isinstance(x, float) or hasattr(x, "dtype")):
            return x
        return self.be.array(x) if has_tensors else self.be.array_api.asarray(x)

    def new_arguments(self) -> list[Any]:
        """Return the parts of the arguments as variables of the same values."""
        result = []
        for x, given, label in zip(self.like, self.given, self.labels, strict=True):
            if isinstance(given, Operand):
                if isinstance(given, Tensor) and (trace := tracing()) is not None:
                    given = trace.read(given)
                info = given.info if isinstance(given, Tensor) else self.be.tensor_info(given.shape, given.info.dtype)
                self.variables.append(variable := Variable(info, label, given))
                result.append(x.with_operand(variable, None, self.level) if is_array(x) else variable)
            else:
                result.append(x)
        return result

    # --- results ---

    def close_assignments(self, trace: Any) -> None:
        """Let what the function has assigned to tensors, in one that is compiled, depend on the arguments."""
        for pairs in trace.written.values():
            pairs[:] = zip([t for t, _ in pairs], self.close(*[value for _, value in pairs]), strict=True)
        trace.values.clear()

    def outputs(self, result: Any) -> tuple[Any, list[Any], list[Any]]:
        """Return the structure of a result, its parts, and their operands; TypeError unless they are expressions."""
        structure, leaves = parts_of(result)
        for x in leaves:
            if not is_expression(x):
                raise TypeError(
                    f"{self.name}: expected arrays, tensors or op-trees as the result, got {describe(x)}. What Python "
                    "or NumPy computes from values is no expression of the arguments."
                )
        return structure, leaves, [operand_of(x) for x in leaves]

    def scalar(self, result: Any) -> OpTreeNode:
        """Return the op-tree of a result of one element."""
        _, leaves, operands = self.outputs(result)
        if len(leaves) != 1 or math.prod(operands[0].shape) != 1 or (is_array(leaves[0]) and leaves[0].shape):
            raise ValueError(
                f"{self.name}: expected one number as the result, got {describe(*leaves)}. Reduce it by sum or mean, "
                "use jacobian, or return has_aux=True: (value, anything)."
            )
        return as_tree(operands[0])

    def check_floats(self) -> None:
        """Raise TypeError unless all parts of the arguments are floats."""
        for x, label in zip(self.like, self.labels, strict=True):
            if not is_expression(x) or operand_of(x).info.dtype not in FLOAT_DTYPES:
                hint = f"Pass {float(x)}" if type(x) is int else "Convert it"
                raise TypeError(
                    f"{self.name}: expected floats to differentiate with respect to, got {label}, {describe(x)}. "
                    f"{hint}; choose other arguments by argnums, or by a lambda of these."
                )

    def gradients(self, tree: OpTreeNode, error: Operand | None = None) -> list[Operand]:
        """Return the gradients of an op-tree with respect to the variables."""
        leaves: dict[int, Tensor] = {}
        in_memory: dict[int, list[Tensor]] = {}
        for y in tensors_of(tree):
            leaves[id(y)] = y
            in_memory.setdefault(id(y.allocation), []).append(y)
        for x in self.variables:
            given = x.given
            if id(x) in leaves or not isinstance(given, Tensor):
                continue
            if any(overlap(given, y) != "none" for y in in_memory.get(id(given.allocation), ())):
                raise ValueError(
                    f"{self.name}: expected a result that depends on the argument {x.name}, got one that depends on "
                    f"the tensor that was passed for it, {describe(given)}, by another way, as a layer reads its "
                    "weights. Compute with the argument, or use Autodiff(cost).get_grad_op_tree(tensors)."
                )
        with untraced():
            return Autodiff(tree, self.be, error, allow_unused=True).gradient_operands(self.variables)

    def close(self, *trees: Any) -> list[Any]:
        """Return operands with the arguments in the place of the variables."""
        return substitute(trees, {id(x): x.given for x in self.variables})

    def close_result(self, result: Any, *more: Operand) -> tuple[Any, list[Any]]:
        """Return a result and other operands with the arguments in the place of the variables."""
        structure, leaves = parts_of(result)
        operands = [operand_of(x) for x in leaves]
        closed = self.close(*operands, *more)
        pairs = zip(leaves, closed, strict=False)
        values = [x.with_operand(y, None, self.is_live(x)) if is_array(x) else y for x, y in pairs]
        return unflatten(structure, iter(values)), closed[len(leaves) :]

    def is_live(self, *results: Any) -> int:
        """Return whether arrays computed from the arguments and from results of the function are constants: 0."""
        live = [x.is_live for x in self.like if is_array(x)] + [x.is_live & ~self.level for x in results if is_array(x)]
        return functools.reduce(or_, live, 0)

    def pack(self, operands: Sequence[Operand], shape: Sequence[int] = (), is_live: int = 0) -> Any:
        """Return operands, one for each variable, in the containers of the arguments; ``shape``: axes in front."""
        values: list[Any] = []
        live = self.is_live(*parts_of(self.result)[1]) | is_live
        for x, y in zip(self.like, operands, strict=True):
            to = (*shape, *x.shape)
            values.append(as_array(x, y, to, live) if is_array(x) else as_tree(self.be.reshape(y, to)))
        return unflatten(self.structure, iter(values))


def split_row(row: Operand, like: Sequence[Operand]) -> list[Operand]:
    """Return the parts of a row that has the elements of several operands, in their shapes and dtypes."""
    be: Any = row.backend
    parts, start = [], 0
    for x in like:
        size = math.prod(x.shape)
        part = be.build("slice", row, index=((0, 1, 1), (start, size, 1)))
        parts.append(be.astype(be.reshape(part, x.shape), x.info.dtype))
        start += size
    return parts


def backend_of(*operands: Any) -> Any:
    """Return the backend of the first array, tensor or op-tree; else the current one."""
    found = next((x.backend for x in parts_of(operands)[1] if is_expression(x)), None)
    return typing.current_backend() if found is None else found


def is_expression(x: Any) -> bool:
    """Return whether x is an array, a tensor or an op-tree."""
    return is_array(x) or isinstance(x, Operand)


def as_array(like: Any, operand: Operand, shape: Sequence[int], is_live: int) -> Any:
    """Return an operand as an array of a shape."""
    axes = (1, 1, *shape)[-max(2, len(shape)) :]
    return like.with_operand(like.backend.reshape(operand, axes), tuple(shape), is_live)


class Samples(Call):
    """A call of a function with one of many samples, as of ``vmap``."""

    def __init__(self, name: str, f: Callable[..., Any], args: Sequence[Any], kwargs: Any, in_axes: Any) -> None:
        axes = in_axes if isinstance(in_axes, tuple | list) else (in_axes,) * len(args)
        if len(axes) != len(args):
            raise ValueError(f"{name}: expected an axis, or None, for each of {len(args)} arguments, got {in_axes=}")
        numbers = [k for k, axis in enumerate(axes) if axis is not None]
        self.axes = [axis for k in numbers for axis in axes_of_leaves(name, args[k], axes[k])]
        self.samples: Values = {}  # {id of a variable: the operand of all samples}
        self.count = -1
        super().__init__(name, f, args, kwargs, tuple(numbers))

    def new_arguments(self) -> list[Any]:
        """Return the parts of the arguments, those with an axis of samples as variables of one sample."""
        result: list[Any] = []
        for x, given, axis, label in zip(self.like, self.given, self.axes, self.labels, strict=True):
            if axis is None:
                result.append(x)
                continue
            if not is_expression(x) or not isinstance(axis, int) or not -x.ndim <= axis < x.ndim:
                raise ValueError(f"{self.name}: expected an array with an axis {axis} as {label}, got {describe(x)}")
            axis %= x.ndim
            if self.count not in (-1, x.shape[axis]):
                raise ValueError(
                    f"{self.name}: expected equal numbers of samples, {self.count} as in {self.labels[0]}, got "
                    f"{x.shape[axis]} along axis {axis} of {label}, {describe(x)}"
                )
            self.count = x.shape[axis]
            rest = x.shape[:axis] + x.shape[axis + 1 :]
            shape = (1, 1, *rest)[-max(2, len(rest)) :]
            if not is_array(x) and x.ndim == 2:
                shape = rest = (x.shape[0], 1) if axis else (1, x.shape[1])  # a tensor has two dimensions or more
            order = (axis, *(a for a in range(x.ndim) if a != axis))
            variable = Variable(self.be.tensor_info(shape, given.info.dtype), label)
            self.variables.append(variable)
            every = self.be.transpose(given, order) if axis else given
            self.samples[id(variable)] = self.be.reshape(every, (self.count, *shape))
            result.append(x.with_operand(variable, rest, self.level) if is_array(x) else variable)
        if not self.variables:
            raise ValueError(f"{self.name}: expected an argument with an axis of samples, got in_axes of None alone")
        return result

    def close_assignments(self, trace: Any) -> None:
        """Raise TypeError if the function has assigned values of one sample to a tensor."""
        written = [value for pairs in trace.written.values() for _, value in pairs]
        if found := [x for x in tensors_of(*written) if id(x) in self.samples]:
            raise TypeError(
                f"{self.name}: expected a function that assigns nothing, got an assignment of a value that depends on "
                f"{found[0].name}, one of many samples. Return the value."
            )


def axes_of_leaves(name: str, argument: Any, axes: Any) -> list[int | None]:
    """Return the axis of the samples of each part of an argument, from one axis or a container of them."""
    structure, leaves = parts_of(argument)
    if isinstance(axes, int):
        return [axes] * len(leaves)
    given, found = parts_of(axes)
    if given != structure:
        raise ValueError(
            f"{name}: expected in_axes with one axis, or one for each part of {describe_structure(structure)}, got "
            f"{axes!r}"
        )
    return found


def describe_structure(structure: Any) -> str:
    """Return nested containers as text, with an asterisk for each part."""
    if structure is None:
        return "*"
    kind, parts = structure
    texts = [describe_structure(part) for part in parts]
    if isinstance(kind, tuple):
        return "{" + ", ".join(f"{key!r}: {text}" for key, text in zip(kind, texts, strict=True)) + "}"
    inside = ", ".join(texts)
    return f"[{inside}]" if kind is list else f"({inside},)" if len(texts) == 1 else f"({inside})"


# --- an expression with given gradients, as one node ----------------------------------------------------------------


def node_of_call(
    name: str, tree: OpTreeNode, variables: Sequence[Tensor], error: Tensor, grads: Sequence[Any], recomputes: bool
) -> OpTreeNode:
    """Return an op-tree of the value of another one, with given gradients, as one node.

    Parameters
    ----------
    name : str
        The name in printed op-trees.
    tree : OpTreeNode
        The value.
    variables : sequence of Tensor
        The tensors with respect to which there are gradients.
    error : Tensor
        The gradient of the value, in the expressions of the gradients.
    grads : sequence of Operand or None
        The gradients; None is 0.
    recomputes : bool
        Whether the gradients compute again, from the first of the variables, what they need of the value.
    """
    be = tree.backend
    operands = [*variables, *without(tensors_of(tree, *grads), [error, *variables])]
    # without the memory of tensors, which the cache of structures would keep
    places = [Variable(x.info, x.name or name) for x in operands]
    body, *rest = substitute([tree, *grads], {id(x): y for x, y in zip(operands, places, strict=True)})
    key = (node_of_call, name, recomputes, structure_key([body, *rest], [*places, error]))
    op = be.structures.find(key) or be.structures.add(key, op_of_call(name, body, rest, places, error, recomputes))
    return build_node(be, op, operands, {})


def structure_key(trees: Sequence[Any], places: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return what two lists of op-trees have in common that differ in the tensors ``places`` alone."""
    names: dict[int, Any] = {id(x): ("place", k, x.info) for k, x in enumerate(places)}

    def name_of(x: Any) -> Any:
        return names.get(id(x), (type(x), repr(x)) if isinstance(x, int | float) else x)

    key: list[Any] = []
    for node in postorder(*trees):
        info = node.info
        key.append((info.op_def, tuple(info.attrs.items()), info.dtype, name_of(node.left), name_of(node.right)))
        names[id(node)] = len(names)
    return (*key, *map(name_of, trees))


def op_of_call(
    name: str, body: Any, rest: Sequence[Any], places: Sequence[Tensor], error: Tensor, recomputes: bool
) -> Op:
    """Return the op whose formula is an expression of places for its operands, with given gradients."""

    def fill(be: Any, trees: Sequence[Any], values: Sequence[Any], dz: Any = None) -> list[Any]:
        return substitute(trees, {id(x): y for x, y in zip(places, values, strict=True)} | {id(error): dz}, be)

    def gradient_rule(be: Any, dz: Operand, z: OpTreeNode, *values: Any) -> tuple[Operand | None, ...]:
        if recomputes:
            values = (be.build("after", values[0], dz), *values[1:])
        return (*fill(be, rest, values, dz), *[None] * (len(values) - len(rest)))

    def formula(be: Any, *values: Any) -> Operand:
        return as_tree(fill(be, [body], values)[0])

    return Op(name, grad=gradient_rule, doc=f"the function {name}", arity=-1, kind="composite", formula=formula,
              promoted_operands=slice(0), is_estimator=not recomputes)  # fmt: skip


# --- batching: an expression of one sample, for many samples at once -------------------------------------------------

ALONG_AXIS = {"cumulative_sum", "cumulative_prod", "sort", "argsort", "concat"}
INDEXED = {"take_along_axis", "scatter_add_along_axis"}
MATRICES = {"tril", "triu", "cholesky", "solve", "inv", "det", "cofactors", "cofactors_backward", "pinv", "qr_q"}
MATRICES |= {"qr_r", "slogdet_sign", "slogdet_logabsdet", "svd_u", "svd_s", "svd_vh", "eigh_values", "eigh_vectors"}
POOLING = {"max_pool", "max_pool_indices", "max_pool_take", "max_unpool", "sum_pool", "sum_unpool"}
CONVOLUTIONS = {"conv", "conv_backward", "conv_update"}
ELEMENTWISE_FORMULAS = {"silu", "gelu", "leaky_relu", "elu", "softplus"}
AXIS_FORMULAS = {"softmax", "log_softmax", "masked_softmax", "logsumexp", "normalize"}


def batch(be: Any, trees: Sequence[Any], samples: Values, count: int) -> list[Operand]:
    """Return expressions for all samples, along a new first axis, of expressions for one sample.

    Parameters
    ----------
    be : Backend
        The backend.
    trees : sequence of Operand
        The expressions.
    samples : dict
        {id of a tensor: the operand of all samples, of the shape (count, *shape)}.
    count : int
        The number of samples.
    """
    rules = Batching(be, dict(samples), count)
    with untraced():
        for z in postorder(*trees, opens=rules.opens):
            op: Any = z.info.op_def
            if rules.opens(op):
                if id(z.opened) in rules.known:
                    rules.known[id(z)] = rules.known[id(z.opened)]
            elif op.name != "pair" and any(id(x) in rules.known for x in z.operands):
                rules.known[id(z)] = rules.apply(op, z)
        return [rules.all_samples(tree) for tree in trees]


class Batching:
    """The rules by which each op is applied to all samples: to operands whose first axis is that of the samples."""

    def __init__(self, be: Any, known: Values, count: int) -> None:
        self.be, self.known, self.count = be, known, count

    def opens(self, op: Any) -> bool:
        """Return whether an op is batched by its formula."""
        return is_composite(op) and not op.is_estimator and op.name not in ELEMENTWISE_FORMULAS | AXIS_FORMULAS

    def apply(self, op: Any, z: OpTreeNode) -> Operand:
        """Return the value of a node for all samples."""
        be, n, name, attrs, operands = self.be, self.count, op.name, dict(z.info.attrs), z.operands
        if op.kind == "elementwise" or name in ELEMENTWISE_FORMULAS:
            return build_node(be, op, self.aligned(operands), attrs)
        if op.has_axis or name in AXIS_FORMULAS:  # several axes
            attrs["axis"] = tuple(a + 1 for a in attrs["axis"])
            attrs.pop("keepdims", None)
            return self.reshape(build_node(be, op, self.complete(operands), attrs), z.shape)
        if name in ("dot", "matmul"):
            return self.product(*operands)
        if name == "after":
            return build_node(be, op, [self.all_samples(operands[0]), *self.known_operands(operands[1:])], attrs)
        if name == "transpose":
            return build_node(be, op, self.known_operands(operands), {"axes": (0, *(a + 1 for a in attrs["axes"]))})
        if name in ("reshape", "broadcast"):
            return build_node(
                be, op, self.aligned(operands, len(z.shape) * (name == "broadcast")), {"to": (n, *z.shape)}
            )
        if name in ("slice", "slice_backward"):
            attrs["index"] = ((0, n, 1), *attrs["index"])
            attrs |= {"to": (n, *z.shape)} if "to" in attrs else {}
            return build_node(be, op, self.known_operands(operands), attrs)
        if name in ALONG_AXIS | INDEXED or (name in ("take", "scatter_add") and id(operands[1]) not in self.known):
            attrs["axis"] += 1
            shared = operands[1:] if name in ("take", "scatter_add") else ()
            return build_node(be, op, [*map(self.all_samples, operands[: len(operands) - len(shared)]), *shared], attrs)
        if name in MATRICES:
            return build_node(be, op, self.complete(operands), attrs)
        if name in POOLING:
            attrs |= {"to": (*z.shape[:-1], n * z.shape[-1])} if name in ("max_unpool", "sum_unpool") else {}
            return self.unfold(build_node(be, op, [self.fold(x) for x in operands], attrs), z.shape)
        if name in CONVOLUTIONS:
            return self.convolution(op, z, attrs)
        return self.estimator(op, z) if is_composite(op) else self.one_by_one(op, z)

    # --- operands ---

    def all_samples(self, x: Any) -> Any:
        """Return the operand of all samples; one that they share is repeated."""
        if id(x) in self.known:
            return self.known[id(x)]
        if not isinstance(x, Operand):
            return x
        return self.be.broadcast_to(self.be.reshape(x, (1, *x.shape)), (self.count, *x.shape))

    def known_operands(self, operands: Sequence[Any]) -> list[Any]:
        """Return the operands, those of all samples where they differ."""
        return [self.known.get(id(x), x) for x in operands]

    def aligned(self, operands: Sequence[Any], ndim: int = 0) -> list[Any]:
        """Return the operands with axes of size 1 after that of the samples, so that they broadcast as before."""
        ndim = max([ndim, *[len(x.shape) for x in operands if isinstance(x, Operand)]])
        return [
            self.reshape(self.known[id(x)], (1,) * (ndim - len(x.shape)) + x.shape) if id(x) in self.known else x
            for x in operands
        ]

    def complete(self, operands: Sequence[Any]) -> list[Any]:
        """Return the operands of all samples, with equal numbers of axes."""
        ndim = max(len(x.shape) for x in operands if isinstance(x, Operand))
        every = map(self.all_samples, operands)
        pairs = zip(every, operands, strict=True)
        return [
            self.reshape(y, (1,) * (ndim - len(x.shape)) + x.shape) if isinstance(x, Operand) else y for y, x in pairs
        ]

    def reshape(self, x: Operand, shape: Sequence[int]) -> Operand:
        """Return an operand of all samples in another shape of each."""
        to = (self.count, *shape)
        return x if x.shape == to else self.be.reshape(x, to)

    # --- ops ---

    def product(self, x: Any, y: Any) -> Operand:
        """Return the matrix products of all samples: one product if they share the right matrix."""
        be, n = self.be, self.count
        if id(y) not in self.known and len(x.shape) == len(y.shape) == 2:
            rows, inner = x.shape
            product = be.dot(be.reshape(self.known[id(x)], (n * rows, inner)), y)
            return self.reshape(product, (rows, y.shape[1]))
        if y.shape[-2] == 1:  # outer products
            return be.multiply(*self.aligned((x, y)))
        return be.matmul(*[a if len(a.shape) > 2 else be.reshape(a, (1, *a.shape)) for a in self.aligned((x, y))])

    def fold(self, x: Any) -> Operand:
        """Return images (C, H, W, N) of all samples as images (C, H, W, samples N)."""
        every = self.all_samples(x)
        axes = (*range(1, len(every.shape) - 1), 0, len(every.shape) - 1)
        return self.be.reshape(self.be.transpose(every, axes), (*x.shape[:-1], self.count * x.shape[-1]))

    def unfold(self, x: Operand, shape: Sequence[int]) -> Operand:
        """Return images (C, H, W, samples N) with the samples first."""
        split = self.be.reshape(x, (*shape[:-1], self.count, shape[-1]))
        return self.be.transpose(split, (len(shape) - 1, *range(len(shape) - 1), len(shape)))

    def convolution(self, op: Any, z: Any, attrs: dict[str, Any]) -> Operand:
        """Return a convolution, or a gradient of one: more images, or for filters of each sample, more groups."""
        be, n, shape = self.be, self.count, z.shape
        x, y = z.operands
        if op.name != "conv_update" and id(y) not in self.known:
            attrs |= {"to": (*shape[:-1], n * shape[-1])} if "to" in attrs else {}
            return self.unfold(build_node(be, op, [self.fold(x), y], attrs), shape)
        attrs["groups"] *= n
        stacked = be.reshape(self.all_samples(x), (n * x.shape[0], *x.shape[1:]))
        if op.name == "conv_update":
            errors = be.reshape(self.all_samples(y), (n * y.shape[0], *y.shape[1:]))
            return self.unfold(
                build_node(be, op, [stacked, errors], attrs | {"to": (*shape[:-1], n * shape[-1])}), shape
            )
        attrs |= {"to": (n * shape[0], *shape[1:])} if "to" in attrs else {}
        return be.reshape(build_node(be, op, [stacked, self.fold(y)], attrs), (n, *shape))

    def estimator(self, op: Any, z: Any) -> Operand:
        """Return a composite op whose gradient rule is not the derivative of its formula: both are batched."""
        be, n = self.be, self.count
        operands = [x for x in z.operands if isinstance(x, Operand)]
        places = [Variable(be.tensor_info(x.shape, x.info.dtype), "x") for x in operands]
        error = Variable(be.tensor_info(z.shape, z.info.dtype), "error")
        values = iter(places)
        one = build_node(be, op, [next(values) if isinstance(x, Operand) else x for x in z.operands], z.info.attrs)
        grads = op.grad(be, error, one, *one.operands, **z.info.attrs)
        every = [Variable(be.tensor_info((n, *x.shape), x.info.dtype), "x") for x in (*operands, z)]
        samples = {id(x): y for x, y in zip((*places, error), every, strict=True)}
        value, *rest = batch(be, [one.opened, *[g for g in grads if g is not None]], samples, n)
        found = iter(rest)
        batched = [None if g is None else next(found) for g in grads]
        node = node_of_call(op.name, as_tree(value), every[:-1], every[-1], batched, False)
        return substitute([node], {id(x): self.all_samples(y) for x, y in zip(every, operands, strict=False)})[0]

    def one_by_one(self, op: Any, z: Any) -> Operand:
        """Return the results of an op without a rule, sample by sample, one after another."""
        be, parts = self.be, []
        for i in range(self.count):
            operands = list(z.operands)
            for k, x in enumerate(operands):
                if id(x) in self.known:
                    every = self.known[id(x)]
                    index = ((i, 1, 1), *((0, size, 1) for size in x.shape))
                    operands[k] = be.reshape(be.build("slice", every, index=index), x.shape)
            parts.append(be.reshape(build_node(be, op, operands, dict(z.info.attrs)), (1, *z.shape)))
        return parts[0] if len(parts) == 1 else be.concat(parts, axis=0)
