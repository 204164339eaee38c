"""Data-parallel training: compare settings, sum gradients over all processes, and an optimizer for custom loops."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from neonlite.backend import Backend, Tensor, batch_size, validation
from neonlite.distributed.communicator import Communicator, MPICommunicator, world
from neonlite.layers import Sequential
from neonlite.optimizers import Optimizer, wrappers
from neonlite.optimizers.optimizer import Settings, get_param_list, merge_contiguous, pass_last_write, sort_by_address
from neonlite.optree import Operand
from neonlite.tree_structure import refuse_in_trace
from neonlite.version import __version__

if TYPE_CHECKING:
    from neonlite.layers import Layer, LayerContainer
    from neonlite.layers.parameter import Parameter


def backend_settings(be: Backend, communicator: Communicator) -> dict[str, Any]:
    """Return the settings on which the bits of an update depend: all processes must have the same."""
    return {
        "the version of neonlite": __version__,
        "the version of Python": platform.python_version(),
        "the version of NumPy": np.__version__,
        "the runtime": be.runtime.name,
        "the dtype": be.default_dtype_name,
        "deterministic": be.deterministic,
        "compress_gradients": communicator.compress_gradients,
        "shard_states": communicator.shard_states,
    }


def check_same(communicator: Communicator, where: str, settings: dict[str, Any]) -> None:
    """Raise ValueError on every process if their settings differ, with the ranks and the first difference.

    Parameters
    ----------
    communicator : Communicator
        Connects the processes.
    where : str
        The function of the error.
    settings : dict
        By their names for the error; nested lists and dicts of values.
    """
    everywhere = communicator.all_gather_objects(settings)
    for name in settings:
        values = [other[name] for other in everywhere]
        if ranks := [rank for rank, value in enumerate(values) if differ(value, values[0])]:
            part, first, other = first_difference(values[0], values[ranks[0]])
            raise ValueError(
                f"{where}: expected {name} to be the same on all processes, got {part}{first} on rank 0 and {other} on "
                f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}."
            )


def differ(x: Any, y: Any) -> bool:
    """Return whether two nested values differ; 1 and "1" do, the order of the keys of a dict does not matter."""
    if isinstance(x, dict) and isinstance(y, dict):
        return x.keys() != y.keys() or any(differ(x[key], y[key]) for key in x)
    if isinstance(x, list) and isinstance(y, list):
        return len(x) != len(y) or any(map(differ, x, y))
    return repr(x) != repr(y)


def first_difference(x: Any, y: Any, path: str = "") -> tuple[str, object, object]:
    """Return the first elements in which nested values differ, after their keys, as in "config.rho = "."""
    pairs: list[tuple[object, Any, Any]] = []
    if isinstance(x, dict) and isinstance(y, dict) and x.keys() == y.keys():
        pairs = [(key, x[key], y[key]) for key in x]
    elif isinstance(x, list) and isinstance(y, list) and len(x) == len(y):
        pairs = [(i, *pair) for i, pair in enumerate(zip(x, y, strict=True))]
    for key, a, b in pairs:
        if differ(a, b):
            return first_difference(a, b, f"{path}.{key}" if path else str(key))
    is_ambiguous = str(x) == str(y)  # such as 1 and "1"
    return f"{path} = " if path else "", repr(x) if is_ambiguous else x, repr(y) if is_ambiguous else y


def without_names(description: Any) -> Any:
    """Return a description without names: the default ones have counters, which may differ between processes."""
    if isinstance(description, dict):
        return {key: without_names(x) for key, x in description.items() if key != "name"}
    return [without_names(x) for x in description] if isinstance(description, list | tuple) else description


# --- gradientReducer: sum the gradients of a network over all processes, also while the backward pass is running ---

BUCKET_BYTES = 4 << 20  # of gradients that are summed at once during the backward pass
GPU_BUCKET_BYTES = 25 << 20


class GradientReducer:
    """Sums the gradients of a network over all processes.

    Gradients that are adjacent in memory, as those of a network are, are one buffer and one message. With ``overlap``,
    they are split into buckets of a few MB, on GPUs of 25 MB. A second thread, or NCCL on its stream, sums a bucket as
    soon as the backward pass has computed it, from the last layer to the first.

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
    bucket_bytes : int, optional
        The size of a bucket. Default: 4 MB, on GPUs 25 MB.
    """

    def __init__(
        self,
        communicator: Communicator,
        network: LayerContainer,
        deterministic: bool = False,
        overlap: bool = False,
        bucket_bytes: int | None = None,
    ) -> None:
        self.communicator, self.deterministic = communicator, deterministic
        self.thread: ThreadPoolExecutor | None = None
        self.thread_communicator = communicator
        gradients = [dw for (_, dw), _ in trainable_parameters([network])]
        self.is_asynchronous = not communicator.compress_gradients and all(map(communicator.is_asynchronous, gradients))
        if bucket_bytes is None:
            bucket_bytes = GPU_BUCKET_BYTES if self.is_asynchronous else BUCKET_BYTES
        self.network, self.limit = network, bucket_bytes if overlap else 0
        # buckets in the order in which the backward pass completes them: (their last layer in that order, its buffers)
        self.buckets: list[tuple[Layer, list[Tensor]]] = []
        self.plan()
        self.sums_during_backward = len(self.buckets) > 1
        if self.sums_during_backward and not self.is_asynchronous and isinstance(communicator, MPICommunicator):
            self.thread = ThreadPoolExecutor(1, "neonlite-reduce")
            self.thread_communicator = communicator.duplicate()
        self.network.gradient_reducer = self
        self.num_started = 0  # buckets of this step
        self.futures: list[Future[None]] = []  # of those that the thread has

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
        if self.sums_during_backward and self.num_started < len(self.buckets):
            last, buffers = self.buckets[self.num_started]
            if last is layer:
                self._start(buffers)

    def reduce(self) -> None:
        """Sum all gradients of this step that are not summed yet, and wait for the others; a GPU waits itself."""
        for _, buffers in self.buckets[self.num_started :]:
            self._start(buffers)
        futures, self.futures, self.num_started = self.futures, [], 0
        with self.communicator.monitor.waiting("all_reduce"):
            for future in futures:
                future.result()
        self.communicator.finish_sums()

    def _start(self, buffers: list[Tensor]) -> None:
        """Sum the buffers of a bucket: now, or on the thread or the stream for it."""
        self.num_started += 1
        if self.thread is not None:
            self.futures.append(self.thread.submit(self._sum, buffers))
        else:
            self._sum(buffers)

    def _sum(self, buffers: list[Tensor]) -> None:
        for buffer in buffers:
            self.thread_communicator.start_sum(buffer, self.deterministic)

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
    pairs = sort_by_address([pair for pair, _ in trainable_parameters(layers)])
    return [rows[0] for rows in merge_contiguous([(dw,) for _, dw in pairs])]


# --- distributed: an optimizer that sums gradients over all processes, for a custom training loop ---


@validation.checked_dataclass
class Distributed(wrappers.OptimizerWrapper):
    """Wrap an optimizer: gradients are summed over all processes, and divided by the batch size of all together.

    ``Model.fit(..., distributed=True)`` needs no wrapper. In a custom training loop, create the network with the same
    ``rng_seed`` on all processes, or copy the weights of rank 0 by ``world().broadcast(w)``. ``step`` adds up the
    gradients of all processes, and divides them by nothing.

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

    def optimize(self, layer_list: Iterable[Layer], epoch: float = 0) -> None:
        layers, communicator = list(layer_list), world()
        pass_last_write(self, self.wrapped)
        if not layers or communicator.size == 1:
            return self.wrapped.optimize(layers, epoch)
        be = layers[0].be
        self._check_weights(communicator, [w for layer in layers for w in layer.parameters])
        for buffer in merge_adjacent(layers):
            communicator.sum_gradients(buffer, bool(be.deterministic))
        shard = be.minibatch_shard
        if shard is None:
            total = communicator.all_reduce(np.array([be.bsz]))[0]
            shard = batch_size.Shard(0, be.bsz, int(total), communicator)
        with batch_size.use_shard(be, shard):
            self.wrapped.optimize(layers, epoch)

    def _check_weights(self, communicator: Communicator, weights: Sequence[Tensor]) -> None:
        """Compare the weights of the processes, in the first step only."""
        if not self.has_checked_weights:
            check_equal(communicator, self.wrapped, weights)
            self.has_checked_weights = True

    def _step_by(self, parameters: Sequence[Tensor], gradients: Sequence[Operand], epoch: float) -> None:
        communicator, be = world(), parameters[0].backend
        if communicator.size > 1:
            refuse_in_trace("Distributed.step in several processes", "Call it outside of the compiled function")
            self._check_weights(communicator, parameters)
            gradients = sums = be.evaluate([g * 1 for g in gradients])
            for g in sums:
                communicator.sum_gradients(g, bool(be.deterministic))
        super()._step_by(parameters, gradients, epoch)

    def _make_steps(self, parameters: Sequence[Tensor], gradients: Sequence[Operand], settings: Settings) -> list[Any]:
        return self.wrapped._make_steps(parameters, gradients, settings)

    def get_state(self) -> dict[str, Any]:
        return self.wrapped.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self.wrapped.set_state(state)


def check_equal(communicator: Communicator, optimizer: Optimizer, weights: Sequence[Tensor]) -> None:
    """Raise ValueError on all processes if their versions, runtimes, optimizers or weights differ."""
    import zlib

    be = cast("Backend", weights[0].backend)
    check_same(communicator, "Distributed", backend_settings(be, communicator))
    others = communicator.all_gather_objects(str(without_names(optimizer.get_description()["config"])))
    if ranks := [rank for rank, other in enumerate(others) if other != others[0]]:
        raise ValueError(
            f"Distributed: expected the optimizer of rank 0 on all processes, got others on rank "
            f"{', '.join(map(str, ranks))}: {others[0]} and {others[ranks[0]]}."
        )

    checksums = [(w.shape, zlib.crc32(w.get().tobytes())) for w in weights]
    everywhere = communicator.all_gather_objects(checksums)
    if ranks := [rank for rank, other in enumerate(everywhere) if other != everywhere[0]]:
        raise ValueError(
            f"Distributed: expected the weights of rank 0 on all processes, got others on rank "
            f"{', '.join(map(str, ranks))}. Create the network after gen_backend(rng_seed=0), or copy the weights: "
            "for w in net.parameters: world().broadcast(w)."
        )
