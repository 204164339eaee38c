"""Functions of functions: ``grad``, ``jacobian``, ``vmap`` and others, in any composition.

A function of tensors or arrays is called with variables instead of some of its arguments, and its result is an
expression of them. A transform computes other expressions from this one, such as its gradient, and puts the arguments
in the place of the variables. The result is an expression, too, so that transforms compose.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from neonlite import tree_structure, typing
from neonlite.autodiff import Autodiff, add_gradients, is_array, operand_of, push_forward
from neonlite.backend.planning import Plan
from neonlite.backend.validation import function, one_of
from neonlite.messages import describe
from neonlite.optree import Operand, OpTreeNode
from neonlite.programs import label_leaves, unflatten
from neonlite.variables import (
    Call,
    Samples,
    Variable,
    as_array,
    as_tree,
    batch,
    describe_structure,
    is_expression,
    node_of_call,
    parts_of,
    split_row,
    tensors_of,
    without,
)

if TYPE_CHECKING:
    from neonlite.visualize import Derivation

P = ParamSpec("P")
R = TypeVar("R")

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
    differentiated : tuple, optional
        Of a gradient, the function, ``argnums`` and ``has_aux``.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> print(nl.grad(lambda x: x**3).pp(2.0))
    (error * ((3.0) * (x ** (2))))
    """

    def __init__(
        self, f: Callable[..., Any], name: str, compute: Callable[[str, Any, Any], R], differentiated: Any = None
    ) -> None:
        check_function(name, f)
        functools.update_wrapper(self, f)
        self.differentiated = differentiated
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

    def derivation(self, *args: P.args, **kwargs: P.kwargs) -> Derivation:
        """Return the chain rule of the function that ``grad`` or ``value_and_grad`` differentiates, step by step.

        Parameters
        ----------
        *args, **kwargs
            Arguments of the function.

        Returns
        -------
        Derivation
            The derivation, as of ``tree.derivation``.
        """
        from neonlite.explorer import derive  # when first used

        def derive_call(*xs: Any, **more: Any) -> Derivation:
            call, result = differentiated_call(self.__name__, f, xs, more, *options)
            return derive(call.scalar(result), call.variables, allow_unused=True)

        if self.differentiated is None:
            raise TypeError(
                f"derivation: expected nl.grad(f) or nl.value_and_grad(f), got {self}. Pass one sample to that of the "
                "gradient, or use pp."
            )
        f, *options = self.differentiated
        derivation: Derivation = Call(self.__name__, functools.wraps(self)(derive_call), args, kwargs).result
        return derivation


def evaluate_constants(result: Any) -> None:
    """Compute the arrays in a result that depend on constants alone, all in one plan."""
    constants = [x for x in parts_of(result)[1] if is_array(x) and not x.is_live and isinstance(x.operand, OpTreeNode)]
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

    return Transform(f, "value_and_grad", compute, (f, argnums, has_aux))


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

    return Transform(f, "grad", compute, (f, argnums, has_aux))


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
    for given, what in ((args, "args"), (tangents, "tangents")):
        if not isinstance(given, tuple | list):
            raise TypeError(f"jvp: expected a tuple of the arguments as {what}, got {describe(given)}. Pass (x,).")
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


def match(
    name: str, what: str, given: Any, structure: Any, like: Sequence[Any], way_out: str = ""
) -> tuple[list[Any], int]:
    """Return the operands of the parts of a container, and whether they are constants, as ``Array.is_live``.

    ValueError unless the keys, indices and shapes are those of the parts ``like``; dicts may have another order.
    """
    found, leaves = parts_of(given)
    by_key, keys = dict(zip(label_leaves(found, ""), leaves, strict=True)), [*label_leaves(structure, "")]
    if by_key.keys() != {*keys}:
        raise ValueError(
            f"{name}: expected {what} in the same containers, {describe_structure(structure)}, got "
            f"{describe_structure(found)}{way_out}"
        )
    result: list[Any] = []
    live = 0
    for key, y in zip(keys, like, strict=True):
        x = by_key[key]
        if x is None or not is_expression(y):  # no gradient
            result.append(None)
            continue
        if not is_expression(x):
            x = y.backend.array_api.asarray(x, dtype=y.dtype) if is_array(y) else y.backend.array(x)
        if x.shape != y.shape:
            raise ValueError(f"{name}: expected {what}{key} of the shape {y.shape}, got {describe(x)}{way_out}")
        live |= x.is_live if is_array(x) else 1
        result.append(operand_of(x))
    return result, live


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
    count = len(args) if isinstance(args, tuple | list) else 0  # else jvp raises TypeError
    return jvp(grad(f, tuple(range(count))), args, tangents)[1]


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
            moved = y if order[0] == 0 else call.be.transpose(call.be.reshape(y, shape), tuple(order))
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
        A function of arrays or tensors, also in containers, that returns such. Other tensors that it reads, such as
        weights, are differentiated as well.

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
        tree, split = join_outputs(call, call.result)
        floats = [x for x in tensors_of(tree) if x.info.dtype in typing.FLOAT_DTYPES]
        arguments = without(call.variables, without(call.variables, floats))
        variables = arguments + without(floats, arguments)
        if not arguments:
            return call.close_result(call.result)[0]
        error = Variable(call.be.tensor_info(tree.shape, tree.info.dtype), "error")
        try:
            with tree_structure.untraced():
                grads = Autodiff(tree, call.be, error).gradient_operands(variables)
        except NotImplementedError:  # it has no derivative; it need not have one before it is differentiated
            return call.close_result(call.result)[0]
        node = node_of_call(name_of(f), tree, variables, error, grads, True)
        return call.close_result(split(node))[0]

    return checkpointed


def custom_grad(f: Callable[P, Any]) -> Callable[P, Any]:
    """Return a function with a derivative that is given, and not that of its expression.

    Parameters
    ----------
    f : callable
        A function of arrays or tensors, also in containers, that returns a pair: the value, of such, and the rule.
        ``rule(error)`` returns the gradients of the arguments, given that of the value, in its containers: one for each
        argument, in a tuple if there are several; None for 0, as of an int. It may use what ``f`` has computed.

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
        tree, split = join_outputs(call, call.result[0])
        error = Variable(call.be.tensor_info(tree.shape, tree.info.dtype), "error")
        found = call.result[1](split(error))
        grads, _ = match(call.name, "gradients", found if len(args) > 1 else (found,), call.structure, call.like)
        grads = [g for g, x in zip(grads, call.like, strict=True) if is_expression(x)]  # one for each variable
        node = node_of_call(name_of(f), tree, call.variables, error, grads, False)
        return call.close_result(split(node))[0]

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
    structure, leaves = parts_of(x)
    result: list[Any] = []
    for y in leaves:
        constant = y.backend.stop_gradient(operand_of(y)) if is_expression(y) else y
        result.append(y.with_operand(constant, None, y.is_live) if is_array(y) else constant)
    return unflatten(structure, iter(result))


def join_outputs(call: Call, result: Any) -> tuple[OpTreeNode, Callable[[Operand], Any]]:
    """Return the parts of a result as one op-tree, and a function that returns another one in its containers."""
    structure, leaves, operands = call.outputs(result)
    be = call.be
    if not leaves or (len(leaves) > 1 and any(x.info.dtype not in typing.FLOAT_DTYPES for x in operands)):
        raise TypeError(f"{call.name}: expected arrays or tensors of floats as the result, got {describe(*leaves)}")

    def split(joined: Operand) -> Any:
        parts = split_row(joined, operands) if len(leaves) > 1 else [joined]
        pairs = zip(leaves, parts, strict=True)
        return unflatten(structure, iter([x.with_operand(y, None, x.is_live) if is_array(x) else y for x, y in pairs]))

    rows = [be.reshape(x, (1, math.prod(x.shape))) for x in operands]
    return as_tree(be.concat(rows, axis=1) if len(rows) > 1 else operands[0]), split
