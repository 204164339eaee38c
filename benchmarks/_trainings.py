"""Training processes for ``survival.py``, which report events as lines of JSON.

python benchmarks/_trainings.py NAME ARGUMENTS
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from neonlite import gen_backend
from neonlite.callbacks import Callback, CallbackBase, Callbacks
from neonlite.data import Crop, digits
from neonlite.initializers import Constant, Kaiming
from neonlite.layers import Affine
from neonlite.models import Model, zoo
from neonlite.optimizers import Adam
from neonlite.transforms import Accuracy, CrossEntropyMulti, Rectlin

STARTING, STEP, BETWEEN, EVALUATING, SAVING = range(5)  # activities of a training process


def emit(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def sha256(model: Any) -> str | None:
    """Return the hash of all weights; None when there are none yet."""
    if not model.initialized:
        return None
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights().values())).hexdigest()


# --- the current activity ------------------------------------------------------------------------------


class Activity:
    """The current activity of a training process, as a byte in a memory-mapped file that another process reads."""

    def __init__(self, path: Any) -> None:
        file = Path(path)
        if not file.exists():
            file.write_bytes(bytes(1))
        with open(file, "r+b") as opened:
            self.bytes = mmap.mmap(opened.fileno(), 1)

    def __call__(self) -> int:
        return self.bytes[0]

    def set(self, activity: int) -> None:
        self.bytes[0] = activity


class MonitoredModel(Model):
    """A model that reports its current activity."""

    activity: Any = None

    @contextmanager
    def during(self, activity: int) -> Iterator[None]:
        if self.activity is not None:
            self.activity.set(activity)
        yield
        if self.activity is not None:
            self.activity.set(BETWEEN)

    def train_step(self, *arguments: Any) -> float:
        with self.during(STEP):
            return super().train_step(*arguments)

    def eval(self, *arguments: Any) -> Any:
        with self.during(EVALUATING):
            return super().eval(*arguments)

    def eval_cost(self, *arguments: Any) -> float:
        with self.during(EVALUATING):
            return super().eval_cost(*arguments)

    def save_params(self, *arguments: Any) -> None:
        with self.during(SAVING):
            super().save_params(*arguments)


# --- trainings -------------------------------------------------------------------------------------------------------


def network(name: str) -> list[Any]:
    """Return the layers of a network of the zoo, or, for "wide", of one whose update takes much of a step."""
    if name == "wide":
        hidden = Affine(4096, Kaiming(local=False), bias=Constant(0), activation=Rectlin())
        return [hidden, zoo.softmax_head(10)]
    return list(zoo.MODELS[name](10))


def weights(runtime: str, name: str, steps: str) -> None:
    """Report the hash of the weights after some steps."""
    be = gen_backend(runtime, rng_seed=5, batch_size=128)
    train, _ = digits().iterators()
    model, remaining = Model(network(name)), int(steps)

    class StopAfter(CallbackBase):
        def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining:
                raise StopIteration

    try:
        model.fit(train, CrossEntropyMulti(), Adam(), 1000, StopAfter())
    except StopIteration:
        emit(sha256=sha256(model), about=be.runtime.version_info(), blas=libraries())


def libraries() -> list[str] | None:
    """Return the BLAS libraries and their threads; None if threadpoolctl is not installed."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return None
    return sorted(f"{x['internal_api']} {x['version'] or '?'}: {x['num_threads']}" for x in threadpool_info())


def augmented(file: str, epochs: str, activity: str) -> None:
    """Train on augmented images and save the model each epoch; resume from its file if there is one."""
    gen_backend("cpu", rng_seed=5, batch_size=32)
    train, valid = digits().iterators(augment=Crop(pad=1))
    model = MonitoredModel(Path(file) if Path(file).exists() else zoo.lenet(10, (4, 8), 16, keep=0.8))
    model.activity = Activity(activity)
    optimizer = model.optimizer or Adam(learning_rate=0.003)
    callbacks = Callbacks(model, eval_set=valid, metric=Accuracy(), progress_bar=False, save_path=file)
    emit(event="fit")
    model.fit(train, CrossEntropyMulti(), optimizer, int(epochs), callbacks)


def saving(file: str, first: str, last: str) -> None:
    """Save a model of a few MB repeatedly; all its values are the number of the save."""
    gen_backend("cpu", rng_seed=5, batch_size=32)
    model = Model(zoo.mlp(10, (768, 768)), dataset=784)
    for number in range(int(first), int(last) + 1):
        model.set_weights({name: np.full_like(w, number) for name, w in model.get_weights().items()})
        model.epoch_index = number
        emit(event="save", number=number)
        model.save_params(file)
        emit(event="saved", number=number)


def interrupted(name: str, file: str, epochs: str, activity: str) -> None:
    """Train to the end, also after Ctrl-C; at each stop, report the position and the hash of the weights.

    Without ``activity``, nobody interrupts it, and it reports both for each step.
    """
    gen_backend("cpu", rng_seed=5, batch_size=32)
    train, valid = digits().iterators()
    model, cost, optimizer = MonitoredModel(network(name)), CrossEntropyMulti(), Adam()
    callbacks = Callbacks(model, eval_set=valid, metric=Accuracy(), progress_bar=False, save_path=file)
    positions, hashes = [], []

    class RecordHashes(Callback):
        def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
            positions.append([model.epoch_index, model.minibatch_index])
            hashes.append(sha256(model))

    def fit() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        emit(event="fit")
        model.fit(train, cost, optimizer, int(epochs), callbacks)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    if activity:
        model.activity = Activity(activity)
    else:
        model.initialize(train)
        positions.append([0, 0])
        hashes.append(sha256(model))
        callbacks.add_callback(RecordHashes())
    event = "stopped"
    while event == "stopped":
        try:
            try:
                fit()
                event = "done"
            except KeyboardInterrupt:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:  # the second of two signals, during the first
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        at = [model.epoch_index, model.minibatch_index]
        emit(event=event, at=at, t=optimizer.t, sha256=sha256(model), positions=positions, hashes=hashes)


def resident() -> int:
    """Return the resident memory of this process, in bytes, without free memory that the C library (glibc) keeps."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def resident_memory(runtime: str, name: str, callbacks: str, warm: str, steps: str, file: str) -> None:
    """Report the resident memory every 500 steps."""
    gen_backend(runtime, rng_seed=5, batch_size=32)
    train, valid = digits().iterators()
    model, first, last = Model(network(name)), int(warm), int(warm) + int(steps)
    samples, done = [], 0

    class RecordMemory(Callback):
        def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
            nonlocal done
            done += 1
            if done >= first and (done - first) % 500 == 0:
                samples.append(resident())
            self.model.finished = done >= last  # at the end of the epoch

    if callbacks == "with":
        run_callbacks = Callbacks(model, eval_set=valid, metric=Accuracy(), progress_bar=False, save_path=file)
    else:
        run_callbacks = Callbacks(model, progress_bar=False)
    run_callbacks.add_callback(RecordMemory())
    model.fit(train, CrossEntropyMulti(), Adam(), sys.maxsize, run_callbacks)
    emit(bytes=samples[: 1 + int(steps) // 500])


if __name__ == "__main__":
    functions = {f.__name__: f for f in (weights, augmented, saving, interrupted, resident_memory)}
    functions[sys.argv[1]](*sys.argv[2:])
