"""How well are sequences learned?  A text as the command line reads it, bits said again, digits said backwards.

python benchmarks/sequences.py              # 25 minutes: writes results/sequences.json and results/sequences.md
python benchmarks/sequences.py --quick      # a smoke run of one seed and one epoch each: writes nothing
python benchmarks/sequences.py --only text  # these rows anew, beside the others as they were saved
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _table import RESULTS, machine, markdown, save

from neonlite import gen_backend
from neonlite.data import CopyTask, Reversal, Ticker
from neonlite.data.corpora import corpus
from neonlite.initializers import Constant, GlorotUniform
from neonlite.layers import LSTM, Affine, GeneralizedCostMask, Seq2Seq
from neonlite.models import BeamSearch, Model
from neonlite.models.zoo import recipe
from neonlite.optimizers import Adam, CosineSchedule
from neonlite.transforms import (
    CrossEntropyBinary,
    CrossEntropyMulti,
    Logistic,
    SequenceAccuracy,
    Softmax,
    Tanh,
)

SEEDS = (1, 2)
JUDGED_BY = 1 << 32  # a seed that nothing is learned from
PROMPT = "The "
NOTE = """\
Text is the prose that Python brings, read and learned from by the command in its row, each in a process of its own; the
recipes stand in `neonlite/models/zoo.py`. Its figures are bits per character of the last tenth of the text, of which
nothing is learned, by the network of the last epoch; they differ between versions of Python, as the text does. The
recurrent networks carry their state through the whole text. The transformer looks at a window of 64 letters alone, and
begins each with nothing; in brackets are its bits in windows that overlap, the usual way to judge transformers: the
last 8 letters of each count, so that 56 are there already. By these, and by the mean of seeds, it is compared with the
LSTM; it takes more epochs, and each takes longer. Copy (1 to 5 times 8 random bits) and reverse (8 digits, said
backwards by an encoder and a decoder, with a beam search of 5) are drawn anew in every epoch, and judged by 1,024
sequences of another seed: a sequence is right when every bit of it, or every digit, is. "seconds" are those of the
slowest seed, Python's start, judging and writing included. Recipes were tuned on the last tenth of what is learned from
here. Rows may have been measured one by one (`--only`), and other work ran on the machine: alone, seconds are fewer."""


class Case(NamedTuple):
    """A task, a network, and what is hoped for: bits at most, percent at least, or a row as good; and seconds."""

    task: str
    model: str
    hoped: float | str
    seconds: float | None = None


CASES = [
    Case("text", "lstm", 2.2, seconds=180),
    Case("text", "gru", 2.2),
    Case("text", "rnn", 2.2),
    Case("text", "transformer", "lstm"),
    Case("copy", "lstm", 99.0),
    Case("reverse", "lstm", 99.0),
]


# --- trainings -------------------------------------------------------------------------------------------------------


def command(model: str, *more: str) -> list[str]:
    """Return what follows ``python``; the runtime is named, so that it is the same on every machine."""
    start = ["-m", "neonlite.cli", "train", "text", "--model", model]
    return [*start, "--backend", "cpu", "--no-progress-bar", *more]


def said(*arguments: str) -> str:
    """Return what Python says. RuntimeError with what a process that failed says."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(done.args)}\n{done.stdout}{done.stderr}")
    return done.stdout


def text(model: str, seed: int, epochs: int | None = None) -> dict[str, Any]:
    """Read the text that Python brings, one character after another, and write a little."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "text.neon")
        more = ["--epochs", str(epochs)] if epochs else []
        told = said(*command(model, "--seed", str(seed), "--save", file, *more))
        found = re.search(r"^([\d.]+) bits per character of [\d,]+, after (\d+) epochs", told, re.MULTILINE)
        if found is None:
            raise RuntimeError(told)
        written = said("-m", "neonlite.cli", "sample", file, "--backend", "cpu", "--prompt", PROMPT)
        gen_backend("cpu", batch_size=32)
        made = Model(file)
        more = {"overlapping": overlapping(made)} if model == "transformer" else {}
        about = {"epochs": int(found[2]), "parameters": size(made), "sample": written.rstrip("\n")}
        return {"value": float(found[1]), **more, **about}


def overlapping(model: Model, shares: int = 8) -> float:
    """Return the bits per character of what is judged by, read in windows that overlap.

    Of each but the first the last eighth alone counts: the letters before are there already.
    """
    read = corpus()
    index = {letter: i for i, letter in enumerate(read.vocab)}
    ids = np.array([index[letter] for letter in read.texts["valid"]], np.int32)
    steps, N = model.layers.in_shape[1], model.be.bsz
    starts = np.arange(0, len(ids) - steps, steps // shares)
    total, count = 0.0, 0
    for some in np.array_split(starts, -(-len(starts) // N)):
        model.set_batch_size(len(some))
        windows = ids[some + np.arange(steps + 1)[:, None]]  # (T + 1, n)
        p = model.fprop(model.be.array(windows[:-1].reshape(1, -1), dtype="int32"), inference=True).get()
        bits = -np.log2(np.take_along_axis(p, windows[1:].reshape(1, -1), axis=0)).reshape(steps, -1)
        first = np.where(some == 0, 0, steps - steps // shares)
        counts = np.arange(steps)[:, None] >= first
        total, count = total + float(bits[counts].sum()), count + int(counts.sum())
    return total / count


def copy(model: str, seed: int, epochs: int | None = None, longest: int = 5) -> dict[str, Any]:
    """Say one to five times eight random bits again."""
    gen_backend("cpu", rng_seed=seed, batch_size=32)
    task, epochs = CopyTask(in_size=8, seq_len_max=longest), epochs or 6
    made = Model([lstm(128), Affine(task.nout, GlorotUniform(), bias=Constant(0), activation=Logistic())])
    optimizer = Adam(learning_rate=0.01, schedule=CosineSchedule(epochs))
    made.fit(Ticker(task), GeneralizedCostMask(CrossEntropyBinary()), optimizer, epochs)
    right = made.eval(Ticker(task, 1024, seed=JUDGED_BY), SequenceAccuracy())[0]
    return {"value": 100 * float(right), "epochs": epochs, "parameters": size(made)}


def reverse(model: str, seed: int, epochs: int | None = None, length: int = 8) -> dict[str, Any]:
    """Translate: say eight digits backwards, as an encoder and a decoder, with five beams."""
    gen_backend("cpu", rng_seed=seed, batch_size=64)
    epochs = epochs or 10
    end = Affine(10, GlorotUniform(), bias=Constant(0), activation=Softmax())
    made = Model(Seq2Seq([[lstm(128)], [lstm(128), end]]))
    optimizer = Adam(learning_rate=0.01, schedule=CosineSchedule(epochs))
    made.fit(Reversal(length), CrossEntropyMulti(), optimizer, epochs)
    search, right = BeamSearch(made.layers), []
    for x, t in Reversal(length, ndata=1024, seed=JUDGED_BY, get_prev_target=False):
        digits = t.get().argmax(axis=0).reshape(length, -1).T
        right += (search.beamsearch(x, num_beams=5)[0][:, 0] == digits).all(axis=1).tolist()
    return {"value": 100 * float(np.mean(right)), "epochs": epochs, "parameters": size(made)}


def lstm(width: int) -> LSTM:
    return LSTM(width, GlorotUniform(), activation=Tanh(), gate_activation=Logistic())


def size(model: Model) -> int:
    """Return how many numbers a network has learned."""
    return sum(weights.size for weights in model.get_weights().values())


TASKS: dict[str, Callable[..., dict[str, Any]]] = {f.__name__: f for f in (text, copy, reverse)}


# --- the table -------------------------------------------------------------------------------------------------------


def row(case: Case, seeds: Sequence[int], epochs: int | None) -> dict[str, Any]:
    """Return what came of a case."""
    trainings = []
    for seed in seeds:
        start = time.perf_counter()
        found = TASKS[case.task](case.model, seed, epochs)
        trainings.append({"seed": seed, "seconds": time.perf_counter() - start, **found})
        print(case.task, case.model, f"{found['value']:.3f}", file=sys.stderr, flush=True)
    how = (
        command(case.model, "--seed", "SEED")
        if case.task == "text"
        else ["benchmarks/sequences.py", "--only", case.task]
    )
    found = {"command": " ".join(["python", *how]), "hoped for": case._asdict()}
    return found | ({"recipe": recipe("text", case.model)} if case.task == "text" else {}) | {"trainings": trainings}


def values(found: dict[str, Any]) -> list[float]:
    """Return what a row is judged by, for each seed."""
    return [training.get("overlapping", training["value"]) for training in found["trainings"]]


def held(found: dict[str, Any], rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether a row is as hoped for, by its worst seed; one as good as another row, by the means of both."""
    case, reached = Case(**found["hoped for"]), values(found)
    if isinstance(case.hoped, str):
        others = [values(other) for other in rows if other["hoped for"]["task"] == case.task]
        models = [other["hoped for"]["model"] for other in rows if other["hoped for"]["task"] == case.task]
        good = case.hoped in models and np.mean(reached) <= np.mean(others[models.index(case.hoped)])
    else:
        good = max(reached) < case.hoped if case.task == "text" else min(reached) > case.hoped
    return bool(good) and (case.seconds is None or slowest(found) < case.seconds)


def slowest(found: dict[str, Any]) -> float:
    return float(max(training["seconds"] for training in found["trainings"]))


def line(found: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a row of the table; a ``!`` where it is not as hoped for."""
    case, trainings = Case(**found["hoped for"]), found["trainings"]
    bits = case.task == "text"
    hoped = f"≤ {case.hoped}" if isinstance(case.hoped, str) else f"< {case.hoped:g}" if bits else f"> {case.hoped:g} %"
    limit = f", < {case.seconds:g} s" if case.seconds else ""
    cells = [f"{case.task}, {case.model}", hoped + limit + " !" * (not held(found, rows))]
    cells += [f"{trainings[0]['parameters']:,}", str(trainings[0]["epochs"])]
    for training in trainings:
        windows = f" ({training['overlapping']:.3f})" if "overlapping" in training else ""
        cells.append(f"{training['value']:.3f}{windows}" if bits else f"{training['value']:.2f} %")
    return [*cells, f"{slowest(found):.0f}", f"`{found['command']}`"]


def samples(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what the LSTM and the transformer wrote."""
    told = []
    for found in rows:
        case, first = Case(**found["hoped for"]), found["trainings"][0]
        if "sample" in first and case.model in ("lstm", "transformer"):
            how = f"`neonlite sample FILE --prompt {PROMPT!r}`, seed {first['seed']} learned"
            told.append(f"## What the {case.model} writes\n\n{how}:\n\n```text\n{first['sample']}\n```")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run, of which nothing is written")
    parser.add_argument("--only", default="", metavar="WORD", help="the rows with this word; others stay as they were")
    options = parser.parse_args()
    seeds, epochs = (SEEDS[:1], 1) if options.quick else (SEEDS, None)
    saved = RESULTS / "sequences.json"
    before = json.loads(saved.read_text())["rows"] if options.only and saved.exists() else []
    rows = []
    for case in CASES:
        if options.only in f"{case.task} {case.model}":
            rows.append(row(case, seeds, epochs))
        else:
            rows += [old for old in before if old["hoped for"] == case._asdict()]
    about = {key: value for key, value in machine("numpy").items() if key != "used by others"}
    head = ["", "hoped for", "parameters", "epochs", *(f"seed {seed}" for seed in seeds), "seconds", "command"]
    words = "\n".join(f"- {key}: {value}" for key, value in about.items())
    ran, table = "`python benchmarks/sequences.py`", markdown(head, (line(found, rows) for found in rows))
    page = "\n\n".join(["# Sequences", ran, words, NOTE, table, *samples(rows)]) + "\n"
    print(page)
    if not options.quick:
        save("sequences", {"machine": about, "rows": rows}, page)
    return int(not all(held(found, rows) for found in rows))


if __name__ == "__main__":
    sys.exit(main())
