"""Control flow that depends on values, as functions: ``cond``, ``while_loop`` and ``scan``.

Where a condition has a value they are Python's ``if`` and ``while``. In a function of ``jit`` or ``vmap``, where it has
none, ``cond`` computes both sides, and ``while_loop`` is one op, which runs programs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from operator import or_
from typing import Any, NoReturn, TypeVar, cast

from neonlite import tree_structure, typing
from neonlite.autodiff import build_node, is_array, operand_of
from neonlite.backend.creation import new_tensor
from neonlite.backend.tensor import Tensor
from neonlite.functions import check_function, evaluate_constants, match
from neonlite.messages import describe
from neonlite.ops import Op
from neonlite.optree import Operand, OpTreeNode
from neonlite.programs import Argument, Program, Trace, tracing, unflatten
from neonlite.variables import (
    Call,
    Variable,
    backend_of,
    describe_structure,
    is_expression,
    parts_of,
    split_row,
    structure_key,
    substitute,
    tensors_of,
)

R = TypeVar("R")

# --- conditions ------------------------------------------------------------------------------------------------------


def cond(condition: Any, if_true: Callable[..., R], if_false: Callable[..., R], *args: Any) -> R:
    """Return the result of one of two functions.

    Where the condition has a value, only that function is called. In a function of ``jit`` or ``vmap``, where it has
    none, both are computed, and ``where`` selects: the derivative of the other one is 0, also at a pole.

    Parameters
    ----------
    condition : array (), tensor (1, 1) or bool
        The condition.
    if_true, if_false : callable
        The functions, of results in the same containers and of the same shapes.
    *args
        The arguments of both.

    Returns
    -------
    arrays, tensors or containers of them
        ``if_true(*args)`` if the condition is not 0, else ``if_false(*args)``.

    Raises
    ------
    TypeError
        The condition is not one number.
    ValueError
        The results differ in containers or shapes, where both are computed.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> xp = nl.array_api
    >>> root = lambda x: nl.cond(x > 0, xp.sqrt, lambda x: 0 * x, x)
    >>> nl.vmap(nl.grad(root))(xp.asarray([4.0, 0.0, -1.0]))
    Array([0.25, 0.  , 0.  ], dtype=float32)
    """
    check_function("cond: if_true", if_true)
    check_function("cond: if_false", if_false)
    check_condition("cond", condition)
    if is_readable(condition):
        chosen = if_true(*args) if condition else if_false(*args)
        return with_arrays(condition, chosen) if is_array(condition) else chosen
    structures, leaves = zip(*(parts_of(f(*args)) for f in (if_true, if_false)), strict=True)
    pairs = list(zip(*leaves, strict=False))
    if structures[0] != structures[1] or any(shape_of(x) != shape_of(y) for x, y in pairs):
        raise ValueError(
            "cond: expected results of both functions in the same containers and of the same shapes, got "
            f"{describe_structure(structures[0])}, {describe(*leaves[0])}, and {describe_structure(structures[1])}, "
            f"{describe(*leaves[1])}"
        )
    where = backend_of(condition).array_api.where if is_array(condition) else backend_of(condition).where
    result: R = unflatten(structures[0], iter([where(condition, x, y) for x, y in pairs]))
    return result


def check_condition(name: str, condition: R) -> R:
    """Return a condition. TypeError unless it is one number: None and containers have a truth value as well."""
    shape = shape_of(condition)
    if not hasattr(condition, "__float__") or math.prod(shape) != 1 or (is_array(condition) and shape):
        raise TypeError(
            f"{name}: expected one number as the condition, an array () or a tensor (1, 1), got {describe(condition)}. "
            "Reduce an array by all or any, or use where."
        )
    return condition


def with_arrays(condition: Any, result: R) -> R:
    """Return a result with arrays instead of its floats, as ``where`` returns them."""
    structure, leaves = parts_of(result)
    asarray = condition.backend.array_api.asarray
    arrays: R = unflatten(structure, iter([asarray(x) if isinstance(x, float) else x for x in leaves]))
    return arrays


def is_readable(x: Any) -> bool:
    """Return whether x has a value now: it is no argument of a function that is compiled, or one of many samples."""
    if not is_expression(x):
        return True
    tensors = tensors_of(operand_of(x))
    given = [t.given for t in tensors if isinstance(t, Variable)]
    return tracing() is None and None not in given and all(map(is_readable, given))


def shape_of(x: Any) -> tuple[int, ...]:
    """Return the shape of an array or tensor; () of a number."""
    return getattr(x, "shape", ())


# --- loops -----------------------------------------------------------------------------------------------------------


def while_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], init: R) -> R:
    """Return the state after the last step of a loop: ``while condition(state): state = body(state)``.

    It is a Python loop, with derivatives, where the condition has a value. In a function of ``jit`` or ``vmap``, where
    it has none, the loop is an op that runs both functions as programs, and has no derivative.

    Parameters
    ----------
    condition : callable
        A function of the state that returns one number, as an array () or a tensor (1, 1).
    body : callable
        A function of the state that returns the next one, in equal containers, of equal shapes and dtypes. In an op it
        assigns nothing and draws no random numbers, and what does not depend on the state is computed once.
    init : array, tensor, number or container of them
        The first state. Instead of numbers both functions get arrays, or beside tensors tensors.

    Returns
    -------
    arrays, tensors or containers of them
        The last state.

    Raises
    ------
    ValueError
        The states differ in containers, shapes or dtypes.
    TypeError
        The condition is not one number. A function reads a value, assigns to a tensor or draws random numbers, where
        the loop is an op.
    NotImplementedError
        When it is differentiated: the loop is an op. The derivative of integers and of ``stop_gradient(x)`` is 0.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> xp = nl.array_api
    >>> @nl.jit
    ... def root(x):  # by Newton's method
    ...     return nl.while_loop(lambda y: xp.abs(y * y - x) > 1e-5 * x, lambda y: (y + x / y) / 2, x)
    >>> root(xp.asarray(4.0)), root(xp.asarray(1e6))
    (Array(2., dtype=float32), Array(1000., dtype=float32))
    """
    check_function("while_loop: condition", condition)
    check_function("while_loop: body", body)
    structure, leaves = parts_of(init)
    be, has_tensors = backend_of(leaves), any(isinstance(x, Operand) for x in leaves)
    for k, x in enumerate(leaves):
        if not is_expression(x):
            leaves[k] = be.array(x, "int64" if type(x) is int else None) if has_tensors else be.array_api.asarray(x)
    state: Any = unflatten(structure, iter(leaves))
    while is_readable(is_running := check_condition("while_loop", condition(state))):
        if not is_running:
            return cast("R", state)
        state = next_state(state, body)
        evaluate_constants(state)
    assigned, source = assigned_values(), tree_structure.RandomSource(be)
    call = Call("while_loop", lambda state: (condition(state), next_state(state, body)), (state,), {})
    if [*map(id, assigned)] != [*map(id, assigned_values())]:
        raise TypeError(
            "while_loop: expected functions that return values, got one that assigns to a tensor, which a loop in a "
            "function of jit does once. Make the values a part of the state, and assign them after the loop."
        )
    structure, leaves, operands = call.outputs(call.result[1])
    live = functools.reduce(or_, [x.is_live for x in (*leaves, call.result[0]) if is_array(x)], 0)
    values = loop_operands(call.be, call.scalar(call.result[0]), operands, call.variables, source.number)
    pairs = zip(leaves, values, strict=True)
    last = unflatten(structure, iter([x.with_operand(y, None, live) if is_array(x) else y for x, y in pairs]))
    return cast("R", call.close_result(last)[0])


def assigned_values() -> list[Any]:
    """Return the values that the traced function has assigned so far."""
    trace = tracing()
    return [] if trace is None else [value for pairs in trace.written.values() for _, value in pairs]


def next_state(state: Any, body: Callable[[Any], Any]) -> Any:
    """Return the state after a step of a loop. ValueError if it is of another kind than the one before."""
    (structure, leaves), new = parts_of(state), body(state)
    operands, _ = match("while_loop", "the next state", new, structure, leaves)
    values = []
    for x, y, operand in zip(leaves, parts_of(new)[1], operands, strict=True):
        if operand is None or operand.info.dtype != operand_of(x).info.dtype:
            raise ValueError(
                f"while_loop: expected the next state in the dtypes of the state, got {describe(y)} after "
                f"{describe(x)}. Convert one of them."
            )
        values.append(x.with_operand(operand, None, y.is_live if is_array(y) else 0) if is_array(x) else operand)
    return unflatten(structure, iter(values))


# --- a loop, as one op ---


def loop_operands(
    be: Any, test: OpTreeNode, body: Sequence[Operand], variables: Sequence[Tensor], first_source: int
) -> list[Operand]:
    """Return the last state of a loop, given its condition and the next state as expressions of variables.

    What they read from outside is computed once, before the loop. Random numbers are if their source is older than the
    one of the number ``first_source``.
    """
    trees = [test, *body]
    random = [z.left for z in tree_structure.postorder(*trees) if z.info.op_def.kind == "random"]
    if any(source.number > first_source for source in random):
        raise TypeError(
            "while_loop: expected a loop without random numbers, which would be the same in each step, got a function "
            "that draws them. Draw them before the loop, and take those of a step by their index."
        )
    operands = [*variables, *loop_invariants(trees, variables)]
    # without the memory of tensors, which the cache of structures would keep
    places = [Argument(None, be.tensor_info(x.shape, x.info.dtype), getattr(x, "name", None)) for x in operands]
    trees = substitute(trees, {id(x): y for x, y in zip(operands, places, strict=True)})
    key = (loop_operands, structure_key(trees, places))
    op = be.structures.find(key) or be.structures.add(key, op_of_loop(be, trees, places))
    is_exact = all(x.info.dtype not in typing.FLOAT_DTYPES for x in variables)
    packed = build_node(be, op, operands, {"to": "int64" if is_exact else "float64"})
    return split_row(packed, variables)


def loop_invariants(trees: Sequence[Operand], variables: Sequence[Tensor]) -> list[Operand]:
    """Return the largest parts of op-trees that do not depend on variables, but views of tensors as the tensors."""
    nodes = [*tree_structure.postorder(*trees)]
    varying = {id(x) for x in variables}
    for z in nodes:
        if any(id(x) in varying for x in z.operands):
            varying.add(id(z))
    opened, found = {*varying}, dict[int, Operand]()
    for z in (None, *reversed(nodes)):
        for x in trees if z is None else z.operands if id(z) in opened else ():
            if isinstance(x, OpTreeNode) and x.info.op_def.kind == "view":  # type: ignore[union-attr]
                opened.add(id(x))
            elif isinstance(x, Operand):
                found[id(x)] = x
    return [x for x in found.values() if id(x) not in varying]


def op_of_loop(be: Any, trees: Sequence[Any], places: Sequence[Argument]) -> Op:
    """Return the op of a loop: it computes the last state, all parts in one row of one dtype."""
    count, size = len(trees) - 1, sum(x.size for x in places[: len(trees) - 1])
    condition, step = (Program(be, places, Trace("while_loop"), results) for results in (trees[:1], trees[1:]))

    def run(xp: Any, *arrays: Any, to: str) -> Any:
        with be.memory_tracker.separate_buffers():
            tensors = [new_tensor(be, be.runtime.empty, x.info) for x in places]
            for t, x in zip(tensors, arrays, strict=True):
                t.storage[...] = x
            while condition(tensors)[0].get().item():
                tensors[:count] = step(tensors)
            if to == "float64":
                check_exact(tensors[:count])
            dtype = be.runtime.dtype(to)
            return xp.concat([xp.astype(xp.reshape(x.storage, (1, -1)), dtype) for x in tensors[:count]], axis=1)

    def no_gradient(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(
            "while_loop: expected a loop that is not differentiated, in a function of jit or vmap. Use scan, of a "
            "fixed number of steps; or differentiate outside of jit and vmap."
        )

    return Op("while_loop", run, no_gradient, "the state after a loop", arity=-1, kind="library", may_raise=True,
              shape_fn=lambda *_, **__: (1, size), result_dtype="explicit", promoted_operands=slice(0),
              has_method=False)  # fmt: skip


def check_exact(state: Sequence[Tensor]) -> None:
    """Raise OverflowError if a part of a state has integers that float64 does not have."""
    for x in state:
        values = x.get()
        if x.info.dtype in ("int64", "uint64") and ((values > 2**53) | (values < -(2**53))).any():
            raise OverflowError(
                f"while_loop: expected integers up to 2**53 in a state with floats, got {describe(x)}. Split the state."
            )


# --- recurrences -----------------------------------------------------------------------------------------------------


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: int | None = None
) -> tuple[Any, Any]:
    """Return the last state of a recurrence and the outputs of all its steps: ``state, y = f(state, x)``.

    It is a Python loop: a function of ``jit`` gets the ops of all steps. For no steps, the function is called once with
    inputs of 0, as the outputs have its shapes.

    Parameters
    ----------
    f : callable
        A function of the state and of the input of a step that returns a pair, the next state and an output. States
        are in equal containers, of equal shapes.
    init : array, tensor, float or container of them
        The first state.
    xs : array, tensor or container of them, optional
        The inputs; those of a step are at an index along the first axis. None: each step gets None.
    length : int, optional
        The number of steps; without it that of the inputs.

    Returns
    -------
    state, outputs
        The last state; and the outputs, stacked along a new first axis.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> xp = nl.array_api
    >>> f = lambda decay: nl.scan(lambda s, x: (decay * s + x, s), 0.0, xp.asarray([1.0, 2.0, 3.0]))[0]
    >>> f(0.5), nl.grad(f)(0.5)
    (Array(4.25, dtype=float32), Array(3., dtype=float32))
    """
    check_function("scan", f)
    structure, inputs = (None, []) if xs is None else parts_of(xs)
    lengths = [shape_of(x)[0] if shape_of(x) else -1 for x in inputs] + ([] if length is None else [length])
    if len({*lengths}) != 1 or -1 in lengths:
        raise ValueError(
            f"scan: expected inputs with one number of steps along their first axis, or length, got {length=} and "
            f"{describe(*inputs) if inputs else 'no inputs'}"
        )
    state, outputs, layout = init, [], None
    expected, steps = container_of(init), lengths[0]
    for k in range(max(steps, 1)):
        parts = [x[k] if steps else element_of_zeros(x) for x in inputs]
        pair: Any = f(state, None if xs is None else unflatten(structure, iter(parts)))
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(f"scan: expected a pair (state, output) from the function, got {describe(pair)}")
        state = pair[0]
        if container_of(state) != expected:
            raise ValueError(
                f"scan: expected a state in the containers and of the shapes of the first one, got {describe(state)} "
                f"in step {k + 1}, after {describe(init)}"
            )
        layout, leaves = parts_of(pair[1])
        outputs.append(leaves)
    be = backend_of(state, *outputs)
    columns = [None if None in column else stack(be, column) for column in zip(*outputs, strict=True)]
    if not steps:
        state, columns = init, [None if column is None else column[:0] for column in columns]
    return state, unflatten(layout, iter(columns))


def container_of(x: Any) -> tuple[Any, list[tuple[int, ...]]]:
    """Return the structure of nested containers, and the shapes of their parts."""
    structure, leaves = parts_of(x)
    return structure, [shape_of(leaf) for leaf in leaves]


def element_of_zeros(x: Any) -> Any:
    """Return zeros of the shape and dtype of an element along the first axis of an empty array."""
    xp = backend_of(x).array_api
    return xp.zeros(x.shape[1:], dtype=xp.asarray(x).dtype)


def stack(be: Any, column: Sequence[Any]) -> Any:
    """Return arrays, or tensors, stacked along a new first axis."""
    if all(isinstance(x, Operand) for x in column):
        return be.stack(list(column), axis=0)
    return be.array_api.stack([be.array_api.asarray(x) for x in column])
