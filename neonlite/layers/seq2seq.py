"""Encoder-decoder networks: Seq2Seq, with beam search, and SkipThought, with two decoders."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self, cast

from neonlite.backend import Tensor, objects, validation
from neonlite.layers import buffers, parameter
from neonlite.layers.container import LayerContainer, LayerLike, Sequential
from neonlite.layers.layer import Layer, LayerInput, Terminal
from neonlite.layers.linear import Affine, LookupTable
from neonlite.layers.recurrent import GatedRecurrentBase, RecurrentBase, get_steps, passing_states
from neonlite.messages import describe
from neonlite.optree import Operand
from neonlite.transforms import Softmax, Transform
from neonlite.typing import ArrayLike, LayerShapes


class Encoder(Sequential):
    """The layers that read the input sequence; the final states of the recurrent ones are passed to the decoder."""


class Decoder(Sequential):
    """The layers that output a sequence step by step; each step reads the token of the previous step.

    Tokens are ids (1, T), for a LookupTable, or one-hot (V, T).

    Parameters
    ----------
    layers : iterable of Layer
        The layers.
    start_index : int, optional
        Id of the token that the first step reads when the decoder reads its own predictions (default: id 0, or zeros if
        one-hot).
    name : str, optional
        Name of the decoder.
    """

    def __init__(self, layers: Iterable[LayerLike], start_index: int | None = None, name: str | None = None) -> None:
        super().__init__(layers, name)
        if start_index is not None:
            start_index = validation.integer(f"{self.name}: start_index", start_index, 0)
        self.start_index = start_index

    def make_step_inputs(self, token_ids: ArrayLike | None) -> Tensor:
        """Return the inputs of one step.

        Parameters
        ----------
        token_ids : Tensor, op-tree or None
            Token ids (1, N); None for the first step.

        Returns
        -------
        Tensor
            (1, N), or one-hot (V, N).
        """
        features = self.in_shape[0]
        if features not in (1, self.out_shape[0]):
            raise ValueError(
                f"{self.name}: expected inputs of token ids (1, T) or one-hot ({self.out_shape[0]}, T), as the decoder "
                f"reads its own predictions, got {self.in_shape}"
            )
        x: Tensor = self.buffer("step inputs", (features, 1), "int32" if features == 1 else None)  # zeros
        if token_ids is not None:
            x[:] = token_ids if features == 1 else self.be.onehot(token_ids, axis=0, nclass=features)
        elif self.start_index is not None and features == 1:
            x[:] = self.start_index
        elif self.start_index is not None:
            x[self.start_index : self.start_index + 1] = 1
        return x


class StatePassing(LayerContainer):
    """Base class of containers whose decoders' recurrent layers start from the final states of the encoder's.

    Parameters
    ----------
    layers : sequence
        The parts of the network.
    name : str, optional
        Name of the network.
    """

    encoder: Encoder
    decoders: list[Decoder]
    state_pairs: list[tuple[RecurrentBase, RecurrentBase]]  # (layer of a decoder, layer of the encoder)
    input_labels: tuple[str, ...]
    expected_inputs: str  # in error messages

    def _pair_layers(self, connections: Sequence[int] | None = None) -> None:
        """Set ``state_pairs``, and start every minibatch from zeros. ValueError if layers are incompatible."""
        pairs = [pair_recurrent_layers(self.name, self.encoder, x, connections) for x in self.decoders]
        self.state_pairs = list(itertools.chain(*pairs))
        for layer in recurrent_layers(self):
            layer.reset_cells = True  # minibatches are independent

    def build_tree(self, x: buffers.Operands, training: bool) -> buffers.Trees:
        """Return the decoders' outputs as op-trees of all inputs; those of the first input alone are none."""
        inputs: Any = x
        with passing_states({}) as states:
            self.encoder.build_tree(inputs[0], training)
            states |= {layer: states[encoder][: len(layer.state_names)] for layer, encoder in self.state_pairs}
            trees = [decoder.build_tree(y, training) for decoder, y in zip(self.decoders, inputs[1:], strict=True)]
        for layer, values in states.items() if training else ():
            self.be.assign(layer.state_tensors(values[0].shape[1]), values)
        return trees if len(trees) > 1 else trees[0]

    def fprop(self, inputs: buffers.Tensors, inference: bool = False, beta: float = 0.0) -> buffers.LayerOutputs:
        """Compute the decoders' outputs, or those of the first input alone; see the class.

        Parameters
        ----------
        inputs : list of Tensor, or Tensor
            The inputs of all parts; for inference also the first one alone.
        inference : bool
            Do not prepare for ``bprop``.
        beta : float
            Must be 0, as for all containers.

        Returns
        -------
        Tensor or list of Tensor
            The outputs of each decoder.
        """
        self._start_fprop(beta)
        parts = inputs if isinstance(inputs, list | tuple) else [inputs]
        if len(parts) != len(self.input_labels) and not (inference and parts is not inputs):
            raise ValueError(f"{self.name}: expected inputs {self.expected_inputs} alone, got {describe(inputs)}")
        for label, x, shape in zip(self.input_labels, parts, self.in_shape or [None] * len(parts), strict=False):
            self.check_tensor(f"inputs {label}", x, shape)
        first, *others = self._part_inputs(parts, inference)
        if len(parts) == 1:
            self.outputs = self._infer(first)
            return self.outputs
        self._encode(first, inference)
        outputs = [decoder.fprop(y, inference) for decoder, y in zip(self.decoders, others, strict=True)]
        self.outputs, self.can_backprop = outputs if len(outputs) > 1 else outputs[0], not inference
        return self.outputs

    def _part_inputs(self, inputs: Sequence[Tensor], inference: bool) -> Sequence[Tensor]:
        """Return the inputs of the encoder and the decoders, given those of ``fprop``."""
        return inputs

    def _infer(self, x: Tensor) -> Tensor:
        """Return the outputs at inference of the first input alone."""
        raise NotImplementedError

    def _encode(self, x: Tensor, inference: bool = True) -> None:
        """Run the encoder, and pass its final states to the decoders."""
        self.encoder.fprop(x, inference)
        for layer, encoder in self.state_pairs:
            layer.init_state = encoder.final_states[: len(layer.state_names)]

    def bprop(  # type: ignore[override]  # deltas of several inputs
        self, error: buffers.Tensors, alpha: float = 1.0, beta: float = 0.0
    ) -> buffers.Deltas:
        """Compute all gradients; return the deltas of all inputs."""
        self.reject_scaling(beta, alpha)
        self.check_can_backprop()
        errors: Any = [error]
        if len(self.decoders) > 1:
            expected = f"a pair [{', '.join(self.input_labels[1:])}]"
            errors = validation.sequence(f"{self.name}.bprop: error", error, expected, count=len(self.decoders))
        deltas = [decoder.bprop(e) for decoder, e in zip(self.decoders, errors, strict=True)]
        for layer in recurrent_layers(self.encoder):
            layer.final_errors = [decoder.initial_errors for decoder, encoder in self.state_pairs if encoder is layer]
        zeros = self.buffer("zero error", self.encoder.out_shape)  # the cost depends on the final states only
        self.deltas = [self.encoder.bprop(zeros), *deltas]
        return self.deltas


class Seq2Seq(StatePassing):
    """Sequence-to-sequence network: the decoder's recurrent layers start from the final states of the encoder's.

    An LSTM passes on h and c (neon: only h); a bidirectional layer passes on the states of its forward direction. All
    recurrent layers get ``reset_cells``: the encoder starts every minibatch from zeros.

    Inputs are [x, previous]: the encoder reads x, the decoder the targets of the previous step (teacher forcing). For
    inference you can pass x alone: the decoder then reads its own predictions (greedy decoding). Pad short x on the
    left, so that their last step is a token.

    Parameters
    ----------
    layers : sequence
        The encoder and the decoder, each an Encoder, Decoder, or list of layers.
    decoder_connections : sequence of int, optional
        For each recurrent layer of the decoder, the index of the encoder's recurrent layer whose states it starts from
        (default: in order).
    name : str, optional
        Name of the network.

    References
    ----------
    Sutskever, Vinyals and Le 2014, Sequence to sequence learning with neural networks.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.initializers import Gaussian
    >>> from neonlite.layers import GRU, Affine, Seq2Seq
    >>> from neonlite.transforms import Logistic, Softmax, Tanh
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> def gru():
    ...     return GRU(8, Gaussian(), activation=Tanh(), gate_activation=Logistic())
    >>> net = Seq2Seq([[gru()], [gru(), Affine(5, Gaussian(), activation=Softmax())]])
    >>> net.configure([(6, 3), (5, 4)]).out_shape
    (5, 4)
    >>> net.allocate()
    >>> net.fprop(be.ones((6, 3 * 2)), inference=True).shape
    (5, 8)
    """

    input_labels = ("x", "previous")
    expected_inputs = (
        "[x, previous], of the encoder and of the decoder (the targets of the previous step), or for inference x"
    )

    def __init__(
        self, layers: Sequence[LayerLike], decoder_connections: Sequence[int] | None = None, name: str | None = None
    ) -> None:
        two = list(layers) if isinstance(layers, list | tuple) else [layers]
        if len(two) != 2 or isinstance(two[0], Decoder) or isinstance(two[1], Encoder):
            raise ValueError(
                f"{name or 'Seq2Seq'}: expected two layers, an encoder and a decoder, each a layer or a list of "
                f"layers, got {len(two)}: {', '.join(getattr(x, 'classnm', type(x).__name__) for x in two)}"
            )
        super().__init__(
            [x if isinstance(x, kind) else kind(x) for x, kind in zip(two, (Encoder, Decoder), strict=True)], name
        )
        self.encoder, self.decoder = cast(tuple[Encoder, Decoder], self.layers)
        self.decoders, self.decoder_connections = [self.decoder], decoder_connections
        self._pair_layers(decoder_connections)

    # --- shapes, buffers, fprop and bprop ---

    def configure(self, in_obj: LayerInput) -> Self:
        self.be = self.be
        shapes = split_shapes(in_obj, 2)
        if len(shapes) != 2 or not all(isinstance(x, tuple) and len(x) == 2 for x in shapes):
            raise ValueError(
                f"{self.name}: expected two shapes (F, T), of the inputs of the encoder and of the decoder, got "
                f"{getattr(in_obj, 'shape', in_obj)!r}. Give the data set shape = [(F, T), (V, S)], of F and V "
                "features (1 for token ids), and T and S time steps"
            )
        for part, x in zip(self.layers, shapes, strict=True):
            part.configure(x)
        self.in_shape, self.out_shape = shapes, self.decoder.out_shape
        return self

    # --- decoding step by step ---

    def _set_decoder_steps(self, steps: int) -> None:
        """Configure the decoder for a number of time steps, in the same memory."""
        if self.decoder.in_shape[1] != steps:
            self.decoder.configure(self.decoder.shape_for_seq_len(steps))
            self.decoder.allocate()
            self.allocate_deltas()

    @contextmanager
    def decoding(self, x: Tensor) -> Iterator[None]:
        """Run the encoder, and configure the decoder for ``decode_step`` within the ``with`` block.

        Parameters
        ----------
        x : Tensor
            Inputs of the encoder, (F, T N).
        """
        self._start_fprop(0)
        self._set_decoder_steps(1)
        try:
            self._encode(x)
            yield
        finally:  # a call of the network, fit and eval compute all steps at once
            self._set_decoder_steps(self.in_shape[1][1])

    def decode_step(self, token_ids: Operand | None = None) -> Tensor:
        """Return the decoder's outputs of the next step, in a block ``with decoding(x)``.

        Parameters
        ----------
        token_ids : Tensor or op-tree, optional
            Ids of the previous tokens (1, N); None in the first step.

        Returns
        -------
        Tensor
            (V, N).
        """
        outputs = self.decoder.fprop(self.decoder.make_step_inputs(token_ids), inference=True)
        for decoder_layer, _ in self.state_pairs:
            decoder_layer.init_state = decoder_layer.final_states
        return cast(Tensor, outputs)

    def _infer(self, x: Tensor) -> Tensor:
        """Return the decoder's outputs when each step reads the most probable token of the previous step."""
        outputs, token_ids = self.buffer("outputs", self.out_shape), None
        with self.decoding(x):
            for step in get_steps(outputs, self.out_shape):
                step[:] = self.decode_step(token_ids)
                token_ids = self.be.argmax(step, axis=0)
        return outputs

    # --- properties for containers and models ---

    def make_zero_inputs(self) -> list[Tensor]:
        return [part.make_zero_inputs() for part in cast(list[Any], self.layers)]

    def shape_for_seq_len(self, S: int) -> LayerShapes:
        return [part.shape_for_seq_len(S) for part in self.layers]

    def get_terminal(self) -> Terminal:
        """Return the last layer of the decoder."""
        return self.decoder.get_terminal()


def split_shapes(in_obj: LayerInput, count: int) -> list[Any]:
    """Return the shapes of several inputs; a single shape is repeated ``count`` times."""
    shape = buffers.shape_of(in_obj)
    is_list = isinstance(shape, list | tuple) and any(isinstance(x, list | tuple) for x in shape)
    return [tuple(x) if isinstance(x, list) else x for x in (shape if is_list else [shape] * count)]


def pair_recurrent_layers(
    name: str, encoder: Any, decoder: Any, connections: Sequence[int] | None = None
) -> list[tuple[RecurrentBase, RecurrentBase]]:
    """Return pairs of each recurrent layer of a decoder and the encoder's layer whose states it starts from.

    Raise a ValueError that begins with ``name`` if they are incompatible.
    """
    encoder_layers, decoder_layers = recurrent_layers(encoder), recurrent_layers(decoder)
    layers = f"those of the encoder: {join_names(encoder_layers)}; of the decoder: {join_names(decoder_layers)}"
    if not encoder_layers or not decoder_layers:
        raise ValueError(
            f"{name}: expected at least one recurrent layer in the encoder and in the decoder, got {layers}"
        )
    if connections is None and len(encoder_layers) != len(decoder_layers):
        raise ValueError(
            f"{name}: expected as many recurrent layers in the encoder as in the decoder, got {layers}. Or pass "
            "decoder_connections, the index of an encoder layer for each decoder layer"
        )
    indices = list(range(len(decoder_layers))) if connections is None else buffers.plain(connections)
    if (
        not isinstance(indices, list | tuple)
        or len(indices) != len(decoder_layers)
        or not all(type(i) is int and 0 <= i < len(encoder_layers) for i in indices)
    ):
        raise ValueError(
            f"{name}: expected decoder_connections of {len(decoder_layers)} integers from 0 to "
            f"{len(encoder_layers) - 1}, got {connections!r}; {layers}"
        )
    pairs = [(decoder_layer, encoder_layers[i]) for decoder_layer, i in zip(decoder_layers, indices, strict=True)]
    for decoder_layer, encoder_layer in pairs:
        if decoder_layer.num_directions == 2:
            raise ValueError(
                f"{name}: expected a unidirectional recurrent layer in the decoder, got the bidirectional "
                f"{decoder_layer.name}. Use LSTM or GRU"
            )
        if decoder_layer.nout != encoder_layer.nout:
            raise ValueError(
                f"{name}: expected the same output_size of {decoder_layer.name} (decoder) and {encoder_layer.name} "
                f"(encoder), whose final states are its initial states, got {decoder_layer.nout} and "
                f"{encoder_layer.nout}"
            )
    return pairs


def recurrent_layers(network: Layer) -> list[RecurrentBase]:
    """Return the recurrent layers of a network, in order."""
    return [layer for layer in network.leaves() if isinstance(layer, RecurrentBase)]


def join_names(layers: Sequence[Any]) -> str:
    """Return the names of layers, or "none"."""
    return ", ".join(layer.name for layer in layers) or "none"


class SkipThought(StatePassing):
    """Skip-thought network: an encoder of a sentence, and decoders of the previous and of the next sentence.

    The decoders start from the encoder's final state. All three look tokens up in one LookupTable, ``table``, whose
    gradients are summed. Token id 0 is padding: its row in the table stays zero.

    Inputs are token ids [sentence, before, after], (1, T) or (T, 1) of three lengths; the decoders' inputs are the
    targets delayed by one step. Outputs are probabilities [before, after], (vocab_size, T) each; use a ``Multicost``.
    For inference you can pass the sentence alone: the output is then its vector, (nhidden, N). Pad sentences on the
    left.

    Parameters
    ----------
    vocab_size : int
        Number of tokens.
    embed_dim : int
        Number of elements of a token's embedding.
    init_embed : initializer, array or Tensor
        Fills the table.
    nhidden : int
        Number of elements of a recurrent state.
    rec_layer : type or str
        Class of the recurrent layers, such as GRU, or its name.
    init_rec : initializer, array or Tensor
        Fills the weights of the recurrent layers.
    activ_rec, activ_rec_gate : Transform
        Activation functions of the recurrent layers.
    init_ff, init_const : initializer, array or Tensor
        Fill the weights and biases of the decoders' output layers.
    layers : sequence of Layer, optional
        A LookupTable, an Encoder and two Decoders to use instead.
    name : str, optional
        Name of the network.

    References
    ----------
    Kiros et al. 2015, Skip-Thought Vectors; there, each step of a decoder reads the vector.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.initializers import Constant, Gaussian
    >>> from neonlite.layers import GRU, SkipThought
    >>> from neonlite.transforms import Logistic, Tanh
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> init = Gaussian(scale=0.1)
    >>> net = SkipThought(50, 8, init, 16, GRU, init, Tanh(), Logistic(), init, Constant(0))
    >>> net.configure([(1, 5), (1, 4), (1, 4)]).out_shape
    [(50, 4), (50, 4)]
    >>> net.allocate()
    >>> net.fprop(be.ones((1, 5 * 2)), inference=True).shape
    (16, 2)
    """

    config_attributes: ClassVar[dict[str, str]] = {"rec_layer": "rec_layer_type"}
    input_labels = ("sentence", "before", "after")
    expected_inputs = "[sentence, before, after], the last two delayed by one step, or for inference the sentence"

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        init_embed: parameter.InitLike,
        nhidden: int,
        rec_layer: type[RecurrentBase] | str,
        init_rec: parameter.InitLike,
        activ_rec: Transform,
        activ_rec_gate: Transform,
        init_ff: parameter.InitLike,
        init_const: parameter.InitLike,
        layers: Sequence[LayerLike] | None = None,
        name: str | None = None,
    ) -> None:
        self.vocab_size, self.embed_dim, self.init_embed = vocab_size, embed_dim, init_embed
        self.nhidden, self.init_rec = nhidden, init_rec
        self.rec_layer_type = recurrent_type_name(rec_layer, name or "SkipThought")
        self.activ_rec, self.activ_rec_gate = activ_rec, activ_rec_gate
        self.init_ff, self.init_const = init_ff, init_const
        super().__init__(self.build_layers(name) if layers is None else layers, name)
        types = LookupTable, Encoder, Decoder, Decoder
        if len(self.layers) != 4 or not all(map(isinstance, self.layers, types)):
            raise ValueError(
                f"{self.name}: expected as layers a LookupTable, an Encoder, and Decoders of the previous and of the "
                f"next sentence, got {', '.join(type(x).__name__ for x in self.layers)}"
            )
        self.table, self.encoder, *self.decoders = cast(tuple[LookupTable, Encoder, Decoder, Decoder], self.layers)
        self._pair_layers()

    def build_layers(self, name: str | None) -> list[Layer]:
        """Return the table, the encoder and the decoders.

        Parameters
        ----------
        name : str or None
            Prefix of their names.
        """
        cls: Any = objects.find_class(self.rec_layer_type)
        gate = {"gate_activation": self.activ_rec_gate} if issubclass(cls, GatedRecurrentBase) else {}

        def subname(label: str) -> str | None:
            return name and f"{name}_{label}"

        def make_recurrent(label: str) -> Any:
            return cls(self.nhidden, self.init_rec, activation=self.activ_rec, name=subname(label), **gate)

        def make_decoder(label: str) -> Decoder:
            output = Affine(
                self.vocab_size, self.init_ff, self.init_const, activation=Softmax(), name=subname(f"{label}_words")
            )
            return Decoder([make_recurrent(label), output], name=subname(f"{label}_decoder"))

        table = LookupTable(self.vocab_size, self.embed_dim, self.init_embed, pad_idx=0, name=subname("table"))
        encoder = Encoder([make_recurrent("sentence")], name=subname("encoder"))
        return [table, encoder, make_decoder("before"), make_decoder("after")]

    @property
    def networks(self) -> list[Sequential]:
        """The encoder and the decoders."""
        return [self.encoder, *self.decoders]

    # --- shapes, buffers, fprop and bprop ---

    def configure(self, in_obj: LayerInput) -> Self:
        self.be = self.be
        shapes = split_shapes(in_obj, 3)
        if len(shapes) != 3 or not all(isinstance(x, tuple) and len(x) == 2 and 1 in x for x in shapes):
            raise ValueError(
                f"{self.name}: expected three shapes (1, T) or (T, 1) of token ids, of the inputs sentence, before and "
                f"after, got {getattr(in_obj, 'shape', in_obj)!r}"
            )
        lengths = [buffers.num_elements(shape) for shape in shapes]
        self.table.configure((1, sum(lengths)))
        for part, steps in zip(self.networks, lengths, strict=True):
            part.configure((self.table.embedding_dim, steps))
        self.in_shape, self.out_shape = shapes, [decoder.out_shape for decoder in self.decoders]
        return self

    def set_needs_deltas(self) -> None:
        """Set which layers compute deltas: all but the table, as those of the embeddings train it."""
        for part in self.networks:
            part.needs_deltas = True

    def build_tree(self, x: buffers.Operands, training: bool) -> buffers.Trees:
        """Return the decoders' outputs as op-trees of [sentence, before, after]."""
        return super().build_tree([self.table.build_tree(ids, training) for ids in cast(Any, x)], training)

    def _part_inputs(self, inputs: Sequence[Tensor], inference: bool) -> Sequence[Tensor]:
        token_ids = self.buffer("token ids", self.table.in_shape, "float32")
        for x, columns in zip(inputs, self._split_columns(token_ids), strict=False):
            columns[:] = x.reshape(1, -1)
        return self._split_columns(self.table.fprop(token_ids, inference))

    def _infer(self, x: Tensor) -> Tensor:
        """Return the vectors of sentences, (nhidden, N)."""
        self.encoder.fprop(x, inference=True)
        return recurrent_layers(self.encoder)[-1].final_state()

    def bprop(self, error: buffers.Tensors, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute all gradients. Token ids have no deltas."""
        errors = self.buffer("embedding errors", self.table.out_shape)
        deltas: Any = super().bprop(error, alpha, beta)
        self.be.assign(self._split_columns(errors), deltas)
        self.table.bprop(errors)

    def _split_columns(self, x: Tensor) -> list[Tensor]:
        """Return views of the columns of each of the three inputs."""
        ends = itertools.accumulate((part.in_shape[1] * self.be.bsz for part in self.networks), initial=0)
        return [x[:, start:end] for start, end in itertools.pairwise(ends)]

    # --- properties for containers and models ---

    def make_zero_inputs(self) -> list[Tensor]:
        return [self.be.iobuf(buffers.iobuf_shape(shape), dtype="int32") for shape in self.in_shape]

    def shape_for_seq_len(self, S: int) -> LayerShapes:
        self.check_seq_len(S)
        return [(1, S) if shape[0] == 1 else (S, 1) for shape in self.in_shape]

    def get_terminal(self) -> list[Terminal]:
        """Return the last layers of both decoders."""
        return [decoder.get_terminal() for decoder in self.decoders]


def recurrent_type_name(rec_layer: type[RecurrentBase] | str, name: str) -> str:
    """Return the qualified name of a class of recurrent layers, given the class or its name."""
    cls = objects.find_class(rec_layer) if isinstance(rec_layer, str) else rec_layer
    if not isinstance(cls, type) or not issubclass(cls, RecurrentBase) or cls.num_directions != 1:
        raise TypeError(
            f"{name}: expected as rec_layer a class of unidirectional recurrent layers, such as GRU, or its name, "
            f"got {rec_layer!r}"
        )
    return f"{cls.__module__}.{cls.__name__}"
