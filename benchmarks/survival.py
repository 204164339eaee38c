"""Survival: training processes that are killed, interrupted, run for long, and predict in several threads.

python benchmarks/survival.py            # hours: writes results/survival.json and results/survival.md
python benchmarks/survival.py --quick    # one minute: writes nothing
python benchmarks/survival.py --only interrupted
python benchmarks/survival.py --only soak --minutes 5
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from _disturbed import disturbed
from _failures import failing
from _table import machine, markdown, save
from _trainings import BETWEEN, EVALUATING, SAVING, STARTING, STEP, Activity

from neonlite import gen_backend
from neonlite.callbacks import CallbackBase
from neonlite.data import ArrayIterator, digits
from neonlite.files import PART
from neonlite.models import CheckpointError, Model
from neonlite.models.training_state import read_checkpoint
from neonlite.models.zoo import mlp
from neonlite.optimizers import GradientDescentMomentum
from neonlite.transforms import CrossEntropyMulti

RUNTIMES = ["cpu", *(["mkl"] if find_spec("mkl") else [])]
ACTIVITIES = {STARTING: "starting", STEP: "step", BETWEEN: "between", EVALUATING: "evaluating", SAVING: "saving"}
MB = 1e6  # bytes
HEADER_BYTES = 64  # by which files of one network differ: numbers in their JSON header have more or fewer digits
Row = dict[str, Any]

NOTE = """\
**same seed**: processes that train a network on the digits with batches of 128, and the hash of all weights after the
last step. Results for different numbers of threads may differ, as OpenBLAS and MKL add up in another order.
**killed**: `kill -9`, repeatedly until training ends; each process but the first resumes from the checkpoint, if there
is one yet. The final file must equal that of an uninterrupted training. `neonlite train digits` is the command line,
with dropout and shuffling; it is also ended by Ctrl-C, upon which it saves. "augmented" is a convolutional network with
batch norm, dropout, shuffling and augmentation. The kills are at random times, or during a save or an evaluation.
**killed while saving**: a process repeatedly saves a model of some MB, and is killed during a save. The file must be a
complete one of those that were written, and there may be at most one temporary file `.part`, which the next save
removes.
**interrupted**: Ctrl-C. The weights must be those of the complete step that the model reports, and `fit`, called again
in the same process, must end with the weights of the uninterrupted training. "twice": a second Ctrl-C directly after
the first aborts evaluation and saving, but no training step.
**failing**: a MemoryError at a random line of neonlite, once in each step, and in the first step of some new trainings.
Weights, running statistics, recurrent states, optimizer states and counters, and random streams must be those before or
those after the step, bit by bit; `fit`, called again, must continue with the bits of the training without errors. Lines
of `with`, where a trace function would skip the exit of the context, and `__del__` are left out; so is the last write
of a step: a single assignment, whose memory is allocated before.
**disturbed**: calls for seven networks (perceptron, convolution, batch norm and dropout, LSTM with recurrent state,
attention, autoencoder, branches), with an error at a random line, as in "failing", or a SIGINT at a random time: fit
from its set-up on, with a partial last minibatch, evaluation, prediction, saving and loading. Afterwards the model must
be in its state before the call, or, if it loads, in that of the complete call. The same call must then return the same
bits, training must end with those of an undisturbed one, and another thread must be able to acquire the lock.
**soak**: one process that changes shapes, trains new models, and creates and deletes backends; the growth of the
resident memory after a warm-up of a third of the time, and of at least four tasks per second of the whole time. Up to
20 MB are allowed.
**memory**: the growth of the resident memory of a process, with batches of 32 and Adam; "callbacks" are validation, a
metric and a save each epoch. Free memory that glibc keeps is returned to the system before each sample (malloc_trim),
here and in the soak. Up to 2 MB are allowed, as Python gets its memory in arenas of 1 MB.
**predicted**: threads that predict 1 to 200 rows with one model, alone and during a `fit` in another thread. A
prediction is correct if it has the bits of one made after a step of the same training without threads. "states seen" is
the maximum number of different steps that a thread saw. The final weights must be those of that training."""


# --- processes -------------------------------------------------------------------------------------------------------


def environment(threads: int = 1) -> dict[str, str]:
    """Return the environment variables of a process with some threads."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(threads)), "PYTHONUNBUFFERED": "1"}


class Training:
    """A process of ``_trainings.py``, or of a command, and the events that it reports."""

    def __init__(self, *arguments: Any, threads: int = 1, command: Sequence[str] = (), quiet: bool = False) -> None:
        script = str(Path(__file__).parent / "_trainings.py")
        line = [*command, *map(str, arguments)] if command else [script, *map(str, arguments)]
        errors = subprocess.DEVNULL if quiet else None
        self.process = subprocess.Popen(
            [sys.executable, *line], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment(threads)
        )

    def line(self) -> str:
        """Return the next line; "" at the end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def event(self) -> dict[str, Any]:
        """Return the next event; raise RuntimeError if the process has ended."""
        line = self.line()
        if not line:
            raise RuntimeError(f"{' '.join(self.process.args[1:])} ended with {self.process.wait()}")  # type: ignore
        return dict(json.loads(line))

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self, by: int = signal.SIGKILL) -> None:
        """End the process by a signal, as `kill -9` does."""
        self.process.send_signal(by)
        self.close()

    def close(self) -> int:
        """Return the exit status."""
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait()

    @property
    def runs(self) -> bool:
        return self.process.poll() is None


def wait_for_result(training: Training) -> dict[str, Any]:
    """Return the last event of a training; raise RuntimeError if it fails."""
    found: dict[str, Any] = {}
    while line := training.line():
        found = json.loads(line)
    if status := training.close():
        raise RuntimeError(f"{training.process.args} ended with {status}")
    return found


def busy_wait(condition: Callable[[], bool], training: Training, limit: float = 20.0) -> None:
    """Wait, without yielding the CPU, until a condition is true or a training ends."""
    end = time.perf_counter() + limit
    while not condition() and time.perf_counter() < end:
        if not training.runs:
            return


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def temporary(file: Path) -> list[Path]:
    """Return the temporary files of a file."""
    return list(file.parent.glob(f"{file.name}.*{PART}"))


# --- the same seed ---------------------------------------------------------------------------------------------------


def same_seed(
    steps: int = 200, processes: int = 3, runtimes: Sequence[str] = RUNTIMES, threads: Sequence[int] = (1, 2)
) -> list[Row]:
    """Return the hashes of the weights for each runtime, network and number of threads."""
    rows = []
    for runtime in runtimes:
        for name in ("mlp", "lenet"):
            for n in threads:
                results = [
                    wait_for_result(Training("weights", runtime, name, steps, threads=n)) for _ in range(processes)
                ]
                hashes = [x["sha256"] for x in results]
                rows.append(
                    {"what": f"{runtime}, {name}", "threads": n, "steps": steps, "processes": processes}
                    | {"about": results[0]["about"], "blas": results[0]["blas"], "sha256": sorted(set(hashes))}
                    | {"held": len(set(hashes)) == 1}
                )
    return rows


# --- killed ----------------------------------------------------------------------------------------------------------


def killed(kills: int = 20, epochs: int = 60, by: int = signal.SIGKILL, seed: int = 0) -> list[Row]:
    """Kill trainings of the command line at random times and during saves, or end them by Ctrl-C."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        straight, file = folder / "straight.neon", folder / "killed.neon"

        def start(save_to: Path, *more: str) -> Training:
            options = [
                "-b",
                "cpu",
                "-e",
                str(epochs),
                "--no-progress-bar",
                "--patience",
                "0",
                "--save",
                str(save_to),
                *more,
            ]
            return Training(*options, command=["-m", "neonlite.cli", "train", "digits"], quiet=by == signal.SIGINT)

        def is_saving(since: int) -> bool:
            try:
                return any(part.stat().st_mtime_ns > since for part in temporary(file))
            except FileNotFoundError:
                return False

        clock = time.perf_counter()
        training = start(straight)
        training.line()
        starting = time.perf_counter() - clock
        while training.line():
            pass
        training.close()
        epoch = (time.perf_counter() - clock - starting) / epochs
        expected, when, ends = digest(straight), Counter[str](), []
        while sum(when.values()) < kills:
            file.unlink(missing_ok=True)
            for part in temporary(file):
                part.unlink()
            while True:
                start_ns = time.time_ns()
                training = start(file, *(["--resume", str(file)] if file.exists() else []))
                count = sum(when.values())
                if count >= kills:
                    while training.line():
                        pass
                    ends.append((training.close(), digest(file) == expected))
                    break
                started = False
                if count % 4 == 0:
                    time.sleep(rng.uniform(0, starting + epoch))
                else:
                    started = bool(training.line())
                    time.sleep(rng.uniform(0, 4 * epoch))
                    if count % 4 == 1:
                        since = max(start_ns, time.time_ns() - 1_000_000)
                        busy_wait(lambda since=since: is_saving(since), training)
                if not training.runs:  # training has ended
                    ends.append((training.close(), digest(file) == expected))
                    break
                training.kill(by)
                during_save = is_saving(start_ns)
                first = "" if file.exists() else ", no file yet"
                when[("saving" if during_save else "in an epoch" if started else "starting") + first] += 1
    held = all(status == 0 and same for status, same in ends)
    what = "neonlite train digits" + (", Ctrl-C" if by == signal.SIGINT else "")
    row = {"what": what, "kills": kills, "when": dict(when), "trainings": len(ends), "held": held}
    return [row | {"sha256": expected}]


def killed_augmented(kills: int = 20, epochs: int = 12, seed: int = 0) -> list[Row]:
    """Kill trainings with augmentation during each kind of activity."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        straight, file, mark = folder / "straight.neon", folder / "killed.neon", folder / "activity"
        training = Training("augmented", straight, epochs, mark)
        training.event()
        clock = time.perf_counter()
        wait_for_result(training)
        epoch = (time.perf_counter() - clock) / epochs
        expected, when, ends, activity = digest(straight), Counter[str](), [], Activity(mark)
        while sum(when.values()) < kills:
            file.unlink(missing_ok=True)
            while True:
                activity.set(STARTING)
                training = Training("augmented", file, epochs, mark)
                count = sum(when.values())
                if count >= kills:
                    wait_for_result(training)
                    ends.append(digest(file) == expected)
                    break
                training.event()
                time.sleep(rng.uniform(0, 1.5 * epoch))
                aim = (STEP, SAVING, EVALUATING, None)[count % 4]
                if aim is not None:
                    busy_wait(lambda aim=aim: activity() != aim, training)
                    busy_wait(lambda aim=aim: activity() == aim, training)
                    pause = time.perf_counter() + rng.uniform(0, 0.001)
                    busy_wait(lambda end=pause, aim=aim: time.perf_counter() > end or activity() != aim, training)
                if not training.runs:
                    training.close()
                    ends.append(digest(file) == expected)
                    break
                training.kill()
                when[ACTIVITIES[activity()] + ("" if file.exists() else ", no file yet")] += 1
    row = {"what": "augmented", "kills": kills, "when": dict(when), "trainings": len(ends), "held": all(ends)}
    return [row | {"sha256": expected}]


def killed_while_saving(kills: int = 100, seed: int = 0) -> list[Row]:
    """Kill a process during saves; check that the file is complete, and count other files."""
    rng, when, last, unreadable, inconsistent, other_files = random.Random(seed), Counter[str](), 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "model.neon"
        durations: list[float] = []  # of a save, in seconds
        for _ in range(kills):
            training = Training("saving", file, last + 1, sys.maxsize)
            for _ in range(3 if durations else 12):  # complete saves first
                finished = training.event()["number"]
                clock = time.perf_counter()
                training.event()
                durations.append(time.perf_counter() - clock)
            training.event()
            most = statistics.median(durations)
            if sum(when.values()) % 2:  # as soon as there is a temporary file, or a little later
                busy_wait(lambda: bool(temporary(file)), training, most)
                most /= 4
            end = time.perf_counter() + rng.uniform(0, most)
            busy_wait(lambda end=end: time.perf_counter() > end, training)
            training.kill()
            parts = temporary(file)
            size = parts[-1].stat().st_size if parts else -1
            whole_size = file.stat().st_size
            is_complete = "complete, not yet renamed" if abs(size - whole_size) < HEADER_BYTES else "incomplete"
            when["the new file " + is_complete if size >= 0 else "no temporary file"] += 1
            other_files += len(list(file.parent.iterdir())) - 1 - bool(parts)
            try:
                description, arrays = read_checkpoint(file)
            except CheckpointError:
                unreadable += 1
                continue
            values = {float(x) for array in arrays.values() for x in (array.min(), array.max())}
            last = description["training"]["epoch_index"]
            inconsistent += values != {float(last)} or last < finished
        size = file.stat().st_size
        file.with_name(f"{file.name}.{'0' * 16}{PART}").write_bytes(bytes(2 * size))
        wait_for_result(Training("saving", file, last + 1, last + 1))
        again = read_checkpoint(file)[0]["training"]["epoch_index"] == last + 1
        removed = again and [path.name for path in file.parent.iterdir()] == [file.name]
    row = {"what": "Model.save_params", "kills": kills, "when": dict(when), "bytes": size, "unreadable": unreadable}
    row |= {"not one of the states": inconsistent, "other files": other_files, "a leftover is removed": removed}
    row |= {"seconds of a save": statistics.median(durations)}
    return [row | {"held": not (unreadable or inconsistent or other_files) and removed}]


# --- interrupted -----------------------------------------------------------------------------------------------------


def interrupted(stops: int = 50, name: str = "mlp", epochs: int = 8, twice: bool = False, seed: int = 0) -> list[Row]:
    """Send Ctrl-C at random times, and during evaluations and saves; once, or twice."""
    rng = random.Random(seed)
    when, wrong, misplaced, ends, done = Counter[str](), 0, 0, [], 0
    with tempfile.TemporaryDirectory() as folder:
        file, mark = Path(folder) / "model.neon", Path(folder) / "activity"
        training = Training("interrupted", name, file, epochs, "")
        training.event()
        clock = time.perf_counter()
        straight = wait_for_result(training)
        epoch_seconds = (time.perf_counter() - clock) / epochs
        hashes = straight["hashes"]
        step_of = {tuple(at): i for i, at in enumerate(straight["positions"])}
        for epoch in range(1, epochs + 1):
            step_of[epoch, 0] = max(i for (e, _), i in step_of.items() if e < epoch)
        activity = Activity(mark)
        while done < stops:
            activity.set(STARTING)
            training = Training("interrupted", name, file, epochs, mark)
            while training.event()["event"] == "fit":
                if done < stops:
                    aim = (None, None, None, EVALUATING, SAVING)[done % 5]
                    time.sleep(rng.uniform(0, epoch_seconds))
                    if aim is not None:
                        busy_wait(lambda aim=aim: activity() != aim, training)
                        busy_wait(lambda aim=aim: activity() == aim, training, 2 * epoch_seconds)
                    elif twice:
                        busy_wait(lambda: activity() == STEP, training, epoch_seconds)
                    before = activity()
                    training.send(signal.SIGINT)
                    if twice:
                        pause = time.perf_counter() + rng.uniform(0.0001, 0.004)
                        busy_wait(lambda end=pause: time.perf_counter() > end, training)
                        training.send(signal.SIGINT)
                event = training.event()
                if event["event"] == "done":
                    break
                done += 1
                when[ACTIVITIES[before]] += 1
                step = step_of.get(tuple(event["at"]))
                if event["sha256"] is not None:
                    wrong += event["sha256"] not in hashes
                    misplaced += event["sha256"] in hashes and (
                        step is None or hashes[step] != event["sha256"] or event["t"] != step
                    )
            ends.append(event["sha256"] == hashes[-1])
            training.close()
    row = {"what": f"{name}, {'twice' if twice else 'once'}", "stops": done, "when": dict(when)}
    row |= {"not of a whole step": wrong, "not of its step": misplaced, "trainings": len(ends)}
    row |= {"other bits at the end": ends.count(False)}
    return [row | {"held": not wrong and not misplaced and all(ends)}]


# --- memory ----------------------------------------------------------------------------------------------------------


def memory(
    steps: int = 10_000, warm: int = 2500, names: Sequence[str] = ("mlp", "lenet"), runtimes: Sequence[str] = RUNTIMES
) -> list[Row]:
    """Measure the memory of training processes."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for runtime in runtimes:
            for name in names:
                for callbacks in ("without", "with"):
                    file = Path(folder) / "model.neon"
                    training = Training("resident_memory", runtime, name, callbacks, warm, steps, file)
                    seen = wait_for_result(training)["bytes"]
                    grown = seen[-1] - seen[0]
                    rows.append(
                        {"what": f"{runtime}, {name}, {callbacks} callbacks", "steps": steps, "warm": warm}
                        | {"bytes": seen, "grown": grown, "held": grown < 2 * MB}
                    )
    return rows


# --- several threads -------------------------------------------------------------------------------------------------


def predicted(threads: int = 8, each: int = 1000, runtimes: Sequence[str] = RUNTIMES) -> list[Row]:
    """Predict with one model in several threads, alone and during a ``fit``, with different numbers of rows.

    During a fit, a prediction is correct if it has the bits of a training that pauses after each step to predict.
    """
    (X, y), (queries, _) = digits().train, digits().test
    widths = [1, 1, 1, 2, 14, 64, 128, 200]
    asked = [queries[k : k + widths[k % len(widths)]] for k in range(threads)]

    def model(runtime: str) -> tuple[Model, ArrayIterator]:
        gen_backend(runtime, rng_seed=1, batch_size=128)
        train = ArrayIterator(X, y, nclass=10, shuffle=True, partial_last=True)
        return Model(mlp(), train), train

    def fit(model: Model, train: ArrayIterator, epochs: int, callbacks: CallbackBase) -> None:
        model.fit(train, CrossEntropyMulti(), GradientDescentMomentum(0.01, 0.9), epochs, callbacks)

    class RecordPredictions(CallbackBase):
        """Adds the predictions after each step to the correct ones."""

        def __init__(self, model: Model, right: list[set[bytes]]) -> None:
            self.model, self.right = model, right
            self.on_minibatch_end(0, 0)

        def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
            for known, rows in zip(self.right, asked, strict=True):
                known.add(self.model.predict(rows).tobytes())

    class StopWithWorkers(CallbackBase):
        """Ends a training when all threads have."""

        def __init__(self, model: Model, workers: list[threading.Thread]) -> None:
            self.model, self.workers = model, workers

        def on_epoch_end(self, epoch: int) -> None:
            self.model.finished = not any(worker.is_alive() for worker in self.workers)

    rows = []
    for runtime in runtimes:
        for with_fit in (False, True):
            net, train = model(runtime)
            found: list[Counter[bytes]] = [Counter() for _ in asked]
            errors: list[BaseException] = []

            def work(k: int, net: Model = net, found: Any = found, errors: Any = errors) -> None:
                try:
                    for _ in range(each):
                        found[k][net.predict(asked[k]).tobytes()] += 1
                except BaseException as error:
                    errors.append(error)

            workers = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
            for worker in workers:
                worker.start()
            if with_fit:
                fit(net, train, sys.maxsize, StopWithWorkers(net, workers))
            for worker in workers:
                worker.join()
            size, epochs, weights = net.be.bsz, net.epoch_index, net.get_weights().values()
            right: list[set[bytes]] = [set() for _ in asked]
            again, train = model(runtime)
            recorder = RecordPredictions(again, right)
            if epochs:
                fit(again, train, epochs, recorder)
            same = all(map(np.array_equal, weights, again.get_weights().values()))
            wrong = sum(n for known, got in zip(right, found, strict=True) for x, n in got.items() if x not in known)
            row = {"what": f"{runtime}, {'during a fit' if with_fit else 'alone'}", "threads": threads}
            row |= {"predictions": sum(sum(got.values()) for got in found), "states": max(map(len, found))}
            row |= {"wrong": wrong, "errors": len(errors), "steps": epochs * train.nbatches}
            row |= {"weights": same, "batch size": size}
            rows.append(row | {"held": not wrong and not errors and same and size == 128})
    return rows


def soak(
    minutes: float = 20, runtimes: Sequence[str] = RUNTIMES, cached_primitives: int = 2048, most: float = 20 * MB
) -> list[Row]:
    """Measure the memory of processes that change shapes, models and backends."""
    rows = []
    for runtime in runtimes:
        script = str(Path(__file__).parent / "_soak.py")
        found = wait_for_result(Training(runtime, 60 * minutes, 1, cached_primitives, command=[script]))
        warm, rest = ([b for t, b in found["seen"] if (t > found["warm_up"]) == late] for late in (False, True))
        grown = max(rest) - max(warm)
        rows.append(
            {"what": runtime, "minutes": minutes, "done": found["done"], "seen": found["seen"]}
            | {"bytes": max(warm), "grown": grown, "held": grown < most}
        )
    return rows


# --- tables ----------------------------------------------------------------------------------------------------------


def format_counts(when: dict[str, int]) -> str:
    return ", ".join(f"{n} {word}" for word, n in sorted(when.items(), key=lambda item: -item[1]))


def format_held(row: Row) -> str:
    return "yes" if row["held"] else "NO !"


TABLES: dict[str, tuple[list[str], Callable[[Row], list[str]]]] = {
    "same seed": (
        ["same seed", "threads", "steps", "processes", "weights", "libraries", "held"],
        lambda r: [
            *(r["what"], str(r["threads"]), str(r["steps"]), str(r["processes"])),
            *(", ".join(x[:12] for x in r["sha256"]), "; ".join(r["blas"] or [r["about"]]), format_held(r)),
        ],
    ),
    "killed": (
        ["killed", "kills", "when", "trainings", "final file", "held"],
        lambda r: [
            *(r["what"], str(r["kills"]), format_counts(r["when"]), str(r["trainings"])),
            *(("equal" if r["held"] else "different"), format_held(r)),
        ],
    ),
    "killed while saving": (
        ["killed while saving", "kills", "file", "when", "unreadable", "not one of the states", "other files", "held"],
        lambda r: [
            *(r["what"], str(r["kills"]), f"{r['bytes'] / MB:.1f} MB", format_counts(r["when"])),
            *(str(r[word]) for word in ("unreadable", "not one of the states", "other files")),
            format_held(r),
        ],
    ),
    "interrupted": (
        ["interrupted", "times", "when", "not of a complete step", "not of its step", "other final weights", "held"],
        lambda r: [
            *(r["what"], str(r["stops"]), format_counts(r["when"])),
            *(str(r[word]) for word in ("not of a whole step", "not of its step")),
            *(f"{r['other bits at the end']} of {r['trainings']}", format_held(r)),
        ],
    ),
    "soak": (
        ["soak", "minutes", "done", "after the warm-up", "growth", "held"],
        lambda r: [
            *(r["what"], f"{r['minutes']:g}", format_counts(r["done"]), f"{r['bytes'] / MB:.0f} MB"),
            *(f"{r['grown'] / MB:.1f} MB", format_held(r)),
        ],
    ),
    "failing": (
        ["failing", "errors", "state before the step", "state after it", "another state", "held"],
        lambda r: [
            r["what"],
            *(str(r[word]) for word in ("errors", "before", "after")),
            str(len(r["wrong"])),
            format_held(r),
        ],
    ),
    "disturbed": (
        ["disturbed", "networks", "times", "wrong", "held"],
        lambda r: [
            *(r["what"], str(r["networks"]), f"{r['times']:,}", str(len(r["wrong"]))),
            format_held(r),
        ],
    ),
    "memory": (
        ["memory", "steps", "initial", "growth", "held"],
        lambda r: [
            *(r["what"], f"{r['steps']:,} after {r['warm']}", f"{r['bytes'][0] / MB:.1f} MB"),
            *(f"{r['grown'] / 1000:,.0f} kB", format_held(r)),
        ],
    ),
    "predicted": (
        ["predicted", "threads", "predictions", "steps", "states seen", "wrong", "errors", "weights", "held"],
        lambda r: [
            *(r["what"], str(r["threads"]), f"{r['predictions']:,}", f"{r['steps']:,}", f"{r['states']:,}"),
            *(str(r["wrong"]), str(r["errors"]), "equal" if r["weights"] else "different", format_held(r)),
        ],
    ),
}


def full(minutes: float = 20) -> dict[str, Callable[[], list[Row]]]:
    """Return the functions of all tables."""
    return {
        "same seed": same_seed,
        "killed": lambda: killed() + killed(by=signal.SIGINT) + killed_augmented(),
        "killed while saving": killed_while_saving,
        "interrupted": lambda: interrupted() + interrupted(25, "wide", 4) + interrupted(50, "wide", 6, twice=True),
        "failing": failing,
        "disturbed": disturbed,
        "memory": memory,
        "predicted": predicted,
        "soak": lambda: soak(minutes),
    }


def quick() -> dict[str, Callable[[], list[Row]]]:
    """Return short forms of the same functions."""
    return {
        "same seed": lambda: same_seed(processes=2, threads=(1,)),
        "killed": lambda: killed(4, 12) + killed_augmented(4, 3),
        "killed while saving": lambda: killed_while_saving(8),
        "interrupted": lambda: interrupted(8, epochs=4) + interrupted(8, "wide", 2, twice=True),
        "failing": lambda: failing(60, 5),
        "disturbed": lambda: disturbed(2, 2),
        "memory": lambda: memory(2000, 500, ["mlp"], ["cpu"]),
        "predicted": lambda: predicted(8, 50, ["cpu"]),
        "soak": lambda: soak(1, ["cpu"], cached_primitives=128, most=50 * MB),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the short form, of which nothing is written")
    parser.add_argument("--only", default="", metavar="WORD", help="the tables with this word; nothing is written")
    parser.add_argument("--minutes", type=float, default=20, metavar="N", help="of the soak test of each runtime")
    options = parser.parse_args()
    functions = {
        name: function
        for name, function in (quick() if options.quick else full(options.minutes)).items()
        if options.only in name
    }
    about = machine("numpy", "mkl", "safetensors") | {"threads": "1, unless a table says otherwise"}
    results, tables = {}, []
    for name, function in functions.items():
        clock = time.perf_counter()
        results[name] = function()
        print(f"{name}: {time.perf_counter() - clock:.0f} s", file=sys.stderr)
        head, cells = TABLES[name]
        tables.append(markdown(head, map(cells, results[name])))
    details = "\n".join(f"- {key}: {value}" for key, value in about.items())
    command = f"`{' '.join(['python benchmarks/survival.py', *sys.argv[1:]])}`"
    page = "\n\n".join(["# Survival", command, details, NOTE, *tables]) + "\n"
    print(page)
    if not (options.quick or options.only):
        save("survival", {"machine": about, **results}, page)
    return int(not all(row["held"] for rows in results.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
