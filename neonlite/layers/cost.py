"""Network costs: GeneralizedCost, masked and multi-output costs, and the GAN cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from neonlite.backend import Tensor, objects
from neonlite.backend.validation import check_number, check_numbers, from_name, one_of, sequence, warn, with_attributes
from neonlite.layers.buffers import BufferOwner, Tensors, iobuf_shape, num_features, num_steps
from neonlite.layers.layer import Layer
from neonlite.messages import describe
from neonlite.name_hints import GENERALIZED_COST, add_hints
from neonlite.optree import Operand
from neonlite.transforms import Cost, Softmax
from neonlite.transforms.functions import COSTS
from neonlite.transforms.transform import Outputs, Targets
from neonlite.typing import NativeArray


@add_hints(GENERALIZED_COST)
class GeneralizedCost(BufferOwner):
    """The mean of a cost function over the columns of the outputs, and its derivative.

    If the activation of the last layer is the one that the cost function is paired with, such as ``Softmax`` with
    ``CrossEntropyMulti``, the combined derivative is simple: the cost computes the gradient with respect to the
    activation's inputs, and the activation passes it on unchanged.

    Parameters
    ----------
    costfunc : Cost or str
        The cost function, such as ``CrossEntropyMulti()``, or its name, such as "cross_entropy".
    name : str, optional
        Name, for error messages.

    Attributes
    ----------
    cost : array
        The result of the last ``get_cost``.
    outputs : Tensor
        The cost of each column, (1, N).
    deltas : Tensor
        The result of the last ``get_errors``.
    """

    result_attributes = ("cost",)  # attributes that hold results and do not affect the computation
    unread_attributes = ("cost", "outputs", "deltas", "mean", "network", "_buffers", "_views")

    def __init__(self, costfunc: Cost | str, name: str | None = None) -> None:
        super().__init__(name)
        kind, costfunc = "a cost, such as CrossEntropyMulti(),", from_name(f"{self.name}: costfunc", costfunc, COSTS)
        self.costfunc: Cost = with_attributes(f"{self.name}: costfunc", costfunc, "__call__", kind)
        self.outputs: Tensor | Any = None
        self.deltas: Tensor | Any = None
        self.mean: Tensor | Any = None  # the mean of ``outputs``
        self.cost: NativeArray = None
        self.network: Layer | Any = None
        self.shortcut = False

    def initialize(self, in_obj: Layer) -> None:
        """Set the network and allocate the buffers.

        Parameters
        ----------
        in_obj : Layer
            The configured network.

        Raises
        ------
        ValueError
            If the network has several outputs.
        RuntimeError
            If the network is not configured.
        """
        self.be = self.costfunc.be = in_obj.be
        if in_obj.out_shape is None:
            raise RuntimeError(
                f"{self.name}: expected a configured network, got {in_obj.name}. Call configure(shape) first."
            )
        if isinstance(in_obj.out_shape, list):
            raise ValueError(
                f"{self.name}: expected a network with one output, got {in_obj.name} with {len(in_obj.out_shape)} of "
                f"the shapes {in_obj.out_shape}. Use Multicost, with a cost for each."
            )
        self.network = in_obj
        transform, pair = getattr(self.last_layer, "transform", None), getattr(self.costfunc, "paired_activation", None)
        # a Softmax over another axis than the features has no shortcut
        self.shortcut = pair is not None and isinstance(transform, pair) and getattr(transform, "axis", 0) == 0
        self.check_outputs()
        self.outputs = self.deltas = None  # allocated when they are needed
        self.set_shortcut(self.shortcut)

    @property
    def last_layer(self) -> Layer:
        """The last layer of the network."""
        return cast(Layer, self.network.get_terminal())

    def check_outputs(self) -> None:
        """Warn if the cost expects probabilities and the last layer, if it is neonlite's, does not output any."""
        last, expected = self.last_layer, getattr(self.costfunc, "activations", ())
        transform = getattr(last, "transform", None)
        known = objects.is_builtin(type(last if transform is None else transform))
        if not expected or not known or (transform is None and not last.has_params):
            return
        if not isinstance(transform, expected):
            activation = "no activation" if transform is None else transform.classnm
            names = " or ".join(f"{x.__name__}()" for x in expected)
            problem = f"{self.costfunc.classnm} expects probabilities, got outputs of {last.name} with {activation}"
            hint = f"End the network with {names}, or use a cost of any outputs, such as MeanSquared()"
        elif (
            isinstance(transform, Softmax)
            and transform.axis == 0
            and getattr(transform, "c", num_features(self.network.out_shape)) == 1
        ):
            problem = "the softmax of a single output is always 1, so its gradient is 0"
            hint = "Use an output for each class, or Logistic() and CrossEntropyBinary()"
        else:
            return
        warn(f"{self.name}: {problem}. {hint}.")

    def allocate(self) -> None:
        """Allocate the buffers for the current batch size and number of time steps."""
        shape = self.network.out_shape
        outputs, deltas = self.buffer("outputs", (1, num_steps(shape))), self.buffer("deltas", iobuf_shape(shape))
        mean = self.be.empty((1, 1), self.be.mean(outputs).info.dtype)
        vars(self).update(outputs=outputs, deltas=deltas, mean=mean)

    def set_shortcut(self, shortcut: bool) -> None:
        """Set whether the last layer receives the error of its inputs instead of its outputs.

        Parameters
        ----------
        shortcut : bool
            The value to set.
        """
        if hasattr(self.last_layer, "shortcut"):
            self.last_layer.shortcut = shortcut

    def check_initialized(self) -> None:
        """Raise RuntimeError before ``initialize``; allocate buffers for the batch size, unless they have that size."""
        if self.network is None:
            raise RuntimeError(
                f"{self.name}: expected an initialized cost, got one without buffers. Call initialize(network) first."
            )
        shape = self.network.out_shape
        if self.deltas is None or self.deltas.shape != (num_features(shape), num_steps(shape) * self.be.bsz):
            self.allocate()

    def call_with_context(self, f: Callable[..., Operand], *args: object) -> Operand:
        """Return ``f(*args)``; add the names of the cost and the network to error messages.

        Parameters
        ----------
        f : callable
            The cost function or its derivative.
        args
            Its arguments.
        """
        try:
            return f(*args)
        except (TypeError, ValueError) as error:
            shapes = [x.shape for x in args if isinstance(x, Operand)]
            if len(shapes) == 2 and shapes[0][0] != shapes[1][0] > 1 and shapes[0][1:] == shapes[1][1:]:
                outputs, rows = shapes[0][0], shapes[1][0]
                raise ValueError(
                    f"{self.costfunc.classnm}: expected targets with a row for each of the {outputs} outputs of the "
                    f"network, {self.last_layer.name}, got {describe(args[1])} with {rows}. End the network with "
                    f"Affine({rows}), or pass targets of {outputs} classes or columns."
                ) from None
            raise type(error)(f"{self.name}, at {self.last_layer.name} {self.network.out_shape}: {error}") from None

    # --- the cost as an expression ---

    def pair_outputs(self, inputs: Outputs, targets: Targets) -> list[tuple[GeneralizedCost, float, Outputs, Targets]]:
        """Return (cost, weight, outputs, targets) for each output: here of the only one.

        Parameters
        ----------
        inputs, targets
            As for ``get_cost``.
        """
        return [(self, 1.0, inputs, targets)]

    def build_costs(self, y: Operand, t: Targets) -> Operand:
        """Return the cost of each column as an op-tree, (1, N).

        Parameters
        ----------
        y : Tensor or OpTreeNode
            The outputs of the network, (F, N).
        t
            The targets, as for ``get_cost``.
        """
        return self.call_with_context(self.costfunc, y, t)

    def build_errors(self, y: Operand, t: Targets, shortcut: bool) -> Operand:
        """Return the gradient of the summed cost as an op-tree: with respect to y, or to the last activation's inputs.

        Parameters
        ----------
        y, t
            As for ``build_costs``.
        shortcut : bool
            Whether it is that with respect to the inputs of the activation that the cost function is paired with.
        """
        return self.call_with_context(self.costfunc.bprop if shortcut else self.costfunc.backward, y, t)

    def takes_shortcut(self, t: Targets) -> bool:
        """Return whether the cost computes the error of the last activation's inputs.

        Parameters
        ----------
        t
            The targets.
        """
        return self.shortcut

    # --- as tensors ---

    def get_cost(self, inputs: Tensor, targets: Tensor) -> NativeArray:
        """Compute the mean cost of a column.

        Parameters
        ----------
        inputs : Tensor
            The outputs of the network, (F, N).
        targets : Tensor
            Targets of the same shape.

        Returns
        -------
        array
            (1, 1), on the host; also stored as ``cost``.
        """
        self.check_initialized()
        return self.compute_mean(self.build_costs(inputs, targets))

    def compute_mean(self, costs: Operand) -> NativeArray:
        """Store the costs of all columns in ``outputs``; return their mean, on the host, also stored as ``cost``.

        Parameters
        ----------
        costs : Tensor or OpTreeNode
            The costs, (1, N).
        """
        self.be.assign([self.outputs, self.mean], [costs, self.be.mean(costs, axis=1)])
        self.cost = self.mean.get()
        return self.cost

    def get_errors(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the gradient of the summed cost over the minibatch, the argument of the network's ``bprop``.

        Parameters
        ----------
        inputs : Tensor
            The outputs of the network, (F, N).
        targets : Tensor
            Targets of the same shape.

        Returns
        -------
        Tensor
            Of the shape of the inputs.
        """
        self.check_initialized()
        shortcut = self.takes_shortcut(targets)
        self.set_shortcut(shortcut)  # another cost may have changed it
        self.deltas[:] = self.build_errors(inputs, targets, shortcut)
        return self.deltas

    def make_zero_targets(self) -> Tensor | tuple[Tensor, Tensor]:
        """Return targets for the network, filled with zeros."""
        return self.be.iobuf(iobuf_shape(self.network.out_shape))


class GeneralizedCostMask(GeneralizedCost):
    """The cost of the outputs that are selected by a mask of ones and zeros, times ``weights``.

    Targets are a pair ``(t, mask)``, with a mask of shape (1, columns) or of the shape of t. The result is the mean
    over all columns. A mask (1, columns) multiplies the cost of each column, ``weights mask cost(y, t)``; a column
    whose mask is 0 has no effect, whatever its values. A mask of the shape of t is for costs that are sums or means
    over elements: ``weights (cost(y mask, t mask) - (1 - mean(mask)) cost(0, 0))``; masked elements have no effect.

    Parameters
    ----------
    costfunc : Cost or str
        The cost function, or its name.
    weights : float
        Factor of the cost.
    name : str, optional
        Name, for error messages.
    """

    def __init__(self, costfunc: Cost | str, weights: float = 1.0, name: str | None = None) -> None:
        super().__init__(costfunc, name)
        self.weights = check_number(f"{self.name}: weights", weights)

    def split_mask(self, targets: Targets) -> tuple[Operand, Operand]:
        """Return targets and mask; raise TypeError if they are not a pair, ValueError if their shapes do not match.

        Parameters
        ----------
        targets : tuple of Tensor
            ``(t, mask)``.
        """
        pair: Any = targets
        sequence(f"{self.name}, at {self.last_layer.name}: targets", pair, "a pair (t, mask)", count=2)
        t, mask = (getattr(x, "shape", None) for x in pair)
        if t is None or mask not in (t, (1, t[1])):
            raise ValueError(
                f"{self.name}, at {self.last_layer.name} {self.network.out_shape}: expected a mask of the "
                f"shape of the targets or (1, columns), got {describe(pair[1])} for {describe(pair[0])}."
            )
        return pair[0], pair[1]

    def apply_masked(
        self, f: Callable[[Operand, Operand], Operand], inputs: Operand, t: Operand, mask: Operand
    ) -> Operand:
        """Return f of the masked inputs and targets, times the weight.

        Parameters
        ----------
        f : callable
            The cost function or its derivative.
        inputs, t, mask : Tensor or OpTreeNode
            The outputs of the network, the targets and the mask.
        """
        if mask.shape[0] == 1:
            return self.be.where(mask, self.weights * mask * self.call_with_context(f, inputs, t), 0)
        return self.weights * self.call_with_context(lambda: f(inputs * mask, t * mask))

    def build_costs(self, y: Operand, t: Targets) -> Operand:
        """Return the masked cost of each column."""
        t, mask = self.split_mask(t)
        cost = self.apply_masked(self.costfunc, y, t, mask)
        if mask.shape[0] == 1:
            return cost
        zeros = self.be.zeros((y.shape[0], 1))
        cost_of_zeros = self.call_with_context(self.costfunc, zeros, zeros)
        return cost - self.weights * (1 - self.be.mean(mask, axis=0)) * cost_of_zeros

    def build_errors(self, y: Operand, t: Targets, shortcut: bool) -> Operand:
        """Return the gradient of the summed masked cost; it is 0 where the mask is 0."""
        t, mask = self.split_mask(t)
        error = self.apply_masked(self.costfunc.bprop if shortcut else self.costfunc.backward, y, t, mask)
        return error if mask.shape[0] == 1 else mask * error

    def takes_shortcut(self, t: Targets) -> bool:
        """Return whether the last activation is the paired one; with a mask per element, only an elementwise one."""
        return self.shortcut and (self.split_mask(t)[1].shape[0] == 1 or self.is_elementwise)

    @property
    def is_elementwise(self) -> bool:
        """Whether the last activation is elementwise, such as Logistic."""
        return not hasattr(getattr(self.last_layer, "transform", None), "axis")

    def make_zero_targets(self) -> tuple[Tensor, Tensor]:
        """Return targets and a mask for the network, filled with zeros."""
        shape = iobuf_shape(self.network.out_shape)
        return self.be.iobuf(shape), self.be.iobuf(shape)


class Multicost(BufferOwner):
    """The weighted sum of the costs of several outputs, such as those of a ``Tree``: ``sum_i weights_i cost_i``.

    Targets are a list, or one tensor for all outputs. An output whose target is None is skipped, and its error is 0.

    Parameters
    ----------
    costs : sequence of GeneralizedCost
        A cost for each output, that of the trunk first.
    weights : sequence of float, optional
        Default: 1.
    name : str, optional
        Name, for error messages.
    """

    result_attributes = unread_attributes = ("cost",)  # attributes that hold results and do not affect the computation

    def __init__(
        self, costs: Sequence[GeneralizedCost], weights: Sequence[float] | None = None, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.costs = list(costs)
        self.weights = check_numbers(f"{self.name}: weights", weights, len(self.costs), "cost")
        self.cost: NativeArray = None

    @property
    def costfunc(self) -> Cost:
        """The cost function of the first output."""
        return self.costs[0].costfunc

    def initialize(self, in_obj: Layer) -> None:
        """Set the network and allocate the buffers.

        Parameters
        ----------
        in_obj : Layer
            The configured network, with as many outputs as there are costs.
        """
        self.be = in_obj.be
        last = in_obj.get_terminal()
        if not isinstance(last, list) or len(last) != len(self.costs):
            got = (
                f"a list of {len(last)}" if isinstance(last, list) else "one output; it takes a cost without Multicost"
            )
            raise ValueError(
                f"{self.name}: expected a network with a list of {len(self.costs)} outputs, one for each cost, such as "
                f"a Tree, got {in_obj.name} with {got}."
            )
        for cost, layer in zip(self.costs, last, strict=True):
            cost.initialize(cast(Layer, layer))

    def pair_outputs(
        self, inputs: Sequence[Tensor] | Tensor, targets: Sequence[Tensor | None] | Tensor
    ) -> list[tuple[GeneralizedCost, float, Tensor, Tensor | None]]:
        """Return (cost, weight, outputs, targets) for each output.

        Parameters
        ----------
        inputs, targets
            As for ``get_cost``.
        """
        outputs: Sequence[Any] = inputs if isinstance(inputs, list | tuple) else [inputs]  # of a SingleOutputTree
        goals: Sequence[Any] = targets if isinstance(targets, list | tuple) else [targets] * len(outputs)
        if len(outputs) > len(self.costs):
            raise ValueError(
                f"{self.name}: expected at most {len(self.costs)} outputs, one for each cost, got {len(outputs)}."
            )
        if len(goals) < len(outputs):
            raise ValueError(
                f"{self.name}: expected targets for {len(outputs)} outputs, got {len(goals)}. Pass one for each "
                "output, None to skip it, or one tensor for all of them."
            )
        return list(zip(self.costs, self.weights, outputs, goals, strict=False))

    def get_cost(self, inputs: Tensors, targets: Sequence[Tensor | None] | Tensor) -> NativeArray:
        """Compute the sum of the weighted mean costs.

        Parameters
        ----------
        inputs : list of Tensor
            The outputs of the network.
        targets : list of Tensor, or Tensor
            Targets for each output, or for all of them.

        Returns
        -------
        array
            (1, 1), on the host; also stored as ``cost``.
        """
        costs = [w * cost.get_cost(y, t) for cost, w, y, t in self.pair_outputs(inputs, targets) if t is not None]
        if not costs:
            raise ValueError(f"{self.name}: expected targets for at least one output, got None for all.")
        self.cost = sum(costs[1:], costs[0])
        return self.cost

    def get_errors(self, inputs: Tensors, targets: Sequence[Tensor | None] | Tensor) -> list[Tensor]:
        """Compute the gradients of the sum, a list for the network's ``bprop``.

        Parameters
        ----------
        inputs, targets
            As for ``get_cost``.
        """
        errors = []
        for cost, weight, y, t in self.pair_outputs(inputs, targets):
            if t is None:
                cost.check_initialized()
                errors.append(cost.deltas.fill(0))
                continue
            error = cost.get_errors(y, t)
            if weight != 1:
                error[:] = weight * error
            errors.append(error)
        return errors

    def make_zero_targets(self) -> list[Tensor | tuple[Tensor, Tensor]]:
        """Return a list of targets for the network, filled with zeros."""
        return [cost.make_zero_targets() for cost in self.costs]


class GeneralizedGANCost(GeneralizedCost):
    """The mean of a ``GANCost`` over the columns of a discriminator's outputs, and its derivatives.

    ``get_errors(y, "noise")`` and ``get_errors(y, "data")`` return the gradient of the discriminator's cost with
    respect to its outputs for noise or for data, ``get_errors(y, "generator")`` that of the generator's cost.

    Parameters
    ----------
    costfunc : GANCost
        The cost function.
    name : str, optional
        Name, for error messages.
    """

    def build_errors(self, y: Operand, t: Targets, shortcut: bool = False) -> Operand:
        """Return the gradient with respect to the outputs as an op-tree, for the arguments of ``get_errors``."""
        kind = one_of(f"{self.name}: targets", t, ("data", "noise", "generator"))
        return self.call_with_context(getattr(self.costfunc, f"bprop_{kind}"), y)

    def get_cost(self, inputs: Tensor, targets: Tensor, cost_type: str | None = None) -> NativeArray:
        """Compute the mean cost of a column.

        Parameters
        ----------
        inputs : Tensor
            The discriminator's outputs for data.
        targets : Tensor
            The discriminator's outputs for noise.
        cost_type : str, optional
            "dis" or "gen". Default: the cost type of the cost function.
        """
        self.check_initialized()
        return self.compute_mean(self.call_with_context(self.costfunc, inputs, targets, cost_type))
