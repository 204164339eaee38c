"""Scenarios that the ranks of tests/models/test_data_parallel.py run: each function returns the results of its rank."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import tempfile
import warnings
from functools import partial
from typing import Any

import numpy as np

from helpers.data_parallel import CLASSES, EPOCHS, TOTAL, affine, optimizer, problem, rows
from helpers.mpi import main
from neonlite import cleanup_backend, gen_backend
from neonlite.callbacks import (
    Callback,
    CallbackBase,
    Callbacks,
    EarlyStopCallback,
    HistoryFileCallback,
    MetricCallback,
    SaveBestStateCallback,
    SerializeModelCallback,
)
from neonlite.data import ArrayIterator, MappedArray, NervanaDataIterator, minibatches
from neonlite.distributed import Distributed, communicator, world
from neonlite.distributed.optimizer import GradientReducer
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import Dropout, GeneralizedCost, GeneralizedGANCost, GenerativeAdversarial, Linear
from neonlite.models import GAN, Model, data_parallel
from neonlite.optimizers import LAMB, Adam, GradientDescentMomentum, LossScaling, MultiOptimizer, Muon, WeightAverage
from neonlite.transforms import (
    ROCAUC,
    Accuracy,
    ConfusionMatrix,
    CrossEntropyMulti,
    GANCost,
    MeanSquared,
    Rectlin,
    Softmax,
    Tanh,
)

STEPS_OF_200 = {"mlp": 40, "lenet": 67, "lstm": 20}
RUNTIMES = ["cpu", "mkl", "torch", "strict"]


def start(comm: Any, deterministic: bool = False, runtime: str = "cpu", batch_size: int = 0, **options: Any) -> Any:
    cleanup_backend()
    size = batch_size or TOTAL // comm.size
    return gen_backend(runtime, rng_seed=7, batch_size=size, deterministic=deterministic, **options)


def fitted(kind: str, rule: str, epochs: int = 0, **options: Any) -> Model:
    """Return a model after training on this rank's columns."""
    layers, dataset, cost = problem(kind)
    model = Model(layers)
    model.fit(dataset, cost, optimizer(rule), epochs or EPOCHS[kind], distributed=True, **options)
    return model


def position(model: Model) -> tuple[int, int]:
    return model.epoch_index, model.minibatch_index


def arrays(history: Any) -> dict[str, Any]:
    """Return the numbers of a history, by name."""
    return {name: np.array([x[-1] if isinstance(x, tuple) else x for x in v]) for name, v in history.items()}


# --- weights ---------------------------------------------------------------------------------------------------------


def deterministic(comm, folder):
    result = {}
    for kind in ("mlp", "lenet", "lstm", "norm"):
        for rule in ("sgd", "adam"):
            start(comm, deterministic=True)
            result[kind, rule] = fitted(kind, rule).get_weights()
    return result


def deterministic_200(comm, folder):
    result = {}
    for kind, epochs in STEPS_OF_200.items():
        start(comm, deterministic=True)
        result[kind, "sgd"] = fitted(kind, "sgd", epochs).get_weights()
    return result


def fastest(comm, folder):
    """Train without ``deterministic``."""
    result = {}
    for kind in ("mlp", "lenet", "lstm", "partial"):
        start(comm)
        result[kind, "float32", "sgd"] = fitted(kind, "sgd").get_weights()
        start(comm, datatype="float64")
        result[kind, "float64", "adam"] = fitted(kind, "adam").get_weights()
    return result


def accumulated(comm, folder):
    """Update the weights for two minibatches; stop before the second one, and continue: here, and from a file."""
    result = {}
    for kind in ("mlp", "partial"):
        for overlap in (False, True):
            comm.overlap = overlap
            start(comm, deterministic=True, datatype="float64")
            result[kind, overlap] = fitted(kind, "adam", accumulate=2).get_weights()
    comm.overlap = False
    file = f"{folder}/waiting-{comm.size}"
    for name in ("continued", "loaded"):
        start(comm, deterministic=True, datatype="float64")
        layers, dataset, cost = problem("mlp")
        model = Model(file if name == "loaded" else layers)
        if name == "continued":
            callbacks = Callbacks(model, dataset, progress_bar=False)
            callbacks.add_callback(SerializeModelCallback(file))
            callbacks.add_callback(StopAt(0, 1))
            model.fit(dataset, cost, optimizer("adam"), 4, callbacks, accumulate=2, distributed=True)
            updates = [w.updates[1] for w in model.layers.parameters]
            result["waiting"] = model.accumulated_rows, updates
        if comm.rank == 1:
            for tensor in model.gradient_sums:  # those of rank 0 count
                tensor.fill(9)
        model.fit(dataset, cost, optimizer("adam"), 4, accumulate=2, distributed=True)
        result[name] = model.get_weights()
    return result


def on_runtimes(comm, folder):
    result = {}
    for runtime in RUNTIMES:
        try:
            start(comm, runtime=runtime)
        except ImportError:
            continue
        result[runtime] = fitted("partial", "sgd").get_weights()
    return result


def unequal(comm, folder):
    """Train with 5, 3 and 4 columns a minibatch."""
    result = {}
    for kind in ("lenet", "lstm", "partial"):
        start(comm, batch_size=[5, 3, 4][comm.rank], datatype="float64")
        result[kind] = fitted(kind, "adam").get_weights()
    return result


def partial_rounding(comm, folder):
    """Train with random rounding of weights, on partial minibatches without a column for some ranks."""
    start(comm, datatype="float16")
    layers, dataset, cost = problem("partial")
    model = Model(layers)
    model.fit(dataset, cost, Adam(learning_rate=0.01, stochastic_round=True), 5, distributed=True)
    return model.get_weights(), model.be.rng_get_state()


class RunningStatistics(CallbackBase):
    """Records the running statistics after each step."""

    def __init__(self, model):
        self.model, self.values = model, []

    def on_minibatch_end(self, epoch, minibatch):
        weights = self.model.get_weights()
        self.values.append([weights["bn.gmean"], weights["bn.gvar"]])


def running_statistics(comm, folder):
    result = {}
    for dtype in ("float32", "float64"):
        start(comm, datatype=dtype)
        layers, dataset, cost = problem("norm")
        model = Model(layers)
        record = RunningStatistics(model)
        model.fit(dataset, cost, optimizer("sgd"), 2, record, distributed=True)
        result[dtype] = np.array(record.values)
    return result


def starting_from_rank_0(comm, folder):
    """Other weights, random numbers and optimizer states on each rank: those of rank 0 are used."""
    result = {}
    gen_backend("cpu", rng_seed=100 + comm.rank, batch_size=TOTAL // comm.size)
    layers, dataset, cost = problem("lenet")
    model = Model(layers)
    model.initialize(dataset, cost)
    result["before"] = model.get_weights()
    for layer in model.layers_to_optimize:
        zeros = [[np.zeros(w.shape)] * 2 for w in layer.parameters]
        layer.set_states(zeros, [(Adam().kind, 50 * comm.rank)] * len(zeros))
    model.fit(dataset, cost, Adam(learning_rate=0.01), 2, distributed=True)
    result["after"] = model.get_weights()
    return result


def overlapping(comm, folder):
    """Train with sums of buckets in a second thread, and without."""
    result = {}
    original = data_parallel.GradientReducer
    try:
        for overlap in (False, True):
            comm.overlap = overlap
            for kind, bucket_bytes in {"mlp": 1, "lenet": 500, "lstm": 1, "norm": 1, "partial": 1}.items():
                data_parallel.GradientReducer = partial(GradientReducer, bucket_bytes=bucket_bytes)
                start(comm, deterministic=True)
                layers, dataset, cost = problem(kind)
                model, record = Model(layers), Buckets()
                record.model = model
                model.fit(dataset, cost, optimizer("adam"), 2, record, distributed=True)
                result[kind, overlap] = model.get_weights(), record.count, record.sums
    finally:
        comm.overlap, data_parallel.GradientReducer = False, original
    return result


def compressed(comm, folder):
    """Send gradients as bfloat16, all of them: in ``fit``, also while it computes the others, and in custom loops."""
    result, limit = {}, communicator.MAX_GATHERED_BYTES
    communicator.MAX_GATHERED_BYTES = 0
    try:
        for comm.compress_gradients in (True, False):
            for comm.overlap in (False, True):
                start(comm)
                result[comm.compress_gradients, comm.overlap] = fitted("mlp", "adam").get_weights()
            comm.overlap = False
            start(comm)
            w = Linear(3, Constant(1.0), name="linear")
            w.configure(4)
            w.allocate()
            gradient = w.be.array(np.full(w.W.shape, 1 + 2**-9, np.float32))
            Distributed("sgd").step([w.W], [gradient])
            result["step", comm.compress_gradients] = w.W.get()
        comm.compress_gradients = comm.rank == 0
        start(comm)
        result["error"] = message(lambda: fitted("mlp", "sgd"))
    finally:
        comm.compress_gradients, communicator.MAX_GATHERED_BYTES = False, limit
    return result


SHARDED = {
    "adam": lambda: Adam(learning_rate=0.01),
    "clipped": lambda: Adam(learning_rate=0.01, gradient_clip_norm=0.05),
    "scaled": lambda: LossScaling(Adam(learning_rate=0.01, gradient_clip_norm=0.5), growth_interval=5),
    "averaged": lambda: WeightAverage(Adam(learning_rate=0.01), decay=0.9),
    "of norms": lambda: LAMB(learning_rate=0.01),
    "orthogonal": lambda: Muon(learning_rate=0.01),
    "several": lambda: MultiOptimizer(
        {"default": Adam(learning_rate=0.01), "Bias": GradientDescentMomentum(0.1, 0.9), "hidden": "rmsprop"}
    ),
}


def num_states(model):
    """Return the number of elements of the optimizer states of this rank."""
    return sum(t.size for w in model.layers.parameters for t in w.states)


def sharded(comm, folder):
    """Train with the states of all parameters on each rank, and with those of a part; also accumulated, and in 16 bits.

    A callback of all ranks saves a checkpoint.
    """
    cases = {("mlp", rule): {} for rule in SHARDED} | {("partial", "adam"): {"accumulate": 2}, ("lstm", "adam"): {}}
    cases |= {("norm", "scaled"): {"datatype": "float16"}, ("single", "adam"): {}}
    result: dict[Any, Any] = {}
    for comm.shard_states in (False, True):
        for (kind, rule), options in cases.items():
            start(comm, datatype=options.get("datatype", "float32"))
            layers, dataset, cost = problem("mlp" if kind == "single" else kind)
            layers = [Linear(CLASSES, Gaussian(scale=0.1), name="only")] if kind == "single" else layers
            cost = GeneralizedCost(MeanSquared()) if kind == "single" else cost
            model = Model(layers, name="model")
            callbacks = Callbacks(model, dataset, progress_bar=False)
            path = folder / f"{kind}-{rule}-{comm.shard_states}-of-{comm.size}.model"
            callbacks.add_callback(SerializeModelCallback(path))
            chosen, accumulate = SHARDED[rule](), options.get("accumulate", 1)
            model.fit(dataset, cost, chosen, 2, callbacks, accumulate=accumulate, distributed=True)
            result[kind, rule, comm.shard_states] = model.get_weights(), num_states(model)
    comm.shard_states = False
    return result


def sharded_frozen(comm, folder):
    """Train the last layers, then all of them."""
    result = {}
    for comm.shard_states in (False, True):
        start(comm)
        layers, dataset, cost = problem("mlp")
        model = Model(layers)
        model.initialize(dataset, cost)
        model.layers["hidden"].trainable = False
        callback = Thaw(model)
        model.fit(dataset, cost, optimizer("adam"), 3, callback, distributed=True)
        result[comm.shard_states] = callback.before, model.get_weights()
    comm.shard_states = False
    return result


class Thaw(CallbackBase):
    def __init__(self, model):
        self.model, self.before = model, None

    def on_epoch_end(self, epoch):
        if epoch == 0:
            self.before = self.model.get_weights()
            self.model.layers["hidden"].trainable = True


def sharded_continued(comm, folder):
    """Divide the states in some epochs only."""
    result = {}
    for parts in ((False, False, False), (True, True, True), (True, False, False), (False, True, False)):
        start(comm)
        layers, dataset, cost = problem("mlp")
        model, rule, sizes = Model(layers), optimizer("adam"), []
        for epoch, comm.shard_states in enumerate(parts):
            model.fit(dataset, cost, rule, epoch + 1, distributed=True)
            sizes.append(num_states(model))
        result[parts] = model.get_weights(), sizes
    comm.shard_states = False
    return result


def sharded_parts(comm, folder):
    """Train three parts from checkpoints within epochs, with divided states in the first two."""
    result = {}
    for kind, stops in PARTS.items():
        first, second = folder / f"shard-{kind}-1-of-{comm.size}.model", folder / f"shard-{kind}-2-of-{comm.size}.model"
        comm.shard_states = True
        run_part(comm, None, first, kind, stops[0])
        comm.barrier()  # rank 0 has written the file
        run_part(comm, first, second, kind, stops[1])
        comm.barrier()
        comm.shard_states = False
        result[kind] = run_part(comm, second, None, kind, (9, 9))
    return result


def sharded_on_more(comm, folder):
    """Continue the checkpoint of 2 ranks with divided states."""
    comm.shard_states = True
    result = {kind: run_part(comm, folder / f"shard-{kind}-2-of-2.model", None, kind, (9, 9)) for kind in PARTS}
    comm.shard_states = False
    return result


def sharded_refused(comm, folder):
    """Return the errors of what needs the states of all parameters, or cannot divide them."""
    result = {}
    comm.shard_states = True
    start(comm)
    layers, dataset, cost = problem("mlp")
    model, rule = Model(layers, name="model"), WeightAverage(Adam(learning_rate=0.01))
    model.fit(dataset, cost, rule, 1, distributed=True)
    result["save"] = message(lambda: model.save_params(folder / f"no-{comm.rank}.model"))
    result["copy"] = message(model.copy)
    result["averaged"] = message(lambda: rule.averaged(model))
    result["serialize"] = message(model.layers.serialize)
    result["optimize"] = message(lambda: rule.optimize(model.layers_to_optimize, 0))
    with warnings.catch_warnings(action="ignore"):
        result["fit alone"] = message(lambda: model.fit(dataset, cost, rule, 2))
    model.save_params(folder / f"yes-{comm.rank}.model", keep_states=False)
    start(comm)
    other, (X, y) = Model([Linear(4), Linear(1)]), (np.ones((16, 3)), np.ones(16))
    other.fit(X, y, epochs=1, optimizer=Adam(), batch_size=8 // comm.size, distributed=True, progress_bar=False)
    with warnings.catch_warnings(action="ignore"):  # the minibatches have as many rows, so the same update fits them
        alone = {"epochs": 1, "batch_size": 8, "progress_bar": False}
        result["fit the same minibatches alone"] = message(lambda: other.fit(X, y, **alone))

    class Own(Adam):
        def optimize(self, layer_list, epoch=0):
            super().optimize(layer_list, epoch)

    class OwnStep(Model):
        def train_step(self, x, t, epoch=0):
            return super().train_step(x, t, epoch)

    for name, kind, options, chosen in (
        ("own optimizer", Model, {}, Own()),
        ("own step", OwnStep, {}, Adam()),
        ("rounding", Model, {"datatype": "float16"}, LossScaling(Adam(stochastic_round=True))),
    ):
        start(comm, **options)
        layers, dataset, cost = problem("mlp")
        other = kind(layers, name="model")
        result[name] = message(lambda m=other, d=dataset, c=cost, o=chosen: m.fit(d, c, o, 1, distributed=True))
    comm.shard_states = comm.rank == 0
    start(comm)
    result["one rank"] = message(lambda: fitted("mlp", "sgd"))
    comm.shard_states = False
    return result


def on_files(comm, folder):
    """Train on memory-mapped files that are shuffled by blocks of 2 rows, 4 at a time; stop within an epoch, resume."""
    result, limits = {}, (minibatches.BLOCK_BYTES, minibatches.WINDOW_BLOCKS)
    minibatches.BLOCK_BYTES, minibatches.WINDOW_BLOCKS = 48, 4
    try:
        with tempfile.TemporaryDirectory() as files:
            X, y = rows(70, 6)
            for i, part in enumerate(np.split(X.astype(np.float32), [20, 50])):
                np.save(f"{files}/{i}.npy", part)
            mapped = MappedArray([f"{files}/{i}.npy" for i in range(3)])
            for name in ("whole", "resumed"):
                start(comm)
                data = ArrayIterator(mapped, y, nclass=CLASSES, shuffle=True)
                assert data.block_rows == 2
                model = Model([affine(8, "hidden", Rectlin()), affine(CLASSES, "out", Softmax())])
                if name == "resumed":
                    callbacks = Callbacks(model, data, progress_bar=False)
                    callbacks.add_callback(StopAt(1, 2))
                    model.fit(data, "cross_entropy", optimizer("sgd"), 3, callbacks, distributed=True)
                    assert model.epoch_index == 1
                    assert model.minibatch_index
                model.fit(data, "cross_entropy", optimizer("sgd"), 3, distributed=True)
                result[name] = model.get_weights()
    finally:
        minibatches.BLOCK_BYTES, minibatches.WINDOW_BLOCKS = limits
        minibatches.shuffle_window.cache_clear()
    return result


class Buckets(CallbackBase):
    """Records the number of buckets, and how many of them the backward pass has started to sum."""

    model: Any = None
    count = sums = 0

    def on_train_begin(self, epochs):
        reducer = self.model.data_parallel.reducer
        self.count, wrapped = len(reducer.buckets), reducer.layer_done

        def layer_done(layer):
            before = len(reducer.futures)
            wrapped(layer)
            self.sums += len(reducer.futures) - before

        reducer.layer_done = layer_done


# --- costs and metrics -----------------------------------------------------------------------------------------------


def first_output(y, t, calrange=None, calcrange=slice(0, None)):
    return y.get()[0, calcrange].mean()


class Evaluate(Callback):
    """Evaluates data sets after each epoch."""

    def __init__(self, datasets):
        super().__init__()
        self.datasets, self.records = datasets, []

    def on_epoch_end(self, epoch):
        record = {}
        for name, dataset in self.datasets.items():
            for metric in (Accuracy(), ConfusionMatrix(), ROCAUC(), "accuracy", first_output):
                if isinstance(metric, ROCAUC) and dataset.ndata == 2:  # it needs rows of all classes
                    continue
                label = metric if isinstance(metric, str) else getattr(metric, "__name__", type(metric).__name__)
                record[name, label] = np.array(self.model.eval(dataset, metric))
            record[name, "cost"] = self.model.eval_cost(dataset)
            record[name, "outputs"] = self.model.get_outputs(dataset)
        self.records.append(record)


def evaluation_sets():
    X, y = rows(29, 6)
    small = slice(4, 6)  # of two classes
    return {
        "filled up": ArrayIterator(X, y, nclass=CLASSES),
        "partial": ArrayIterator(X, y, nclass=CLASSES, partial_last=True),
        "shuffled": ArrayIterator(X, y, nclass=CLASSES, shuffle=True),
        "of 2 rows": ArrayIterator(X[small], y[small], nclass=CLASSES, partial_last=True),
        "one row left": ArrayIterator(X[:25], y[:25], nclass=CLASSES, partial_last=True),
    }


def metrics(comm, folder, distributed=True):
    start(comm, datatype="float64")
    X, y = rows(50, 6)
    model = Model([affine(8, "hidden", Rectlin()), affine(CLASSES, "out", Softmax())])
    evaluate = Evaluate(evaluation_sets())
    options = {"validation_split": 0.3, "metrics": ["accuracy", "f1"], "optimizer": optimizer("sgd")}
    options |= {"callbacks": [evaluate], "progress_bar": False, "batch_size": TOTAL // comm.size, "standardize": False}
    history = model.fit(X, np.array(["a", "b", "c"])[y], epochs=3, distributed=distributed, **options)
    again = model.fit(X, np.array(["a", "b", "c"])[y], epochs=1, distributed=distributed, **options)
    return {
        "weights": model.get_weights(),
        "records": evaluate.records,
        "history": arrays(history),
        "again": arrays(again),
        "total cost": model.total_cost,
        "afterwards": np.array(model.eval(evaluation_sets()["filled up"], Accuracy())),
    }


def weighted(comm, folder, distributed=True):
    """Train with weights of samples and classes, and on sequences with masks."""
    start(comm, datatype="float64")
    X, y = rows(50, 6)
    result = {}
    for name, more in {
        "samples": {"sample_weight": np.linspace(0, 2, 50)},
        "classes": {"class_weight": "balanced"},
    }.items():
        model = Model([affine(8, "hidden", Rectlin()), affine(CLASSES, "out", Softmax())])
        model.be.rng_reset()
        more |= {"progress_bar": False, "batch_size": TOTAL // comm.size, "optimizer": optimizer("sgd")}
        history = model.fit(X, y, epochs=3, distributed=distributed, **more)
        result[name] = model.get_weights(), arrays(history)
    return result


# --- files -----------------------------------------------------------------------------------------------------------


def files(comm, folder):
    """Train with callbacks that write and print; each rank writes to its files."""
    start(comm)
    layers, dataset, cost = problem("mlp")
    validation = problem("mlp").dataset
    model = Model(layers)
    mine = folder / f"files-{comm.size}"
    mine.mkdir(exist_ok=True)
    path = mine / f"rank-{comm.rank}"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        callbacks = Callbacks(model, dataset, eval_set=validation, progress_bar=True)
        callbacks.add_callback(SerializeModelCallback(path.with_suffix(".model"), history=2))
        callbacks.add_callback(SaveBestStateCallback(path.with_suffix(".best")))
        callbacks.add_callback(HistoryFileCallback(path.with_suffix(".h5")))
        model.fit(dataset, cost, optimizer("adam"), 3, callbacks, distributed=True)
        model.save_params(path.with_suffix(".own"))  # afterwards, as any process does
    comm.barrier()
    return {
        "printed": printed.getvalue(),
        "files": sorted(x.name for x in mine.iterdir()),
        "weights": model.get_weights(),
        "history": arrays(callbacks.history),
    }


def uninterrupted(comm, folder):
    result = {}
    for kind in ("lenet", "lstm", "mlp"):
        start(comm, deterministic=True)
        result[kind] = fitted(kind, "adam", 3).get_weights()
    return result


def run_part(comm, source, target, kind, stop, finish=False):
    """Train until a callback ends training, and save a checkpoint in the file ``target``."""
    start(comm, deterministic=True)
    layers, dataset, cost = problem(kind)
    model = Model(layers)
    if source is not None:
        model.load_params(source)
    callbacks = Callbacks(model, dataset, progress_bar=False)
    if target is not None:
        callbacks.add_callback(SerializeModelCallback(target))
    callbacks.add_callback(StopAt(*stop))
    model.fit(dataset, cost, optimizer("adam"), 3, callbacks, distributed=True)
    return {"position": position(model), "weights": model.get_weights()}


class StopAt(Callback):
    """Sets ``model.finished`` after a step."""

    def __init__(self, epoch, minibatch):
        super().__init__()
        self.at = epoch, minibatch

    def on_minibatch_end(self, epoch, minibatch):
        if (epoch, minibatch) == self.at:
            self.model.finished = True


PARTS = {"lenet": [(0, 0), (1, 0)], "lstm": [(0, 3), (1, 5)], "mlp": [(0, 2), (1, 1)]}


def first_part(comm, folder):
    return {
        kind: run_part(comm, None, folder / f"{kind}-1-of-{comm.size}.model", kind, stops[0])
        for kind, stops in PARTS.items()
    }


def second_part(comm, folder):
    """Continue the checkpoint that 2 ranks have saved."""
    return {
        kind: run_part(comm, folder / f"{kind}-1-of-2.model", folder / f"{kind}-2-of-{comm.size}.model", kind, stops[1])
        for kind, stops in PARTS.items()
    }


def last_part(comm, folder):
    """Continue the checkpoint that this number of ranks, or else 4 ranks, has saved."""
    n = comm.size if comm.size == 2 else 4
    return {kind: run_part(comm, folder / f"{kind}-2-of-{n}.model", None, kind, (9, 9)) for kind in PARTS}


def loaded_on_rank_0(comm, folder):
    """Continue the checkpoint of 2 ranks, which rank 0 alone has read."""
    result = {}
    for kind in ("mlp", "lstm"):
        start(comm, deterministic=True)
        layers, dataset, cost = problem(kind)
        model = Model(layers)
        if comm.rank == 0:
            model.load_params(folder / f"{kind}-1-of-2.model")
        result[kind] = message(lambda m=model, d=dataset, c=cost: m.fit(d, c, optimizer("adam"), 3, distributed=True))
    return result


def loaded_before_connecting(comm, folder):
    """Continue a checkpoint that was loaded before the first call of ``world()``."""
    start(comm, deterministic=True)
    layers, dataset, cost = problem("lstm")
    model = Model(layers)
    communicator._world = None
    try:
        model.load_params(folder / "lstm-1-of-2.model")
    finally:
        communicator._world = comm
    model.fit(dataset, cost, optimizer("adam"), 3, distributed=True)
    return model.get_weights()


# --- the end of a training -------------------------------------------------------------------------------------------


def endings(comm, folder):
    """End training on one rank; return the position of each rank, and the weights after continuing."""
    result = {}
    for where in ("begin", "middle", "last of an epoch", "epoch"):
        for last in (0, comm.size - 1):
            start(comm, deterministic=True)
            layers, dataset, cost = problem("lenet")
            model, rule = Model(layers), optimizer("adam")
            ending = EndOnOneRank(model, where, comm.rank == last)
            model.fit(dataset, cost, rule, 4, ending, distributed=True)
            ended = position(model)
            model.fit(dataset, cost, rule, 4, distributed=True)
            result[where, last] = ended, ending.steps, position(model), model.get_weights()
    return result


class EndOnOneRank(CallbackBase):
    def __init__(self, model, where, is_here):
        self.model, self.where, self.is_here, self.steps = model, where, is_here, 0

    def on_minibatch_begin(self, epoch, minibatch):
        self.finish(self.where == "begin" and (epoch, minibatch) == (1, 1))

    def on_minibatch_end(self, epoch, minibatch):
        self.steps += 1
        at = {"middle": (1, 0), "last of an epoch": (1, 2)}.get(self.where)
        self.finish((epoch, minibatch) == at)

    def on_epoch_end(self, epoch):
        self.finish(self.where == "epoch" and epoch == 1)

    def finish(self, is_now):
        if is_now and self.is_here:
            self.model.finished = True


def early_stop(comm, folder):
    result = {}
    for limit in (1, 3):
        start(comm, datatype="float64")
        layers, dataset, cost = problem("mlp")
        model = Model(layers)
        callbacks = Callbacks(model, dataset, eval_set=evaluation_sets()["partial"], progress_bar=False)
        seen = []

        def stop(state, value, seen=seen, limit=limit):
            seen.append(value)
            return None, len(seen) > limit

        callbacks.add_callback(EarlyStopCallback(stop))
        model.fit(dataset, cost, optimizer("sgd"), 9, callbacks, distributed=True)
        result[limit] = position(model), seen
    return result


class SignalOnOneRank(CallbackBase):
    def __init__(self, number, at, is_here):
        self.number, self.at, self.is_here = number, at, is_here

    def on_minibatch_begin(self, epoch, minibatch):
        if self.is_here and (epoch, minibatch) == self.at:
            os.kill(os.getpid(), self.number)

    def on_epoch_end(self, epoch):
        if self.is_here and (epoch, "end") == self.at:
            os.kill(os.getpid(), self.number)


def signals(comm, folder):
    """Send a signal to one rank, and continue."""
    result = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        for at in ((0, 0), (1, 1), (1, 2), (0, "end")):
            start(comm, deterministic=True)
            layers, dataset, cost = problem("lenet")
            model, rule, raised = Model(layers), optimizer("adam"), ""
            callback = SignalOnOneRank(number, at, comm.rank == comm.size - 1)
            try:
                model.fit(dataset, cost, rule, 4, callback, distributed=True)
            except (KeyboardInterrupt, SystemExit) as error:
                raised = f"{type(error).__name__} {getattr(error, 'code', '')}".strip()
            ended = position(model)
            model.fit(dataset, cost, rule, 4, distributed=True)
            result[signal.Signals(number).name, at] = raised, ended, position(model), model.get_weights()
    return result


# --- errors ----------------------------------------------------------------------------------------------------------


class NotResumable(NervanaDataIterator):
    """Yields minibatches without a position."""

    def __init__(self):
        super().__init__()
        self.dataset = problem("mlp").dataset
        self.ndata, self.nbatches, self.shape, self.nclass = 60, 5, 6, CLASSES

    def __iter__(self):
        return iter(self.dataset)


def message(act):
    try:
        act()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def mismatches(comm, folder):
    """Start training with a difference on the last rank; return the error of each rank."""
    differs = comm.rank == comm.size - 1
    result = {}

    def fit(
        n=60, width=16, rule="adam", epochs=2, dataset=None, cost=None, shuffle=True, activation=Rectlin, keep=0.5,
        validation=20, callbacks=None, metric="accuracy", **options,
    ):  # fmt: skip
        start(comm, **options)
        X, y = rows(n, 6)
        layers = [affine(width, "hidden", activation()), Dropout(keep), affine(CLASSES, "out", Softmax())]
        model = Model(layers, name="model")
        dataset = dataset or ArrayIterator(X, y, nclass=CLASSES, shuffle=shuffle, name="rows")
        rule = rule if not isinstance(rule, str) else optimizer(rule)
        evaluated = ArrayIterator(*rows(validation, 6), nclass=CLASSES)
        others = Callbacks(model, dataset, eval_set=evaluated, progress_bar=False)
        others.add_callback(MetricCallback(evaluated, metric))
        for callback in callbacks or ():
            others.add_callback(callback)
        cost = cost or GeneralizedCost(CrossEntropyMulti())
        model.fit(dataset, cost, rule, epochs, callbacks=others, distributed=True)

    def fit_arrays(label="a{}".format, standardize=True):
        start(comm)
        X, y = rows(60, 6)
        Model([affine(CLASSES, "out", Softmax())], name="model").fit(
            X, [label(k) for k in y], standardize=standardize, progress_bar=False, distributed=True
        )

    class SetRate(Callback):
        rank_0_only = True

        def on_epoch_end(self, epoch):
            self.model.optimizer.learning_rate = 0.5

    class SetWeights(SetRate):
        def on_epoch_end(self, epoch):
            self.model.set_weights({k: 2 * w for k, w in self.model.get_weights().items()})

    for name, difference in {
        "data": {"n": 61},
        "shuffle": {"shuffle": False},
        "runtime": {"runtime": "strict"},
        "dtype": {"datatype": "float64"},
        "layer size": {"width": 17},
        "optimizer": {"rule": "sgd"},
        "learning rate": {"rule": Adam(learning_rate=0.02)},
        "cost": {"cost": GeneralizedCost(MeanSquared())},
        "epochs": {"epochs": 3},
        "deterministic": {"deterministic": True},
        "activation": {"activation": Tanh},
        "dropout": {"keep": 0.6},
        "validation rows": {"validation": 30},
        "metric": {"metric": "mse"},
        "callbacks": {"callbacks": [Callback()]},
    }.items():
        result[name] = message(lambda difference=difference: fit(**(difference if differs else {})))
    for name, difference in {"labels": {"label": "b{}".format}, "scale": {"standardize": False}}.items():
        result[name] = message(lambda difference=difference: fit_arrays(**(difference if differs else {})))
    result["types of labels"] = message(lambda: fit_arrays(label=str if differs else int))
    for kind in (SetRate, SetWeights):
        result[kind.__name__] = message(lambda kind=kind: fit(callbacks=[kind()]))
    start(comm)
    result["iterator"] = message(lambda: fit(dataset=NotResumable()))
    result["GAN"] = message(lambda: gan_fit(comm))
    comm.overlap = True
    original = data_parallel.GradientReducer
    data_parallel.GradientReducer = partial(GradientReducer, bucket_bytes=1)
    result["with overlap"] = message(lambda: fit(**({"epochs": 3} if differs else {})))
    data_parallel.GradientReducer, comm.overlap = original, False
    result["none"] = message(fit)
    return result


def gan_fit(comm):
    start(comm)
    pair = GenerativeAdversarial([Linear(2, Constant(0.1))], [Linear(1, Constant(0.1))])
    data, cost = ArrayIterator(np.ones((24, 2), np.float32)), GeneralizedGANCost(GANCost("modified"))
    GAN(pair, 3, name="model").fit(data, cost, Adam(learning_rate=0.01), 1, distributed=True)


def after_an_error(comm, folder):
    """A fit that a callback of every rank ends by an error leaves a model that trains alone, and together."""
    result = {}

    class Fails(CallbackBase):
        def __init__(self, event):
            self.event = event

        def on_train_begin(self, epochs):
            self.fail("train")

        def on_epoch_end(self, epoch):
            self.fail("epoch")

        def on_minibatch_end(self, epoch, minibatch):
            self.fail("minibatch")

        def fail(self, event):
            if event == self.event:
                raise ZeroDivisionError

    comm.overlap = True
    original = data_parallel.GradientReducer
    data_parallel.GradientReducer = partial(GradientReducer, bucket_bytes=1)
    try:
        for event in ("train", "epoch", "minibatch"):
            start(comm)
            layers, dataset, cost = problem("mlp")
            model = Model(layers)
            with contextlib.suppress(ZeroDivisionError):
                model.fit(dataset, cost, optimizer("adam"), 2, Fails(event), distributed=True)
            result[event] = model.data_parallel is None, model.layers.gradient_reducer is None
            model.fit(dataset, cost, optimizer("adam"), 2, distributed=True)
            result[event] += (model.get_weights(),)
    finally:
        comm.overlap, data_parallel.GradientReducer = False, original
    return result


# --- a custom loop ---------------------------------------------------------------------------------------------------


def custom_loops(comm, folder):
    """Train by a loop with ``Distributed``, on minibatches of neonlite's iterators and on the loop's own."""
    result = {}
    for name, wrap in {
        "plain": lambda x: x,
        "scaled": lambda x: LossScaling(x, scale=64.0, dynamic=False),
        "dynamic": lambda x: LossScaling(x, scale=64.0, growth_interval=5),
    }.items():
        be = start(comm, deterministic=True)
        layers, dataset, cost = problem("mlp")
        model = Model(layers)
        rule = Distributed(wrap(optimizer("sgd")))
        with comm.sharded(be):
            model.initialize(dataset, cost)
            for epoch in range(EPOCHS["mlp"]):
                for x, t in dataset:
                    y = model.fprop(x)
                    model.bprop(rule.scale_errors(model.cost.get_errors(y, t)))
                    rule.optimize(model.layers_to_optimize, epoch)
        result[name] = model.get_weights()
    be = start(comm, deterministic=True)
    layers, dataset, cost = problem("mlp")
    model, rule = Model(layers), Distributed(optimizer("sgd"))
    model.initialize(dataset, cost)
    X, y = rows(60, 6)
    mine = slice(comm.rank * be.bsz, (comm.rank + 1) * be.bsz)
    for epoch in range(2):
        for k in range(0, 60, TOTAL):
            x = be.array(X[k : k + TOTAL][mine].T)
            t = be.array(np.eye(CLASSES)[:, y[k : k + TOTAL][mine]])
            model.bprop(model.cost.get_errors(model.fprop(x), t))
            rule.optimize(model.layers_to_optimize, epoch)
    result["own minibatches"] = model.get_weights()
    result["fit"] = {}
    start(comm, deterministic=True)
    layers, dataset, cost = problem("mlp")
    model = Model(layers)
    model.fit(dataset, cost, Distributed(optimizer("sgd")), EPOCHS["mlp"])
    result["fit"] = model.get_weights()
    return result


def other_runtimes(comm, folder):
    be = gen_backend("strict" if comm.rank else "cpu", rng_seed=0, batch_size=4)
    layers, dataset, cost = problem("mlp")
    model, rule = Model(layers), Distributed(Adam(learning_rate=0.01))
    with comm.sharded(be):
        model.initialize(dataset, cost)
        return message(lambda: rule.optimize(model.layers_to_optimize, 0))


def other_weights(comm, folder):
    be = gen_backend("cpu", rng_seed=comm.rank, batch_size=4)
    layers, dataset, cost = problem("mlp")
    model, rule = Model(layers), Distributed(Adam(learning_rate=0.01))
    with comm.sharded(be):
        model.initialize(dataset, cost)
        x, t = next(iter(dataset))
        model.bprop(model.cost.get_errors(model.fprop(x), t))
        return message(lambda: rule.optimize(model.layers_to_optimize, 0))


def no_batch_size(comm, folder):
    be = gen_backend("cpu", batch_size=0 if comm.rank else 3)

    def act():
        with comm.sharded(be):
            pass

    return message(act)


if __name__ == "__main__":
    warnings.simplefilter("error")
    assert world() is not None
    main(globals())
