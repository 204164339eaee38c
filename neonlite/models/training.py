"""Training: the loop of ``Model.fit`` over epochs and minibatches, the training step, and a diagnosis of NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from neonlite import tree_structure, typing
from neonlite.backend import Block, Tensor, objects
from neonlite.backend.batch_size import RemoteStates, Shard, global_batch_size, use_shard
from neonlite.backend.concurrency import DeferredInterrupt
from neonlite.backend.transaction import Snapshot, atomic, on_failure, restore_on_failure
from neonlite.backend.validation import from_name, integer, warn, with_attributes
from neonlite.callbacks import CallbackBase, Callbacks
from neonlite.callbacks.callback import check_dataset
from neonlite.data import ArrayIterator, NervanaDataIterator, Text
from neonlite.initializers import compute_dtype
from neonlite.layers import BatchNorm, GeneralizedCost, Multicost, buffers, inference, linear
from neonlite.layers.weights import parameter_states
from neonlite.messages import describe, wording
from neonlite.models import base, data_parallel, training_data
from neonlite.optimizers import LossScaling, Optimizer, get_param_list, rules, schedule, wrappers
from neonlite.optimizers.optimizer import last_writer
from neonlite.optree import Operand
from neonlite.programs import Jit, jit
from neonlite.transforms import Cost, functions


def train_epochs(
    model: TrainingMethods, dataset: Any, callbacks: CallbackBase, num_epochs: int, interrupt: DeferredInterrupt
) -> bool:
    """Train the remaining epochs; return False if a callback ended training within one."""
    model.program = model.program or GradientProgram(model)
    model.program.is_active = True
    while model.epoch_index < num_epochs and not model.is_finished:
        model.nbatches = dataset.nbatches  # may differ between epochs
        callbacks.on_epoch_begin(model.epoch_index)
        if model.is_finished or not train_epoch(model, dataset, callbacks, interrupt):
            return False
        callbacks.on_epoch_end(model.epoch_index - 1)
        if model.data_parallel is not None:
            model.data_parallel.check_before_epoch()
        interrupt.raise_if_pending()
    return True


def train_epoch(
    model: TrainingMethods, dataset: NervanaDataIterator, callbacks: CallbackBase, interrupt: DeferredInterrupt
) -> bool:
    """Train on the remaining minibatches of an epoch; return False if a callback ended training before its end."""
    epoch = model.epoch_index
    model.be.begin(Block.epoch, epoch)
    for x, t in dataset:
        if model.is_finished:
            return False
        callbacks.on_minibatch_begin(epoch, model.minibatch_index)
        model.be.begin(Block.minibatch, model.minibatch_index)
        with interrupt.defer(), model.be.lock, use_batch_size_of(model, x):  # a complete step or, after an error, none
            atomic(train_minibatch, model, dataset, x, t, epoch, last=last_statement(model))
        model.be.end(Block.minibatch, model.minibatch_index - 1)
        callbacks.on_minibatch_end(epoch, model.minibatch_index - 1)
        interrupt.raise_if_pending()
        if model.is_finished and model.minibatch_index < model.nbatches:
            return False  # before the iterator computes the next minibatch
    if not model.minibatch_index:
        raise ValueError(
            f"{model.name}: expected at least one minibatch in epoch {epoch + 1}, got none from {describe(dataset)}"
        )
    with interrupt.defer(), model.be.lock:  # a fork does not come in between
        atomic(end_epoch, model, dataset, epoch, last=last_statement(model))
    model.be.end(Block.epoch, epoch)
    return True


def train_minibatch(
    model: TrainingMethods, dataset: NervanaDataIterator, x: Tensor | list[Tensor], t: Tensor | list[Tensor], epoch: int
) -> None:
    """Run a training step and count it; if it fails, restore everything that the next step depends on."""
    restore_step_on_failure(model)
    save_data_state(model, dataset)
    model.step_cost = model.train_step(x, t, epoch)
    model.epoch_cost += model.step_cost
    model.minibatch_index += 1
    model.total_cost = model.epoch_cost / model.minibatch_index


class TrainingMethods(base.ModelBase):
    """The training step of a model."""

    def train_step(self, x: Tensor | list[Tensor], t: Tensor | list[Tensor], epoch: int = 0) -> float:
        """Train on one minibatch. If it raises an error, the trainable weights are unchanged.

        In a ``fit`` with ``accumulate``, the gradients of most minibatches are added to those of later ones instead.

        Parameters
        ----------
        x : Tensor or list of Tensor
            The inputs.
        t : Tensor or list of Tensor
            The targets.
        epoch : int
            The index of the epoch, for the learning-rate schedule. Default: 0.

        Returns
        -------
        float
            The cost of the minibatch.
        """
        cost = self._compute_all_gradients(x, t)  # by compute_gradients below, which fit compiles to one program
        if (self.minibatch_index + 1) % self.accumulate:
            self._add_gradients(global_batch_size(self.be))
        else:
            self._update(epoch, global_batch_size(self.be))
        return cost

    def compute_gradients(
        self, x: Tensor | list[Tensor], t: Tensor | list[Tensor]
    ) -> tuple[Tensor | list[Tensor], float | None]:
        """Run the forward and backward pass on one minibatch.

        Parameters
        ----------
        x : Tensor or list of Tensor
            The inputs.
        t : Tensor or list of Tensor
            The targets.

        Returns
        -------
        outputs : Tensor or list of Tensor
            The outputs of the network.
        cost : float or None
            The cost; None if this may be captured as a CUDA graph, which must not copy to the host.
        """
        y = self.fprop(x)
        cost = None if self.cuda_graphs and self.be.graphs is not None else self.compute_cost(y, t)
        self.bprop(self.scale_errors(self.cost.get_errors(y, t)))
        return y, cost

    # --- how it is made fast, and the rest ---

    def compute_cost(self, y: Tensor | list[Tensor], t: Tensor | list[Tensor]) -> float:
        """Return the cost of outputs.

        Parameters
        ----------
        y : Tensor or list of Tensor
            The outputs of the network.
        t : Tensor or list of Tensor
            The targets.
        """
        return float(self.cost.get_cost(y, t).item())

    def _build_step(self, x: Any, t: Any) -> tuple[Any, list[Operand | None], list[tuple[Operand, Operand]]]:
        """Return the network that a step trains, and its costs and errors as of ``differentiated_outputs``."""
        outputs = self.layers(x, training=True)
        return self.layers, *inference.differentiated_outputs(self.layers, self.cost, outputs, t, self.scale_errors)

    def _recompute_outputs(self, x: Any) -> None:
        """Compute the outputs of the layers, for the inputs of ``compute_gradients``, at inference."""
        self.fprop(x, inference=True)

    def _compute_all_gradients(self, x: Tensor | list[Tensor], t: Tensor | list[Tensor]) -> float:
        """Compute the gradients, in fit by one program if possible; with several processes, add them.

        Returns the cost, that of all processes.
        """
        parallel = self.data_parallel
        if parallel is not None and parallel.has_no_columns:
            parallel.zero_gradients()
            return parallel.reduce(0.0)
        uses, block = (self.layers, self.cost, x, t), (Block.minibatch, self.loss_scaling)
        y, computed = self.be.replay(block, lambda: self._run_program(x, t), uses, self.cuda_graphs)
        if isinstance(computed, list):  # of the program
            cost = record_costs(self.cost, computed)  # waits for the GPU, raises its errors
        else:
            cost = self.compute_cost(y, t) if computed is None else computed  # the same
        check_step_cost(self, cost, x, t)
        return cost if parallel is None else parallel.reduce(cost)

    def _add_gradients(self, rows: int) -> None:
        """Add the gradients of a minibatch to those of the next update, as the last statement that may fail."""
        _, sums = self._sum_gradients(rows)
        self.accumulated_rows += rows
        self.be.assign(self.gradient_sums, sums)

    def _update(self, epoch: int, rows: int = 0) -> None:
        """Update the weights by the gradients of a minibatch of some rows, if any, and by those that were added up."""
        be, total = self.be, rows + self.accumulated_rows
        if self.accumulated_rows:
            be.assign(*self._sum_gradients(rows))
            self.accumulated_rows = 0
        shard, parallel = be.minibatch_shard, self.data_parallel
        if shard is not None:
            shard = shard._replace(total=total, shards_states=parallel is not None and parallel.shards_states)
        with be.batch_size(total) if shard is None else use_shard(be, shard):
            self.optimizer.optimize(self.layers_to_optimize, epoch)
        if parallel is not None:
            parallel.share_weights()

    def _sum_gradients(self, rows: int) -> tuple[list[Tensor], list[Any]]:
        """Return the gradients of all parameters, and their sums with those of earlier minibatches, as op-trees."""
        layers = self.layers.leaves()
        pairs = [(dw, bool(rows) and x.trains_parameters) for x in layers for (_, dw), _ in parameter_states(x)]
        if [s.shape for s in self.gradient_sums] != [dw.shape for dw, _ in pairs]:
            self.gradient_sums = [self.be.zeros(dw.shape, dtype=compute_dtype(dw)) for dw, _ in pairs]
        sums: list[Any] = []
        for s, (dw, is_new) in zip(self.gradient_sums, pairs, strict=True):
            old = s if self.accumulated_rows else 0
            sums.append(old + dw if is_new else old)
        return [dw for dw, _ in pairs], sums

    def _run_program(self, x: Tensor | list[Tensor], t: Tensor | list[Tensor]) -> tuple[Any, Any]:
        """Compute the gradients by the program, else by the layers; return the outputs, and the cost or None.

        The program returns the mean of each cost.
        """
        if self.program is not None and self.program.is_active:
            parallel = self.data_parallel
            means = self.program(x, t, None if parallel is None else parallel.minibatch_shard)
            if means is not None:
                return None, means
        return self.compute_gradients(x, t)

    def scale_errors(self, errors: wrappers.Errors) -> wrappers.Errors:
        """Return the errors of the outputs, multiplied by the scale of a ``LossScaling`` optimizer.

        Parameters
        ----------
        errors : Tensor, list of Tensor, or op-tree
            The gradient of the cost with respect to the outputs.
        """
        scaling: Any = self.loss_scaling
        return errors if scaling is None else scaling.scale_errors(errors)

    @property
    def is_finished(self) -> bool:
        """Whether a callback, of any process, has ended training."""
        return self.finished if self.data_parallel is None else self.data_parallel.finished

    @property
    def loss_scaling(self) -> LossScaling | None:
        """The optimizer if it is a ``LossScaling``, else None."""
        return self.optimizer if isinstance(self.optimizer, LossScaling) else None

    def nonfinite_weights(self) -> list[str]:
        """Return the names of the weights with NaN or infinity, as in ``get_weights``: "fc.W"."""
        return nonfinite(
            (f"{layer.name}.{name}", tensor.get())
            for layer in self.layers.leaves()
            for name, tensor in layer.persistent_tensors.items()
            if tensor is not None
        )


# what ``fit`` sets before its first step, besides the progress
START_FIELDS = (
    "gradient_sums",
    "data_state",
    "loaded_state",
    "interrupted_callbacks",
    "callbacks",
    "ndata",
    "target_encoder",
    "metadata",
)
REMEDIES = "a lower learning rate, the optimizer's gradient_clip_norm, inputs scaled to about -1 to 1"


# --- before and after the loop ----------------------------------------------------------------------------------------


def train(
    model: TrainingMethods,
    dataset: Any,
    cost: Any,
    optimizer: Any,
    num_epochs: int,
    interrupt: DeferredInterrupt,
    callbacks: CallbackBase | None = None,
    cuda_graphs: bool = True,
    is_other_data: bool = False,
    accumulate: int = 1,
) -> None:
    """Train until ``num_epochs`` epochs are complete, or a callback sets ``finished``; see ``Model.fit``.

    Training continues where the last ``fit`` stopped, also within an epoch: after Ctrl-C, SIGTERM or SIGHUP, which
    end it after a complete step, after an error, after a callback that set ``finished``, and after ``load_params``.
    With a data set without ``get_state`` and ``set_state``, the epoch starts again at its first minibatch.
    ``is_other_data`` is whether the position in the data of the last ``fit`` is not one of this data set: the current
    epoch then starts again, at the first row.
    """
    callbacks = CallbackBase() if callbacks is None else callbacks
    optimizer = from_name(f"{model.name}.fit: optimizer", optimizer, rules.OPTIMIZERS)
    check_arguments(model, dataset, cost, optimizer, callbacks)
    num_epochs = integer(f"{model.name}.fit: num_epochs", num_epochs, 0)
    accumulate = integer(f"{model.name}.fit: accumulate", accumulate)
    if accumulate > 1 and has_custom_step(model):
        raise TypeError(
            f"{model.name}.fit: accumulate: expected a model with the train_step of Model, got a {model.classnm} with "
            "another one, which updates the weights in each minibatch. Add up the gradients there."
        )
    is_other = optimizer is not model.optimizer and type(optimizer) is type(model.optimizer)
    if is_other and isinstance(optimizer, Optimizer):
        state = model.optimizer.get_state()
        if optimizer.get_state().keys() == state.keys():
            optimizer.set_state(state)  # continue with its counts and its loss scale
    model.cuda_graphs = cuda_graphs
    if isinstance(optimizer, Optimizer):
        optimizer.cuda_graphs = cuda_graphs
    model.finished = model.warned = False
    with ends_training(model):
        model.accumulate = accumulate
        with interrupt.defer():
            model.initialize(dataset, cost)
            if type(optimizer) is not type(model.optimizer) and not (is_own(optimizer) and is_own(model.optimizer)):
                for (w, _), states in get_param_list(model.layers.leaves()):
                    w.updates = None
                    if isinstance(states, RemoteStates):
                        w.states = []
                    else:
                        states.clear()  # those of another class that defines ``optimize``
            model.optimizer = optimizer
        training_data.check_scale(model, dataset)
        check_batch_norm(model, dataset)
        before = {name: getattr(model, name) for name in (*model.progress_fields, *START_FIELDS)}
        encoding = model.layers.input_encoding
        try:
            start_training(model, dataset, callbacks, num_epochs, interrupt, is_other_data)
        except BaseException:
            vars(model).update(before)  # the next fit starts from there, too
            model.layers.input_encoding = encoding
            raise
        is_complete = False
        try:
            is_complete = train_epochs(model, dataset, callbacks, num_epochs, interrupt)
        finally:
            if not is_complete:
                interrupt_callbacks(model)
    check_final_weights(model)
    if model.loss_scaling is not None:
        model.loss_scaling.settle()
    callbacks.on_train_end()


@contextmanager
def ends_training(model: TrainingMethods) -> Iterator[None]:
    """Release what training uses after a ``with`` block, also after an error: its processes, records and graphs."""
    try:
        yield
    finally:
        model.accumulate = 1
        if model.program is not None:
            model.program.is_active = False
        parallel, model.data_parallel = model.data_parallel, None
        if parallel is not None:
            parallel.close()
        if model.be.graphs is not None:
            model.be.graphs.clear()


def start_training(
    model: TrainingMethods,
    dataset: Any,
    callbacks: CallbackBase,
    num_epochs: int,
    interrupt: DeferredInterrupt,
    is_other_data: bool,
) -> None:
    """Set the position in the data, and the states of the callbacks; connect the processes; run ``on_train_begin``."""
    if is_other_data:
        model.minibatch_index, model.epoch_cost, model.data_state, model.accumulated_rows = 0, 0.0, None, 0
        dataset.epoch = model.epoch_index  # an order of rows that was not used before
    if model.loaded_state is not None:
        model.loaded_state.resume(None if is_other_data else dataset, callbacks)
    else:
        if model.minibatch_index and model.data_state and hasattr(dataset, "set_state"):
            dataset.set_state(model.data_state)
        interrupted = None if callbacks is model.callbacks else model.interrupted_callbacks
        if interrupted is not None and isinstance(callbacks, Callbacks):
            callbacks.continue_from(interrupted)
    model.loaded_state, model.interrupted_callbacks, model.callbacks = None, None, callbacks
    if (shard := model.be.shard) is not None:
        if shard.communicator.shard_states:
            check_can_shard(model)
        model.data_parallel = data_parallel.DataParallel(model, dataset, shard, num_epochs, interrupt)
        interrupt.is_agreed = False
    model.ndata = dataset.ndata
    for name in ("preprocessing", "input_encoder", "target_encoder"):  # what predict applies
        setattr(model, name, getattr(dataset, name, None))
    if isinstance(dataset, Text) and not callable(dataset.tokenizer):  # what ``sample`` needs for a text
        model.metadata = {**model.metadata, "vocab": [*dataset.vocab], "tokenizer": dataset.tokenizer}
    callbacks.on_train_begin(num_epochs)
    check_epochs(model, num_epochs)
    if model.data_parallel is not None:
        model.data_parallel.check_before_epoch()


def interrupt_callbacks(model: TrainingMethods) -> None:
    """Run the event of an interrupted training; keep the states of the callbacks for the ``fit`` that resumes it."""
    try:
        model.callbacks.on_interrupt()
    finally:
        if isinstance(model.callbacks, Callbacks):
            model.interrupted_callbacks = model.callbacks.get_state()["callbacks"]


def is_own(optimizer: Any) -> bool:
    """Return whether all updates of an optimizer are those of ``Optimizer``, which knows to whom states belong."""
    return optimizer is None or None not in map(last_writer, wrappers.flatten_optimizers(optimizer))


def last_statement(model: TrainingMethods) -> object:
    """Return the optimizer, if nothing that may fail follows its update in a training step."""
    return None if has_custom_step(model) else last_writer(model.optimizer)


def has_custom_step(model: TrainingMethods) -> bool:
    """Return whether the training step is another method than that of ``TrainingMethods``."""
    return getattr(model.train_step, "__func__", None) is not TrainingMethods.train_step


def end_epoch(model: TrainingMethods, dataset: NervanaDataIterator, epoch: int) -> None:
    """Count a complete epoch, after an update by the gradients that are left."""
    restore_on_failure(model, *model.progress_fields, "data_state")
    model.epoch_index, model.minibatch_index, model.epoch_cost = epoch + 1, 0, 0.0
    save_data_state(model, dataset)
    if model.accumulated_rows:
        model._update(epoch)


def save_data_state(model: TrainingMethods, dataset: NervanaDataIterator) -> None:
    """Save the position of the data set after a minibatch."""
    if hasattr(dataset, "get_state"):
        model.data_state = dataset.get_state()


def restore_step_on_failure(model: TrainingMethods) -> None:
    """Register everything that the next training step depends on, to restore it if this one fails."""
    restore_on_failure(model, *model.progress_fields, "step_cost", "data_state")
    on_failure(model.be.rng_set_state, model.be.rng_get_state())  # the next fit repeats the step with the same dropout
    tensors: list[Tensor] = []
    for layer in model.layers.leaves():
        tensors += layer.running_tensors
        if layer.progress:
            restore_on_failure(layer, *layer.progress)
    if tensors:
        if model.snapshot is None or not model.snapshot.is_of(tensors):
            model.snapshot = Snapshot(tensors)
        model.snapshot.take(model.cuda_graphs)


@contextmanager
def use_batch_size_of(model: base.ModelBase, x: Tensor | list[Tensor]) -> Iterator[int]:
    """Use the batch size of a minibatch in this thread; yield it. Recurrent states do not pass to another size."""
    first = x[0] if isinstance(x, list | tuple) else x
    width = model.layers.num_samples(x) if first.shape[1] else 0
    if not width or width == model.be.bsz:
        yield width
        return
    with model.be.batch_size(width):
        reset_states(model)
        try:
            yield width
        finally:
            reset_states(model)


def reset_states(model: base.ModelBase) -> None:
    """Let the next minibatch start from recurrent states of zeros."""
    for layer in model.layers.leaves():
        layer.set_state({})


# --- checks before the first step ------------------------------------------------------------------------------------


def check_arguments(
    model: TrainingMethods, dataset: NervanaDataIterator, cost: object, optimizer: object, callbacks: CallbackBase
) -> None:
    """Raise TypeError or ValueError if ``fit`` cannot use its arguments."""
    check_dataset(f"{model.name}.fit: dataset", dataset, ". For arrays pass epochs= instead: fit(X, y, epochs=10)")
    quantized = next((x for x in model.layers.leaves() if isinstance(x, linear.QuantizedLayer)), None)
    if quantized is not None:
        raise ValueError(
            f"{model.name}.fit: expected float weights, got the {quantized.number_format} weights of {quantized.name}. "
            "Train the model that was quantized, then call its quantize again."
        )
    cost = from_name(f"{model.name}.fit: cost", cost, functions.COSTS)
    if not isinstance(cost, Cost):
        with_attributes(f"{model.name}.fit: cost", cost, "get_cost", "a cost, such as CrossEntropyMulti(),")
    way_out = f". The number of epochs is epochs={optimizer}." if type(optimizer) is int else ""
    with_attributes(f"{model.name}.fit: optimizer", optimizer, "optimize", "an optimizer, such as Adam(),", way_out)
    with_attributes(f"{model.name}.fit: callbacks", callbacks, "on_train_begin", "callbacks, such as Callbacks(model),")
    if isinstance(callbacks, Callbacks) and callbacks.model is not model:
        other = getattr(callbacks.model, "name", callbacks.model)
        raise ValueError(f"{model.name}.fit: expected callbacks of this model, got those of {describe(other)}")


def check_can_shard(model: TrainingMethods) -> None:
    """Raise TypeError or ValueError if the states of the model's optimizer cannot be divided among processes."""
    where = f"{model.name}.fit: world().shard_states"
    if has_custom_step(model):
        raise TypeError(
            f"{where}: expected a model with the train_step of Model, got a {model.classnm} with another one, which "
            "does not send the updated weights. Set shard_states = False on all ranks."
        )
    if not isinstance(model.optimizer, Optimizer) or not is_own(model.optimizer):
        raise TypeError(
            f"{where}: expected an optimizer that defines update_rule, got {describe(model.optimizer)}, whose optimize "
            "updates all parameters. Set shard_states = False on all ranks."
        )
    is_half = any(w.info.dtype in typing.HALF_DTYPES for w in model.layers.parameters)
    if is_half and any(x.stochastic_round for x in wrappers.flatten_optimizers(model.optimizer)):
        raise ValueError(
            f"{where}: expected an optimizer without stochastic_round, got {describe(model.optimizer)}, which draws "
            "random numbers for all parameters on every rank. Use stochastic_round=False, or shard_states = False."
        )


def check_batch_norm(model: TrainingMethods, dataset: NervanaDataIterator) -> None:
    """Warn of a minibatch with a single row whose features are normalized."""
    sizes = {model.be.bsz}
    if isinstance(dataset, ArrayIterator) and dataset.partial_last:
        sizes.add(dataset.ndata % model.be.bsz)
    for layer in model.layers.leaves():
        if 1 in sizes and isinstance(layer, BatchNorm) and layer.nfm == buffers.num_features(layer.in_shape):
            warn(
                f"{model.name}.fit: {layer.name}: a minibatch of one row is normalized to 0, so it does not train the "
                "layers before. Use a batch size of 2 or more that leaves no single row."
            )


def check_epochs(model: TrainingMethods, num_epochs: int) -> None:
    """Warn if ``fit`` has no epoch to train, or if the learning rate is 0 in the last epochs."""
    done = model.epoch_index
    trained = f"{done} epoch{'s' * (done != 1)}"
    total, more = (wording("num_epochs", f"num_epochs={n}", n) for n in (num_epochs, done + num_epochs))
    if 0 < num_epochs <= done:
        warn(
            f"{model.name}.fit: nothing was trained: {total} is the total, and the model has trained {trained}. Pass "
            f"{more} to train {num_epochs} more."
        )
    elif model.finished and num_epochs:
        who = wording("EarlyStop", "a callback, such as EarlyStop,")
        way_out = wording("without EarlyStop", "Leave it out")
        warn(
            f"{model.name}.fit: nothing was trained: {who} ended this training after {trained}. {way_out} to continue."
        )
    elif num_epochs and isinstance(model.optimizer, Optimizer):
        for optimizer in wrappers.flatten_optimizers(model.optimizer):
            is_of_epochs = getattr(optimizer, "learning_rate", 0) and not schedule.counts_updates(optimizer.schedule)
            if is_of_epochs and not optimizer.get_rate(num_epochs - 1):
                warn(
                    f"{model.name}.fit: the learning rate is 0 in epoch {num_epochs}, so the weights do not "
                    f"change then: {describe(optimizer.schedule)} ends before {total}"
                )


# --- NaN and infinity ------------------------------------------------------------------------------------------------


def warn_nonfinite(model: TrainingMethods, problem: str) -> None:
    """Warn of NaN or infinity, and record that this ``fit`` has warned."""
    model.warned = True
    warn(f"{model.name}: {problem}. Add the callback TerminateOnNaN() to end training then.", RuntimeWarning)


def check_step_cost(
    model: TrainingMethods, cost: float, x: Tensor | list[Tensor] | None, t: Tensor | list[Tensor] | None
) -> None:
    """Warn if a cost is not finite, before the update spreads NaN to all weights; x and t help to find the cause."""
    if not math.isfinite(cost) and not model.warned:
        position = f"in epoch {model.epoch_index + 1}, minibatch {model.minibatch_index + 1}"
        warn_nonfinite(model, f"the cost is {cost} {position}: {diagnosis(model, x, t)}")


def check_final_weights(model: TrainingMethods) -> None:
    """Warn at the end of ``fit`` if weights are not finite, unless it has warned before."""
    if not model.warned and (names := model.nonfinite_weights()):
        problem = f"{shortened_list(names)} have NaN or infinity after epoch {model.epoch_index}"
        warn_nonfinite(model, f"{problem}; possible remedies: {REMEDIES}")


def nonfinite(arrays: Iterable[tuple[str, Any]]) -> list[str]:
    """Return the names of the arrays that contain NaN or infinity."""
    return [name for name, array in arrays if not np.isfinite(array).all()]


def diagnosis(model: TrainingMethods, x: Any, t: Any) -> str:
    """Return the source of NaN or infinity in a step, before the weights are updated, and remedies."""
    if nonfinite(tensors(x)):
        return "the inputs contain NaN or infinity; an iterator with check_finite=True reports the row and the column"
    if nonfinite(tensors(t)):
        return "the targets contain NaN or infinity; an iterator with check_finite=True reports the row and the column"
    remedies = REMEDIES
    if model.be.default_dtype_name in typing.HALF_DTYPES and model.loss_scaling is None:
        remedies += f", LossScaling(optimizer) or float32 instead of {model.be.default_dtype_name}"
    if weights := model.nonfinite_weights():
        return f"the previous step left NaN or infinity in {shortened_list(weights)}; possible remedies: {remedies}"
    program = model.program
    if program is not None and program.is_active and program.function is not None:  # it keeps no outputs of layers
        states = [(layer, layer.get_state()) for layer in model.layers.leaves()]
        model._recompute_outputs(x)
        for layer, state in states:
            layer.set_state(state)
    for layer in model.layers.leaves():
        if nonfinite(tensors(layer.outputs)):
            return f"{layer.name} is the first layer with such outputs; possible remedies: {remedies}"
    cost = type(getattr(model.cost, "costfunc", model.cost)).__name__
    return f"all outputs are finite, but {cost} of them is not; possible remedies: {remedies}"


def tensors(x: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and the arrays of the tensors in nested lists and tuples."""
    if isinstance(x, list | tuple):
        for part in x:
            yield from tensors(part)
    elif isinstance(x, Tensor):
        yield x.name or "", x.get()


def shortened_list(names: list[str], limit: int = 3) -> str:
    """Return the first names and the number of the others."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


# --- the gradients of a training step as one program, if the network and the cost are expressions ---
#
# ``Model.fit`` traces ``network_gradients`` once for each size of a minibatch, and again after an attribute of a layer
# or of the cost has changed. The program writes the gradients of the parameters, the running statistics and the
# recurrent states, and not the outputs and the errors of single layers: ``layer.outputs`` and ``layer.deltas`` are
# those of the last ``fprop`` and ``bprop``.

MODEL_METHODS = frozenset(("fprop", "bprop", "compute_gradients", "compute_cost", "scale_errors"))
MAX_CHANGES = 16  # compilations in a row, as for an attribute that changes in each step; then the layers run
COST_METHODS = ("get_cost", "get_errors", "build_costs", "build_errors")


class NotAnExpressionError(Exception):
    """The network, the cost or the model has custom methods for the forward or backward pass."""


class GradientProgram:
    """The compiled function of the minibatches of a model, during ``fit``."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.is_active = False  # whether the model is in ``fit``
        self.compiled_from: Any = None  # the network, the cost, the loss scaling and others
        self.function: Jit[..., Any] | None = None
        self.count = self.changes = 0  # compilations; and steps, one after another, with one

    def __call__(self, x: Any, t: Any, shard: Shard | None) -> Any:
        """Compute the gradients, and return the mean of each cost, (1, 1); None if they are not an expression.

        Parameters
        ----------
        x, t : Tensor or list of Tensor
            The inputs and the targets.
        shard : Shard or None
            The columns of the minibatch that this process computes.
        """
        model, parallel = self.model, self.model.data_parallel
        uses_builtin_passes = MODEL_METHODS.isdisjoint(vars(model))
        parts = (
            model.layers,
            model.cost,
            model.loss_scaling,
            uses_builtin_passes,
            shard is None,
            parallel and parallel.reducer,
        )
        if parts != self.compiled_from:
            self.compiled_from, self.function, self.changes = parts, jit(self.trace), 0
        if self.function is None:
            return None
        count = self.count
        try:
            means = self.function(x, t) if shard is None else self.function(x, t, shard)
        except NotAnExpressionError:
            self.function = None
            return None
        self.changes = self.changes + 1 if self.count > count else 0
        if self.changes > MAX_CHANGES:
            self.function = None
        return means

    def trace(self, *args: Any) -> list[Operand | None]:
        """Return the costs as op-trees, and assign the gradients; count the compilation."""
        self.count += 1
        return network_gradients(self.model, *args)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None  # a copy of a model that is in training is not


def is_expression(model: Any) -> bool:
    """Return whether the gradients of a training step are an expression: of the network, the cost and the model.

    They are not if one of them, or its class, has methods of the user for the forward or backward pass, or if several
    processes sum gradients during the backward pass.
    """
    parallel, network, cost = model.data_parallel, model.layers, model.cost
    costs = cost.costs if type(cost) is Multicost else [cost]
    return (
        network.is_expression
        and (parallel is None or not parallel.reducer.sums_during_backward)
        and all(getattr(type(model), name).__module__.startswith("neonlite.models.") for name in MODEL_METHODS)
        and MODEL_METHODS.isdisjoint(vars(model))
        and not any(name in vars(cost) for name in COST_METHODS)
        and all(isinstance(x, GeneralizedCost) and has_builtin_costs(x) for x in costs)
    )


def has_builtin_costs(cost: GeneralizedCost) -> bool:
    """Return whether no method of the user computes a cost or its errors."""
    return not any(name in vars(cost) or not objects.has_builtin_method(type(cost), name) for name in COST_METHODS)


def network_gradients(model: Any, x: Any, t: Any, shard: Shard | None = None) -> list[Operand | None]:
    """Return the mean of each cost as an op-tree, and assign the gradients of the parameters that are trained.

    The mean is None if there is no target. ``shard``: the columns of a minibatch that this process computes, on which
    random numbers depend.
    """
    if not is_expression(model):
        raise NotAnExpressionError
    tree_structure.use_in_trace(model.cost)
    network, means, roots = model._build_step(x, t)
    if not roots:
        raise ValueError(f"{model.cost.name}: expected targets for at least one output, got None for all.")
    inference.assign_gradients(network, roots)
    return means


def record_costs(cost: GeneralizedCost | Multicost, means: Sequence[Tensor | None]) -> float:
    """Store the costs of a step as ``get_cost`` does; return that which is minimized."""
    parts = cost.costs if isinstance(cost, Multicost) else [cost]
    for part, mean in zip(parts, means, strict=False):
        if mean is not None:
            part.cost = mean.get()
    if isinstance(cost, Multicost):
        pairs = zip(cost.weights, cost.costs, means, strict=False)
        cost.cost = sum(weight * part.cost for weight, part, mean in pairs if mean is not None)
    return float(cost.cost.item())
