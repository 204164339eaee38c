"""Expressions of the variables of a function: other operands in their place, and all samples at once instead of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neonlite.autodiff import build_node
from neonlite.backend.tensor import Tensor
from neonlite.ops import Op
from neonlite.optree import Operand, OpTreeNode
from neonlite.programs import Argument
from neonlite.tree_structure import Info, is_composite, postorder, untraced

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
                f"{self.name}, which is one of many samples. Use where(condition, x, y) instead of if."
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


def as_tree(x: Operand) -> OpTreeNode:
    """Return an operand as an op-tree."""
    return x if isinstance(x, OpTreeNode) else x * 1


def tensors_of(*trees: Any) -> list[Tensor]:
    """Return the distinct tensors of op-trees."""
    operands = [*trees, *[x for z in postorder(*trees) for x in (z.left, z.right)]]
    return list({id(x): x for x in operands if isinstance(x, Tensor)}.values())


def substitute(trees: Sequence[Any], values: Values) -> list[Any]:
    """Return op-trees with other operands in the place of some tensors; equal parts remain shared."""
    built = dict(values)
    with untraced():  # the operands, and not what has been assigned to them since
        for node in postorder(*trees):
            a, b = built.get(id(node.left), node.left), built.get(id(node.right), node.right)
            is_same = a is node.left and b is node.right
            built[id(node)] = node if is_same else node._rebuild(node.info, a, b)
    return [built.get(id(tree), tree) for tree in trees]


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
    found = {id(x): x for x in tensors_of(tree, *grads)}
    operands = [*variables, *[x for key, x in found.items() if x is not error and all(x is not y for y in variables)]]
    # without the memory of tensors, which the cache of structures would keep
    places = [Variable(x.info, x.name or name) for x in operands]
    body, *rest = substitute([tree, *grads], {id(x): y for x, y in zip(operands, places, strict=True)})

    def fill(trees: Sequence[Any], values: Sequence[Any], dz: Any = None) -> list[Any]:
        return substitute(trees, {id(x): y for x, y in zip(places, values, strict=True)} | {id(error): dz})

    def gradient_rule(be: Any, dz: Operand, z: OpTreeNode, *values: Any) -> tuple[Operand | None, ...]:
        if recomputes:
            values = (be.build("after", values[0], dz), *values[1:])
        return (*fill(rest, values, dz), *[None] * (len(values) - len(rest)))

    def formula(be: Any, *values: Any) -> Operand:
        return as_tree(fill([body], values)[0])

    op = Op(name, grad=gradient_rule, doc=f"the function {name}", arity=-1, kind="composite", formula=formula,
            promoted_operands=slice(0), is_estimator=not recomputes)  # fmt: skip
    return build_node(be, op, operands, {})


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
