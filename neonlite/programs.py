"""``jit``: a Python function of tensors, compiled to one program for each structure of its arguments.

The function is called once with arguments without values. The op-trees that it builds, and the assignments that it
makes, are recorded in a ``Trace``, and compiled to a ``Program``: one plan that computes all values, and then writes
them. Later calls run the program only.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from operator import methodcaller
from threading import get_ident
from types import FunctionType, MethodType
from typing import Any, Generic, NamedTuple, NoReturn, ParamSpec, Self, TypeVar, overload

from neonlite import name_hints, typing
from neonlite.backend.concurrency import Cache, create_lock
from neonlite.backend.creation import new_tensor
from neonlite.backend.objects import AttributeSnapshot
from neonlite.backend.planning.assignment import CompiledAssignment, as_operand
from neonlite.backend.tensor import Tensor, overlap, parse_index
from neonlite.backend.transaction import Snapshot, atomic, begin_last_write
from neonlite.backend.validation import check_open, function
from neonlite.messages import describe
from neonlite.optree import Operand, OpTreeNode
from neonlite.tree_structure import Info, is_inside, traces, transforms
from neonlite.typing import Untracked

P = ParamSpec("P")
R = TypeVar("R")

MAX_PROGRAMS = 64  # of a function
NO_NAMES = (), ()  # the structure of no named arguments


class Argument(Tensor):
    """A tensor that has no values outside of a call: an argument of a traced function, or one that it has created."""

    __slots__ = ()
    has_values = False

    @property
    def storage(self) -> Any:
        """Raise RuntimeError: it has no values."""
        if (trace := tracing()) is not None:
            trace.check_access(self)
        raise RuntimeError(
            f"jit: expected a tensor that is used in one call of its function, got {self.name or 'a tensor'} "
            f"{self.shape}, an argument or a new tensor that the function has kept, as in a global variable or an "
            "attribute. Return its value, or create the tensor before the call."
        )

    @storage.setter
    def storage(self, value: object) -> None:
        """Ignore the array, None."""

    def __repr__(self) -> str:
        return f"Tensor(without values, {self.name!r}, {self.shape}, {self.info.dtype}, {self.backend.name})"

    # views are op-trees, as there is no memory to view

    def __getitem__(self, index: Any) -> Any:
        be: Any = self.backend
        parsed = parse_index(self, index)
        if parsed is None:
            raise TypeError(
                f"jit: expected integers and slices as an index of {self.name}, got {describe(index)}. Use "
                "be.take(x, indices, axis), or be.where for a mask."
            )
        slices, dropped = parsed
        shape = [count for _, count, _ in slices]
        for axis in reversed(dropped):
            if len(shape) > self._min_dims:
                del shape[axis]
        return be.reshape(be.build("slice", self, index=tuple(slices)), tuple(shape))

    def reshape(self, *shape: Any) -> Any:
        return self.backend.reshape(self, *shape)

    def share(self, shape: Any, dtype: Any = None, name: str | None = None) -> NoReturn:
        raise TypeError(f"jit: expected no view of a part of {self.name}, got share({shape}). Use reshape or a slice.")

    def permute(self, axes: tuple[int, ...]) -> Any:
        return self.backend.transpose(self, axes)

    _permute = permute


class Trace:
    """What a traced function assigns to tensors, and what it does before each run.

    An expression has the values that its tensors have where it is built: one that is built after an assignment reads
    the assigned expression instead of the tensor. A tensor that the function creates is new in each call.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.created: dict[int, Any] = {}  # {id of the memory: memory} of the tensors that the function has created
        self.written: dict[int, list[tuple[Tensor, Operand]]] = {}  # {id of the memory: tensors, sorted, and values}
        # {id of the memory: {id of a tensor: it, and the expression that it reads as}}
        self.values: dict[int, dict[int, tuple[Tensor, Operand]]] = {}
        self.steps: list[Any] = []  # with ``current_updates()``, ``count()`` and ``finish()``, for each run
        self.activation_inputs: dict[Any, Any] = {}  # {layer: its inputs}
        self.uses: list[Any] = []  # layers and other objects whose attributes the function reads

    def __enter__(self) -> Self:
        """Trace what this thread does in a ``with`` block."""
        traces[get_ident()] = self
        return self

    def __exit__(self, *error: object) -> None:
        del traces[get_ident()]

    def read(self, x: Tensor) -> Operand:
        """Return the value of a tensor at this point: the expression assigned to it, or the tensor itself."""
        written = self.written.get(id(x.allocation))
        if written is None:
            return x
        values = self.values.setdefault(id(x.allocation), {})
        if id(x) not in values:
            be, steps, base = x.backend, [], x
            while not (found := [pair for pair in written[find_range(written, base)] if is_same_memory(pair[0], base)]):
                if base.base is None or base.view_op is None:
                    self._check_whole(x, written[find_range(written, x)])
                    return x
                steps.append(base.view_op)
                base = base.base
            value = be.reshape(found[0][1], base.shape)
            for op, attrs in reversed(steps):
                value = be.build(op, value, **attrs)
            values[id(x)] = x, be.stop_gradient(value)
        return values[id(x)][1]

    def write(self, tensors: Sequence[Tensor], values: Sequence[Any]) -> None:
        """Record an assignment of values, each an operand or a number."""
        pairs = []
        for t, value in zip(tensors, values, strict=True):
            if isinstance(t, Argument):
                raise TypeError(
                    f"{self.name}: expected an assignment to a tensor that is no argument, got {describe(t)}. Return "
                    "the new value, and assign it after the call; instead of x += y write x = x + y."
                )
            be = t.backend
            operand = as_operand(be, t, value)
            operand = be.stop_gradient(operand) if isinstance(operand, Tensor) else operand
            pairs.append((t, be.broadcast_to(be.astype(operand, t.info.dtype), t.shape)))
        for t, value in pairs:
            written = self.written.setdefault(id(t.allocation), [])
            overlapping = find_range(written, t)
            self._check_whole(t, written[overlapping])
            written[overlapping] = [(t, value)]
            self.values.pop(id(t.allocation), None)

    def _check_whole(self, x: Tensor, written: Iterable[tuple[Tensor, Operand]]) -> None:
        """Raise ValueError if a part of a tensor has been assigned, or it is a part of an assigned one."""
        for t, _ in written:
            if overlap(x, t) == "partial" and not is_same_memory(x, t):
                raise ValueError(
                    f"{self.name}: expected tensors that are written as a whole, got {describe(x)} after a part of its "
                    f"memory was written as {describe(t)}. Join the parts with be.concat, and assign the whole once."
                )

    def check_access(self, x: Tensor) -> None:
        """Raise TypeError if the values of a tensor are read or written at once, unless it is a constant."""
        if isinstance(x, Argument) or id(x.allocation) not in self.created or id(x.allocation) in self.written:
            self.refuse(
                f"a value of {describe(x)} that is read or written at once, as by if, max, float, get or a primitive",
                "Use be.where(condition, a, b) instead of if, and be.maximum instead of max; return what you read by "
                "float or get; pass what decides in Python as a static argument: jit(f, static=('name',))",
            )

    def refuse(self, what: str, way_out: str) -> NoReturn:
        """Raise TypeError: something runs at once, which would not be a part of the program."""
        raise TypeError(f"{self.name}: expected expressions while the function is traced, got {what}. {way_out}.")

    def assignments(self) -> list[tuple[Tensor, Operand]]:
        """Return the tensors of the outside that are written, and their values."""
        return [pair for key, pairs in self.written.items() if key not in self.created for pair in pairs]

    def close(self) -> None:
        """Let tensors that the function has created and written raise an error if they are used after the call."""
        for key in self.written.keys() & self.created.keys():
            for t, _ in self.written[key]:
                t.root.__class__ = t.__class__ = Argument


def find_range(written: Sequence[tuple[Tensor, Operand]], x: Tensor) -> slice:
    """Return where tensors overlap x, among sorted tensors of its memory of which no two overlap."""
    start = bisect_right(written, x.span[0], key=lambda pair: pair[0].span[1])
    return slice(start, bisect_left(written, x.span[1], lo=start, key=lambda pair: pair[0].span[0]))


def is_same_memory(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors of one memory have the same elements in the same order, maybe in another shape."""
    return x is y or overlap(x, y) == "exact" or (x.is_contiguous and y.is_contiguous and x.span == y.span)


def tracing() -> Trace | None:
    """Return the trace of this thread, or None."""
    return traces.get(get_ident()) if traces else None


# --- containers of arguments and results -----------------------------------------------------------------------------


def flatten(x: Any, leaves: list[Any]) -> Any:
    """Append the leaves of nested lists, tuples and dicts to a list; return the structure, with None for each leaf."""
    kind: Any
    children: Any
    if isinstance(x, list | tuple):
        kind, children = type(x), x
    elif isinstance(x, dict):
        kind, children = tuple(x), x.values()
    else:
        leaves.append(x)
        return None
    parts = []
    for y in children:
        if isinstance(y, list | tuple | dict):
            parts.append(flatten(y, leaves))
        else:
            leaves.append(y)
            parts.append(None)
    return kind, tuple(parts)


def unflatten(structure: Any, leaves: Any) -> Any:
    """Return nested lists, tuples and dicts of a structure, with the next leaves of an iterator."""
    if structure is None:
        return next(leaves)
    kind, parts = structure
    values = [unflatten(part, leaves) for part in parts]
    if isinstance(kind, tuple):
        return dict(zip(kind, values, strict=True))
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def label_leaves(structure: Any, name: str) -> Iterator[str]:
    """Yield the name of each leaf of an argument: that of its parameter, with indices in a container."""
    if structure is None:
        yield name
        return
    kind, parts = structure
    for key, part in zip(kind if isinstance(kind, tuple) else range(len(parts)), parts, strict=True):
        yield from label_leaves(part, f"{name}[{key!r}]")


def name_parameters(f: Callable[..., Any], count: int) -> list[str]:
    """Return the names of the first parameters of a function; x0, x1 and so on where it has none."""
    names: Sequence[str] = ()
    if isinstance(f := inspect.unwrap(f), FunctionType):  # faster than its signature
        names = f.__code__.co_varnames[: f.__code__.co_argcount]
    else:
        with suppress(TypeError, ValueError):  # a built-in function has no signature
            names = [p.name for p in inspect.signature(f).parameters.values() if p.kind <= p.POSITIONAL_OR_KEYWORD]
    return [names[n] if n < len(names) else f"x{n}" for n in range(count)]


class Static:
    """A static argument, or a part of one: a leaf that equals those of the same type and digits."""

    def __init__(self, name: str, value: object) -> None:
        if isinstance(value, Operand) or hasattr(value, "operand"):
            raise TypeError(
                f"jit: expected a static argument {name} that is no tensor or array, got {describe(value)}. Remove "
                f"{name!r} from static."
            )
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Static) or type(self.value) is not type(other.value):
            return False
        is_float = isinstance(self.value, float)  # 0.0 and -0.0 are two values
        return repr(self.value) == repr(other.value) if is_float else self.value == other.value

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
        self.be, self.name, self.steps = be, trace.name, trace.steps
        self.attributes = AttributeSnapshot(trace.uses, "unread_attributes") if trace.uses else None
        written = trace.assignments()
        self.targets = [t for t, _ in written]
        self.changes_state = bool(self.targets or self.steps)  # whether a run changes more than its results
        values: list[Any] = []  # results first: random numbers are drawn in their order, as in a forward pass
        self.results: list[Any] = []  # the number of an output, or (argument's number,), or an object itself
        self.inputs, self.outputs = [x.info for x in arguments], list[Info]()
        numbers = {id(x): k for k, x in enumerate(arguments)}
        for x in results:
            if id(x) in numbers:
                self.results.append(("argument", numbers[id(x)]))
            elif isinstance(x, OpTreeNode) or (isinstance(x, Tensor) and id(x.allocation) in trace.created):
                self.results.append(("output", len(self.outputs)))
                self.outputs.append(be.tensor_info(x.shape, x.info.dtype))
                values.append(x)
            else:
                self.results.append(("object", x))
        self.arrays, self.assignment = [t.storage for t in self.targets], None
        self.places: list[tuple[int, int]] = []  # the indices of an operand of the plan, and of its argument
        values += [value for _, value in written]
        if not values:
            return
        targets = [*(Tensor(None, info) for info in self.outputs), *self.targets]
        self.assignment = CompiledAssignment(be, targets, values)
        self.places = [(i, numbers[id(x)]) for i, x in enumerate(self.assignment.operands) if id(x) in numbers]
        self.values = self.assignment.operand_values
        self.memories = {id(t.allocation) for t in self.targets}

    def is_current(self) -> bool:
        """Return whether no layer has changed, nor the states of optimizers that the function has read."""
        has_states = None not in map(methodcaller("current_updates"), self.steps)
        return has_states and (self.attributes is None or self.attributes.is_unchanged())

    def __call__(self, arguments: Sequence[Tensor]) -> list[Any]:
        """Run the program, and return the results."""
        be = self.be
        if be.closed_by:
            check_open(be)
        for step in self.steps:
            step.count()
        outputs = self._allocate(self.outputs)
        if not begin_last_write(self) and self.steps:
            self.snapshot.take()
        if self.steps and be.graphs is not None and all(step.optimizer.cuda_graphs for step in self.steps):
            self._replay(outputs, arguments)
        else:
            self._run(outputs, arguments)
        for step in self.steps:
            step.finish()
        results = []
        for kind, x in self.results:
            results.append(x if kind == "object" else arguments[x] if kind == "argument" else outputs[x])
        return results

    def _run(self, outputs: Sequence[Tensor], arguments: Sequence[Tensor]) -> None:
        """Run the plan for arguments; write the outputs and the targets."""
        if self.assignment is not None:
            arrays, values = [*(x.storage for x in outputs), *self.arrays], self.values.copy()
            for i, k in self.places:
                x = arguments[k]
                if id(x.allocation) in self.memories:  # it may share memory with a tensor that the program writes
                    x = x.copy()
                values[i] = x.storage
            self.assignment.run([*outputs, *self.targets], arrays, values)

    def _replay(self, outputs: Sequence[Tensor], arguments: Sequence[Tensor]) -> None:
        """Copy the arguments to the tensors of a CUDA graph, launch it, and copy its results to the outputs."""
        graph_inputs, graph_outputs = self.graph_tensors
        for _, k in self.places:
            graph_inputs[k].copy(arguments[k])
        self.be.replay(self, functools.partial(self._run, graph_outputs, graph_inputs))
        for y, x in zip(outputs, graph_outputs, strict=True):
            y.copy(x)

    def _allocate(self, infos: Sequence[Info]) -> list[Tensor]:
        return [new_tensor(self.be, self.be.runtime.empty, info) for info in infos]

    @functools.cached_property
    def graph_tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        """The arguments and the outputs of each launch of the program's CUDA graph."""
        return self._allocate(self.inputs), self._allocate(self.outputs)

    @functools.cached_property
    def snapshot(self) -> Snapshot:
        """Copies of what the program writes, for a transaction that may fail after it."""
        return Snapshot(self.targets)

    def __repr__(self) -> str:
        return f"program of {self.name}: {self.plan}"

    @property
    def plan(self) -> Any:
        """The plan; None for a program that computes nothing."""
        return None if self.assignment is None else self.assignment.plan


class Compiled(NamedTuple):
    """A program of a function, the structure of the arguments that it is for, and that of its results."""

    arguments: str
    program: Program
    structure: Any
    arrays: list[Any]  # for each result, the array of ``neonlite.array_api`` that it is like, or None; empty if none is


@name_hints.add_hints(name_hints.JIT)
class Jit(Untracked, Generic[P, R]):
    """A compiled function: what ``jit(f)`` returns. ``f.programs`` lists what was compiled."""

    def __init__(self, f: Callable[P, R], static: Sequence[str] = ()) -> None:
        functools.update_wrapper(self, f)
        self.f, self.static = f, frozenset([static] if isinstance(static, str) else static)
        self.name = f"jit({getattr(f, '__name__', type(f).__name__)})"
        if unknown := self.static - {*(inspect.signature(f).parameters if self.static else ())}:
            raise ValueError(
                f"{self.name}: expected the names of parameters in static, got {', '.join(sorted(unknown))}."
            )
        self.cache = Cache(MAX_PROGRAMS)
        self.lock = create_lock()  # held while the function is traced, and while a program that changes something runs

    @property
    def programs(self) -> list[tuple[str, Program]]:
        """The structures of arguments for which the function was compiled, and the programs."""
        return [(compiled.arguments, compiled.program) for compiled in self.cache.values()]

    def clear(self) -> None:
        """Forget all programs, so that the function is traced again: after a change of what it reads in Python."""
        self.cache.clear()

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Return the function as a method of an object."""
        return self if instance is None else MethodType(self, instance)

    def __deepcopy__(self, memo: dict[int, Any]) -> Jit[P, R]:
        return Jit(copy.deepcopy(self.f, memo), tuple(self.static))

    def __reduce__(self) -> Any:
        """Pickle by name if the name is that of this object, as of a decorated function; else by the function."""
        module, name = getattr(self, "__module__", ""), getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:
            return name
        return Jit, (self.f, tuple(self.static))

    def __repr__(self) -> str:
        return f"{self.name} with {len(self.cache)} programs"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function: run its program for arguments of this structure, compiled at the first call."""
        if (traces or transforms) and is_inside():  # a part of another function
            return self.f(*args, **kwargs)
        leaves: list[Any] = []
        given = self._mark_static(args, kwargs) if self.static else (args, kwargs)
        structure = flatten(given[0], leaves), flatten(given[1], leaves) if given[1] else NO_NAMES
        tensors: list[Tensor] = []
        key: list[Any] = [structure]
        for x in leaves or [None]:
            if type(x) is Tensor:
                tensors.append(x)
                key.append(x.info)
            elif type(operand := operand_of(x)) is Tensor:
                tensors.append(operand)
                key.append((operand.info, x.shape, x.dtype))
            else:
                tensors, key = self._bind(structure, leaves)
                break
        try:
            structure_key = tuple(key)
            compiled = self.cache.get(structure_key) or self.cache.find(structure_key)
        except TypeError:
            raise TypeError(
                f"{self.name}: expected arguments that are tensors, arrays, numbers, or objects that can be hashed, in "
                f"nested lists, tuples and dicts, got {describe(*leaves)}"
            ) from None
        if compiled is not None and not compiled.program.changes_state and compiled.program.is_current():
            results = compiled.program(tensors)
        else:
            with self.lock:
                if compiled is None:
                    compiled = self.cache.find(structure_key)  # another thread may have compiled it
                if compiled is None or not compiled.program.is_current():
                    compiled = self.cache.replace(structure_key, self._compile(structure, leaves, tensors))
                results = atomic(compiled.program, tensors, last=compiled.program)
        if compiled.arrays:
            results = [rewrap(*pair) for pair in zip(compiled.arrays, results, strict=True)]
        result: Any = results[0] if compiled.structure is None else unflatten(compiled.structure, iter(results))
        return result

    def _mark_static(self, args: Any, kwargs: Any) -> Any:
        """Return the arguments with the parts of static ones marked. TypeError if the function has none of a name."""
        bound = inspect.signature(self.f).bind(*args, **kwargs)
        for name in self.static & bound.arguments.keys():
            values: list[Any] = []
            structure = flatten(bound.arguments[name], values)
            bound.arguments[name] = unflatten(structure, iter([Static(name, x) for x in values]))
        return bound.args, bound.kwargs

    def _bind(self, structure: Any, leaves: list[Any]) -> tuple[list[Tensor], list[Any]]:
        """Return the tensors of the arguments, new ones for arrays and floats, and the key of the program.

        Beside arrays of ``neonlite.array_api``, those of NumPy are replaced by such arrays, which have any shape.
        """
        be = next((x.backend for x in map(operand_of, leaves) if isinstance(x, Operand)), None)
        be = typing.current_backend() if be is None else be
        has_arrays = any(hasattr(x, "with_operand") for x in leaves)
        tensors: list[Tensor] = []
        key: list[Any] = [structure]
        for k, x in enumerate(leaves):
            if hasattr(x, "dtype") and not isinstance(operand_of(x), Operand):
                if has_arrays:
                    leaves[k] = x = be.array_api.asarray(x)
                elif len(getattr(x, "shape", ())) == 1:
                    raise ValueError(
                        f"{self.name}: expected arrays of two dimensions or more, as those of tensors, got {x.shape}. "
                        "Pass x.reshape(1, -1), x.reshape(-1, 1), or an array of neonlite.array_api."
                    )
            operand = operand_of(x)
            if isinstance(operand, OpTreeNode):
                operand = operand.astensor() if operand is x else x.tensor()
            elif isinstance(x, float) or (hasattr(x, "dtype") and not isinstance(operand, Tensor)):
                operand = be.array(x)
            if not isinstance(operand, Tensor):
                key.append((type(x), x))
                continue
            tensors.append(operand)
            if hasattr(x, "with_operand"):
                key.append((operand.info, x.shape, x.dtype))
            else:
                key.append(operand.info if isinstance(x, Operand) else (operand.info, type(x)))
        return tensors, key if tensors else [*key, id(be)]

    def _compile(self, structure: Any, leaves: Sequence[Any], tensors: Sequence[Tensor]) -> Compiled:
        """Trace the function, and compile a program. If that fails, all is as before."""
        return atomic(self._trace, structure, leaves, tensors)

    def _labels(self, given: Any, named: Any) -> Iterator[str]:
        """Yield the name of each leaf of the arguments."""
        for name, part in zip(name_parameters(self.f, len(given[1])), given[1], strict=True):
            yield from label_leaves(part, name)
        for name, part in zip(*named, strict=True):
            yield from label_leaves(part, name)

    def _trace(self, structure: Any, leaves: Sequence[Any], tensors: Sequence[Tensor]) -> Compiled:
        arguments, given, rest, labels = [], [], iter(tensors), [*self._labels(*structure)]
        like = next((x for x in leaves if hasattr(x, "with_operand")), None)
        for k, x in enumerate(leaves):
            if isinstance(operand_of(x), Operand) or isinstance(x, float) or hasattr(x, "dtype"):
                t = next(rest)
                argument = Argument(None, t.info, getattr(operand_of(x), "name", None) or labels[k])
                arguments.append(argument)
                if like is not None and isinstance(x, float):
                    given.append(like.with_operand(argument, ()))
                else:
                    given.append(x.with_operand(argument) if hasattr(x, "with_operand") else argument)
            else:
                given.append(x.value if isinstance(x, Static) else x)
        values = iter(given)
        args, kwargs = (unflatten(part, values) for part in structure)
        with Trace(self.name) as trace:
            value = self.f(*args, **kwargs)
            results: list[Any] = []
            returned = flatten(value, results)
            operands = [trace.read(y) if isinstance(y := operand_of(x), Tensor) else y for x in results]
        known = [*tensors, *[t for t, _ in trace.assignments()], *operands]
        be = next((x.backend for x in known if isinstance(x, Operand)), None) or typing.current_backend()
        program = Program(be, arguments, trace, operands)
        trace.close()
        arrays = [x if hasattr(x, "with_operand") else None for x in results]
        has_arrays = any(x is not None for x in arrays)
        return Compiled(describe(*leaves), program, returned, arrays if has_arrays else [])


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
    kinds = inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction
    if isinstance(f, type) or any(is_kind(f) for is_kind in kinds):
        raise TypeError(
            f"jit: expected a function that returns its results, got {describe(f)}, a class, a generator or an async "
            "function."
        )
    return Jit(f, static)
