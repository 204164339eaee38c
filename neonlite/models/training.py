"""Training: the loop of ``Model.fit`` over epochs and minibatches, and the training step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neonlite.backend import Block
from neonlite.backend.interrupt import DeferredInterrupt
from neonlite.backend.transaction import atomic, restore_on_failure
from neonlite.backend.validation import checks_arguments, from_name, integer
from neonlite.callbacks import CallbackBase, Callbacks
from neonlite.data import Text
from neonlite.messages import describe
from neonlite.models.data_parallel import DataParallel, end_data_parallel, ends_data_parallel
from neonlite.models.fit_checks import check_arguments, check_batch_norm, check_epochs, check_scale
from neonlite.models.nonfinite import check_final_weights, check_step_cost
from neonlite.models.recorded_steps import RecordedSteps, can_record
from neonlite.models.step_parts import compute_cost as compute_cost
from neonlite.models.step_parts import restore_step_on_failure, use_batch_size_of
from neonlite.models.step_parts import scale_errors as scale_errors
from neonlite.optimizers import Optimizer, get_param_list
from neonlite.optimizers.loss_scaling import flatten_optimizers
from neonlite.optimizers.optimizer import last_writer
from neonlite.optimizers.rules import OPTIMIZERS

if TYPE_CHECKING:
    from neonlite.backend import Tensor
    from neonlite.data import NervanaDataIterator
    from neonlite.layers import GeneralizedCost, Multicost
    from neonlite.models.model import Model
    from neonlite.transforms import Cost

# what ``fit`` sets before its first step, besides the progress
START_FIELDS = (
    "data_state",
    "loaded_state",
    "interrupted_callbacks",
    "callbacks",
    "ndata",
    "target_encoder",
    "metadata",
)


@checks_arguments
def train(
    model: Model,
    dataset: NervanaDataIterator,
    cost: GeneralizedCost | Multicost | Cost | str,
    optimizer: Optimizer | str,
    num_epochs: int,
    interrupt: DeferredInterrupt,
    callbacks: CallbackBase | None = None,
    cuda_graphs: bool = True,
    is_other_data: bool = False,
) -> None:
    """Train until ``num_epochs`` epochs are complete, or a callback sets ``finished``.

    Training continues where the last ``fit`` stopped, also within an epoch: after Ctrl-C, SIGTERM or SIGHUP, which
    end it after a complete step, after an error, after a callback that set ``finished``, and after ``load_params``.
    With a data set without ``get_state`` and ``set_state``, the epoch starts again at its first minibatch.

    Parameters
    ----------
    dataset : iterator
        The training set, such as an ArrayIterator.
    cost : GeneralizedCost, Cost or str
        The cost, such as CrossEntropyMulti(), or its name, such as "cross_entropy".
    optimizer : Optimizer or str
        The optimizer, such as Adam(), or its name, such as "adam", for one with its defaults.
    num_epochs : int
        The total number of epochs, including those of earlier calls; 0 trains nothing.
    interrupt : DeferredInterrupt
        Defers signals.
    callbacks : Callbacks or CallbackBase, optional
        The callbacks, such as Callbacks(model).
    cuda_graphs : bool
        Whether a GPU may replay minibatches and updates as CUDA graphs; see ``be.replay``. This needs layers of
        neonlite, or layers that set ``can_replay = True``. On a CPU, whether the steps of fully connected networks are
        recorded and repeated without the Python code of their layers, with the same results. Default: True.
    is_other_data : bool
        Whether the position in the data of the last ``fit`` is not one of this data set: the current epoch then starts
        again, at the first row. Default: False.

    Raises
    ------
    TypeError, ValueError
        Invalid arguments, before the first step.
    KeyboardInterrupt
        Ctrl-C.
    SystemExit
        SIGTERM or SIGHUP, with the exit code 128 + the signal number.

    Warns
    -----
    RuntimeWarning
        The cost, or a weight at the end, is NaN or infinite: once per call, with the epoch, the minibatch and the
        first layer with such outputs. The callback ``TerminateOnNaN`` ends training then.
    UserWarning
        No epoch is left to train (unless ``num_epochs`` is 0), a callback had ended this training before, or the
        learning rate is 0 before ``num_epochs``.
    """
    callbacks = CallbackBase() if callbacks is None else callbacks
    optimizer = from_name(f"{model.name}.fit: optimizer", optimizer, OPTIMIZERS)
    check_arguments(model, dataset, cost, optimizer, callbacks)
    num_epochs = integer(f"{model.name}.fit: num_epochs", num_epochs, 0)
    is_other = optimizer is not model.optimizer and type(optimizer) is type(model.optimizer)
    if is_other and isinstance(optimizer, Optimizer):
        state = model.optimizer.get_state()
        if optimizer.get_state().keys() == state.keys():
            optimizer.set_state(state)  # continue with its counts and its loss scale
    model.cuda_graphs = cuda_graphs
    if isinstance(optimizer, Optimizer):
        optimizer.cuda_graphs = cuda_graphs
    model.finished = model.warned = False
    with ends_data_parallel(model):
        with interrupt.defer():
            model.initialize(dataset, cost)
            if type(optimizer) is not type(model.optimizer) and not (is_own(optimizer) and is_own(model.optimizer)):
                for (w, _), states in get_param_list(model.layers.leaves()):
                    w.updates = None
                    states.clear()  # those of another class that defines ``optimize``
            model.optimizer = optimizer
        check_scale(model, dataset)
        check_batch_norm(model, dataset)
        before = {name: getattr(model, name) for name in (*model.progress_fields, *START_FIELDS)}
        encoding = model.layers.input_encoding
        try:
            start_training(model, dataset, callbacks, num_epochs, interrupt, is_other_data)
        except BaseException:
            vars(model).update(before)  # the next fit starts from there, too
            model.layers.input_encoding = encoding
            raise
        is_complete = True  # the last epoch
        try:
            model.recorded_steps = RecordedSteps(model) if can_record(model) else None
            while is_complete and model.epoch_index < num_epochs and not model.is_finished:
                model.nbatches = dataset.nbatches  # may differ between epochs
                callbacks.on_epoch_begin(model.epoch_index)
                is_complete = not model.is_finished and train_epoch(model, dataset, callbacks, interrupt)
                if is_complete:
                    callbacks.on_epoch_end(model.epoch_index - 1)
                    if model.data_parallel is not None:
                        model.data_parallel.check_before_epoch()
                    interrupt.raise_if_pending()
        except BaseException:
            interrupt_callbacks(model)
            raise
        else:
            if not is_complete:
                interrupt_callbacks(model)
        finally:
            if model.be.graphs is not None:
                model.be.graphs.clear()
            model.recorded_steps = None
            end_data_parallel(model)
        check_final_weights(model)
        callbacks.on_train_end()


def start_training(
    model: Model,
    dataset: Any,
    callbacks: CallbackBase,
    num_epochs: int,
    interrupt: DeferredInterrupt,
    is_other_data: bool,
) -> None:
    """Set the position in the data, and the states of the callbacks; connect the processes; run ``on_train_begin``."""
    if is_other_data:
        model.minibatch_index, model.epoch_cost, model.data_state = 0, 0.0, None
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
        model.data_parallel = DataParallel(model, dataset, shard, num_epochs, interrupt)
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


def interrupt_callbacks(model: Model) -> None:
    """Run the event of an interrupted training; keep the states of the callbacks for the ``fit`` that resumes it."""
    try:
        model.callbacks.on_interrupt()
    finally:
        if isinstance(model.callbacks, Callbacks):
            model.interrupted_callbacks = model.callbacks.get_state()["callbacks"]


def train_epoch(
    model: Model, dataset: NervanaDataIterator, callbacks: CallbackBase, interrupt: DeferredInterrupt
) -> bool:
    """Train on the remaining minibatches of an epoch; return False if a callback ended training before its end."""
    epoch = model.epoch_index
    model.be.begin(Block.epoch, epoch)
    for x, t in dataset:
        if model.is_finished:
            return False
        callbacks.on_minibatch_begin(epoch, model.minibatch_index)
        model.be.begin(Block.minibatch, model.minibatch_index)
        with interrupt.defer(), model.be.lock, use_batch_size_of(model, x):
            atomic(train_minibatch, model, dataset, x, t, epoch, last=last_statement(model))
        model.be.end(Block.minibatch, model.minibatch_index - 1)
        callbacks.on_minibatch_end(epoch, model.minibatch_index - 1)
        interrupt.raise_if_pending()
        if (
            model.is_finished and model.minibatch_index < model.nbatches
        ):  # before the iterator computes the next minibatch
            return False
    if not model.minibatch_index:
        raise ValueError(
            f"{model.name}: expected at least one minibatch in epoch {epoch + 1}, got none from {describe(dataset)}"
        )
    with interrupt.defer(), model.be.lock:  # a fork does not come in between
        atomic(end_epoch, model, dataset, epoch)
    model.be.end(Block.epoch, epoch)
    return True


def train_minibatch(
    model: Model, dataset: NervanaDataIterator, x: Tensor | list[Tensor], t: Tensor | list[Tensor], epoch: int
) -> None:
    """Run a training step and count it; if it fails, restore everything that the next step depends on."""
    restore_step_on_failure(model)
    save_data_state(model, dataset)
    model.step_cost = model.train_step(x, t, epoch)
    model.epoch_cost += model.step_cost
    model.minibatch_index += 1
    model.total_cost = model.epoch_cost / model.minibatch_index


def is_own(optimizer: Any) -> bool:
    """Return whether all updates of an optimizer are those of ``Optimizer``, which knows to whom states belong."""
    return optimizer is None or None not in map(last_writer, flatten_optimizers(optimizer))


def last_statement(model: Model) -> object:
    """Return the optimizer, if nothing that may fail follows its update in a training step."""
    is_overridden = getattr(model.train_step, "__func__", None) is not train_step
    return None if is_overridden else last_writer(model.optimizer)


def end_epoch(model: Model, dataset: NervanaDataIterator, epoch: int) -> None:
    """Count a complete epoch."""
    restore_on_failure(model, *model.progress_fields, "data_state")
    model.epoch_index, model.minibatch_index, model.epoch_cost = epoch + 1, 0, 0.0
    save_data_state(model, dataset)


def save_data_state(model: Model, dataset: NervanaDataIterator) -> None:
    """Save the position of the data set after a minibatch."""
    if hasattr(dataset, "get_state"):
        model.data_state = dataset.get_state()


def train_step(model: Model, x: Tensor | list[Tensor], t: Tensor | list[Tensor], epoch: int = 0) -> float:
    """Train on one minibatch. If it raises an error, the trainable weights are unchanged.

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
    parallel = model.data_parallel
    if parallel is not None and parallel.has_no_columns:
        parallel.zero_gradients()
        cost = 0.0
    else:
        if model.recorded_steps is not None:
            y, computed = model.recorded_steps.compute_gradients(x, t)
        else:
            uses, block = (model.layers, model.cost, x, t), (Block.minibatch, model.loss_scaling)
            y, computed = model.be.replay(block, lambda: model.compute_gradients(x, t), uses, model.cuda_graphs)
        cost = model.compute_cost(y, t) if computed is None else computed  # waits for the GPU, raises its errors
        check_step_cost(model, cost, x, t)
    if parallel is not None:
        cost = parallel.reduce(cost)
    model.optimizer.optimize(model.layers_to_optimize, epoch)
    return cost


def compute_gradients(
    model: Model, x: Tensor | list[Tensor], t: Tensor | list[Tensor]
) -> tuple[Tensor | list[Tensor], float | None]:
    """Run the forward and backward pass on one minibatch.

    The cost is computed before its derivative, as it may cache values for it.

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
    y = model.fprop(x)
    cost = None if model.cuda_graphs and model.be.graphs is not None else model.compute_cost(y, t)
    model.bprop(model.scale_errors(model.cost.get_errors(y, t)))
    return y, cost
