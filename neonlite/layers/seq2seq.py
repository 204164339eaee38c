"""Encoder, Decoder and Seq2Seq: sequence-to-sequence networks with recurrent layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self, cast

from neonlite.backend import Tensor
from neonlite.backend.validation import integer
from neonlite.layers.buffers import plain, shape_of
from neonlite.layers.container import LayerContainer, Sequential
from neonlite.layers.deltas import DeltaPlanner, PlannedGradient
from neonlite.layers.layer import Layer
from neonlite.layers.recurrent import RecurrentBase
from neonlite.layers.types import Deltas, LayerInput, LayerLike, LayerShapes, Tensors, Terminal
from neonlite.messages import describe
from neonlite.optree import Operand
from neonlite.typing import ArrayLike


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
            start_index = integer(f"{self.name}: start_index", start_index, 0)
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
        ids: Tensor = self.buffer("ids", (1, 1), "int32")
        ids[:] = (self.start_index or 0) if token_ids is None else token_ids
        if features == 1:
            return ids
        onehot: Tensor = self.buffer("onehot", (features, 1))
        onehot[:] = (
            0 if token_ids is None and self.start_index is None else self.be.onehot(ids, axis=0, nclass=features)
        )
        return onehot


class Seq2Seq(LayerContainer):
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
        self.decoder_connections = decoder_connections
        self.state_pairs = pair_recurrent_layers(self.name, self.encoder, self.decoder, decoder_connections)
        for layer in recurrent_layers(self):
            layer.reset_cells = True  # minibatches are independent
        self.zero_error: Tensor | Any = None  # zero error of the encoder's outputs, on which the cost does not depend

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

    def allocate_layers(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        super().allocate_layers(None, accumulate_updates)
        self.zero_error = self.buffer("zero error", self.encoder.out_shape)

    def record_bprop(self, planner: DeltaPlanner, error: PlannedGradient | None) -> None:
        """Record ``bprop`` of the decoder and of the encoder, and keep both deltas."""
        for part in self.layers:
            part.needs_deltas = self.needs_deltas
        planner.keep(self.decoder.record_bprop(planner, error))
        planner.keep(self.encoder.record_bprop(planner, planner.external()))

    def fprop(self, inputs: Tensors, inference: bool = False, beta: float = 0.0) -> Tensor:
        """Compute the decoder's outputs.

        Parameters
        ----------
        inputs : list of Tensor, or Tensor
            [x, previous] (F, T N) and (V, S N); for inference also x alone.
        inference : bool
            Do not prepare for ``bprop``.
        beta : float
            Must be 0, as for all containers.

        Returns
        -------
        Tensor
            (V, S N).
        """
        self.reject_scaling(beta)
        self.can_backprop = False
        parts = inputs if isinstance(inputs, list | tuple) else [inputs]
        if len(parts) != 2 and not (inference and parts is not inputs):
            raise ValueError(
                f"{self.name}: expected inputs [x, previous], of the encoder and of the decoder (the targets of the "
                f"previous step), or for inference x alone, got {describe(inputs)}"
            )
        labeled = zip(("inputs x", "inputs previous"), parts, strict=False)
        for (label, x), shape in zip(labeled, self.in_shape or (None, None), strict=False):
            self.check_tensor(label, x, shape)
        if len(parts) == 1:
            return self.decode_greedy(parts[0])
        self.set_decoder_steps(self.in_shape[1][1])
        self.encode(parts[0], inference)
        self.outputs = cast(Tensor, self.decoder.fprop(parts[1], inference))
        self.can_backprop = not inference
        return self.outputs

    def bprop(  # type: ignore[override]  # deltas of several inputs
        self, error: Tensor, alpha: float = 1.0, beta: float = 0.0
    ) -> list[Deltas]:
        """Compute all gradients; return the deltas of both inputs, [x, previous]."""
        self.reject_scaling(beta, alpha)
        self.check_can_backprop()
        decoder_deltas = self.decoder.bprop(error)
        for layer in recurrent_layers(self.encoder):
            layer.final_errors = [
                decoder_layer.initial_errors
                for decoder_layer, encoder_layer in self.state_pairs
                if encoder_layer is layer
            ]
        self.deltas = [self.encoder.bprop(self.zero_error), decoder_deltas]
        return self.deltas

    # --- decoding step by step ---

    def encode(self, x: Tensor, inference: bool = True) -> None:
        """Run the encoder, and pass its final states to the decoder.

        Parameters
        ----------
        x : Tensor
            Inputs of the encoder, (F, T N).
        inference : bool
            Do not prepare for ``bprop``.
        """
        self.encoder.fprop(x, inference)
        pass_states(self.state_pairs)

    def set_decoder_steps(self, steps: int) -> None:
        """Configure the decoder for a number of time steps, in the same memory.

        Parameters
        ----------
        steps : int
            Number of steps per pass.
        """
        if self.decoder.in_shape[1] != steps:
            self.decoder.configure(self.decoder.shape_for_seq_len(steps))
            self.decoder.allocate()
            self.allocate_deltas()

    def start_decoding(self, x: Tensor) -> None:
        """Run the encoder, and prepare the decoder for ``decode_step``.

        Parameters
        ----------
        x : Tensor
            Inputs of the encoder, (F, T N).
        """
        self.set_decoder_steps(1)
        self.encode(x)

    def decode_step(self, token_ids: Operand | None = None) -> Tensor:
        """Return the decoder's outputs of the next step.

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

    def decode_greedy(self, x: Tensor) -> Tensor:
        """Return the decoder's outputs when each step reads the most probable token of the previous step.

        Parameters
        ----------
        x : Tensor
            Inputs of the encoder, (F, T N).

        Returns
        -------
        Tensor
            (V, S N).
        """
        self.start_decoding(x)
        n, token_ids = self.be.bsz, None
        self.outputs = self.buffer("outputs", self.out_shape)
        for t in range(self.out_shape[1]):
            y = self.decode_step(token_ids)
            self.outputs[:, t * n : (t + 1) * n] = y
            token_ids = self.be.argmax(y, axis=0)
        return self.outputs

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
    shape = shape_of(in_obj)
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
    indices = list(range(len(decoder_layers))) if connections is None else plain(connections)
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


def pass_states(pairs: Sequence[tuple[RecurrentBase, RecurrentBase]]) -> None:
    """Set the initial states of the decoder's recurrent layers to the final states of the encoder's."""
    for decoder_layer, encoder_layer in pairs:
        decoder_layer.init_state = encoder_layer.final_states[: len(decoder_layer.state_names)]


def recurrent_layers(network: Layer) -> list[RecurrentBase]:
    """Return the recurrent layers of a network, in order."""
    return [layer for layer in network.leaves() if isinstance(layer, RecurrentBase)]


def join_names(layers: Sequence[Any]) -> str:
    """Return the names of layers, or "none"."""
    return ", ".join(layer.name for layer in layers) or "none"
