"""Networks with several branches: layers that merge branches, and trees that share layers with a branch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self, cast

from neonlite import optree, typing
from neonlite.autodiff import Autodiff
from neonlite.backend import Tensor, objects, validation
from neonlite.layers import buffers
from neonlite.layers.container import LayerContainer, LayerLike, Sequential, as_container, flatten_layers, layer_list
from neonlite.layers.layer import Layer, LayerInput, Terminal

MERGE_MODES = ("recurrent", "depth", "stack")


def scale_gradient(x: optree.Operand, alpha: float) -> optree.Operand:
    """Return x, with its gradient multiplied by alpha."""
    if alpha == 1:
        return x
    constant = x.backend.stop_gradient(x)
    return constant + alpha * (x - constant)


class Broadcast(LayerContainer):
    """Base class of containers that pass the same inputs to several branches, and merge their outputs.

    The deltas of the branches are added. Subclasses implement ``merge_shapes`` and ``merge_trees``.

    Parameters
    ----------
    layers : iterable
        The branches: layers, lists of layers or containers.
    name : str, optional
        Name, unique in a network.
    """

    def __init__(self, layers: Iterable[LayerLike], name: str | None = None) -> None:
        super().__init__([as_container(branch) for branch in layer_list(self.classnm, layers, name)], name)
        self.branch_outputs: list[Tensor] = []

    def configure(self, in_obj: LayerInput) -> Self:
        """Infer the shapes of all branches. ValueError if their outputs cannot be merged."""
        Layer.configure(self, in_obj)
        for branch in self.layers:
            branch.prev_layer = self.prev_layer
            branch.configure(self.in_shape)
        self.infer_out_shape()
        return self

    def infer_out_shape(self) -> None:
        """Set the output shape. ValueError if the outputs of the branches cannot be merged."""
        self.out_shape = self.merge_shapes([branch.out_shape for branch in self.layers])

    def merge_shapes(self, shapes: Sequence[typing.LayerShape]) -> typing.LayerShape:
        """Return the shape of the merged outputs.

        Parameters
        ----------
        shapes : list
            The output shapes of the branches.
        """
        raise NotImplementedError(f"{self.classnm}: expected merge_shapes(shapes). Implement it.")

    def shape_error(self, expected: str, hint: str) -> ValueError:
        """Return the exception for branches whose outputs cannot be merged.

        Parameters
        ----------
        expected : str
            The shapes that can be merged.
        hint : str
            How to fix the branches.
        """
        shapes = ", ".join(f"{branch.leaves()[-1].name} {branch.out_shape}" for branch in self.layers)
        return ValueError(
            f"{self.name}: expected branches with {expected}, got {shapes} for the input shape {self.in_shape}. {hint}"
        )

    def allocate_layers(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        """Allocate the branches and the outputs."""
        super().allocate_layers(None, accumulate_updates)
        self.outputs = self.buffer("outputs", self.out_shape, shared=shared_outputs)

    def fprop(self, inputs: buffers.Tensors, inference: bool = False, beta: float = 0.0) -> Tensor:
        """Compute the outputs of all branches, and return the merged outputs."""
        self._start_fprop(beta)
        branches = zip(cast(list[Any], self.layers), self.branch_inputs(inputs), strict=True)
        self.branch_outputs = [branch.fprop(x, inference) for branch, x in branches]
        self.outputs[:] = self.merge_trees(list(self.branch_outputs))
        self.can_backprop = not inference
        return self.outputs

    def branch_inputs(self, inputs: buffers.Tensors) -> Sequence[buffers.Tensors]:
        """Return the inputs of each branch.

        Parameters
        ----------
        inputs : Tensor
            The argument of ``fprop``.
        """
        return [inputs] * len(self.layers)

    def build_tree(self, x: buffers.Operands, training: bool) -> buffers.Trees:
        """Return the merged op-trees of the branches."""
        inputs: Any = x
        branches = zip(self.layers, self.branch_inputs(inputs), strict=True)
        trees = [branch.build_tree(y, training) for branch, y in branches]
        are_images = self.takes_images and objects.has_builtin_method(type(self), "merge_trees")
        if not are_images or len({tree.shape for tree in trees}) > 1:
            trees = [*map(buffers.flat, trees)]
        return self.merge_trees(trees)

    def merge_trees(self, trees: list[optree.Operand]) -> optree.Operand:
        """Return the merged outputs as an op-tree.

        Parameters
        ----------
        trees : list of OpTreeNode
            The outputs of the branches.
        """
        raise NotImplementedError(f"{self.classnm}: expected merge_trees(trees). Implement it.")

    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        """Compute all gradients, and return the sum of the deltas of the branches."""
        self.reject_scaling(beta, alpha)
        deltas: Any = self.bprop_branches(error)
        self.deltas = self.sum_tensors("deltas", deltas)
        return self.deltas

    def bprop_branches(self, error: Tensor) -> list[buffers.Deltas]:
        """Compute all gradients, and return the deltas of each branch.

        Parameters
        ----------
        error : Tensor
            The error of the outputs.
        """
        self.check_can_backprop()
        self.check_tensor("an error", error, self.out_shape)
        self.set_needs_deltas()
        autodiff = Autodiff(self.merge_trees(list(self.branch_outputs)) * 1, self.be, error)
        errors = autodiff.get_grad_tensor(self.branch_outputs)
        return [branch.bprop(e) for branch, e in zip(self.layers, errors, strict=True)]


class MergeSum(Broadcast):
    """The sum of the outputs of branches that read the same inputs.

    Parameters
    ----------
    layers : iterable
        The branches: layers, lists of layers or containers.
    name : str, optional
        Name, unique in a network.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.initializers import Gaussian
    >>> from neonlite.layers import Conv, MergeSum, SkipNode
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> MergeSum([Conv((3, 3, 8), Gaussian(), padding=1), SkipNode()]).configure((8, 5, 5)).out_shape
    (8, 5, 5)
    """

    takes_images = True

    def merge_shapes(self, shapes: Sequence[typing.LayerShape]) -> typing.LayerShape:
        """Return the common shape of the branches."""
        if any(shape != shapes[0] for shape in shapes):
            raise self.shape_error("outputs of the same shape", "A 1 x 1 Conv or a Linear changes the shape.")
        return shapes[0]

    def merge_trees(self, trees: list[optree.Operand]) -> optree.Operand:
        """Return the sum."""
        return sum(trees[1:], trees[0])


class MergeBroadcast(Broadcast):
    """The outputs of branches that read the same inputs, concatenated.

    Parameters
    ----------
    layers : iterable
        The branches: layers, lists of layers or containers.
    merge : str
        "depth": images (C, H, W) of the same size, along channels. "stack": (F, T) of the same T along features, or
        outputs of different shapes as features. "recurrent": (F, T) of the same F, along time steps.
    alphas : sequence of float, optional
        Factors of the errors of the branches. Default: 1.
    name : str, optional
        Name, unique in a network.

    References
    ----------
    "depth": Szegedy et al., "Going deeper with convolutions", 2015.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.initializers import Gaussian
    >>> from neonlite.layers import Conv, MergeBroadcast, Pooling
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> branches = [Conv((1, 1, 4), Gaussian()), Pooling(3, strides=1, padding=1)]
    >>> MergeBroadcast(branches, merge="depth").configure((8, 5, 5)).out_shape
    (12, 5, 5)
    """

    config_attributes: ClassVar[dict[str, str]] = {"merge": "merge_mode"}

    def __init__(
        self, layers: Iterable[LayerLike], merge: str, alphas: Sequence[float] | None = None, name: str | None = None
    ) -> None:
        super().__init__(layers, name)
        self.merge_mode = validation.one_of(f"{self.name}: merge", merge, MERGE_MODES)
        self.alphas = validation.check_numbers(f"{self.name}: alphas", alphas, len(self.layers), "branch")

    def merge_shapes(self, shapes: Sequence[typing.LayerShape]) -> typing.LayerShape:
        """Return the shape of the concatenated outputs."""
        ranks = {len(shape) if isinstance(shape, tuple) else 1 for shape in shapes}
        sizes: Sequence[Any] = shapes
        if self.merge_mode == "recurrent":
            if ranks != {2} or len({shape[0] for shape in sizes}) > 1:
                raise self.shape_error("outputs (F, T) of the same F", "A Linear changes F.")
            return sizes[0][0], sum(shape[1] for shape in sizes)
        if self.merge_mode == "depth":
            if ranks not in ({3}, {4}) or len({shape[1:] for shape in sizes}) > 1:
                raise self.shape_error("images of the same size", "Adjust their padding.")
            return sum(shape[0] for shape in sizes), *sizes[0][1:]
        steps = {buffers.num_steps(shape) for shape in shapes}
        if len(steps) > 1:
            return sum(map(buffers.num_elements, shapes))
        rows = sum(buffers.num_features(shape) for shape in shapes)
        return rows if ranks != {2} else (rows, *steps)

    def merge_trees(self, trees: list[optree.Operand]) -> optree.Operand:
        """Return the concatenated outputs."""
        trees = [scale_gradient(x, alpha) for x, alpha in zip(trees, self.alphas, strict=True)]
        if self.merge_mode == "recurrent":
            return self.be.concat(trees, axis=1)
        steps = buffers.num_steps(self.out_shape)  # outputs of different numbers of steps are features
        columns = [
            x.shape[1] // buffers.num_steps(b.out_shape) * steps for x, b in zip(trees, self.layers, strict=True)
        ]
        return self.be.concat([self.be.reshape(x, (-1, n)) for x, n in zip(trees, columns, strict=True)], axis=0)


class MergeMultistream(MergeBroadcast):
    """Branches with separate inputs, whose outputs are concatenated as in ``MergeBroadcast``.

    ``configure`` takes a list of shapes, or a data set whose ``shape`` is a list; ``fprop`` takes a list of tensors,
    and ``bprop`` returns a list of deltas.

    Parameters
    ----------
    layers, merge, name, alphas
        As for ``MergeBroadcast``.
    """

    def __init__(
        self, layers: Iterable[LayerLike], merge: str, name: str | None = None, alphas: Sequence[float] | None = None
    ) -> None:
        super().__init__(layers, merge, alphas, name)

    def configure(self, in_obj: LayerInput) -> Self:
        """Infer the shapes of all branches. ValueError unless there is an input shape for each."""
        self.be = self.be
        self.in_shape = buffers.shape_of(in_obj)
        if not isinstance(self.in_shape, list | tuple) or len(self.in_shape) != len(self.layers):
            raise ValueError(
                f"{self.name}: expected a list of {len(self.layers)} shapes, one for each branch, "
                f"got {self.in_shape!r}."
            )
        for branch, shape in zip(self.layers, self.in_shape, strict=True):
            branch.configure(shape)
        self.infer_out_shape()
        return self

    def branch_inputs(self, inputs: buffers.Tensors) -> Sequence[buffers.Tensors]:
        """Return the inputs of each branch."""
        kind = f"a list of {len(self.layers)}, one for each branch,"
        return validation.sequence(f"{self.name}: inputs", inputs, kind, count=len(self.layers))

    def make_zero_inputs(self) -> list[Tensor]:
        """Return inputs of the branches, filled with zeros."""
        return [branch.make_zero_inputs() for branch in cast(list[Any], self.layers)]

    def shape_for_seq_len(self, S: int) -> typing.LayerShapes:
        """Return the shapes of all inputs with S time steps."""
        return [branch.shape_for_seq_len(S) for branch in self.layers]

    def bprop(  # type: ignore[override]  # deltas of several inputs
        self, error: Tensor, alpha: float = 1.0, beta: float = 0.0
    ) -> list[buffers.Deltas]:
        """Compute all gradients, and return a list of the deltas of the branches."""
        self.reject_scaling(beta, alpha)
        self.deltas = self.bprop_branches(error)
        return self.deltas


class IdentityNode(Layer):
    """Base class of layers whose outputs are their inputs."""

    takes_images = True

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self

    def formula(self, x: Tensor) -> optree.Operand:
        """Return x."""
        return x


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

    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        """Return the error plus the deltas of the branches, scaled."""
        total: Any = self.sum_tensors("error", [error, *self.branch_errors])
        self.branch_errors = []
        return super().bprop(total, alpha, beta)


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
        self.alphas = validation.check_numbers(f"{self.name}: alphas", alphas, len(branches), "of trunk and branches")

    @property
    def error_factors(self) -> list[float]:
        """The factors of the errors of the outputs, ``alphas``."""
        return list(self.alphas)

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

    def set_needs_deltas(self) -> None:
        """Set which layers compute deltas: those of a branch if its node does."""
        for branch, node in zip(self.branches, [self, *self.nodes[1:]], strict=True):
            branch.needs_deltas = node.needs_deltas
            branch.set_needs_deltas()  # of the nodes in it, where the next branches start

    def build_tree(self, x: buffers.Operands, training: bool) -> buffers.Trees:
        """Return the op-trees of the trunk and of all branches."""
        at_node: dict[Layer, Any] = {}
        outputs = []
        for branch, node in zip(self.branches, self.nodes, strict=True):
            y = x if node is None else at_node[node]
            for layer in branch.layers:
                y = layer.build_tree(y, training)
                at_node[layer] = y
            outputs.append(y)
        return outputs

    def fprop(self, inputs: buffers.Tensors, inference: bool = False, beta: float = 0.0) -> buffers.LayerOutputs:
        """Compute the outputs of the trunk and of all branches, and return them as a list."""
        self._start_fprop(beta)
        self.outputs = []
        for branch, node in zip(self.branches, self.nodes, strict=True):
            x = inputs if node is None else node.outputs
            self.outputs.append(branch.fprop(x, inference))
        self.can_backprop = not inference
        return self.outputs

    def bprop(self, error: buffers.Tensors, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        """Compute all gradients, and return the deltas of the trunk.

        Parameters
        ----------
        error : list of Tensor
            An error for each output.
        """
        self.reject_scaling(beta, alpha)
        self.check_can_backprop()
        kind = f"a list of {len(self.layers)}, one for each branch,"
        errors = validation.sequence(f"{self.name}.bprop: error", error, kind, count=len(self.layers))
        self.set_needs_deltas()
        for node in self.nodes[1:]:
            node.branch_errors = []  # an interrupted bprop may have left some
        for i in reversed(range(len(self.layers))):
            alpha, e = self.alphas[i], errors[i]
            deltas = self.layers[i].bprop(e if alpha == 1 else (alpha * e).astensor())
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

    def build_tree(self, x: buffers.Operands, training: bool) -> buffers.Trees:
        """Return the op-trees of trunk and branches as a list; at inference that of the trunk."""
        return super().build_tree(x, training) if training else self.branches[0].build_tree(x, training)

    def fprop(self, inputs: buffers.Tensors, inference: bool = False, beta: float = 0.0) -> buffers.LayerOutputs:
        """Compute the outputs of trunk and branches as a list; at inference those of the trunk, as a tensor."""
        if not inference:
            return super().fprop(inputs, inference, beta)
        self._start_fprop(beta)
        self.outputs = self.branches[0].fprop(inputs, inference)
        return self.outputs
