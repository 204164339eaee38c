"""Count the machine instructions of generated kernels, which needs no GPU: NVRTC compiles them, nvdisasm lists them.

python benchmarks/sass.py            # writes results/sass.json and results/sass.md
python benchmarks/sass.py --list sm_90 "softmax of rows"    # prints the instructions of a kernel; writes nothing

NVRTC is in the wheel nvidia-cuda-nvrtc-cu12 (or -cu13), nvdisasm in nvidia-cuda-nvdisasm; another one can be named by
the environment variable NVDISASM.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from _table import RESULTS, markdown, save

from neonlite import Backend
from neonlite.backend.runtimes.cuda.libraries import OPTIONS

sys.path.append(str(RESULTS.parents[1] / "tests"))
from helpers import nvrtc

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
NOTE = """\
"instructions" are those of all that a thread executes for one element of its hot loop: the innermost loop that loads
most from memory, or the whole kernel where a lane keeps its part of a row in registers, whose loops are unrolled.
Called functions are not counted: they are the slow paths, for example of a division whose result is denormal. "loads"
are the loads from memory that a thread issues before it needs the result of the first, "in flight" their bytes; of a
kernel with several passes, each is a row. Counts are of the listing, not of a run."""


class Count(NamedTuple):
    """The instructions of a kernel per element, its registers, and the loads in flight per thread."""

    instructions: float
    registers: int
    loads: int
    nbytes: int


# --- the kernels ---


def batch_norm_errors(be: Backend) -> list[Any]:
    """Return the sums of the backward pass of batch norm, and the errors of its inputs."""
    x, dz, mean, scale = (be.zeros(shape) for shape in (CHANNELS, CHANNELS, (64, 1), (64, 1)))
    xhat = (x - mean) * scale
    dgamma, dbeta = be.sum(dz * xhat, axis=1), be.sum(dz, axis=1)
    return [dgamma, dbeta, (dz - (xhat * dgamma + dbeta) / x.shape[1]) * scale]


def standardized(be: Backend, x: Any, axis: int) -> Any:
    return (x - be.mean(x, axis=axis)) / be.sqrt(be.var(x, axis=axis) + 1e-3)


SHORT, LONG, CHANNELS = (100_000, 1000), (1000, 100_000), (64, 401_408)  # of rows
# name -> the op-trees of a backend, the name of their kernel, and the arrays of all elements that its hot loop loads
CASES: dict[str, tuple[Callable[[Backend], list[Any]], str, int]] = {
    "logistic": (lambda be: [1 / (1 + be.exp(-be.zeros(LONG)))], "stage_1", 1),
    "sum of rows": (lambda be: [be.sum(be.zeros(SHORT), axis=1)], "stage_1", 1),
    "sum of columns": (lambda be: [be.sum(be.zeros(LONG), axis=0)], "stage_1", 1),
    "sum of columns, float16": (lambda be: [be.sum(be.zeros(LONG, "float16"), axis=0)], "stage_1", 1),
    "sum of products of rows": (lambda be: [be.sum(be.zeros(SHORT) * be.zeros(SHORT), axis=1)], "stage_1", 2),
    "softmax of columns": (lambda be: [be.softmax(be.zeros(LONG), axis=0)], "stage_1", 1),
    "softmax of columns, float16": (lambda be: [be.softmax(be.zeros(LONG, "float16"), axis=0)], "stage_1", 1),
    "softmax of rows": (lambda be: [be.softmax(be.zeros(SHORT), axis=1)], "stage_1", 1),
    "softmax of rows, float16": (lambda be: [be.softmax(be.zeros(SHORT, "float16"), axis=1)], "stage_1", 1),
    "softmax of long rows, sums": (lambda be: [be.softmax(be.zeros(LONG), axis=1)], "stage_1_0", 1),
    "softmax of long rows, quotients": (lambda be: [be.softmax(be.zeros(LONG), axis=1)], "stage_1_2", 1),
    "layer norm of rows": (lambda be: [standardized(be, be.zeros(SHORT), 1)], "stage_1", 1),
    "batch norm, statistics": (lambda be: [standardized(be, be.zeros(CHANNELS), 1)], "stage_1_0", 1),
    "batch norm, normalization": (lambda be: [standardized(be, be.zeros(CHANNELS), 1)], "stage_1_2", 1),
    "batch norm, sums of errors": (batch_norm_errors, "stage_1_0", 2),
    "batch norm, errors": (batch_norm_errors, "stage_1_1", 2),
}


# --- listings ---


def disassembler() -> str | None:
    """Return the path of nvdisasm, or None if it is not installed."""
    spec = find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    paths = sorted(path for folder in folders for path in Path(folder).glob("*/bin/nvdisasm"))
    return os.environ.get("NVDISASM") or shutil.which("nvdisasm") or (str(paths[-1]) if paths else None)


def listings(binary: bytes, nvdisasm: str) -> dict[str, str]:
    """Return the listing of each kernel of a binary."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(binary)
        text = subprocess.run([nvdisasm, "-c", str(path)], capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"^\.text\.(\w+):\n(.*?)(?=^\s*\.section|\Z)", text, re.MULTILINE | re.DOTALL))


def body(listing: str) -> list[tuple[str, str]]:
    """Return the labels and the instructions of a listing, each with an empty other one, without called functions."""
    lines: list[tuple[str, str]] = []
    for line in listing.splitlines():
        if label := re.match(r"(\S+):$", line):
            if "$" in label[1]:  # a called function
                break
            lines.append((label[1], ""))
        elif instruction := re.match(r"\s*/\*\w+\*/\s+(.*?);", line):
            lines.append(("", instruction[1].strip()))
    return lines


def hot_range(lines: list[tuple[str, str]]) -> list[str]:
    """Return the instructions of the innermost loop with most loads, or all if no loop loads; without slow paths."""
    labels = {label: n for n, (label, _) in enumerate(lines) if label}
    loops = []
    for n, (_, text) in enumerate(lines):
        if (target := re.search(r"\bBRA\b.*?`\((\S+?)\)", text)) and labels.get(target[1], n) < n:
            loops.append((labels[target[1]], n + 1))
    loops = [(a, b) for a, b in loops if any("LDG" in text for _, text in lines[a:b])]
    inner = [x for x in loops if not any(x[0] <= y[0] and y[1] <= x[1] for y in loops if y != x)]
    first, last = max(
        inner, key=lambda x: sum("LDG" in text for _, text in lines[x[0] : x[1]]), default=(0, len(lines))
    )
    blocks: list[list[str]] = [[]]
    for label, text in lines[first:last]:
        if label:
            blocks.append([])
        elif text != "NOP":
            blocks[-1].append(text)
            if "BRA" in text or "EXIT" in text:
                blocks.append([])
    return [text for block in blocks if not any("CALL" in text for text in block) for text in block]


def loads_in_flight(instructions: list[str]) -> tuple[int, int]:
    """Return the most loads that are issued before the first instruction that needs one of them, and their bytes."""
    best, pending = (0, 0), dict[str, tuple[int, int]]()  # register -> number and bytes of its load
    for n, text in enumerate(instructions):
        used = re.findall(r"\bU?R\d+\b", text.partition(",")[2])
        if any(register in pending for register in used):
            pending.clear()
        if load := re.match(r"(?:@!?U?P\w+ )?LDG\.E(\S*) R(\d+)", text):
            bits = max(map(int, re.findall(r"\.(\d+)", load[1])), default=8 if "8" in load[1] else 32)
            bits = next(
                (n for name, n in {".U8": 8, ".S8": 8, ".U16": 16, ".S16": 16}.items() if name in load[1]), bits
            )
            pending |= {f"R{int(load[2]) + i}": (n, bits // 8) for i in range(max(bits // 32, 1))}
            best = max(best, (len(set(pending.values())), sum(nbytes for _, nbytes in set(pending.values()))))
    return best


def count(source: str, name: str, listing: str, log: str, num_arrays: int) -> Count:
    """Return the counts of a kernel; ``num_arrays``: arrays of all elements that its hot loop loads."""
    text = re.search(rf"\b{name}\(\n.*?^}}", source, re.MULTILINE | re.DOTALL)[0]
    width, instructions = int(re.search(r"constexpr int V = (\d+)", text)[1]), hot_range(body(listing))
    if tile := re.search(r"constexpr int R = (\d+)( / V)?;", text):
        elements = int(tile[1]) * (1 if tile[2] else width)
    else:
        loads = [text for text in instructions if "LDG" in text]
        widest = [text for text in loads if (".128" in text) == any(".128" in text for text in loads)]
        elements = len(widest) // num_arrays * width
    registers = re.search(rf"entry function '{name}'.*?Used (\d+) registers", log, re.DOTALL)[1]
    return Count(len(instructions) / elements, int(registers), *loads_in_flight(instructions))


def counts(nvdisasm: str) -> dict[str, dict[str, Count]]:
    """Return the counts of each kernel for each architecture."""
    result: dict[str, dict[str, Count]] = {name: {} for name in CASES}
    for name, (_, kernel, num_arrays) in CASES.items():
        for architecture in ARCHITECTURES:
            source, compiled = compile_case(name, architecture)
            listing = listings(compiled.binary, nvdisasm)[kernel]
            result[name][architecture] = count(source, kernel, listing, compiled.log, num_arrays)
    return result


def compile_case(name: str, architecture: str) -> tuple[str, nvrtc.Compiled]:
    be = Backend("cpu").dry_run()
    source = be.kernel(*CASES[name][0](be))
    return source, nvrtc.compiled(source, architecture, OPTIONS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", nargs=2, metavar=("ARCHITECTURE", "CASE"), help="print the instructions")
    parser.add_argument("--against", metavar="FOLDER", help="another version of the repository")
    parser.add_argument("--json", action="store_true", help="print the counts")
    options = parser.parse_args()
    nvdisasm = disassembler()
    if nvrtc.library() is None or nvdisasm is None:
        name = "NVRTC" if nvrtc.library() is None else "nvdisasm, the disassembler,"
        sys.exit(
            f"{name} is not installed, so nothing is counted: pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-nvdisasm"
        )
    if options.list:
        _, compiled = compile_case(options.list[1], options.list[0])
        print(*hot_range(body(listings(compiled.binary, nvdisasm)[CASES[options.list[1]][1]])), sep="\n")
    elif options.json:
        print(json.dumps(counts(nvdisasm)))
    else:
        report(counts(nvdisasm), other_counts(options.against) if options.against else {}, nvdisasm)


def other_counts(folder: str) -> dict[str, dict[str, Count]]:
    """Return the counts of another version of the package."""
    command, environment = [sys.executable, __file__, "--json"], os.environ | {"PYTHONPATH": folder}
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return {name: {a: Count(*c) for a, c in row.items()} for name, row in json.loads(text).items()}


def report(found: dict[str, dict[str, Count]], before: dict[str, dict[str, Count]], nvdisasm: str) -> None:
    """Print and write the table; ``before``: counts of another version, or {}."""

    def cells(name: str, architecture: str) -> list[str]:
        pair = [row[name][architecture] for row in (before, found) if row]
        texts = [(f"{c.instructions:.1f}", str(c.registers), f"{c.loads} ({c.nbytes} B)") for c in pair]
        return [" -> ".join(column) for column in zip(*texts, strict=True)]

    rows = [[name, architecture, *cells(name, architecture)] for name in found for architecture in ARCHITECTURES]
    table = markdown(["kernel", "GPU", "instructions per element", "registers", "loads in flight"], rows)
    text = subprocess.run([nvdisasm, "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"V([\d.]+)", text)
    versions = f"NVRTC {'.'.join(map(str, nvrtc.version()))}, nvdisasm {release[1]}"
    note = f"{NOTE} The figures on the left of an arrow are those of an earlier version." if before else NOTE
    print(f"{versions}\n\n{table}")
    command = " ".join(["python benchmarks/sass.py", *["--against FOLDER"] * bool(before)])
    page = f"# Machine instructions of generated kernels\n\n`{command}` ({versions})\n\n{table}\n\n{note}\n"
    save("sass", {"versions": versions, "before": before, "counts": found}, page)


if __name__ == "__main__":
    main()
