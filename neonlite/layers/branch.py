"""Branching networks: Tree, BranchNode and SkipNode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Self, cast

from neonlite.backend import Tensor
from neonlite.backend.validation import check_numbers, sequence
from neonlite.layers.buffers import iobuf_shape
from neonlite.layers.container import LayerContainer, Sequential, flatten_layers, layer_list
from neonlite.layers.deltas import DeltaPlanner, GradientSum, PlannedGradient
from neonlite.layers.layer import Layer
from neonlite.layers.shape import PassThrough
from neonlite.layers.types import LayerInput, LayerLike, LayerOutputs, Tensors, Terminal


class IdentityNode(PassThrough):
    """Base class of layers whose outputs are their inputs."""

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self


class SkipNode(IdentityNode):
    """Identity, ``outputs = x + beta outputs``. ``MergeSum([layers, SkipNode()])`` is a residual block.

    Parameters
    ----------
    name : str, optional
        Name, unique in a network.

    References
    ----------
    He et al., "Deep residual learning for image recognition", 2016.
    """


class BranchNode(IdentityNode):
    """A node of a ``Tree`` where branches start: they read its outputs, and ``bprop`` adds their deltas to its error.

    Add it to the trunk, and again as the first layer of each branch: the same object, or one with the same name.

    Parameters
    ----------
    name : str, optional
        Name, unique in a network.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.branch_errors: list[Any] = []  # the deltas of branches
        self.gradient_sum = GradientSum()

    @property
    def needs_outputs(self) -> bool:  # type: ignore[override]
        """True: the next layer must not overwrite the outputs, because branches read them."""
        return True

    def record_bprop(self, planner: DeltaPlanner, error: PlannedGradient | None) -> PlannedGradient | None:
        """Record the sum of the error and the deltas of the branches."""
        errors = [error, *planner.branch_errors.pop(self, [])]
        if not self.needs_deltas:
            return None
        return super().record_bprop(planner, planner.add_sum(self.gradient_sum, errors, self.in_shape))

    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        """Return the error plus the deltas of the branches, scaled."""
        errors, self.branch_errors = [error, *self.branch_errors], []
        if not self.needs_deltas:
            return None
        return super().bprop(self.gradient_sum.compute(errors), alpha, beta)


class Tree(LayerContainer):
    """A trunk, and branches that start at BranchNodes. ``fprop`` returns a list of outputs, the trunk's first.

    The gradients are those of ``sum_i alpha_i cost_i``.

    Parameters
    ----------
    layers : list of lists of Layer
        The trunk, and branches. Each branch starts with a ``BranchNode`` of the trunk or of an earlier branch.
    name : str, optional
        Name, unique in a network.
    alphas : sequence of float, optional
        Factors of the errors of trunk and branches. Default: 1.

    References
    ----------
    Szegedy et al., "Going deeper with convolutions", 2015, section 5.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.initializers import Gaussian
    >>> from neonlite.layers import BranchNode, Linear, Tree
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> node = BranchNode()
    >>> trunk = [Linear(8, Gaussian()), node, Linear(3, Gaussian())]
    >>> Tree([trunk, [node, Linear(1, Gaussian())]]).configure(5).out_shape
    [3, 1]
    """

    config_attributes: ClassVar[dict[str, str]] = {"layers": "branch_layers"}

    def __init__(
        self, layers: Iterable[LayerLike], name: str | None = None, alphas: Sequence[float] | None = None
    ) -> None:
        nodes: dict[str, BranchNode] = {}
        self.nodes: list[Any] = [None]  # the first node of each branch
        branches = []
        for i, item in enumerate(layer_list(self.classnm, layers, name)):
            items = item if isinstance(item, list | tuple | Sequential) else [item]
            branch = list(flatten_layers(name or self.classnm, items))
            if i:
                first = branch.pop(0) if branch else None
                if not isinstance(first, BranchNode) or first.name not in nodes:
                    known = ", ".join(nodes) or "none"
                    raise ValueError(
                        f"{name or 'Tree'}: branch {i}: expected a BranchNode of an earlier branch ({known}) as its "
                        f"first layer, got {first if first is None else first.name}."
                    )
                self.nodes.append(nodes[first.name])
            nodes |= {layer.name: layer for layer in branch if isinstance(layer, BranchNode)}
            branches.append(Sequential(branch))
        super().__init__(branches, name)
        self.alphas = check_numbers(f"{self.name}: alphas", alphas, len(branches), "of trunk and branches")
        self.scaled_errors: list[Any] = [None] * len(self.layers)

    @property
    def branches(self) -> list[Sequential]:
        """The trunk and the branches."""
        return cast(list[Sequential], self.layers)

    @property
    def branch_layers(self) -> list[list[Layer]]:
        """The layers of the trunk and of each branch, including its node."""
        starts = [[] if node is None else [node] for node in self.nodes]
        return [[*start, *branch.layers] for start, branch in zip(starts, self.branches, strict=True)]

    def configure(self, in_obj: LayerInput) -> Self:
        """Infer the shapes of all layers; ``out_shape`` is a list."""
        self.be = self.be
        for branch, node in zip(self.layers, self.nodes, strict=True):
            branch.configure(node or in_obj)
        self.in_shape, self.out_shape = self.layers[0].in_shape, [branch.out_shape for branch in self.layers]
        if isinstance(in_obj, Layer):
            self.prev_layer = in_obj
        return self

    def record_bprop(self, planner: DeltaPlanner, error: PlannedGradient | None) -> PlannedGradient | None:
        """Record the branches, then the trunk. The errors come from outside the network."""
        for branch, node in zip(self.branches, [self, *self.nodes[1:]], strict=True):
            branch.needs_deltas = node.needs_deltas
            branch.set_needs_deltas()  # of the nodes in it, where the next branches start
        for i in reversed(range(len(self.layers))):
            branch, node, error = self.branches[i], self.nodes[i], planner.external()
            if self.alphas[i] != 1:
                error = planner.add_step(self, [error], branch.out_shape, self.make_error_setter(i))
            deltas: PlannedGradient | None = branch.record_bprop(planner, error)
            if node is not None:
                planner.branch_errors.setdefault(node, []).append(deltas)
        return deltas

    def make_error_setter(self, i: int) -> Callable[[Tensor], None]:
        """Return a callback that receives the buffer of a scaled error.

        Parameters
        ----------
        i : int
            Index of the branch.
        """

        def set_error(buffer: Tensor) -> None:
            self.scaled_errors[i] = self.be.iobuf(iobuf_shape(self.out_shape[i]), shared=buffer)

        return set_error

    def fprop(self, inputs: Tensors, inference: bool = False, beta: float = 0.0) -> LayerOutputs:
        """Compute the outputs of the trunk and of all branches, and return them as a list."""
        self.reject_scaling(beta)
        self.can_backprop = False
        self.outputs = []
        for branch, node in zip(self.branches, self.nodes, strict=True):
            x = inputs if node is None else node.outputs
            self.outputs.append(branch.fprop(x, inference))
        self.can_backprop = not inference
        return self.outputs

    def bprop(self, error: Tensors, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        """Compute all gradients, and return the deltas of the trunk.

        Parameters
        ----------
        error : list of Tensor
            An error for each output.
        """
        self.reject_scaling(beta, alpha)
        self.check_can_backprop()
        kind = f"a list of {len(self.layers)}, one for each branch,"
        errors = sequence(f"{self.name}.bprop: error", error, kind, count=len(self.layers))
        for node in self.nodes[1:]:
            node.branch_errors = []  # an interrupted bprop may have left some
        for i in reversed(range(len(self.layers))):
            e = errors[i]
            if self.alphas[i] != 1:
                self.scaled_errors[i][:] = self.alphas[i] * e
                e = self.scaled_errors[i]
            deltas = self.layers[i].bprop(e)
            if i:
                self.nodes[i].branch_errors.append(deltas)
        self.deltas = deltas
        return deltas

    def get_terminal(self) -> Terminal:
        """Return a list of the last layers of the trunk and of all branches."""
        return [branch.get_terminal() for branch in self.layers]


class SingleOutputTree(Tree):
    """A ``Tree`` that computes and returns only the outputs of the trunk at inference.

    Parameters
    ----------
    layers, name, alphas
        As for ``Tree``.
    """

    def fprop(self, inputs: Tensors, inference: bool = False, beta: float = 0.0) -> LayerOutputs:
        """Compute the outputs of trunk and branches as a list; at inference those of the trunk, as a tensor."""
        if not inference:
            return super().fprop(inputs, inference, beta)
        self.reject_scaling(beta)
        self.can_backprop = False
        self.outputs = self.branches[0].fprop(inputs, inference)
        return self.outputs
