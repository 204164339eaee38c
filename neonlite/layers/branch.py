"""How does a network branch?  From a node in its trunk: outputs go several ways, and errors that come back add up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from neonlite.backend.numbers import number
from neonlite.layers.buffers import by_columns, elements
from neonlite.layers.container import LayerContainer, Sequential, flat
from neonlite.layers.deltas import Deltas, Place, Sum
from neonlite.layers.layer import NOT_YET, Layer
from neonlite.layers.shape import Passing
from neonlite.optree import describe


class Node(Passing):
    """A layer that hands on what it gets, in the same shape."""

    def configure(self, in_obj: Any) -> Any:
        """Take the inputs' shape, which is the outputs' as well."""
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self


class SkipNode(Node):
    """A way past other layers: ``outputs = x + beta outputs``. ``MergeSum([layers, SkipNode()])`` is a residual block.

    Source: He et al. 2016, Deep Residual Learning for Image Recognition.
    """


class BranchNode(Node):
    """Where branches of a ``Tree`` begin: they take its outputs, and their deltas are added to the error it gets.

    It stands in the trunk, and again at the beginning of each branch: the same object, or one of the same name.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.places: list[Place | None] = []  # of the deltas of branches, on the way back
        self.errors: list[Any] = []  # these deltas
        self.sum = Sum()

    @property
    def reads_outputs(self) -> bool:  # type: ignore[override]
        """Whether the layer after it must leave the outputs alone: branches read them."""
        return True

    def reserve(self, deltas: Deltas, error: Place | None) -> Place | None:
        """Say that the deltas lie where the error does, or over one of those that come from branches."""
        places, self.places = [error, *self.places], []
        if self.prev_layer is None:
            for place in places:
                deltas.free(place)
            return None
        self.owns_delta, self.deltas = False, None
        return self.sum.reserve(deltas, places, elements(self.in_shape))

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Return the error plus the deltas of the branches, scaled."""
        errors, self.errors = [error, *self.errors], []
        if self.prev_layer is None:
            return None
        return super().bprop(self.sum.add(errors), alpha, beta)


class Tree(LayerContainer):
    """A trunk, and branches that begin at nodes in it: ``fprop`` returns a list of the outputs of all, trunk first.

    ``layers``: a list of lists of layers. The first is the trunk. Each other one begins with a ``BranchNode`` that is
    in one before it. ``alphas``: what the error of each is multiplied by, 1 unless given: gradients are those of
    ``sum_i alpha_i cost_i``. Source: Szegedy et al. 2015, Going deeper with convolutions, section 5.

    >>> import neonlite as nl
    >>> from neonlite.initializers import Gaussian
    >>> from neonlite.layers import BranchNode, Linear, Tree
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> node = BranchNode()
    >>> trunk = [Linear(8, Gaussian()), node, Linear(3, Gaussian())]
    >>> Tree([trunk, [node, Linear(1, Gaussian())]]).configure(5).out_shape
    [3, 1]
    """

    told_by: ClassVar[dict[str, str]] = {"layers": "paths"}

    def __init__(self, layers: Iterable[Any], name: str | None = None, alphas: Sequence[float] | None = None) -> None:
        nodes: dict[str, BranchNode] = {}
        self.nodes: list[Any] = [None]  # where each branch begins
        found = []
        for i, path in enumerate(layers):
            path = list(flat(path if isinstance(path, list | tuple | Sequential) else [path]))
            if i:
                first = path.pop(0) if path else None
                if not isinstance(first, BranchNode) or first.name not in nodes:
                    have = ", ".join(nodes) or "none"
                    raise ValueError(
                        f"{name or 'Tree'}: list {i} of layers is a branch: it begins with a BranchNode of an earlier "
                        f"one ({have}); got {first if first is None else first.name}"
                    )
                self.nodes.append(nodes[first.name])
            nodes |= {layer.name: layer for layer in path if isinstance(layer, BranchNode)}
            found.append(Sequential(path))
        super().__init__(found, name)
        self.alphas = (
            [1.0] * len(self.layers) if alphas is None else [number(f"{self.name}: an alpha", a) for a in alphas]
        )
        if len(self.alphas) != len(self.layers):
            raise ValueError(
                f"{self.name}: there are {len(self.layers)} branches, the trunk one of them; got {alphas=}"
            )
        self.scaled_errors: list[Any] = [None] * len(self.layers)

    @property
    def paths(self) -> list[list[Any]]:
        """The layers of the trunk and of each branch, which begins with its node."""
        begins = [[] if node is None else [node] for node in self.nodes]
        return [[*begin, *branch.layers] for begin, branch in zip(begins, self.layers, strict=True)]

    def configure(self, in_obj: Any) -> Tree:
        """Settle the shapes of all layers; ``out_shape`` is a list."""
        self.be = self.be
        for branch, node in zip(self.layers, self.nodes, strict=True):
            branch.configure(node or in_obj)
        self.in_shape, self.out_shape = self.layers[0].in_shape, [branch.out_shape for branch in self.layers]
        if isinstance(in_obj, Layer):
            self.prev_layer = in_obj
        return self

    def reserve(self, deltas: Deltas, error: Place | None) -> Place | None:
        """Have the branches say where their deltas are to lie, then the trunk. Errors are from outside."""
        first = self.layers[0].layers[0]  # which may be a node itself
        first.prev_layer = first.prev_layer or self.prev_layer
        for branch, node in zip(self.layers[1:], self.nodes[1:], strict=True):
            # a node wants deltas if there is somebody before it who does
            branch.prev_layer = branch.layers[0].prev_layer = node if node.prev_layer is not None else None
        for i in reversed(range(len(self.layers))):
            branch, node, error = self.layers[i], self.nodes[i], deltas.outside()
            if self.alphas[i] != 1:
                error = deltas.take(elements(branch.out_shape), self.taker(i))
            place: Place | None = branch.reserve(deltas, error)
            if node is not None:
                node.places.append(place)
        return place

    def taker(self, i: int) -> Any:
        """Return what takes the buffer of an error that is multiplied."""

        def take(buffer: Any) -> None:
            self.scaled_errors[i] = self.be.iobuf(by_columns(self.out_shape[i]), shared=buffer)

        return take

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute the outputs of the trunk and of all branches, and return them in a list."""
        self.check_scale(beta)
        self.learning = False
        self.outputs = []
        for branch, node in zip(self.layers, self.nodes, strict=True):
            x = inputs if node is None else node.outputs
            self.outputs.append(branch.fprop(x, inference))
        self.learning = not inference
        return self.outputs

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Take a list of errors, one for each of the outputs; compute all gradients, and return the trunk's deltas."""
        self.check_scale(beta, alpha)
        if not self.learning:
            raise RuntimeError(f"{self.name}: {NOT_YET}")
        if not isinstance(error, list | tuple) or len(error) != len(self.layers):
            raise ValueError(
                f"{self.name}: bprop takes a list of {len(self.layers)} errors, one for each branch; "
                f"got {describe(error)}"
            )
        for node in self.nodes[1:]:
            node.errors = []  # of a bprop that an error ended
        for i in reversed(range(len(self.layers))):
            e = error[i]
            if self.alphas[i] != 1:
                self.scaled_errors[i][:] = self.alphas[i] * e
                e = self.scaled_errors[i]
            back = self.layers[i].bprop(e)
            if i:
                self.nodes[i].errors.append(back)
        self.deltas = back
        return back

    def blank_inputs(self) -> Any:
        """Return inputs that fit the trunk, of zeros."""
        return self.layers[0].blank_inputs()

    def in_steps(self, S: int) -> Any:
        """Return the inputs' shape with S time steps."""
        return self.layers[0].in_steps(S)

    def get_terminal(self) -> Any:
        """Return a list of the last layers of the trunk and of all branches."""
        return [branch.get_terminal() for branch in self.layers]


class SingleOutputTree(Tree):
    """A ``Tree`` of which inference computes and returns the outputs of the trunk alone."""

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute the outputs of all branches, or for inference those of the trunk, which are then no list."""
        if not inference:
            return super().fprop(inputs, inference, beta)
        self.check_scale(beta)
        self.learning = False
        self.outputs = self.layers[0].fprop(inputs, inference)
        return self.outputs
