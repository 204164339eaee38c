"""The commands info, draw and bench: what is installed, and the structure and the speed of networks."""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from neonlite.backend import gen_backend
from neonlite.backend.runtimes import info
from neonlite.cli.output import say
from neonlite.files import check_writable, write_atomic
from neonlite.messages import did_you_mean
from neonlite.version import __version__

EXTRA_PACKAGES = {  # extra -> package
    "viz": "matplotlib",
    "hdf5": "h5py",
    "datasets": "pooch",
    "tensorboard": "tensorboardX",
    "sklearn": "scikit-learn",
    "mpi": "mpi4py",
    "notebook": "notebook",
}


def make_optimizer(name: str, rate: float, epochs: int) -> Any:
    """Return an optimizer with a cosine schedule."""
    from neonlite import optimizers

    schedule = optimizers.CosineSchedule(epochs)
    if name == "sgd":
        return optimizers.GradientDescentMomentum(rate, 0.9, schedule=schedule)
    make = {"adam": optimizers.Adam, "adamw": optimizers.AdamW, "rmsprop": optimizers.RMSProp}[name]
    return make(learning_rate=rate, schedule=schedule)


def run_info(args: argparse.Namespace) -> None:
    """Print versions, runtimes and installed extras."""
    say(f"neonlite {__version__}, Python {sys.version.split()[0]}, NumPy {version('numpy')}")
    say(f"\nruntimes:\n{info()}\n\nextras:")
    for extra, package in EXTRA_PACKAGES.items():
        try:
            status = f"yes  {package} {version(package)}"
        except PackageNotFoundError:
            status = f'no   pip install "neonlite[{extra}]"'
        say(f"{extra:<11}  {status}")


def run_draw(args: argparse.Namespace) -> None:
    """Print the summary of a network."""
    from neonlite.layers import Sequential
    from neonlite.models import Model
    from neonlite.models.zoo import MODELS

    gen_backend(args.backend, batch_size=args.batch_size or 128)
    if args.model not in MODELS and Path(args.model).is_file():
        say(Model(args.model, weights_only=True).summary())
        return
    say(Sequential(make_network(args.model), name=args.model).summary(get_input_shape(args)))


def make_network(name: str) -> Any:
    """Return the layers of a network of the zoo."""
    from neonlite.models.zoo import MODELS

    if name not in MODELS:
        expected = f"a file or one of the networks {', '.join(MODELS)}"
        raise ValueError(f"expected {expected}, got {name}.{did_you_mean(name, MODELS)}")
    return MODELS[name]()


def get_input_shape(args: argparse.Namespace) -> int | tuple[int, ...]:
    """Return the shape of the inputs: (C, H, W), or F."""
    sizes = args.shape or args.sizes
    return sizes[0] if len(sizes) == 1 else tuple(sizes)


def run_bench(args: argparse.Namespace) -> None:
    """Measure the time of training steps."""
    from neonlite.data import ArrayIterator
    from neonlite.models import Model
    from neonlite.transforms import CrossEntropyMulti

    names = [args.backend] if args.backend else [runtime.name for runtime in info() if runtime.is_usable]
    names = [name for name in names if name != "strict" or args.backend]  # the strict runtime is slow, for debugging
    shape, n = get_input_shape(args), args.batch_size or 128
    draw = random.Random(0).random
    rows = [[draw() for _ in range(math.prod(args.shape or args.sizes))] for _ in range(n)]
    say(f"milliseconds, medians of {args.iterations} steps of {n} rows of {shape}")
    say(f"{'':<24}{'forward':>10}{'backward':>10}{'step':>10}{'rows/s':>12}")
    results = []
    for model in args.models:  # raises errors before the measurements
        make_network(model)
    if args.json:
        check_writable("--json", args.json)
    for model in args.models or ["mlp", "lenet"]:
        for name in names:
            gen_backend(name, rng_seed=0, batch_size=n)
            data = ArrayIterator(rows, [i % 10 for i in range(n)], 10, lshape=shape)
            times = Model(make_network(model), data).benchmark(
                data, cost=CrossEntropyMulti(), optimizer=make_optimizer("adam", 1e-3, 1), niterations=args.iterations
            )
            fprop, bprop, step = (times[part]["median"] for part in ("fprop", "bprop", "iteration"))
            say(f"{f'{model} on {name}':<24}{fprop:>10.2f}{bprop:>10.2f}{step:>10.2f}{1000 * n / step:>12,.0f}")
            results.append({"model": model, "backend": name, "shape": shape, "batch_size": n, "ms": times})
    if args.json:
        write_atomic(args.json, f"{json.dumps(results, indent=1)}\n".encode())
