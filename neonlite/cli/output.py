"""The output of the command line: texts, warnings and errors, with what a terminal cannot print escaped."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from neonlite.files import encodable, printable


def flush_streams(status: int) -> int:
    """Flush standard output and error; return the exit status, or that of a write error of standard output."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError as error:
        discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            print_error(f"neonlite: {error}")
        status = status or (141 if isinstance(error, BrokenPipeError) else 1)
    try:
        if sys.stderr:
            sys.stderr.flush()
    except OSError:  # as of a terminal that was closed
        discard(sys.stderr)
    return status


def discard(stream: TextIO) -> None:
    """Let a stream that cannot be written discard its text: Python flushes it at exit, and fails with status 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def format_error(error: Exception) -> str:
    """Return the message of an error; with the type and a hint if the error is unexpected."""
    if isinstance(error, MemoryError):
        return str(error) or "out of memory. Reduce --batch-size."
    if isinstance(error, (OSError, ImportError, ValueError, IndexError, RuntimeError)) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}. Set NEONLITE_DEBUG=1 in the environment to print the traceback."


def format_message(message: str, args: argparse.Namespace) -> str:
    """Return a message that names the CSV file instead of its model; control characters of options are escaped."""
    dataset = getattr(args, "dataset", None)
    if isinstance(dataset, Path) and message.startswith(model_call := f"{dataset.stem}.fit: "):
        message = f"{dataset}: {message.removeprefix(model_call)}"
    for value in vars(args).values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, str | Path):
                message = message.replace(str(part), printable(part, ""))
    return message


def say(*texts: object, end: str = "\n") -> None:
    """Print texts that may come from a file: control characters, and those that it cannot encode, are escaped."""
    print(*(encodable(printable(text), sys.stdout) for text in texts), end=end, flush=not end.endswith("\n"))


def print_error(message: str) -> None:
    """Print a message to standard error, if it is open."""
    if sys.stderr:
        with suppress(OSError):
            print(encodable(printable(message), sys.stderr), file=sys.stderr)


def connected() -> Any:
    """Return the communicator of this process if it is one of several, else None."""
    module = sys.modules.get("neonlite.distributed.communicator")
    return module.world() if module is not None and module.is_distributed() else None


@contextmanager
def print_warnings(args: argparse.Namespace) -> Iterator[None]:
    """Print each warning as one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = lambda message, *_: print_error(
            f"neonlite: warning: {format_message(str(message), args)}"
        )
        yield


def format_option(name: str) -> str:
    """Return the option of an attribute of the parsed arguments."""
    return f"--{name.replace('_', '-')}"
