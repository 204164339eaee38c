"""How does a network know what to learn?  A cost at its end, whose derivative is the first error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neonlite.backend.numbers import number
from neonlite.layers.buffers import Buffered, by_columns, columns, features
from neonlite.optree import describe


class GeneralizedCost(Buffered):
    """The mean of a cost over the columns of outputs, and its derivative.

    Where the last layer's activation is the one that the cost is paired with, both together have a simple derivative:
    the cost gives that of the activation's inputs, and the activation lets it through.
    """

    results = ("cost",)  # attributes that tell what was found, and decide nothing

    def __init__(self, costfunc: Any, name: str | None = None) -> None:
        super().__init__(name)
        self.costfunc = costfunc
        self.outputs: Any = None
        self.deltas: Any = None
        self.cost: Any = None
        self.network: Any = None
        self.shortcut = False

    def initialize(self, in_obj: Any) -> None:
        """Take the network, a configured layer or container, whose outputs are to be judged; make the buffers.

        ValueError when the cost does not fit the outputs.
        """
        self.be = self.costfunc.be = in_obj.be
        if in_obj.out_shape is None:
            raise RuntimeError(f"{self.name}: {in_obj.name} has no shapes yet: call its configure(shape) first")
        if isinstance(in_obj.out_shape, list):
            raise ValueError(
                f"{self.name} is for one kind of outputs; {in_obj.name} has {len(in_obj.out_shape)}, of the shapes "
                f"{in_obj.out_shape}: use Multicost, with a cost for each"
            )
        self.network = in_obj
        transform, pair = getattr(self.last, "transform", None), getattr(self.costfunc, "pairs_with", None)
        # a softmax along the columns is none that the cost knows
        self.shortcut = pair is not None and isinstance(transform, pair) and getattr(transform, "axis", 0) == 0
        self.allocate()
        self.tell(self.shortcut)

    @property
    def last(self) -> Any:
        """The last layer of the network."""
        return self.network.get_terminal()

    def allocate(self) -> None:
        """Make the buffers, for the batch size and the time steps of now."""
        shape = self.network.out_shape
        self.outputs = self.buffer("outputs", (1, columns(shape)))
        self.deltas = self.buffer("deltas", by_columns(shape))

    def tell(self, shortcut: bool) -> None:
        """Tell the last layer what the errors that it will get are: those of its outputs, or already of its inputs."""
        if hasattr(self.last, "shortcut"):
            self.last.shortcut = shortcut

    def check(self) -> None:
        """Raise RuntimeError before ``initialize``; make the buffers anew after another batch size."""
        if self.network is None:
            raise RuntimeError(f"{self.name}: it has no buffers yet: call initialize(network) first")
        shape = self.network.out_shape
        if self.deltas.shape != (features(shape), columns(shape) * self.be.bsz):
            self.allocate()

    def named(self, f: Any, *args: Any) -> Any:
        """Return ``f(*args)``; its errors name the cost and the network."""
        try:
            return f(*args)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self.name}, at {self.last.name} {self.network.out_shape}: {error}") from None

    def get_cost(self, inputs: Any, targets: Any) -> Any:
        """Return the mean cost of a column, (1, 1) on the host; also kept as ``cost``."""
        self.check()
        self.outputs[:] = self.named(self.costfunc, inputs, targets)
        self.cost = self.be.mean(self.outputs, axis=1).asnumpyarray()
        return self.cost

    def get_errors(self, inputs: Any, targets: Any) -> Any:
        """Return the derivative of the cost of each column: the error with which ``bprop`` begins."""
        self.check()
        self.tell(self.shortcut)  # another cost may have been at work on this network since
        derivative = self.costfunc.bprop if self.shortcut else self.costfunc.backward
        self.deltas[:] = self.named(derivative, inputs, targets)
        return self.deltas

    def blank_targets(self) -> Any:
        """Return targets that fit the network, of zeros."""
        return self.be.iobuf(by_columns(self.network.out_shape))


class GeneralizedCostMask(GeneralizedCost):
    """The cost of those outputs that a mask of ones and zeros lets through, times ``weights``.

    Targets are ``(t, mask)``, the mask of t's shape, or (1, columns): ``weights cost(y mask, t mask)``, its mean over
    all columns, and its derivative.
    """

    def __init__(self, costfunc: Any, weights: float = 1.0, name: str | None = None) -> None:
        super().__init__(costfunc, name)
        self.weights = number(f"{self.name}: weights", weights)

    def masked(self, targets: Any) -> tuple[Any, Any]:
        """Return the targets and the mask. TypeError when these are not two, ValueError when they do not fit."""
        if not isinstance(targets, list | tuple) or len(targets) != 2:
            raise TypeError(f"{self.name}, at {self.last.name}: targets are (t, mask); got {describe(targets)}")
        t, mask = (getattr(x, "shape", None) for x in targets)
        if t is None or mask not in (t, (1, t[1])):
            raise ValueError(
                f"{self.name}, at {self.last.name} {self.network.out_shape}: a mask has the shape of the targets, or "
                f"(1, columns); got {describe(targets[1])} for {describe(targets[0])}"
            )
        return targets[0], targets[1]

    def through(self, f: Any, inputs: Any, t: Any, mask: Any) -> Any:
        """Return f of what a mask lets through, times the weight."""
        return self.weights * self.named(lambda: f(inputs * mask, t * mask))

    def get_cost(self, inputs: Any, targets: Any) -> Any:
        """Return the mean cost of a column, (1, 1) on the host; also kept as ``cost``."""
        self.check()
        t, mask = self.masked(targets)
        self.outputs[:] = self.through(self.costfunc, inputs, t, mask)
        self.cost = self.be.mean(self.outputs, axis=1).asnumpyarray()
        return self.cost

    def get_errors(self, inputs: Any, targets: Any) -> Any:
        """Return the derivative of the cost of each column; 0 where the mask is."""
        self.check()
        t, mask = self.masked(targets)
        # the shortcut of a softmax is that of whole columns
        shortcut = self.shortcut and (mask.shape[0] == 1 or self.elementwise)
        self.tell(shortcut)
        derivative = self.costfunc.bprop if shortcut else self.costfunc.backward
        self.deltas[:] = mask * self.through(derivative, inputs, t, mask)
        return self.deltas

    @property
    def elementwise(self) -> bool:
        """Whether the last activation takes each element by itself, as Logistic does."""
        return not hasattr(self.last.transform, "axis")

    def blank_targets(self) -> Any:
        """Return targets that fit the network, of zeros, and a mask."""
        return super().blank_targets(), super().blank_targets()


class Multicost(Buffered):
    """The costs of a ``Tree``'s outputs, each times its weight, and their sum: ``sum_i weights_i cost_i``.

    ``costs``: one for each of the outputs, trunk first. Targets are a list, or one tensor for all; where there is None,
    that cost is left out, and its error is 0.
    """

    results = ("cost",)  # attributes that tell what was found, and decide nothing

    def __init__(self, costs: Sequence[Any], weights: Sequence[float] | None = None, name: str | None = None) -> None:
        super().__init__(name)
        self.costs = list(costs)
        given = [1.0] * len(self.costs) if weights is None else weights
        self.weights = [number(f"{self.name}: a weight", weight) for weight in given]
        if len(self.weights) != len(self.costs):
            raise ValueError(f"{self.name}: {len(self.costs)} costs take as many weights; got {weights}")
        self.cost: Any = None

    @property
    def costfunc(self) -> Any:
        """The cost function of the first."""
        return self.costs[0].costfunc

    def initialize(self, in_obj: Any) -> None:
        """Take the network whose outputs are to be judged; ValueError unless it has as many as there are costs."""
        self.be = in_obj.be
        last = in_obj.get_terminal()
        if not isinstance(last, list) or len(last) != len(self.costs):
            have = len(last) if isinstance(last, list) else 1
            raise ValueError(f"{self.name} has {len(self.costs)} costs; {in_obj.name} has {have} kind(s) of outputs")
        for cost, layer in zip(self.costs, last, strict=True):
            cost.initialize(layer)

    def judged(self, inputs: Any, targets: Any) -> list[tuple[Any, float, Any, Any]]:
        """Return (cost, weight, outputs, targets) for each of the outputs."""
        if not isinstance(inputs, list | tuple):  # a SingleOutputTree's, of inference
            inputs = [inputs]
        if not isinstance(targets, list | tuple):
            targets = [targets] * len(inputs)
        if len(targets) < len(inputs) or len(inputs) > len(self.costs):
            raise ValueError(
                f"{self.name} has {len(self.costs)} costs; got {len(inputs)} outputs and {len(targets)} targets"
            )
        return list(zip(self.costs, self.weights, inputs, targets, strict=False))

    def get_cost(self, inputs: Any, targets: Any) -> Any:
        """Return the sum of the weighted mean costs, (1, 1) on the host; also kept as ``cost``."""
        each = [w * cost.get_cost(y, t) for cost, w, y, t in self.judged(inputs, targets) if t is not None]
        if not each:
            raise ValueError(f"{self.name}: all targets are None, so there is nothing to judge")
        self.cost = sum(each[1:], each[0])
        return self.cost

    def get_errors(self, inputs: Any, targets: Any) -> list[Any]:
        """Return a list of the derivatives of the sum: the errors with which a Tree's ``bprop`` begins."""
        errors = []
        for cost, weight, y, t in self.judged(inputs, targets):
            if t is None:
                cost.check()
                errors.append(cost.deltas.fill(0))
                continue
            error = cost.get_errors(y, t)
            if weight != 1:
                error[:] = weight * error
            errors.append(error)
        return errors

    def blank_targets(self) -> list[Any]:
        """Return targets that fit the network, of zeros."""
        return [cost.blank_targets() for cost in self.costs]


class GeneralizedGANCost(GeneralizedCost):
    """The mean of a ``GANCost`` over the columns of a discriminator's outputs, and its three derivatives."""

    def get_cost(self, inputs: Any, targets: Any, cost_type: str | None = None) -> Any:
        """Return the mean cost, (1, 1) on the host, of the outputs for data and for noise; also kept as ``cost``.

        ``cost_type``: "dis" or "gen", as the cost was made unless given.
        """
        self.check()
        self.outputs[:] = self.named(self.costfunc, inputs, targets, cost_type)
        self.cost = self.be.mean(self.outputs, axis=1).asnumpyarray()
        return self.cost

    def get_errors(self, inputs: Any, targets: Any) -> Any:
        """Return the derivative by the outputs for what ``targets`` names: "data", "noise" or "generator".

        The last is that of the generator's cost, by the discriminator's outputs for noise.
        """
        self.check()
        if targets not in ("data", "noise", "generator"):
            raise ValueError(f"{self.name}: the errors are those of 'data', 'noise' or 'generator'; got {targets!r}")
        self.tell(self.shortcut)  # another cost may have been at work on this network since
        self.deltas[:] = self.named(getattr(self.costfunc, f"bprop_{targets}"), inputs)
        return self.deltas
