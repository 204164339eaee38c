"""Data parallel training: each process trains on a part of every minibatch, and gradients are summed.

All processes start with the weights, the random streams and the progress of rank 0, and update equal weights with equal
gradients. So everything but the parts of the minibatches is the same on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import Tensor, concurrency
from neonlite.backend.batch_size import RemoteStates, Shard
from neonlite.data.iterator import ResumableIterator
from neonlite.distributed.optimizer import GradientReducer, backend_settings, check_same, differ, without_names
from neonlite.layers.parameter import ParameterLayer
from neonlite.layers.weights import parameter_states
from neonlite.messages import describe
from neonlite.models.base import ModelBase
from neonlite.optimizers import Optimizer, get_param_list
from neonlite.optimizers.optimizer import merge_contiguous, sort_by_address

ROUNDING = 1e-6  # relative difference of the norms of weights


class DataParallel:
    """The data parallel training of a model within ``fit``.

    Parameters
    ----------
    model : Model
        The model, initialized.
    dataset : ResumableIterator
        The training set.
    shard : Shard
        The columns of a minibatch that this process computes.
    num_epochs : int
        The argument of ``fit``.
    interrupt : DeferredInterrupt
        Receives signals.
    """

    def __init__(
        self, model: ModelBase, dataset: Any, shard: Shard, num_epochs: int, interrupt: concurrency.DeferredInterrupt
    ) -> None:
        self.model, self.be, self.shard, self.interrupt = model, model.be, shard, interrupt
        self.communicator = shard.communicator
        self.finished = False  # whether a callback of any process has ended training
        if not isinstance(dataset, ResumableIterator):
            raise TypeError(
                f"{model.name}.fit: distributed: expected an iterator that can yield the columns of one process, such "
                f"as ArrayIterator or another ResumableIterator, got {describe(dataset)}."
            )
        for layer in model.layers.leaves():
            if layer.parallelism == "Model":
                raise ValueError(
                    f"{layer.name}: expected parallelism 'Data' or 'Disabled' for a distributed fit, got 'Model', "
                    "which splits the weights of a layer."
                )
            if getattr(layer, "sync", False):  # a BatchNorm, whose passes communicate
                model.cuda_graphs = False
                if dataset.partial_last and 0 < dataset.ndata % shard.total < self.communicator.size:
                    raise ValueError(
                        f"{layer.name}: sync: expected a row for each of {self.communicator.size} processes in every "
                        f"minibatch, got {dataset.ndata % shard.total} in the last one. Use partial_last=False."
                    )
        self.running = running_statistics(model.layers.leaves())
        self.shards_states = bool(self.communicator.shard_states)
        self.check_settings(dataset, num_epochs)
        self.broadcast(dataset)
        overlap = self.communicator.overlap and (self.be.graphs is None or not model.cuda_graphs)
        self.reducer = GradientReducer(self.communicator, model.layers, bool(self.be.deterministic), overlap)

    # --- the start ---

    def check_settings(self, dataset: Any, num_epochs: int) -> None:
        """Raise ValueError on every process if they differ, with the ranks and the difference."""
        model = self.model
        config = {k: v for k, v in dataset.get_state().items() if k not in ("epoch", "start", "minibatch", "seed")}
        encoders = ("preprocessing", "input_encoder", "target_encoder")
        settings = {
            **backend_settings(self.be, self.communicator),
            "the parameters": [(w.shape, num_states(w)) for (w, _), _ in parameters_with_states(model)],
            "the layers": description_of(model.layers),
            "the layers that are trained": [layer.name for layer in model.layers_to_optimize],
            "the data": {"type": dataset.classnm, **config},
            "the encoding of the data": {name: description_of(getattr(dataset, name, None)) for name in encoders},
            "the optimizer": description_of(model.optimizer),
            "the cost": description_of(model.cost),
            "the number of epochs": num_epochs,
            "accumulate": model.accumulate,
            "the callbacks without rank_0_only": [
                describe_callback(x) for x in getattr(model.callbacks, "callbacks", ()) if not x.rank_0_only
            ],
        }
        check_same(self.communicator, f"{model.name}.fit", settings)

    def broadcast(self, dataset: Any) -> None:
        """Set weights, optimizer states, random streams, and the positions in data and training to those of rank 0."""
        model, communicator = self.model, self.communicator
        progress = {name: getattr(model, name) for name in model.progress_fields}
        optimizer, parameters = model.optimizer, parameters_with_states(model)
        updates = [w.updates for (w, _), _ in parameters]
        sums = [x.get() for x in model.gradient_sums] if model.accumulated_rows else []
        common = (self.be.rng_get_state(), progress, optimizer.get_state(), dataset.get_state(), updates, sums)
        common = communicator.broadcast_object(common)
        self.be.rng_set_state(common[0])
        vars(model).update(common[1])
        optimizer.set_state(common[2])
        dataset.set_state(common[3])
        model.gradient_sums = [self.be.array(x, dtype=x.dtype.name) for x in common[5]]
        for ((w, _), _), updates_of_w in zip(parameters, common[4], strict=True):
            w.updates = updates_of_w
            communicator.broadcast(w)
        self.place_states(parameters)
        for tensor in self.running:
            communicator.broadcast(tensor)
        for layer in model.layers.leaves():  # of a checkpoint: the states of all processes
            states = layer.get_state()
            if states and {x.shape[1] for x in states.values()} == {self.shard.total}:
                columns = slice(self.shard.start, self.shard.stop)
                layer.set_state({name: x[:, columns] for name, x in states.items()})

    # --- the optimizer states, with ``world().shard_states`` those of a part of the parameters ---

    def place_states(self, parameters: list[Any]) -> None:
        """Set the optimizer states to those of rank 0, or to those of the rank that has them; keep those of this rank.

        Parameters
        ----------
        parameters : list of ((W, dW), states)
            All parameters.
        """
        communicator, rank = self.communicator, self.communicator.rank
        remote = np.array([isinstance(w.states, RemoteStates) for (w, _), _ in parameters], np.uint8)
        everywhere = communicator.all_gather(remote)
        sources = everywhere.argmin(axis=0)  # the first rank with the states
        if self.shards_states:
            self.model.optimizer._programs.clear()  # which have the states of all parameters
        trained = {id(w) for (w, _), _ in get_param_list(self.model.layers_to_optimize)}
        sizes = [w.size if id(w) in trained else 0 for (w, _), _ in parameters]
        owners = owners_of(sizes, communicator.size if self.shards_states else 1)
        self.owners = {id(w): owner for ((w, _), _), owner in zip(parameters, owners, strict=True)}
        self.shared: tuple[Any, list[tuple[Tensor, int]]] = None, []  # the plan, and the buffers of each rank's part
        ranks = np.arange(communicator.size)
        for ((w, _), states), source, owner, flags in zip(
            parameters, sources.tolist(), owners, everywhere.T, strict=True
        ):
            if self.shards_states and (flags == (ranks != owner)).all():  # as in the last fit
                continue
            if not self.shards_states and not remote.any() and not source:
                for tensor in states:
                    communicator.broadcast(tensor)
                continue
            arrays = communicator.broadcast_object([t.get() for t in states], source)
            if self.shards_states and owner != rank and w.states is states:  # else the list of a custom layer
                w.states = cast(list[Tensor], RemoteStates())
                continue
            if isinstance(states, RemoteStates):
                w.states = states = []
            states[:] = [self.be.array(x, dtype=x.dtype.name) for x in arrays]

    def share_weights(self) -> None:
        """Send the weights that this rank has updated, and receive the others, after an update with sharded states."""
        if not self.shards_states:
            return
        plan, buffers = self.shared
        if plan is not self.reducer.buckets:  # which changes with the layers that are trained
            weights = sort_by_address([(w,) for (w, _), _ in get_param_list(self.model.layers_to_optimize)])
            buffers = [
                (row[0], rank)
                for rank in range(self.communicator.size)
                for row in merge_contiguous([(w,) for (w,) in weights if self.owners[id(w)] == rank])
            ]
            self.shared = self.reducer.buckets, buffers
        self.communicator.broadcast_parts(buffers)

    def gather_optimizer_states(self, w: Tensor, states: Sequence[Tensor]) -> list[NDArray[Any]]:
        """Return the optimizer states of a parameter, from the rank that has them.

        Parameters
        ----------
        w : Tensor
            The parameter.
        states : sequence of Tensor
            Its states in this process.
        """
        return self.communicator.broadcast_object([t.get() for t in states], self.owners[id(w)])

    # --- a step ---

    @property
    def minibatch_shard(self) -> Shard:
        """The columns of the current minibatch that this process computes."""
        return cast(Shard, self.be.minibatch_shard)

    @property
    def has_no_columns(self) -> bool:
        """Whether the current minibatch is partial, with fewer columns than there are processes, and none of this."""
        return self.minibatch_shard.start == self.minibatch_shard.stop

    def zero_gradients(self) -> None:
        """Set all gradients to zero, for a minibatch without a column for this process."""
        for (_, dw), _ in get_param_list(self.model.layers_to_optimize):
            dw[:] = 0

    def reduce(self, cost: float) -> float:
        """Sum the gradients over all processes; return the mean cost of the minibatch.

        The running statistics of batch normalization become the means over all processes. Whether a callback or a
        signal ends training is agreed on here, so that all processes end after the same step.

        Parameters
        ----------
        cost : float
            The mean cost of the columns of this process.
        """
        self.reducer.reduce()
        if self.minibatch_shard.total < self.shard.total:  # a process without columns has drawn no random numbers
            last = self.communicator.size - 1  # has columns: its part is the end of the minibatch
            self.be.rng_set_state(self.communicator.broadcast_object(self.be.rng_get_state(), last))
        n = self.minibatch_shard.stop - self.minibatch_shard.start
        flags = [self.model.finished, *(number == self.interrupt.pending_signal for number in concurrency.ENDING)]
        with self.communicator.monitor.waiting("all_reduce"):  # for the sums on a GPU
            running = [tensor.get().reshape(-1) for tensor in self.running]
        # with 0 columns, cost and statistics may be NaN
        weighted = n * np.concatenate([[cost], *running]) if n else np.zeros(1 + sum(x.size for x in running))
        message = self.communicator.all_reduce(np.concatenate([flags, weighted]), bool(self.be.deterministic))
        counts, (mean_cost, *means) = message[: len(flags)], message[len(flags) :] / self.minibatch_shard.total
        self.finished = counts[0] > 0
        for number, count in zip(concurrency.ENDING, counts[1:], strict=True):
            if count:
                self.interrupt.agree_on(number)
        for tensor in self.running:
            values, means = means[: tensor.size], means[tensor.size :]
            tensor[:] = np.reshape(values, tensor.shape)
        position = f"epoch {self.model.epoch_index + 1}, step {self.model.minibatch_index + 1}"
        self.communicator.monitor.position = position
        return float(mean_cost)

    def check_before_epoch(self) -> None:
        """Check that callbacks have changed all ranks alike, and agree on whether one of them has ended training."""
        self.check_equal()
        flag = np.array([float(self.model.finished)])
        self.finished = bool(self.communicator.all_reduce(flag)[0])

    def check_equal(self) -> None:
        """Raise RuntimeError on all ranks if their optimizers, or the norms of their weights, differ."""
        model = self.model
        norms = [float(np.linalg.norm(w.get().astype(float))) for (w, _), _ in parameters_with_states(model)]
        state = {"optimizer": description_of(model.optimizer), **model.optimizer.get_state()}
        everywhere = self.communicator.all_gather_objects((norms, state))
        ranks = [
            rank
            for rank, (values, other) in enumerate(everywhere)
            if not np.allclose(values, everywhere[0][0], ROUNDING, 0, equal_nan=True) or differ(other, everywhere[0][1])
        ]
        if ranks:
            raise RuntimeError(
                f"{model.name}.fit: expected the weights and the optimizer of rank 0 on all processes before epoch "
                f"{model.epoch_index + 1}, got others on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}. A "
                "callback that changes the model or the optimizer must do so on all ranks: without rank_0_only."
            )

    def gather_states(self, states: list[dict[str, NDArray[Any]]]) -> list[dict[str, NDArray[Any]]]:
        """Return the recurrent states of layers, with the columns of all processes in the order of the ranks.

        A state of one process may be empty, for zeros, where that of another is not.
        """
        ranks = self.communicator.all_gather_objects((states, self.be.bsz))
        gathered = []
        for i in range(len(states)):
            parts = [(of_rank[i], n) for of_rank, n in ranks]
            like: dict[str, NDArray[Any]] = next((state for state, _ in parts if state), {})
            gathered.append(
                {
                    name: np.concatenate([s[name] if s else np.zeros((len(x), n), x.dtype) for s, n in parts], axis=1)
                    for name, x in like.items()
                }
            )
        return gathered

    def close(self) -> None:
        """End the thread that sums gradients."""
        self.reducer.close()


def owners_of(sizes: Sequence[int], n: int) -> list[int]:
    """Return the rank, of n, that updates each parameter: parts of about equal sizes, each of adjacent parameters.

    >>> owners_of([60, 4, 30, 6], 2)
    [0, 1, 1, 1]
    """
    middles, total = np.cumsum(sizes) - np.array(sizes) / 2, max(sum(sizes), 1)
    return [min(int(middle * n / total), n - 1) for middle in middles]


def num_states(w: Tensor) -> int:
    """Return the number of optimizer states of a parameter, on the rank that has them."""
    if not isinstance(w.states, RemoteStates):
        return len(w.states or ())
    return 0 if w.updates is None else len(Optimizer.names_of_states(w.updates[0]))


def description_of(x: Any) -> Any:
    """Return the description of an object without names."""
    return without_names(x.get_description()) if hasattr(x, "get_description") else describe(x)


def describe_callback(callback: Any) -> list[Any]:
    """Return what the evaluation of a callback depends on: its class, its metric, and the rows that it evaluates."""
    metric = description_of(callback.metric) if hasattr(callback, "metric") else None
    return [callback.classnm, metric, getattr(getattr(callback, "eval_set", None), "ndata", None)]


def running_statistics(layers: Sequence[Any]) -> list[Tensor]:
    """Return the tensors besides parameters that checkpoints store, such as running means."""
    result = []
    for layer in layers:
        names = dict(layer.parameter_names) if isinstance(layer, ParameterLayer) else {}
        result += [tensor for name, tensor in layer.persistent_tensors.items() if name not in names]
    return result


def parameters_with_states(model: ModelBase) -> list[Any]:
    """Return ((W, dW), states) for each parameter of a model, also of layers that are not trained."""
    layers = model.layers.leaves()
    return [pair for layer in layers if layer.has_params for pair in parameter_states(layer)]
