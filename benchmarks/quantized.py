"""What int8 and bfloat16 gain: the time of inference and the accuracy beside float32, and the primitives of oneDNN.

python benchmarks/quantized.py            # minutes: writes results/quantized.json and results/quantized.md
python benchmarks/quantized.py --quick    # few rounds: writes nothing

Each configuration of threads and of a busy process runs in a new process. Ratios are medians over rounds in which all
dtypes run one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import product as product_of
from typing import Any

import numpy as np
from _table import Effort, busy_process, machine, markdown, measure, ratio, save
from sklearn.datasets import load_digits

import neonlite as nl
from neonlite.backend.runtimes.onednn import bindings as dnnl
from neonlite.layers.inference import inference
from neonlite.layers.linear import WEIGHT_DTYPES
from neonlite.models import Model, zoo

BATCH_SIZE = 128
NETWORKS: dict[str, tuple[Callable[[], list[Any]], tuple[int, ...]]] = {
    "zoo.mlp(hidden=(1024, 1024))": (lambda: zoo.mlp(hidden=(1024, 1024)), (1, 28, 28)),
    "zoo.lenet": (zoo.lenet, (1, 28, 28)),
    "zoo.cifar10_conv": (zoo.cifar10_conv, (3, 32, 32)),
    "zoo.resnet": (zoo.resnet, (3, 32, 32)),
}
CONFIGURATIONS = [(threads, is_busy) for threads in (1, 2) for is_busy in (False, True)]
PRODUCTS = [(128, 784, 1024), (128, 1024, 1024), (128, 576, 64)]  # rows, inputs, outputs
FULL, QUICK = Effort(2.0, 0.02, 9), Effort(0.3, 0.01, 3)


def product(dtype: str, M: int, K: int, N: int) -> Callable[[], object]:
    """Return a matmul of rows by packed weights, into float32."""
    library = dnnl.load_library()
    x, out = library.memory_desc((M, K), (K, 1), dtype), library.memory_desc((M, N), (N, 1))
    args = library.engine, x.handle, library.any_memory_desc((K, N), dtype), None, out.handle, library.default_attr
    desc = library.primitive_desc("matmul", *args)
    args = (dnnl.ARG_SRC, dnnl.ARG_WEIGHTS, dnnl.ARG_DST)
    primitive = library.create_primitive(desc, *args, known={dnnl.ARG_SRC: x, dnnl.ARG_DST: out})
    descs = [*primitive.memory_descs.values(), primitive.scratchpad_desc]
    buffers = [np.zeros(d.nbytes + 64, np.uint8) for d in descs]
    addresses = [b.ctypes.data + -b.ctypes.data % 64 for b in buffers]
    used = addresses if primitive.needs_scratchpad else addresses[:-1]
    return lambda: (primitive(*used), buffers)


def measure_products(effort: Effort) -> list[dict[str, Any]]:
    """Return the microseconds of products of each dtype, and the ratios to float32."""
    rows = []
    for sizes in PRODUCTS:
        dtypes = {"float32": "float32"} | WEIGHT_DTYPES
        times, _ = measure({name: product(dtype, *sizes) for name, dtype in dtypes.items()}, effort)
        row: dict[str, Any] = {"product": " x ".join(map(str, sizes)), "us": 1e6 * min(times["float32"])}
        rows.append(row | {x: ratio(times[x], times["float32"]) for x in WEIGHT_DTYPES})
    return rows


def measure_networks(effort: Effort) -> list[dict[str, Any]]:
    """Return the milliseconds of inference of a minibatch, and ratios of float32 to each dtype, also of ``predict``."""
    rows = []
    for name, (layers, shape) in NETWORKS.items():
        be = nl.gen_backend("cpu", rng_seed=0, batch_size=BATCH_SIZE)
        X = np.random.default_rng(0).random((4 * BATCH_SIZE, *shape), dtype=np.float32)
        model = Model(layers())
        model.fit(X[:BATCH_SIZE], np.arange(BATCH_SIZE) % 10, epochs=1, batch_size=BATCH_SIZE, progress_bar=False)
        models = {"float32": model} | {dtype: model.quantize(X, dtype=dtype) for dtype in WEIGHT_DTYPES}
        x = be.array(X[:BATCH_SIZE].reshape(BATCH_SIZE, -1).T.copy())
        with ExitStack() as stack:
            runs = {k: stack.enter_context(inference(m.layers)) for k, m in models.items()}
            steps, quiet = measure({k: partial(run, x) for k, run in runs.items()}, effort)
        predict, _ = measure({k: partial(m.predict, X, batch_size=BATCH_SIZE) for k, m in models.items()}, effort)
        row = {"network": name, "quiet": quiet, "float32 ms": 1e3 * min(steps["float32"])}
        for kind, times in (("step", steps), ("predict", predict)):
            row[kind] = {dtype: ratio(times[dtype], times["float32"]) for dtype in WEIGHT_DTYPES}
        rows.append(row | {"rounds": len(steps["float32"])})
    return rows


def accuracies() -> list[dict[str, Any]]:
    """Return the accuracy on 500 digits, of 1797 in scikit-learn, of networks trained on the others."""
    X, y = load_digits(return_X_y=True)
    X, y = (X / 16).astype(np.float32).reshape(-1, 1, 8, 8), y
    rows = []
    for name, layers in (("zoo.mlp", zoo.mlp), ("zoo.lenet", zoo.lenet), ("zoo.resnet", zoo.resnet)):
        nl.gen_backend("cpu", rng_seed=0)
        model = Model(layers())
        model.fit(X[:-500], y[:-500], epochs=10, batch_size=64, progress_bar=False)
        found = {"float32": model} | {dtype: model.quantize(X[:500], dtype=dtype) for dtype in WEIGHT_DTYPES}
        rows.append({"network": name} | {k: m.evaluate(X[-500:], y[-500:])["accuracy"] for k, m in found.items()})
    return rows


def run(threads: int, is_busy: bool, quick: bool) -> dict[str, Any]:
    """Return the results of a new process with a number of threads, beside a busy process if ``is_busy``."""
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "NEONLITE_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--measure", *["--quick"] * quick]
    with busy_process() if is_busy else nullcontext():
        result = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return {"threads": threads, "busy": is_busy, **json.loads(result.stdout.splitlines()[-1])}


def main() -> int:
    """Measure all configurations, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds; write nothing")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    effort = QUICK if options.quick else FULL
    if options.measure:
        print(json.dumps({"products": measure_products(effort), "networks": measure_networks(effort)}))
        return 0
    about = machine("numpy", "onednn-cpu-gomp")
    results, accuracy = [run(*x, options.quick) for x in CONFIGURATIONS], accuracies()
    heads = [f"{x['threads']} thread{'s' * (x['threads'] > 1)}{', busy' * x['busy']}" for x in results]
    tables = []
    kinds = ("step", "inference of 128 rows"), ("predict", "`predict` of 512 rows")
    for (kind, label), dtype in product_of(kinds, WEIGHT_DTYPES):
        cells = [
            [
                f"`{name}`",
                f"{results[0]['networks'][i]['float32 ms']:.1f}",
                *(f"{x['networks'][i][kind][dtype]:.1f}" for x in results),
            ]
            for i, name in enumerate(NETWORKS)
        ]
        tables.append(markdown([f"{label}, {dtype}", "float32, ms", *heads], cells))
    for dtype in WEIGHT_DTYPES:
        cells = [
            [row["product"], f"{row['us']:.0f}", *(f"{x['products'][i][dtype]:.1f}" for x in results)]
            for i, row in enumerate(results[0]["products"])
        ]
        tables.append(markdown([f"matmul of oneDNN, {dtype}", "float32, us", *heads], cells))
    dtypes = "float32", *WEIGHT_DTYPES
    cells = [[f"`{x['network']}`", *(f"{100 * x[k]:.1f} %" for k in dtypes)] for x in accuracy]
    tables.append(markdown(["digits", *dtypes], cells))
    described = ", ".join(f"{key} {value}" for key, value in about.items())
    text = f"`python benchmarks/quantized.py` ({described}), time of float32 / time of int8 or bfloat16:\n\n"
    text += "\n\n".join(tables) + "\n"
    print(text)
    if not options.quick:
        save("quantized", {"machine": about, "rows": results, "accuracy": accuracy}, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
