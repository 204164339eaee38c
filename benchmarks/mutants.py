"""Mutants: model files with one or two changed entries are refused, or the model that they describe is used.

python benchmarks/mutants.py            # twenty minutes: writes results/mutants.json and results/mutants.md
python benchmarks/mutants.py --quick    # half a minute: writes nothing
python benchmarks/mutants.py --only text --count 500 --first 3000
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
import queue
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from _table import cpus, machine, markdown, save

from neonlite import gen_backend
from neonlite.callbacks import EarlyStop
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import (
    LRN,
    LSTM,
    Affine,
    BatchNorm,
    BiLSTM,
    Conv,
    Deconv,
    Dropout,
    LookupTable,
    MergeBroadcast,
    Pooling,
    RecurrentLast,
    RecurrentMean,
    RecurrentSum,
    Reshape,
)
from neonlite.models import CheckpointError, Model
from neonlite.models.training_state import read_checkpoint, write_checkpoint
from neonlite.optimizers import Adam, GradientDescentMomentum, PowerSchedule
from neonlite.transforms import Logistic, Rectlin, Softmax, Tanh

MAX_BYTES = 1_000_000_000  # of memory that loading, predicting, evaluating and training may take
MAX_SECONDS = 5.0  # of CPU time
MAX_WAIT = 120.0  # seconds until a process that does not answer is killed

NOTE = """\
Each row is one kind of model, saved with its training state. A mutant is its file with one or two changed entries of
the description or the arrays (values, types, lengths, shapes, names, duplicates, deletions, swaps, huge and negative
numbers, NaN), and with valid checksums. It is loaded, and predicts, evaluates and trains for one more epoch.
**refused**: by CheckpointError. **same**: all results have the bits of the original. **another value**: the entry has
another valid value, which nothing else in the file contradicts, and results differ; the last table counts them.
**bad**: another exception, other results although the file contradicts itself, more than 1 GB, or more than 5 s."""

Description = dict[str, Any]
Arrays = dict[str, Any]
Path_ = tuple[Any, ...]


# --- models ----------------------------------------------------------------------------------------------------------


def rows(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def classifier() -> tuple[Model, Any, Any]:
    X, model = rows(30, 4), Model([dense(6, Rectlin()), Dropout(0.9, name="drop"), dense(3, Softmax(), "out")])
    y = np.array([3, 5, 9])[np.argmax(X[:, :3], axis=1)]
    return fitted(model, X, y, **CALLBACKS["classifier"]())


def table() -> tuple[Model, Any, Any]:
    rng = random.Random(0)
    colors = [rng.choice(["red", "green", "unknown"]) for _ in range(30)]
    X = {"size": rows(30).tolist(), "color": colors, "weight": (3 + rows(30, seed=1)).tolist()}
    y = ["big" if x > 0 else "small" for x in X["size"]]
    return fitted(Model([dense(4, Rectlin()), dense(1, Logistic(), "out")]), X, y)


def regressor() -> tuple[Model, Any, Any]:
    X = rows(30, 3)
    schedule = GradientDescentMomentum(0.01, 0.9, schedule=PowerSchedule(2, 0.5))
    return fitted(Model([dense(5, Tanh()), dense(2, None, "out")]), X, X[:, :2] * 7 + 100, optimizer=schedule)


def autoencoder() -> tuple[Model, Any, Any]:
    return fitted(Model([dense(3, Tanh()), dense(5, None, "out")]), rows(30, 5), None)


def labels() -> tuple[Model, Any, Any]:
    X = rows(30, 3)
    return fitted(Model([dense(2, Logistic(), "out")]), X, (X[:, :2] > 0) * 1)


def text() -> tuple[Model, Any, Any]:
    rng = random.Random(0)
    X = [" ".join(rng.choices(["good", "bad", "fine", "poor", "film", "plot"], k=rng.randint(2, 9))) for _ in range(30)]
    layers = [LookupTable(8, 4, Gaussian(), pad_idx=0, name="table"), RecurrentMean(name="mean")]
    return fitted(Model([*layers, dense(2, Softmax(), "out")]), X, ["good" in x for x in X])


def tokens() -> tuple[Model, Any, Any]:
    X = np.random.default_rng(0).integers(0, 7, (30, 5))
    lstm = LSTM(4, Gaussian(), activation=Tanh(), gate_activation=Logistic(), name="lstm")
    return fitted(Model([LookupTable(7, 3, Gaussian(), name="table"), lstm, dense(7, Softmax(), "out")]), X, X[:, ::-1])


def sequence() -> tuple[Model, Any, Any]:
    X = rows(30, 3, 6)
    lstm = LSTM(4, Gaussian(), activation=Tanh(), gate_activation=Logistic(), name="lstm")
    layers = [lstm, RecurrentLast(name="last"), dense(2, Softmax(), "out")]
    return fitted(Model(layers), X, (X.sum(axis=(1, 2)) > 0) * 1, layout="NFT")


def images() -> tuple[Model, Any, Any]:
    X = np.random.default_rng(0).integers(0, 256, (24, 6, 6, 3)).astype(np.uint8)
    layers = [
        Conv((3, 3, 4), Gaussian(), padding=1, activation=Rectlin(), name="conv"),
        BatchNorm(name="norm"),
        Pooling(2, strides=2, name="pool"),
        dense(3, Softmax(), "out"),
    ]
    return fitted(Model(layers), X, ["abc"[i % 3] for i in range(24)])


def mixed() -> tuple[Model, Any, Any]:
    X = rows(16, 3, 6, 6)
    layers = [
        MergeBroadcast(
            [Conv((3, 3, 2), Gaussian(), padding=2, dilation=2, name="a"), Conv((1, 1, 2), Gaussian(), name="b")],
            "depth",
        ),
        LRN(3, name="lrn"),
        Deconv((2, 2, 2), Gaussian(), strides=2, name="up"),
        Pooling(3, "avg", strides=2, padding=1, name="pool"),
        Reshape((2, 36), name="steps"),
        BiLSTM(4, Gaussian(), activation=Tanh(), gate_activation=Logistic(), name="bi"),
        RecurrentSum(name="sum"),
        dense(2, Softmax(), "out"),
    ]
    return fitted(Model(layers), X, np.arange(16) % 2, layout="NCHW")


KINDS: dict[str, Callable[[], tuple[Model, Any, Any]]] = {
    f.__name__: f for f in (classifier, table, regressor, autoencoder, labels, text, tokens, sequence, images, mixed)
}


def dense(n: int, activation: Any, name: str = "hidden") -> Any:
    return Affine(n, Gaussian(scale=0.3), bias=Constant(0), activation=activation, name=name)


CALLBACKS: dict[str, Callable[[], dict[str, Any]]] = {
    "classifier": lambda: {"validation_split": 0.2, "callbacks": [EarlyStop(5)]}
}


def fitted(model: Model, X: Any, y: Any, **options: Any) -> tuple[Model, Any, Any]:
    options = {"optimizer": Adam(), **options}
    model.fit(X, y, epochs=2, batch_size=8, progress_bar=False, **options)
    model.metadata = {"note": "of the sample"}
    return model, X, y


class Sample:
    """A model file, and what its model does with its data."""

    def __init__(self, kind: str, folder: Path) -> None:
        gen_backend("cpu", rng_seed=1)
        model, self.X, self.y = KINDS[kind]()
        self.options = CALLBACKS.get(kind, dict)
        self.file = folder / f"{kind}.neon"
        model.save_params(self.file)
        self.description, self.arrays = read_checkpoint(self.file)
        self.expected: list[str] = []
        self.expected = [digest for _, digest in self.use(self.file)]

    def use(self, file: Path) -> Iterator[tuple[str, str]]:
        """Yield what is done with a file, and the hash of the result."""
        model = Model(file)
        yield "predict", digest(model.predict(self.X))
        if self.y is not None:
            if model.target_encoder is None or hasattr(model.target_encoder, "classes"):
                yield "predict_classes", digest(model.predict_classes(self.X))
            yield "evaluate", json.dumps(model.evaluate(self.X, self.y), default=lambda x: x.tolist())
        model.fit(self.X, self.y, epochs=1, batch_size=8, progress_bar=False, **self.options())
        yield "fit", digest(*model.get_weights().values())


def digest(*arrays: Any) -> str:
    hashed = hashlib.sha256()
    for array in arrays:
        hashed.update(f"{array.dtype} {array.shape}".encode())
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()[:16]


# --- mutations -------------------------------------------------------------------------------------------------------

HUGE = (10**6, 10**9, 2**31, 2**63, 10**12, 10**400)
ARRAY_MUTATIONS = (
    *("value", "value", "nan", "dtype", "dtype", "transpose", "flatten", "longer", "shorter", "axis", "empty"),
    *("delete", "rename", "copy", "exchange", "more"),
)
Change = tuple[str, str, bool]  # the path of an entry, what was done, and whether the value is another of its type


def mutate(description: Description, arrays: Arrays, rng: random.Random) -> list[Change]:
    """Change one or two entries, and return what was done."""
    changes = []
    for _ in range(rng.choice((1, 1, 2))):
        choice = rng.random()
        if choice < 0.25 and arrays:
            changes.append(mutate_array(arrays, rng))
        elif choice < 0.35:
            changes.append(mutate_everywhere(description, rng))
        else:
            changes.append(mutate_entry(description, rng))
    return changes


def walk(value: Any, path: Path_ = ()) -> Iterator[tuple[Any, Any, Path_]]:
    """Yield (container, key, path) of all entries."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, x in items:
        yield value, key, (*path, key)
        yield from walk(x, (*path, key))


def mutate_entry(description: Description, rng: random.Random) -> Change:
    """Change an entry of the description, which is found by a random descent, or is any entry of the network."""
    parent, key, path = description, rng.choice([*description]), ()
    if is_any := rng.random() < 0.5:
        places = [x for x in walk(description) if x[2][0] in ("layers", "in_shape", "encoders", "preprocessing")]
        parent, key, path = rng.choice(places)
        value, path = parent[key], path[:-1]
    while not is_any:
        path = (*path, key)
        value = parent[key]
        if not isinstance(value, dict | list) or not value or rng.random() < 0.15:
            break
        parent, key = value, rng.choice([*value] if isinstance(value, dict) else range(len(value)))
    if is_any:
        path = (*path, key)
    if rng.random() < 0.12:
        return name(path), *mutate_position(parent, key, rng)
    parent[key], what, is_value = other_value(value, rng)
    return name(path), what, is_value


def mutate_position(parent: Any, key: Any, rng: random.Random) -> tuple[str, bool]:
    """Delete, repeat, rename, insert or exchange an entry of a dict or list."""
    if isinstance(parent, dict):
        other = rng.choice([*parent])
        what = rng.choice(("delete", "rename", "exchange", "copy"))
        if what == "delete":
            del parent[key]
        elif what == "rename":
            parent[f"{key}x"] = parent.pop(key)
        elif what == "exchange":
            parent[key], parent[other] = parent[other], parent[key]
        else:
            parent[key] = copy.deepcopy(parent[other])
        return what, what in ("exchange", "copy") and type(parent.get(key)) is type(parent.get(other))
    other = rng.randrange(len(parent))
    what = rng.choice(("delete", "repeat", "exchange", "copy"))
    if what == "delete":
        del parent[key]
    elif what == "repeat":
        parent.insert(other, copy.deepcopy(parent[key]))
    elif what == "exchange":
        parent[key], parent[other] = parent[other], parent[key]
        return what, True
    else:
        parent[key] = copy.deepcopy(parent[other])
        return what, isinstance(parent[key], float)
    return what, False


def is_same_type(x: Any, y: Any) -> bool:
    return type(x) is type(y) or {type(x), type(y)} == {int, float} or (type(x) is bool and y in (0, 1))


def other_value(value: Any, rng: random.Random) -> tuple[Any, str, bool]:
    """Return another value, how it was made, and whether it has the same type."""
    other_types = [None, True, False, 0, 1, 2.5, "x", "1", [], {}, [1], [[1]], {"x": 1}, float("nan"), -1]
    if rng.random() < 0.2:
        new = rng.choice(other_types)
        return new, f"{value!r:.40} -> {new!r}", is_same_type(value, new) or value in ([1], [[1]])
    if isinstance(value, bool):
        return not value, f"-> {not value}", True
    if isinstance(value, int | float):
        numbers: list[Any] = [0, -1, -value, value + 1, value - 1, 2 * value, 0.5, float("nan"), float("inf"), *HUGE]
        new = rng.choice(numbers)
        return new, f"{value} -> {new!r:.20}", True
    if isinstance(value, str):
        new = rng.choice(["", f"{value}x", value.upper(), value[:-1], value * 2, "a" * 10**5, "\0", "é", "é" * 9])
        return new, f"{value!r:.40} -> {new!r:.40}", True
    if isinstance(value, list):
        what = rng.choice(("clear", "half", "double", "times 1000", "reverse", "nest", "more"))
        lists = {
            "clear": [],
            "half": value[: len(value) // 2],
            "double": value * 2,
            "times 1000": value * 1000,
            "reverse": value[::-1],
            "nest": [value],
            "more": [*value, rng.choice(other_types)],
        }
        return copy.deepcopy(lists[what]), what, what == "reverse"
    if isinstance(value, dict):
        what = rng.choice(("clear", "more", "list"))
        return {"clear": {}, "more": {**value, "more": rng.choice(other_types)}, "list": [value]}[what], what, False
    new = rng.choice(other_types)
    return new, f"{value!r} -> {new!r}", False


def mutate_everywhere(description: Description, rng: random.Random) -> Change:
    """Replace a number wherever it occurs in sizes, such as that of the inputs in the encoder and the network."""
    places = [x for x in walk(description) if x[2][0] in ("layers", "in_shape", "encoders")]
    numbers = [(x, key, path) for x, key, path in places if type(x[key]) is int and x[key] > 1]
    old = rng.choice([x[key] for x, key, _ in numbers])
    new = rng.choice((old - 1, old + 1, 2 * old, 100 * old, 1000 * old, *HUGE[:4]))
    paths = [path for x, key, path in numbers if x[key] == old]
    for x, key, _ in numbers:
        if x[key] == old:
            x[key] = new
    return ",".join(map(name, paths)), f"all {old} -> {new}", True


def mutate_array(arrays: Arrays, rng: random.Random) -> Change:
    """Change an array, its name, dtype or shape."""
    key = rng.choice([*arrays])
    other, array = rng.choice([*arrays]), arrays[key]
    what = rng.choice(ARRAY_MUTATIONS)
    if what in ("value", "nan"):
        array = np.array(array)
        index = rng.randrange(max(array.size, 1))
        numbers = [float("nan"), float("inf")] if what == "nan" else [0, -1, 1e30, rng.gauss(0, 1)]
        if array.size and array.dtype.kind == "f":
            array.reshape(-1)[index] = rng.choice(numbers)
        arrays[key] = array
        return key, what, True
    if what == "dtype":
        dtype = rng.choice(("int8", "uint8", "bool", "int32", "int64", "uint64", "float16", "float64"))
        with warnings.catch_warnings(action="ignore"):
            arrays[key] = array.astype(dtype)
        return key, dtype, False
    if what in ("delete", "rename"):
        value = arrays.pop(key)
        if what == "rename":
            arrays[rng.choice((f"{key}x", f"weights/{key}", key.partition("/")[2], ""))] = value
    elif what == "copy":
        arrays[rng.choice((f"{key}x", other))] = array
    elif what == "exchange":
        arrays[key], arrays[other] = arrays[other], array
    elif what == "more":
        arrays[
            rng.choice(("weights/x.W", "states/hidden/0/2", "recurrent/lstm/h", "callbacks/0", "preprocessing/mean"))
        ] = np.zeros(rng.choice((0, 3)), np.float32)
    else:
        arrays[key] = {
            "transpose": array.T,
            "flatten": array.reshape(-1),
            "longer": np.concatenate([array, array]) if array.ndim else array[None],
            "shorter": array[: len(array) // 2] if array.ndim else array[None],
            "axis": array[None],
            "empty": array[:0] if array.ndim else array[None],
        }[what]
    return key, what, what in ("exchange", "copy")


def name(path: Path_) -> str:
    return ".".join(map(str, path))


# --- outcomes --------------------------------------------------------------------------------------------------------

# entries whose other values nothing else in the file contradicts, by kind
UNKNOWABLE = {
    "weights": r"weights/",
    "optimizer states": r"states/",
    "states of callbacks": r"callbacks/|training\.callbacks",
    "training state": r"training\.",
    "moments": r"encoders\.\w+\.config\.(columns\.\d+\.)?(mean|deviation)",
    "labels": r"encoders\.\w+\.config\.(classes|names|vocabulary|columns)",
    "settings of encoders": r"encoders\.\w+\.config\.(one_hot|is_vector|layout|tokenizer)",
    "sizes of inputs": r"(.*,)?(in_shape|encoders\.inputs\.config\.(sizes|length))",
    "preprocessing": r"preprocessing\.",
    "settings of layers": r"layers\.",
    "name": r"name$",
    "backend": r"backend\.",
}
# entries that older files do not have
OPTIONAL = (
    r"(training|preprocessing|metadata)$|encoders(\.inputs|\.targets)?$|training\.(frozen|updates|callbacks|data)$"
    r"|layers\..*config(\.\w+)?$"
)
NO_WEIGHTS = r"layers\.config\.layers\.\d+$"  # a layer, which is a setting as well if it has no weights


def unknowable(change: Change) -> str | None:
    """Return the kind of an entry with another value that nothing contradicts; None if something does."""
    path, what, is_value = change
    if (what in ("delete", "rename", "clear", "exchange", "copy") or what.endswith(("-> None", "-> {}"))) and re.match(
        OPTIONAL, path
    ):
        return "left out, as in older files"
    if re.match(r"encoders.inputs.config.vocabulary", path) and what in ("half", "delete"):
        return "a vocabulary smaller than the table"
    if re.match(r"layers\..*config\.\w+$", path) and what.startswith("None -> "):
        return "settings of layers"
    if re.match(NO_WEIGHTS, path):
        return "layers without weights"
    if path.startswith("training.data") and what in ("more", "rename"):
        return "position in other data"
    return next((kind for kind, pattern in UNKNOWABLE.items() if is_value and re.match(pattern, path)), None)


OF_THE_DATA = ("labels", "sizes of inputs", "settings of encoders", "left out, as in older files")  # what data fits


class TooLong(BaseException):
    """A mutant took too long; not an Exception, so that nothing catches it."""


def run(sample: Sample, seed: int, file: Path) -> dict[str, Any]:
    """Return the outcome of a mutant."""
    rng = random.Random(f"{sample.file.stem} {seed}")
    description, arrays = copy.deepcopy(sample.description), dict(sample.arrays)
    changes = mutate(description, arrays, rng)
    write_checkpoint(file, description, arrays)
    gen_backend("cpu", rng_seed=1)
    outcome, stage, start = "same", "load", time.process_time()
    results: list[str] = []
    reset_peak()
    before = memory("VmRSS")
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    try:
        for stage, result in sample.use(file):
            results.append(result)
            if result != sample.expected[len(results) - 1]:
                outcome = f"other {stage}"
                break
        stage = "" if outcome == "same" else stage
    except CheckpointError as error:
        is_named = str(error).startswith(f"{file}: ") and len(str(error)) < 3000
        outcome = "refused" if is_named else f"a CheckpointError without the file: {error}"
    except TooLong:
        outcome = "too long"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
        stage = f"after {stage}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    grown = memory("VmHWM") - before
    kinds = [kind for change in changes if (kind := unknowable(change))]
    report = {"seed": seed, "changes": changes, "stage": stage, "outcome": outcome[:400], "kind": ""}
    report |= {"seconds": time.process_time() - start, "bytes": grown}
    report["held"] = outcome in ("same", "refused")
    if outcome.startswith("other ") and kinds:
        report |= {"held": True, "kind": kinds[0], "outcome": "another value"}
    if re.match("(Value|Type)Error: .*: expected", outcome) and (
        kinds := [kind for kind in kinds if kind in OF_THE_DATA]
    ):
        report |= {"held": True, "kind": f"{kinds[0]}: the data does not fit", "outcome": "another value"}
    report["held"] = report["held"] and grown < MAX_BYTES and report["seconds"] < MAX_SECONDS
    return report


def memory(field: str) -> int:
    """Return a field of the status of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def reset_peak() -> None:
    """Set the maximum of the resident memory to its present value."""
    Path("/proc/self/clear_refs").write_text("5")


def work(kind: str, first: int, last: int) -> None:
    """Print the outcomes of mutants, a line of JSON each, and before each a line with its number."""

    def stop(*_: object) -> None:
        raise TooLong

    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, stop)
    with tempfile.TemporaryDirectory() as folder:
        sample = Sample(kind, Path(folder))
        limit = memory("VmSize") + 2 * MAX_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for seed in range(first, last):
            print(json.dumps({"start": seed}), flush=True)
            print(json.dumps(run(sample, seed, Path(folder) / "mutant.neon")), flush=True)


def outcomes(kind: str, first: int, last: int) -> Iterator[dict[str, Any]]:
    """Yield the outcomes of mutants of a kind; a process that ends or hangs is one, and another one continues."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    while first < last:
        command = [sys.executable, __file__, "--work", kind, "--first", str(first), "--count", str(last - first)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        lines: queue.Queue[str] = queue.Queue()

        def read(process: Any = process, lines: Any = lines) -> None:
            for line in process.stdout:
                lines.put(line)
            lines.put("")

        thread = threading.Thread(target=read)
        thread.start()
        current = None
        try:
            while line := lines.get(timeout=MAX_WAIT):
                report = json.loads(line)
                current = report.get("start")
                if current is None:
                    first = report["seed"] + 1
                    yield report
        except queue.Empty:
            process.kill()
        thread.join()
        status = process.wait()
        assert process.stdout is not None
        process.stdout.close()
        if current is None and first < last:
            raise RuntimeError(f"{' '.join(command)} ended with {status}")
        if current is not None:
            first = current + 1
            yield {
                "seed": current,
                "outcome": f"the process ended with {status}",
                "held": False,
                "kind": "",
                "bytes": 0,
            } | {
                "seconds": 0.0,
                "changes": [],
                "stage": "",
            }


def campaign(count: int, kinds: list[str] | None = None, first: int = 0, verbose: bool = False) -> list[dict[str, Any]]:
    """Return a row for each kind of model: the numbers of outcomes of ``count`` mutants, and the bad ones."""

    def row(kind: str) -> dict[str, Any]:
        reports = [*outcomes(kind, first, first + count)]
        counts = Counter(report["outcome"] for report in reports if report["held"])
        bad = [report for report in reports if not report["held"]]
        for report in bad if verbose else ():
            print(kind, json.dumps(report)[:700], file=sys.stderr)
        return {
            "what": kind,
            "mutants": len(reports),
            **{x: counts[x] for x in ("refused", "same", "another value")},
            "kinds": Counter(report["kind"] for report in reports if report["kind"]),
            "bad": bad,
            "bytes": max(x["bytes"] for x in reports),
            "seconds": max(x["seconds"] for x in reports),
            "held": not bad,
        }

    with ThreadPoolExecutor(cpus()) as pool:
        return [*pool.map(row, kinds or KINDS)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the short form, of which nothing is written")
    parser.add_argument("--only", default="", metavar="KIND", help="one kind of model; nothing is written")
    parser.add_argument("--count", type=int, default=20_000 // len(KINDS), metavar="N", help="mutants of each kind")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the seed of the first one")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.first, options.first + options.count)
        return 0
    count = 60 if options.quick else options.count
    about = machine("numpy", "safetensors")
    results = campaign(count, [options.only] if options.only else None, options.first, verbose=True)
    head = ["model", "mutants", "refused", "same", "another value", "bad", "peak memory", "longest"]
    cells = [
        [
            *(r["what"], *(f"{r[x]:,}" for x in ("mutants", "refused", "same", "another value"))),
            *(str(len(r["bad"])), f"{r['bytes'] / 1e6:.0f} MB", f"{r['seconds']:.2f} s"),
        ]
        for r in results
    ]
    kinds = sum((r["kinds"] for r in results), Counter())
    tables = [
        markdown(head, cells),
        markdown(["another value", "mutants"], [(k, f"{n:,}") for k, n in kinds.most_common()]),
    ]
    details = "\n".join(f"- {key}: {value}" for key, value in about.items())
    command = f"`{' '.join(['python benchmarks/mutants.py', *sys.argv[1:]])}`"
    page = "\n\n".join(["# Mutants", command, details, NOTE, *tables]) + "\n"
    print(page)
    if not (options.quick or options.only):
        save("mutants", {"machine": about, "results": results}, page)
    return int(not all(row["held"] for row in results))


if __name__ == "__main__":
    sys.exit(main())
