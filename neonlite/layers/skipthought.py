"""What does a sentence mean?  What it tells of its neighbors: one network reads it, two say those."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

from neonlite.backend.description import known
from neonlite.layers.buffers import by_columns
from neonlite.layers.compound import Affine
from neonlite.layers.container import LayerContainer
from neonlite.layers.deltas import Deltas, Place
from neonlite.layers.embedding import LookupTable
from neonlite.layers.layer import NOT_YET
from neonlite.layers.recurrent import Gated, Recurrence
from neonlite.layers.seq2seq import Decoder, Encoder, hand_on, paired, recurrent, shapes_of
from neonlite.optree import describe
from neonlite.transforms import Softmax

READ = ("words of the sentence", "words read to say the one before", "words read to say the one after")


class SkipThought(LayerContainer):
    """An encoder for a sentence, and decoders for the one before and the one after, which begin with its last state.

    All three look words up in one table, ``table``, whose gradients add up. ``rec_layer``: the class of their recurrent
    layers, such as GRU, or its name; ``init_rec``, ``activ_rec`` and ``activ_rec_gate`` are for them. ``init_ff`` and
    ``init_const`` fill the weights and biases behind each decoder. ``layers``: another table, encoder and two decoders
    instead. The word 0 fills up: its row in the table stays zeros.

    Inputs are words (1, T), of three lengths: [sentence, before, after], the last two a step late, as decoders read
    them. Outputs are probabilities [before, after], (vocab_size, T) each, and costs those of a ``Multicost``. For
    inference a sentence alone will do: then the output is its vector, (nhidden, N). Pad sentences in front.

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

    Source: Kiros et al. 2015, Skip-Thought Vectors; there, each step of a decoder reads the vector.
    """

    told_by: ClassVar[dict[str, str]] = {"rec_layer": "kind"}

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        init_embed: Any,
        nhidden: int,
        rec_layer: Any,
        init_rec: Any,
        activ_rec: Any,
        activ_rec_gate: Any,
        init_ff: Any,
        init_const: Any,
        layers: Sequence[Any] | None = None,
        name: str | None = None,
    ) -> None:
        self.vocab_size, self.embed_dim, self.init_embed = vocab_size, embed_dim, init_embed
        self.nhidden, self.kind, self.init_rec = nhidden, kind_of(rec_layer, name or "SkipThought"), init_rec
        self.activ_rec, self.activ_rec_gate = activ_rec, activ_rec_gate
        self.init_ff, self.init_const = init_ff, init_const
        super().__init__(self.parts(name) if layers is None else layers, name)
        kinds = LookupTable, Encoder, Decoder, Decoder
        if len(self.layers) != 4 or not all(map(isinstance, self.layers, kinds)):
            raise ValueError(
                f"{self.name}: layers are a LookupTable, an Encoder and two Decoders, of the sentence before and "
                f"of that after; got {', '.join(type(x).__name__ for x in self.layers)}"
            )
        self.table, self.encoder, *self.decoders = self.layers
        self.pairs = [pair for decoder in self.decoders for pair in paired(self.name, self.encoder, decoder)]
        for layer in recurrent(self):
            layer.reset_cells = True  # a sentence does not go on in the next minibatch
        self.words: Any = None  # of all three, one after another in time
        self.errors: Any = None  # of what was looked up
        self.vectors: list[Any] = []  # what each of the three reads: a copy, as what was looked up is one tensor
        self.views: list[tuple[Any, Any, Any]] = []  # what is each one's of words, of what was looked up, of errors
        self.no_error: Any = None  # of the encoder's outputs, which nobody reads

    def parts(self, name: str | None) -> list[Any]:
        """Return the table, the encoder and the decoders."""
        cls: Any = known(self.kind)
        gate = {"gate_activation": self.activ_rec_gate} if issubclass(cls, Gated) else {}

        def called(what: str) -> str | None:
            return name and f"{name}_{what}"

        def reader(what: str) -> Any:
            return cls(self.nhidden, self.init_rec, activation=self.activ_rec, name=called(what), **gate)

        def speaker(what: str) -> Decoder:
            words = Affine(
                self.vocab_size, self.init_ff, self.init_const, activation=Softmax(), name=called(f"{what}_words")
            )
            return Decoder([reader(what), words], name=called(f"{what}_decoder"))

        table = LookupTable(self.vocab_size, self.embed_dim, self.init_embed, pad_idx=0, name=called("table"))
        encoder = Encoder([reader("sentence")], name=called("encoder"))
        return [table, encoder, speaker("before"), speaker("after")]

    @property
    def readers(self) -> list[Any]:
        """The encoder and the decoders."""
        return [self.encoder, *self.decoders]

    # --- the four steps of a layer ---

    def configure(self, in_obj: Any) -> SkipThought:
        """Take three shapes (1, T), of words; one shape is that of all."""
        self.be = self.be
        shapes = shapes_of(in_obj, 3)
        if len(shapes) != 3 or not all(isinstance(x, tuple) and len(x) == 2 and x[0] == 1 for x in shapes):
            raise ValueError(
                f"{self.name}: three shapes (1, T) of words, one a time step: of the sentence, and of what the "
                f"decoders of the one before and of the one after read; got {getattr(in_obj, 'shape', in_obj)!r}"
            )
        self.table.configure((1, sum(steps for _, steps in shapes)))
        for part, (_, steps) in zip(self.readers, shapes, strict=True):
            part.configure((self.table.embedding_dim, steps))
        self.in_shape, self.out_shape = shapes, [decoder.out_shape for decoder in self.decoders]
        return self

    def allocate_layers(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        """Have the layers make their buffers."""
        for layer in self.layers:
            layer.allocate(accumulate_updates=accumulate_updates)
        self.words = self.buffer("words", self.table.in_shape, "float32")
        self.errors = self.buffer("errors", self.table.out_shape)
        self.no_error = self.buffer("no error", self.encoder.out_shape)
        self.vectors = [self.buffer(f"vectors {i}", part.in_shape) for i, part in enumerate(self.readers)]
        ends = [self.be.bsz * sum(steps for _, steps in self.in_shape[:i]) for i in range(4)]
        every = self.words, self.table.outputs, self.errors
        self.views = [tuple(x[:, a:b] for x in every) for a, b in itertools.pairwise(ends)]

    def reserve(self, deltas: Deltas, error: Place | None) -> Place | None:
        """Have the layers say where their deltas are to lie: one after another in the same places."""
        for part in self.readers:
            part.prev_layer = self.table
            deltas.free(part.reserve(deltas, deltas.outside()))
        return None

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Return what the decoders say to [sentence, before, after]; for inference also the vectors of a sentence."""
        self.check_scale(beta)
        self.learning = False
        several = isinstance(inputs, list | tuple)
        if (several and len(inputs) != 3) or not (several or inference):
            raise ValueError(
                f"{self.name}: inputs are words [sentence, before, after], the last two a step late; for inference a "
                f"sentence alone will do; got {describe(inputs)}"
            )
        given = inputs if several else [inputs]
        for what, x, shape in zip(READ, given, self.in_shape or [None] * 3, strict=False):
            self.check(what, x, shape)
        if not self.views:
            raise RuntimeError(f"{self.name}: it has no buffers yet: call allocate() before fprop")
        for x, (words, _, _) in zip(given, self.views, strict=False):
            words[:] = x
        self.table.fprop(self.words, inference)
        for vectors, (_, found, _), _ in zip(self.vectors, self.views, given, strict=False):
            vectors[:] = found
        self.encoder.fprop(self.vectors[0], inference)
        if not several:
            self.outputs = recurrent(self.encoder)[-1].final_state()
            return self.outputs
        hand_on(self.pairs)
        self.outputs = [
            decoder.fprop(vectors, inference) for decoder, vectors in zip(self.decoders, self.vectors[1:], strict=True)
        ]
        self.learning = not inference
        return self.outputs

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Take the errors of both outputs, and compute all gradients. Words have no deltas."""
        self.check_scale(beta, alpha)
        if not self.learning:
            raise RuntimeError(f"{self.name}: {NOT_YET}")
        if not isinstance(error, list | tuple) or len(error) != 2:
            raise ValueError(f"{self.name}: errors are two, [before, after]; got {describe(error)}")
        for layer in recurrent(self.encoder):
            layer.final_errors = [heir.initial_errors for heir, source in self.pairs if source is layer]
        for i, e in [(1, error[0]), (2, error[1]), (0, self.no_error)]:  # the encoder last: its errors come from both
            self.views[i][2][:] = self.readers[i].bprop(e)
        self.table.bprop(self.errors)

    # --- its place ---

    def blank_inputs(self) -> list[Any]:
        """Return inputs that fit, of zeros."""
        return [self.be.iobuf(by_columns(shape), dtype="int32") for shape in self.in_shape]

    def in_steps(self, S: int) -> list[Any]:
        """Return the shapes of the inputs with S time steps."""
        self.check_steps(S)
        return [(1, S)] * 3

    def get_terminal(self) -> list[Any]:
        """Return the last layers of both decoders."""
        return [decoder.get_terminal() for decoder in self.decoders]


def kind_of(rec_layer: Any, name: str) -> str:
    """Return the type of a class of recurrent layers, or of its name, as descriptions have it."""
    cls = known(rec_layer) if isinstance(rec_layer, str) else rec_layer
    if not isinstance(cls, type) or not issubclass(cls, Recurrence) or cls.ways != 1:
        raise TypeError(
            f"{name}: rec_layer is a class of recurrent layers that read one way, such as GRU, or its name; "
            f"got {rec_layer!r}"
        )
    return f"{cls.__module__}.{cls.__name__}"
