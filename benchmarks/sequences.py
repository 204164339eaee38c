"""Benchmark of sequence models: language models of a text, the copy task, and the reversal of digits.

python benchmarks/sequences.py              # 25 minutes: writes results/sequences.json and results/sequences.md
python benchmarks/sequences.py --quick      # a smoke run of one seed and one epoch each: writes nothing
python benchmarks/sequences.py --only text  # measures only these rows again
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
from neonlite.data.datasets import load_corpus
from neonlite.initializers import Constant, GlorotUniform
from neonlite.layers import LSTM, Affine, GeneralizedCostMask, Seq2Seq
from neonlite.models import BeamSearch, Model
from neonlite.models.zoo import recipe
from neonlite.optimizers import Adam, CosineSchedule
from neonlite.transforms import CrossEntropyBinary, CrossEntropyMulti, Logistic, SequenceAccuracy, Softmax, Tanh

SEEDS = (1, 2)
VALIDATION_SEED = 1 << 32  # not used for training
PROMPT = "The "
NOTE = """\
The text is the Python documentation, trained on by the command in the row, each run in a separate process; the recipes
are in `neonlite/models/zoo.py`. Figures are bits per character of the last tenth of the text (the validation set), by
the network of the last epoch; they differ between versions of Python, as the text does. The recurrent networks keep
their state through the whole text. The transformer sees only a window of 64 characters, and starts each without
context; in parentheses are its bits for overlapping windows, the usual evaluation of transformers: only the last 8
characters of each window count, so that 56 precede them. These bits, as a mean over seeds, are compared with the LSTM;
the transformer takes more epochs, and each takes longer. Copy (1 to 5 times 8 random bits) and reverse (8 digits,
reversed by an encoder and a decoder, with a beam search of 5) use new random sequences in every epoch, and are
evaluated on 1,024 sequences of another seed: a sequence is correct if every bit, or every digit, is. "seconds" are
those of the slowest seed, including Python's start, evaluation and sampling. The recipes were tuned on the last tenth
of the training set. Rows may have been measured separately (`--only`), while other processes used the machine: on a
quiet machine, seconds are lower."""


class Case(NamedTuple):
    """A task, a network, and its target: bits at most, percent at least, or another row; and seconds."""

    task: str
    model: str
    target: float | str
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
    """Return the arguments of ``python``; the runtime is explicit, so that it is the same on every machine."""
    start = ["-m", "neonlite.cli", "train", "text", "--model", model]
    return [*start, "--backend", "cpu", "--no-progress-bar", "--patience", "0", *more]


def run_python(*arguments: str) -> str:
    """Run Python and return its output; RuntimeError with the output if it fails."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(done.args)}\n{done.stdout}{done.stderr}")
    return done.stdout


def text(model: str, seed: int, epochs: int | None = None) -> dict[str, Any]:
    """Train a character-level model of the Python documentation, and sample from it."""
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "text.neon")
        more = ["--epochs", str(epochs)] if epochs else []
        output = run_python(*command(model, "--seed", str(seed), "--save", file, *more))
        pattern = r"^([\d.]+) bits per character on [\d,]+ characters, after (\d+) epochs?"
        match = re.search(pattern, output, re.MULTILINE)
        if match is None:
            raise RuntimeError(output)
        generated = run_python("-m", "neonlite.cli", "sample", file, "--backend", "cpu", "--prompt", PROMPT)
        gen_backend("cpu", batch_size=32)
        trained = Model(file)
        more = {"overlapping": overlapping(trained)} if model == "transformer" else {}
        about = {"epochs": int(match[2]), "parameters": size(trained), "sample": generated.rstrip("\n")}
        return {"value": float(match[1]), **more, **about}


def overlapping(model: Model, parts: int = 8) -> float:
    """Return the bits per character of the validation text, in overlapping windows.

    Only the last eighth of each window counts, except for the first one: the characters before it are context.
    """
    corpus = load_corpus()
    index = {letter: i for i, letter in enumerate(corpus.vocab)}
    ids = np.array([index[letter] for letter in corpus.texts["valid"]], np.int32)
    steps, N = model.layers.in_shape[1], model.be.bsz
    starts = np.arange(0, len(ids) - steps, steps // parts)
    total, count = 0.0, 0
    for some in np.array_split(starts, -(-len(starts) // N)):
        model.set_batch_size(len(some))
        windows = ids[some + np.arange(steps + 1)[:, None]]  # (T + 1, n)
        p = model.fprop(model.be.array(windows[:-1].reshape(1, -1), dtype="int32"), inference=True).get()
        bits = -np.log2(np.take_along_axis(p, windows[1:].reshape(1, -1), axis=0)).reshape(steps, -1)
        first = np.where(some == 0, 0, steps - steps // parts)
        counts = np.arange(steps)[:, None] >= first
        total, count = total + float(bits[counts].sum()), count + int(counts.sum())
    return total / count


def copy(model: str, seed: int, epochs: int | None = None, longest: int = 5) -> dict[str, Any]:
    """Train an LSTM on the copy task: one to five times eight random bits."""
    gen_backend("cpu", rng_seed=seed, batch_size=32)
    task, epochs = CopyTask(seq_len_max=longest, vec_size=8), epochs or 6
    trained = Model([lstm(128), Affine(task.nout, GlorotUniform(), bias=Constant(0), activation=Logistic())])
    optimizer = Adam(learning_rate=0.01, schedule=CosineSchedule(epochs))
    trained.fit(Ticker(task), GeneralizedCostMask(CrossEntropyBinary()), optimizer, epochs)
    accuracy = trained.eval(Ticker(task, 1024, seed=VALIDATION_SEED), SequenceAccuracy())[0]
    return {"value": 100 * float(accuracy), "epochs": epochs, "parameters": size(trained)}


def reverse(model: str, seed: int, epochs: int | None = None, length: int = 8) -> dict[str, Any]:
    """Train an encoder and a decoder to reverse eight digits; decode with five beams."""
    gen_backend("cpu", rng_seed=seed, batch_size=64)
    epochs = epochs or 10
    output = Affine(10, GlorotUniform(), bias=Constant(0), activation=Softmax())
    trained = Model(Seq2Seq([[lstm(128)], [lstm(128), output]]))
    optimizer = Adam(learning_rate=0.01, schedule=CosineSchedule(epochs))
    trained.fit(Reversal(length), CrossEntropyMulti(), optimizer, epochs)
    search, is_correct = BeamSearch(trained.layers), []
    for x, t in Reversal(length, ndata=1024, seed=VALIDATION_SEED, get_prev_target=False):
        digits = t.get().argmax(axis=0).reshape(length, -1).T
        is_correct += (search.beamsearch(x, num_beams=5)[0][:, 0] == digits).all(axis=1).tolist()
    return {"value": 100 * float(np.mean(is_correct)), "epochs": epochs, "parameters": size(trained)}


def lstm(width: int) -> LSTM:
    return LSTM(width, GlorotUniform(), activation=Tanh(), gate_activation=Logistic())


def size(model: Model) -> int:
    """Return the number of weights of a network."""
    return sum(weights.size for weights in model.get_weights().values())


TASKS: dict[str, Callable[..., dict[str, Any]]] = {f.__name__: f for f in (text, copy, reverse)}


# --- the table -------------------------------------------------------------------------------------------------------


def run_case(case: Case, seeds: Sequence[int], epochs: int | None) -> dict[str, Any]:
    """Run a case with each seed and return its results."""
    trainings = []
    for seed in seeds:
        start = time.perf_counter()
        result = TASKS[case.task](case.model, seed, epochs)
        trainings.append({"seed": seed, "seconds": time.perf_counter() - start, **result})
        print(case.task, case.model, f"{result['value']:.3f}", file=sys.stderr, flush=True)
    how = (
        command(case.model, "--seed", "SEED")
        if case.task == "text"
        else ["benchmarks/sequences.py", "--only", case.task]
    )
    result = {"command": " ".join(["python", *how]), "target": case._asdict()}
    return result | ({"recipe": recipe("text", case.model)} if case.task == "text" else {}) | {"trainings": trainings}


def values(result: dict[str, Any]) -> list[float]:
    """Return the figure of a row that is compared with its target, for each seed."""
    return [training.get("overlapping", training["value"]) for training in result["trainings"]]


def meets_target(result: dict[str, Any], rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether the worst seed meets the target; for a target that is another row, compare the means."""
    case, reached = Case(**result["target"]), values(result)
    if isinstance(case.target, str):
        others = [values(other) for other in rows if other["target"]["task"] == case.task]
        models = [other["target"]["model"] for other in rows if other["target"]["task"] == case.task]
        good = case.target in models and np.mean(reached) <= np.mean(others[models.index(case.target)])
    else:
        good = max(reached) < case.target if case.task == "text" else min(reached) > case.target
    return bool(good) and (case.seconds is None or slowest(result) < case.seconds)


def slowest(result: dict[str, Any]) -> float:
    return float(max(training["seconds"] for training in result["trainings"]))


def line(result: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a row of the table, with a ``!`` if it misses its target."""
    case, trainings = Case(**result["target"]), result["trainings"]
    bits = case.task == "text"
    target = (
        f"≤ {case.target}" if isinstance(case.target, str) else f"< {case.target:g}" if bits else f"> {case.target:g} %"
    )
    limit = f", < {case.seconds:g} s" if case.seconds else ""
    cells = [f"{case.task}, {case.model}", target + limit + " !" * (not meets_target(result, rows))]
    cells += [f"{trainings[0]['parameters']:,}", str(trainings[0]["epochs"])]
    for training in trainings:
        windows = f" ({training['overlapping']:.3f})" if "overlapping" in training else ""
        cells.append(f"{training['value']:.3f}{windows}" if bits else f"{training['value']:.2f} %")
    return [*cells, f"{slowest(result):.0f}", f"`{result['command']}`"]


def samples(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the sections with the text generated by the LSTM and the transformer."""
    sections = []
    for result in rows:
        case, first = Case(**result["target"]), result["trainings"][0]
        if "sample" in first and case.model in ("lstm", "transformer"):
            how = f"`neonlite sample FILE --prompt {PROMPT!r}`, seed {first['seed']}"
            sections.append(f"## Text generated by the {case.model}\n\n{how}:\n\n```text\n{first['sample']}\n```")
    return sections


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run that writes no results")
    parser.add_argument("--only", default="", metavar="WORD", help="measure only the rows with this word")
    options = parser.parse_args()
    seeds, epochs = (SEEDS[:1], 1) if options.quick else (SEEDS, None)
    saved = RESULTS / "sequences.json"
    before = json.loads(saved.read_text())["rows"] if options.only and saved.exists() else []
    rows = []
    for case in CASES:
        if options.only in f"{case.task} {case.model}":
            rows.append(run_case(case, seeds, epochs))
        else:
            rows += [old for old in before if old["target"] == case._asdict()]
    about = {key: value for key, value in machine("numpy").items() if key != "used by others"}
    head = ["", "target", "parameters", "epochs", *(f"seed {seed}" for seed in seeds), "seconds", "command"]
    words = "\n".join(f"- {key}: {value}" for key, value in about.items())
    ran, table = "`python benchmarks/sequences.py`", markdown(head, (line(result, rows) for result in rows))
    page = "\n\n".join(["# Sequences", ran, words, NOTE, table, *samples(rows)]) + "\n"
    print(page)
    if not options.quick:
        save("sequences", {"machine": about, "rows": rows}, page)
    return int(not all(meets_target(result, rows) for result in rows))


if __name__ == "__main__":
    sys.exit(main())
