"""SkipThought: sentence vectors from an encoder and two decoders of the neighboring sentences."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar, Self, cast

from neonlite.backend import Tensor
from neonlite.backend.serialization import find_class
from neonlite.backend.validation import sequence
from neonlite.layers.buffers import iobuf_shape, num_elements
from neonlite.layers.compound import Affine
from neonlite.layers.container import LayerContainer, Sequential
from neonlite.layers.deltas import DeltaPlanner, PlannedGradient
from neonlite.layers.embedding import LookupTable
from neonlite.layers.layer import Layer
from neonlite.layers.recurrent import GatedRecurrentBase, RecurrentBase
from neonlite.layers.seq2seq import Decoder, Encoder, pair_recurrent_layers, pass_states, recurrent_layers, split_shapes
from neonlite.layers.types import InitLike, LayerInput, LayerLike, LayerOutputs, LayerShapes, Tensors, Terminal
from neonlite.messages import describe
from neonlite.transforms import Softmax, Transform

INPUT_NAMES = ("inputs sentence", "inputs before", "inputs after")


class SkipThought(LayerContainer):
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

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        init_embed: InitLike,
        nhidden: int,
        rec_layer: type[RecurrentBase] | str,
        init_rec: InitLike,
        activ_rec: Transform,
        activ_rec_gate: Transform,
        init_ff: InitLike,
        init_const: InitLike,
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
        self.state_pairs = [
            pair for decoder in self.decoders for pair in pair_recurrent_layers(self.name, self.encoder, decoder)
        ]
        for layer in recurrent_layers(self):
            layer.reset_cells = True  # minibatches are independent
        self.lengths: list[int] = []  # numbers of steps of the three inputs
        self.token_ids: Tensor | Any = None  # token ids of the three inputs, concatenated along time
        self.embedding_errors: Tensor | Any = None  # errors of the table's outputs
        self.embeddings: list[Any] = []  # copies of the table's outputs, for each of the three networks
        self.input_views: list[tuple[Any, ...]] = []  # views of token ids, table outputs and errors, for each network
        self.zero_error: Tensor | Any = None  # zero error of the encoder's outputs, on which the cost does not depend

    def build_layers(self, name: str | None) -> list[Layer]:
        """Return the table, the encoder and the decoders.

        Parameters
        ----------
        name : str or None
            Prefix of their names.
        """
        cls: Any = find_class(self.rec_layer_type)
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
        self.lengths = [num_elements(shape) for shape in shapes]
        self.table.configure((1, sum(self.lengths)))
        for part, steps in zip(self.networks, self.lengths, strict=True):
            part.configure((self.table.embedding_dim, steps))
        self.in_shape, self.out_shape = shapes, [decoder.out_shape for decoder in self.decoders]
        return self

    def allocate_layers(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        for layer in self.layers:
            layer.allocate(accumulate_updates=accumulate_updates)
        self.token_ids = self.buffer("token ids", self.table.in_shape, "float32")
        self.embedding_errors = self.buffer("embedding errors", self.table.out_shape)
        self.zero_error = self.buffer("zero error", self.encoder.out_shape)
        self.embeddings = [self.buffer(f"embeddings {i}", part.in_shape) for i, part in enumerate(self.networks)]
        offsets = [self.be.bsz * sum(self.lengths[:i]) for i in range(4)]
        tensors = self.token_ids, self.table.outputs, self.embedding_errors
        self.input_views = [tuple(x[:, a:b] for x in tensors) for a, b in itertools.pairwise(offsets)]

    def record_bprop(self, planner: DeltaPlanner, error: PlannedGradient | None) -> None:
        """Record ``bprop`` of the three networks; each is followed by a copy of its deltas."""
        for part in self.networks:
            part.needs_deltas = True  # to train the table
            deltas = part.record_bprop(planner, planner.external())
            if deltas is not None:
                planner.add_step(self, [deltas])

    def fprop(self, inputs: Tensors, inference: bool = False, beta: float = 0.0) -> LayerOutputs:
        """Compute the decoders' outputs, or for inference the vector of a sentence.

        Parameters
        ----------
        inputs : list of Tensor, or Tensor
            Token ids [sentence, before, after]; for inference also the sentence alone.
        inference : bool
            Do not prepare for ``bprop``.
        beta : float
            Must be 0, as for all containers.

        Returns
        -------
        list of Tensor, or Tensor
            Probabilities [before, after], (vocab_size, T N) each; or the vectors (nhidden, N).
        """
        self.reject_scaling(beta)
        self.can_backprop = False
        parts = inputs if isinstance(inputs, list | tuple) else [inputs]
        if len(parts) != 3 and not (inference and parts is not inputs):
            raise ValueError(
                f"{self.name}: expected inputs [sentence, before, after], the last two delayed by one step, or for "
                f"inference the sentence alone, got {describe(inputs)}"
            )
        for label, x, shape in zip(INPUT_NAMES, parts, self.in_shape or [None] * 3, strict=False):
            self.check_tensor(label, x, shape)
        if not self.input_views:
            raise RuntimeError(f"{self.name}: expected allocated buffers, got none. Call allocate() before fprop")
        for x, (token_ids, _, _) in zip(parts, self.input_views, strict=False):
            token_ids[:] = x.reshape(1, -1)
        self.table.fprop(self.token_ids, inference)
        for embeddings, (_, looked_up, _), _ in zip(self.embeddings, self.input_views, parts, strict=False):
            embeddings[:] = looked_up
        self.encoder.fprop(self.embeddings[0], inference)
        if len(parts) == 1:
            self.outputs = recurrent_layers(self.encoder)[-1].final_state()
            return self.outputs
        pass_states(self.state_pairs)
        self.outputs = [
            decoder.fprop(embeddings, inference)
            for decoder, embeddings in zip(self.decoders, self.embeddings[1:], strict=True)
        ]
        self.can_backprop = not inference
        return self.outputs

    def bprop(self, error: Sequence[Tensor] | Tensor, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute all gradients. Token ids have no deltas.

        Parameters
        ----------
        error : list of Tensor
            Errors of both outputs, [before, after].
        alpha, beta : float
            Must be 1 and 0, as for all containers.
        """
        self.reject_scaling(beta, alpha)
        self.check_can_backprop()
        sequence(f"{self.name}.bprop: error", error, "a pair [before, after]", count=2)
        for layer in recurrent_layers(self.encoder):
            layer.final_errors = [
                decoder_layer.initial_errors
                for decoder_layer, encoder_layer in self.state_pairs
                if encoder_layer is layer
            ]
        for i, e in [
            (1, error[0]),
            (2, error[1]),
            (0, self.zero_error),
        ]:  # the encoder last: it needs both decoders' errors
            self.input_views[i][2][:] = self.networks[i].bprop(e)
        self.table.bprop(self.embedding_errors)

    # --- properties for containers and models ---

    def make_zero_inputs(self) -> list[Tensor]:
        return [self.be.iobuf(iobuf_shape(shape), dtype="int32") for shape in self.in_shape]

    def shape_for_seq_len(self, S: int) -> LayerShapes:
        self.check_seq_len(S)
        return [(1, S) if shape[0] == 1 else (S, 1) for shape in self.in_shape]

    def get_terminal(self) -> list[Terminal]:
        """Return the last layers of both decoders."""
        return [decoder.get_terminal() for decoder in self.decoders]


def recurrent_type_name(rec_layer: type[RecurrentBase] | str, name: str) -> str:
    """Return the qualified name of a class of recurrent layers, given the class or its name."""
    cls = find_class(rec_layer) if isinstance(rec_layer, str) else rec_layer
    if not isinstance(cls, type) or not issubclass(cls, RecurrentBase) or cls.num_directions != 1:
        raise TypeError(
            f"{name}: expected as rec_layer a class of unidirectional recurrent layers, such as GRU, or its name, "
            f"got {rec_layer!r}"
        )
    return f"{cls.__module__}.{cls.__name__}"
