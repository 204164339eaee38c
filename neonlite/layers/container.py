"""How do layers make a network?  One after another: outputs go forward, errors come back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from neonlite.layers.layer import NOT_YET, Layer, columns, features
from neonlite.layers.parameter import ParameterLayer, allocate_parameters


class LayerContainer(Layer):
    """Layers that run together as one."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.layers: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def leaves(self) -> list[Any]:
        """Return all layers that are no containers, in order."""
        return [leaf for x in self.layers for leaf in (x.leaves() if isinstance(x, LayerContainer) else [x])]

    @property
    def layers_to_optimize(self) -> list[Any]:
        """The layers with parameters."""
        return [layer for layer in self.leaves() if layer.has_params]

    @property
    def parameters(self) -> list[Any]:
        """The tensors that are learned."""
        return [p for layer in self.layers_to_optimize for p in layer.parameters]

    @property
    def gradients(self) -> list[Any]:
        """Their gradients, in the same order."""
        return [g for layer in self.layers_to_optimize for g in layer.gradients]

    def nested_str(self, level: int = 0) -> str:
        """Return the layers in words, one a line, indented."""
        return "\n".join([f"{'  ' * level}{self.classnm}", *(layer.nested_str(level + 1) for layer in self.layers)])

    def __str__(self) -> str:
        return self.nested_str()


class Sequential(LayerContainer):
    """Layers one after another. Lists among them, such as ``Affine``, are laid flat.

    All parameters lie in one buffer. Deltas take turns in two: that of a layer is not needed any more when the layer
    before has made its own. A layer works in place where nobody needs what it writes over: neither the layer before,
    nor the caller, whose data and errors stay as they are. A layer written elsewhere may do so unasked, as the guide's
    MultiplyByTwo does, and gets copies instead.
    """

    def __init__(self, layers: Iterable[Any], name: str | None = None) -> None:
        super().__init__(name)
        self.layers = list(flat(layers if isinstance(layers, Iterable) else [layers]))
        self.kept: dict[Any, Any] = {}  # layer -> a copy of its inputs, which it may write over
        self.learning = False  # whether the last fprop was one to learn from
        if not self.layers:
            raise ValueError(f"{self.name}: a network has one layer or more")
        names = [layer.name for layer in self.leaves()]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"{self.name}: layers have names of their own; {', '.join(twice)} occurs more than once")

    def configure(self, in_obj: Any) -> Sequential:
        """Settle the shapes of all layers, from the first to the last, and which of them work in place."""
        super().configure(in_obj)
        before = in_obj
        for layer in self.layers:
            layer.configure(before)
            before = layer
        self.out_shape = self.layers[-1].out_shape
        first, last = self.layers[0], self.layers[-1]
        first.owns_output = first.owns_delta = True
        for before, layer in zip(self.layers, self.layers[1:], strict=False):
            layer.owns_output = not layer.in_place or before.reads_outputs
            layer.owns_delta = layer.owns_output or layer is last
        return self

    def allocate(self, shared_outputs: Any = None) -> None:
        """Make all buffers but those of the deltas."""
        allocate_parameters([x for x in self.leaves() if isinstance(x, ParameterLayer) and x.parameters[0] is None])
        last = [layer for layer in self.layers if layer.owns_output][-1]  # those after it write over its outputs
        for layer in self.layers:
            layer.allocate(shared_outputs if layer is last else None)
        self.kept = {
            layer: self.be.iobuf(by_columns(layer.in_shape), name=f"{layer.name}.inputs")
            for before, layer in zip([None, *self.layers], self.layers, strict=False)
            if not careful(layer) and (before is None or before.reads_outputs)
        }

    def allocate_deltas(self, global_deltas: Any = None) -> None:
        """Make two buffers that hold any of the deltas, and have the layers take them in turns."""
        first = self.layers[0]
        first.prev_layer = first.prev_layer or self.prev_layer
        wanted = [layer for layer in self.layers if layer.owns_delta and layer.prev_layer is not None]
        if wanted:
            size = max(self.be.shared_iobuf_size(by_columns(layer.in_shape)) for layer in wanted)
            buffers = [self.be.iobuf(size, name=f"{self.name}.deltas") for _ in wanted[:2]]
            for layer in reversed(self.layers):
                if careful(layer):
                    layer.set_deltas(buffers)
                else:  # whether it returns its own deltas or the error, written over, the next buffer is free
                    layer.allocate_deltas()
        self.deltas = self.layers[0].deltas

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute the outputs of all layers, and return those of the last."""
        x = inputs
        if isinstance(self.in_shape, int | tuple):
            self.check("the inputs", x, self.in_shape)
        self.learning = not inference
        for layer in self.layers:
            if layer in self.kept:
                self.kept[layer][:] = x
                x = self.kept[layer]
            x = layer.fprop(x, inference, **({"beta": beta} if beta and layer is self.layers[-1] else {}))
        self.outputs = x
        return x

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute all gradients, from the last layer to the first, and return the deltas of the first."""
        if not self.learning:
            raise RuntimeError(f"{self.name}: {NOT_YET}")
        for layer in reversed(self.layers[1:]):
            error = layer.bprop(error)
        scales = {key: x for key, x, usual in (("alpha", alpha, 1), ("beta", beta, 0)) if x != usual}
        self.deltas = self.layers[0].bprop(error, **scales)
        return self.deltas

    def get_terminal(self) -> Any:
        """Return the last layer."""
        return self.layers[-1].get_terminal()


def flat(layers: Any) -> Iterator[Any]:
    """Yield the layers of nested lists."""
    for layer in layers:
        if isinstance(layer, list | tuple):
            yield from flat(layer)
        elif isinstance(layer, Layer):
            yield layer
        else:
            raise TypeError(f"a network is made of layers and lists of layers; got {layer!r}")


def careful(layer: Any) -> bool:
    """Tell whether a layer writes over its inputs and errors only where it is told to: all of this package do."""
    return all((step.__module__ or "").startswith("neonlite.") for step in (type(layer).fprop, type(layer).bprop))


def by_columns(shape: Any) -> tuple[int, int]:
    """Return a shape as ``be.iobuf`` takes it: rows, and columns for each of the minibatch."""
    return features(shape), columns(shape)
