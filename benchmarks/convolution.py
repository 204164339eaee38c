"""How fast is a convolution without a library for it?  Beside PyTorch's, in one process, on as many threads.

python benchmarks/convolution.py            # minutes: writes results/convolution.json and results/convolution.md
python benchmarks/convolution.py --quick    # a smoke run with small images: writes nothing
"""

from __future__ import annotations

import argparse
import statistics
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from _table import QUICK, Effort, Work, buffers, machine, markdown, measure, ratio, save, told

from neonlite import Backend
from neonlite.backend.executors import pool

torch: Any = import_module("torch") if find_spec("torch") else None
RUNTIMES = ["cpu", *(["mkl"] if find_spec("mkl") else [])]
# images, maps, height and width, filters, filter height and width, padding
SHAPES = [(128, 3, 32, 16, 5, 0), (128, 16, 14, 32, 5, 0), (32, 64, 56, 64, 3, 1), (32, 256, 14, 256, 3, 1)]
SMALL = [(4, 3, 12, 4, 5, 0), (2, 4, 9, 8, 3, 1)]
LIMIT = 3.0  # as long as PyTorch eager, at most: NumPy's own products are half as fast as a direct convolution
NOTE = """\
Forward is `fprop_conv`, back `bprop_conv`, update `update_conv`, each into a given tensor; PyTorch's are `conv2d`,
`torch.nn.grad.conv2d_input` and `conv2d_weight` on contiguous NCHW images. Results are compared before any is timed.
Times are medians over rounds, in each of which every peer runs once, in random order; "× torch" is how many times as
long as PyTorch, the median of the ratios of all rounds. "Buffers" are those of 1 kB and more that NumPy asks for in one
call after the first, in this thread."""


def cases(shape: tuple[int, ...]) -> dict[str, dict[str, Work]]:
    """Return {forward, back, update: {peer: work}}, after a comparison of all results."""
    N, C, H, K, R, pad = shape
    rng = np.random.default_rng(0)
    works: dict[str, dict[str, Work]] = {"forward": {}, "back": {}, "update": {}}
    results: dict[str, list[Any]] = {name: [] for name in works}
    for runtime in RUNTIMES:
        be = Backend(runtime)
        layer = be.conv_layer("float32", N, C, K, 1, H, H, 1, R, R, pad_h=pad, pad_w=pad)
        if runtime == "cpu":
            host = [rng.standard_normal(dim, dtype=np.float32) for dim in (layer.dimI, layer.dimF, layer.dimO)]
        x, f, e = (be.array(a.reshape(-1, a.shape[-1])) for a in host)
        o, d, u = (be.empty(dim) for dim in (layer.dimO2, layer.dimI2, layer.dimF2))
        works["forward"][runtime] = lambda be=be, a=(layer, x, f, o): be.fprop_conv(*a)
        works["back"][runtime] = lambda be=be, a=(layer, f, e, d): be.bprop_conv(*a)
        works["update"][runtime] = lambda be=be, a=(layer, x, e, u): be.update_conv(*a)
        for name, out, dim in (("forward", o, layer.dimO), ("back", d, layer.dimI), ("update", u, layer.dimF)):
            works[name][runtime]()
            results[name].append(out.get().reshape(dim)[:, 0].transpose(3, 0, 1, 2))
    if torch:
        # the last axis, images or filters, goes to the front; the depth of 1 goes
        tx, tf, te = (torch.from_numpy(np.ascontiguousarray(a[:, 0].transpose(3, 0, 1, 2))) for a in host)
        grad = torch.nn.grad
        works["forward"]["torch"] = lambda: torch.conv2d(tx, tf, padding=pad)
        works["back"]["torch"] = lambda: grad.conv2d_input(tx.shape, tf, te, padding=pad)
        works["update"]["torch"] = lambda: grad.conv2d_weight(tx, tf.shape, te, padding=pad)
        for name, peers in works.items():
            results[name].append(peers["torch"]().numpy())
    for name, found in results.items():
        for other in found[1:]:
            np.testing.assert_allclose(other, found[0], rtol=1e-3, atol=1e-3 * np.abs(found[0]).max(), err_msg=name)
    return works


def large_buffers(work: Work) -> int:
    """Return how many buffers of 1 kB and more NumPy asks for in one call."""
    with buffers() as sizes:
        work()
    return sum(n >= 1000 for n in sizes)


def main(shapes: list[tuple[int, ...]], effort: Effort) -> tuple[dict[str, Any], str]:
    """Return the report as data and as a page."""
    rows, lines = [], []
    for shape in shapes:
        for name, peers in cases(shape).items():
            times, quiet = measure(peers, effort)
            row: dict[str, Any] = {"shape": shape, "pass": name, "quiet": quiet}
            row |= {f"{peer} s": statistics.median(t) for peer, t in times.items()}
            row |= {f"{peer} buffers": large_buffers(peers[peer]) for peer in RUNTIMES}
            cells = [", ".join(map(str, shape)), name, *(told(row[f"{peer} s"]) for peer in times)]
            for peer in RUNTIMES:
                if torch:
                    row[f"{peer} / torch"] = longer = ratio(times["torch"], times[peer])
                    cells.append(f"{longer:.2f}{'' if longer <= LIMIT or peer != 'cpu' else ' !'}")
            cells.append(" ".join(str(row[f"{peer} buffers"]) for peer in RUNTIMES))
            rows.append(row)
            lines.append(cells)
            print(*cells, sep="  ", flush=True)
    ratios = [f"{peer} × torch" for peer in RUNTIMES] if torch else []
    head = ["N, C, H, K, R, pad", "pass", *RUNTIMES, *(["torch"] if torch else []), *ratios, "buffers"]
    about = machine("numpy", "mkl", "torch") | {"threads": pool.threads()}
    words = "\n".join(f"- {key}: {value}" for key, value in about.items())
    target = f"Hoped for: at most {LIMIT:g} times as long as PyTorch on `cpu`; a miss has a `!`."
    page = "\n\n".join(["# Convolution without a library", "`python benchmarks/convolution.py`", words, target, NOTE])
    return {"machine": about, "rows": rows}, f"{page}\n\n{markdown(head, lines)}\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run that writes nothing")
    quick = parser.parse_args().quick
    if torch:
        torch.set_num_threads(pool.threads())
    report, page = main(SMALL if quick else SHAPES, QUICK if quick else Effort(6.0, 0.02, 11))
    if quick:
        print(page)
    else:
        save("convolution", report, page)
