"""Measure gradients that are sent as bfloat16: seconds of a sum, and weights and accuracy after training.

mpiexec -n 2 python benchmarks/compressed.py    # a minute; prints tables
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from _table import markdown
from scaling import ASSUMED_LINKS, Link, all_reduce

import neonlite as nl
from neonlite.callbacks import Callback
from neonlite.distributed import world
from neonlite.layers import Affine

SIZES = {"1 MB": 1_000_000, "10 MB": 10_000_000, "40 MB": 40_000_000, "102 MB": 102_400_000}
ROUNDS = 40
STEPS = (1, 10, 100, 1000)
EPOCHS, SEEDS = 50, 5  # epochs of 45 steps
RANKS = 8
LINKS = {"1 Gbit/s Ethernet": Link(50e-6, 0.11e9), "10 Gbit/s Ethernet": ASSUMED_LINKS["10 Gbit/s Ethernet"]}


def sums(comm: Any) -> dict[str, dict[bool, float]]:
    """Return the least seconds of a sum, with and without compression, in interleaved rounds."""
    result = {}
    for name, nbytes in SIZES.items():
        x, seconds = np.zeros(nbytes // 4, np.float32), {False: [], True: []}
        for _ in range(ROUNDS + 1):
            for comm.compress_gradients in (False, True):
                comm.barrier()
                start = time.perf_counter()
                comm.sum_gradients(x)
                seconds[comm.compress_gradients].append(time.perf_counter() - start)
        result[name] = {key: min(values[1:]) for key, values in seconds.items()}
    return result


class Record(Callback):
    """Records the weights after some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.weights = 0, {}

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        self.steps += 1
        if self.steps in STEPS:
            self.weights[self.steps] = np.concatenate([w.ravel() for w in self.model.get_weights().values()])


def train(comm: Any, compress: bool, seed: int, optimizer: str) -> tuple[dict[int, Any], float]:
    """Return weights after some steps, and the accuracy at the end."""
    comm.compress_gradients = compress
    nl.cleanup_backend()
    nl.gen_backend("cpu", rng_seed=seed)
    X, y = nl.data.digits().train
    hidden = [Affine(256, activation="relu") for _ in range(2)]
    model, record = nl.Model([*hidden, Affine(10, activation="softmax")]), Record()
    options = {"optimizer": optimizer, "callbacks": [record], "progress_bar": False, "distributed": True}
    model.fit(X, y, epochs=EPOCHS, batch_size=32 // comm.size, **options)
    return record.weights, model.evaluate(*nl.data.digits().test, "accuracy")["accuracy"]


def error(result: Any, exact: Any) -> float:
    """Return the relative distance of weights."""
    return float(np.linalg.norm(result - exact) / np.linalg.norm(exact))


def main() -> None:
    """Print the tables."""
    comm = world()
    measured, rows = sums(comm), []
    for rule in ("sgd", "adam"):
        exact, compressed = ([train(comm, x, seed, rule) for seed in range(SEEDS)] for x in (False, True))
        last = [weights[STEPS[-1]].tobytes() for weights, _ in compressed]
        assert all(other == last for other in comm.all_gather_objects(last))
        pairs = [*zip(compressed, exact, strict=True)]
        errors = [statistics.median(error(x[n], y[n]) for (x, _), (y, _) in pairs) for n in STEPS]
        means = [statistics.mean(accuracy for _, accuracy in results) for results in (exact, compressed)]
        rows.append([rule, *(f"{x:.1e}" for x in errors), *(f"{x:.4f}" for x in means)])
    if comm.rank:
        return
    print(markdown(["optimizer", *(f"step {n}" for n in STEPS), "accuracy, float32", "bfloat16"], rows))
    table = []
    for name, nbytes in SIZES.items():
        seconds = [measured[name][False], measured[name][True]]
        conversion = max(0.0, seconds[1] - seconds[0] / 2)
        for link in LINKS.values():  # modelled
            seconds += [all_reduce(nbytes, RANKS, link), all_reduce(nbytes // 2, RANKS, link) + conversion]
        table.append([name, *(f"{1e3 * x:.3g} ms" for x in seconds)])
    places = ["measured: 2 ranks, shared memory", *(f"modelled: {RANKS} ranks, {name}" for name in LINKS)]
    print(markdown(["bytes", *(f"{x}, {dtype}" for x in places for dtype in ("float32", "bfloat16"))], table))


if __name__ == "__main__":
    main()
