"""What is killed, interrupted and weighed?  Trainings, each a process that tells what it does, in lines of JSON.

python benchmarks/_trainings.py NAME ARGUMENTS, by ``survival.py``.
"""

from __future__ import annotations

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
from neonlite.callbacks import Callback, Callbacks, Listener
from neonlite.data import Crop, digits
from neonlite.initializers import Constant, Kaiming
from neonlite.layers import Affine
from neonlite.models import Model, zoo
from neonlite.optimizers import Adam
from neonlite.transforms import Accuracy, CrossEntropyMulti, Rectlin

STARTING, STEP, BETWEEN, JUDGING, SAVING = range(5)  # what a training does; the one place that says it is a byte


def tell(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def sha256(model: Any) -> str | None:
    """Return the hash of all weights; None when there are none yet."""
    if not model.initialized:
        return None
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights().values())).hexdigest()


# --- what a training does at the moment ------------------------------------------------------------------------------


class Place:
    """A byte in a file that another process sees as well, at once: what a training does."""

    def __init__(self, path: Any) -> None:
        file = Path(path)
        if not file.exists():
            file.write_bytes(bytes(1))
        with open(file, "r+b") as opened:
            self.bytes = mmap.mmap(opened.fileno(), 1)

    def __call__(self) -> int:
        return self.bytes[0]

    def set(self, what: int) -> None:
        self.bytes[0] = what


class Marked(Model):
    """A model that says what it does at the moment."""

    place: Any = None

    @contextmanager
    def doing(self, what: int) -> Iterator[None]:
        if self.place is not None:
            self.place.set(what)
        yield
        if self.place is not None:
            self.place.set(BETWEEN)

    def step(self, *arguments: Any) -> float:
        with self.doing(STEP):
            return super().step(*arguments)

    def eval(self, *arguments: Any) -> Any:
        with self.doing(JUDGING):
            return super().eval(*arguments)

    def eval_cost(self, *arguments: Any) -> float:
        with self.doing(JUDGING):
            return super().eval_cost(*arguments)

    def save_params(self, *arguments: Any) -> None:
        with self.doing(SAVING):
            super().save_params(*arguments)


# --- trainings -------------------------------------------------------------------------------------------------------


def network(name: str) -> list[Any]:
    """Return the layers of a network of the zoo, or of one whose update takes a good part of a step."""
    if name == "wide":
        hidden = Affine(4096, Kaiming(local=False), bias=Constant(0), activation=Rectlin())
        return [hidden, zoo.head(10)]
    return list(zoo.MODELS[name](10))


def weights(runtime: str, name: str, steps: str) -> None:
    """Tell the hash of the weights after some steps."""
    be = gen_backend(runtime, rng_seed=5, batch_size=128)
    train, _ = digits().iterators()
    model, left = Model(network(name)), int(steps)

    class Counting(Listener):
        def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise StopIteration

    try:
        model.fit(train, CrossEntropyMulti(), Adam(), 1000, Counting())
    except StopIteration:
        tell(sha256=sha256(model), about=be.runtime.about(), blas=libraries())


def libraries() -> list[str] | None:
    """Return the libraries for products, and their threads; None when threadpoolctl is not installed."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return None
    return sorted(f"{x['internal_api']} {x['version'] or '?'}: {x['num_threads']}" for x in threadpool_info())


def augmented(file: str, epochs: str, place: str) -> None:
    """Train on images that are changed by chance, and keep the model; go on from its file where there is one."""
    gen_backend("cpu", rng_seed=5, batch_size=32)
    train, valid = digits().iterators(augment=Crop(pad=1))
    model = Marked(Path(file) if Path(file).exists() else zoo.lenet(10, (4, 8), 16, keep=0.8))
    model.place = Place(place)
    optimizer = model.optimizer or Adam(learning_rate=0.003)
    callbacks = Callbacks(model, eval_set=valid, metric=Accuracy(), progress_bar=False, save_path=file)
    tell(event="fit")
    model.fit(train, CrossEntropyMulti(), optimizer, int(epochs), callbacks)


def saving(file: str, first: str, last: str) -> None:
    """Write one model again and again, of a few MB: all its numbers are those of the round."""
    gen_backend("cpu", rng_seed=5, batch_size=32)
    model = Model(zoo.mlp(10, (768, 768)), dataset=784)
    for number in range(int(first), int(last) + 1):
        model.set_weights({name: np.full_like(w, number) for name, w in model.get_weights().items()})
        model.epoch_index = number
        tell(event="save", number=number)
        model.save_params(file)
        tell(event="saved", number=number)


def interrupted(name: str, file: str, epochs: str, place: str) -> None:
    """Train until the end, again after each Ctrl-C; tell where it is and the hash of the weights at every stop.

    Without a ``place`` nobody interrupts it, and it tells both behind every step.
    """
    gen_backend("cpu", rng_seed=5, batch_size=32)
    train, valid = digits().iterators()
    model, cost, optimizer = Marked(network(name)), CrossEntropyMulti(), Adam()
    callbacks = Callbacks(model, eval_set=valid, metric=Accuracy(), progress_bar=False, save_path=file)
    places, hashes = [], []

    class Noting(Callback):
        def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
            places.append([model.epoch_index, model.minibatch_index])
            hashes.append(sha256(model))

    def fit() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tell(event="fit")
        model.fit(train, cost, optimizer, int(epochs), callbacks)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    if place:
        model.place = Place(place)
    else:
        model.initialize(train)
        places.append([0, 0])
        hashes.append(sha256(model))
        callbacks.add_callback(Noting())
    event = "stopped"
    while event == "stopped":
        try:
            try:
                fit()
                event = "done"
            except KeyboardInterrupt:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:  # the second of two came when the first was on its way
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        at = [model.epoch_index, model.minibatch_index]
        tell(event=event, at=at, t=optimizer.t, sha256=sha256(model), places=places, hashes=hashes)


def weighed(runtime: str, name: str, callbacks: str, warm: str, steps: str, file: str) -> None:
    """Tell the resident memory every 500 steps."""
    gen_backend(runtime, rng_seed=5, batch_size=32)
    train, valid = digits().iterators()
    model, first, last = Model(network(name)), int(warm), int(warm) + int(steps)
    page, seen, done = os.sysconf("SC_PAGE_SIZE"), [], 0

    class Weighing(Callback):
        def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
            nonlocal done
            done += 1
            if done >= first and (done - first) % 500 == 0:
                seen.append(int(Path("/proc/self/statm").read_text().split()[1]) * page)
            self.model.finished = done >= last  # at the end of the epoch

    if callbacks == "with":
        many = Callbacks(model, eval_set=valid, metric=Accuracy(), progress_bar=False, save_path=file)
    else:
        many = Callbacks(model, progress_bar=False)
    many.add_callback(Weighing())
    model.fit(train, CrossEntropyMulti(), Adam(), sys.maxsize, many)
    tell(bytes=seen[: 1 + int(steps) // 500])


if __name__ == "__main__":
    works = {f.__name__: f for f in (weights, augmented, saving, interrupted, weighed)}
    works[sys.argv[1]](*sys.argv[2:])
