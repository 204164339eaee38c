"""Figures of matplotlib: create one without pyplot, display it in a notebook, and save it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, TYPE_CHECKING

from neonlite.backend.validation import import_extra
from neonlite.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(owner: str, width: float, height: float) -> Figure:
    """Return an empty figure, which a notebook displays.

    Parameters
    ----------
    owner : str
        The caller, for the error message.
    width, height : float
        The size in inches.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    figure: Figure = import_extra("matplotlib.figure", owner, "viz").Figure(
        figsize=(width, height), layout="constrained"
    )
    vars(figure)["_repr_png_"] = lambda: png(figure)  # displays it in a notebook, without pyplot
    return figure


def png(figure: Figure) -> bytes:
    """Return a figure as a PNG image."""
    return encode(figure, "png")


def encode(figure: Figure, format: str) -> bytes:
    """Return a figure in a format such as "png" or "pdf"; all labels are inside."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=format, bbox_inches="tight")
    return buffer.getvalue()


def save_figure(figure: Figure, path: str | Path | IO[bytes] | None) -> None:
    """Write a figure to a file, atomically; the suffix selects the format, by default PNG.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The figure.
    path : str, Path or file object, optional
        The file. Default: nothing is written.
    """
    if isinstance(path, str | Path):
        file = Path(path)
        image = encode(figure, file.suffix[1:].lower() or "png")
        write_atomic(file if file.suffix else file.with_suffix(".png"), image)
    elif path is not None:
        path.write(png(figure))
