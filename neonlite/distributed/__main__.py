"""The command ``python -m neonlite.distributed``: run a script or a module in several processes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from neonlite.distributed import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status."""
    parser = argparse.ArgumentParser(
        "python -m neonlite.distributed",
        description="Run a script in several processes, which train a network together. Ctrl-C ends the training "
        "after the current step; a second Ctrl-C kills all processes.",
        epilog="example: python -m neonlite.distributed -n 4 train.py --epochs 10",
    )
    parser.add_argument("-n", "--processes", type=int, required=True, metavar="N", help="number of processes")
    parser.add_argument(
        "--hosts",
        help="hosts, such as host1:2,host2:2 for two processes on each, or a host file (default: this host)",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="after a process has failed, start all again, up to N times; SCRIPT loads its checkpoint (default: 0)",
    )
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as for python -m")
    parser.add_argument("script", metavar="SCRIPT", help="Python script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    args = parser.parse_args(arguments)
    python = [sys.executable, "-u", *["-m"] * args.module]
    try:
        return run([*python, args.script, *args.arguments], args.processes, args.hosts, args.restarts)
    except (ImportError, NotImplementedError, OSError, ValueError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    sys.exit(main())
