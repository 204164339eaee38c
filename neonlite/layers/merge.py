"""How do ways through a network come together again?  Their outputs are added, or put side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from neonlite.backend.numbers import number
from neonlite.layers.buffers import by_columns, columns, elements, features
from neonlite.layers.container import LayerContainer, allocate, sequential
from neonlite.layers.deltas import Deltas, Place, Sum
from neonlite.layers.layer import NOT_YET, Layer
from neonlite.optree import describe

MERGES = ("recurrent", "depth", "stack")


class Broadcast(LayerContainer):
    """The same inputs to several branches, whose outputs come together; their deltas are added.

    ``layers``: a list of branches, each a layer, a list of layers or a container. One of your own says
    ``merged_shape``, ``merge`` and ``error_of``.
    """

    def __init__(self, layers: Iterable[Any], name: str | None = None) -> None:
        super().__init__([sequential(branch) for branch in layers], name)
        self.sum = Sum()

    def configure(self, in_obj: Any) -> Any:
        """Settle the shapes of all branches. ValueError when their outputs do not fit together."""
        Layer.configure(self, in_obj)
        for branch in self.layers:
            branch.configure(self.in_shape)
        self.settle()
        return self

    def settle(self) -> None:
        """Work out the outputs' shape. ValueError when those of the branches do not fit together."""
        self.out_shape = self.merged_shape([branch.out_shape for branch in self.layers])

    def merged_shape(self, shapes: list[Any]) -> Any:
        """Return the shape of what is made of outputs."""
        raise NotImplementedError(f"{self.classnm} has no merged_shape(shapes)")

    def wrong(self, rule: str) -> ValueError:
        """Return the error that the branches do not fit together."""
        found = ", ".join(f"{branch.get_terminal().name} {branch.out_shape}" for branch in self.layers)
        return ValueError(f"{self.name}: {rule}; the branches end with {found}, for inputs {self.in_shape}")

    def reserve(self, deltas: Deltas, error: Place | None) -> Place | None:
        """Have the branches say where their deltas are to lie, and say where the sum of them is."""
        for branch in self.layers:
            branch.prev_layer = self.prev_layer
        deltas.hold(error, len(self.layers) - 1)
        places = [branch.reserve(deltas, self.place_of(i, deltas, error)) for i, branch in enumerate(self.layers)]
        return self.sum.reserve(deltas, places, elements(self.in_shape))

    def place_of(self, i: int, deltas: Deltas, error: Place | None) -> Place | None:
        """Return where the error of a branch lies, given where that of the outputs does."""
        return error

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute the outputs of all branches, and return what is made of them."""
        self.check_scale(beta)
        self.learning = False
        each = self.inputs_of(inputs)
        self.merge([branch.fprop(x, inference) for branch, x in zip(self.layers, each, strict=True)])
        self.learning = not inference
        return self.outputs

    def inputs_of(self, inputs: Any) -> Sequence[Any]:
        """Return the inputs of each branch."""
        return [inputs] * len(self.layers)

    def merge(self, found: list[Any]) -> None:
        """Make the outputs of those of the branches."""
        raise NotImplementedError(f"{self.classnm} has no merge(found)")

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute all gradients, and return the sum of the branches' deltas."""
        self.check_scale(beta, alpha)
        self.deltas = self.sum.add(self.back(error))
        return self.deltas

    def back(self, error: Any) -> list[Any]:
        """Compute all gradients, and return the deltas of each branch."""
        if not self.learning:
            raise RuntimeError(f"{self.name}: {NOT_YET}")
        self.check("the error", error, self.out_shape)
        return [branch.bprop(self.error_of(i, error)) for i, branch in enumerate(self.layers)]

    def error_of(self, i: int, error: Any) -> Any:
        """Return the error of a branch, given that of the outputs."""
        return error

    def in_steps(self, S: int) -> Any:
        """Return the inputs' shape with S time steps."""
        return self.layers[0].in_steps(S)


class MergeSum(Broadcast):
    """The sum of what branches of the same inputs compute.

    >>> import neonlite as nl
    >>> from neonlite.initializers import Gaussian
    >>> from neonlite.layers import Conv, MergeSum, SkipNode
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> MergeSum([Conv((3, 3, 8), Gaussian(), padding=1), SkipNode()]).configure((8, 5, 5)).out_shape
    (8, 5, 5)
    """

    def __init__(self, layers: Iterable[Any], name: str | None = None) -> None:
        super().__init__(layers, name)
        self.into: int | None = None  # the branch over whose outputs the sum is written

    def merged_shape(self, shapes: list[Any]) -> Any:
        """Return the shape that all have."""
        if any(shape != shapes[0] for shape in shapes):
            raise self.wrong(
                "the outputs of branches that are added have one shape: a 1 x 1 Conv or a Linear can change it"
            )
        return shapes[0]

    def allocate_layers(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        """Have the branches make their buffers; the sum is written over one of them, where it is not read again."""
        self.into = next((i for i, branch in enumerate(self.layers) if not branch.reads_outputs), None)
        for i, branch in enumerate(self.layers):
            allocate(branch, shared_outputs if i == self.into else None, accumulate_updates)
        if self.into is None:
            self.outputs = self.buffer("outputs", self.out_shape, shared=shared_outputs)

    def merge(self, found: list[Any]) -> None:
        """Add the outputs up."""
        if self.into is not None:
            self.outputs = found[self.into]
        if len(found) > 1 or self.into is None:
            self.outputs[:] = sum(found[1:], found[0])


class MergeBroadcast(Broadcast):
    """What branches of the same inputs compute, side by side.

    ``merge``: "depth", images (C, H, W) of one height and width, as more maps; "stack", features, whatever their shape;
    "recurrent", (F, T) of one F, one after another in time. ``alphas``: what the error of each branch is multiplied by.
    Source of "depth": Szegedy et al. 2015, Going deeper with convolutions.

    >>> import neonlite as nl
    >>> from neonlite.initializers import Gaussian
    >>> from neonlite.layers import Conv, MergeBroadcast, Pooling
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> branches = [Conv((1, 1, 4), Gaussian()), Pooling(3, strides=1, padding=1)]
    >>> MergeBroadcast(branches, merge="depth").configure((8, 5, 5)).out_shape
    (12, 5, 5)
    """

    told_by: ClassVar[dict[str, str]] = {"merge": "how"}

    def __init__(
        self, layers: Iterable[Any], merge: str, alphas: Sequence[float] | None = None, name: str | None = None
    ) -> None:
        super().__init__(layers, name)
        if merge not in MERGES:
            raise ValueError(f"{self.name}: merge is one of {', '.join(MERGES)}; got {merge!r}")
        self.how = merge
        self.alphas = (
            [1.0] * len(self.layers) if alphas is None else [number(f"{self.name}: an alpha", a) for a in alphas]
        )
        if len(self.alphas) != len(self.layers):
            raise ValueError(f"{self.name}: there are {len(self.layers)} branches; got {alphas=}")
        self.parts: list[slice] = []  # of the rows, or of the columns of (F, T), that are a branch's
        self.copies: list[Any] = []  # of a branch's error

    @property
    def reads_outputs(self) -> bool:  # type: ignore[override]
        """Whether a branch reads its outputs, which are a part of all."""
        return self.how != "recurrent" and any(branch.reads_outputs for branch in self.layers)

    def merged_shape(self, shapes: list[Any]) -> Any:
        """Return the shape of all side by side."""
        ranks = {len(shape) if isinstance(shape, tuple) else 1 for shape in shapes}
        if self.how == "recurrent":
            if ranks != {2} or len({shape[0] for shape in shapes}) > 1:
                raise self.wrong(
                    "the outputs of branches, one after another in time, are (F, T) of one F: a Linear can change it"
                )
            return shapes[0][0], sum(shape[1] for shape in shapes)
        if self.how == "depth":
            if ranks not in ({3}, {4}) or len({shape[1:] for shape in shapes}) > 1:
                raise self.wrong(
                    "the outputs of branches, side by side as maps, are images of one size: see to their padding"
                )
            return sum(shape[0] for shape in shapes), *shapes[0][1:]
        steps = {columns(shape) for shape in shapes}
        if len(steps) > 1:
            raise self.wrong(
                "the outputs of branches, side by side as features, have the same time steps: 'recurrent' takes others"
            )
        rows = sum(features(shape) for shape in shapes)
        return rows if ranks != {2} else (rows, *steps)

    def allocate_layers(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        """Make the buffer of the outputs; branches write into parts of it, where these lie in one piece."""
        self.outputs = self.buffer("outputs", self.out_shape, shared=shared_outputs)
        start, self.parts = 0, []
        for branch in self.layers:
            shape = branch.out_shape
            size = columns(shape) * self.be.bsz if self.how == "recurrent" else features(shape)
            self.parts.append(slice(start, start + size))
            start += size
            shared = None if self.how == "recurrent" else self.part(len(self.parts) - 1, self.outputs)
            allocate(branch, shared, accumulate_updates)

    def part(self, i: int, t: Any) -> Any:
        """Return what is a branch's of the outputs, or of their error."""
        return t[:, self.parts[i]] if self.how == "recurrent" else t[self.parts[i]]

    def merge(self, found: list[Any]) -> None:
        """Put the outputs side by side, unless they are there."""
        if self.how == "recurrent":
            self.outputs[:] = self.be.concat(found, axis=1)
            return
        for i, y in enumerate(found):
            if y.root is not self.outputs.root:  # a layer written elsewhere has a place of its own for them
                self.part(i, self.outputs)[:] = y

    def place_of(self, i: int, deltas: Deltas, error: Place | None) -> Place | None:
        """Return where the error of a branch lies: a part, or a copy where that is scaled or not in one piece."""
        if i == 0:
            self.copies = [None] * len(self.layers)
        if error is None or (self.how != "recurrent" and self.alphas[i] == 1):
            return error

        def take(buffer: Any) -> None:
            self.copies[i] = self.be.iobuf(by_columns(self.layers[i].out_shape), shared=buffer)

        place = deltas.take(elements(self.layers[i].out_shape), take)
        deltas.free(error)
        return place

    def error_of(self, i: int, error: Any) -> Any:
        """Return the error of a branch: its part of the error, multiplied by its alpha."""
        part = self.part(i, error)
        if self.copies[i] is None:
            return part
        self.copies[i][:] = part if self.alphas[i] == 1 else self.alphas[i] * part
        return self.copies[i]


class MergeMultistream(MergeBroadcast):
    """Several inputs, each to a branch of its own, and what these compute side by side, as in ``MergeBroadcast``.

    ``configure`` takes a list of shapes, or a data set whose ``shape`` is one; ``fprop`` takes a list of tensors, and
    ``bprop`` returns a list of deltas.
    """

    def __init__(
        self, layers: Iterable[Any], merge: str, name: str | None = None, alphas: Sequence[float] | None = None
    ) -> None:
        super().__init__(layers, merge, alphas, name)

    def configure(self, in_obj: Any) -> Any:
        """Settle the shapes of all branches. ValueError unless there is a shape for each."""
        self.be = self.be
        self.in_shape = getattr(in_obj, "shape", in_obj)
        if not isinstance(self.in_shape, list | tuple) or len(self.in_shape) != len(self.layers):
            raise ValueError(
                f"{self.name}: a list of {len(self.layers)} shapes, one for each branch; got {self.in_shape!r}"
            )
        for branch, shape in zip(self.layers, self.in_shape, strict=True):
            branch.configure(shape)
        self.settle()
        return self

    def inputs_of(self, inputs: Any) -> Sequence[Any]:
        """Return the inputs of each branch."""
        if not isinstance(inputs, list | tuple) or len(inputs) != len(self.layers):
            raise ValueError(
                f"{self.name}: a list of {len(self.layers)} inputs, one for each branch; got {describe(inputs)}"
            )
        return inputs

    def blank_inputs(self) -> list[Any]:
        """Return inputs that fit the branches, of zeros."""
        return [branch.blank_inputs() for branch in self.layers]

    def in_steps(self, S: int) -> Any:
        """Return the shapes of all inputs with S time steps."""
        return [branch.in_steps(S) for branch in self.layers]

    def reserve(self, deltas: Deltas, error: Place | None) -> Place | None:
        """Have the branches say where their deltas are to lie."""
        deltas.hold(error, len(self.layers) - 1)
        for i, branch in enumerate(self.layers):
            branch.prev_layer = self.prev_layer
            branch.reserve(deltas, self.place_of(i, deltas, error))
        return None

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute all gradients, and return the deltas of each branch in a list."""
        self.check_scale(beta, alpha)
        self.deltas = self.back(error)
        return self.deltas
