"""Rank failures: training in several processes, of which one is killed at a random time, again and again.

python benchmarks/rank_failures.py            # six minutes: writes results/rank_failures.json and .md
python benchmarks/rank_failures.py --quick    # one minute: writes nothing
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _table import machine, markdown, save

from neonlite.models.training_state import read_checkpoint

TIMEOUT = 30  # seconds until all processes must have ended
NOTE = """\
`python -m neonlite.distributed -n N` trains a network with dropout and batch norm on the digits, with batches of 64 of
all processes and a checkpoint after each epoch. One random rank is killed by `kill -9` at a random time; the next run
resumes from the checkpoint, until training ends. **clean ends**: all processes have ended, the exit status is not 0,
and the checkpoint is whole. **named**: there is one error, which names the rank that was killed; if it is killed while
another rank copies from its memory, MPICH itself ends all processes at once, with an error of its call. **equal final
files**: the arrays have the bits of those of a training without kills."""

SCRIPT = """
import os, sys
import neonlite as nl
from neonlite.callbacks import Callbacks, SerializeModelCallback
from neonlite.distributed import world
from neonlite.layers import Affine, BatchNorm, Dropout
from neonlite.models import Model

path, epochs, pids = sys.argv[1], int(sys.argv[2]), sys.argv[3]
comm = world()
open(f"{pids}/{comm.rank}", "w").write(str(os.getpid()))
be = nl.gen_backend("cpu", batch_size=64 // comm.size, rng_seed=1, deterministic=True)
train = nl.data.DATASETS["digits"]().iterators()[0]
layers = [Affine(64, activation="relu"), BatchNorm(), Dropout(0.8), Affine(10, activation="softmax")]
model = Model(path if os.path.exists(path) else layers)
callbacks = Callbacks(model, progress_bar=False)
callbacks.add_callback(SerializeModelCallback(path))
model.fit(train, "cross_entropy", "adam", epochs, callbacks, distributed=True)
os.unlink(f"{pids}/{comm.rank}")
"""


class Run:
    """A training in several processes."""

    def __init__(self, folder: Path, n: int, epochs: int, name: str) -> None:
        self.pids, self.n = folder / "pids", n
        self.pids.mkdir(exist_ok=True)
        for file in self.pids.iterdir():
            file.unlink()
        script = folder / "train.py"
        script.write_text(SCRIPT)
        command = [sys.executable, "-m", "neonlite.distributed", "-n", str(n), str(script)]
        arguments = [str(folder / name), str(epochs), str(self.pids)]
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def kill_one(self, seconds: float, rng: random.Random) -> int | None:
        """Kill a random rank after some seconds from the time when all have started; None if training has ended."""
        while len(list(self.pids.iterdir())) < self.n:
            if self.process.poll() is not None:
                return None
            time.sleep(0.01)
        time.sleep(seconds)
        rank = rng.randrange(self.n)
        try:
            os.kill(int((self.pids / str(rank)).read_text()), signal.SIGKILL)
        except (FileNotFoundError, ValueError, ProcessLookupError):  # its training has ended
            return None
        return rank

    def end(self) -> tuple[int, str, float]:
        """Return the exit status, standard error, and the seconds until the end."""
        start = time.perf_counter()
        try:
            errors = self.process.communicate(timeout=TIMEOUT)[1]
        except subprocess.TimeoutExpired:
            self.process.kill()
            return 0, "", float("inf")
        return self.process.returncode, errors, time.perf_counter() - start

    def remaining(self) -> int:
        """Return the number of processes that are still there."""
        alive = 0
        for file in self.pids.iterdir():
            try:
                state = Path(f"/proc/{file.read_text()}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            alive += state != "Z"
        return alive


def arrays_of(path: Path) -> dict[str, bytes]:
    """Return the arrays of a checkpoint as bytes."""
    return {name: np.ascontiguousarray(array).tobytes() for name, array in read_checkpoint(path)[1].items()}


def killed(n: int, kills: int, epochs: int, rng: random.Random) -> dict[str, Any]:
    """Kill ranks of trainings on n processes, and return a row of the table."""
    ends, named, faults, trainings, equal, seconds = 0, 0, [], 0, 0, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = time.perf_counter()
        whole = Run(folder, n, epochs, "whole.neon")
        status, errors, _ = whole.end()
        if status:
            raise RuntimeError(f"the training without kills failed with {status}: {errors}")
        duration, expected = time.perf_counter() - start, arrays_of(folder / "whole.neon")
        while ends + len(faults) < kills:
            run = Run(folder, n, epochs, "killed.neon")
            rank = run.kill_one(rng.uniform(0, 0.7 * duration), rng)
            status, errors, elapsed = run.end()
            if rank is None and status:
                raise RuntimeError(f"a training failed with {status}: {errors}")
            if rank is None:  # training had ended before
                trainings += 1
                equal += arrays_of(folder / "killed.neon") == expected
                (folder / "killed.neon").unlink()
                continue
            seconds.append(elapsed)
            named += re.findall(r"^neonlite: rank (\d+) ", errors, re.MULTILINE) == [str(rank)]
            problems = []
            if (left := run.remaining()) or elapsed > TIMEOUT:
                problems.append(f"{left} processes left after {elapsed:.1f} s")
            if (folder / "killed.neon").exists():
                arrays_of(folder / "killed.neon")  # raises CheckpointError
            if problems:
                faults.append("; ".join(problems))
            else:
                ends += 1
        while not trainings or (folder / "killed.neon").exists():  # the last training to its end
            run = Run(folder, n, epochs, "killed.neon")
            status, errors, _ = run.end()
            if status:
                raise RuntimeError(f"the resumed training failed with {status}: {errors}")
            trainings += 1
            equal += arrays_of(folder / "killed.neon") == expected
            (folder / "killed.neon").unlink()
    for fault in faults:
        print(f"{n} processes: {fault}", file=sys.stderr)
    return {
        "processes": n,
        "kills": kills,
        "clean ends": ends,
        "named": named,
        "seconds, median": round(statistics.median(seconds), 2),
        "seconds, longest": round(max(seconds), 2),
        "trainings": trainings,
        "equal final files": equal,
        "held": "yes" if ends == kills and equal == trainings else "NO",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    rng = random.Random(0)
    plan = [(2, 5, 30)] if args.quick else [(2, 30, 60), (4, 20, 60)]
    rows = [killed(n, kills, epochs, rng) for n, kills, epochs in plan]
    table = markdown(list(rows[0]), [[str(value) for value in row.values()] for row in rows])
    print(table)
    if not args.quick:
        facts = "\n".join(f"- {name}: {value}" for name, value in machine().items())
        command = "`python benchmarks/rank_failures.py`"
        page = f"# Rank failures\n\n{command}\n\n{facts}\n\n{NOTE}\n\n{table}\n"
        save("rank_failures", {"machine": machine(), "killed": rows}, page)
    return any(row["held"] == "NO" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
