"""GradientReducer: sum the gradients of a network over all processes, also while the backward pass is running."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from neonlite.distributed.communicator import Communicator, MPICommunicator
from neonlite.layers import Sequential
from neonlite.optimizers.optimizer import get_param_list, merge_contiguous, sort_by_address

if TYPE_CHECKING:
    from neonlite.backend import Tensor
    from neonlite.layers import Layer, LayerContainer
    from neonlite.layers.parameter import Parameter

BUCKET_BYTES = 4 << 20  # of gradients that are summed at once during the backward pass


class GradientReducer:
    """Sums the gradients of a network over all processes.

    Gradients that are adjacent in memory, as those of a network are, are one buffer and one message. With ``overlap``,
    they are split into buckets of a few MB. A second thread sums a bucket as soon as the backward pass has computed it,
    from the last layer to the first.

    Parameters
    ----------
    communicator : Communicator
        Connects the processes.
    network : LayerContainer
        The network. Only that of a Sequential is split into buckets.
    deterministic : bool
        Whether to sum in the order of the ranks.
    overlap : bool
        Whether to sum during the backward pass.
    bucket_bytes : int
        The size of a bucket.
    """

    def __init__(
        self,
        communicator: Communicator,
        network: LayerContainer,
        deterministic: bool = False,
        overlap: bool = False,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.communicator, self.deterministic = communicator, deterministic
        self.thread: ThreadPoolExecutor | None = None
        self.thread_communicator = communicator
        self.network, self.limit = network, bucket_bytes if overlap else 0
        # buckets in the order in which the backward pass completes them: (their last layer in that order, its buffers)
        self.buckets: list[tuple[Layer, list[Tensor]]] = []
        self.plan()
        if len(self.buckets) > 1 and isinstance(communicator, MPICommunicator):
            self.thread = ThreadPoolExecutor(1, "neonlite-reduce")
            self.thread_communicator = communicator.duplicate()
        self.network.gradient_reducer = self
        self.futures: list[Future[None]] = []  # of the buckets of this step that the thread has

    def plan(self) -> None:
        """Divide the gradients of the parameters that are trained into buckets."""
        self.buckets = []
        group: list[Layer] = []
        for layer in reversed(self.network.layers if isinstance(self.network, Sequential) else [self.network]):
            group.append(layer)
            if self.limit and sum(dw.nbytes for (_, dw), _ in trainable_parameters(group)) >= self.limit:
                self.buckets.append((layer, merge_adjacent(group)))
                group = []
        if group:
            self.buckets.append((group[-1], merge_adjacent(group)))

    def layer_done(self, layer: Layer) -> None:
        """Start to sum the bucket that the gradients of a layer complete, if there is one.

        Parameters
        ----------
        layer : Layer
            A layer whose ``bprop`` has ended.
        """
        if self.thread is not None and len(self.futures) < len(self.buckets):
            last, buffers = self.buckets[len(self.futures)]
            if last is layer:
                self.futures.append(self.thread.submit(self._sum, buffers))

    def reduce(self) -> None:
        """Sum all gradients of this step that are not summed yet, and wait for the others."""
        if self.thread is None:
            for _, buffers in self.buckets:
                self._sum(buffers)
            return
        for _, buffers in self.buckets[len(self.futures) :]:
            self.futures.append(self.thread.submit(self._sum, buffers))
        futures, self.futures = self.futures, []
        with self.communicator.monitor.waiting("all_reduce"):
            for future in futures:
                future.result()

    def _sum(self, buffers: list[Tensor]) -> None:
        for buffer in buffers:
            self.thread_communicator.all_reduce(buffer, self.deterministic)

    def close(self) -> None:
        """End the thread."""
        self.network.gradient_reducer = None
        if self.thread is not None:
            self.thread.shutdown()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()  # a copy of the network has no reducer


def trainable_parameters(layers: Sequence[Layer]) -> list[Parameter]:
    """Return the parameters that optimizers update, of layers and containers."""
    leaves = [leaf for layer in layers for leaf in layer.leaves()]
    return get_param_list([leaf for leaf in leaves if leaf.trains_parameters])


def merge_adjacent(layers: Sequence[Layer]) -> list[Tensor]:
    """Return the gradients of layers, those that are adjacent in memory as one column (size, 1)."""
    parameters = trainable_parameters(layers)
    return [rows[0] for rows in merge_contiguous([(dw,) for (_, dw), _ in sort_by_address(parameters)])]
