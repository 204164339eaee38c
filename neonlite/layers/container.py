"""How do layers make a network?  One after another: outputs go forward, errors come back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from neonlite.layers.buffers import by_columns, elements
from neonlite.layers.deltas import Deltas, Place
from neonlite.layers.layer import NOT_YET, Layer
from neonlite.layers.parameter import ParameterLayer, allocate_parameters


class LayerContainer(Layer):
    """Layers that run together as one. All their parameters lie in one buffer, and all gradients in another.

    Deltas lie in as few buffers as the way back can do with. One of your own says ``configure``, ``allocate_layers``,
    ``reserve``, ``fprop`` and ``bprop``.
    """

    reads_outputs = False

    def __init__(self, layers: Iterable[Any], name: str | None = None) -> None:
        super().__init__(name)
        self.layers = list(layers)
        self.learning = False  # whether the last fprop was one to learn from
        if not self.layers:
            raise ValueError(f"{self.name}: a network has one layer or more")
        names = Counter(layer.name for layer in self.leaves())
        if twice := sorted(name for name, times in names.items() if times > 1):
            found = ", ".join(twice)
            raise ValueError(f"{self.name}: layers have names of their own; {found} occurs more than once: pass name=")

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def leaves(self) -> list[Any]:
        """Return all layers that are no containers, in order."""
        return [leaf for x in self.layers for leaf in (x.leaves() if isinstance(x, LayerContainer) else [x])]

    # --- parameters ---

    @property
    def layers_to_optimize(self) -> list[Any]:
        """The layers with parameters that are to be learned."""
        return [layer for layer in self.leaves() if layer.has_params and getattr(layer, "learns", True)]

    @property
    def parameters(self) -> list[Any]:
        """The parameters of all layers."""
        return [p for layer in self.leaves() if layer.has_params for p in layer.parameters]

    @property
    def gradients(self) -> list[Any]:
        """Their gradients, in the same order."""
        return [g for layer in self.leaves() if layer.has_params for g in layer.gradients]

    def set_acc_on(self, acc_on: bool) -> None:
        """Set whether bprop adds to gradients. BufferError unless allocated with ``accumulate_updates=True``."""
        for layer in self.leaves():
            layer.set_acc_on(acc_on)

    # --- buffers ---

    def allocate(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        """Make all buffers but those of the deltas."""
        leaves = self.leaves()
        allocate_parameters([x for x in leaves if isinstance(x, ParameterLayer) and x.parameters[0] is None])
        self.learning = False
        self.allocate_layers(**given(shared_outputs=shared_outputs, accumulate_updates=accumulate_updates))

    def allocate_layers(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        """Have the layers make their buffers."""
        for layer in self.layers:
            allocate(layer, None, accumulate_updates)

    def allocate_deltas(self, global_deltas: Any = None) -> None:
        """Make the buffers of the deltas, as few and as small as the way back allows, and hand them out."""
        deltas = Deltas()
        self.reserve(deltas, deltas.outside())
        deltas.allocate(self.buffer)

    def reserve(self, deltas: Deltas, error: Place | None) -> Place | None:
        """Have the layers say where their deltas are to lie."""
        raise NotImplementedError(f"{self.classnm} has no reserve(deltas, error)")

    def check_scale(self, beta: float, alpha: float = 1) -> None:
        """Raise ValueError for scales: layers share buffers, and what is to be added to is not kept."""
        if beta or alpha != 1:
            raise ValueError(f"{self.name}: a container has no alpha and beta, layers have; got {alpha=}, {beta=}")

    # --- words ---

    def nested_str(self, level: int = 0) -> str:
        """Return the layers in words, one a line, indented."""
        return "\n".join([f"{'  ' * level}{self.classnm}", *(layer.nested_str(level + 1) for layer in self.layers)])

    def __str__(self) -> str:
        return self.nested_str()


class Sequential(LayerContainer):
    """Layers one after another. Lists among them, such as ``Affine``, are laid flat.

    A layer works in place where nobody needs what it writes over: neither the layer before, nor the caller, whose data
    and errors stay as they are. A layer written elsewhere may do so unasked, as the guide's MultiplyByTwo does, and
    gets copies where it would do harm.
    """

    def __init__(self, layers: Iterable[Any], name: str | None = None) -> None:
        super().__init__(flat(layers if isinstance(layers, Iterable) else [layers]), name)
        self.kept: dict[Any, Any] = {}  # layer -> a copy of its inputs, which it may write over
        self.kept_errors: dict[Any, Any] = {}  # layer -> a copy of its error, likewise

    @property
    def reads_outputs(self) -> bool:  # type: ignore[override]
        """Whether the last layer reads its outputs."""
        return bool(self.layers[-1].reads_outputs)

    def configure(self, in_obj: Any) -> Sequential:
        """Settle the shapes of all layers, from the first to the last, and which of them work in place."""
        self.be = self.be
        before = in_obj
        for layer in self.layers:
            layer.configure(before)
            before = layer
        first, last = self.layers[0], self.layers[-1]
        self.in_shape, self.out_shape = first.in_shape, last.out_shape
        if isinstance(in_obj, Layer):
            self.prev_layer = in_obj
            in_obj.set_next(self)
        first.owns_output = True
        for before, layer in zip(self.layers, self.layers[1:], strict=False):
            layer.owns_output = not layer.in_place or before.reads_outputs
        return self

    def allocate_layers(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        """Have the layers make their buffers."""
        last = [layer for layer in self.layers if layer.owns_output][-1]  # those after it write over its outputs
        for layer in self.layers:
            allocate(layer, shared_outputs if layer is last else None, accumulate_updates)
        self.kept = {
            layer: self.buffer(f"inputs of {layer.name}", layer.in_shape)
            for before, layer in zip([None, *self.layers], self.layers, strict=False)
            if not careful(layer) and (before is None or before.reads_outputs)
        }

    def reserve(self, deltas: Deltas, error: Place | None) -> Place | None:
        """Have the layers say where their deltas are to lie, from the last to the first."""
        self.layers[0].prev_layer = self.layers[0].prev_layer or self.prev_layer
        self.kept_errors = {}
        for layer in reversed(self.layers):
            reserve = layer.reserve if careful(layer) else partial(self.reserve_for_another, layer)
            error = reserve(deltas, error)
        return error

    def reserve_for_another(self, layer: Any, deltas: Deltas, error: Place | None) -> Place | None:
        """Reserve for a layer that may write over its error, and return that or buffers of its own."""
        if error is not None and not error.exclusive:

            def keep(buffer: Any) -> None:
                self.kept_errors[layer] = self.be.iobuf(by_columns(layer.out_shape), shared=buffer)

            place = deltas.take(elements(layer.out_shape), keep)
            deltas.free(error)
            error = place
        layer.allocate_deltas()
        return error

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute the outputs of all layers, and return those of the last."""
        self.check_scale(beta)
        x = inputs
        self.learning = False
        for layer in self.layers:
            if layer in self.kept:
                self.kept[layer][:] = x
                x = self.kept[layer]
            x = layer.fprop(x, inference)
        self.learning = not inference
        self.outputs = x
        return x

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute all gradients, from the last layer to the first, and return the deltas of the first."""
        self.check_scale(beta, alpha)
        if not self.learning:
            raise RuntimeError(f"{self.name}: {NOT_YET}")
        for layer in reversed(self.layers):
            if layer in self.kept_errors:
                self.kept_errors[layer][:] = error
                error = self.kept_errors[layer]
            error = layer.bprop(error)
        self.deltas = error
        return error

    def blank_inputs(self) -> Any:
        """Return inputs that fit the first layer, of zeros."""
        return self.layers[0].blank_inputs()

    def in_steps(self, S: int) -> Any:
        """Return the inputs' shape with S time steps."""
        return self.layers[0].in_steps(S)

    def get_terminal(self) -> Any:
        """Return the last layer."""
        return self.layers[-1].get_terminal()


class GenerativeAdversarial(Sequential):
    """A generator, from noise to data, and a discriminator, from data to how likely it is no work of the generator.

    One after the other they are a network from noise. The discriminator alone learns from data, by
    ``net.discriminator.fprop(data)``, ``bprop(error)``. Source: Goodfellow et al. 2014.
    """

    def __init__(self, generator: Any, discriminator: Any, name: str | None = None) -> None:
        super().__init__([sequential(generator), sequential(discriminator)], name)

    @property
    def generator(self) -> Any:
        """The first of the two."""
        return self.layers[0]

    @property
    def discriminator(self) -> Any:
        """The second."""
        return self.layers[1]


def sequential(layers: Any) -> Any:
    """Return a container as it is; layers one after another as one."""
    return layers if isinstance(layers, LayerContainer) else Sequential(layers)


def flat(layers: Any) -> Iterator[Any]:
    """Yield the layers of nested lists."""
    for layer in layers:
        if isinstance(layer, list | tuple):
            yield from flat(layer)
        elif isinstance(layer, Layer):
            yield layer
        else:
            raise TypeError(f"a network is made of layers and lists of layers; got {layer!r}")


def allocate(layer: Any, shared_outputs: Any, accumulate_updates: bool) -> None:
    """Have a layer make its buffers; those of gradients to add to concern only layers with parameters."""
    accumulate_updates = accumulate_updates and (isinstance(layer, LayerContainer) or layer.has_params)
    layer.allocate(**given(shared_outputs=shared_outputs, accumulate_updates=accumulate_updates))


def given(**arguments: Any) -> dict[str, Any]:
    """Return the arguments that say something: layers of one's own need not know the others."""
    return {k: x for k, x in arguments.items() if x is not None and not (isinstance(x, int | float) and x == 0)}


def careful(layer: Any) -> bool:
    """Tell whether a layer writes over its inputs and errors only where it is told to: all of this package do."""
    return all((step.__module__ or "").startswith("neonlite.") for step in (type(layer).fprop, type(layer).bprop))
