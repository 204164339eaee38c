"""What is an expression?  A tree of small tuples: print it, draw it, differentiate it, and one day work it out.

An ``OpTreeNode`` is the triple (op, left, right). The op is a dict such as ``{'shape': (2, 2), 'op': 'add'}``; the
operands are tensors, numbers or other nodes. Building a tree computes nothing but shapes, which are checked at once, so
that a traceback points at the line that was wrong.

How a tree finds its plan without being walked: the op dict is an ``Info``, one shared object for all nodes of the same
structure. Building ``x + y`` looks up (op, Info of x, Info of y) in one table; only the first such node works out shape
and dtype. Beside it a node carries its *leaves*, the distinct tensors and numbers below it in order of appearance.
Same Info, same structure and same pattern of leaves: so the Info is the key of the plan, and the leaves its arguments.
"""

from __future__ import annotations

import copy
import reprlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from neonlite.ops import OPS, Axes, Op, Shape, dtypes, two_dims
from neonlite.ops import SHAPES as SHAPE_OF_KIND

Attrs = tuple[tuple[str, Any], ...]
Leaves = dict[int, Any]

BAKED = range(-8, 9)  # whole numbers that are part of the structure; other numbers are arguments of the plan
WIDE = 128  # a tree with more leaves than this does not carry them: it is traced when it is run
REMEMBERED = 1 << 16  # structures remembered before the table starts afresh
NUMBERS = 1 << 10  # numbers remembered likewise: a learning rate may be a new one in every step
MANY = 8  # operands that an error message names

_infos: dict[Any, Info] = {}
_floats: dict[Any, float] = {}
_nothing: Leaves = {}
_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = 60


class Info(dict[str, Any]):
    """The op of a node, shared by all nodes of one structure: a dict to print, with what a plan needs beside it.

    A tensor has one too, so that ``.shape``, ``.dtype`` and ``.be`` are found in the same place for every operand.
    """

    __slots__ = ("attrs", "be", "common", "dtype", "parts", "row", "shape", "slots")
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> Info:
        """Return itself: a structure is one object."""
        return self

    row: Op | None
    attrs: dict[str, Any]
    shape: Shape
    dtype: str
    common: str  # the dtype to which operands are brought before the op runs
    be: Any
    parts: tuple[Any, ...]  # what stands below a pair: an Info or the type of a number for each
    slots: int  # how many of the two operand places are taken

    def _frozen(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("op-trees do not change: build a new one, for example with tree.replace(old, new)")

    __setitem__ = __delitem__ = update = pop = clear = setdefault = popitem = _frozen
    __ior__ = _frozen


class Draw:
    """A random draw: the operand that makes one ``rand`` node differ from the next."""

    __slots__ = ("be",)

    def __init__(self, be: Any) -> None:
        self.be = be

    def __repr__(self) -> str:
        return f"draw-{id(self):#x}"

    def uniform(self, shape: Shape) -> Any:
        """Return uniform numbers in [0, 1)."""
        return self.be.streams.uniform("noise", shape, self.be.default)

    def normal(self, shape: Shape) -> Any:
        """Return normal numbers, mean 0, deviation 1."""
        return self.be.streams.normal("noise", shape, self.be.default)


# --- building ------------------------------------------------------------------------------------------------------


def build(op: Op, a: Any, b: Any = None, attrs: Attrs = (), be: Any = None) -> Any:
    """Return the node (op, a, b), or NotImplemented when an operand is nothing to compute with.

    This is the hot path of every program: a table look-up and two small objects. Hence the bounds of BAKED in figures.
    """
    kind = type(a)
    if kind is OpTreeNode:
        key_a, leaves_a = a[0], a.leaves
    elif kind is int and -9 < a < 9:
        key_a, leaves_a = a, _nothing
    else:
        key_a, leaves_a, a = leaf(a, b, be)
    kind = type(b)
    if b is None:
        key_b, leaves_b = None, _nothing
    elif kind is OpTreeNode:
        key_b, leaves_b = b[0], b.leaves
    elif kind is int and -9 < b < 9:
        key_b, leaves_b = b, _nothing
    else:
        key_b, leaves_b, b = leaf(b, a, be)

    leaves: Leaves | None
    pattern: Any = 0  # which of b's leaves are a's as well
    if leaves_b is _nothing or leaves_a is leaves_b:
        leaves = leaves_a
    elif leaves_a is _nothing:
        leaves = leaves_b
    elif leaves_a is None or leaves_b is None:
        leaves = None
    else:
        leaves = leaves_a | leaves_b
        if len(leaves) == len(leaves_a) + len(leaves_b):
            pattern = 1
        else:
            place = {key: i for i, key in enumerate(leaves)}
            pattern = tuple([place[key] for key in leaves_b])
        if len(leaves) > WIDE:
            leaves = None

    if leaves is None:
        if key_a is NotImplemented or key_b is NotImplemented:
            return NotImplemented
        info = derive(op, a, b, attrs, be)
    else:
        key: Any = (op, key_a, key_b, pattern, attrs)
        if be is not None and type(key_a) is not Info and type(key_b) is not Info:
            key = (*key, be)  # numbers alone do not say whose they are
        info = _infos.get(key)  # type: ignore[assignment]
        if info is None:
            if key_a is NotImplemented or key_b is NotImplemented:
                return NotImplemented
            info = derive(op, a, b, attrs, be)
            if len(_infos) > REMEMBERED:
                _infos.clear()
            info = _infos.setdefault(key, info)
    node = _tuple(OpTreeNode, (info, a, b))
    node.leaves = leaves
    return node


def leaf(x: Any, other: Any, be: Any) -> tuple[Any, Leaves, Any]:
    """Return (key, leaves, operand) of something that is no node: a tensor, a number, an array taken as a snapshot."""
    if isinstance(x, Operand):
        return x.info, {id(x): x}, x
    if type(x) is float:
        x = _floats.setdefault(x or str(x), x)  # equal bits, one object; 0.0 and -0.0 differ
        if len(_floats) > NUMBERS:
            _floats.clear()
        return float, {id(x): x}, x
    if isinstance(x, bool) or type(x).__name__ == "bool":  # numpy's too
        return int(x), _nothing, int(x)
    if type(x) is int:
        return (x, _nothing, x) if x in BAKED else (int, {id(x): x}, x)
    if type(x) is Draw:
        return Draw, {id(x): x}, x
    if not isinstance(x, type) and hasattr(x, "dtype") and hasattr(x, "shape"):  # an array or scalar of NumPy or a peer
        if x.shape == ():
            return leaf(x.item(), other, be) if isinstance(x.item(), int | float) else (NotImplemented, _nothing, x)
        x = (be or other.backend).snapshot(x, other)
        return x.info, {id(x): x}, x
    if isinstance(x, int | float):  # a subclass: numpy.float64, an IntEnum
        return leaf(float(x) if isinstance(x, float) else int(x), other, be)
    return NotImplemented, _nothing, x


def derive(op: Op, a: Any, b: Any, attrs: Attrs, be: Any) -> Info:
    """Work out shape and dtype of a new structure; the errors of tree building are raised here."""
    types = [*parts(a), *parts(b)]
    owners = [be] * (be is not None) + [t.be for t in types if isinstance(t, Info)]
    backends = list({id(x): x for x in owners}.values())
    try:
        if len(backends) > 1:
            tensors = {id(x.backend): x for x in flat(a, b) if isinstance(x, Operand)}.values()
            whose = ", ".join(f"{describe(x)} to {x.backend!r}" for x in tensors)
            raise ValueError(f"the operands belong to different backends: {whose}; copy one across with be.array(t)")
        if any(isinstance(t, Info) and t.row is OPS["onehot"] and not t.attrs["nclass"] for t in types):
            raise ValueError("the number of classes is not known: give onehot nclass=, or assign it by itself")
        if op.arity >= 0 and len(types) != op.arity:
            raise TypeError(f"{op.method} takes {op.arity} operands, not {len(types)}")
        info = Info(shape=None, op=op.name, **dict(attrs))
        info.row, info.attrs, info.be, info.parts = op, dict(attrs), backends[0], tuple(types)
        info.slots = (a is not None) + (b is not None)
        if op.name == "pair":
            info.shape, info.dtype, info.common = (), "", ""
        else:
            rule = op.shape or SHAPE_OF_KIND[op.kind]
            info.shape = rule(*[two_dims(t.shape) if isinstance(t, Info) else (1, 1) for t in types], **info.attrs)
            operand_dtypes = [t.dtype if isinstance(t, Info) else t for t in types]
            info.common, info.dtype = dtypes(op, operand_dtypes, info.be.default, info.attrs)
    except (ValueError, TypeError, IndexError) as error:
        raise type(error)(f"be.{op.method}({describe(*flat(a, b))}): {shortened(error)}") from None
    dict.__setitem__(info, "shape", info.shape)
    return info


def parts(x: Any) -> tuple[Any, ...]:
    """Return an Info, or the type of a number, for each operand in a place: several for a pair, none for None."""
    if x is None:
        return ()
    if isinstance(x, Operand):
        return x.info.parts if x.info.row is OPS["pair"] else (x.info,)
    return (type(x),)


def flat(*operands: Any) -> tuple[Any, ...]:
    """Return the operands with pairs opened."""
    out: list[Any] = []
    rest = list(operands[::-1])
    while rest:
        x = rest.pop()
        if type(x) is OpTreeNode and x[0].row is OPS["pair"]:
            rest += [x[2], x[1]]
        elif x is not None:
            out.append(x)
    return tuple(out)


def label(x: Any) -> str:
    """Return the word for a leaf: a tensor's name, with a sign that it is a view of that; or a number."""
    if not isinstance(x, Operand):
        return repr(x)
    origin = getattr(x, "origin", None)
    if x.name is None or origin is None or x.name != x.base.name:  # without a name, or with one of its own
        return x.name or f"tensor-{id(x):#x}"
    return label(x.base) + {"transpose": ".T", "reshape": ".reshape"}.get(origin[0], "[...]")


def describe(*operands: Any) -> str:
    """Return operands as an error message speaks of them: names and shapes, and never more than a few lines."""

    def words(x: Any) -> str:
        if type(x) is OpTreeNode:
            return f"{x[0]['op']}-tree {x.shape}"
        return f"{label(x) if x.name else 'a tensor'} {x.shape}" if isinstance(x, Operand) else _brief.repr(x)

    more = [f"{len(operands) - MANY} more"] if len(operands) > MANY else []
    return ", ".join([*map(words, operands[:MANY]), *more])


def shortened(text: object) -> str:
    """Return a message, cut in the middle when it is long."""
    said = str(text)
    return said if len(said) <= 400 else f"{said[:250]} ... {said[-100:]}"


def forget(be: Any) -> None:
    """Forget the structures of a backend, which hold on to it; nodes that live stay as they are."""
    for key, info in _infos.copy().items():  # copied in one step: other threads may add to it
        if info.be is be:
            _infos.pop(key, None)


# --- operators, once for tensors and nodes -------------------------------------------------------------------------


def _binary(name: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    op = OPS[name]

    def method(self: Any, other: Any) -> Any:
        return NotImplemented if other is None else build(op, self, other)

    def reflected(self: Any, other: Any) -> Any:
        return build(op, other, self)

    return method, reflected


class Operand:
    """What tensors and nodes have in common: the operators, each of which returns an op-tree."""

    __slots__ = ()
    __array_ufunc__ = None  # numpy_array + tensor is handed to us instead of being taken apart
    __array_priority__ = 1000
    __hash__ = object.__hash__

    info: Any
    name: str | None
    shape: Any
    base: Any

    __add__, __radd__ = _binary("add")
    __sub__, __rsub__ = _binary("sub")
    __mul__, __rmul__ = _binary("mul")
    __truediv__, __rtruediv__ = _binary("div")
    __pow__, __rpow__ = _binary("pow")
    __eq__ = _binary("eq")[0]
    __ne__ = _binary("ne")[0]
    __lt__ = _binary("lt")[0]
    __le__ = _binary("le")[0]
    __gt__ = _binary("gt")[0]
    __ge__ = _binary("ge")[0]

    def __neg__(self) -> Any:
        return build(OPS["neg"], self)

    def __abs__(self) -> Any:
        return build(OPS["abs"], self)

    def __matmul__(self, other: Any) -> Any:
        return build(OPS[_product(self, other)], self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return build(OPS[_product(self, other)], other, self)

    @property
    def backend(self) -> Any:
        """The backend that works it out."""
        return self.info.be

    @property
    def dtype(self) -> Any:
        """The dtype, as NumPy's."""
        return self.info.be.numpy_dtype(self.info.dtype)

    @property
    def ndim(self) -> int:
        """The number of dimensions, two or more."""
        return len(self.info.shape)


def _product(x: Any, y: Any) -> str:
    return "dot" if len(x.shape) == len(getattr(y, "shape", ())) == 2 else "matmul"


# --- the node ------------------------------------------------------------------------------------------------------


class _Shape:
    """``node.shape``, and ``OpTreeNode.shape(x)`` of anything, as the guide writes it."""

    def __get__(self, node: Any, owner: Any) -> Any:
        return self.of if node is None else node[0]["shape"]

    @staticmethod
    def of(x: Any) -> Shape:
        """Return the shape of a tensor, a node or a number, which is (1, 1)."""
        return x.shape if isinstance(x, Operand) else (1, 1)


_tuple: Callable[..., Any] = tuple.__new__


class OpTreeNode(Operand, tuple[Any, Any, Any]):
    """A node of an op-tree: the triple (op, left, right), which never changes.

    ``OpTreeNode(op, a, b)`` takes the op dict as it is given, without checks; operators, backend functions and
    ``OpTreeNode.build`` check and work out shapes.
    """

    leaves: Leaves | None  # None: too many to carry

    def __new__(cls, op: dict[str, Any], a: Any = None, b: Any = None) -> OpTreeNode:
        """Return the triple; the shape in ``op`` is taken at its word."""
        name = op.get("op")
        if name not in OPS:
            raise TypeError(f"unknown op {name!r}; the ops are {', '.join(OPS)}")
        info = Info(op)
        info.row, info.be = OPS[name], _backend_of(a, b)
        info.attrs = {k: v for k, v in op.items() if k not in ("op", "shape")}
        info.parts, info.shape, info.slots = (
            (*parts(a), *parts(b)),
            op.get("shape", ()),
            (a is not None) + (b is not None),
        )
        operand_dtypes = [t.dtype if isinstance(t, Info) else t for t in info.parts]
        info.common, info.dtype = dtypes(info.row, operand_dtypes, info.be.default, info.attrs)
        node: OpTreeNode = _tuple(cls, (info, a, b))
        node.leaves = None
        return node

    def __deepcopy__(self, memo: dict[int, Any]) -> OpTreeNode:
        """Return the same tree over copies of its tensors, with draws of its own."""
        be = copy.deepcopy(self.backend, memo)

        def twin(x: Any) -> Any:
            if isinstance(x, Draw):
                return memo.setdefault(id(x), Draw(be))
            return memo[id(x)] if id(x) in memo else copy.deepcopy(x, memo)

        for node in postorder(self):
            if id(node) not in memo:
                a, b = map(twin, node[1:])
                checked = node[0].row is not OPS["assign"]
                attrs = tuple(node[0].attrs.items())
                memo[id(node)] = build(node[0].row, a, b, attrs, be) if checked else OpTreeNode(dict(node[0]), a, b)
        found: OpTreeNode = memo[id(self)]
        return found

    @staticmethod
    def build(op: str, a: Any, b: Any = None, out: Any = None, **attrs: Any) -> Any:
        """Return the checked node; with ``out``, run it and return the tensor written. An 'assign' is run at once."""
        if op not in OPS:
            raise TypeError(f"unknown op {op!r}; the ops are {', '.join(OPS)}")
        be = _backend_of(a, b)
        if op == "assign":
            node = OpTreeNode({"shape": OpTreeNode.shape(a), "op": op}, a, b)
            be.execute(node)
            return node
        if OPS[op].kind == "reduction" or OPS[op].result == "index":  # these have a default axis
            return getattr(be, OPS[op].method)(a, out=out, **attrs)
        return be.build(op, a, b, out, **attrs)

    shape = _Shape()

    @property
    def info(self) -> Info:
        """The op dict with what stands beside it."""
        return self[0]  # type: ignore[no-any-return]

    @property
    def op(self) -> str:
        """The op's name."""
        return self[0]["op"]  # type: ignore[no-any-return]

    @property
    def attrs(self) -> dict[str, Any]:
        """The op's attributes, such as the axis of a reduction."""
        return dict(self[0].attrs)

    @property
    def operands(self) -> tuple[Any, ...]:
        """The operands, with pairs opened: one, two or more."""
        return flat(self[1], self[2])

    @property
    def name(self) -> None:  # type: ignore[override]
        """Nodes have no name."""
        return None

    @property
    def T(self) -> OpTreeNode:
        """The tree with its last two axes swapped."""
        return build(OPS["transpose"], self, None, (("axes", swapped(self.ndim)),))  # type: ignore[no-any-return]

    def transpose(self, out: Any = None) -> Any:
        """Return ``T``; with ``out``, write it there."""
        return self.T if out is None else self.backend.assign([out], [self.T])[0]

    def __bool__(self) -> bool:
        raise TypeError("an op-tree has no truth value before it is worked out: assign it first, out[:] = tree")

    def __contains__(self, x: object) -> bool:
        return any(x is y for y in self)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise TypeError("an op-tree has no memory to write to: work it out into a tensor first, out[:] = tree")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.astensor().__array__(dtype, copy)

    def __reduce__(self) -> NoReturn:
        raise TypeError("op-trees hold tensors of a running backend and are not pickled: save tensors by .get()")

    # --- running ---

    def execute(self) -> Any:
        """Run a tree whose top is 'assign' and return the tensor written."""
        return self.backend.execute(self)

    def astensor(self) -> Any:
        """Return the value in a new tensor."""
        return self.backend.evaluate([self])[0]

    def asnumpyarray(self) -> Any:
        """Return the value as a NumPy array."""
        return self.astensor().get()

    # --- walking and rebuilding ---

    def traverse(self, stack: list[Any] | None = None) -> list[Any]:
        """Append the tree in postfix order, operands before their op, to ``stack`` and return it."""
        stack = [] if stack is None else stack
        rest: list[tuple[Any, bool]] = [(self, False)]
        while rest:
            x, opened = rest.pop()
            if opened or type(x) is not OpTreeNode:
                stack.append(x[0] if opened else x)
            else:
                rest.append((x, True))
                rest += [(y, False) for y in (x[2], x[1]) if y is not None]
        return stack

    @staticmethod
    def from_postfix(stack: Iterable[Any]) -> OpTreeNode:
        """Return the tree of a postfix list, checked anew: what ``traverse`` gives, perhaps with tensors swapped."""
        done: list[Any] = []
        for x in stack:
            if isinstance(x, dict) and not isinstance(x, Operand):
                slots = x.slots if isinstance(x, Info) else min(OPS[x["op"]].arity, 2)
                a, b = (*done[len(done) - slots :], None, None)[:2]
                del done[len(done) - slots :]
                done.append(rebuild(x, a, b))
            else:
                done.append(x)
        if len(done) != 1:
            raise ValueError(f"a postfix list leaves one tree; this one leaves {len(done)}")
        return done[0]  # type: ignore[no-any-return]

    def optree_to_list(self) -> list[Any]:
        """Return the tree as nested lists [op, left, right], which may be changed."""
        lists: dict[int, list[Any]] = {}
        for node in postorder(self):
            lists[id(node)] = [dict(node[0]), *(lists.get(id(x), x) for x in node[1:])]
        return lists[id(self)]

    @staticmethod
    def list_to_optree(nested: list[Any]) -> OpTreeNode:
        """Return the tree of nested lists [op, left, right], checked anew."""
        done: dict[int, Any] = {}
        rest = [nested]
        while rest:
            x = rest[-1]
            todo = [y for y in x[1:] if isinstance(y, list) and id(y) not in done]
            if todo:
                rest += todo
            else:
                rest.pop()
                done[id(x)] = rebuild(x[0], *(done.get(id(y), y) for y in x[1:]))
        return done[id(nested)]  # type: ignore[no-any-return]

    def replace(self, old: Any, new: Any) -> OpTreeNode:
        """Return the tree with one operand in the place of another; unchanged parts are shared."""
        done: dict[int, Any] = {id(old): new}
        for node in postorder(self):
            a, b = (done.get(id(x), x) for x in node[1:])
            if id(node) not in done:
                done[id(node)] = node if a is node[1] and b is node[2] else rebuild(node[0], a, b)
        return done[id(self)]  # type: ignore[no-any-return]

    def key(self) -> Any:
        """Return a hashable identity: equal for trees of the same structure over the same leaves."""
        if self.leaves is None:
            instructions, leaves, _ = program([self])
            return tuple(instructions), tuple(leaves)
        return self[0], tuple(self.leaves)

    def intrinsic_key_maps(self) -> tuple[dict[int, int], dict[int, Any]]:
        """Return ({id of a leaf: its number}, {number: leaf}), numbered in order of appearance."""
        leaves = program([self])[1] if self.leaves is None else self.leaves
        return {key: i for i, key in enumerate(leaves)}, dict(enumerate(leaves.values()))

    # --- showing ---

    def __repr__(self) -> str:
        from neonlite import show

        return show.triple(self)

    __str__ = __repr__

    def pp(self) -> str:
        """Return the tree in infix notation: ``((1) / ((1) + (exp ((-1) * x))))``."""
        from neonlite import show

        return show.infix(self)

    def draw(self, form: str = "text") -> str:
        """Return a drawing: "text", "mermaid", "dot" or "svg"."""
        from neonlite import show

        return show.draw(self, form)

    def _repr_svg_(self) -> str:
        return self.draw("svg")

    def step(self) -> Any:
        """Work the tree out node by node: an object that iterates over, and prints, every intermediate value."""
        from neonlite import show

        return show.Steps(self)


def swapped(ndim: int) -> Axes:
    """Return the axes with the last two swapped."""
    return (*range(ndim - 2), ndim - 1, ndim - 2)


def rebuild(op: dict[str, Any], a: Any, b: Any = None) -> Any:
    """Return a checked node with the op and attributes of another and new operands."""
    attrs = tuple((k, v) for k, v in op.items() if k not in ("op", "shape"))
    return build(OPS[op["op"]], a, b, attrs, getattr(op, "be", None))


def _backend_of(*operands: Any) -> Any:
    for x in operands:
        if isinstance(x, Operand):
            return x.backend
    raise TypeError(f"none of {describe(*operands)} is a tensor or an op-tree")


# --- walking -------------------------------------------------------------------------------------------------------


def postorder(*trees: Any) -> Iterator[OpTreeNode]:
    """Yield every distinct node once, operands before the ops that use them, without recursion.

    >>> import neonlite as nl
    >>> x = nl.gen_backend("cpu").ones((2, 2), name="x")
    >>> y = x + x
    >>> [node.op for node in postorder(y * y)]
    ['add', 'mul']
    """
    seen: set[int] = set()
    rest: list[tuple[Any, bool]] = [(tree, False) for tree in reversed(trees)]
    while rest:
        x, opened = rest.pop()
        if opened:
            yield x
        elif type(x) is OpTreeNode and id(x) not in seen:
            seen.add(id(x))
            rest += [(x, True), (x[2], False), (x[1], False)]


def program(trees: Iterable[Any], leaves: Leaves | None = None) -> tuple[list[tuple[Any, ...]], Leaves, list[Any]]:
    """Return the trees as a list of instructions, equal ones once; their leaves; and the operands that are the results.

    An instruction is (op, attributes, operands, shape, dtype, common dtype). Its operands are numbers of earlier
    instructions (0, 1, ...), of leaves (-1, -2, ...: in the order of ``leaves``, else of appearance), or small whole
    numbers wrapped as ``(n,)``.
    """
    found: dict[tuple[Any, ...], int] = {}
    number: dict[int, int] = {}
    leaves = {} if leaves is None else dict(leaves)
    place = {key: -1 - i for i, key in enumerate(leaves)}

    def operand(x: Any) -> Any:
        if type(x) is OpTreeNode:
            return number[id(x)]
        if type(x) is int and x in BAKED:
            return (x,)
        leaves.setdefault(id(x), x)
        return place.setdefault(id(x), -len(leaves))

    trees = list(trees)
    for node in postorder(*trees):
        info = node[0]
        if info.row is not OPS["pair"]:
            operands = tuple(map(operand, node.operands))
            key = (info.row, tuple(info.attrs.items()), operands, info.shape, info.dtype, info.common)
            number[id(node)] = found.setdefault(key, len(found))
    results = [operand(tree) for tree in trees]
    return list(found), leaves, results
