"""Run functions in several processes of mpiexec, and return the results of each rank.

A script for the ranks defines functions ``f(comm, folder)`` that return picklable results, and ends with
``main(globals())``. ``Ranks(script, folder)`` starts it, and returns the results of a function for a number of ranks.
The processes of pytest-xdist share one folder of results, so that a script runs once for all of them.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

TIMEOUT = 120  # seconds
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]))
MISSING = "mpi4py is not installed" if find_spec("mpi4py") is None else "" if MPIEXEC else "mpiexec is not on PATH"
needs_mpi = pytest.mark.skipif(bool(MISSING), reason=f'{MISSING}: pip install "neonlite[mpi]"')


def mpiexec(n: int, *arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments on n ranks, and return its outputs."""
    folders = [str(folder) for folder in Path(__file__).parents[1:3]]  # of tests, and of neonlite
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(folders)} | environment
    command = [str(MPIEXEC), "-n", str(n), sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)


class Ranks:
    """The results of the functions of a script on 1, 2, ... ranks.

    Functions are called in the order of the script, in one run for each number of ranks: a run starts with the first
    function whose result is needed, and calls those of the other names of ``together`` that need this number, too.
    """

    def __init__(self, script: Path, folder: Path, together: dict[int, Sequence[str]] | None = None) -> None:
        self.script, self.folder, self.together = script, folder, together or {}
        self.results: dict[tuple[str, int], list[Any]] = {}
        self.errors: dict[int, str] = {}

    def __call__(self, name: str, n: int) -> list[Any]:
        """Return the result of a function on each of n ranks; fail with their output if it raised an error."""
        if (name, n) not in self.results:
            names = list(self.together.get(n, ()))
            self.run(names if name in names and n not in self.errors else [name], n)
        if (name, n) not in self.results:
            pytest.fail(f"{name} on {n} ranks: no result.\n{self.errors[n]}")
        return self.results[name, n]

    def run(self, names: Sequence[str], n: int) -> None:
        """Run functions on n ranks unless another process of pytest has their results, and read these."""
        errors = self.folder / f"{'-'.join(names)[:80]}-of-{n}.txt"
        with (self.folder / f"lock-{n}").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not errors.exists():
                done = mpiexec(n, self.script, self.folder, *names, cwd=self.folder)
                errors.write_text(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
        self.errors[n] = errors.read_text()
        for name in names:
            paths = [self.folder / f"{name}-{rank}-of-{n}.pickle" for rank in range(n)]
            if all(path.exists() for path in paths):
                self.results[name, n] = [pickle.loads(path.read_bytes()) for path in paths]


def shared_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """Return a folder that the processes of pytest-xdist share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


def main(functions: dict[str, Callable[..., Any]]) -> None:
    """Call the functions that the command line names, and write their results: ``script.py FOLDER NAME...``."""
    from neonlite import cleanup_backend
    from neonlite.distributed import world

    folder, *names = sys.argv[1:]
    comm = world()
    for name in names:
        result = functions[name](comm, Path(folder))
        path = Path(folder) / f"{name}-{comm.rank}-of-{comm.size}.pickle"
        path.with_suffix(".part").write_bytes(pickle.dumps(result))
        path.with_suffix(".part").rename(path)
        cleanup_backend()
        comm.barrier()
