"""Model data-parallel training on 1 to 1,000 ranks: fit a latency-bandwidth model to results/distributed.json.

python benchmarks/distributed.py        # first: measure
python benchmarks/scaling.py            # writes results/scaling.json and .md, and docs/images/scaling.png
python benchmarks/scaling.py --quick    # writes nothing
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from _table import RESULTS, format_duration, markdown, save

IMAGE = RESULTS.parents[1] / "docs" / "images" / "scaling.png"
RANKS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000]
CONVERSION = 1e-9  # seconds a byte of float32 gradients to and from bfloat16, as benchmarks/compressed.py measured
GLOBAL_BATCH = 1024  # of strong scaling
SMALL_BYTES = 40  # the second all-reduce of a step: the cost, and whether training ends
NOTE = """\
A model, not a measurement on many hosts. The time of a step on p ranks is compute + masks + all-reduce:

- compute: fixed + rows × per row. Of the MLP and the CIFAR-10 network, both are those of one core here, from steps with
  128 and with 8 rows.
- masks: each rank draws the dropout masks of all p ranks, so that they do not depend on the number of ranks.
- all-reduce of n bytes: the faster one of a ring, 2 (p - 1) (alpha + n / (p B)), and a tree,
  2 log2(p) (alpha + n / B), without overlap; and a tree for the cost.

alpha (latency) and B (bandwidth) of "shared memory" are fitted to the measured all-reduce of two ranks, for which the
ring is 2 alpha + n / B; it ends at the cores of a host. Those of the networks are **assumptions**, as are the times of
ResNet-50 (25.6 million parameters, 1 ms a row and 5 ms a step, as on a GPU): measure yours. One rank is one core or one
GPU. Weak scaling: the batch size of a rank is fixed, efficiency is t(1) / t(p). Strong scaling: the global batch size
is 1,024, efficiency is t(1) / (p t(p)). "below 50 %" is the first number of ranks with a lower efficiency.

"16 bits" is weak scaling with `world().compress_gradients`: half the bytes, and 1 ns a byte for the conversions, which
benchmarks/compressed.py **measured** on a CPU. "divided" is weak scaling with `world().shard_states`: after the update,
all ranks gather the weights, (p - 1) (alpha + n / (p B)), a **model**; that an update of a part takes less time is left
out. Each of p ranks has about 1 / p of the states. `accumulate` is in no column: `fit` sums the gradients of each
minibatch, so that it saves updates, but no communication."""


class Link(NamedTuple):
    """The latency (s) and the bandwidth (bytes/s) of a message."""

    latency: float
    bandwidth: float


class Network(NamedTuple):
    """The gradient bytes of a network, the time of a step on one rank, and its dropout."""

    nbytes: int
    fixed: float  # s
    per_row: float  # s
    rows: int  # of a rank, for weak scaling
    mask_elements: int = 0  # of a row

    def step(self, rows: float) -> float:
        """Return the seconds of forward, backward and update."""
        return self.fixed + self.per_row * rows


ASSUMED_LINKS = {
    "10 Gbit/s Ethernet": Link(30e-6, 1.1e9),
    "100 Gbit/s InfiniBand": Link(2e-6, 11e9),
}
RESNET = Network(4 * 25_600_000, 5e-3, 1e-3, 64)
DROPOUT_UNITS = {"mlp 784-1024-1024-10": 2048, "cifar": 500}  # after the hidden layers


def fit_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return alpha and beta of y = alpha + beta x with the least sum of squares of relative errors."""
    w = [1 / value**2 for value in y]
    sums = [
        sum(terms)
        for terms in (
            w,
            (a * b for a, b in zip(w, x, strict=True)),
            (a * b * b for a, b in zip(w, x, strict=True)),
            (a * b for a, b in zip(w, y, strict=True)),
            (a * b * c for a, b, c in zip(w, x, y, strict=True)),
        )
    ]
    s, sx, sxx, sy, sxy = sums
    beta = (s * sxy - sx * sy) / (s * sxx - sx * sx)
    return (sy - beta * sx) / s, beta


def all_reduce(n: int, p: int, link: Link) -> float:
    """Return the seconds of an all-reduce of n bytes on p ranks."""
    if p == 1:
        return 0.0
    ring = 2 * (p - 1) * (link.latency + n / (p * link.bandwidth))
    tree = 2 * math.ceil(math.log2(p)) * (link.latency + n / link.bandwidth)
    return min(ring, tree)


def all_gather(n: int, p: int, link: Link) -> float:
    """Return the seconds until p ranks with equal parts of n bytes all have all of them."""
    return (p - 1) * (link.latency + n / (p * link.bandwidth))


def step_time(network: Network, rows: float, p: int, link: Link, mask: float, variant: str = "") -> float:
    """Return the seconds of a step with so many rows on each of p ranks; ``mask``: seconds an element.

    ``variant``: "16 bits" for gradients of 16 bits, "divided" for divided optimizer states.
    """
    communication = all_reduce(network.nbytes, p, link) + all_reduce(SMALL_BYTES, p, link)
    if variant == "16 bits" and p > 1:
        communication += all_reduce(network.nbytes // 2, p, link) - all_reduce(network.nbytes, p, link)
        communication += CONVERSION * network.nbytes
    elif variant == "divided":
        communication += all_gather(network.nbytes, p, link)
    return network.step(rows) + mask * network.mask_elements * rows * p + communication


def weak(network: Network, p: int, link: Link, mask: float, variant: str = "") -> float:
    """Return the efficiency of p ranks with a fixed batch size of each."""
    return step_time(network, network.rows, 1, link, mask) / step_time(network, network.rows, p, link, mask, variant)


def strong(network: Network, p: int, link: Link, mask: float) -> float:
    """Return the efficiency of p ranks with a fixed batch size of all together."""
    one = step_time(network, GLOBAL_BATCH, 1, link, mask)
    return one / (p * step_time(network, GLOBAL_BATCH / p, p, link, mask))


def first_below_half(efficiency: Callable[[int], float]) -> str:
    """Return the first number of ranks up to 1,000 with an efficiency below 50 %."""
    return next((f"{p:,}" for p in range(2, 1001) if efficiency(p) < 0.5), "> 1,000")


def load() -> tuple[dict[str, Network], dict[str, Link], float]:
    """Return the networks, the links, and the seconds of an element of a mask, from the measurements."""
    report = json.loads((RESULTS / "distributed.json").read_text())
    sums = [row for row in report["reductions"] if row["ranks"] == 2]
    alpha, beta = fit_line([row["bytes"] for row in sums], [row["neonlite s"] for row in sums])
    links = {"shared memory": Link(alpha / 2, 1 / beta)} | ASSUMED_LINKS
    networks: dict[str, Network] = {}
    for row in report["rows"]:
        n, few = row["batch size"], row["small batch size"]
        per_row = (row["1 rank s"] - row["1 rank, small s"]) / (n - few)
        plain = Network(4 * row["parameters"], row["1 rank s"] - per_row * n, per_row, n)
        networks[row["network"]] = plain
        networks[f"{row['network']}, dropout"] = plain._replace(mask_elements=DROPOUT_UNITS[row["network"]])
    return networks | {"resnet-50": RESNET}, links, report["mask s"]


def draw(networks: dict[str, Network], links: dict[str, Link], mask: float) -> None:
    """Plot the efficiency of weak and strong scaling."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    plain = [name for name in networks if not name.endswith("dropout")]
    figure, axes = pyplot.subplots(2, len(plain), figsize=(10, 5.6), sharex=True, sharey=True, layout="constrained")
    for row, (title, efficiency) in enumerate({"weak": weak, "strong": strong}.items()):
        for ax, name in zip(axes[row], plain, strict=True):
            for color, (label, link) in zip(("C2", "C3", "C0"), links.items(), strict=True):
                for variant, style in ((name, "-"), (f"{name}, dropout", "--")):
                    if variant in networks:
                        curve = [100 * efficiency(networks[variant], p, link, mask) for p in RANKS]
                        ax.plot(RANKS, curve, style, color=color, label=label if style == "-" else None)
            ax.axhline(50, color="0.6", linewidth=0.8)
            ax.set(xscale="log", ylim=(0, 103), title=f"{name}, {title} scaling")
            ax.title.set_size(10)
    for ax in axes[1]:
        ax.set_xlabel("ranks")
    for ax in axes[:, 0]:
        ax.set_ylabel("efficiency (%)")
    axes[1, -1].plot([], [], "--", color="0.3", label="with dropout")
    axes[1, -1].legend(fontsize=8, loc="upper right")
    IMAGE.parent.mkdir(exist_ok=True)
    figure.savefig(IMAGE, dpi=90, metadata={"Software": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="write nothing")
    options = parser.parse_args()
    networks, links, mask = load()
    head = ["network", "link", "weak, 8 ranks", "64", "512", "below 50 %"]
    head += ["64, 16 bits", "64, divided", "strong, 8 ranks", "64", "512", "below 50 %"]
    lines, rows = [], []
    for name, network in networks.items():
        for link_name, link in links.items():
            row: dict[str, Any] = {"network": name, "link": link_name}
            for title, function in (("weak", weak), ("strong", strong)):

                def efficiency(p: int, function: Any = function, network: Any = network, link: Any = link) -> float:
                    return float(function(network, p, link, mask))

                row |= {f"{title} {p}": efficiency(p) for p in (8, 64, 512)}
                row[f"{title} below half"] = first_below_half(efficiency)
                if function is weak:
                    row |= {f"weak 64, {x}": weak(network, 64, link, mask, x) for x in ("16 bits", "divided")}
            rows.append(row)
            values = list(row.values())[2:]
            lines.append([name, link_name, *(x if isinstance(x, str) else f"{x:.0%}" for x in values)])
    parameters = markdown(
        ["network", "gradients", "fixed", "per row", "rows of a rank", "mask elements of a row"],
        [
            [name, f"{x.nbytes / 1e6:.2f} MB", *map(format_duration, x[1:3]), str(x.rows), str(x.mask_elements)]
            for name, x in networks.items()
        ],
    )
    of_links = markdown(
        ["link", "latency", "bandwidth", "source"],
        [
            [name, format_duration(x.latency), f"{x.bandwidth / 1e9:.2f} GB/s", "assumed" if i else "fitted"]
            for i, (name, x) in enumerate(links.items())
        ],
    )
    masks = f"Dropout masks: {mask * 1e9:.2f} ns an element (measured)."
    parts = ["# How data-parallel training scales: a model", "`python benchmarks/scaling.py`", NOTE]
    parts += ["## Efficiency", markdown(head, lines), "## Parameters", of_links, parameters, masks]
    text = "\n\n".join(parts) + "\n"
    print(text)
    if not options.quick:
        draw(networks, links, mask)
        about = json.loads((RESULTS / "distributed.json").read_text())["machine"]
        save("scaling", {"machine": about, "links": {n: x._asdict() for n, x in links.items()}, "rows": rows}, text)


if __name__ == "__main__":
    main()
