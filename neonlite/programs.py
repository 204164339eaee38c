"""``jit``: a Python function of tensors, compiled to one program for each structure of its arguments.

The function is called once with arguments without values. The op-trees that it builds, and the assignments that it
makes, are recorded in a ``Trace``, and compiled to a ``Program``: one plan that computes all values, and then writes
them. Later calls run the program only.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

from neonlite.backend import base
from neonlite.backend.base import BackendBase, Untracked
from neonlite.backend.cache import Cache
from neonlite.backend.planning.assignment import add_error_context, check_assignable, find_plan, pair_values, run_plan
from neonlite.backend.tensor import Tensor, overlap, parse_index
from neonlite.backend.transaction import atomic
from neonlite.backend.validation import check_open, function
from neonlite.messages import describe
from neonlite.optree import Operand, OpTreeNode
from neonlite.tree_structure import Info, traces

P = ParamSpec("P")
R = TypeVar("R")

MAX_PROGRAMS = 64  # of a function


class Argument(Tensor):
    """An argument of a function that is traced: a tensor without values."""

    __slots__ = ("function",)

    def __init__(self, info: Info, name: str, function: str) -> None:
        super().__init__(None, info, name)
        self.function = function

    @property
    def storage(self) -> Any:
        """Raise RuntimeError: it has no values."""
        raise RuntimeError(
            f"{self.function}: expected an argument that is used in the call only, got {self.name}, which a call has "
            "kept, as in a global variable or an attribute. Return it instead."
        )

    @storage.setter
    def storage(self, value: object) -> None:
        """Ignore the array, None."""

    # views are op-trees, as there is no memory to view

    def __getitem__(self, index: Any) -> Any:
        be: Any = self.backend
        parsed = parse_index(self, index)
        if parsed is None:
            raise TypeError(
                f"{self.function}: expected integers and slices as an index of {self.name}, got {describe(index)}. Use "
                "be.take."
            )
        slices, dropped = parsed
        shape = [count for _, count, _ in slices]
        for axis in reversed(dropped):
            if len(shape) > self._min_dims:
                del shape[axis]
        return be.reshape(be.build("slice", self, index=tuple(slices)), tuple(shape))

    def reshape(self, *shape: Any) -> Any:
        return self.backend.reshape(self, *shape)

    def permute(self, axes: tuple[int, ...]) -> Any:
        return self.backend.transpose(self, axes)

    _permute = permute


class Trace:
    """What a traced function assigns to tensors, and what it does before each run.

    An expression has the values that its tensors have where it is built: one that is built after an assignment reads
    the assigned expression instead of the tensor.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.written: dict[int, list[tuple[Tensor, Operand]]] = {}  # {id of the memory: tensors and values}
        self.before_run: list[Callable[[], None]] = []

    def read(self, x: Tensor) -> Operand:
        """Return the value of a tensor at this point: the expression assigned to it, or the tensor itself."""
        written = self.written.get(id(x.allocation))
        if written is None:
            return x
        views: list[Any] = []
        base = x
        while True:
            for t, value in written:
                if t is base or overlap(t, base) == "exact":
                    return functools.reduce(lambda y, view: y.backend.build(view[0], y, **view[1]), views[::-1], value)
            if base.base is None or base.view_op is None:
                break
            views.append(base.view_op)
            base = base.base
        self._check_whole(x, written)
        return x

    def write(self, tensors: Sequence[Tensor], values: Sequence[Any]) -> None:
        """Record an assignment of values, each an operand or a number."""
        pairs = []
        for t, value in zip(tensors, values, strict=True):
            be = t.backend
            operand = self.read(value) if isinstance(value, Tensor) else value
            operand = operand if isinstance(operand, Operand) else be.array(operand, dtype=t.info.dtype)
            check_assignable(be, t, operand)
            pairs.append((t, be.broadcast_to(be.astype(operand, t.info.dtype), t.shape)))
        for t, value in pairs:
            written = self.written.setdefault(id(t.allocation), [])
            written[:] = [(x, y) for x, y in written if overlap(x, t) != "exact"]
            self._check_whole(t, written)
            written.append((t, value))

    def _check_whole(self, x: Tensor, written: Iterable[tuple[Tensor, Operand]]) -> None:
        """Raise ValueError if a part of a tensor has been assigned, or it is a part of an assigned one."""
        for t, _ in written:
            if overlap(x, t) == "partial":
                raise ValueError(
                    f"{self.name}: expected tensors that are written as a whole, got {describe(x)} after a part of its "
                    f"memory was written as {describe(t)}. Join the parts with be.concat, and assign the whole once."
                )

    def refuse_read(self, what: object) -> None:
        """Raise TypeError: the values of a tensor are read."""
        raise TypeError(
            f"{self.name}: expected expressions while the function is traced, got a value that is read, of "
            f"{describe(what)}, as by if, float, print or get. Use be.where(condition, a, b) instead of if; pass what "
            f"decides in Python as a static argument: jit(f, static=('name',))."
        )


def tracing() -> Trace | None:
    """Return the trace of this thread, or None."""
    return traces.get(get_ident()) if traces else None


# --- containers of arguments and results -----------------------------------------------------------------------------


def flatten(x: Any, leaves: list[Any]) -> Any:
    """Append the leaves of nested lists, tuples and dicts to a list; return the structure, with None for each leaf."""
    if isinstance(x, list | tuple):
        return type(x).__name__, type(x), tuple([flatten(y, leaves) for y in x])
    if isinstance(x, dict):
        return "dict", tuple(x), tuple([flatten(y, leaves) for y in x.values()])
    leaves.append(x)
    return None


def unflatten(structure: Any, leaves: Any) -> Any:
    """Return nested lists, tuples and dicts of a structure, with the next leaves of an iterator."""
    if structure is None:
        return next(leaves)
    kind, detail, parts = structure
    values = [unflatten(part, leaves) for part in parts]
    if kind == "dict":
        return dict(zip(detail, values, strict=True))
    return detail(*values) if hasattr(detail, "_fields") else detail(values)


class Static:
    """A static argument, a leaf that equals those of equal values."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and type(self.value) is type(other.value) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


def rewrap(like: Any, x: Any) -> Any:
    """Return a result as an array of ``neonlite.array_api``, if it was one."""
    return x if like is None else like.with_operand(x)


def operand_of(x: Any) -> Any:
    """Return the operand of an array of ``neonlite.array_api``; anything else unchanged."""
    return getattr(x, "operand", x)


# --- programs --------------------------------------------------------------------------------------------------------


class Program(Untracked):
    """One plan that computes the results of a function and what it assigns. ``print(program)`` shows it.

    Parameters
    ----------
    be : Backend
        The backend.
    arguments : list of Argument
        The arguments, of which each run has the values of other tensors.
    trace : Trace
        The assignments.
    results : list
        The results: op-trees, tensors or other objects.
    """

    def __init__(self, be: Any, arguments: Sequence[Argument], trace: Trace, results: Sequence[Any]) -> None:
        self.be, self.name, self.before_run = be, trace.name, trace.before_run
        written = [pair for pairs in trace.written.values() for pair in pairs]
        self.targets = [t for t, _ in written]
        values: list[Any] = [value for _, value in written]
        self.results: list[Any] = []  # the number of an output, or (argument's number,), or an object itself
        self.outputs: list[Info] = []
        numbers = {id(x): k for k, x in enumerate(arguments)}
        for x in results:
            if id(x) in numbers:
                self.results.append(("argument", numbers[id(x)]))
            elif isinstance(x, OpTreeNode):
                self.results.append(("output", len(self.outputs)))
                self.outputs.append(x.info)
                values.append(x)
            else:
                self.results.append(("object", x))
        if not values:
            self.plan = None
            return
        targets = [*self.targets, *(Tensor(None, be.tensor_info(x.shape, x.dtype)) for x in self.outputs)]
        self.tree = values[0] if len(values) == 1 else pair_values(be, targets, values)
        if not isinstance(self.tree, OpTreeNode):
            self.tree = be.stop_gradient(self.tree)
        self.plan, operands = find_plan(be, targets, self.tree)
        self.operands = list(operands)
        self.places = [(i, numbers[id(x)]) for i, x in enumerate(self.operands) if id(x) in numbers]
        self.arrays = [t.storage for t in self.targets]
        self.values = [
            None if type(x) is Argument else x.storage if isinstance(x, Tensor) else x for x in self.operands
        ]
        known = [*self.targets, *(x for x in self.operands if isinstance(x, Tensor) and type(x) is not Argument)]
        self.memories = {id(t.allocation) for t in known}

    def __call__(self, arguments: Sequence[Tensor]) -> list[Any]:
        """Run the program, and return the results."""
        be, plan = self.be, self.plan
        if be.closed_by:
            check_open(be)
        for prepare in self.before_run:
            prepare()
        outputs = [be.empty(info.shape, info.dtype) for info in self.outputs]
        if plan is not None:
            values = self.values.copy()
            operands: Any = self.operands
            for i, k in self.places:
                x = arguments[k]
                if id(x.allocation) in self.memories:  # it may share memory with a tensor that the program writes
                    x = x.copy()
                values[i] = x.storage
            arrays = [*self.arrays, *[x.storage for x in outputs]]
            if plan.int_range_checks or be.memory_tracker.has_layout_caches:
                operands = self.operands.copy()
                for i, k in self.places:
                    operands[i] = arguments[k]
                run_plan(be, plan, [*self.targets, *outputs], operands, arrays, values, self.tree)
            else:
                try:
                    plan.run(arrays, values)
                except Exception as error:
                    raise add_error_context(be, error, self.targets, self.tree) from error
        return [
            x if kind == "object" else arguments[x] if kind == "argument" else outputs[x] for kind, x in self.results
        ]

    def __repr__(self) -> str:
        return f"program of {self.name}: {self.plan}"


class Compiled(NamedTuple):
    """A program of a function, the structure of the arguments that it is for, and that of its results."""

    arguments: str
    program: Program
    structure: Any
    arrays: tuple[Any, ...]  # for each result, the array of ``neonlite.array_api`` that it is like, or None


class Jit(Generic[P, R]):
    """A compiled function: what ``jit(f)`` returns. ``f.programs`` lists what was compiled."""

    def __init__(self, f: Callable[P, R], static: Sequence[str] = ()) -> None:
        functools.update_wrapper(self, f)
        self.f, self.static = f, frozenset([static] if isinstance(static, str) else static)
        self.name = f"jit({getattr(f, '__name__', type(f).__name__)})"
        self.cache = Cache(MAX_PROGRAMS)

    @property
    def programs(self) -> list[tuple[str, Program]]:
        """The structures of arguments for which the function was compiled, and the programs."""
        return [(compiled.arguments, compiled.program) for compiled in self.cache.values()]

    def clear(self) -> None:
        """Forget all programs, so that the function is traced again: after a change of what it reads in Python."""
        self.cache.clear()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function: run its program for arguments of this structure, compiled at the first call."""
        if tracing() is not None:  # a part of another function
            return self.f(*args, **kwargs)
        leaves: list[Any] = []
        structure = flatten(self._mark_static(args, kwargs) if self.static else (args, kwargs), leaves)
        be = next((operand_of(x).backend for x in leaves if isinstance(operand_of(x), Tensor)), None)
        be = base.current_backend() if be is None else be
        tensors: list[Tensor] = []
        key: list[Any] = [id(be), structure]
        for x in leaves:
            operand = operand_of(x)
            if isinstance(operand, OpTreeNode):
                operand = operand.astensor()
            elif isinstance(x, float) or (hasattr(x, "dtype") and not isinstance(operand, Tensor)):
                operand = be.array(x)
            if isinstance(operand, Tensor):
                tensors.append(operand)
                key.append((operand.info, getattr(x, "shape", ()) if x is not operand else None))
            else:
                key.append((type(x), x))
        try:
            compiled = self.cache.find(tuple(key))
        except TypeError:
            raise TypeError(
                f"{self.name}: expected arguments that are tensors, arrays, numbers, or objects that can be hashed, in "
                f"nested lists, tuples and dicts, got {describe(*leaves)}"
            ) from None
        if compiled is None:
            compiled = self.cache.add(tuple(key), self._compile(be, structure, leaves, tensors))
        results = atomic(compiled.program, tensors)
        return unflatten(compiled.structure, (rewrap(*pair) for pair in zip(compiled.arrays, results, strict=True)))

    def _mark_static(self, args: Any, kwargs: Any) -> Any:
        """Return the arguments with the static ones marked as such. TypeError if the function has none of a name."""
        bound = inspect.signature(self.f).bind(*args, **kwargs)
        for name in self.static:
            if name in bound.arguments:
                bound.arguments[name] = Static(bound.arguments[name])
        return bound.args, bound.kwargs

    def _compile(self, be: BackendBase, structure: Any, leaves: Sequence[Any], tensors: Sequence[Tensor]) -> Compiled:
        """Trace the function, and compile a program."""
        arguments, given, rest = [], [], iter(tensors)
        for k, x in enumerate(leaves):
            if isinstance(operand_of(x), Operand) or isinstance(x, float) or hasattr(x, "dtype"):
                t = next(rest)
                arguments.append(Argument(t.info, getattr(operand_of(x), "name", None) or f"x{k}", self.name))
                given.append(x.with_operand(arguments[-1]) if hasattr(x, "with_operand") else arguments[-1])
            else:
                given.append(x.value if isinstance(x, Static) else x)
        args, kwargs = unflatten(structure, iter(given))
        trace = Trace(self.name)
        thread = get_ident()
        traces[thread] = trace
        try:
            value = self.f(*args, **kwargs)
            results: list[Any] = []
            returned = flatten(value, results)
            operands = [trace.read(y) if isinstance(y := operand_of(x), Tensor) else y for x in results]
        finally:
            del traces[thread]
        program = Program(be, arguments, trace, operands)
        arrays = tuple(x if hasattr(x, "with_operand") else None for x in results)
        return Compiled(describe(*leaves), program, returned, arrays)


@overload
def jit(f: Callable[P, R], static: Sequence[str] = ()) -> Jit[P, R]: ...
@overload
def jit(f: None = None, static: Sequence[str] = ()) -> Callable[[Callable[P, R]], Jit[P, R]]: ...
def jit(f: Any = None, static: Sequence[str] = ()) -> Any:
    """Return a function compiled to one program for each structure of its arguments.

    The first call with arguments of a new structure (shapes, dtypes, containers, and the values of all that is no
    tensor, array or float) calls ``f`` with arguments without values, and compiles the op-trees that it builds and the
    assignments that it makes to one plan. Later calls run the plan only. All values are computed from what the
    tensors hold where the expression stands, and all are computed before any is written.

    Parameters
    ----------
    f : callable
        A function of tensors, arrays and numbers, also in nested lists, tuples and dicts. It returns op-trees,
        tensors, or containers of them. Without it, ``jit`` is a decorator with options.
    static : sequence of str
        Names of float arguments that are part of the structure.

    Returns
    -------
    callable
        The compiled function; ``f.programs`` lists the programs, and ``f.clear()`` forgets them.

    Raises
    ------
    TypeError
        When it is called: the function reads a value, as by ``if``, or an argument cannot be hashed.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> w = be.array([[1.0, 2.0]], name="w")
    >>> @nl.jit
    ... def step(x, rate):
    ...     error = w - x
    ...     w[:] = w - rate * error
    ...     return be.sum(error * error)
    >>> for _ in range(3):
    ...     print(step(be.zeros((1, 2)), 0.5).get())
    [[5.]]
    [[1.25]]
    [[0.3125]]
    """
    if f is None:
        return functools.partial(jit, static=static)
    function("jit", f, "a function")
    return Jit(f, static)
