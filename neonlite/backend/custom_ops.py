"""Custom ops: define an op by a Python function, a formula, a CUDA expression or the source of a CUDA kernel."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Sequence
from typing import Any

from neonlite import optree, typing
from neonlite.backend.op_methods import OpMethods, make_method
from neonlite.backend.validation import expected_argument, function, integer, one_of, sequence
from neonlite.messages import describe, listed
from neonlite.ops import OP_TABLE, OPS, Op, missing_gradient
from neonlite.ops.functions import Gradients, Shape, at_least_2d, broadcast_shapes


class CustomOpMethods(typing.BackendBase):
    """The methods of ``Backend`` that define ops."""

    @classmethod
    def define_op(
        cls,
        name: str,
        run: Callable[..., typing.NativeArray] | None = None,
        grad: Callable[..., Gradients] | None = missing_gradient,
        kind: str = "elementwise",
        arity: int = 1,
        doc: str = "a user-defined op",
        shape_fn: Callable[..., tuple[int, ...]] | None = None,
        result_dtype: str = "same",
        formula: Callable[..., optree.Operand] | None = None,
    ) -> Callable[..., optree.OpTreeNode]:
        """Define a custom op, by its forward function ``run`` or by a ``formula`` of other ops: a composite op.

        A custom op can be defined again under its name, for example in a notebook cell. Existing op-trees keep
        the old one.

        Parameters
        ----------
        name : str
            The name of the op and of the method.
        run : callable, optional
            The forward function ``run(xp, x)`` or ``run(xp, x, y)``, with array-API functions of ``xp``. That of an
            elementwise op computes each element of the result from the elements of the operands at the same
            position: it is called with blocks of large arrays.
        grad : callable or None, optional
            The gradient rule ``grad(be, dz, z, x, y)``: a tuple with an op-tree, or None for zero, per operand. None
            for a gradient of zero. Without a rule, the derivative of a composite op is that of its formula, and
            differentiation of another op raises NotImplementedError.
        kind : {"elementwise", "library"}, default "elementwise"
            "library" for an op that is called once on complete arrays, not block by block; it needs a ``shape_fn``.
        arity : {1, 2}, default 1
            The number of operands of ``run``.
        doc : str
            A short description of the result, for the docstring.
        shape_fn : callable, optional
            The shape rule of a library op: ``shape_fn(x_shape, y_shape)`` returns the shape of the result.
        result_dtype : {"same", "float", "boolean", "index"}, default "same"
            The dtype of the result. "same": that of the operands; "float": a float, also for integers; "boolean": a
            float, for values 0 and 1; "index": int64.
        formula : callable, optional
            Instead of ``run``: ``formula(be, x, y, *, n=1)`` returns an op-tree, which gives shape, dtype and
            derivative. It may have any number of operands; those with the default None may be left out. Its
            keyword-only parameters, each with a default, are attributes of the op. Operands of 16-bit floats are
            cast to float32, and the result back.

        Returns
        -------
        callable
            The method, which every backend has as ``be.name`` from now on.

        Raises
        ------
        ValueError
            The name is taken by a built-in op or method, or an argument is not valid. When the op is evaluated: the
            result of ``run`` has another shape.
        TypeError
            A rule is not a function, or there are both ``run`` and ``formula``, or neither. When the op is evaluated:
            the result of ``run`` is not an array of real numbers. When it is called: the formula returns no op-tree.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> cube = be.define_op("cube", lambda xp, x: x * x * x, lambda be, dz, z, x: (dz * 3 * x * x,))
        >>> x = be.array([[2.0]], name="x")
        >>> nl.Autodiff(cube(be, x), be).get_grad_asnumpyarray(x)
        array([[12.]], dtype=float32)
        >>> swish = be.define_op("scaled_silu", formula=lambda be, x, *, scale=1.0: x * be.sig(scale * x))
        >>> tree = be.scaled_silu(x, scale=2.0)
        >>> print(tree.pp(), tree.open("scaled_silu").pp())
        (scaled_silu x scale=2.0) (x * (sig ((2.0) * x)))
        """
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(expected_argument("be.define_op: name", "an identifier, such as 'swish',", name))
        is_redefinition = name in OPS and OPS[name] not in OP_TABLE
        if not is_redefinition and (name in OPS or hasattr(cls, name)):
            raise ValueError(
                f"be.define_op: the name {name!r} is taken by an op or a method of the backend. Choose another."
            )
        one_of("be.define_op: kind", kind, ("elementwise", "library"))
        one_of("be.define_op: result_dtype", result_dtype, ("same", "float", "boolean", "index"))
        if (run is None) == (formula is None):
            raise TypeError(
                f"be.define_op: expected either run, a function run(xp, x), or formula, a function formula(be, x), got "
                f"{'neither' if run is None else 'both'}. A formula combines methods of the backend, such as be.exp(x)."
            )
        if formula is not None:
            options = {"kind": kind, "arity": arity, "shape_fn": shape_fn, "result_dtype": result_dtype}
            defaults = {"kind": "elementwise", "arity": 1, "shape_fn": None, "result_dtype": "same"}
            op = composite_op(name, formula, grad, doc, [x for x in options if options[x] != defaults[x]])
        else:
            op = elementary_op(name, run, grad, doc, kind, arity, shape_fn, result_dtype)
        OPS[name] = op
        method = make_method(op)
        setattr(cls, name, method)
        OpMethods.num_redefinitions += is_redefinition
        return method

    @classmethod
    def elementwise_kernel(
        cls,
        name: str,
        operation: str,
        run: Callable[..., typing.NativeArray] | None = None,
        grad: Callable[..., Gradients] | None = missing_gradient,
        doc: str = "a user-defined op",
        result_dtype: str = "same",
    ) -> Callable[..., optree.OpTreeNode]:
        """Define a custom elementwise op from a CUDA expression.

        Parameters
        ----------
        name : str
            The name of the op and of the method.
        operation : str
            A CUDA expression of x, or of x and y, of type T: ``"x / (1 + exp(-x))"``. It is inlined in fused kernels.
        run : callable, optional
            The forward function, as in ``define_op``, for backends without CUDA; by default these raise
            NotImplementedError.
        grad : callable or None, optional
            The gradient rule as in ``define_op``: a tuple with an op-tree, or None for zero, per operand. None
            for a gradient of zero. Without a rule, differentiation raises NotImplementedError.
        doc : str
            A short description of the result, for the docstring.
        result_dtype : {"same", "float", "boolean", "index"}, default "same"
            The dtype of the result. "same": that of the operands; "float": a float, also for integers; "boolean": a
            float, for values 0 and 1; "index": int64.

        Returns
        -------
        callable
            The method, which every backend has as ``be.name`` from now on.

        Raises
        ------
        ValueError
            The name is taken by a built-in op or method, or ``run`` and the expression have different operands.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> softsign = be.elementwise_kernel("softsign", "x / (1 + fabs(x))", lambda xp, x: x / (1 + xp.abs(x)))
        >>> print(be.kernel(2 * be.softsign(be.ones((4, 4), name="x"))).split("#pragma unroll")[-1])
        <BLANKLINE>
                for (int q = 0; q < V; ++q) {
                    const float v0 = x0s.at[q] / (1 + fabs(x0s.at[q]));  // softsign
                    const float v1 = 2.0f * v0;  // mul
                    y0s.at[q] = v1;
                }
                ...
        """
        from neonlite.backend.runtimes.cuda.kernels import gpu_only_run, register_expression

        if not isinstance(operation, str) or not re.search(r"\bx\b", operation):
            raise ValueError(
                f"be.elementwise_kernel: expected an expression of x as operation, got {describe(operation)}"
            )
        arity = 2 if re.search(r"\by\b", operation) else 1
        if run is not None:
            way_out = f" These are the operands of {operation!r}."
            check_parameters("be.elementwise_kernel: run", run, ("xp", "x", "y")[: 1 + arity], way_out)
        method = cls.define_op(name, run or gpu_only_run(name), grad, "elementwise", arity, doc, None, result_dtype)
        register_expression(OPS[name], operation)
        return method

    @classmethod
    def raw_kernel(
        cls,
        name: str,
        source: str,
        shape_fn: Callable[..., tuple[int, ...]],
        launch_config: Callable[..., tuple[object, ...]] | None = None,
        run: Callable[..., typing.NativeArray] | None = None,
        grad: Callable[..., Gradients] | None = missing_gradient,
        doc: str = "a user-defined op",
    ) -> Callable[..., optree.OpTreeNode]:
        """Define a custom op from the source of a CUDA kernel.

        Parameters
        ----------
        name : str
            The name of the op and of the method.
        source : str
            The source of ``extern "C" __global__ void name(T* z, const T* x, const T* y, ...)``: pointers to the
            contiguous result and one or two contiguous operands, then 64-bit scalars, ``long long`` or ``double``. T is
            the element type. For 16-bit floats, which have no arithmetic, ``wide(x[i])`` converts an element to
            the type ``Wide`` (float; T for other types), and ``put(z[i], value)`` rounds and stores it.
        shape_fn : callable
            The shape rule: ``shape_fn(x_shape, y_shape)`` returns the shape of the result.
        launch_config : callable, optional
            ``launch_config(z_shape, x_shape, y_shape)`` returns the grid size, an integer or a pair (x, y) of blocks of
            256 threads, followed by the scalars. By default there is one thread per element of the result, and the
            number of elements is the only scalar.
        run : callable, optional
            The forward function, as in ``define_op``, for backends without CUDA; by default these raise
            NotImplementedError.
        grad : callable or None, optional
            The gradient rule as in ``define_op``: a tuple with an op-tree, or None for zero, per operand. None
            for a gradient of zero. Without a rule, differentiation raises NotImplementedError.
        doc : str
            A short description of the result, for the docstring.

        Returns
        -------
        callable
            The method, which every backend has as ``be.name`` from now on.

        Raises
        ------
        ValueError
            The name is taken by a built-in op or method, or the source has no such kernel.
        """
        from neonlite.backend.runtimes.cuda.kernels import RAW_KERNELS, RawKernel, default_launch, gpu_only_run

        raw = RawKernel(name, source, launch_config or default_launch)
        method = cls.define_op(name, run or gpu_only_run(name), grad, "library", raw.arity, doc, shape_fn)
        RAW_KERNELS[OPS[name]] = raw
        return method


# --- checks of the functions, and of their results ---


def elementary_op(
    name: str, run: Any, grad: Any, doc: str, kind: str, arity: int, shape_fn: Any, result_dtype: str
) -> Op:
    """Return the op of a forward function, after checks of all functions."""
    if (kind == "library") != (shape_fn is not None):
        raise ValueError(
            "be.define_op: expected a shape_fn for kind='library' only, got "
            f"kind={kind!r} with shape_fn={describe(shape_fn)}. Pass both, or neither for an elementwise op."
        )
    operands = ("x", "y")[: integer("be.define_op: arity", arity, 1, 2)]
    check_parameters("be.define_op: run", run, ("xp", *operands), " Pass arity=2 for an op of two operands.")
    if grad is not None:
        check_parameters("be.define_op: grad", grad, ("be", "dz", "z", *operands))
    if shape_fn is not None:
        check_parameters("be.define_op: shape_fn", shape_fn, [f"{x}_shape" for x in operands])
        shape_fn = checked_shape_fn(shape_fn)
    run = checked_run(run, shape_fn or broadcast_shapes)
    rules: dict[str, Any] = {"shape_fn": shape_fn, "result_dtype": result_dtype, "may_raise": True}
    return Op(name, run, grad, doc, "", arity, kind, **rules)


def composite_op(name: str, formula: Any, grad: Any, doc: str, options: list[str]) -> Op:
    """Return the op of a formula, after checks of it and of the gradient rule; ``options`` have no use for it."""
    if options:
        raise TypeError(f"be.define_op: expected no {listed(options)} with formula, which gives them. Leave them out.")
    call = "a function formula(be, x, ..., *, n=1), with at least one operand, and defaults for attributes"
    function("be.define_op: formula", formula, call)
    try:
        parameters = list(inspect.signature(formula).parameters.values())[1:]
    except ValueError:  # it has no signature
        parameters = []
    attributes = [x for x in parameters if x.kind is x.KEYWORD_ONLY and x.default is not x.empty]
    operands = [x for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD and x.default in (x.empty, None)]
    required = [x.name for x in operands if x.default is x.empty]
    if len(attributes) + len(operands) < len(parameters) or not required:
        raise ValueError(expected_argument("be.define_op: formula", call, formula))
    if grad is not None and grad is not missing_gradient:
        check_parameters("be.define_op: grad", grad, ("be", "dz", "z", *required), "", [x.name for x in attributes])
    arity = 1 if len(operands) == 1 else 2 if len(required) == len(operands) == 2 else -1
    return Op(name, grad=grad, doc=doc, arity=arity, kind="composite", formula=formula)


def check_parameters(
    name: str, f: Any, parameters: Sequence[str], way_out: str = "", keywords: Sequence[str] = ()
) -> None:
    """Raise an error unless ``f`` is a function of these parameters; one of unknown signature passes."""
    call = f"{name.rpartition(': ')[2]}({', '.join([*parameters, *keywords])})"
    function(name, f, f"a function {call}")
    try:
        inspect.signature(f).bind(*parameters, **dict.fromkeys(keywords))
    except ValueError:  # it has no signature
        return
    except TypeError as error:
        raise ValueError(expected_argument(name, f"a function {call}", f) + f": {error}.{way_out}") from None


def checked_shape_fn(shape_fn: Callable[..., Any]) -> Callable[..., Shape]:
    """Return a shape rule with its result checked."""

    def checked(*shapes: Shape) -> Shape:
        sizes = sequence("shape_fn: the result", shape_fn(*shapes), "a tuple of sizes")
        return at_least_2d(tuple(integer("shape_fn: each size", n, 0) for n in sizes))

    return checked


def checked_run(run: Callable[..., Any], shape_fn: Callable[..., Shape]) -> Callable[..., optree.OpTreeNode]:
    """Return a forward function with its result checked: an array of real numbers of the shape of the rule."""

    def checked(xp: Any, *operands: Any) -> Any:
        z = run(xp, *operands)
        dtype = getattr(z, "dtype", None)
        if dtype != operands[0].dtype and (
            dtype is None or not xp.isdtype(dtype, ("bool", "integral", "real floating"))
        ):
            got = describe(z) if dtype is None else f"one of {dtype}"
            raise TypeError(f"expected an array of real numbers as the result of run, got {got}")
        if shape_fn is not broadcast_shapes or any(x.shape != z.shape for x in operands):
            shapes = [tuple(x.shape) for x in operands]
            if at_least_2d(tuple(z.shape)) != at_least_2d(shape := shape_fn(*shapes)):
                raise ValueError(
                    f"expected a result of run of shape {shape} for operands of shape {', '.join(map(str, shapes))}, "
                    f"got {tuple(z.shape)}. For an op that is not elementwise pass kind='library' and a shape_fn."
                )
        return z

    return checked
