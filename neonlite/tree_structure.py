"""The structure of op-trees: Info, which nodes of equal structure share; the triple; and walks over trees."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from threading import get_ident
from typing import Any, Literal, NamedTuple, NoReturn, Self, TypeAlias, TypeVar, overload

from neonlite.ops import OPS, Op
from neonlite.ops.functions import Axes, Shape
from neonlite.typing import BackendBase, NativeArray, OperandLike

Attrs = tuple[tuple[str, Any], ...]
Leaves = dict[int, Any]
Tree = TypeVar("Tree")

STATIC_INTS = range(-8, 9)  # integers that are part of the structure; other scalars are arguments of the plan
MAX_STRUCTURE_BYTES = 8_000_000  # of a backend's cache of structures
STRUCTURE_BYTES = 600  # measured size of a structure and its key, without the indices of shared leaves
SHARED_LEAF_BYTES = 8  # of each index


traces: dict[int, Any] = {}  # {thread: the ``Trace`` of the function of ``nl.jit`` that it traces}
transforms: dict[int, int] = {}  # {thread: the number of functions that it transforms, one inside the other}


def is_inside() -> bool:
    """Return whether this thread traces or transforms a function."""
    return (thread := get_ident()) in traces or thread in transforms


def refuse_in_trace(what: str, way_out: str) -> None:
    """Raise TypeError if this thread traces a function, as what runs at once would not be a part of its program."""
    if traces and (trace := traces.get(get_ident())) is not None:
        trace.refuse(what, way_out)


def use_in_trace(x: object) -> None:
    """Note that the function that this thread traces reads the attributes of an object."""
    if traces and (trace := traces.get(get_ident())) is not None:
        trace.uses.append(x)


def note_activation(layer: object, x: object) -> None:
    """Note the inputs of an activation in the function that this thread traces."""
    if traces and (trace := traces.get(get_ident())) is not None:
        trace.activation_inputs[layer] = x


def activation_inputs(layer: object) -> Any:
    """Return the inputs of an activation in the function that this thread traces."""
    return traces[get_ident()].activation_inputs[layer]


@contextmanager
def untraced() -> Iterator[Any]:
    """Evaluate at once what is assigned, also while this thread traces a function, and read tensors themselves."""
    trace = traces.pop(get_ident(), None)
    try:
        yield trace
    finally:
        if trace is not None:
            traces[get_ident()] = trace


class Info(dict[str, Any]):
    """The op dict of a node, shared by all nodes of the same structure, with attributes for planning.

    Tensors have an Info as well, so ``x.info.shape``, ``x.info.dtype`` and ``x.info.be`` work for every operand.
    """

    __slots__ = ("attrs", "be", "compute_dtype", "dtype", "find", "num_children", "op_def", "operand_types", "shape")
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> Info:
        """Return the Info itself: there is one object per structure."""
        return self

    op_def: Op | None
    attrs: dict[str, Any]
    shape: Shape
    dtype: str
    compute_dtype: str  # the dtype to which the operands are cast before the op runs
    be: BackendBase
    operand_types: tuple[Any, ...]  # of a pair: the Info of each tensor, node or pair in it, the type of each scalar
    num_children: int  # 0 for a tensor, 1 or 2 for a node
    find: Callable[[Any], Any]  # looks up a structure in the table of the backend

    def _raise_immutable(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("an op-tree is immutable. Build a new one, for example with tree.replace(old, new).")

    __setitem__ = __delitem__ = update = pop = clear = setdefault = popitem = _raise_immutable
    __ior__ = _raise_immutable

    def _raise_item(self, *_: object) -> NoReturn:
        raise TypeError(
            "the op of an op-tree: expected a number, got a dict. As in neon, an op-tree has the items of the triple "
            "(op, left, right). Evaluate it for its elements: tree.get(); or reduce it: be.sum(tree), be.max(tree)"
        )

    # what sum(tree), max(tree), any(tree), sorted(tree), math.fsum(tree) and the like call
    __bool__ = __float__ = __lt__ = __le__ = __gt__ = __ge__ = _raise_item
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _raise_item


def info_of(x: object) -> Info | None:
    """Return the Info of a tensor or node, and None for any other object."""
    info = getattr(x, "info", None)
    return info if type(info) is Info else None


def structure_bytes(key: Any, info: Info) -> int:
    """Return the bytes that a structure takes in the cache of its backend."""
    return STRUCTURE_BYTES + sum(SHARED_LEAF_BYTES * len(shared) for shared in key[3:4] if type(shared) is tuple)


class Constant(NamedTuple):
    """A static integer, which is part of the structure."""

    value: int


class Below(int):
    """An integer below the range of the other operand's dtype. Its type is part of the tree's structure."""


class Above(int):
    """An integer above the range of the other operand's dtype. Its type is part of the tree's structure."""


class RandomSource:
    """The operand of a random node, such as ``rand``. Each node has its own, so two nodes are independent samples.

    It draws from the given streams, by default those that the backend has when the node is evaluated.
    """

    __slots__ = ("_streams", "be", "number")
    _numbers = count()

    def __init__(self, be: BackendBase, streams: Any = None) -> None:
        self.be, self._streams = be, streams
        self.number = next(self._numbers)  # in the order of creation

    @property
    def streams(self) -> Any:
        """The streams to draw from."""
        return self._streams or self.be.streams

    def __repr__(self) -> str:
        return f"random-{id(self):#x}"

    def uniform(self, shape: Shape) -> NativeArray:
        """Draw uniform numbers in [0, 1)."""
        return self.streams.uniform("noise", shape, self.be.default_dtype_name)

    def normal(self, shape: Shape) -> NativeArray:
        """Draw standard normal numbers."""
        return self.streams.normal("noise", shape, self.be.default_dtype_name)

    def mask(self, shape: Shape, keep: float) -> NativeArray:
        """Draw ones with the probability ``keep``, and zeros."""
        return self.streams.new_mask("masks", shape, keep, self.be.default_dtype_name)

    def words(self, shape: Shape) -> NativeArray:
        """Draw words of 64 bits, as signed integers."""
        return self.streams.words("noise", shape, "int64")


PostfixItem: TypeAlias = "OperandLike | dict[str, Any]"  # an operand, or the op dict of a node
NestedList: TypeAlias = "list[PostfixItem | NestedList]"  # [op, left, right]


class ShapeDescriptor:
    """``node.shape`` is the node's shape; ``OpTreeNode.shape(x)`` returns the shape of any operand, as in neon."""

    @overload
    def __get__(self, node: None, owner: type) -> Callable[[object], Shape]: ...
    @overload
    def __get__(self, node: Triple, owner: type) -> Shape: ...
    def __get__(self, node: Triple | None, owner: type) -> Shape | Callable[[object], Shape]:
        return self.shape_of if node is None else node.info.shape

    def __set__(self, node: Triple, shape: object) -> NoReturn:
        raise AttributeError(f"tree.shape = {shape!r}: expected no assignment, as a shape is fixed. Use tree.reshape.")

    @staticmethod
    def shape_of(x: Any) -> Shape:
        """Return the shape of a tensor or node; (1, 1) for a scalar."""
        return (1, 1) if info_of(x) is None else x.shape


class Triple:
    """The immutable triple (op, left, right), and what is derived from it by walks over the tree without recursion.

    It has the length, the items and the iteration of a tuple, as in neon, but is none: functions such as ``"%.3f" %
    tree`` and ``isinstance(x, list | tuple)`` of other libraries would read a tuple as several values.
    """

    __slots__ = ("__weakref__", "_autodiff", "_large_plan", "_opened", "_value", "info", "leaves", "left", "right")

    info: Info  # the op dict with the attributes for planning
    left: Any
    right: Any
    leaves: Leaves | None  # None for more than MAX_TRACKED_LEAVES
    _opened: Any  # of a composite op: the op-tree of its formula, once it is needed
    _autodiff: Any  # the ``GradientCache`` of the last ``Autodiff``
    _value: Any  # the tensor of an array that this constant was evaluated to
    _large_plan: Any  # (key, plan) of a plan that is too large for the cache of the backend
    shape = ShapeDescriptor()

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[PostfixItem]:
        return iter((self.info, self.left, self.right))

    @overload
    def __getitem__(self, index: Literal[0]) -> Info: ...
    @overload
    def __getitem__(self, index: Literal[1, 2]) -> OperandLike: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[PostfixItem, ...]: ...
    @overload
    def __getitem__(self, index: int) -> PostfixItem: ...
    def __getitem__(self, index: int | slice) -> object:
        try:
            return (self.info, self.left, self.right)[index]
        except (IndexError, TypeError) as error:
            raise type(error)(
                "tree[...]: expected 0, 1 or 2, an index of the triple (op, left, right). To select elements of the "
                "value, evaluate it: tree.astensor()[...]"
            ) from None

    @property
    def op(self) -> str:
        """The name of the op."""
        return self.info["op"]

    @property
    def attrs(self) -> dict[str, Any]:
        """The op's attributes, such as the axis of a reduction."""
        return dict(self.info.attrs)

    @property
    def operands(self) -> tuple[OperandLike, ...]:
        """The operands, with pairs replaced by their operands."""
        return flatten_pairs(self.left, self.right)

    def __contains__(self, x: object) -> bool:  # by identity, as == builds an op-tree
        return any(x is y for y in self)

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise TypeError(
            "tree[...] = value: expected a tensor, as an op-tree has no memory to write to. Evaluate it: out[:] = tree"
        )

    def __copy__(self) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "pickle: expected a tensor or an array, got an op-tree, which is computed from tensors of a backend. "
            "Pickle its value: tree.astensor() or tree.get()"
        )

    @property
    def opened(self) -> Self:
        """The op-tree of the formula of a composite op."""
        raise NotImplementedError

    @staticmethod
    def _rebuild(op: dict[str, Any], a: Any, b: Any = None, be: BackendBase | None = None) -> Any:
        """Return a new node with an op dict's op and attributes and other operands, with shape inference and checks."""
        raise NotImplementedError

    def traverse(self, stack: list[PostfixItem] | None = None) -> list[PostfixItem]:
        """Append the tree in postfix order, operands before their op, to a list.

        Parameters
        ----------
        stack : list, optional
            The list; a new one by default.

        Returns
        -------
        list
            The list, with an op dict for each node.
        """
        stack = [] if stack is None else stack
        pending: list[tuple[Any, bool]] = [(self, False)]
        while pending:
            x, is_expanded = pending.pop()
            if is_expanded or not isinstance(x, Triple):
                stack.append(x.info if is_expanded else x)
            else:
                pending.append((x, True))
                pending += [(y, False) for y in (x.right, x.left) if y is not None]
        return stack

    @classmethod
    def from_postfix(cls, stack: Iterable[PostfixItem]) -> Self:
        """Return the tree of a postfix list, with its shapes checked again.

        Parameters
        ----------
        stack : iterable
            A list as ``traverse`` returns it. Operands may have been replaced.

        Returns
        -------
        OpTreeNode
            The tree.
        """
        built: list[Any] = []
        for x in stack:
            if isinstance(x, dict):
                num_children = x.num_children if isinstance(x, Info) else min(OPS[x["op"]].arity, 2)
                a, b = (*built[len(built) - num_children :], None, None)[:2]
                del built[len(built) - num_children :]
                built.append(cls._rebuild(x, a, b))
            else:
                built.append(x)
        if len(built) != 1:
            raise ValueError(f"OpTreeNode.from_postfix: expected a postfix list of one tree, got one of {len(built)}")
        return built[0]

    def optree_to_list(self) -> NestedList:
        """Return the tree as nested lists, which can be modified.

        Returns
        -------
        list
            ``[op, left, right]``, where nodes are lists of this form.
        """
        lists: dict[int, list[Any]] = {}
        for node in postorder(self):
            lists[id(node)] = [dict(node.info), *(lists.get(id(x), x) for x in (node.left, node.right))]
        return lists[id(self)]

    @classmethod
    def list_to_optree(cls, nested: NestedList) -> Self:
        """Return the tree of nested lists, with its shapes checked again.

        Parameters
        ----------
        nested : list
            ``[op, left, right]``, as ``optree_to_list`` returns it.

        Returns
        -------
        OpTreeNode
            The tree.
        """
        built: dict[int, Any] = {}
        pending: list[Any] = [nested]
        while pending:
            x = pending[-1]
            missing = [y for y in x[1:] if isinstance(y, list) and id(y) not in built]
            if missing:
                pending += missing
            else:
                pending.pop()
                built[id(x)] = cls._rebuild(x[0], *(built.get(id(y), y) for y in x[1:]))
        return built[id(nested)]

    def replace(self, old: object, new: object) -> Self:
        """Return the tree with one operand replaced; unchanged sub-trees are shared.

        Parameters
        ----------
        old : Tensor or OpTreeNode
            The operand to replace, at every use.
        new : Tensor, OpTreeNode or scalar
            The new operand.

        Returns
        -------
        OpTreeNode
            The new tree.
        """
        built: dict[int, Any] = {id(old): new}
        for node in postorder(self):
            a, b = (built.get(id(x), x) for x in (node.left, node.right))
            if id(node) not in built:
                built[id(node)] = node if a is node.left and b is node.right else self._rebuild(node.info, a, b)
        return built[id(self)]

    def open(self, *names: str) -> Self:
        """Return the tree with composite ops, such as ``softmax``, replaced by the op-trees of their formulas.

        Parameters
        ----------
        *names : str
            The ops to open; by default all.

        Returns
        -------
        OpTreeNode
            The tree, of the same value.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> x = be.array([[1, 2]], name="x")
        >>> print(be.silu(x).pp(), be.silu(x).open("silu").pp())
        (silu x) (x * (sig x))
        """
        unknown = [name for name in names if name not in OPS or OPS[name].formula is None]
        if unknown:
            composite = ", ".join(op.name for op in OPS.values() if op.formula is not None)
            raise ValueError(f"tree.open: expected names of composite ops, {composite}, got {', '.join(unknown)}")

        def opens(op: Op) -> bool:
            return op.formula is not None and (not names or op.name in names)

        return rebuild(self, {}, opens)

    def key(self) -> Hashable:
        """Return a hashable key of the tree.

        Returns
        -------
        hashable
            Equal for two trees of the same structure over the same leaves.
        """
        if self.leaves is None:
            instructions, leaves, _ = lower_to_instructions([self])
            return tuple(instructions), tuple(leaves)
        return self.info, tuple(self.leaves)

    def intrinsic_key_maps(self) -> tuple[dict[int, int], dict[int, OperandLike]]:
        """Return the leaves of the tree, numbered in order of appearance.

        Returns
        -------
        tuple of dict
            {id of a leaf: its index} and {index: leaf}.
        """
        leaves = lower_to_instructions([self])[1] if self.leaves is None else self.leaves
        return {key: i for i, key in enumerate(leaves)}, dict(enumerate(leaves.values()))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the same tree over copies of its tensors and random sources."""
        be = copy.deepcopy(self.info.be, memo)

        def copy_operand(x: object) -> object:
            if isinstance(x, RandomSource):
                return memo.setdefault(id(x), RandomSource(be, x._streams))
            return memo[id(x)] if id(x) in memo else copy.deepcopy(x, memo)

        for node in postorder(self):
            if id(node) not in memo:
                a, b = copy_operand(node.left), copy_operand(node.right)
                memo[id(node)] = self._rebuild(node.info, a, b, be)
        return memo[id(self)]


def flatten_pairs(*operands: object) -> tuple[Any, ...]:
    """Return the operands, with pairs replaced by their operands."""
    out: list[Any] = []
    stack = list(operands[::-1])
    while stack:
        x = stack.pop()
        if isinstance(x, Triple) and x.info.op_def is OPS["pair"]:
            stack += [x.right, x.left]
        elif x is not None:
            out.append(x)
    return tuple(out)


def matrix_transpose_axes(ndim: int) -> Axes:
    """Return the permutation that swaps the last two axes."""
    return (*range(ndim - 2), ndim - 1, ndim - 2)


def is_composite(op: Op) -> bool:
    """Return whether an op is composite."""
    return op.kind == "composite"


def postorder(*trees: object, opens: Callable[[Op], bool] | None = None) -> Iterator[Any]:
    """Yield every distinct node once, operands before the ops that use them, without recursion.

    The operand of a composite op for which ``opens(op)`` is true is the op-tree of its formula.

    Examples
    --------
    >>> import neonlite as nl
    >>> x = nl.gen_backend("cpu").ones((2, 2), name="x")
    >>> y = x + x
    >>> [node.op for node in postorder(y * y)]
    ['add', 'mul']
    """
    seen: set[int] = set()
    stack: list[tuple[Any, bool]] = [(tree, False) for tree in reversed(trees)]
    while stack:
        x, is_expanded = stack.pop()
        if is_expanded:
            yield x
        elif isinstance(x, Triple) and id(x) not in seen:
            seen.add(id(x))
            if opens is not None and opens(x.info.op_def):  # type: ignore[arg-type]
                stack += [(x, True), (x.opened, False)]
            else:
                stack += [(x, True), (x.right, False), (x.left, False)]


def rebuild(tree: Tree, values: Mapping[int, object], opens: Callable[[Op], bool] | None = None) -> Tree:
    """Return an op-tree with other operands in the place of some nodes.

    Parameters
    ----------
    tree : OpTreeNode
        The op-tree.
    values : dict
        {id of a node: the operand in its place}.
    opens : callable, optional
        The composite ops for which ``opens(op)`` is true are replaced by the op-trees of their formulas.
    """
    built: dict[int, Any] = dict(values)
    for node in postorder(tree, opens=opens):
        if id(node) in built:
            continue
        if opens is not None and opens(node.info.op_def):
            built[id(node)] = built[id(node.opened)]
        else:
            a, b = (built.get(id(x), x) for x in (node.left, node.right))
            is_same = a is node.left and b is node.right
            built[id(node)] = node if is_same else node._rebuild(node.info, a, b)
    result: Tree = built[id(tree)]
    return result


OperandId = int | Constant  # an earlier instruction (0, 1, ...), a leaf (-1, -2, ...), or a static integer


class Instruction(NamedTuple):
    """The op of a node, its attributes and operands, and the shape and dtypes that were inferred for it."""

    op: Op
    attrs: Attrs
    operand_ids: tuple[OperandId, ...]
    shape: Shape
    dtype: str
    compute_dtype: str


def lower_to_instructions(
    trees: Iterable[Any], leaves: Leaves | None = None, composites: dict[OperandId, Instruction] | None = None
) -> tuple[list[Instruction], Leaves, list[OperandId]]:
    """Return trees as (instructions, leaves, ids of the results): equal sub-trees are merged, composite ops opened.

    Leaves are numbered in the order of ``leaves``, else of appearance. ``composites`` receives the composite ops by the
    id of their result.
    """
    instruction_ids: dict[Instruction, int] = {}
    node_ids: dict[int, int] = {}
    leaves = {} if leaves is None else dict(leaves)
    leaf_ids = {key: -1 - i for i, key in enumerate(leaves)}

    def operand_id(x: object) -> OperandId:
        if isinstance(x, Triple):
            return node_ids[id(x)]
        if type(x) is int and x in STATIC_INTS:
            return Constant(x)
        leaves.setdefault(id(x), x)
        return leaf_ids.setdefault(id(x), -len(leaves))

    def is_known(x: object) -> bool:
        return id(x) in node_ids or id(x) in leaf_ids or (type(x) is int and x in STATIC_INTS)

    def instruction_of(node: Any) -> Instruction:
        info, ids = node.info, tuple(map(operand_id, node.operands))
        return Instruction(info.op_def, tuple(info.attrs.items()), ids, info.shape, info.dtype, info.compute_dtype)

    trees = list(trees)
    for node in postorder(*trees, opens=is_composite):
        info = node.info
        if is_composite(info.op_def):
            node_ids[id(node)] = operand_id(node.opened)  # type: ignore[assignment]
            if composites is not None and all(map(is_known, node.operands)):
                composites.setdefault(node_ids[id(node)], instruction_of(node))  # of two, the inner one
        elif info.op_def is not OPS["pair"]:
            node_ids[id(node)] = instruction_ids.setdefault(instruction_of(node), len(instruction_ids))
    return list(instruction_ids), leaves, [operand_id(tree) for tree in trees]
