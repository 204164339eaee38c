"""Trainable parameters: ParameterLayer, and flat buffers for the parameters of a network and their gradients.

An optimizer step or a checkpoint is therefore a single pass over one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, overload

from neonlite.backend import Tensor, validation
from neonlite.backend.transaction import atomic, on_failure
from neonlite.initializers import initializer_names
from neonlite.layers.buffers import num_channels
from neonlite.layers.layer import Layer
from neonlite.messages import describe
from neonlite.transforms.functions import ACTIVATIONS
from neonlite.typing import Array, ArrayLike


class HasFill(Protocol):
    """An initializer."""

    def fill(self, param: Tensor) -> None:
        """Assign initial values to a parameter."""


Parameter: TypeAlias = "tuple[tuple[Tensor, Tensor], list[Tensor]]"  # ((W, dW), states), as get_params() returns it
InitLike: TypeAlias = "HasFill | Array | str"  # initial values of a parameter; a name such as "glorot"


class TensorAttribute:
    """A descriptor for a tensor of a layer: a parameter, its gradient or a running statistic.

    Assigning an array copies the values into the tensor, so views of it stay valid.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"TensorAttribute({getattr(self, 'name', '')!r})"

    @overload
    def __get__(self, layer: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(self, layer: Layer, owner: type | None = None) -> Tensor: ...

    def __get__(self, layer: Layer | None, owner: type | None = None) -> Self | Tensor | None:
        return self if layer is None else layer.__dict__.get(self.name)

    def __set__(self, layer: Layer, value: ArrayLike | None) -> None:
        tensor = layer.__dict__.get(self.name)
        if isinstance(tensor, Tensor) and getattr(value, "size", tensor.size) not in (1, tensor.size):
            shape = tuple(getattr(value, "shape", ()))
            raise ValueError(f"{layer.name}.{self.name}: expected the shape {tensor.shape}, got {shape}.")
        if tensor is None or value is None:
            if not isinstance(value, Tensor | None):
                raise TypeError(
                    f"{layer.name}.{self.name}: expected an allocated tensor to copy into, got none. Call allocate() "
                    "first, or pass the values as init."
                )
            layer.__dict__[self.name] = value
        elif value is not tensor:
            tensor[:] = value


class ParameterSpec(NamedTuple):
    """A parameter of a layer: attribute names of the tensor and its gradient, shape, and initial values.

    Parameters
    ----------
    name : str
        Name of the attribute that holds the parameter.
    gradient : str
        Name of the attribute that holds its gradient.
    shape : tuple
        Shape of both.
    init : Initializer, array or Tensor
        Initial values.
    """

    name: str
    gradient: str
    shape: tuple[int, ...]
    init: InitLike | None


class ParameterLayer(Layer):
    """Base class of layers with weights W and their gradient dW.

    Subclasses set ``weight_shape`` in ``configure``; those with other parameters override ``parameter_specs``.

    Parameters
    ----------
    init : Initializer, array or Tensor
        Initial values of W.
    name : str, optional
        Name, unique in a network.
    parallelism : str
        As for ``Layer``.

    Attributes
    ----------
    W, dW : Tensor
        The weights and their gradient. Assignment copies values into them.
    states : list
        The optimizer states of W, or a list of those of each parameter.
    """

    has_params = True
    weights_are_columns = False  # whether the weights are (C R S, K), as in a convolution, or else (nout, nin)
    W = TensorAttribute()
    dW = TensorAttribute()

    def __init__(self, init: InitLike | None = None, name: str | None = None, parallelism: str = "Unknown") -> None:
        super().__init__(name, parallelism)
        self.init: Any = self.initial_values(init)
        self.weight_shape: tuple[int, ...] | Any = None

    def initial_values(self, init: InitLike | None) -> InitLike | None:
        """Return initial values, an initializer for the name of one; TypeError or ValueError if they are not valid.

        Parameters
        ----------
        init : Initializer, array, Tensor or str, optional
            The initial values.
        """
        is_activation = isinstance(init, str) and init.lower() in ACTIVATIONS
        way_out = f". Pass the activation by its name: activation={init!r}." if is_activation else ""
        init = validation.from_name(f"{self.name}: init", init, initializer_names(self.weights_are_columns), way_out)
        if init is not None:
            check_init(self.name, init)
        return init

    def parameter_specs(self) -> list[ParameterSpec]:
        """Return the parameters as a list of ``ParameterSpec``, in the order of optimizer states and checkpoints."""
        return [ParameterSpec("W", "dW", self.weight_shape, self.init)]

    def saved_specs(self) -> list[ParameterSpec]:
        """Return what is allocated for the arrays of a checkpoint: the parameters."""
        return self.parameter_specs()

    @cached_property
    def parameter_names(self) -> list[tuple[str, str]]:
        """The names of the attributes that hold the parameters and their gradients, in the same order."""
        return [(spec.name, spec.gradient) for spec in self.parameter_specs()]

    @property
    def is_allocated(self) -> bool:
        """Whether the layer has its parameters."""
        return self.in_shape is not None and getattr(self, self.parameter_names[0][0]) is not None

    @validation.checks_arguments
    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        """Allocate the buffer of the outputs, and the parameters unless the network has allocated them."""
        super().allocate(shared_outputs)
        for spec, parameter in zip(self.parameter_specs(), self.parameters, strict=True):
            meaning = f" for inputs of shape {self.in_shape}"
            way_out = ", allocated for other inputs. Create a new layer."
            validation.check_shape(f"{self.name}: {spec.name}", parameter, spec.shape, meaning, way_out)
        if accumulate_updates and not self.grad_accumulators:
            self.grad_accumulators = [self.be.zeros_like(x, name=f"{x.name}, accumulated") for x in self.gradients]

    def allocate_parameters(self) -> None:
        if not self.is_allocated:
            allocate_parameters([self])
        for w in self.parameters:
            w.owner = self.name, self.classnm  # a container may have changed the name

    @property
    def num_parameters(self) -> int:
        """The number of trainable parameters of a configured layer."""
        return sum(math.prod(spec.shape) for spec in self.parameter_specs())

    @property
    def parameters(self) -> list[Tensor]:
        """The trainable tensors."""
        return [getattr(self, name) for name, _ in self.parameter_names]

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of the parameters, in the same order."""
        return [getattr(self, gradient) for _, gradient in self.parameter_names]

    def get_params(self) -> Parameter | list[Parameter]:
        """Return ``((W, dW), states)``, or a list of these for a layer with several parameters."""
        values: dict[str, Any] = vars(self)
        params: list[Parameter] = []
        for name, gradient in self.parameter_names:
            w: Any = values.get(name)
            dw: Any = values.get(gradient)
            params.append(((w, dw), [] if w is None else states_of(w)))
        return params[0] if len(params) == 1 else params

    @property
    def states(self) -> list[Tensor] | list[list[Tensor]]:
        """The states of the optimizer: a list for each parameter, or that of the only one."""
        params = self.get_params()
        return [states for _, states in params] if isinstance(params, list) else params[1]

    @property
    def persistent_tensors(self) -> dict[str, Tensor]:
        """The tensors that are saved in checkpoints, by name."""
        return {name: getattr(self, name) for name, _ in self.parameter_names}

    @property
    def running_tensors(self) -> list[Tensor]:
        """The tensors that are saved in checkpoints besides the parameters, such as running means."""
        if type(self).persistent_tensors is ParameterLayer.persistent_tensors:
            return []
        parameters = dict(self.parameter_names)
        return [t for name, t in self.persistent_tensors.items() if name not in parameters]

    def set_params(self, params: dict[str, Any]) -> None:
        """Copy arrays into the persistent tensors.

        Parameters
        ----------
        params : dict
            Arrays by name.

        Raises
        ------
        KeyError
            If an array is missing.
        """
        if missing := [name for name in self.persistent_tensors if name not in params]:
            raise KeyError(f"{self.name}: expected an array {missing[0]}, got only {', '.join(params)}")

        def write() -> None:
            for name, tensor in self.persistent_tensors.items():
                on_failure(tensor.__setitem__, slice(None), tensor.get())
                setattr(self, name, params[name])

        atomic(write)


class BatchSumLayer(ParameterLayer):
    """Base class of layers with ``bsum``: ``fprop`` also computes the sum of each channel of the outputs."""

    bsum = False
    batch_sum: Tensor | Any = None

    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Tensor:
        """Compute the outputs, and ``batch_sum``."""
        super().fprop(inputs, inference, beta)
        if self.bsum:
            n = num_channels(self.out_shape)
            if self.batch_sum is None:
                self.batch_sum = self.be.zeros((n, 1), name=f"{self.name}.batch_sum")
            self.batch_sum[:] = self.be.sum(self.outputs.reshape(n, -1), axis=1)
        return self.outputs


def states_of(w: Tensor) -> list[Tensor]:
    """Return the list of the optimizer states of a parameter."""
    if w.states is None:
        w.states = []
    return w.states


def allocate_parameters(layers: Sequence[ParameterLayer]) -> None:
    """Allocate the parameters of layers in one buffer and their gradients in another, and initialize the parameters."""
    specs = [(layer, spec) for layer in layers for spec in layer.parameter_specs()]
    for layer, spec in specs:
        if spec.shape is None:
            raise RuntimeError(
                f"{layer.name}: expected {layer.classnm}.configure to set weight_shape, got None. Set "
                "self.weight_shape there, such as to (outputs, inputs)."
            )
    if not specs:
        return
    atomic(allocate_and_fill, specs)


def allocate_and_fill(specs: Sequence[tuple[ParameterLayer, ParameterSpec]]) -> None:
    """Allocate and initialize parameters, then set the attributes of all layers; no attribute is set after an error."""
    be, start = specs[0][0].be, 0
    on_failure(be.rng_set_state, be.rng_get_state())  # the next attempt draws the same numbers
    total = sum(math.prod(spec.shape) for _, spec in specs)
    flat, gradients = be.zeros((total, 1), name="parameters"), be.zeros((total, 1), name="gradients")
    allocated = []
    for layer, spec in specs:
        size = math.prod(spec.shape)
        for attribute, buffer in ((spec.name, flat), (spec.gradient, gradients)):
            view = buffer[start : start + size].reshape(spec.shape)
            view.name = f"{layer.name}.{attribute}"
            allocated.append((layer, attribute, view))
        fill_parameter(allocated[-2][2], spec.init)
        start += size
    for layer, attribute, view in allocated:
        on_failure(vars(layer).update, {attribute: None})
        vars(layer)[attribute] = view


def check_init(where: str, init: Any) -> None:
    """Raise TypeError unless these are initial values: an initializer, an array, a list or a tensor."""
    if isinstance(init, type) or not (isinstance(init, list) or hasattr(init, "shape") or hasattr(init, "fill")):
        way_out = f" Pass an instance: {init.__name__}()." if isinstance(init, type) else ""
        if isinstance(init, int | float):
            way_out = " Pass the size of the outputs, as in Affine(10) or Conv((3, 3, 16)), and not that of the inputs."
        kind = "an initializer such as Gaussian(), an array or a tensor"
        raise TypeError(f"{where}: expected {kind} for init, got {describe(init)}.{way_out}")


def fill_parameter(parameter: Tensor, init: Any) -> None:
    """Fill a parameter with an initializer, or with the values of an array or tensor."""
    if hasattr(init, "shape"):
        if tuple(init.shape) != parameter.shape:
            raise ValueError(f"init: expected the shape of {describe(parameter)}, got {tuple(init.shape)}.")
        parameter[:] = init
    elif isinstance(init, list):  # an array from a description, as JSON data
        fill_parameter(parameter, parameter.backend.array(init, dtype=parameter.info.dtype))
    else:
        check_init(f"{parameter.name}", init)
        init.fill(parameter)
