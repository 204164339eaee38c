"""Op-trees: immutable expression graphs over tensors, with shape and dtype inference when a node is built.

An ``OpTreeNode`` is the triple (op, left, right). The op is a dict such as ``{'shape': (2, 2), 'op': 'add'}``, whose
name, ``node.op``, is that of a row of the op table, an ``Op``. The operands are tensors, scalars or other nodes. Ops of
more than two operands, and assignments to several targets, nest ``pair`` nodes. The triple is immutable; caches are
attached to it. Building a node computes only its shape and dtype, and checks them, so an error is raised at the line
that caused it.

The op dict is an ``Info``: one shared object per tree structure, which is the key of the plan cache. Building ``x + y``
looks up (op, Info of x, Info of y) in a table of the backend; only the first node of a structure infers its shape and
dtype. Each node also holds its *leaves*, the distinct tensors and scalars below it in order of appearance. Two trees
with the same Info have the same structure and the same pattern of leaves, so they share a plan, and the leaves are its
arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar, overload

from neonlite import numpy_methods
from neonlite.messages import describe
from neonlite.numpy_methods import ArrayMethods
from neonlite.ops import OP_TABLE, OPS, Op
from neonlite.tree_inference import (
    NO_LEAVES,
    SEQUENCES,
    as_leaf,
    backend_of,
    composite_info,
    evaluate_formula,
    infer_info,
    not_an_operand,
    unchecked_info,
    unknown_op,
)
from neonlite.tree_structure import (
    STATIC_INTS,
    Attrs,
    Info,
    Leaves,
    Triple,
    flatten_pairs,
    matrix_transpose_axes,
    postorder as postorder,
    untraced,
)
from neonlite.typing import AxisLike, BackendBase, DTypeLike, NumPyArray, OperandLike, ShapeLike, Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

    from neonlite.visualize import Derivation, Steps

# a node with more leaves does not store them, which bounds memory: a sum of n tensors has about n^2 / 2 entries. Its
# tree is traversed and planned each time it runs, which takes 23 times as long at 136 leaves
MAX_TRACKED_LEAVES = 128
INDICES = [tuple(range(n)) for n in range(MAX_TRACKED_LEAVES + 1)]

Operator = Callable[[Any, OperandLike], "OpTreeNode"]
Target = TypeVar("Target", bound="Operand")
_new: Callable[..., Any] = object.__new__


# --- building ------------------------------------------------------------------------------------------------------


def new_node(op: Op, a: Any, b: Any = None, attrs: Attrs = (), be: Any = None) -> OpTreeNode:
    """Return the node of an op and of one or two operands, which are tensors, nodes or numbers.

    Operators and methods call ``create_node``, which does the same faster, converts arrays, and gives composite ops,
    such as softmax, the op-tree of their formula.
    """
    node: OpTreeNode = _new(OpTreeNode)
    node.info = infer_info(op, a, b, attrs, be)
    node.left, node.right = a, b
    node.leaves = unite_leaves(leaves_of(a), leaves_of(b))
    return node


def leaves_of(x: Any) -> Leaves | None:
    """Return the distinct tensors and numbers in an operand, {id: leaf}; None if there are too many."""
    if isinstance(x, OpTreeNode):
        return x.leaves
    return NO_LEAVES if x is None or (type(x) is int and x in STATIC_INTS) else {id(x): x}


def unite_leaves(leaves_a: Leaves | None, leaves_b: Leaves | None) -> Leaves | None:
    """Return the leaves of two operands in order of appearance; None if there are too many."""
    if leaves_a is None or leaves_b is None:
        return None
    leaves = leaves_a | leaves_b
    return leaves if len(leaves) <= MAX_TRACKED_LEAVES else None


# --- operators of tensors and nodes ---------------------------------------------------------------------------------


def _binary_operator(name: str) -> tuple[Operator, Operator]:
    op = OPS[name]

    def method(self: Operand, other: OperandLike) -> Any:
        return NotImplemented if other is None else create_node(op, self, other)

    def reflected(self: Operand, other: OperandLike) -> Any:
        return create_node(op, other, self)

    return method, reflected


def _comparison(name: str) -> Operator:
    op = OPS[name]

    def method(self: Operand, other: OperandLike) -> Any:
        node = NotImplemented if other is None else create_node(op, self, other)
        if node is NotImplemented and isinstance(other, SEQUENCES):  # else Python compares identities for == and !=
            raise not_an_operand(op.method, other)
        return node

    return method


def _in_place(symbol: str, operator: Operator) -> Callable[[Target, OperandLike], Target]:
    def method(self: Target, other: OperandLike) -> Any:
        shape = getattr(other, "shape", ())
        if len(shape) == 1 and self.shape == (*shape, 1) and not hasattr(other, "operand"):  # an array beside a column
            other = self.backend.snapshot(other, self)
        value = operator(self, other)
        return NotImplemented if value is NotImplemented else self._update(symbol, value)

    return method


def _bitwise_operator(name: str) -> tuple[Operator, Operator]:
    bitwise, logical = OPS[f"bitwise_{name}"], OPS[f"logical_{name}"]

    def build_bitwise(x: Any, y: Any) -> Any:
        op = bitwise if _is_integer(x) and _is_integer(y) else logical
        return NotImplemented if y is None else create_node(op, x, y)

    def method(self: Operand, other: OperandLike) -> Any:
        return build_bitwise(self, other)

    def reflected(self: Operand, other: OperandLike) -> Any:
        return NotImplemented if other is None else build_bitwise(other, self)

    return method, reflected


def _is_integer(x: object) -> bool:
    return "int" in str(getattr(x, "dtype", type(x).__name__))


class Operand(ArrayMethods):
    """The base class of tensors and op-tree nodes: operators, each of which returns an op-tree.

    In-place operators such as ``x += y`` write to a tensor; an op-tree raises TypeError. ``&``, ``|``, ``^`` and ``~``
    are bitwise for integers, and logical for floats, the dtype of comparisons.
    """

    __slots__ = ()
    __array_ufunc__ = numpy_methods.ArrayUfunc()
    __array_function__ = numpy_methods.array_function
    __array_priority__ = 1000
    __hash__ = object.__hash__

    __add__, __radd__ = _binary_operator("add")
    __sub__, __rsub__ = _binary_operator("sub")
    __mul__, __rmul__ = _binary_operator("mul")
    __truediv__, __rtruediv__ = _binary_operator("div")
    __pow__, __rpow__ = _binary_operator("pow")
    __eq__: ClassVar[Operator] = _comparison("eq")  # type: ignore[assignment]
    __ne__: ClassVar[Operator] = _comparison("ne")  # type: ignore[assignment]
    __lt__ = _comparison("lt")
    __le__ = _comparison("le")
    __gt__ = _comparison("gt")
    __ge__ = _comparison("ge")

    def __neg__(self) -> OpTreeNode:
        return create_node(OPS["neg"], self)

    def __abs__(self) -> OpTreeNode:
        return create_node(OPS["abs"], self)

    def __matmul__(self, other: OperandLike) -> OpTreeNode:
        if other is None or hasattr(other, "operand"):  # an array of neonlite.array_api may be a vector
            return NotImplemented
        return create_node(OPS[_matmul_op_name(self, other)], self, other)

    def __rmatmul__(self, other: OperandLike) -> OpTreeNode:
        return create_node(OPS[_matmul_op_name(self, other)], other, self)

    # --- how it is made fast, and the rest ---

    __floordiv__, __rfloordiv__ = _binary_operator("floor_divide")
    __mod__, __rmod__ = _binary_operator("remainder")
    __lshift__, __rlshift__ = _binary_operator("bitwise_left_shift")
    __rshift__, __rrshift__ = _binary_operator("bitwise_right_shift")
    __and__, __rand__ = _bitwise_operator("and")
    __or__, __ror__ = _bitwise_operator("or")
    __xor__, __rxor__ = _bitwise_operator("xor")

    if TYPE_CHECKING:  # the types of the methods of ArrayMethods; ``out`` is a tensor

        @overload
        def _reduction(self, axis: AxisLike = ..., out: None = None, keepdims: bool = True) -> OpTreeNode: ...
        @overload
        def _reduction(self, axis: AxisLike = ..., *, out: Target, keepdims: bool = True) -> Target: ...
        @overload
        def _reduction(self, axis: AxisLike, out: Target, keepdims: bool = True) -> Target: ...
        def _reduction(self, axis: object = None, out: object = None, keepdims: bool = True) -> object: ...

        all = any = argmax = argmin = max = mean = min = prod = std = sum = var = _reduction

        @overload
        def transpose(self, *axes: int | Sequence[int] | None, out: None = None) -> Self: ...
        @overload
        def transpose(self, *axes: int | Sequence[int] | None, out: Target) -> Target: ...
        @overload
        def transpose(self, out: Target, /) -> Target: ...
        def transpose(self, *axes: object, out: object = None) -> object: ...
        @overload
        def clip(
            self, min: OperandLike | None = ..., max: OperandLike | None = ..., out: None = None
        ) -> OpTreeNode: ...
        @overload
        def clip(self, min: OperandLike | None = ..., max: OperandLike | None = ..., *, out: Target) -> Target: ...
        @overload
        def clip(self, min: OperandLike | None, max: OperandLike | None, out: Target) -> Target: ...
        def clip(self, min: object = None, max: object = None, out: object = None) -> object: ...
        @overload
        def round(self, decimals: int = 0, out: None = None) -> OpTreeNode: ...
        @overload
        def round(self, decimals: int = 0, *, out: Target) -> Target: ...
        @overload
        def round(self, decimals: int, out: Target) -> Target: ...
        def round(self, decimals: int = 0, out: object = None) -> object: ...
        def __round__(self, ndigits: int | None = None) -> OpTreeNode: ...
        def astype(self, dtype: DTypeLike) -> Operand: ...
        def ravel(self) -> Operand: ...
        def flatten(self) -> Operand: ...

    def __invert__(self) -> OpTreeNode:
        return create_node(OPS["bitwise_invert" if _is_integer(self) else "logical_not"], self)

    def __divmod__(self, other: OperandLike) -> tuple[OpTreeNode, OpTreeNode]:
        return self // other, self % other

    def __rdivmod__(self, other: OperandLike) -> tuple[OpTreeNode, OpTreeNode]:
        return other // self, other % self

    __iadd__, __isub__ = _in_place("+=", __add__), _in_place("-=", __sub__)
    __imul__, __itruediv__ = _in_place("*=", __mul__), _in_place("/=", __truediv__)
    __ipow__, __imatmul__ = _in_place("**=", __pow__), _in_place("@=", __matmul__)
    __ifloordiv__, __imod__ = _in_place("//=", __floordiv__), _in_place("%=", __mod__)
    __iand__, __ior__, __ixor__ = _in_place("&=", __and__), _in_place("|=", __or__), _in_place("^=", __xor__)
    __ilshift__, __irshift__ = _in_place("<<=", __lshift__), _in_place(">>=", __rshift__)

    def astensor(self) -> Tensor:
        """Evaluate the tree, or copy the tensor.

        Returns
        -------
        Tensor
            The value in a new tensor.
        """
        return self.info.be.evaluate([self])[0]

    def _update(self, symbol: str, value: OpTreeNode) -> Operand:
        """Write the result of an in-place operator; return the object that ``x += y`` assigns to ``x``."""
        raise NotImplementedError


def _matmul_op_name(x: Operand, y: OperandLike) -> str:
    return "dot" if len(x.shape) == len(getattr(y, "shape", ())) == 2 else "matmul"


# --- the node ------------------------------------------------------------------------------------------------------


class OpTreeNode(Operand, Triple):  # type: ignore[override]  # Triple.shape is a descriptor
    """A node of an op-tree: the immutable triple (op, left, right).

    Operators, backend methods and ``OpTreeNode.build`` create nodes with shape inference and checks. The constructor
    does neither.

    As in neon, ``op, left, right = tree``: ``len(tree)`` is 3, ``tree[0]`` is the op dict, and ``tree[1]`` and
    ``tree[2]`` are the operands. To slice the value, evaluate it: ``tree.astensor()[0]``.

    Parameters
    ----------
    op : dict
        The op dict: the name as ``"op"``, the shape as ``"shape"``, and the attributes.
    a : Tensor, OpTreeNode or scalar, optional
        The left operand.
    b : Tensor, OpTreeNode or scalar, optional
        The right operand; None for an op with one operand.
    """

    def __new__(cls, op: dict[str, Any], a: object = None, b: object = None) -> OpTreeNode:
        """Return the triple, with the shape in ``op`` unchecked."""
        node: OpTreeNode = _new(cls)
        node.info, node.left, node.right, node.leaves = unchecked_info(op, a, b), a, b, None
        return node

    __slots__ = ()

    @classmethod
    def build(
        cls,
        /,
        op: str,
        a: OperandLike,
        b: OperandLike | None = None,
        out: Tensor | None = None,
        **attrs: object,
    ) -> Operand:
        """Return a node with shape inference and checks.

        Parameters
        ----------
        op : str
            The name of the op. "assign" runs at once.
        a, b, out, **attrs
            As for ``be.build``; ``axis`` has the default of the backend's method.

        Returns
        -------
        OpTreeNode or Tensor
            The node; or ``out``.
        """
        if op not in OPS:
            raise unknown_op("OpTreeNode.build", op)
        be = backend_of(a, b)
        if op == "assign":
            node = cls({"shape": cls.shape(a), "op": op}, a, b)  # type: ignore[arg-type]  # the function of ShapeDescriptor
            be.execute(node)
            return node
        if OPS[op].has_axis:  # its method has a default
            method: Callable[..., Operand] = getattr(be, OPS[op].method)
            return method(a, out=out, **attrs)
        return be.build(op, a, b, out, **attrs)

    if TYPE_CHECKING:  # of an op-tree, the result is an op-tree

        def astype(self, dtype: DTypeLike) -> OpTreeNode: ...
        def ravel(self) -> OpTreeNode: ...
        def flatten(self) -> OpTreeNode: ...

    @property
    def opened(self) -> OpTreeNode:
        """The op-tree of the formula of a composite op."""
        if not hasattr(self, "_opened"):
            op: Any = self.info.op_def
            with untraced():  # the operands, and not what has been assigned to them since
                opened = evaluate_formula(op, self.operands, tuple(self.info.attrs.items()), self.info.be)
            self._opened = share_numbers(opened, self.leaves)
        result: OpTreeNode = self._opened
        return result

    @property
    def name(self) -> None:  # type: ignore[override]
        """None: nodes have no name."""
        return None

    def reshape(self, *shape: ShapeLike) -> OpTreeNode:
        """Return ``be.reshape(tree, *shape)``.

        Parameters
        ----------
        *shape : int, or one tuple of int
            The new shape; one size may be -1, which is inferred.

        Returns
        -------
        OpTreeNode
            The tree in another shape.
        """
        return self.backend.reshape(self, *shape)

    def _permute(self, axes: tuple[int, ...]) -> OpTreeNode:
        return self.backend.transpose(self, axes)

    @property
    def T(self) -> OpTreeNode:
        """The tree with its last two axes swapped."""
        return create_node(OPS["transpose"], self, None, (("axes", matrix_transpose_axes(self.ndim)),))

    def __bool__(self) -> bool:
        if math.prod(self.shape) == 1:
            return bool(self.item())
        raise TypeError(
            f"the truth value of {describe(self)} is ambiguous. Reduce it to one element: be.min(tree) for all, "
            "be.max(tree) for any; or evaluate it first: out[:] = tree."
        )

    def _update(self, symbol: str, value: object) -> NoReturn:
        raise TypeError(
            f"{describe(self)} {symbol} ...: expected a tensor on the left, as an op-tree has no memory to write to. "
            f"Write tree = tree {symbol[:-1]} ..., or evaluate it into a tensor: out[:] = tree"
        )

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> NumPyArray:
        return self.astensor().__array__(dtype, copy)

    def __dlpack__(self, **options: object) -> object:
        return self.astensor().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.backend.empty((1, 1)).__dlpack_device__()

    @staticmethod
    def _rebuild(op: dict[str, Any], a: Any, b: Any = None, be: BackendBase | None = None) -> Any:
        """Return a new node with an op dict's op and attributes and other operands, with shape inference and checks."""
        if op["op"] == "assign":
            return OpTreeNode(dict(op), a, b)
        attrs = tuple((k, v) for k, v in op.items() if k not in ("op", "shape"))
        # a custom op that was defined again stays the old one, of which the op dict of a node is
        op_def = op.op_def if isinstance(op, Info) else OPS[op["op"]]
        return create_node(op_def, a, b, attrs, be or getattr(op, "be", None))  # type: ignore[arg-type]

    # --- evaluation ---

    def execute(self) -> Tensor:
        """Run a tree whose root is 'assign'.

        Returns
        -------
        Tensor
            The tensor written.
        """
        return self.backend.execute(self)

    def get(self) -> NumPyArray:
        return self.astensor().get()

    # --- display ---

    def __repr__(self) -> str:
        """Return nested triples, as in neon."""
        from neonlite import visualize  # when first used, as it is large

        return visualize.format_triple(self)

    def pp(self) -> str:
        """Return the tree in infix notation.

        Returns
        -------
        str
            A formula such as ``((1) / ((1) + (exp ((-1) * x))))``.
        """
        from neonlite import visualize

        return visualize.format_infix(self)

    def draw(self, format: str = "text", max_nodes: int | None = 40) -> str:
        """Return a drawing of the tree, with its result on top.

        A node or tensor that is used twice is drawn once. In a tree of more than ``max_nodes`` nodes, those nearest to
        the result are drawn, and each sub-tree below them is folded into one box: its formula if that is short, else
        its first op and its number of ops.

        Parameters
        ----------
        format : {"text", "mermaid", "dot", "svg"}, default "text"
            Indented text, a Mermaid flowchart, a Graphviz digraph, or an SVG picture.
        max_nodes : int, optional
            The largest number of ops, tensors and scalars to draw; None: all. Default: 40.

        Returns
        -------
        str
            The drawing.

        Raises
        ------
        ValueError
            The format is not one of these, or ``max_nodes`` is not positive.
        TypeError
            ``max_nodes`` is not an integer.
        """
        from neonlite import visualize

        return visualize.draw(self, format, max_nodes)

    def step(self) -> Steps:
        """Evaluate the tree node by node.

        Returns
        -------
        Steps
            An iterable of (node, value) that prints as a table of all intermediate values.
        """
        from neonlite import visualize

        return visualize.Steps(self)

    def derivation(self, *tensors: Tensor) -> Derivation:
        """Return the chain rule of the tree, step by step: its values, and its gradients by the rules of the ops.

        It prints as text, and in notebooks as LaTeX.

        Parameters
        ----------
        *tensors : Tensor
            The tensors to differentiate with respect to; all float tensors of the tree by default.

        Returns
        -------
        Derivation
            The steps.

        Raises
        ------
        ValueError
            A tensor is not in the tree.
        TypeError
            The tree is one of integers, or it is differentiated with respect to something else than a tensor.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> x, w = be.ones((1, 3), name="x"), be.ones((3, 1), name="w")
        >>> be.tanh(x @ w).derivation(w)
        E of x (1, 3), w (3, 1):
        v1  = x @ w                 (1, 1)
        E   = tanh v1               (1, 1)
        gradients, dx for dE/dx, with the rules of the ops z = op(x, y):
        dE  = 1
        dv1 = dE * ((1) - (E * E))  tanh: dx = dz * ((1) - (z * z))
        dw  = x.T @ dv1             dot: dy = x.T @ dz
        """
        return self.backend.derivation(self, *tensors)

    def _repr_svg_(self) -> str:
        """Return the drawing that notebooks display."""
        return self.draw("svg")


# --- building by a table of structures -----------------------------------------------------------------------------


def create_node(op: Op, a: Any, b: Any = None, attrs: Attrs = (), be: Any = None) -> OpTreeNode:
    """Return ``new_node(op, a, b, attrs, be)``, or NotImplemented for an operand of another type, also of arrays.

    The node of a known structure gets the Info of that structure. The key of the structure consists of the op, a key of
    each operand, which leaves both share, as ``x + y`` has another plan than ``x + x``, and the attributes. This runs
    for every node of every tree, so the usual operands, nodes and small integers, are handled here, and the limits of
    STATIC_INTS are literals.
    """
    kind, given = type(a), a
    if kind is OpTreeNode:
        key_a, leaves_a = a.info, a.leaves
    elif kind is int and -9 < a < 9:
        key_a, leaves_a = a, NO_LEAVES
    else:
        key_a, leaves_a, a = as_leaf(a, b, be, op, True)
    kind = type(b)
    if b is None:
        key_b, leaves_b = None, NO_LEAVES
    elif kind is OpTreeNode:
        key_b, leaves_b = b.info, b.leaves
    elif kind is int and -9 < b < 9:
        key_b, leaves_b = b, NO_LEAVES
    else:
        key_b, leaves_b, b = as_leaf(b, a, be, op if a is given else None)  # beside an array, an array is a column

    shared: tuple[int, ...] = ()  # if operands share leaves: the index of each leaf of b among those of the node
    if leaves_b is NO_LEAVES:
        leaves = leaves_a
    elif leaves_a is NO_LEAVES:
        leaves = leaves_b
    elif leaves_a is leaves_b:
        leaves = leaves_a
        shared = () if leaves is None else INDICES[len(leaves)]
    else:
        leaves = unite_leaves(leaves_a, leaves_b)
        if leaves is not None and len(leaves) < len(leaves_a) + len(leaves_b):
            index = {key: i for i, key in enumerate(leaves)}
            shared = tuple([index[key] for key in leaves_b])

    key = (op, key_a, key_b, shared, attrs)
    info = None
    if leaves is not None:
        info = (key_a.find if type(key_a) is Info else key_b.find if type(key_b) is Info else be.structures.get)(key)
    if info is None:
        if key_a is NotImplemented or key_b is NotImplemented:
            return NotImplemented
        if op.kind == "composite":
            return create_composite(op, a, b, attrs, be, key, leaves)
        node = new_node(op, a, b, attrs, be)
        if leaves is not None:
            node.info = node.info.be.structures.add(key, node.info)
        return node
    node = _new(OpTreeNode)
    node.info, node.left, node.right, node.leaves = info, a, b, leaves
    return node


def create_composite(
    op: Op, a: Any, b: Any, attrs: Attrs, be: Any, key: tuple[Any, ...], leaves: Leaves | None
) -> OpTreeNode:
    """Return the node of a composite op. Its leaves are those of its operands, and those of its formula.

    For a known structure, the formula is evaluated when it is needed, if it is one of the table and adds nothing but
    numbers, and if none of these is one of the operands, as both would be one leaf. An op of a library may
    be the node instead.
    """
    if op.fuse is not None:
        fused: OpTreeNode | None = op.fuse(be or backend_of(a, b), *flatten_pairs(a, b), **dict(attrs))
        if fused is not None:
            return fused
    node: OpTreeNode = _new(OpTreeNode)
    node.left, node.right = a, b
    structures = (be or backend_of(a, b)).structures
    numbers = [x for x in (leaves or NO_LEAVES).values() if is_number(x)]
    known = None if leaves is None else structures.get((op, key))
    if known is not None and known[1].isdisjoint(numbers):
        node.info, node.leaves = known[0], leaves | known[2]
        return node
    node._opened = opened = evaluate_formula(op, (a, b), attrs, be)
    node.info, node.leaves = composite_info(op, opened.info, attrs, b), unite_leaves(leaves, opened.leaves)
    if leaves is not None and node.leaves is not None and opened.leaves is not None:
        index = {leaf_id: i for i, leaf_id in enumerate(node.leaves)}
        used = tuple([index[leaf_id] for leaf_id in opened.leaves])
        node.info = structures.add((*key, opened.info, used), node.info)
        if op in OP_TABLE and known is None:
            marks = {id(x): type(x)(2**60 + i) for i, x in enumerate(numbers)}  # other numbers, which no formula has
            operands = replace_leaves(a, marks), replace_leaves(b, marks)
            marked = evaluate_formula(op, operands, attrs, be) if marks else opened
            others = {*leaves, *map(id, marks.values())} - marks.keys()
            added = {leaf_id: x for leaf_id, x in (marked.leaves or {}).items() if leaf_id not in others}
            is_known = marked.leaves is not None  # it has other leaves than the formula, maybe one too many
            if is_known and all(map(is_number, added.values())) and not {*added.values()} & {*numbers}:
                structures.add((op, key), (node.info, frozenset(added.values()), added))
    return node


def is_number(x: object) -> bool:
    """Return whether a leaf is a Python number."""
    return isinstance(x, int | float)


def share_numbers(tree: OpTreeNode, leaves: Leaves | None) -> OpTreeNode:
    """Return a tree over the numbers among the leaves instead of equal ones, which may be other objects."""
    if leaves is None or tree.leaves is None or tree.leaves.keys() <= leaves.keys():
        return tree
    numbers = {repr(x): x for x in leaves.values() if is_number(x)}
    others = {key: x for key, x in tree.leaves.items() if key not in leaves}
    return replace_leaves(tree, {key: numbers.get(repr(x), x) for key, x in others.items()})


def replace_leaves(tree: Any, new: Leaves) -> Any:
    """Return a tree of the same structure over other leaves, {id of a leaf: the new one}."""
    if not isinstance(tree, OpTreeNode):
        return tree
    built = dict(new)
    for node in postorder(tree):
        built[id(node)] = node
        if not new.keys().isdisjoint(node.leaves):
            built[id(node)] = copied = _new(OpTreeNode)
            copied.info, copied.left, copied.right = node.info, *(built.get(id(x), x) for x in (node.left, node.right))
            copied.leaves = {id(y): y for y in (new.get(key, x) for key, x in node.leaves.items())}
    return built[id(tree)]


def copy_node(z: OpTreeNode) -> OpTreeNode:
    """Return another node of the same op and operands, and of the same formula."""
    node: OpTreeNode = _new(OpTreeNode)
    node.info, node.left, node.right, node.leaves = z.info, z.left, z.right, z.leaves
    if hasattr(z, "_opened"):  # with the same random numbers
        node._opened = z._opened
    return node
