"""Functions of functions: ``grad``, ``jacobian``, ``vmap`` and others, in any composition.

A function of tensors or arrays is called with variables instead of some of its arguments, and its result is an
expression of them. A transform computes other expressions from this one, such as its gradient, and puts the arguments
in the place of the variables. The result is an expression again, which another transform may take apart.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from operator import or_
from threading import get_ident
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar

from neonlite import typing
from neonlite.autodiff import Autodiff, add_gradients, is_array, operand_of, push_forward
from neonlite.backend.planning import Plan
from neonlite.backend.tensor import Tensor, overlap
from neonlite.backend.validation import function, one_of
from neonlite.batching import Values, Variable, as_tree, batch, node_of_call, substitute, tensors_of
from neonlite.messages import describe
from neonlite.optree import Operand, OpTreeNode
from neonlite.programs import flatten, label_leaves, name_parameters, tracing, unflatten
from neonlite.tree_structure import transforms, untraced
from neonlite.typing import FLOAT_DTYPES

P = ParamSpec("P")
R = TypeVar("R")

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
                raise ValueError(f"{self.name}: expected argnums below {len(args)}, the number of arguments, got {k}")
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
        leaves: list[Any] = []
        structure = flatten(result, leaves)
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
                    f"{hint}, or choose others by argnums."
                )

    def gradients(self, tree: OpTreeNode, error: Operand | None = None) -> list[Operand]:
        """Return the gradients of an op-tree with respect to the variables."""
        leaves = tensors_of(tree)
        for x in self.variables:
            is_used, given = any(y is x for y in leaves), x.given
            if not is_used and isinstance(given, Tensor) and any(overlap(given, y) != "none" for y in leaves):
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
        leaves: list[Any] = []
        structure = flatten(result, leaves)
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
        leaves: list[Any] = []
        flatten(self.result, leaves)
        live = self.is_live(*leaves) | is_live
        for x, y in zip(self.like, operands, strict=True):
            to = (*shape, *x.shape)
            values.append(as_array(x, y, to, live) if is_array(x) else as_tree(self.be.reshape(y, to)))
        return unflatten(self.structure, iter(values))


def backend_of(*operands: Any) -> Any:
    """Return the backend of the first array, tensor or op-tree; else the current one."""
    leaves: list[Any] = []
    flatten(list(operands), leaves)
    found = next((x.backend for x in leaves if is_expression(x)), None)
    return typing.current_backend() if found is None else found


def is_expression(x: Any) -> bool:
    """Return whether x is an array, a tensor or an op-tree."""
    return is_array(x) or isinstance(x, Operand)


def as_array(like: Any, operand: Operand, shape: Sequence[int], is_live: int) -> Any:
    """Return an operand as an array of a shape."""
    axes = (1, 1, *shape)[-max(2, len(shape)) :]
    return like.with_operand(like.backend.reshape(operand, axes), tuple(shape), is_live)


# --- transforms ------------------------------------------------------------------------------------------------------


class Transform(Generic[P, R]):
    """A function of a function, which shows itself: ``pp``, ``draw``, ``plan`` and ``kernel`` take its arguments.

    Parameters
    ----------
    f : callable
        The function.
    name : str
        The name of the transform.
    compute : callable
        ``compute(name, args, kwargs)`` returns the result, given a name for errors.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> print(nl.grad(lambda x: x**3).pp(2.0))
    (error * ((3.0) * (x ** (2))))
    """

    def __init__(self, f: Callable[..., Any], name: str, compute: Callable[[str, Any, Any], R]) -> None:
        check_function(name, f)
        functools.update_wrapper(self, f)
        self.compute, self.__name__ = compute, f"{name}({getattr(f, '__name__', type(f).__name__)})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result for some arguments; arrays of constants are computed at once, all in one plan."""
        result = self.compute(self.__name__, args, kwargs)
        evaluate_constants(result)
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Return the function as a method of an object."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return self.__name__

    def trees(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, OpTreeNode]:
        """Return the op-tree of each part of the result, by its place. Its tensors are named as the parameters.

        Parameters
        ----------
        *args, **kwargs
            Arguments of the function.

        Returns
        -------
        dict of str to OpTreeNode
            {"['W1']": the op-tree}; the key is empty for a result without containers.
        """
        call = Call(self.__name__, functools.wraps(self)(lambda *xs, **more: self.compute("", xs, more)), args, kwargs)
        structure, _, operands = call.outputs(call.result)
        return dict(zip(label_leaves(structure, ""), map(as_tree, operands), strict=True))

    def pp(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the formula of each part of the result, a line each.

        Parameters
        ----------
        *args, **kwargs
            Arguments of the function.

        Returns
        -------
        str
            The formulas, after their places in the result.
        """
        return "\n".join(
            f"{place}: {tree.pp()}".removeprefix(": ") for place, tree in self.trees(*args, **kwargs).items()
        )

    def draw(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return a drawing of each part of the result, as ``tree.draw()``.

        Parameters
        ----------
        *args, **kwargs
            Arguments of the function.

        Returns
        -------
        str
            The drawings.
        """
        return "\n".join(tree.draw() for tree in self.trees(*args, **kwargs).values())

    def plan(self, *args: P.args, **kwargs: P.kwargs) -> Plan:
        """Return the plan that computes all parts of the result.

        Parameters
        ----------
        *args, **kwargs
            Arguments of the function.

        Returns
        -------
        Plan
            The plan, as of ``be.plan``.
        """
        trees = [*self.trees(*args, **kwargs).values()]
        return trees[0].backend.plan(*trees)

    def kernel(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the code of the stages that compute the result.

        Parameters
        ----------
        *args, **kwargs
            Arguments of the function.

        Returns
        -------
        str
            The code, as of ``be.kernel``.
        """
        trees = [*self.trees(*args, **kwargs).values()]
        return trees[0].backend.kernel(*trees)


def evaluate_constants(result: Any) -> None:
    """Compute the arrays in a result that depend on constants alone, all in one plan."""
    leaves: list[Any] = []
    flatten(result, leaves)
    constants = [x for x in leaves if is_array(x) and not x.is_live and isinstance(x.operand, OpTreeNode)]
    if constants:
        values = constants[0].backend.evaluate([x.operand for x in constants])
        for x, value in zip(constants, values, strict=True):
            x.operand, x.num_ops = value, 0


def value_and_grad(f: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Transform[P, Any]:
    """Return a function that computes the value of a function and its gradient, the derivative by each element.

    Parameters
    ----------
    f : callable
        A function that returns one number, as an array () or a tensor (1, 1). Its arguments are arrays, tensors or
        floats, also in nested lists, tuples and dicts. It changes none of them.
    argnums : int or tuple of int, default 0
        The positional arguments to differentiate with respect to.
    has_aux : bool, default False
        Whether ``f`` returns a pair, of the number and anything else.

    Returns
    -------
    Transform
        A function that returns ``(value, gradient)``. The gradient has the containers and shapes of the argument; it is
        a tuple for a tuple of ``argnums``. With ``has_aux``, the value is the pair.

    Raises
    ------
    TypeError
        When it is called: an argument is no float, or the result is no expression of the arguments.
    ValueError
        When it is called: the result has several elements.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> xp = nl.array_api
    >>> def loss(params, x):
    ...     return xp.sum((params["w"] * x + params["b"]) ** 2)
    >>> value, grads = nl.value_and_grad(loss)({"w": 2.0, "b": 1.0}, xp.asarray([1.0, 2.0]))
    >>> value, grads
    (Array(34., dtype=float32), {'w': Array(26., dtype=float32), 'b': Array(16., dtype=float32)})
    """

    def compute(name: str, args: Any, kwargs: Any) -> Any:
        call, result = differentiated_call(name, f, args, kwargs, argnums, has_aux)
        closed, grads = call.close_result(call.result, *call.gradients(call.scalar(result)))
        return closed, call.pack(grads)

    return Transform(f, "value_and_grad", compute)


def differentiated_call(
    name: str, f: Callable[..., Any], args: Any, kwargs: Any, argnums: int | Sequence[int] | None, has_aux: bool = False
) -> tuple[Call, Any]:
    """Return the call of a function with variables of floats, and what is differentiated of its result."""
    call = Call(name, f, args, kwargs, argnums)
    call.check_floats()
    if has_aux and (not isinstance(call.result, tuple) or len(call.result) != 2):
        raise TypeError(f"{name}: expected a pair (value, anything) for has_aux=True, got {describe(call.result)}")
    return call, call.result[0] if has_aux else call.result


def grad(f: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Transform[P, Any]:
    """Return a function that computes the gradient of a function, the derivative of its value by each element.

    Parameters
    ----------
    f, argnums, has_aux
        As of ``value_and_grad``.

    Returns
    -------
    Transform
        A function that returns the gradient; with ``has_aux`` a pair, of the gradient and what ``f`` returned second.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> cube = lambda x: x**3
    >>> nl.grad(cube)(2.0), nl.grad(nl.grad(cube))(2.0)
    (Array(12., dtype=float32), Array(12., dtype=float32))
    """

    def compute(name: str, args: Any, kwargs: Any) -> Any:
        call, result = differentiated_call(name, f, args, kwargs, argnums, has_aux)
        grads = call.gradients(call.scalar(result))
        if not has_aux:
            return call.pack(call.close(*grads))
        aux, grads = call.close_result(call.result[1], *grads)
        return call.pack(grads), aux

    return Transform(f, "grad", compute)


def vjp(f: Callable[..., Any], *args: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return the value of a function, and a function that maps an error of this value to errors of the arguments.

    It multiplies a vector by the Jacobian: with ``y = f(x)``, an error e of y gives ``sum(e dy/dx)`` over the elements
    of y.

    Parameters
    ----------
    f : callable
        A function of arrays, tensors or floats, also in containers, that returns such.
    *args
        The arguments.

    Returns
    -------
    value
        ``f(*args)``.
    pull_back : callable
        ``pull_back(error)``, with an error in the containers and shapes of the value, returns a tuple of the errors of
        the arguments.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> xp = nl.array_api
    >>> y, pull_back = nl.vjp(xp.sin, xp.asarray([0.0, 1.0]))
    >>> pull_back(xp.asarray([1.0, 2.0]))
    (Array([1.       , 1.0806046], dtype=float32),)
    """
    check_function("vjp", f)
    call, result = differentiated_call(f"vjp({name_of(f)})", f, args, {}, None)
    structure, leaves, operands = call.outputs(result)
    value, _ = call.close_result(result)
    evaluate_constants(value)

    def pull_back(error: Any) -> Any:
        errors, live = match(call.name, "error", error, structure, leaves)
        total = [be.sum(y * e) for y, e in zip(operands, errors, strict=True)]
        grads = call.pack(call.close(*call.gradients(as_tree(add_gradients(be, total)))), (), live)
        evaluate_constants(grads)
        return grads

    be = call.be
    return value, pull_back


def jvp(f: Callable[..., Any], args: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Return the value of a function, and its derivative along a direction, in forward mode.

    It multiplies the Jacobian by a vector: with ``y = f(x)``, a direction v of x gives ``sum(dy/dx v)`` over the
    elements of x.

    Parameters
    ----------
    f : callable
        A function of arrays, tensors or floats, also in containers, that returns such.
    args : sequence
        The arguments.
    tangents : sequence
        The direction, in the containers and shapes of the arguments.

    Returns
    -------
    value, derivative
        ``f(*args)``, and the derivative in the same containers.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> nl.jvp(lambda x, y: x * y, (2.0, 3.0), (1.0, 0.0))
    (Array(6., dtype=float32), Array(3., dtype=float32))
    """
    check_function("jvp", f)
    call, result = differentiated_call(f"jvp({name_of(f)})", f, args, {}, None)
    structure, leaves, operands = call.outputs(result)
    changes, live = match(call.name, "tangents", tuple(tangents), call.structure, call.like)
    pairs = zip(call.variables, changes, strict=True)
    found = push_forward(call.be, operands, {id(variable): dx for variable, dx in pairs})
    value, derivatives = call.close_result(result, *or_zeros(found, operands))
    live |= call.is_live(*leaves)
    pairs = zip(leaves, derivatives, strict=True)
    derivative = unflatten(structure, iter([x.with_operand(dy, None, live) if is_array(x) else dy for x, dy in pairs]))
    evaluate_constants([value, derivative])
    return value, derivative


def check_function(name: str, f: Any) -> None:
    """Raise TypeError unless f is a function."""
    if is_expression(f):
        raise TypeError(f"{name}: expected a function, got {describe(f)}. Use nl.Autodiff(f, be).get_grad_tensor(x).")
    function(name, f, "a function")


def name_of(f: Any) -> str:
    """Return the name of a function."""
    return getattr(f, "__name__", type(f).__name__)


def match(name: str, what: str, given: Any, structure: Any, like: Sequence[Any]) -> tuple[list[Operand], int]:
    """Return the operands of the parts of a container, and whether they are constants, as ``Array.is_live``.

    ValueError unless the containers and shapes are those of the parts ``like``.
    """
    leaves: list[Any] = []
    if (found := flatten(given, leaves)) != structure:
        raise ValueError(
            f"{name}: expected {what} in the same containers, {describe_structure(structure)}, got "
            f"{describe_structure(found)}"
        )
    result, live = [], 0
    for x, y, label in zip(leaves, like, label_leaves(structure, what), strict=True):
        if not is_expression(x):
            x = y.backend.array_api.asarray(x, dtype=y.dtype) if is_array(y) else y.backend.array(x)
        if x.shape != y.shape:
            raise ValueError(f"{name}: expected {label} of the shape {y.shape}, got {describe(x)}")
        live |= x.is_live if is_array(x) else 1
        result.append(operand_of(x))
    return result, live


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


def or_zeros(found: Sequence[Operand | None], like: Sequence[Any]) -> list[Operand]:
    """Return derivatives, zeros for None."""
    pairs = zip(found, like, strict=True)
    return [y.backend.zeros(y.shape, dtype=y.info.dtype) if dy is None else dy for dy, y in pairs]


def hvp(f: Callable[..., Any], args: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """Return the product of the Hessian of a function and a vector: the derivative of its gradient along a direction.

    Parameters
    ----------
    f : callable
        A function that returns one number, as of ``grad``.
    args, tangents
        As of ``jvp``.

    Returns
    -------
    tuple
        The product, in the containers and shapes of the arguments.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> xp = nl.array_api
    >>> nl.hvp(lambda x: xp.sum(x**3), (xp.asarray([1.0, 2.0]),), (xp.asarray([1.0, 1.0]),))
    (Array([ 6., 12.], dtype=float32),)
    """
    return jvp(grad(f, tuple(range(len(args)))), args, tangents)[1]


def jacobian(f: Callable[P, Any], argnums: int | Sequence[int] = 0, mode: str = "reverse") -> Transform[P, Any]:
    """Return a function that computes the Jacobian of a function: the derivative of each element by each element.

    Parameters
    ----------
    f : callable
        A function of arrays, tensors or floats, also in containers, that returns such.
    argnums : int or tuple of int, default 0
        The positional arguments to differentiate with respect to.
    mode : {"reverse", "forward"}, default "reverse"
        By a gradient for each element of the result, or by a derivative for each element of the arguments.

    Returns
    -------
    Transform
        A function that returns the derivatives in the containers of the result, each in those of the argument. Their
        first axes are those of the result, the others those of the argument.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> xp = nl.array_api
    >>> nl.jacobian(lambda x: x * x[0])(xp.asarray([2.0, 3.0]))
    Array([[4., 0.],
           [3., 2.]], dtype=float32)
    """
    one_of("jacobian: mode", mode, ["reverse", "forward"])

    def compute(name: str, args: Any, kwargs: Any) -> Any:
        call, result = differentiated_call(name, f, args, kwargs, argnums)
        structure, leaves, operands = call.outputs(result)
        rows = forward_rows(call, operands) if mode == "forward" else reverse_rows(call, operands)
        closed = iter(call.close(*[y for row in rows for y in row]))
        parts = [call.pack([*itertools.islice(closed, len(call.variables))], x.shape) for x in leaves]
        return unflatten(structure, iter(parts))

    return Transform(f, "jacobian", compute)


def reverse_rows(call: Call, operands: Sequence[Any]) -> list[list[Operand]]:
    """Return for each result the derivatives by each variable, of the shape (size of the result, *shape)."""
    rows = []
    for y in operands:
        error = Variable(call.be.tensor_info(y.shape, y.info.dtype), "error")
        grads = call.gradients(as_tree(y), error)
        rows.append(batch(call.be, grads, {id(error): unit_vectors(y)}, math.prod(y.shape)))
    return rows


def forward_rows(call: Call, operands: Sequence[Any]) -> list[list[Operand]]:
    """Return for each result the derivatives by each variable, of the shape (size of the result, *shape)."""
    be: Any = call.be
    rows: list[list[Operand]] = [[] for _ in operands]
    for x in call.variables:
        size = math.prod(x.shape)
        change = Variable(be.tensor_info(x.shape, x.info.dtype), "change")
        found = or_zeros(push_forward(be, operands, {id(x): change}), operands)
        for row, y in zip(rows, batch(be, found, {id(change): unit_vectors(x)}, size), strict=True):
            row.append(be.reshape(be.reshape(y, (size, math.prod(y.shape[1:]))).T, (math.prod(y.shape[1:]), *x.shape)))
    return rows


def unit_vectors(x: Any) -> Operand:
    """Return the unit vectors of all directions of x, of the shape (size, *shape)."""
    size = math.prod(x.shape)
    return x.backend.reshape(x.backend.array_api.eye(size, dtype=x.dtype).operand, (size, *x.shape))


def hessian(f: Callable[P, Any], argnums: int | Sequence[int] = 0) -> Transform[P, Any]:
    """Return a function that computes the Hessian of a function, its second derivatives: forward over reverse mode.

    Parameters
    ----------
    f, argnums
        As of ``grad``.

    Returns
    -------
    Transform
        A function that returns the Jacobian of the gradient: in the containers of the argument, each in those of the
        argument.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> xp = nl.array_api
    >>> nl.hessian(lambda x: x[0] * x[1] ** 2)(xp.asarray([2.0, 3.0]))
    Array([[0., 6.],
           [6., 4.]], dtype=float32)
    """
    derivative = jacobian(grad(f, argnums), argnums, "forward")
    return Transform(f, "hessian", derivative.compute)


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
    leaves: list[Any] = []
    structure = flatten(argument, leaves)
    if isinstance(axes, int):
        return [axes] * len(leaves)
    found: list[Any] = []
    if flatten(axes, found) != structure:
        raise ValueError(
            f"{name}: expected in_axes with one axis, or one for each part of {describe_structure(structure)}, got "
            f"{axes!r}"
        )
    return found


def vmap(f: Callable[P, Any], in_axes: Any = 0, out_axes: int = 0) -> Transform[P, Any]:
    """Return a function of many samples, given a function of one sample. It runs all samples at once.

    Random numbers, which would be the same for all samples, are arguments.

    Parameters
    ----------
    f : callable
        A function of arrays or tensors, also in containers, that returns such. It reads no values.
    in_axes : int, None, or a sequence, default 0
        The axis of the samples of each positional argument, without which ``f`` gets it; None if all samples share the
        argument. A sequence has one for each argument; instead of an axis, it may have a container of axes. Of a tensor
        with two dimensions, ``f`` gets a column or a row.
    out_axes : int, default 0
        The axis of the samples in the result.

    Returns
    -------
    Transform
        The function.

    Raises
    ------
    ValueError
        When it is called: the numbers of samples differ.
    TypeError
        When it is called: the function reads a value, as by ``if``.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> xp = nl.array_api
    >>> norm = lambda x: xp.sqrt(xp.sum(x * x))
    >>> x = xp.asarray([[3.0, 4.0], [6.0, 8.0]])
    >>> nl.vmap(norm)(x)
    Array([ 5., 10.], dtype=float32)
    >>> nl.vmap(nl.grad(norm))(x)
    Array([[0.6, 0.8],
           [0.6, 0.8]], dtype=float32)
    """

    def compute(name: str, args: Any, kwargs: Any) -> Any:
        call = Samples(name, f, args, kwargs, in_axes)
        structure, leaves, operands = call.outputs(call.result)
        values, live = [], call.is_live(*leaves)
        for x, y in zip(leaves, batch(call.be, operands, call.samples, call.count), strict=True):
            ndim = x.ndim + 1
            if not isinstance(out_axes, int) or not -ndim <= out_axes < ndim:
                raise ValueError(f"{name}: expected out_axes below {ndim}, the number of axes, got {out_axes}")
            order = [*range(1, ndim)]
            order.insert(out_axes % ndim, 0)
            shape = (call.count, *x.shape)
            moved = call.be.transpose(call.be.reshape(y, shape), tuple(order)) if ndim > 1 else y
            values.append(as_array(x, moved, [shape[a] for a in order], live) if is_array(x) else as_tree(moved))
        return unflatten(structure, iter(values))

    return Transform(f, "vmap", compute)


def checkpoint(f: Callable[P, R]) -> Callable[P, R]:
    """Return a function that keeps nothing for its derivative: the backward pass computes it again.

    Training then needs the memory of one block of a network at a time, and of the results of all blocks, and takes the
    time of one more forward pass.

    Parameters
    ----------
    f : callable
        A function of arrays or tensors, also in containers, that returns one array or tensor. Other tensors that it
        reads, such as weights, are differentiated as well.

    Returns
    -------
    callable
        The function.

    References
    ----------
    Chen et al., Training deep nets with sublinear memory cost, 2016. https://arxiv.org/abs/1604.06174

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> xp = nl.array_api
    >>> block = nl.checkpoint(lambda x: xp.exp(xp.sin(x)))
    >>> nl.grad(lambda x: xp.sum(block(block(x))))(xp.asarray([0.0, 1.0]))
    Array([ 1.2533808, -1.775136 ], dtype=float32)
    """
    check_function("checkpoint", f)

    @functools.wraps(f)
    def checkpointed(*args: P.args, **kwargs: P.kwargs) -> Any:
        call = Call(f"checkpoint({name_of(f)})", f, args, kwargs)
        like, tree = single_output(call, call.result)
        floats = [x for x in tensors_of(tree) if x.info.dtype in FLOAT_DTYPES]
        arguments = [x for x in call.variables if any(x is y for y in floats)]
        variables = arguments + [x for x in floats if all(x is not y for y in arguments)]
        if not arguments:
            return call.close_result(call.result)[0]
        error = Variable(call.be.tensor_info(tree.shape, tree.info.dtype), "error")
        with untraced():
            grads = Autodiff(tree, call.be, error).gradient_operands(variables)
        node = node_of_call(name_of(f), tree, variables, error, grads, True)
        return call.close_result(like.with_operand(node, None, like.is_live) if is_array(like) else node)[0]

    return checkpointed


def custom_grad(f: Callable[P, Any]) -> Callable[P, Any]:
    """Return a function with a derivative that is given, and not that of its expression.

    Parameters
    ----------
    f : callable
        A function of arrays or tensors, also in containers, that returns a pair: one array or tensor, and the rule.
        ``rule(error)`` returns the gradients of the arguments, given that of the result: one for each argument, in a
        tuple if there are several. It may use what ``f`` has computed.

    Returns
    -------
    callable
        The function, which returns the value alone.

    Raises
    ------
    TypeError
        When it is called: ``f`` returns something else.
    ValueError
        When it is called: the gradients have other containers or shapes than the arguments.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> xp = nl.array_api
    >>> @nl.custom_grad
    ... def clipped(x):  # the gradient is at most 1 in magnitude
    ...     return x, lambda error: xp.clip(error, -1.0, 1.0)
    >>> nl.grad(lambda x: clipped(x) * 5)(2.0)
    Array(1., dtype=float32)
    """
    check_function("custom_grad", f)

    @functools.wraps(f)
    def with_rule(*args: P.args, **kwargs: P.kwargs) -> Any:
        call = Call(f"custom_grad({name_of(f)})", f, args, kwargs)
        if not isinstance(call.result, tuple) or len(call.result) != 2 or not callable(call.result[1]):
            raise TypeError(f"{call.name}: expected a pair (value, rule), got {describe(call.result)}")
        like, tree = single_output(call, call.result[0])
        error = Variable(call.be.tensor_info(tree.shape, tree.info.dtype), "error")
        found = call.result[1](like.with_operand(error, None, like.is_live) if is_array(like) else error)
        grads, _ = match(call.name, "gradients", found if len(args) > 1 else (found,), call.structure, call.like)
        node = node_of_call(name_of(f), tree, call.variables, error, grads, False)
        return call.close_result(like.with_operand(node, None, like.is_live) if is_array(like) else node)[0]

    return with_rule


def stop_gradient(x: R) -> R:
    """Return arrays or tensors whose derivative is 0.

    Parameters
    ----------
    x : array, tensor, op-tree or container of them
        The values.

    Returns
    -------
    arrays, op-trees or containers of them
        Expressions of the same values.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> nl.grad(lambda x: x * nl.stop_gradient(x))(3.0)
    Array(3., dtype=float32)
    """
    leaves: list[Any] = []
    structure = flatten(x, leaves)
    result: list[Any] = []
    for y in leaves:
        constant = y.backend.stop_gradient(operand_of(y)) if is_expression(y) else y
        result.append(y.with_operand(constant, None, y.is_live) if is_array(y) else constant)
    return unflatten(structure, iter(result))


def single_output(call: Call, result: Any) -> tuple[Any, OpTreeNode]:
    """Return the only array or tensor of a result, and its op-tree."""
    structure, leaves, operands = call.outputs(result)
    if structure is not None:
        raise TypeError(f"{call.name}: expected one array or tensor, got {describe(*leaves)}")
    return leaves[0], as_tree(operands[0])


# --- control flow ----------------------------------------------------------------------------------------------------


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

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> xp = nl.array_api
    >>> root = lambda x: nl.cond(x > 0, xp.sqrt, lambda x: 0 * x, x)
    >>> nl.vmap(nl.grad(root))(xp.asarray([4.0, 0.0, -1.0]))
    Array([0.25, 0.  , 0.  ], dtype=float32)
    """
    if is_readable(condition):
        return if_true(*args) if condition else if_false(*args)
    leaves: tuple[list[Any], list[Any]] = [], []
    structures = [flatten(f(*args), found) for f, found in zip((if_true, if_false), leaves, strict=True)]
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


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: int | None = None
) -> tuple[Any, Any]:
    """Return the last state of a recurrence and the outputs of all its steps: ``state, y = f(state, x)``.

    It is a Python loop: a function of ``jit`` gets the ops of all steps.

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
    inputs: list[Any] = []
    structure = flatten(xs, inputs) if xs is not None else None
    lengths = [shape_of(x)[0] if shape_of(x) else -1 for x in inputs] + ([] if length is None else [length])
    if len({*lengths}) != 1 or -1 in lengths:
        raise ValueError(
            f"scan: expected inputs with one number of steps along their first axis, or length, got {length=} and "
            f"{describe(*inputs) if inputs else 'no inputs'}"
        )
    state, outputs, layout = init, [], None
    expected = container_of(init)
    for k in range(lengths[0]):
        pair: Any = f(state, None if xs is None else unflatten(structure, iter([x[k] for x in inputs])))
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(f"scan: expected a pair (state, output) from the function, got {describe(pair)}")
        state = pair[0]
        if container_of(state) != expected:
            raise ValueError(
                f"scan: expected a state in the containers and of the shapes of the first one, got {describe(state)} "
                f"in step {k + 1}, after {describe(init)}"
            )
        leaves: list[Any] = []
        layout = flatten(pair[1], leaves)
        outputs.append(leaves)
    be = backend_of(state, *outputs)
    columns = [None if None in column else stack(be, column) for column in zip(*outputs, strict=True)]
    return state, unflatten(layout, iter(columns)) if outputs else None


def container_of(x: Any) -> tuple[Any, list[tuple[int, ...]]]:
    """Return the structure of nested containers, and the shapes of their parts."""
    leaves: list[Any] = []
    return flatten(x, leaves), [shape_of(leaf) for leaf in leaves]


def stack(be: Any, column: Sequence[Any]) -> Any:
    """Return arrays, or tensors, stacked along a new first axis."""
    if all(isinstance(x, Operand) for x in column):
        return be.stack(list(column), axis=0)
    return be.array_api.stack([be.array_api.asarray(x) for x in column])
