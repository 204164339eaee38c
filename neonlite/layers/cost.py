"""How does a network know what to learn?  A cost at its end, whose derivative is the first error."""

from __future__ import annotations

from typing import Any

from neonlite.backend import NervanaObject
from neonlite.layers.layer import columns, features


class GeneralizedCost(NervanaObject):
    """The mean of a cost over the columns of outputs, and its derivative.

    Where the last layer's activation is the one that the cost is paired with, both together have a simple derivative:
    the cost gives that of the activation's inputs, and the activation lets it through.
    """

    def __init__(self, costfunc: Any, name: str | None = None) -> None:
        super().__init__(name)
        self.costfunc = costfunc
        self.outputs: Any = None
        self.deltas: Any = None
        self.cost: Any = None
        self.last: Any = None
        self.shortcut = False

    def initialize(self, in_obj: Any) -> None:
        """Take the network, a configured layer or container, whose outputs are to be judged; make the buffers."""
        self.be = self.costfunc.be = in_obj.be
        shape, pair = in_obj.out_shape, getattr(self.costfunc, "pairs_with", None)
        if shape is None:
            raise RuntimeError(f"{self.name}: {in_obj.name} has no shapes yet: call its configure(shape) first")
        self.last = in_obj.get_terminal()
        transform = getattr(self.last, "transform", None)
        # a softmax along the columns is none that the cost knows
        self.shortcut = pair is not None and isinstance(transform, pair) and getattr(transform, "axis", 0) == 0
        self.outputs = self.be.iobuf((1, columns(shape)), name=f"{self.name}.outputs")
        self.deltas = self.be.iobuf((features(shape), columns(shape)), name=f"{self.name}.deltas")
        self.tell()

    def tell(self) -> None:
        """Tell the last layer what the errors that it will get are: those of its outputs, or already of its inputs."""
        if hasattr(self.last, "shortcut"):
            self.last.shortcut = self.shortcut

    def check(self) -> None:
        """Raise RuntimeError unless there are buffers."""
        if self.deltas is None:
            raise RuntimeError(f"{self.name}: it has no buffers yet: call initialize(network) first")

    def get_cost(self, inputs: Any, targets: Any) -> Any:
        """Return the mean cost of a column, (1, 1) on the host; also kept as ``cost``."""
        self.check()
        self.outputs[:] = self.costfunc(inputs, targets)
        self.cost = self.be.mean(self.outputs, axis=1).asnumpyarray()
        return self.cost

    def get_errors(self, inputs: Any, targets: Any) -> Any:
        """Return the derivative of the cost of each column: the error with which ``bprop`` begins."""
        self.check()
        self.tell()  # another cost may have been at work on this network since
        derivative = self.costfunc.bprop if self.shortcut else self.costfunc.backward
        self.deltas[:] = derivative(inputs, targets)
        return self.deltas
