"""How does one sequence become another?  An encoder reads it; a decoder goes on from the states that are left of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from neonlite.backend import Tensor
from neonlite.layers.container import LayerContainer, Sequential
from neonlite.layers.deltas import Deltas, Place
from neonlite.layers.layer import NOT_YET
from neonlite.layers.recurrent import Recurrence
from neonlite.optree import describe


class Encoder(Sequential):
    """The layers that read a sequence. What is left of it are the final states of the recurrent ones."""


class Decoder(Sequential):
    """The layers that say a sequence word by word; in each step they read the word of the step before.

    Words come as ids, (1, T), for a LookupTable, or one-hot, (V, T). ``start_index``: the word that is read in the
    first step where the decoder goes on by itself; unless given the id 0, or one-hot a column of zeros.
    """

    def __init__(self, layers: Iterable[Any], start_index: int | None = None, name: str | None = None) -> None:
        super().__init__(layers, name)
        if start_index is not None and (type(start_index) is not int or start_index < 0):
            raise ValueError(f"{self.name}: start_index is a word, a whole number from 0, or None; got {start_index!r}")
        self.start_index = start_index

    def inputs_of(self, words: Any) -> Tensor:
        """Return words (1, N) as the inputs of one step; None for those of the first."""
        features = self.in_shape[0]
        if features not in (1, self.out_shape[0]):
            raise ValueError(
                f"{self.name}: what it says, one of {self.out_shape[0]} words, is what it reads next: ids (1, T), or "
                f"one-hot ({self.out_shape[0]}, T); its inputs are {self.in_shape}"
            )
        ids: Tensor = self.buffer("ids", (1, 1), "int32")
        ids[:] = self.start_index or 0 if words is None else words
        if features == 1:
            return ids
        onehot: Tensor = self.buffer("onehot", (features, 1))
        onehot[:] = 0 if words is None and self.start_index is None else self.be.onehot(ids, axis=0, nclass=features)
        return onehot


class Seq2Seq(LayerContainer):
    """An encoder and a decoder, whose recurrent layers begin with the final states of the encoder's.

    ``layers``: the encoder and the decoder, or a list of layers for each. ``decoder_connections``: for each recurrent
    layer of the decoder the number of the encoder's whose states it begins with; one after another unless given. An
    LSTM hands on h and c (neon: h alone), and of a layer that reads both ways it is the way there that hands on. All
    recurrent layers get ``reset_cells``: the encoder begins with zeros for each minibatch.

    Inputs are [x, previous]: what the encoder reads, and for the decoder the target of the step before. For inference x
    alone will do: then the decoder reads its own words, the likeliest in each step. Pad short x in front, so that their
    last step is a word.

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

    Source: Sutskever, Vinyals and Le 2014, Sequence to sequence learning with neural networks.
    """

    def __init__(
        self, layers: Sequence[Any], decoder_connections: Sequence[int] | None = None, name: str | None = None
    ) -> None:
        two = list(layers) if isinstance(layers, list | tuple) else [layers]
        if len(two) != 2 or isinstance(two[0], Decoder) or isinstance(two[1], Encoder):
            raise ValueError(
                f"{name or 'Seq2Seq'}: layers are two, an encoder and a decoder, each a list of layers if it has "
                f"several; got {len(two)}: {', '.join(getattr(x, 'classnm', type(x).__name__) for x in two)}"
            )
        super().__init__(
            [x if isinstance(x, kind) else kind(x) for x, kind in zip(two, (Encoder, Decoder), strict=True)], name
        )
        self.encoder, self.decoder = self.layers
        self.decoder_connections = decoder_connections
        self.pairs = paired(self.name, self.encoder, self.decoder, decoder_connections)
        for layer in recurrent(self):
            layer.reset_cells = True  # a sentence does not go on in the next minibatch
        self.no_error: Any = None  # of the encoder's outputs, which nobody reads

    # --- the four steps of a layer ---

    def configure(self, in_obj: Any) -> Seq2Seq:
        """Take two shapes, (F, T) of x and of what the decoder reads; one shape is that of both."""
        self.be = self.be
        shapes = shapes_of(in_obj, 2)
        if len(shapes) != 2 or not all(isinstance(x, tuple) and len(x) == 2 for x in shapes):
            raise ValueError(
                f"{self.name}: two shapes (F, T), of x and of what the decoder reads; "
                f"got {getattr(in_obj, 'shape', in_obj)!r}: give the data set "
                "shape = [(F, T), (V, S)], of F and V features, or 1 for words, and T and S time steps"
            )
        for part, x in zip(self.layers, shapes, strict=True):
            part.configure(x)
        self.in_shape, self.out_shape = shapes, self.decoder.out_shape
        return self

    def allocate_layers(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        """Have the layers make their buffers."""
        super().allocate_layers(None, accumulate_updates)
        self.no_error = self.buffer("no error", self.encoder.out_shape)

    def reserve(self, deltas: Deltas, error: Place | None) -> Place | None:
        """Have the layers say where their deltas are to lie."""
        for part in self.layers:
            part.prev_layer = self.prev_layer
        self.decoder.reserve(deltas, error)
        self.encoder.reserve(deltas, deltas.outside())
        return None

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Return what the decoder says to [x, previous]; for inference also to x, reading its own words."""
        self.check_scale(beta)
        self.learning = False
        several = isinstance(inputs, list | tuple)
        if (several and len(inputs) != 2) or not (several or inference):
            raise ValueError(
                f"{self.name}: inputs are [x, previous]: what the encoder reads, and for the decoder the target of the "
                f"step before; for inference x alone will do; got {describe(inputs)}"
            )
        given = zip(("its inputs x", "its inputs previous"), inputs if several else [inputs], strict=False)
        for (what, x), shape in zip(given, self.in_shape or (None, None), strict=False):
            self.check(what, x, shape)
        if not several:
            return self.said(inputs)
        self.read(self.in_shape[1][1])
        self.encode(inputs[0], inference)
        self.outputs = self.decoder.fprop(inputs[1], inference)
        self.learning = not inference
        return self.outputs

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute all gradients; return the deltas of x and of what the decoder read."""
        self.check_scale(beta, alpha)
        if not self.learning:
            raise RuntimeError(f"{self.name}: {NOT_YET}")
        of_decoder = self.decoder.bprop(error)
        for layer in recurrent(self.encoder):
            layer.final_errors = [heir.initial_errors for heir, source in self.pairs if source is layer]
        self.deltas = [self.encoder.bprop(self.no_error), of_decoder]
        return self.deltas

    # --- word by word ---

    def encode(self, x: Any, inference: bool = True) -> None:
        """Read x, and have the decoder begin with what is left of it."""
        self.encoder.fprop(x, inference)
        hand_on(self.pairs)

    def read(self, steps: int) -> None:
        """Have the decoder read so many steps at a time, in the same memory."""
        if self.decoder.in_shape[1] != steps:
            self.decoder.configure(self.decoder.in_steps(steps))
            self.decoder.allocate()
            self.allocate_deltas()

    def begin(self, x: Any) -> None:
        """Read x, and make ready for steps of one word."""
        self.read(1)
        self.encode(x)

    def step(self, words: Any = None) -> Tensor:
        """Return the decoder's outputs (V, N) in the next step, which reads words (1, N); none in the first."""
        outputs: Tensor = self.decoder.fprop(self.decoder.inputs_of(words), inference=True)
        for heir, _ in self.pairs:
            heir.init_state = heir.final_states
        return outputs

    def said(self, x: Any) -> Any:
        """Return what the decoder says to x when each step reads the likeliest word of the one before."""
        self.begin(x)
        n, words = self.be.bsz, None
        self.outputs = self.buffer("outputs", self.out_shape)
        for t in range(self.out_shape[1]):
            y = self.step(words)
            self.outputs[:, t * n : (t + 1) * n] = y
            words = self.be.argmax(y, axis=0)
        return self.outputs

    # --- its place ---

    def blank_inputs(self) -> list[Any]:
        """Return inputs that fit, of zeros."""
        return [part.blank_inputs() for part in self.layers]

    def in_steps(self, S: int) -> list[Any]:
        """Return the shapes of the inputs with S time steps."""
        return [part.in_steps(S) for part in self.layers]

    def get_terminal(self) -> Any:
        """Return the last layer of the decoder."""
        return self.decoder.get_terminal()


def shapes_of(in_obj: Any, count: int) -> list[Any]:
    """Return the shapes of several inputs; one shape is that of all, ``count`` times."""
    shape = getattr(in_obj, "shape", in_obj)
    several = isinstance(shape, list | tuple) and any(isinstance(x, list | tuple) for x in shape)
    return [tuple(x) if isinstance(x, list) else x for x in (shape if several else [shape] * count)]


def paired(
    name: str, encoder: Any, decoder: Any, connections: Sequence[int] | None = None
) -> list[tuple[Recurrence, Recurrence]]:
    """Return each recurrent layer of a decoder, and that of the encoder whose states it begins with.

    ValueError, which names a network, when they do not go together.
    """
    sources, heirs = recurrent(encoder), recurrent(decoder)
    have = f"the encoder's are {names(sources)}, the decoder's {names(heirs)}"
    if not sources or not heirs:
        raise ValueError(f"{name}: encoder and decoder have one recurrent layer or more; {have}")
    if connections is None and len(sources) != len(heirs):
        raise ValueError(
            f"{name}: recurrent layers go together in pairs, or as decoder_connections says, which has the number of "
            f"one of the encoder's for each of the decoder's; {have}"
        )
    which = list(range(len(heirs))) if connections is None else connections
    if (
        not isinstance(which, list | tuple)
        or len(which) != len(heirs)
        or not all(type(i) is int and 0 <= i < len(sources) for i in which)
    ):
        raise ValueError(
            f"{name}: decoder_connections has, for each of {len(heirs)}, a number from 0 to {len(sources) - 1}; {have}"
            f"; got {connections!r}"
        )
    pairs = [(heir, sources[i]) for heir, i in zip(heirs, which, strict=True)]
    for heir, source in pairs:
        if heir.ways == 2:
            raise ValueError(f"{name}: {heir.name} reads both ways; a decoder does not know what comes later")
        if heir.nout != source.nout:
            raise ValueError(
                f"{name}: {heir.name}, in the decoder, begins with the states of {source.name}, in the encoder: both "
                f"have the same output_size; it is {heir.nout} and {source.nout}"
            )
    return pairs


def hand_on(pairs: Sequence[tuple[Recurrence, Recurrence]]) -> None:
    """Have recurrent layers of a decoder begin with what is left of the encoder's."""
    for heir, source in pairs:
        heir.init_state = source.final_states[: len(heir.passed)]


def recurrent(network: Any) -> list[Recurrence]:
    """Return the recurrent layers of a network, in order."""
    return [layer for layer in network.leaves() if isinstance(layer, Recurrence)]


def names(layers: Sequence[Any]) -> str:
    """Return the names of layers; "none" when there are no layers."""
    return ", ".join(layer.name for layer in layers) or "none"
