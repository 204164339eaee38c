"""Distributed: an optimizer that sums gradients over all processes, for a custom training loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neonlite.backend.shard import Shard, use_shard
from neonlite.backend.validation import checked_dataclass
from neonlite.distributed.communicator import Communicator, world
from neonlite.distributed.gradients import merge_adjacent
from neonlite.distributed.settings import backend_settings, check_same
from neonlite.optimizers import Optimizer
from neonlite.optimizers.optimizer import pass_last_write
from neonlite.optimizers.rules import OptimizerWrapper

if TYPE_CHECKING:
    from neonlite.backend import Tensor
    from neonlite.layers import Layer


@checked_dataclass
class Distributed(OptimizerWrapper):
    """Wrap an optimizer: gradients are summed over all processes, and divided by the batch size of all together.

    ``Model.fit(..., distributed=True)`` needs no wrapper. In a custom training loop, create the network with the same
    ``rng_seed`` on all processes, or copy the weights of rank 0 by ``world().broadcast(w)``.

    Parameters
    ----------
    optimizer : Optimizer or str
        The optimizer, or its name such as "adam".
    name : str, optional
        Name; default: the class name and a counter.

    Raises
    ------
    TypeError
        If ``optimizer`` is not an optimizer.
    ValueError
        In the first ``optimize``, if the versions, runtimes, weights or optimizers of the processes differ.

    Examples
    --------
    >>> from neonlite.distributed import Distributed
    >>> from neonlite.optimizers import Adam
    >>> optimizer = Distributed(Adam(0.001))
    """

    optimizer: Optimizer | str  # an Optimizer; the constructor also accepts its name
    name: str | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.has_checked_weights = False

    @property
    def learning_rate(self) -> float:
        """The learning rate of the wrapped optimizer."""
        return self.wrapped.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.wrapped.learning_rate = value

    def scale_errors(self, errors: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
        """Multiply errors by the scale of a ``LossScaling``; return those of another optimizer unchanged.

        Parameters
        ----------
        errors : Tensor or list of Tensor
            The errors of a cost.
        """
        scale = getattr(self.optimizer, "scale_errors", None)
        return errors if scale is None else scale(errors)

    def optimize(self, layer_list: Iterable[Layer], epoch: float) -> None:
        layers, communicator = list(layer_list), world()
        pass_last_write(self, self.wrapped)
        if not layers or communicator.size == 1:
            return self.wrapped.optimize(layers, epoch)
        be = layers[0].be
        if not self.has_checked_weights:
            check_equal(communicator, self.wrapped, layers)
            self.has_checked_weights = True
        for buffer in merge_adjacent(layers):
            communicator.all_reduce(buffer, bool(be.deterministic))
        shard = be.minibatch_shard
        if shard is None:
            total = communicator.all_reduce(np.array([be.bsz]))[0]
            shard = Shard(0, be.bsz, int(total), communicator)
        with use_shard(be, shard):
            self.wrapped.optimize(layers, epoch)

    def get_state(self) -> dict[str, Any]:
        return self.wrapped.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self.wrapped.set_state(state)


def check_equal(communicator: Communicator, optimizer: Optimizer, layers: Sequence[Layer]) -> None:
    """Raise ValueError on all processes if their versions, runtimes, optimizers or weights differ."""
    import zlib

    check_same(communicator, "Distributed", backend_settings(layers[0].be))
    others = communicator.all_gather_objects(str({**optimizer.get_description()["config"], "name": ""}))
    if ranks := [rank for rank, other in enumerate(others) if other != others[0]]:
        raise ValueError(
            f"Distributed: expected the optimizer of rank 0 on all processes, got others on rank "
            f"{', '.join(map(str, ranks))}: {others[0]} and {others[ranks[0]]}."
        )

    weights = [w for layer in layers for w in layer.parameters]
    checksums = [(w.shape, zlib.crc32(w.get().tobytes())) for w in weights]
    everywhere = communicator.all_gather_objects(checksums)
    if ranks := [rank for rank, other in enumerate(everywhere) if other != everywhere[0]]:
        raise ValueError(
            f"Distributed: expected the weights of rank 0 on all processes, got others on rank "
            f"{', '.join(map(str, ranks))}. Create the network after gen_backend(rng_seed=0), or copy the weights: "
            "for w in net.parameters: world().broadcast(w)."
        )
