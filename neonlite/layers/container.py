"""Layer containers: LayerContainer, Sequential and GenerativeAdversarial; lists of layers (LayerList)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast, overload

from neonlite import messages, name_hints, tree_structure, typing
from neonlite.backend import Tensor, objects, validation
from neonlite.layers.buffers import Deltas, LayerOutputs, Operands, Tensors, Trees, copy_tensors
from neonlite.layers.layer import USE_CALL, Layer, LayerInput, Terminal, set_trainable
from neonlite.layers.parameter import ParameterLayer, TensorAttribute, allocate_parameters
from neonlite.layers.summary import walk_layers
from neonlite.messages import describe
from neonlite.transforms import Transform

LayerLike: TypeAlias = "Layer | Sequence[LayerLike]"  # a layer, or nested lists of layers

if TYPE_CHECKING:

    class AnyLayer(Layer):
        """A layer whose class the checker does not know: it may have any attribute, such as ``W`` or ``keep``."""

        W: TensorAttribute
        dW: TensorAttribute

        def __getattr__(self, name: str) -> Any: ...


class InputEncoding(typing.Untracked):
    """How the inputs of a model's network are computed from data: the encoder of ``fit(X, y)``, and preprocessing."""

    def __init__(self, encoder: Any = None, preprocessing: Any = None) -> None:
        self.encoder, self.preprocessing = encoder, preprocessing

    def replace(self, **parts: Any) -> InputEncoding:
        """Return a copy with other parts."""
        return InputEncoding(**(vars(self) | parts))


class LayerContainer(Layer):
    """Base class of layers that contain other layers.

    All parameters are views of one buffer, and all gradients of another. Subclasses implement ``configure``,
    ``set_needs_deltas``, ``fprop`` and ``bprop``.

    Parameters
    ----------
    layers : iterable of Layer
        The layers. If layers have one name, the later ones get a number: "a", "a_1".
    name : str, optional
        Name, unique in a network.

    Attributes
    ----------
    layers : list of Layer
        The layers. ``len(network)`` and ``for layer in network`` are those of this list; ``network[0]`` and
        ``network["name"]`` return a layer.
    """

    unread_attributes = (*Layer.unread_attributes, "branch_outputs", "num_frozen", "input_encoding", "gradient_reducer")
    input_encoding = InputEncoding()  # of the inputs of a model's network

    def __init__(self, layers: Iterable[LayerLike], name: str | None = None) -> None:
        super().__init__(name)
        self.layers: list[AnyLayer] = layer_list(self.name, layers)
        if not self.layers:
            raise ValueError(f"{self.name}: expected one or more layers, got none.")
        for layer in self.layers:
            if not objects.is_builtin(type(layer)):
                validation.check_signature(f"{layer.name}.fprop", layer.fprop, "fprop(x, inference=False)", None, False)
            layer.container = layer.container or self
        self._number_equal_names()

    def _number_equal_names(self) -> None:
        """Add a number to the name of a layer that an earlier one has: a, a_bias, then a_1, a_1_bias.

        ValueError for a layer that occurs twice, and for one of another network, which keeps its name.
        """
        leaves = self.leaves()
        names = {layer.name for layer in leaves}
        named: dict[str, Layer] = {}
        numbered: dict[str, str] = {}  # name -> the last one with a number
        counters: dict[str, Iterator[int]] = defaultdict(lambda: count(1))  # name -> the numbers that were not used yet
        for layer in leaves:
            name = layer.name
            if name in named:
                if named[name] is layer or layer.root is not self:
                    raise ValueError(f"{self.name}: expected unique layer names, got {name} twice. Pass name=.")
                base = name.rpartition("_")[0]  # of the layer whose bias or activation this is
                base = numbered.get(base, base) + name[len(base) :]
                candidates = (f"{base}_{n}" for n in counters[base])
                layer.name = base if base not in names else next(x for x in candidates if x not in names)
                numbered[name] = layer.name
                names.add(layer.name)
            named[layer.name] = layer

    def __iter__(self) -> Iterator[AnyLayer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    @overload
    def __getitem__(self, key: int | str) -> AnyLayer: ...
    @overload
    def __getitem__(self, key: slice) -> list[AnyLayer]: ...
    def __getitem__(self, key: int | slice | str) -> AnyLayer | list[AnyLayer]:
        """Return a layer by its position or its name, also of a layer in a container in this one; a list for a slice.

        Parameters
        ----------
        key : int, slice or str
            The position or positions, or the name.

        Raises
        ------
        IndexError, KeyError
            If there is no such layer.
        """
        if not isinstance(key, str):
            try:
                return self.layers[key]
            except IndexError:
                kind = f"a position below the number of layers, {len(self.layers)}"
                raise IndexError(f"{self.name}: expected {kind}, got {key}.") from None
        layers = {layer.name: layer for _, layer in reversed([*walk_layers(self)][1:])}  # the first one of a name
        if key not in layers:
            raise KeyError(
                f"{self.name}: expected the name of a layer, {', '.join(reversed(layers))}, got {key!r}. Pass "
                "name= to a layer to choose its name."
            )
        return cast("AnyLayer", layers[key])

    def __contains__(self, item: object) -> bool:
        """Return whether a layer, or a layer of this name, is in the container or in a container in it."""
        return any(layer is item or layer.name == item for _, layer in [*walk_layers(self)][1:])

    @property
    def is_expression(self) -> bool:
        """Whether the outputs are an op-tree of the inputs: those of all layers are, and of the container itself."""
        has_tree = type(self).build_tree is not Layer.build_tree and self._passes_follow("build_tree")
        return has_tree and all(layer.is_expression for layer in self.layers)

    def leaves(self) -> list[Layer]:
        """Return all layers that are not containers, in order."""
        return [leaf for x in self.layers for leaf in (x.leaves() if isinstance(x, LayerContainer) else [x])]

    # --- parameters ---

    @property
    def trainable(self) -> bool:
        """Whether any layer with parameters is trained; setting it sets that of all layers."""
        return any(layer.trainable for layer in self.leaves() if layer.has_params)

    @trainable.setter
    def trainable(self, value: bool) -> None:
        set_trainable([self], value)

    @property
    def trains_parameters(self) -> bool:
        """Whether ``bprop`` computes gradients of parameters of any layer."""
        return any(layer.trains_parameters for layer in self.layers)

    @property
    def num_parameters(self) -> int:
        """The number of trainable parameters of all layers of a configured network."""
        return sum(layer.num_parameters for layer in self.leaves())

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters of all layers."""
        return [p for layer in self.leaves() if layer.has_params for p in layer.parameters]

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of the parameters, in the same order."""
        return [g for layer in self.leaves() if layer.has_params for g in layer.gradients]

    def set_acc_on(self, acc_on: bool) -> None:
        for layer in self.leaves():
            layer.set_acc_on(acc_on)

    # --- buffers ---

    @property
    def owns_layers(self) -> bool:
        """Whether no other container has allocated layers of this one since."""
        inner = (layer for layer in self.layers if isinstance(layer, LayerContainer))
        return all(layer.container is self for layer in self.layers) and all(layer.owns_layers for layer in inner)

    def allocate_parameters(self) -> None:
        leaves = self.leaves()
        allocate_parameters([x for x in leaves if isinstance(x, ParameterLayer) and not x.is_allocated])
        for leaf in leaves:
            leaf.allocate_parameters()

    @validation.checks_arguments
    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        """Allocate all buffers except those of the deltas."""
        self.check_configured()
        self.allocate_parameters()
        self.take_layers()
        self.can_backprop, self.batch_size = False, 0
        self.allocate_layers(**drop_defaults(shared_outputs=shared_outputs, accumulate_updates=accumulate_updates))
        self.batch_size = self.be.bsz

    def take_layers(self) -> None:
        """Make this network the one that its layers belong to."""
        for layer in self.layers:
            layer.container = self
            if isinstance(layer, LayerContainer):
                layer.take_layers()

    def _start_fprop(self, beta: float) -> None:
        """Refuse scaling; allocate the buffers of the network if there are none; and no ``bprop`` follows a failure."""
        self.reject_scaling(beta)
        self.can_backprop = False
        if not self.batch_size and self.in_shape is not None and not self.root.batch_size:
            self.root.allocate_buffers()

    def allocate_layers(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        """Allocate the layers.

        Parameters
        ----------
        shared_outputs, accumulate_updates
            As for ``allocate``.
        """
        for layer in self.layers:
            accumulates = accumulate_updates and (isinstance(layer, LayerContainer) or layer.has_params)
            shared = shared_outputs if layer is self.layers[-1] else None
            layer.allocate(**drop_defaults(shared_outputs=shared, accumulate_updates=accumulates))

    def allocate_deltas(self, global_deltas: Tensor | None = None) -> None:
        """Allocate the buffers of the deltas of all layers."""
        self.set_needs_deltas()
        for layer in self.layers:
            layer.allocate_deltas()

    def set_needs_deltas(self) -> None:
        """Set which layers compute deltas: here those whose container does."""
        for layer in self.layers:
            layer.needs_deltas = self.needs_deltas

    def reject_scaling(self, beta: float, alpha: float = 1) -> None:
        """Raise ValueError unless alpha is 1 and beta is 0.

        Parameters
        ----------
        beta, alpha : float
            Arguments of ``fprop`` or ``bprop``.
        """
        if beta or alpha != 1:
            raise ValueError(
                f"{self.name}: expected alpha=1 and beta=0, got {alpha=}, {beta=}. Pass alpha and beta to the "
                "layers themselves."
            )

    def make_zero_inputs(self) -> Tensors:
        """Return inputs of the first layer, filled with zeros."""
        return self.layers[0].make_zero_inputs()

    def shape_for_seq_len(self, S: int) -> typing.LayerShapes:
        shape: typing.LayerShapes = self.layers[0].shape_for_seq_len(S)
        return shape

    # --- text ---

    def repr_details(self) -> list[str]:
        """Return what ``repr`` shows besides the name: number of layers, shapes and number of parameters."""
        count = len(self.leaves())
        return [f"{count} layer{'s' * (count != 1)}", *super().repr_details()]

    def nested_str(self, level: int = 0) -> str:
        """Return the container and its layers as indented lines."""
        return "\n".join([f"{'  ' * level}{self.classnm}", *(layer.nested_str(level + 1) for layer in self.layers)])

    def __str__(self) -> str:
        return self.nested_str()


class Sequential(LayerContainer):
    """Layers that are applied one after another. Nested lists of layers, such as ``Affine``, are flattened.

    A layer with its own ``fprop`` and ``bprop`` may overwrite its inputs and its error, like MultiplyByTwo in neon's
    user guide: it receives copies.

    Parameters
    ----------
    layers : iterable of Layer
        The layers, possibly in nested lists.
    name : str, optional
        Name, unique in a network.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.initializers import Gaussian
    >>> from neonlite.layers import Affine, Sequential
    >>> from neonlite.transforms import Rectlin, Softmax
    >>> be = nl.gen_backend("cpu", batch_size=32)
    >>> layers = [Affine(100, Gaussian(), activation=Rectlin()), Affine(10, Gaussian(), activation=Softmax())]
    >>> Sequential(layers).configure((1, 28, 28)).out_shape
    10
    """

    def __init__(self, layers: LayerLike | Iterable[LayerLike], name: str | None = None) -> None:
        is_one = isinstance(layers, Layer) or not isinstance(layers, Iterable)
        layers = layer_list(self.classnm, [layers] if is_one else layers, name)
        super().__init__(flatten_layers(self.classnm, layers), name)
        self.num_frozen = 0  # number of first layers that are not part of bprop: nothing in or before them is trained

    @property
    def input_shape(self) -> typing.LayerShapes:
        """The shape of the inputs of the first layer."""
        return self.layers[0].input_shape

    def configure(self, in_obj: LayerInput) -> Self:
        """Infer the shapes of all layers."""
        self.be = self.be
        first, last = self.layers[0], self.layers[-1]
        if self.prev_layer is not None:
            first.prev_layer = self.prev_layer
        before = in_obj
        for layer in self.layers:
            layer.configure(before)
            layer.check_configured()
            before = layer
        self.in_shape, self.out_shape = first.in_shape, last.out_shape
        if isinstance(in_obj, Layer):
            self.prev_layer = in_obj
            in_obj.set_next(self)
        return self

    def set_needs_deltas(self) -> None:
        """Set which layers compute deltas: those after the first one that is trained, or all for deltas of the inputs.

        Layers before that one are not part of ``bprop``.
        """
        first = self.layers[0]
        if self.prev_layer is None:
            first.needs_deltas |= self.needs_deltas
        else:
            first.needs_deltas = self.needs_deltas
        trained = (i for i, layer in enumerate(self.layers) if layer.trains_parameters)
        self.num_frozen = 0 if first.needs_deltas else next(trained, len(self.layers))
        for i, layer in enumerate(self.layers):
            needs_deltas = i > self.num_frozen if i else first.needs_deltas
            if layer.needs_deltas != needs_deltas:
                layer.needs_deltas, layer.deltas = needs_deltas, None
                layer.allocate_deltas()

    def build_tree(self, x: Operands, training: bool) -> Trees:
        """Return the op-tree of the last layer, whose inputs are that of the layer before it, and so on."""
        for layer in self.layers:
            x = layer.build_tree(x, training)
        return x

    def fprop(self, inputs: Tensors, inference: bool = False, beta: float = 0.0) -> LayerOutputs:
        """Compute the outputs of all layers, and return those of the last one. Missing buffers are allocated."""
        tree_structure.refuse_in_trace("a network's fprop", USE_CALL)
        self._start_fprop(beta)
        x: Tensor | Any = inputs
        for layer in self.layers:
            x = layer.fprop(x if has_builtin_steps(layer) else copy_tensors(x), inference)
        self.can_backprop = not inference
        self.outputs = x
        return self.outputs

    def bprop(  # type: ignore[override]  # also of several branches
        self, error: Tensors, alpha: float = 1.0, beta: float = 0.0
    ) -> Deltas:
        """Compute all gradients, from the last layer to the first, and return the deltas of the first."""
        tree_structure.refuse_in_trace("a network's bprop", USE_CALL)
        self.reject_scaling(beta, alpha)
        self.check_can_backprop()
        self.set_needs_deltas()
        deltas: Tensor | Any = error
        for layer in reversed(self.layers[self.num_frozen :]):
            is_given = deltas is None or has_builtin_steps(layer)
            deltas = layer.bprop(deltas if is_given else copy_tensors(deltas))
            if self.gradient_reducer is not None:
                self.gradient_reducer.layer_done(layer)
        self.deltas = deltas if self.num_frozen < len(self.layers) else None
        return self.deltas

    @property
    def error_factors(self) -> list[float]:
        """The factors of the errors of the outputs: those of the last layer."""
        return self.layers[-1].error_factors

    def get_terminal(self) -> Terminal:
        """Return the last layer."""
        return self.layers[-1].get_terminal()


class GenerativeAdversarial(Sequential):
    """A generative adversarial network: a generator, which maps noise to data, followed by a discriminator.

    To train the discriminator on data, call ``net.discriminator.fprop(data)`` and ``net.discriminator.bprop(error)``.

    Parameters
    ----------
    generator, discriminator : LayerContainer or list of Layer
        The two networks.
    name : str, optional
        Name, unique in a network.

    References
    ----------
    Goodfellow et al., "Generative adversarial nets", 2014.
    """

    def __init__(self, generator: LayerLike, discriminator: LayerLike, name: str | None = None) -> None:
        super().__init__([as_container(generator), as_container(discriminator)], name)

    @property
    def generator(self) -> LayerContainer:
        """The generator."""
        return cast(LayerContainer, self.layers[0])

    @property
    def discriminator(self) -> LayerContainer:
        """The discriminator."""
        return cast(LayerContainer, self.layers[1])


def as_container(layers: LayerLike) -> LayerContainer:
    """Return a container unchanged, and a list of layers as a ``Sequential``."""
    return layers if isinstance(layers, LayerContainer) else Sequential(layers)


def layer_list(where: str, layers: Any, name: Any = None) -> list[Any]:
    """Return the layers as a list; TypeError for a single layer, or for a second layer instead of the name."""
    if isinstance(layers, Layer | str) or not isinstance(layers, Iterable) or not isinstance(name, str | None):
        got = describe(layers if name is None else [layers, name])
        raise TypeError(f"{where}: expected a list of layers, got {got}. Pass one list of layers: {where}([a, b]).")
    return list(layers)


def flatten_layers(where: str, layers: Iterable[LayerLike]) -> Iterator[Layer]:
    """Yield the layers of nested lists; TypeError for anything else in them."""
    for layer in layers:
        if isinstance(layer, list | tuple):
            yield from flatten_layers(where, layer)
        elif isinstance(layer, Layer):
            yield layer
        else:
            raise TypeError(f"{where}: expected layers and lists of layers, got {describe(layer)}.{way_out(layer)}")


def way_out(x: object) -> str:
    """Return how to pass what is not a layer: an activation, its name, or a class."""
    if isinstance(x, type):
        return f" Pass an instance: {x.__name__}(...)."
    if isinstance(x, str | Transform):
        return " An activation is an argument of the layer before: Affine(10, activation='relu')."
    return ""


def drop_defaults(**arguments: Any) -> dict[str, Any]:
    """Return the arguments that are not None or 0, because custom layers may not accept the others."""
    return {k: x for k, x in arguments.items() if x is not None and not (isinstance(x, int | float) and x == 0)}


def has_builtin_steps(layer: Layer) -> bool:
    """Return whether built-in classes define fprop and bprop of a layer; these do not overwrite their arguments."""
    return objects.has_builtin_method(type(layer), "fprop") and objects.has_builtin_method(type(layer), "bprop")


@name_hints.add_hints(name_hints.LAYER_LIST)
class LayerList(list[Any]):
    """Base class of lists of layers, such as Affine: a list that prints with its class."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        validation.check_constructor(cls)

    def __setattr__(self, name: str, value: object) -> None:
        if self and objects.is_builtin(type(self)):  # the arguments of its constructor have been used
            raise AttributeError(
                f"{type(self).__name__}: expected no assignment to {name}, which would change none of its layers. Pass "
                f"{name} to the constructor, or set an attribute of one of the layers."
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()})"

    def _repr_html_(self) -> str:
        count = f"{len(self)} layer{'s' * (len(self) != 1)}"
        return str(messages.format_object(type(self).__name__, [count], {"layers": list(self)}))
