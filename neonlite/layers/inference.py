"""Networks as expressions: inference by a compiled program, or by ``fprop`` of a copy; gradients of a training step.

Inference does not change the training state of the network, its buffers and ``be.bsz``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any

from neonlite import autodiff, tree_structure, typing
from neonlite.backend.objects import has_builtin_method, same_objects
from neonlite.layers import buffers, weights
from neonlite.optree import Operand
from neonlite.programs import Jit, jit


class InferenceProgram(typing.Untracked):
    """The compiled function ``network(x)`` of one network. A copy of the network has an empty one."""

    def __init__(self) -> None:
        self.function: Jit[..., Any] | None = None

    def of(self, network: Any) -> Jit[..., Any]:
        """Return the function of a network, which in a shallow copy of a layer differs from that of the original."""
        function: Any = self.function  # of all threads
        if function is None or function.f.__self__ is not network:
            self.function = function = jit(network.__call__)
            function.name = network.name
        return function

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()


@contextmanager
def inference(network: Any, passes_states: bool = False) -> Iterator[Callable[[Any], buffers.LayerOutputs]]:
    """Yield a function that returns the outputs of a network for a minibatch of ``be.bsz`` rows.

    Recurrent states start from zeros. With ``passes_states``, those of layers without ``reset_cells`` start from the
    final ones of the previous minibatch, if that had as many rows.
    """
    is_expression = network.is_expression and not (passes_states and continues_states(network))
    has_several_inputs = isinstance(network.input_shape, list)
    program = network.inference_program.of(network)
    copies: list[Any] = []
    with ExitStack() as stack:

        def run(x: buffers.Tensors) -> buffers.LayerOutputs:
            if is_expression and isinstance(x, list | tuple) == has_several_inputs:  # Seq2Seq decodes one input
                return program(x)
            if not copies:
                copies.append(stack.enter_context(shallow_copy(network)))
            copy = copies[0]
            is_first = copy.batch_size != copy.be.bsz
            if is_first:
                allocate_copy(copy)
            if is_first or not passes_states:
                for layer in copy.leaves():
                    layer.set_state({})
            return copy.fprop(x, inference=True)

        yield run


def continues_states(network: Any) -> bool:
    """Return whether a minibatch starts with the final recurrent states of the previous one in some layer."""
    return not all(getattr(layer, "reset_cells", True) for layer in network.leaves())


def allocate_copy(network: Any) -> None:
    """Allocate a shallow copy. What a custom ``allocate`` sets keeps its value unless its size changes with ``be.bsz``.

    It may be a state of the layer, such as a count or running statistics.
    """
    custom = [layer for layer in network.leaves() if not has_builtin_method(type(layer), "allocate")]
    before = [(layer, vars(layer).copy()) for layer in custom]
    network.allocate()
    for layer, attributes in before:
        for name, value in attributes.items():
            if name not in layer.unread_attributes and shapes(vars(layer).get(name)) == shapes(value):
                vars(layer)[name] = value


def shapes(value: Any) -> Any:
    """Return the shape of a tensor, those in a container, or None for any other value."""
    if isinstance(value, dict):
        return {name: shapes(x) for name, x in value.items()}
    return [shapes(x) for x in value] if isinstance(value, list | tuple) else getattr(value, "shape", None)


@contextmanager
def shallow_copy(network: Any) -> Iterator[Any]:
    """Yield a copy of a network that shares its parameters and has its own buffers: none, until ``allocate``.

    Its layers have the attributes of the original. Its memory is freed at the end.
    """
    copies: dict[int, Any] = {}
    layers: list[weights.WeightOwner] = []

    def copied(value: Any) -> Any:
        if isinstance(value, weights.WeightOwner):
            if id(value) not in copies:
                copies[id(value)] = object.__new__(type(value))
                layers.append(value)
            return copies[id(value)]
        if isinstance(value, MethodType) and isinstance(value.__self__, weights.WeightOwner):
            return MethodType(value.__func__, copied(value.__self__))
        if type(value) in (list, tuple, dict):
            items = value.values() if type(value) is dict else value
            new = [copied(x) for x in items]
            if not same_objects(new, items):
                return dict(zip(value, new, strict=True)) if type(value) is dict else type(value)(new)
        return value

    copied(network)
    for layer in layers:  # grows in the loop
        attributes = {name: copied(x) for name, x in vars(layer).items()}
        vars(copies[id(layer)]).update(attributes, _buffers={}, _views={}, batch_size=0)
    try:
        yield copied(network)
    finally:
        for layer in copies.values():
            vars(layer).clear()  # layers refer to each other; this frees their memory immediately


# --- gradients ---


def differentiated_outputs(
    network: Any, cost: Any, outputs: Any, targets: Any, scale_errors: Callable[[Operand], Operand] | None = None
) -> tuple[list[Operand | None], list[tuple[Operand, Operand]]]:
    """Return the mean of each cost, None without a target; and the op-trees to differentiate, with their errors.

    These are the outputs, or the inputs of their activations if the cost differentiates both together.

    Parameters
    ----------
    network : Layer
        The network, which is an expression.
    cost : GeneralizedCost or Multicost
        Its cost.
    outputs, targets : op-tree, tensor, or list of them
        The outputs in training, and the targets.
    scale_errors : callable, optional
        Multiplies an error, as ``LossScaling`` does.
    """
    means: list[Operand | None] = []
    roots: list[tuple[Operand, Operand]] = []
    pairs = cost.pair_outputs(outputs, targets)
    for (part, weight, y, target), alpha in zip(pairs, network.error_factors, strict=True):
        if target is None:
            means.append(None)
            continue
        means.append(network.be.mean(part.build_costs(y, target), axis=1))
        shortcut = part.takes_shortcut(target)
        error = part.build_errors(y, target, shortcut)
        error = error if weight * alpha == 1 else weight * alpha * error
        error = error if scale_errors is None else scale_errors(error)
        roots.append((buffers.flat(tree_structure.activation_inputs(part.last_layer)) if shortcut else y, error))
    return means, roots


def assign_gradients(network: Any, roots: Sequence[tuple[Operand, Operand]]) -> None:
    """Assign the gradients of the parameters that are trained, given the errors of op-trees.

    Parameters
    ----------
    network : Layer
        The network.
    roots : sequence of (op-tree, error)
        Op-trees of its outputs, and the gradients of the cost with respect to them.
    """
    be = network.be
    layers = [layer for layer in network.leaves() if layer.trains_parameters]
    targets = [(w, dw, layer) for layer in layers for w, dw in zip(layer.parameters, layer.gradients, strict=True)]
    if not targets:
        return
    gradients = autodiff.differentiate_outputs(be, roots, [w for w, *_ in targets])
    values = [g + dw if layer.acc_on else g for g, (_, dw, layer) in zip(gradients, targets, strict=True)]
    be.assign([dw for _, dw, _ in targets], values)
