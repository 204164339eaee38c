"""What does a training survive?  Being killed, also while it saves; being interrupted; and going on for long.

python benchmarks/survival.py            # some ten minutes: writes results/survival.json and results/survival.md
python benchmarks/survival.py --quick    # the short form of a minute: writes nothing
python benchmarks/survival.py --only interrupted
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from _table import machine, markdown, save
from _trainings import BETWEEN, JUDGING, SAVING, STARTING, STEP, Place

from neonlite.models import CheckpointError
from neonlite.models.checkpoint import BESIDE, read_checkpoint

RUNTIMES = ["cpu", *(["mkl"] if find_spec("mkl") else [])]
WORDS = {STARTING: "starting", STEP: "step", BETWEEN: "between", JUDGING: "judging", SAVING: "saving"}
MB = 1e6  # bytes
Row = dict[str, Any]

NOTE = """\
**same seed**: processes that train a network on the digits, in minibatches of 128; the hash of all their weights after
the last step. Across numbers of threads nothing is asked for: OpenBLAS and MKL add up in another order.
**killed**: `kill -9`, again and again, until the training ends; each process but the first goes on from the file, where
there is one yet. The file at the end has the bytes of one that was never killed. `neonlite train digits` is the command
line, with dropout and shuffled rows; it is also ended by Ctrl-C, at which it saves. "augmented" is a convolutional
network with batch norm, dropout, shuffled rows and images that are moved by chance. Moments are random, or aimed: a
save, or a validation, begins, and it is killed then.
**killed while saving**: a process writes a model of some MB again and again, and is killed within a save; then the file
is one of those that were written, whole, and beside it there is at most the file that the next save writes over.
**interrupted**: Ctrl-C; the weights are those of a whole step, that step is the one that the model says it is at, and
`fit`, called again in the same process, ends with the bits of the training that nobody interrupted. "twice": a second
Ctrl-C right behind the first, which ends judging and saving at once; a step is whole all the same.
**memory**: how much the resident memory of a process grows in so many steps, with batches of 32 and Adam; "callbacks"
are validation, its metric and a save each epoch."""


# --- processes -------------------------------------------------------------------------------------------------------


def environment(threads: int = 1) -> dict[str, str]:
    """Return the variables of a process with so many threads."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(threads)), "PYTHONUNBUFFERED": "1"}


class Training:
    """A process of ``_trainings.py``, or of a command, and the events that it tells."""

    def __init__(self, *arguments: Any, threads: int = 1, command: Sequence[str] = (), quiet: bool = False) -> None:
        script = str(Path(__file__).parent / "_trainings.py")
        line = [*command, *map(str, arguments)] if command else [script, *map(str, arguments)]
        errors = subprocess.DEVNULL if quiet else None
        self.process = subprocess.Popen(
            [sys.executable, *line], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment(threads)
        )

    def line(self) -> str:
        """Return the next line; "" at the end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def event(self) -> dict[str, Any]:
        """Return what it tells next. RuntimeError when it ended instead."""
        line = self.line()
        if not line:
            raise RuntimeError(f"{' '.join(self.process.args[1:])} ended with {self.process.wait()}")  # type: ignore
        return dict(json.loads(line))

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self, by: int = signal.SIGKILL) -> None:
        """End it by a signal, as `kill -9` does."""
        self.process.send_signal(by)
        self.close()

    def close(self) -> int:
        """Return the exit status."""
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait()

    @property
    def runs(self) -> bool:
        return self.process.poll() is None


def whole(training: Training) -> dict[str, Any]:
    """Return the last thing that a training tells. RuntimeError when it fails."""
    found: dict[str, Any] = {}
    while line := training.line():
        found = json.loads(line)
    if status := training.close():
        raise RuntimeError(f"{training.process.args} ended with {status}")
    return found


def spin(until: Callable[[], bool], training: Training, limit: float = 20.0) -> None:
    """Wait, without giving up the CPU, until something is so, or a training ends."""
    end = time.perf_counter() + limit
    while not until() and time.perf_counter() < end:
        if not training.runs:
            return


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


# --- the same seed ---------------------------------------------------------------------------------------------------


def same_seed(
    steps: int = 200, processes: int = 3, runtimes: Sequence[str] = RUNTIMES, threads: Sequence[int] = (1, 2)
) -> list[Row]:
    """Return the hashes of the weights, for each runtime, network and number of threads."""
    rows = []
    for runtime in runtimes:
        for name in ("mlp", "lenet"):
            for n in threads:
                told = [whole(Training("weights", runtime, name, steps, threads=n)) for _ in range(processes)]
                hashes = [x["sha256"] for x in told]
                rows.append(
                    {"what": f"{runtime}, {name}", "threads": n, "steps": steps, "processes": processes}
                    | {"about": told[0]["about"], "blas": told[0]["blas"], "sha256": sorted(set(hashes))}
                    | {"held": len(set(hashes)) == 1}
                )
    return rows


# --- killed ----------------------------------------------------------------------------------------------------------


def killed(kills: int = 20, epochs: int = 60, by: int = signal.SIGKILL, seed: int = 0) -> list[Row]:
    """Kill trainings by the command line, at random moments and at those of a save, or end them by Ctrl-C."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        straight, file = folder / "straight.neon", folder / "killed.neon"
        part = file.with_name(file.name + BESIDE)

        def begin(save_to: Path, *more: str) -> Training:
            options = ["-b", "cpu", "-e", str(epochs), "--no-progress-bar", "--save", str(save_to), *more]
            return Training(*options, command=["-m", "neonlite.cli", "train", "digits"], quiet=by == signal.SIGINT)

        def writing(since: int) -> bool:
            try:
                return part.stat().st_mtime_ns > since
            except FileNotFoundError:
                return False

        clock = time.perf_counter()
        training = begin(straight)
        training.line()
        starting = time.perf_counter() - clock
        while training.line():
            pass
        training.close()
        epoch = (time.perf_counter() - clock - starting) / epochs
        wanted, when, ends = digest(straight), Counter[str](), []
        while sum(when.values()) < kills:
            file.unlink(missing_ok=True)
            part.unlink(missing_ok=True)
            while True:
                began = time.time_ns()
                training = begin(file, *(["--resume", str(file)] if file.exists() else []))
                many = sum(when.values())
                if many >= kills:
                    while training.line():
                        pass
                    ends.append((training.close(), digest(file) == wanted))
                    break
                started = False
                if many % 4 == 0:
                    time.sleep(chance.uniform(0, starting + epoch))
                else:
                    started = bool(training.line())
                    time.sleep(chance.uniform(0, 4 * epoch))
                    if many % 4 == 1:
                        since = max(began, time.time_ns() - 1_000_000)
                        spin(lambda since=since: writing(since), training)
                if not training.runs:  # it came to its end before
                    ends.append((training.close(), digest(file) == wanted))
                    break
                training.kill(by)
                saving = writing(began)
                first = "" if file.exists() else ", no file yet"
                when[("saving" if saving else "in an epoch" if started else "starting") + first] += 1
    held = all(status == 0 and same for status, same in ends)
    what = "neonlite train digits" + (", Ctrl-C" if by == signal.SIGINT else "")
    row = {"what": what, "kills": kills, "when": dict(when), "trainings": len(ends), "held": held}
    return [row | {"sha256": wanted}]


def killed_augmented(kills: int = 20, epochs: int = 12, seed: int = 0) -> list[Row]:
    """Kill trainings with augmentation, aiming at each kind of moment in turn."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        straight, file, mark = folder / "straight.neon", folder / "killed.neon", folder / "place"
        training = Training("augmented", straight, epochs, mark)
        training.event()
        clock = time.perf_counter()
        whole(training)
        epoch = (time.perf_counter() - clock) / epochs
        wanted, when, ends, place = digest(straight), Counter[str](), [], Place(mark)
        while sum(when.values()) < kills:
            file.unlink(missing_ok=True)
            while True:
                place.set(STARTING)
                training = Training("augmented", file, epochs, mark)
                many = sum(when.values())
                if many >= kills:
                    whole(training)
                    ends.append(digest(file) == wanted)
                    break
                training.event()
                time.sleep(chance.uniform(0, 1.5 * epoch))
                aim = (STEP, SAVING, JUDGING, None)[many % 4]
                if aim is not None:
                    spin(lambda aim=aim: place() != aim, training)
                    spin(lambda aim=aim: place() == aim, training)
                    pause = time.perf_counter() + chance.uniform(0, 0.001)
                    spin(lambda end=pause, aim=aim: time.perf_counter() > end or place() != aim, training)
                if not training.runs:
                    training.close()
                    ends.append(digest(file) == wanted)
                    break
                training.kill()
                when[WORDS[place()] + ("" if file.exists() else ", no file yet")] += 1
    row = {"what": "augmented", "kills": kills, "when": dict(when), "trainings": len(ends), "held": all(ends)}
    return [row | {"sha256": wanted}]


def killed_while_saving(kills: int = 100, seed: int = 0) -> list[Row]:
    """Kill a process within a save, again and again; each time the file is whole, and little is left beside it."""
    chance, when, last, unreadable, torn, strangers = random.Random(seed), Counter[str](), 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "model.neon"
        part = file.with_name(file.name + BESIDE)
        lasts: list[float] = []  # seconds of a save
        for _ in range(kills):
            training = Training("saving", file, last + 1, sys.maxsize)
            for _ in range(3 if lasts else 12):  # some saves are whole first
                finished = training.event()["number"]
                clock = time.perf_counter()
                training.event()
                lasts.append(time.perf_counter() - clock)
            training.event()
            most = statistics.median(lasts)
            if sum(when.values()) % 2:  # as soon as there is something beside the file, or a little later
                spin(part.exists, training, most)
                most /= 4
            end = time.perf_counter() + chance.uniform(0, most)
            spin(lambda end=end: time.perf_counter() > end, training)
            training.kill()
            size = part.stat().st_size if part.exists() else -1
            whole_size = file.stat().st_size
            when["the new file whole, not yet in place" if size == whole_size else "the new file in part" if size >= 0
                 else "nothing beside"] += 1  # fmt: skip
            strangers += len({path.name for path in file.parent.iterdir()} - {file.name, part.name})
            try:
                description, arrays = read_checkpoint(file)
            except CheckpointError:
                unreadable += 1
                continue
            values = {float(x) for array in arrays.values() for x in (array.min(), array.max())}
            last = description["training"]["epoch_index"]
            torn += values != {float(last)} or last < finished
        size = file.stat().st_size
        part.write_bytes(bytes(2 * size))
        whole(Training("saving", file, last + 1, last + 1))
        again = read_checkpoint(file)[0]["training"]["epoch_index"] == last + 1
        reused = again and file.stat().st_size == size and [path.name for path in file.parent.iterdir()] == [file.name]
    row = {"what": "Model.save_params", "kills": kills, "when": dict(when), "bytes": size, "unreadable": unreadable}
    row |= {"not one of the states": torn, "other files": strangers, "a leftover is used again": reused}
    row |= {"seconds of a save": statistics.median(lasts)}
    return [row | {"held": not (unreadable or torn or strangers) and reused}]


# --- interrupted -----------------------------------------------------------------------------------------------------


def interrupted(stops: int = 50, name: str = "mlp", epochs: int = 8, twice: bool = False, seed: int = 0) -> list[Row]:
    """Press Ctrl-C at random moments, and at those of judging and saving; once, or twice."""
    chance = random.Random(seed)
    when, wrong, misplaced, ends, done = Counter[str](), 0, 0, [], 0
    with tempfile.TemporaryDirectory() as folder:
        file, mark = Path(folder) / "model.neon", Path(folder) / "place"
        training = Training("interrupted", name, file, epochs, "")
        training.event()
        clock = time.perf_counter()
        straight = whole(training)
        lasts = (time.perf_counter() - clock) / epochs
        hashes = straight["hashes"]
        step_of = {tuple(at): i for i, at in enumerate(straight["places"])}
        for epoch in range(1, epochs + 1):
            step_of[epoch, 0] = max(i for (e, _), i in step_of.items() if e < epoch)
        place = Place(mark)
        while done < stops:
            place.set(STARTING)
            training = Training("interrupted", name, file, epochs, mark)
            while training.event()["event"] == "fit":
                if done < stops:
                    aim = (None, None, None, JUDGING, SAVING)[done % 5]
                    time.sleep(chance.uniform(0, lasts))
                    if aim is not None:
                        spin(lambda aim=aim: place() != aim, training)
                        spin(lambda aim=aim: place() == aim, training, 2 * lasts)
                    elif twice:
                        spin(lambda: place() == STEP, training, lasts)
                    before = place()
                    training.send(signal.SIGINT)
                    if twice:
                        pause = time.perf_counter() + chance.uniform(0.0001, 0.004)
                        spin(lambda end=pause: time.perf_counter() > end, training)
                        training.send(signal.SIGINT)
                told = training.event()
                if told["event"] == "done":
                    break
                done += 1
                when[WORDS[before]] += 1
                step = step_of.get(tuple(told["at"]))
                if told["sha256"] is not None:
                    wrong += told["sha256"] not in hashes
                    misplaced += told["sha256"] in hashes and (
                        step is None or hashes[step] != told["sha256"] or told["t"] != step
                    )
            ends.append(told["sha256"] == hashes[-1])
            training.close()
    row = {"what": f"{name}, {'twice' if twice else 'once'}", "stops": done, "when": dict(when)}
    row |= {"not of a whole step": wrong, "not of its step": misplaced, "trainings": len(ends)}
    row |= {"other bits at the end": ends.count(False)}
    return [row | {"held": not wrong and not misplaced and all(ends)}]


# --- for long --------------------------------------------------------------------------------------------------------


def memory(
    steps: int = 10_000, warm: int = 500, names: Sequence[str] = ("mlp", "lenet"), runtimes: Sequence[str] = RUNTIMES
) -> list[Row]:
    """Weigh processes that train."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for runtime in runtimes:
            for name in names:
                for callbacks in ("without", "with"):
                    file = Path(folder) / "model.neon"
                    seen = whole(Training("weighed", runtime, name, callbacks, warm, steps, file))["bytes"]
                    grown = seen[-1] - seen[0]
                    rows.append(
                        {"what": f"{runtime}, {name}, {callbacks} callbacks", "steps": steps, "warm": warm}
                        | {"bytes": seen, "grown": grown, "held": grown < MB}
                    )
    return rows


# --- telling ---------------------------------------------------------------------------------------------------------


def counted(when: dict[str, int]) -> str:
    return ", ".join(f"{n} {word}" for word, n in sorted(when.items(), key=lambda item: -item[1]))


def yes(row: Row) -> str:
    return "yes" if row["held"] else "NO !"


TABLES: dict[str, tuple[list[str], Callable[[Row], list[str]]]] = {
    "same seed": (
        ["same seed", "threads", "steps", "processes", "weights", "libraries", "held"],
        lambda r: [
            *(r["what"], str(r["threads"]), str(r["steps"]), str(r["processes"])),
            *(", ".join(x[:12] for x in r["sha256"]), "; ".join(r["blas"] or [r["about"]]), yes(r)),
        ],
    ),
    "killed": (
        ["killed", "kills", "when", "trainings", "file at the end", "held"],
        lambda r: [
            *(r["what"], str(r["kills"]), counted(r["when"]), str(r["trainings"])),
            *(("the same bytes" if r["held"] else "other bytes"), yes(r)),
        ],
    ),
    "killed while saving": (
        ["killed while saving", "kills", "file", "when", "unreadable", "not one of the states", "other files", "held"],
        lambda r: [
            *(r["what"], str(r["kills"]), f"{r['bytes'] / MB:.1f} MB", counted(r["when"])),
            *(str(r[word]) for word in ("unreadable", "not one of the states", "other files")),
            yes(r),
        ],
    ),
    "interrupted": (
        ["interrupted", "times", "when", "not of a whole step", "not of its step", "other bits at the end", "held"],
        lambda r: [
            *(r["what"], str(r["stops"]), counted(r["when"])),
            *(str(r[word]) for word in ("not of a whole step", "not of its step")),
            *(f"{r['other bits at the end']} of {r['trainings']}", yes(r)),
        ],
    ),
    "memory": (
        ["memory", "steps", "at first", "grown", "held"],
        lambda r: [
            *(r["what"], f"{r['steps']:,} after {r['warm']}", f"{r['bytes'][0] / MB:.1f} MB"),
            *(f"{r['grown'] / 1000:,.0f} kB", yes(r)),
        ],
    ),
}


def full() -> dict[str, Callable[[], list[Row]]]:
    """Return what is done for each table."""
    return {
        "same seed": same_seed,
        "killed": lambda: killed() + killed(by=signal.SIGINT) + killed_augmented(),
        "killed while saving": killed_while_saving,
        "interrupted": lambda: interrupted() + interrupted(25, "wide", 4) + interrupted(50, "wide", 6, twice=True),
        "memory": memory,
    }


def quick() -> dict[str, Callable[[], list[Row]]]:
    """Return the same in short."""
    return {
        "same seed": lambda: same_seed(processes=2, threads=(1,)),
        "killed": lambda: killed(4, 12) + killed_augmented(4, 3),
        "killed while saving": lambda: killed_while_saving(8),
        "interrupted": lambda: interrupted(8, epochs=4) + interrupted(8, "wide", 2, twice=True),
        "memory": lambda: memory(2000, 500, ["mlp"], ["cpu"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the short form, of which nothing is written")
    parser.add_argument("--only", default="", metavar="WORD", help="the tables with this word; nothing is written")
    options = parser.parse_args()
    works = {name: work for name, work in (quick() if options.quick else full()).items() if options.only in name}
    about = machine("numpy", "mkl", "safetensors") | {"threads": "1, unless a table says otherwise"}
    found, tables = {}, []
    for name, work in works.items():
        clock = time.perf_counter()
        found[name] = work()
        print(f"{name}: {time.perf_counter() - clock:.0f} s", file=sys.stderr)
        head, cells = TABLES[name]
        tables.append(markdown(head, map(cells, found[name])))
    words = "\n".join(f"- {key}: {value}" for key, value in about.items())
    command = f"`{' '.join(['python benchmarks/survival.py', *sys.argv[1:]])}`"
    page = "\n\n".join(["# Survival", command, words, NOTE, *tables]) + "\n"
    print(page)
    if not (options.quick or options.only):
        save("survival", {"machine": about, **found}, page)
    return int(not all(row["held"] for rows in found.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
