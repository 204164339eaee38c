"""Shape and dtype inference for a new op-tree node, and the tensors and scalars in its operands."""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any

from neonlite.messages import NO_COMPLEX, describe, owners, truncate_message
from neonlite.ops import OPS, SHAPE_FN_BY_KIND, Op
from neonlite.ops.functions import at_least_2d
from neonlite.tree_structure import (
    STATIC_INTS,
    Above,
    Attrs,
    Below,
    Info,
    Leaves,
    RandomSource,
    Triple,
    flatten_pairs,
    info_of,
    traces,
)
from neonlite.typing import FLOAT_DTYPES, HALF_DTYPES, INT_DTYPES, LIMITS, BackendBase, dtype_bits, promote_types

MAX_CACHED_FLOATS = 1 << 10  # of _float_cache, e.g. the values of a changing learning rate; a full cache is cleared
NO_LEAVES: Leaves = {}
POW = OPS["pow"]
SEQUENCES = (list, tuple, range)  # which are not operands, and which == would compare with a tensor as a whole

_float_cache: dict[Any, float] = {}


def as_leaf(
    x: Any, other: Any, be: BackendBase | None, op: Op | None = None, is_left: bool = False
) -> tuple[Any, Leaves, Any]:
    """Return (key, leaves, operand) of an operand that is not a node. An array is copied to a tensor.

    One of one dimension is a row where NumPy reads it as one: in elementwise ops, and on the left of a product.
    """
    if (
        type(x) is float
        and x == 2
        and op is POW
        and (info := info_of(other)) is not None
        and info.dtype in FLOAT_DTYPES
    ):
        return 2, NO_LEAVES, 2  # a square, which is much faster than a power with an exponent that is read
    if type(x) is float:
        x = _float_cache.setdefault(x or str(x), x)  # one object per value, but 0.0 and -0.0 are two
        if len(_float_cache) > MAX_CACHED_FLOATS:
            _float_cache.clear()
        return float, {id(x): x}, x
    try:
        info = x.info  # of a tensor, the usual operand: faster than getattr with a default
    except AttributeError:
        info = None
    if type(info) is Info:
        if traces and (trace := traces.get(get_ident())) is not None:
            x = trace.read(x)
            if hasattr(x, "leaves"):  # the value that the traced function has assigned
                return x.info, x.leaves, x
        return info, {id(x): x}, x
    if isinstance(x, bool) or type(x).__name__ == "bool":  # and numpy.bool
        return int(x), NO_LEAVES, int(x)
    if type(x) is int:
        if x in STATIC_INTS:
            return x, NO_LEAVES, x
        if (info := info_of(other)) is not None and (limits := LIMITS.get(info.dtype)):
            low, high = limits
            x = Below(x) if x < low else Above(x) if x > high else x
        return type(x), {id(x): x}, x
    if type(x) is RandomSource:
        return RandomSource, {id(x): x}, x
    operand: Any = getattr(x, "operand", None)
    if operand is not None:  # that of an array of neonlite.array_api
        is_node = type(operand).__name__ == "OpTreeNode"
        return (operand.info, operand.leaves, operand) if is_node else as_leaf(operand, other, be)
    # an array of an array library, or one of its scalars
    if not isinstance(x, type | Info) and hasattr(x, "dtype") and hasattr(x, "shape"):
        if x.shape == ():
            return (
                as_leaf(x.item(), other, be)
                if isinstance(x.item(), int | float | complex)
                else (NotImplemented, NO_LEAVES, x)
            )
        is_row = op is not None and (op.kind in ("elementwise", "structural") or (is_left and op.symbol == "@"))
        x = (be or other.backend).snapshot(x, other, is_row)
        return x.info, {id(x): x}, x
    if isinstance(x, int | float):  # a subclass: numpy.float64, an IntEnum
        return as_leaf(float(x) if isinstance(x, float) else int(x), other, be)
    if isinstance(x, complex):
        raise TypeError(f"expected a real number as operand, got {x!r}. {NO_COMPLEX}")
    return NotImplemented, NO_LEAVES, x


def not_an_operand(op: str, x: object) -> TypeError:
    """Return the exception for an operand of a backend method that is of another type."""
    hint = ". Pass np.array(x)." if isinstance(x, SEQUENCES) else ""
    return TypeError(f"be.{op}: expected tensors, op-trees, scalars or arrays, got {describe(x)}{hint}")


def infer_info(op: Op, a: Any, b: Any, attrs: Attrs, be: BackendBase | None) -> Info:
    """Infer the shape and dtype of a new structure. Errors of tree building are raised here."""
    is_pair = op.name == "pair"
    types = [direct_type(x) for x in (a, b) if x is not None] if is_pair else [*operand_types(a), *operand_types(b)]
    candidates = ([] if be is None else [be]) + [t.be for t in types if isinstance(t, Info)]
    backends = list({id(x): x for x in candidates}.values())
    try:
        if len(backends) > 1:
            tensors = {id(x.backend): x for x in flatten_pairs(a, b) if info_of(x) is not None}.values()
            if len(tensors) < 2:
                raise ValueError(f"expected operands of {be!r}, got {owners(*tensors)}")
            raise ValueError(f"expected operands of one backend, got {owners(*tensors)}")
        if any(isinstance(t, Info) and t.op_def is OPS["onehot"] and not t.attrs["nclass"] for t in types):
            raise ValueError(
                "expected a known number of classes. Pass nclass= to be.onehot, or assign the one-hot op directly."
            )
        if op.arity >= 0 and len(types) != op.arity:
            raise TypeError(f"expected {op.arity} operands, got {len(types)}")
        info = Info(shape=None, op=op.name, **dict(attrs))
        info.op_def, info.attrs, info.be = op, dict(attrs), backends[0]
        # stored for pairs only: an Info that refers to those of its operands would keep a whole tree of Infos alive
        info.operand_types = tuple(types) if is_pair else ()
        info.find = info.be.structures.get
        info.num_children = (a is not None) + (b is not None)
        if is_pair:
            info.shape, info.dtype, info.compute_dtype = (), "", ""
        else:
            shape_fn = op.shape_fn or SHAPE_FN_BY_KIND[op.kind]
            info.shape = shape_fn(
                *[at_least_2d(t.shape) if isinstance(t, Info) else (1, 1) for t in types], **info.attrs
            )
            operand_dtypes = [t.dtype if isinstance(t, Info) else t for t in types]
            info.compute_dtype, info.dtype = infer_dtypes(op, operand_dtypes, info.be.default_dtype_name, info.attrs)
            if op.compute_dtypes and info.compute_dtype not in op.compute_dtypes:
                raise TypeError(
                    f"expected {' or '.join(op.compute_dtypes)}, got {info.compute_dtype}. Cast x with "
                    "be.astype(x, 'float32')."
                )
            is_comparison = op.order_signs is not None and op.result_dtype == "boolean"
            if (op.integers_only or is_comparison) and "uint64" in operand_dtypes:
                signed = [x for x in operand_dtypes if isinstance(x, str) and x.startswith("int")]
                if signed:
                    raise TypeError(
                        f"expected operands of one integer dtype, got uint64 and {signed[0]}. Cast one of them with "
                        "be.astype."
                    )
            if op.integers_only and info.compute_dtype in FLOAT_DTYPES:
                raise TypeError(
                    f"expected integers, got {info.compute_dtype}. Cast a float tensor with be.astype(x, 'int32')."
                )
    except (ValueError, TypeError, IndexError) as error:
        raise type(error)(
            f"{'be.' * op.has_method}{op.method}({describe(*flatten_pairs(a, b))}): {truncate_message(error)}"
        ) from None
    dict.__setitem__(info, "shape", info.shape)
    return info


def composite_info(op: Op, opened: Info, attrs: Attrs, b: object) -> Info:
    """Return the Info of a composite op whose formula has the Info ``opened``."""
    info = Info(shape=opened.shape, op=op.name, **dict(attrs))
    info.op_def, info.attrs, info.be, info.operand_types = op, dict(attrs), opened.be, ()
    info.shape, info.dtype, info.compute_dtype = opened.shape, opened.dtype, opened.dtype
    info.find, info.num_children = opened.find, 1 + (b is not None)
    return info


def evaluate_formula(op: Op, operands: tuple[Any, ...], attrs: Attrs, be: Any) -> Any:
    """Return the op-tree of a formula. 16-bit floats are computed in float32, and rounded once, at the end."""
    operands = flatten_pairs(*operands)
    try:
        be = be or backend_of(*operands)
        if op.arity >= 0 and len(operands) != op.arity:
            raise TypeError(f"expected {op.arity} operands, got {len(operands)}")
        cast, dtype = cast_for_formula(op, operands, be, dict(attrs))
        opened: Any = op.formula(be, *cast, **dict(attrs))  # type: ignore[misc]
        if info_of(opened) is None:
            raise TypeError(f"expected an op-tree as the result of the formula, got {describe(opened)}")
        if dtype in HALF_DTYPES and opened.info.dtype == "float32":
            opened = be.astype(opened, dtype)
        return opened if isinstance(opened, Triple) else opened * 1
    except (ValueError, TypeError, IndexError) as error:
        raise type(error)(f"be.{op.method}({describe(*operands)}): {truncate_message(error)}") from error


def cast_for_formula(op: Op, operands: Sequence[Any], be: Any, attrs: dict[str, Any]) -> tuple[list[Any], str]:
    """Return the operands of a composite op as its formula gets them, and the dtype to which they are promoted.

    16-bit floats are cast to float32, also integers for an op of the table, whose results are floats.
    """
    types = [info.dtype if (info := info_of(x)) is not None else type(x) for x in operands]
    dtype, _ = infer_dtypes(op, types, be.default_dtype_name, attrs)
    wide, cast = "float32" if dtype in HALF_DTYPES else dtype, list(operands)
    for i in range(len(types))[op.promoted_operands]:
        if types[i] in HALF_DTYPES or (types[i] in INT_DTYPES and op.result_dtype == "float"):
            cast[i] = be.astype(cast[i], wide)
    return cast, dtype


def infer_dtypes(op: Op, operands: Sequence[str | type], default: str, attrs: dict[str, Any]) -> tuple[str, str]:
    """Return (compute dtype, result dtype): the promoted dtype of the operands, and the dtype of the result.

    ``operands`` holds a dtype for each tensor and a type for each scalar. Scalars are weak: they do not take part in
    the promotion, except that a float scalar promotes integers to the ``default`` float dtype.
    """
    promoted = operands[op.promoted_operands]
    compute_dtype = ""
    for dtype in promoted:
        if isinstance(dtype, str):
            compute_dtype = promote_types(compute_dtype, dtype) if compute_dtype else dtype
    if not compute_dtype or (compute_dtype not in FLOAT_DTYPES and (float in promoted or op.result_dtype == "float")):
        compute_dtype = default
    if op.result_dtype == "explicit":
        return attrs["to"], attrs["to"]
    if op.result_dtype == "index":
        return compute_dtype, "int64"
    if op.result_dtype == "sum" and compute_dtype in INT_DTYPES:
        return compute_dtype, compute_dtype if dtype_bits(compute_dtype) == 64 else "int64"
    if op.result_dtype == "boolean":
        return compute_dtype, compute_dtype if compute_dtype in FLOAT_DTYPES else default
    return compute_dtype, compute_dtype


def operand_types(x: object) -> list[Any]:
    """Return the Info of a tensor or node, or the type of a scalar; of nested pairs, those of their operands."""
    out: list[Any] = []
    stack = [] if x is None else [direct_type(x)]
    while stack:
        t = stack.pop()
        if isinstance(t, Info) and t.op_def is OPS["pair"]:
            stack += t.operand_types[::-1]
        else:
            out.append(t)
    return out


def direct_type(x: object) -> Any:
    """Return the Info of a tensor or node, also of a pair, or the type of a scalar."""
    info = info_of(x)
    return type(x) if info is None else info


def unknown_op(where: str, name: object) -> TypeError:
    """Return the exception for a name that is none of an op."""
    from difflib import get_close_matches

    near = get_close_matches(str(name), OPS)
    hint = f". Did you mean {' or '.join(map(repr, near))}?" if near else ". docs/ops.md lists all ops."
    return TypeError(f"{where}: expected the name of an op, such as 'tanh', got {name!r}{hint}")


def unchecked_info(op: dict[str, Any], a: Any, b: Any) -> Info:
    """Return the Info of a node with the given shape, which is not checked."""
    if not isinstance(op, dict):
        raise TypeError(
            f"OpTreeNode: expected an op dict, such as {{'op': 'add', 'shape': (2, 2)}}, got {describe(op)}. Create "
            "tensors with be.array(values), and op-trees with operators and methods of the backend."
        )
    name = op.get("op")
    if name not in OPS:
        raise unknown_op("OpTreeNode", name)
    info = Info(op)
    info.op_def, info.be = OPS[name], backend_of(a, b)
    info.find = info.be.structures.get
    info.attrs = {k: v for k, v in op.items() if k not in ("op", "shape")}
    info.operand_types = tuple(direct_type(y) for y in (a, b) if y is not None)
    info.shape, info.num_children = op.get("shape", ()), (a is not None) + (b is not None)
    operand_dtypes = [t.dtype if isinstance(t, Info) else t for t in (*operand_types(a), *operand_types(b))]
    info.compute_dtype, info.dtype = infer_dtypes(info.op_def, operand_dtypes, info.be.default_dtype_name, info.attrs)
    return info


def backend_of(*operands: object) -> BackendBase:
    """Return the backend of the first tensor or node; TypeError if there is none."""
    for x in operands:
        if (info := info_of(x)) is not None:
            return info.be
    raise TypeError(f"expected a tensor or an op-tree among the operands, got {describe(*operands)}")
