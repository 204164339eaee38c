"""How did a training go?  Numbers noted along the way, as a table, as curves, and in a file."""

from __future__ import annotations

import html
import io
import math
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

from neonlite.optree import describe

Note = tuple[float, float]  # epochs done, value
Counts = tuple[float, list[int]]  # epochs done, how many weights of each magnitude

ROWS = 20  # of a table
FRACTIONS = ("Accuracy", "Top", "Precision", "Recall")  # what these names begin with is drawn in percent


class History:
    """What was noted of a training: for each name a list of (epochs done, value).

    >>> history = History()
    >>> history.note("cost, train", 1, 0.5)
    >>> history.note("Accuracy", 1, 0.75)
    >>> history.note("cost, train", 2, 0.25)
    >>> history["cost, train"], history.last("Accuracy")
    ([(1.0, 0.5), (2.0, 0.25)], 0.75)
    >>> history
    epochs  cost, train  Accuracy
    1       0.5          0.75
    2       0.25
    """

    def __init__(self) -> None:
        self.notes: dict[str, list[Note]] = {}
        self.histograms: dict[str, list[Counts]] = {}  # counts of magnitudes 2^offset and up, each twice the last
        self.offset = 0

    def note(self, name: str, epochs: float, value: float) -> None:
        """Note a value; one that is there for the same moment is replaced, as after a training that was taken up."""
        _append(self.notes.setdefault(name, []), float(epochs), float(value))

    def note_histogram(self, name: str, epochs: float, counts: list[int], offset: int) -> None:
        """Note how many numbers have the magnitude 2^offset, how many 2^(offset + 1), and so on."""
        self.offset = offset
        _append(self.histograms.setdefault(name, []), float(epochs), counts)

    def __getitem__(self, name: str) -> list[Note]:
        if name not in self.notes:
            raise KeyError(f"nothing of the name {name!r} was noted; there are {', '.join(self.notes) or 'none'}")
        return self.notes[name]

    def last(self, name: str) -> float:
        """Return the value that was noted last; NaN when there is none."""
        notes = self.notes.get(name)
        return notes[-1][1] if notes else math.nan

    def to_dict(self) -> dict[str, dict[str, list[float]]]:
        """Return for each name the epochs and the values, two lists of one length."""
        return {
            name: {"epochs": [at for at, _ in notes], "values": [x for _, x in notes]}
            for name, notes in self.notes.items()
        }

    # --- as a table ---

    def table(self) -> list[list[str]]:
        """Return titles and the last rows of words: one for each epoch, with what was noted at its end."""
        values = {name: {at: x for at, x in notes if at.is_integer()} for name, notes in self.notes.items()}
        values = {name: notes for name, notes in values.items() if notes}
        moments = sorted({at for notes in values.values() for at in notes})
        rows = [[f"{at:g}", *(f"{x[at]:.4g}" if at in x else "" for x in values.values())] for at in moments[-ROWS:]]
        return [["epochs", *values], *rows]

    def __repr__(self) -> str:
        if not self.notes:
            return "a history without notes"
        rows = self.table()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(x.ljust(n) for x, n in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = ["".join(f"<td>{html.escape(x)}</td>" for x in row) for row in self.table()]
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    # --- as data ---

    def get_state(self) -> dict[str, Any]:
        """Return all that was noted, as data for JSON."""
        curves = {name: [list(note) for note in notes] for name, notes in self.notes.items()}
        counts = {name: [[at, list(x)] for at, x in notes] for name, notes in self.histograms.items()}
        return {"notes": curves, "histograms": counts, "offset": self.offset}

    def set_state(self, state: Any) -> None:
        """Take what ``get_state`` returned, in place of what is here. ValueError when it is no such thing."""
        made = History()
        try:
            made.offset = _integer(state["offset"])
            for name, notes in state["notes"].items():
                made.notes[_string(name)] = [(at, _real(x)) for at, x in _in_order(notes)]
            for name, notes in state["histograms"].items():
                counts = made.histograms[_string(name)] = [(at, [_integer(n) for n in x]) for at, x in _in_order(notes)]
                if len({len(x) for _, x in counts}) > 1:
                    raise ValueError
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
            raise ValueError(
                "a history is a dict of notes and histograms, each a dict of lists of [epochs, value] in order; got "
                f"{describe(state)}"
            ) from None
        self.__dict__.update(vars(made))

    # --- as a file ---

    def write(self, path: Any) -> None:
        """Write it to an HDF5 file, whole or not at all.

        The groups are neon's: cost/train, cost/validation, metrics/NAME, hist/NAME. Each is a data set with a row for
        each note: the epochs done, then the value, or the counts; its attribute ``name`` is the name here. config has
        the attributes total_epochs and hist_offset. ImportError without h5py.
        """
        h5py = hdf5()
        whole = Path(path)
        part = whole.with_name(whole.name + ".part")
        with h5py.File(part, "w") as file:
            every: Any = (*self.notes.values(), *self.histograms.values())
            file.create_group("config").attrs.update(
                total_epochs=max((notes[-1][0] for notes in every), default=0.0), hist_offset=self.offset
            )
            for name, notes in self.notes.items():
                cost = name.startswith("cost, ")
                place = f"cost/{_safe(name[6:])}" if cost else f"metrics/{_safe(name)}"
                _put(file, place, name, [list(note) for note in notes])
            for name, counts in self.histograms.items():
                _put(file, f"hist/{_safe(name)}", name, [[at, *x] for at, x in counts])
        with open(part, "rb") as written:
            os.fsync(written.fileno())
        os.replace(part, whole)

    @classmethod
    def read(cls, path: Any) -> History:
        """Return the history that ``write`` wrote. ImportError without h5py; ValueError when the file is none."""
        h5py = hdf5()
        made = cls()
        try:
            with h5py.File(path, "r") as file:
                made.offset = int(file["config"].attrs["hist_offset"])
                for group in ("cost", "metrics", "hist"):
                    found: Any = file.get(group, {})
                    for data in found.values():
                        name, rows = data.attrs["name"], data[()].tolist()
                        if group == "hist":
                            made.histograms[name] = [(row[0], [int(n) for n in row[1:]]) for row in rows]
                        else:
                            made.notes[name] = [(at, x) for at, x in rows]
        except FileNotFoundError:
            raise FileNotFoundError(f"{path}: there is no such file") from None
        except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no history; one is written by History.write: {error}") from None
        return made

    # --- as curves ---

    def plot(self, path: Any = None) -> Any:
        """Draw all that was noted, with matplotlib; write it to a file, such as curves.png, if there is a path.

        Costs share one picture, so do fractions, in percent, and everything else; histograms have one each. Returns
        the matplotlib Figure, which a notebook shows. ImportError without matplotlib.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise ImportError('curves are drawn by matplotlib: pip install "neonlite[viz]"') from None
        groups: dict[str, dict[str, list[Note]]] = {"cost": {}, "%": {}, "value": {}}
        for name, notes in self.notes.items():
            groups[_unit(name)][name] = notes
        groups = {unit: group for unit, group in groups.items() if group} or {"value": {}}
        n = len(groups) + len(self.histograms)
        figure: Any = Figure(figsize=(7, 3 * n), layout="constrained")
        every = figure.subplots(n, squeeze=False)[:, 0].tolist()
        for axes, (unit, group) in zip(every, groups.items(), strict=False):
            for name, notes in group.items():
                at, values = zip(*notes, strict=True)
                factor = 100 if unit == "%" else 1
                axes.plot(at, [factor * x for x in values], label=name, marker="o" if len(notes) < 40 else "")
            axes.set(title=", ".join(group) if unit != "cost" else "cost", xlabel="epochs", ylabel=unit)
            if group:
                axes.legend()
            axes.grid(alpha=0.3)
        for axes, (name, counts) in zip(every[len(groups) :], self.histograms.items(), strict=True):
            self._picture(axes, name, counts)
        figure._repr_png_ = lambda: _png(figure)  # so a notebook shows it, without pyplot
        if path is not None:
            figure.savefig(path)
        return figure

    def _picture(self, axes: Any, name: str, counts: list[Counts]) -> None:
        """Draw histograms side by side, a column each, as far as there is anything in them."""
        used = [k for k in range(len(counts[0][1])) if any(x[k] for _, x in counts)] or [0]
        low, high = used[0], used[-1] + 1
        edges = [2 * counts[0][0] - counts[1][0] if len(counts) > 1 else 0.0, *(at for at, _ in counts)]
        rows = [[x[k] for _, x in counts] for k in range(low, high)]
        shown = axes.pcolormesh(edges, [self.offset + k - 0.5 for k in range(low, high + 1)], rows)
        axes.set(title=f"{name}: how many weights have which magnitude", xlabel="epochs", ylabel="log2 |weight|")
        axes.figure.colorbar(shown, ax=axes, label="weights")


def hdf5() -> Any:
    """Return h5py. ImportError, with the pip line, when it is not installed."""
    try:
        import h5py
    except ImportError:
        raise ImportError('HDF5 files are written by h5py: pip install "neonlite[hdf5]"') from None
    return h5py


def _append(notes: list[Any], at: float, value: Any) -> None:
    while notes and notes[-1][0] >= at:
        notes.pop()
    notes.append((at, value))


def _unit(name: str) -> str:
    if name.startswith("cost"):
        return "cost"
    return "%" if name.startswith(FRACTIONS) else "value"


def _safe(name: str) -> str:
    """Return a name that HDF5 takes for one, and not for a path; other names become other ones."""
    return {"": "%", ".": "%2E"}.get(name) or name.replace("%", "%25").replace("/", "%2F")


def _put(file: Any, place: str, name: str, rows: list[list[float]]) -> None:
    file.create_dataset(place, data=rows, dtype="float64").attrs["name"] = name


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


# --- what a state has to be ---


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _real(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError
    return float(value)


def _in_order(notes: Any) -> list[tuple[float, Any]]:
    """Return notes with their moments, which must be finite numbers that increase."""
    found = [(_real(at), x) for at, x in notes]
    moments = [at for at, _ in found]
    if not moments or not all(map(math.isfinite, moments)) or any(a >= b for a, b in pairwise(moments)):
        raise ValueError
    return found
