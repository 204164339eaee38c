"""Info, the op dict that op-tree nodes of equal structure share; a backend's cache of Infos; and special operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from neonlite.ops import Op
from neonlite.shapes import Shape

if TYPE_CHECKING:
    from neonlite.backend.backend import Backend
    from neonlite.typing import NativeArray

Attrs = tuple[tuple[str, Any], ...]
Leaves = dict[int, Any]

STATIC_INTS = range(-8, 9)  # integers that are part of the structure; other scalars are arguments of the plan
MAX_STRUCTURE_BYTES = 8_000_000  # of a backend's cache of structures
STRUCTURE_BYTES = 600  # measured size of a structure and its key, without the key's pattern of leaves
PATTERN_BYTES = 8  # of the pattern, per leaf


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
    be: Backend
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
    pattern = key[3:4]
    return STRUCTURE_BYTES + sum(PATTERN_BYTES * len(leaves) for leaves in pattern if type(leaves) is tuple)


class Constant(NamedTuple):
    """A static integer, which is part of the structure."""

    value: int


class Below(int):
    """An integer below the range of the other operand's dtype. Its type is part of the tree's structure."""


class Above(int):
    """An integer above the range of the other operand's dtype. Its type is part of the tree's structure."""


class RandomSource:
    """The operand of a ``rand`` or ``randn`` node. Each node has its own, so two nodes are independent samples."""

    __slots__ = ("be",)

    def __init__(self, be: Backend) -> None:
        self.be = be

    def __repr__(self) -> str:
        return f"random-{id(self):#x}"

    def uniform(self, shape: Shape) -> NativeArray:
        """Draw uniform numbers in [0, 1)."""
        return self.be.streams.uniform("noise", shape, self.be.default_dtype_name)

    def normal(self, shape: Shape) -> NativeArray:
        """Draw standard normal numbers."""
        return self.be.streams.normal("noise", shape, self.be.default_dtype_name)
