"""Functions that the ranks of test_norm_synchronized.py run: batch normalization, and neon's distribute_data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from helpers.mpi import main
from neonlite import gen_backend
from neonlite.data import ArrayIterator
from neonlite.distributed import Communicator
from neonlite.initializers import Gaussian
from neonlite.layers import Activation, Affine, BatchNorm, Conv
from neonlite.models import Model
from neonlite.optimizers import GradientDescentMomentum

TOTAL = 12


def build(comm: Communicator, sync: bool, rows: int = 60, partial_last: bool = False) -> tuple[Model, ArrayIterator]:
    gen_backend("cpu", batch_size=TOTAL // comm.size, rng_seed=1, datatype="float64")
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(rows, 2, 4, 4)), rng.integers(0, 3, rows)
    layers = [
        Conv((3, 3, 5), Gaussian(scale=0.3), name="conv"),
        BatchNorm(sync=sync, name="images"),
        Activation("relu"),
        Affine(6, Gaussian(scale=0.3), name="hidden"),
        BatchNorm(sync=sync, name="features"),
        Activation("relu"),
        Affine(3, Gaussian(scale=0.3), activation="softmax", name="out"),
    ]
    return Model(layers), ArrayIterator(X, y, nclass=3, partial_last=partial_last)


def trained(comm: Communicator, sync: bool) -> dict[str, Any]:
    model, data = build(comm, sync)
    model.fit(data, "cross_entropy", GradientDescentMomentum(0.1, 0.9), num_epochs=3, distributed=True)
    return {name: w for name, w in model.get_weights().items() if not name.endswith("bias")}


def synchronized(comm: Communicator, folder: Path) -> dict[str, Any]:
    return trained(comm, True)


def local(comm: Communicator, folder: Path) -> dict[str, Any]:
    return trained(comm, False)


def no_row_for_a_rank(comm: Communicator, folder: Path) -> str:
    model, data = build(comm, True, rows=25, partial_last=True)
    try:
        model.fit(data, "cross_entropy", "sgd", num_epochs=1, distributed=True)
    except ValueError as error:
        return str(error)
    return ""


def distributed(comm: Communicator, folder: Path) -> dict[str, Any]:
    be = gen_backend("cpu", batch_size=2 + comm.rank)
    with comm.sharded(be) as shard:
        assert shard is not None
        whole = be.array(np.arange(3 * shard.total).reshape(3, -1))
        part = be.distribute_data(whole, "Data")
        again = be.distribute_data(part, "Disabled")
        try:
            be.distribute_data(whole, "Model")
        except ValueError as error:
            message = str(error)
        return {
            "columns": (shard.start, shard.stop),
            "part": part.get(),
            "again": again.get(),
            "unchanged": be.distribute_data(part, "Data") is part and be.distribute_data(whole, "Disabled") is whole,
            "reverted": [be.revert_tensor(part).get(), be.revert_tensor(again).get()],
            "of no one": be.revert_tensor(whole) is whole,
            "message": message,
        }


if __name__ == "__main__":
    main(globals())
