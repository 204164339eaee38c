"""Forks: child processes that use neonlite after their parent did, and whether they hang.

python benchmarks/forks.py            # an hour: writes results/forks.json and results/forks.md
python benchmarks/forks.py --quick    # one minute: writes nothing
python benchmarks/forks.py --only "cpu attention"
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
from _table import machine, markdown, save

import neonlite as nl
from neonlite.initializers import Gaussian
from neonlite.layers import (
    GRU,
    LRN,
    LSTM,
    Activation,
    Affine,
    BatchNorm,
    BiLSTM,
    Conv,
    Deconv,
    Dropout,
    LayerNorm,
    LookupTable,
    MultiHeadAttention,
    Pooling,
    Recurrent,
    RecurrentMean,
)
from neonlite.transforms import Rectlin

RUNTIMES = [name for name, package in (("cpu", "numpy"), ("mkl", "mkl"), ("torch", "torch")) if find_spec(package)]
LIMIT = 120  # seconds after which a child hangs
PAUSE = 0.003  # seconds between two forks beside a fit
NEAR = 1e-3  # relative tolerance of the child's results, since it uses another number of threads
Row = dict[str, Any]

NOTE = """\
The parent trains a network with the primitive on two threads, predicts, and forks; the child predicts and trains, and
its predictions must be those of the parent. "beside a fit": another thread of the parent trains the network, and the
child's predictions must be finite. "pool": worker processes of
`multiprocessing` by each start method, of `joblib` and of PyTorch's DataLoader, which load a model from bytes, or were
forked with it, and predict. A child hangs if it has not ended after 120 seconds; "wrong" counts other results and
errors."""


# --- the networks ------------------------------------------------------------------------------------------------


def networks() -> dict[str, tuple[Callable[[], list[Any]], tuple[int, ...], str | None]]:
    """Return, by primitive: the layers before the last one, the shape of a row, and the layout."""
    image, series = (3, 12, 12), (10, 8)
    return {
        "product": (lambda: [Affine(64, activation="relu")], (512,), None),
        "convolution": (lambda: [Conv((3, 3, 16), activation="relu")], image, "NCHW"),
        "one-channel convolution": (lambda: [Conv((3, 3, 16), activation="relu")], (1, 16, 16), "NCHW"),
        "transposed convolution": (lambda: [Deconv((3, 3, 8), activation="relu")], image, "NCHW"),
        "max pooling": (lambda: [Conv((3, 3, 8)), Pooling(2)], image, "NCHW"),
        "average pooling": (lambda: [Conv((3, 3, 8)), Pooling(2, op="avg")], image, "NCHW"),
        "local response normalization": (lambda: [Conv((3, 3, 8)), LRN(5)], image, "NCHW"),
        "batch norm": (lambda: [Conv((3, 3, 8)), BatchNorm(), Activation(Rectlin())], image, "NCHW"),
        "batch norm of vectors": (lambda: [Affine(300), BatchNorm(), Dropout(0.5)], (512,), None),
        "recurrent": (lambda: [Recurrent(16, activation="tanh"), RecurrentMean()], series, "NFT"),
        "LSTM": (lambda: [LSTM(16), RecurrentMean()], series, "NFT"),
        "bidirectional LSTM": (lambda: [BiLSTM(16), RecurrentMean()], series, "NFT"),
        "GRU": (lambda: [GRU(16), RecurrentMean()], series, "NFT"),
        "attention": (lambda: [MultiHeadAttention(2), LayerNorm(), RecurrentMean()], series, "NFT"),
        "lookup table": (lambda: [LookupTable(20, 8), RecurrentMean()], (12,), None),
    }


OTHERS = ("op-tree", "einsum", "random numbers")


def predictor(be: Any, name: str) -> tuple[Callable[[], Any], Callable[[], object]]:
    """Return a function that computes the same values each time, and one that changes them, or random streams."""
    rng = np.random.default_rng(0)
    if name in OTHERS:
        x, y = be.array(rng.random((1500, 1000))), be.empty((1500, 1000))
        Gaussian().fill(y)  # imports all modules: a child forked during an import cannot import the module
        trees = {"op-tree": be.log(x + 1) * be.exp(-x) + be.mean(x, axis=1), "einsum": be.einsum("ij,kj->ik", x, x)}
        tree = trees.get(name, x + 1)
        return lambda: tree.get(), lambda: Gaussian().fill(y)
    hidden, shape, layout = networks()[name]
    tokens = name == "lookup table"
    rows = rng.integers(0, 20, (96, *shape)) if tokens else rng.random((96, *shape)).astype(np.float32)
    labels, model = rng.integers(0, 3, 96), nl.Model([*hidden(), Affine(3, activation="softmax")])
    options: dict[str, Any] = {"layout": layout} if layout else {}
    fit = partial(model.fit, rows, labels, epochs=1, batch_size=32, progress_bar=False, **options)
    fit()
    return lambda: model.predict_proba(rows), fit


# --- children ----------------------------------------------------------------------------------------------------


def fork(work: Callable[[], bool]) -> str:
    """Run ``work`` in a forked child; return "", "hangs", "wrong" or the status with which it ended."""
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT)
        try:
            status = 0 if work() else 3
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            status = 4
        os._exit(status)
    status = os.waitpid(child, 0)[1]
    return {0: "", signal.SIGALRM: "hangs", 3 << 8: "wrong"}.get(status, f"status {status}")


@contextmanager
def repeated(work: Callable[[], object] | None) -> Iterator[None]:
    """Repeat ``work``, if there is any, in another thread during a ``with`` block."""
    ended = threading.Event()

    def run() -> None:
        while work and not ended.is_set():
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def forks(runtime: str, name: str, count: int, beside_fit: bool) -> list[str]:
    """Fork; return the ends of the children that did not succeed."""
    predict, change = predictor(nl.gen_backend(runtime, rng_seed=0), name)
    expected = predict()

    def work() -> bool:
        found = predict()
        change()
        return bool(np.isfinite(found).all() if beside_fit else np.allclose(found, expected, NEAR, 1e-5))

    ends = []
    with repeated(change if beside_fit else None):
        for _ in range(count):
            time.sleep(PAUSE * beside_fit)
            ends.append(fork(work))
    return [end for end in ends if end]


# --- pools -------------------------------------------------------------------------------------------------------

model: Any = None  # of the parent; a forked worker inherits it
rows = np.random.default_rng(0).random((96, 512)).astype(np.float32)


class Rows:
    """A dataset of PyTorch whose rows are predictions."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return predict_rows(None)


def predict_rows(data: bytes | None) -> Any:
    """Return the predictions of a pickled model, or of the inherited one."""
    return (pickle.loads(data) if data else model).predict_proba(rows)


def start(runtime: str) -> bytes:
    """Train ``model``; return it pickled."""
    global model
    nl.gen_backend(runtime, rng_seed=0)
    model = nl.Model([Affine(64, activation="relu"), Affine(3, activation="softmax")])
    model.fit(rows, np.arange(96) % 3, epochs=1, batch_size=32, progress_bar=False)
    return pickle.dumps(model)


def pools(runtime: str, kind: str, count: int, beside_fit: bool) -> list[str]:
    """Start pools of two workers until ``count`` workers ran; return the ends of those that did not succeed."""
    data, ends = start(runtime), []
    expected = model.predict_proba(rows)
    sent = None if kind == "fork" else data
    for _ in range(count // 2):
        found: list[Any] = []
        again = partial(model.fit, rows, np.arange(96) % 3, epochs=1, batch_size=32, progress_bar=False)
        with repeated(again if beside_fit else None):
            if kind == "joblib":
                import joblib

                found = joblib.Parallel(n_jobs=2)(joblib.delayed(predict_rows)(data) for _ in range(4))
            elif kind == "DataLoader":
                from torch.utils.data import DataLoader

                found = [np.asarray(batch)[0] for batch in DataLoader(cast(Any, Rows()), num_workers=2)]
            else:
                with multiprocessing.get_context(kind).Pool(2) as pool:
                    found = pool.map_async(predict_rows, [sent] * 4).get(LIMIT)
        is_inherited = kind in ("fork", "DataLoader")
        right = [
            np.isfinite(x).all() if beside_fit and is_inherited else np.allclose(x, expected, NEAR, 1e-5) for x in found
        ]
        ends += [] if all(right) else ["wrong"]
    return ends


POOLS = ("fork", "forkserver", "spawn", "joblib", "DataLoader")


# --- the table -----------------------------------------------------------------------------------------------------


def case(runtime: str, name: str, count: int, beside_fit: bool) -> Row:
    """Run a case in a separate process, with separate threads and backends."""
    arguments = [sys.executable, __file__, "--case", json.dumps([runtime, name, count, beside_fit])]
    start = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONWARNINGS": "ignore"}
    try:
        run = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=LIMIT * 10 + count)
        ends, errors = json.loads(run.stdout.splitlines()[-1]) if run.returncode == 0 else ["failed"], run.stderr[-300:]
    except subprocess.TimeoutExpired:
        ends, errors = ["hangs"], ""
    row = {
        "runtime": runtime,
        "case": name,
        "beside a fit": beside_fit,
        "children": count,
        "hangs": ends.count("hangs"),
    }
    row |= {"wrong": len(ends) - ends.count("hangs"), "seconds": time.perf_counter() - start}
    return row | {"ends": ends[:3], "errors": errors} if ends else row


def cases(count: int) -> Iterator[tuple[str, str, int, bool]]:
    """Yield the runtime, the name, the number of children, and whether another thread trains."""
    for runtime in RUNTIMES:
        for beside_fit in (False, True):
            for name in (*networks(), *OTHERS):
                yield runtime, name, count // 2, beside_fit
            for kind in POOLS:
                if kind not in ("joblib", "DataLoader") or find_spec({"joblib": "joblib", "DataLoader": "torch"}[kind]):
                    yield runtime, kind, max(2, count // 25), beside_fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few children; write nothing")
    parser.add_argument("--only", metavar="WORDS", default="", help="only cases with these words; write nothing")
    parser.add_argument("--count", type=int, default=500, help="children of each primitive")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        runtime, name, count, beside_fit = json.loads(options.case)
        print(json.dumps((pools if name in POOLS else forks)(runtime, name, count, beside_fit)))
        return
    found = []
    for runtime, name, count, beside_fit in cases(8 if options.quick else options.count):
        if all(word in f"{runtime} {name}".split() for word in options.only.split()):
            found.append(case(runtime, name, count, beside_fit))
            print(found[-1], flush=True)
    head = ("runtime", "case", "beside a fit", "children", "hangs", "wrong")
    table = markdown(head, [[str(row[key]) for key in head] for row in found])
    print(table)
    if not (options.quick or options.only):
        about = machine("mkl", "torch", "joblib")
        text = "\n".join(f"- {key}: {value}" for key, value in about.items())
        save(
            "forks",
            {"machine": about, "rows": found},
            f"# Forks\n\n`python benchmarks/forks.py`\n\n{text}\n\n{NOTE}\n\n{table}\n",
        )
    sys.exit(any(row["hangs"] or row["wrong"] for row in found))


if __name__ == "__main__":
    main()
