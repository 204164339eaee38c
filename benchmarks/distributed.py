"""Measure data-parallel training: efficiency, all-reduce, overlap and divided states, beside PyTorch's.

python benchmarks/distributed.py            # ten minutes; writes results/distributed.json and results/distributed.md
python benchmarks/distributed.py --quick    # a smoke test of a minute; writes nothing
python benchmarks/distributed.py --only mlp
python benchmarks/distributed.py --states   # two minutes: divided optimizer states; writes results/states.json and .md
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from _table import cpus, format_duration, machine, markdown, save

import neonlite as nl
from neonlite.callbacks import CallbackBase
from neonlite.data import ArrayIterator
from neonlite.distributed import mpiexec_command, world
from neonlite.initializers import Constant, GlorotUniform
from neonlite.layers import Affine, Conv, GeneralizedCost, Pooling
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import CrossEntropyMulti, Rectlin, Softmax

N = 128  # batch size of a rank
SMALL_N = 8  # a second one, from which benchmarks/scaling.py computes the time of a step that no rank saves
RATE = 1e-7  # learning rate: all steps are alike
STEPS, WARM_UP = 14, 3  # steps of a sample, and those before it
MAX_OTHERS = 0.05  # fraction of the CPUs that other processes may use during a sample
IDLE_SECONDS, PATIENCE = 0.1, 5.0  # a sample starts after the machine was idle for so long; how long to wait for it
SECONDS = 150  # for a network, and for the sums of a number of ranks
STATE_SECONDS = 60  # for a network, with divided optimizer states
ROUNDS, MIN_ROUNDS = 15, 5  # samples of each variant without other processes
SIZES = {"10 kB": 10_000, "1 MB": 1_000_000, "10 MB": 10_000_000, "40 MB": 40_000_000}
GOALS = {"cifar": 0.9, "mlp 784-1024-1024-10": 0.8}  # efficiency of two ranks
NETWORKS: dict[str, tuple[tuple[int, ...], list[str]]] = {
    "mlp 784-1024-1024-10": ((784,), ["affine 1024", "affine 1024", "classes 10"]),
    "cifar": ((3, 32, 32), ["conv 5 16", "pool 2", "conv 5 32", "pool 2", "affine 500", "classes 10"]),
}
NOTE = """\
All processes use one thread. Two processes are started by `mpiexec -n 2`. In each round, all variants run once, in
random order, on the same random data and, for each library, the same network. Each rank computes 128 rows of a
minibatch. A sample is the mean time of 14 steps of `Model.fit`; times are medians of the samples during which other
processes used at most 5 % of the CPUs (`~`: fewer than 5 such samples, so all are used).
"1 rank": rank 0 trains alone, and rank 1 sleeps. "2 alone": both train at the same time without communication. This is
the limit of the machine: they share the memory bandwidth, the L3 cache and the system's own work. "2 ranks":
`fit(distributed=True)`. "overlap": the same with `world().overlap = True`. "efficiency" is "1 rank" / "2 ranks", and
"of limit" is "2 alone" / "2 ranks". PyTorch trains by `DistributedDataParallel` with gloo, images with channels last,
and SGD with momentum 0.9; its steps contain no all-reduce of the cost, which those of neonlite do.
"× torch" is the time of neonlite / that of PyTorch, of 2 ranks."""
STATES_NOTE = """\
Adam on two ranks of one thread, `mpiexec -n 2`: each with the optimizer states of all parameters, and with those of its
part (`world().shard_states = True`). "states" are the bytes of the states of rank 0 and of rank 1. "peak" is the most
memory that a rank has used (VmHWM, both ranks), each variant in new processes. A time is the median of samples of 14
steps, in interleaved rounds, as below for training steps; "ratio" is the median of the ratios within a round."""
STATE_NETWORKS = NETWORKS | {"mlp 784-12x1024-10": ((784,), [*["affine 1024"] * 12, "classes 10"])}
REDUCE_NOTE = """\
Sums of float32 arrays in place: `world().all_reduce`, the same with `deterministic=True` (in the order of the ranks),
and `torch.distributed.all_reduce` of gloo. Medians of the mean times of several calls, in random order. Two ranks need
no separate method for the order, as x + y = y + x."""
MASK_NOTE = """\
Each rank draws the dropout mask of the complete minibatch, so that the mask of a row does not depend on the number of
ranks: nanoseconds of CPU time for each element."""


# --- a rank ----------------------------------------------------------------------------------------------------------


class Clock(CallbackBase):
    """Records the time after each step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        self.times.append(time.perf_counter())

    def seconds(self) -> float:
        """Return the mean time of a step after the first ones."""
        return (self.times[-1] - self.times[WARM_UP - 1]) / (len(self.times) - WARM_UP)


def wait_for_all(comm: Any) -> None:
    """Wait until all ranks have called this function, asleep: MPI itself would use the CPU."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(5e-4)


def cpu_ticks() -> float:
    """Return the CPU seconds of all processes, with those that the host has taken from this machine."""
    stat = Path("/proc/stat").read_text().splitlines()[0].split()
    user, nice, system, _, _, *others = map(int, stat[1:9])
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def wait_until_idle() -> None:
    """Wait until no process uses the CPUs, or until ``PATIENCE`` is over."""
    deadline = time.perf_counter() + PATIENCE
    while time.perf_counter() < deadline:
        ticks = cpu_ticks()
        time.sleep(IDLE_SECONDS)
        if cpu_ticks() - ticks < MAX_OTHERS * cpus() * IDLE_SECONDS + 0.01:
            return


def sample(comm: Any, work: Callable[[], float], quick: bool = False) -> tuple[float, bool]:
    """Return the result of rank 0, and whether other processes used almost no CPU time meanwhile."""
    if comm.rank == 0 and not quick:
        wait_until_idle()
    wait_for_all(comm)
    ticks, start, own = cpu_ticks(), time.perf_counter(), time.process_time()
    seconds = work()
    wait_for_all(comm)
    ticks, wall = cpu_ticks() - ticks, time.perf_counter() - start
    used = sum(comm.allgather(time.process_time() - own))
    return seconds, ticks - used < MAX_OTHERS * cpus() * wall


def layers(names: list[str]) -> list[Any]:
    result: list[Any] = []
    for name in names:
        kind, *numbers = name.split()
        sizes = [int(number) for number in numbers]
        options = {"init": GlorotUniform(), "bias": Constant(0), "activation": Rectlin()}
        if kind == "pool":
            result.append(Pooling(sizes[0]))
        elif kind == "conv":
            result.append(Conv((sizes[0], sizes[0], sizes[1]), **options))
        else:
            result.append(Affine(sizes[0], **options | ({"activation": Softmax()} if kind == "classes" else {})))
    return result


def ours(comm: Any, name: str, x: Any, y: Any) -> dict[str, Callable[[], float]]:
    """Return the variants of neonlite."""
    shape, names = NETWORKS[name]
    be = nl.gen_backend("cpu", rng_seed=1, batch_size=N)
    model, cost = nl.Model(layers(names)), GeneralizedCost(CrossEntropyMulti())
    optimizer, lshape = GradientDescentMomentum(RATE, 0.9), shape if len(shape) > 1 else None
    of_all, of_one = (ArrayIterator(x[:n], y[:n], 10, lshape) for n in (len(x), len(x) // 2))
    small = ArrayIterator(x[: (n := SMALL_N * 50)], y[:n], 10, lshape)

    def fit(dataset: Any, batch_size: int = N, distributed: bool = False, overlap: bool = False) -> float:
        clock, model.epoch_index, be.bsz = Clock(), 0, batch_size
        world().overlap = overlap
        with be.batch_size(batch_size):
            model.fit(dataset, cost, optimizer, 1, clock, distributed=distributed)
        be.bsz = N
        return clock.seconds()

    def alone(*arguments: Any) -> float:
        return fit(*arguments) if comm.rank == 0 else 0.0

    fit(of_one)  # the states of the optimizer
    return {
        "1 rank": lambda: alone(of_one),
        "1 rank, small": lambda: alone(small, SMALL_N),
        "2 alone": lambda: fit(of_one),
        "2 ranks": lambda: fit(of_all, N, True),
        "overlap": lambda: fit(of_all, N, True, True),
    }


def connect_torch(comm: Any) -> Any:
    """Return torch, with a process group of gloo."""
    torch = import_module("torch")
    torch.set_num_threads(1)
    path = comm.bcast(tempfile.mktemp(prefix="gloo-"))
    torch.distributed.init_process_group("gloo", f"file://{path}", rank=comm.rank, world_size=comm.size)
    return torch


def theirs(comm: Any, name: str, x: Any, y: Any) -> dict[str, Callable[[], float]]:
    """Return the variants of PyTorch."""
    torch = connect_torch(comm)
    nn, F = torch.nn, torch.nn.functional
    shape, names = NETWORKS[name]
    stack: list[Any] = []
    for layer in names:
        kind, *numbers = layer.split()
        sizes = [int(number) for number in numbers]
        before = nn.Sequential(*stack)(torch.zeros(1, *shape)).shape[1:]
        if kind == "pool":
            stack.append(nn.MaxPool2d(sizes[0]))
        elif kind == "conv":
            stack += [nn.Conv2d(before[0], sizes[1], sizes[0]), nn.ReLU()]
        else:
            stack += [nn.Flatten()] * (len(before) > 1) + [nn.Linear(int(np.prod(before)), sizes[0])]
            stack += [nn.ReLU()] * (kind != "classes")
    inputs = torch.from_numpy(x).reshape(-1, *shape)
    labels, model = torch.from_numpy(y), nn.Sequential(*stack)
    if len(shape) > 1:
        inputs = inputs.to(memory_format=torch.channels_last)
        model = model.to(memory_format=torch.channels_last)
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)

    def train(network: Any) -> float:
        clock = Clock()
        for k in range(STEPS + WARM_UP):
            rows = slice((2 * k + comm.rank) * N, (2 * k + comm.rank + 1) * N)
            optimizer.zero_grad(set_to_none=True)
            cost = F.cross_entropy(network(inputs[rows]), labels[rows])
            cost.backward()
            optimizer.step()
            cost.item()
            clock.on_minibatch_end(0, k)
        return clock.seconds()

    return {
        "torch, 1 rank": lambda: train(model) if comm.rank == 0 else 0.0,
        "torch, 2 alone": lambda: train(model),
        "torch, 2 ranks": lambda: train(parallel),
    }


def measure_steps(comm: Any, name: str, quick: bool) -> dict[str, Any]:
    """Return the samples of all variants of a network."""
    rng = np.random.default_rng(0)
    n = 2 * N * (STEPS + WARM_UP)
    x = rng.standard_normal((n, int(np.prod(NETWORKS[name][0]))), dtype=np.float32)
    y = rng.integers(0, 10, n)
    variants = ours(comm, name, x, y)
    if find_spec("torch"):
        variants |= theirs(comm, name, x, y)
    return collect(comm, variants, quick, SECONDS)


def collect(comm: Any, variants: dict[str, Callable[[], float]], quick: bool, limit: float) -> dict[str, Any]:
    """Return all samples of each variant, and those without other processes, in rounds of random order."""
    order, shuffle = list(variants), random.Random(0).shuffle
    samples: dict[str, list[float]] = {variant: [] for variant in order}
    quiet: dict[str, list[float]] = {variant: [] for variant in order}
    for work in variants.values():
        work()
    start = time.perf_counter()
    more = True
    while more:
        shuffle(order)
        for variant in order:
            if len(quiet[variant]) < ROUNDS:
                seconds, is_quiet = sample(comm, variants[variant], quick)
                samples[variant].append(seconds)
                if comm.bcast(is_quiet):
                    quiet[variant].append(seconds)
        more = not quick and min(map(len, quiet.values())) < ROUNDS and time.perf_counter() - start < limit
        more = comm.bcast(more)
    return {"samples": samples, "quiet": quiet}


def measure_reductions(comm: Any, quick: bool) -> dict[str, Any]:
    """Return the samples of the all-reduce of each size by each method."""
    torch = connect_torch(comm) if find_spec("torch") else None
    variants: dict[str, Callable[[], float]] = {}
    for size, nbytes in SIZES.items():
        x = np.zeros(nbytes // 4, np.float32)
        calls = max(4, min(200, 20_000_000 // nbytes)) if not quick else 2

        def timed(reduce: Callable[[], object], calls: int = calls) -> float:
            for _ in range(2):
                reduce()
            start = time.perf_counter()
            for _ in range(calls):
                reduce()
            return (time.perf_counter() - start) / calls

        variants[f"{size}: neonlite"] = lambda x=x, timed=timed: timed(lambda: world().all_reduce(x))
        if comm.size > 2:
            variants[f"{size}: in order"] = lambda x=x, timed=timed: timed(lambda: world().all_reduce(x, True))
        if torch:
            t = torch.zeros(nbytes // 4)
            variants[f"{size}: gloo"] = lambda t=t, timed=timed: timed(lambda: torch.distributed.all_reduce(t))
    return collect(comm, variants, quick, SECONDS)


def measure_states(comm: Any, name: str, quick: bool, only: bool | None) -> dict[str, Any]:
    """Return the samples of steps, and the bytes of states and the peak of each rank; ``only`` one of the variants."""
    shape, names = STATE_NETWORKS[name]
    be, rng = nl.gen_backend("cpu", rng_seed=1, batch_size=N), np.random.default_rng(0)
    model, cost, optimizer = nl.Model(layers(names)), GeneralizedCost(CrossEntropyMulti()), Adam(learning_rate=RATE)
    n = 2 * N * (STEPS + WARM_UP)
    x = rng.standard_normal((n, int(np.prod(shape))), dtype=np.float32)
    data = ArrayIterator(x, rng.integers(0, 10, n), 10, shape if len(shape) > 1 else None)
    nbytes = {}

    def fit(is_divided: bool) -> float:
        clock, model.epoch_index, be.bsz = Clock(), 0, N
        world().shard_states = is_divided
        model.fit(data, cost, optimizer, 1, clock, distributed=True)
        nbytes[str(is_divided)] = comm.allgather(sum(t.nbytes for w in model.layers.parameters for t in w.states))
        return clock.seconds()

    variants = {str(x): partial(fit, x) for x in (False, True) if only in (None, x)}
    result = collect(comm, variants, quick or only is not None, STATE_SECONDS)
    status = Path("/proc/self/status").read_text()
    peaks = comm.allgather(1024 * int(re.findall(r"VmHWM:\s*(\d+)", status)[0]))
    return result | {"states": nbytes, "peaks": peaks}


def measure_masks() -> float:
    """Return the seconds of CPU time to draw one element of a dropout mask."""
    be = nl.gen_backend("cpu", rng_seed=1, batch_size=N)
    mask = be.empty((2048, N))
    times = []
    for _ in range(30):
        start = time.process_time()  # hardly depends on other load of the machine
        be.make_binary_mask(mask, 0.5)
        times.append((time.process_time() - start) / mask.size)
    return statistics.median(times)


def run_rank(what: str, quick: bool, path: str) -> None:
    """Measure in all processes of mpiexec, and write the result of rank 0 to a file."""
    comm = world().comm.Dup()  # type: ignore[attr-defined]
    if what == "reductions":
        result: Any = measure_reductions(comm, quick)
    elif what.startswith("states"):
        _, name, only = what.split(":")
        result = measure_states(comm, name, quick, {"False": False, "True": True}.get(only))
    else:
        result = measure_steps(comm, what, quick)
    if comm.rank == 0:
        Path(path).write_text(json.dumps(result))
    if torch := sys.modules.get("torch"):
        torch.distributed.destroy_process_group()


# --- the benchmark ---------------------------------------------------------------------------------------------------


def start(what: str, ranks: int, quick: bool) -> dict[str, Any]:
    """Return the measurements of new processes."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/result.json"
        options = ["--rank", what, "--output", path, *["--quick"] * quick]
        command = mpiexec_command([sys.executable, __file__, *options], ranks)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        subprocess.run(command, env=environment, check=True)
        result: dict[str, Any] = json.loads(Path(path).read_text())
    return result


def medians(result: dict[str, Any]) -> tuple[dict[str, float], bool]:
    """Return the median of each variant, and whether enough samples were without other processes."""
    quiet = result["quiet"]
    enough = min(map(len, quiet.values())) >= MIN_ROUNDS
    chosen = quiet if enough else result["samples"]
    return {variant: statistics.median(times) for variant, times in chosen.items()}, enough


def step_row(name: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a network, with its samples."""
    seconds, is_quiet = medians(result)
    row: dict[str, Any] = {"network": name, "is_quiet": is_quiet, "batch size": N, "small batch size": SMALL_N}
    row |= {f"{variant} s": median for variant, median in seconds.items()}
    row["efficiency"] = seconds["1 rank"] / seconds["2 ranks"]
    row["of limit"] = seconds["2 alone"] / seconds["2 ranks"]
    if "torch, 2 ranks" in seconds:
        row["torch efficiency"] = seconds["torch, 1 rank"] / seconds["torch, 2 ranks"]
        row["2 ranks / torch"] = seconds["2 ranks"] / seconds["torch, 2 ranks"]
    return row | {"parameters": parameters(name)} | result


def parameters(name: str) -> int:
    """Return the number of parameters of a network."""
    shape, names = NETWORKS[name]
    nl.gen_backend("cpu", rng_seed=1, batch_size=1)
    model = nl.Model(layers(names))
    model.initialize(shape if len(shape) > 1 else shape[0])
    return sum(w.size for layer in model.layers.leaves() for w in getattr(layer, "parameters", []))


def step_cells(row: dict[str, Any]) -> list[str]:
    """Return a row of the table; ``!`` marks a missed goal."""
    missed = row["efficiency"] < GOALS[row["network"]]
    times = [
        format_duration(row[f"{variant} s"]) if f"{variant} s" in row else ""
        for variant in ("1 rank", "2 alone", "2 ranks", "overlap", "torch, 1 rank", "torch, 2 alone", "torch, 2 ranks")
    ]
    beside = row.get("2 ranks / torch")
    return [
        f"{row['network']}{'' if row['is_quiet'] else ' ~'}",
        *times[:4],
        f"{row['efficiency']:.0%}{' !' if missed else ''}",
        f"{row['of limit']:.0%}",
        *times[4:],
        f"{row['torch efficiency']:.0%}" if beside else "",
        f"{beside:.2f}{' !' if beside > 1 else ''}" if beside else "",
    ]


def reduction_rows(ranks: int, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the all-reduces on a number of ranks."""
    seconds, is_quiet = medians(result)
    rows = []
    for size, nbytes in SIZES.items():
        row: dict[str, Any] = {"size": size, "bytes": nbytes, "ranks": ranks, "is_quiet": is_quiet}
        row["samples"] = min(map(len, result["quiet"].values()))
        row |= {
            f"{method} s": seconds[f"{size}: {method}"]
            for method in ("neonlite", "in order", "gloo")
            if f"{size}: {method}" in seconds
        }
        rows.append(row)
    return rows


def reduction_cells(row: dict[str, Any]) -> list[str]:
    times = [
        format_duration(row[f"{method} s"]) if f"{method} s" in row else ""
        for method in ("neonlite", "in order", "gloo")
    ]
    beside = f"{row['neonlite s'] / row['gloo s']:.2f}" if "gloo s" in row else ""
    return [f"{row['size']}{'' if row['is_quiet'] else ' ~'}", str(row["ranks"]), *times, beside]


def states_row(name: str, quick: bool) -> dict[str, Any]:
    """Return the row of a network with divided states, with its samples."""
    result = start(f"states:{name}:", 2, quick)
    seconds, is_quiet = medians(result)
    ratios = [y / x for x, y in zip(result["samples"]["False"], result["samples"]["True"], strict=False)]
    row = {"network": name, "is_quiet": is_quiet, "ratio": statistics.median(ratios), **result}
    row["peaks"] = {only: start(f"states:{name}:{only}", 2, quick)["peaks"] for only in ("False", "True")}
    return row | {f"{variant} s": median for variant, median in seconds.items()}


def states_cells(row: dict[str, Any]) -> list[str]:
    megabytes = [
        " + ".join(f"{x / 1e6:.1f}" for x in row[key][v]) for key in ("states", "peaks") for v in row["states"]
    ]
    times = [format_duration(row[f"{variant} s"]) for variant in row["states"]]
    return [f"{row['network']}{'' if row['is_quiet'] else ' ~'}", *megabytes, *times, f"{row['ratio']:.2f}"]


def save_states(quick: bool) -> None:
    """Measure divided states, and write their table."""
    rows = [states_row(name, quick) for name in STATE_NETWORKS]
    head = ["network", "states (MB), all", "divided", "peak (MB), all", "divided", "step, all", "divided", "ratio"]
    about = machine("numpy", "mpi4py", "mpich", "onednn-cpu-gomp")
    del about["used by others"]
    words = "\n".join(f"- {key}: {value}" for key, value in about.items())
    parts = ["# Divided optimizer states", "`python benchmarks/distributed.py --states`", words, STATES_NOTE]
    text = "\n\n".join([*parts, markdown(head, map(states_cells, rows))]) + "\n"
    print(text)
    if not quick:
        save("states", {"machine": about, "rows": rows}, text)


def page(report: dict[str, Any]) -> str:
    words = "\n".join(f"- {key}: {value}" for key, value in report["machine"].items())
    goals = ", ".join(f"{name} {goal:.0%}" for name, goal in GOALS.items())
    goals = f"Goals: an efficiency of at least {goals}; a step of 2 ranks takes at most as long as PyTorch's. A miss "
    goals += "has a `!`."
    head = ["network", "1 rank", "2 alone", "2 ranks", "overlap", "efficiency", "of limit"]
    head += ["torch, 1 rank", "torch, 2 alone", "torch, 2 ranks", "torch efficiency", "× torch"]
    steps = markdown(head, map(step_cells, report["rows"]))
    head = ["all-reduce", "ranks", "neonlite", "in order", "torch gloo", "× torch"]
    reductions = markdown(head, map(reduction_cells, report["reductions"]))
    command = f"`{' '.join(['python benchmarks/distributed.py', *sys.argv[1:]])}`"
    parts = ["# Data-parallel training", command, words, goals, "## Training steps", NOTE, steps]
    parts += ["## All-reduce", REDUCE_NOTE, reductions, "## Dropout masks", MASK_NOTE]
    return "\n\n".join([*parts, f"{report['mask s'] * 1e9:.2f} ns an element"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run a smoke test, and write nothing")
    parser.add_argument("--only", default="", metavar="WORD", help="only networks with this word; write nothing")
    parser.add_argument("--states", action="store_true", help="measure divided optimizer states only")
    parser.add_argument("--rank", metavar="WHAT", help=argparse.SUPPRESS)
    parser.add_argument("--output", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        run_rank(options.rank, options.quick, options.output)
        return
    if find_spec("mpi4py") is None:
        sys.exit('needs MPI: pip install "neonlite[mpi]"')
    if options.states:
        return save_states(options.quick)
    rows = []
    for name in NETWORKS:
        if re.search(re.escape(options.only), name):
            rows.append(step_row(name, start(name, 2, options.quick)))
            print(*step_cells(rows[-1]), sep="  ", flush=True)
    reductions = (
        []
        if options.only
        else [row for n in (2, 4) for row in reduction_rows(n, start("reductions", n, options.quick))]
    )
    about = machine("numpy", "mpi4py", "mpich", "onednn-cpu-gomp", "torch")
    del about["used by others"]  # after the measurements; each sample has its own
    report = {"machine": about, "rows": rows, "reductions": reductions, "mask s": measure_masks()}
    text = page(report)
    print(text)
    if not (options.quick or options.only):
        save("distributed", report, text)


if __name__ == "__main__":
    main()
