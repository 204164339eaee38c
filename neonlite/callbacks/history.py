"""History: the values that a training recorded, as a table, as curves, and in files."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from neonlite import messages, name_hints
from neonlite.backend.validation import import_extra
from neonlite.files import printable, write_atomic
from neonlite.messages import describe, did_you_mean
from neonlite.transforms.metrics import recorded_name

if TYPE_CHECKING:
    import pandas
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


# --- history: recorded values of a training run, as a table, a plot, and an HDF5 file ---

Record = tuple[float, float]  # number of epochs, value
T = TypeVar("T")
HistogramRecord = tuple[float, list[int]]  # number of epochs, counts of the bins

MAX_TABLE_ROWS = 20  # the last epochs, in the printed table
# prefixes of the names that are plotted in percent
PERCENT_METRICS = ("Accuracy", "Top", "Precision", "Recall", "F1", "ROCAUC")


@name_hints.add_hints(name_hints.HISTORY)
class History(Mapping[str, list[float]]):
    """Recorded values of a training run: a mapping from names to lists of numbers, as in Keras.

    The mean cost of each epoch is "loss", and that of the validation set "val_loss". A metric has its own name, such as
    "Accuracy", and is also found by its short name: ``history["accuracy"]``.
    ``epochs`` returns when the values of a name were recorded; ``records`` contains both.

    Attributes
    ----------
    records : dict
        The lists of (number of epochs, value), by name.
    histograms : dict
        The lists of (number of epochs, counts), by name.
    histogram_offset : int
        The exponent of the first bin of the histograms: bin k counts the magnitudes of about 2^(offset + k).

    Examples
    --------
    >>> history = History()
    >>> history.record("loss", 1, 0.5)
    >>> history.record("Accuracy", 1, 0.75)
    >>> history.record("loss", 2, 0.25)
    >>> history["loss"], history.epochs("loss"), history.last("Accuracy")
    ([0.5, 0.25], [1.0, 2.0], 0.75)
    >>> history
    epochs  loss  Accuracy
    1       0.5   0.75
    2       0.25
    """

    def __init__(self) -> None:
        self.records: dict[str, list[Record]] = {}
        self.histograms: dict[str, list[HistogramRecord]] = {}
        self.histogram_offset = 0

    def record(self, name: str, epochs: float, value: float) -> None:
        """Record a value; it replaces records of the same or a later time, as after resuming from a checkpoint.

        Parameters
        ----------
        name : str
            The name of the value. Costs are "loss", "val_loss" and names such as "loss_generator".
        epochs : float
            The number of epochs trained so far, with a fraction within an epoch.
        value : float
            The value.
        """
        _append_record(self.records.setdefault(name, []), float(epochs), float(value))

    def record_histogram(self, name: str, epochs: float, counts: list[int], offset: int) -> None:
        """Record a histogram of magnitudes.

        Parameters
        ----------
        name : str
            The name of the histogram, such as "fc.W".
        epochs : float
            The number of epochs trained so far, with a fraction within an epoch.
        counts : list of int
            The counts of the magnitudes 2^offset, 2^(offset + 1), and so on.
        offset : int
            The exponent of the first bin, the same for all histograms.
        """
        self.histogram_offset = offset
        _append_record(self.histograms.setdefault(name, []), float(epochs), counts)

    def __getitem__(self, name: str) -> list[float]:
        return [value for _, value in self._records_of(name)]

    def epochs(self, name: str) -> list[float]:
        """Return the number of complete epochs at each value of a name.

        Parameters
        ----------
        name : str
            The name of the values.

        Returns
        -------
        list of float
            1 at the end of the first epoch; with a fraction within an epoch.

        Raises
        ------
        KeyError
            Nothing of this name was recorded.
        """
        return [epochs for epochs, _ in self._records_of(name)]

    def _records_of(self, name: str) -> list[Record]:
        records = self.find_records(name)
        if not records:
            raise KeyError(
                f"History: expected a recorded name, got {name!r}. "
                f"Recorded: {printable(', '.join(self.records)) or 'none'}.{hint_for_name(str(name), self.records)}"
            )
        return records

    def find_records(self, name: str) -> list[Record]:
        """Return the records of a name, or of the metric with this short name; an empty list if there are none.

        Parameters
        ----------
        name : str
            The name of the values, such as "Accuracy" or "accuracy".

        Returns
        -------
        list of (float, float)
            The number of epochs, and the value.
        """
        return self.records.get(name) or self.records.get(recorded_name(name), [])

    def __iter__(self) -> Iterator[str]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def last(self, name: str) -> float:
        """Return the last value of a name.

        Parameters
        ----------
        name : str
            The name of the value.

        Returns
        -------
        float
            The value; NaN if nothing of this name was recorded.
        """
        records = self.find_records(name)
        return records[-1][1] if records else math.nan

    def to_dict(self) -> dict[str, dict[str, list[float]]]:
        """Return {"epochs": list, "values": list} for each name."""
        return {name: {"epochs": self.epochs(name), "values": self[name]} for name in self}

    def to_pandas(self) -> pandas.DataFrame:
        """Return the records as a data frame of pandas: a row for each number of epochs, a column for each name.

        Returns
        -------
        pandas.DataFrame
            NaN where a name has no value. The index is the number of epochs.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("History.to_pandas needs pandas: pip install pandas") from None
        frame = pandas.DataFrame({name: pandas.Series(dict(records)) for name, records in self.records.items()})
        return frame.sort_index().rename_axis("epochs")

    # --- table ---

    def table(self) -> list[list[str]]:
        """Return the titles, and the values at the end of each of the last 20 epochs, as rows of strings."""
        values = {
            name: {epochs: x for epochs, x in records if epochs.is_integer()} for name, records in self.records.items()
        }
        values = {name: records for name, records in values.items() if records}
        all_epochs = sorted({epochs for records in values.values() for epochs in records})
        rows = [
            [f"{epochs:g}", *(f"{x[epochs]:.4g}" if epochs in x else "" for x in values.values())]
            for epochs in all_epochs[-MAX_TABLE_ROWS:]
        ]
        return [["epochs", *(printable(name, keep="") for name in values)], *rows]

    def __repr__(self) -> str:
        if not self.records:
            return "an empty history"
        rows = self.table()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(x.ljust(n) for x, n in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        header, *rows = self.table()
        return str(messages.table(rows, header) if self.records else messages.escape(repr(self)))

    # --- serialization ---

    def get_state(self) -> dict[str, Any]:
        """Return all records, as JSON data."""
        curves = {name: [list(record) for record in records] for name, records in self.records.items()}
        counts = {name: [[epochs, list(x)] for epochs, x in records] for name, records in self.histograms.items()}
        return {"records": curves, "histograms": counts, "histogram_offset": self.histogram_offset}

    def set_state(self, state: object) -> None:
        """Replace all records.

        Parameters
        ----------
        state : dict
            The return value of ``get_state``.

        Raises
        ------
        ValueError
            ``state`` is not a history.
        """
        restored = History()
        try:
            saved: dict[str, Any] = _check_type(state, dict)
            restored.histogram_offset = _check_type(saved["histogram_offset"], int)
            for name, records in saved["records"].items():
                pairs = _check_increasing(records)
                restored.records[_check_type(name, str)] = [(epochs, _check_float(x)) for epochs, x in pairs]
            for name, records in saved["histograms"].items():
                counts = [(epochs, [_check_type(n, int) for n in x]) for epochs, x in _check_increasing(records)]
                restored.histograms[_check_type(name, str)] = counts
                if len({len(x) for _, x in counts}) > 1:
                    raise ValueError
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
            raise ValueError(
                "History: expected a dict of records and histograms, each a dict of lists of [epochs, value] with "
                f"increasing epochs, got {describe(state)}"
            ) from None
        self.__dict__.update(vars(restored))

    # --- HDF5 file ---

    def write(self, path: str | Path) -> None:
        """Write the history to an HDF5 file, atomically.

        The data sets have neon's names: cost/train, cost/validation, metrics/NAME, hist/NAME. Each has one row per
        record: the number of epochs, then the value or the counts; its attribute ``name`` is the name in ``records``.
        The group config has the attributes total_epochs and hist_offset.

        Parameters
        ----------
        path : str or Path
            The file to write.

        Raises
        ------
        ImportError
            h5py is not installed.
        """
        h5py = import_extra("h5py", "an HDF5 file", "hdf5")
        buffer = io.BytesIO()
        with h5py.File(buffer, "w") as file:
            all_epochs = [*(x[-1][0] for x in self.records.values()), *(x[-1][0] for x in self.histograms.values())]
            file.create_group("config").attrs.update(
                total_epochs=max(all_epochs, default=0.0), hist_offset=self.histogram_offset
            )
            for name, records in self.records.items():
                group, member = split_group(name)
                _write_dataset(file, f"{group}/{_escape_hdf5_name(member)}", name, [list(record) for record in records])
            for name, counts in self.histograms.items():
                _write_dataset(file, f"hist/{_escape_hdf5_name(name)}", name, [[epochs, *x] for epochs, x in counts])
        write_atomic(path, buffer.getvalue())

    @classmethod
    def read(cls, path: str | Path) -> History:
        """Read a history from an HDF5 file.

        Parameters
        ----------
        path : str or Path
            A file that ``write`` created.

        Returns
        -------
        History

        Raises
        ------
        ImportError
            h5py is not installed.
        ValueError
            The file is not a history.
        """
        h5py = import_extra("h5py", "an HDF5 file", "hdf5")
        history = cls()
        try:
            with h5py.File(path, "r") as file:
                state: dict[str, Any] = {"records": {}, "histograms": {}}
                state["histogram_offset"] = int(file["config"].attrs["hist_offset"])
                for group in ("cost", "metrics", "hist"):
                    datasets: Any = file.get(group, {})
                    for data in datasets.values():
                        if data.nbytes > os.path.getsize(path):  # unwritten fill values could need any amount of memory
                            raise ValueError(f"{data.name} has {data.nbytes:,} bytes, more than the file")
                        name, rows = data.attrs["name"], data[()].tolist()
                        if group == "hist":
                            state["histograms"][name] = [[row[0], [int(n) for n in row[1:]]] for row in rows]
                        else:
                            state["records"][name] = rows
            history.set_state(state)
        except (FileNotFoundError, PermissionError) as error:
            reason = "there is no such file" if isinstance(error, FileNotFoundError) else "permission denied"
            raise type(error)(f"{path}: {reason}") from None
        except Exception as error:  # h5py raises many types
            reason = printable(error)
            raise ValueError(f"{path}: expected a file written by History.write: {reason}") from None
        return history

    # --- plot ---

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot all records with matplotlib.

        Costs share one plot, as do fractions, in percent, and all other values; each histogram has its own plot.

        Parameters
        ----------
        path : str, Path or file object, optional
            Where to save the figure, such as "curves.png".

        Returns
        -------
        matplotlib.figure.Figure
            The figure, which a notebook displays.

        Raises
        ------
        ImportError
            matplotlib is not installed.
        """
        groups: dict[str, dict[str, list[Record]]] = {"cost": {}, "%": {}, "value": {}}
        for name, records in self.records.items():
            groups[_plot_unit(name)][name] = records
        groups = {unit: group for unit, group in groups.items() if group} or {"value": {}}
        n = len(groups) + len(self.histograms)
        figure = new_figure("History.plot", 7, 3 * n)
        all_axes = figure.subplots(n, squeeze=False)[:, 0].tolist()
        for axes, (unit, group) in zip(all_axes, groups.items(), strict=False):
            for name, records in group.items():
                epochs, values = zip(*records, strict=True)
                factor = 100 if unit == "%" else 1
                axes.plot(epochs, [factor * x for x in values], label=name, marker="o" if len(records) < 40 else "")
            axes.set(title=", ".join(group) if unit != "cost" else "cost", xlabel="epochs", ylabel=unit)
            if group:
                axes.legend()
            axes.grid(alpha=0.3)
        for axes, (name, counts) in zip(all_axes[len(groups) :], self.histograms.items(), strict=True):
            self._plot_histogram(axes, name, counts)
        save_figure(figure, path)
        return figure

    def _plot_histogram(self, axes: Any, name: str, counts: list[HistogramRecord]) -> None:
        """Plot histograms over the epochs as columns of an image, without empty bins at both ends."""
        used = [k for k in range(len(counts[0][1])) if any(x[k] for _, x in counts)] or [0]
        low, high = used[0], used[-1] + 1
        edges = [2 * counts[0][0] - counts[1][0] if len(counts) > 1 else 0.0, *(epochs for epochs, _ in counts)]
        rows = [[x[k] for _, x in counts] for k in range(low, high)]
        mesh = axes.pcolormesh(edges, [self.histogram_offset + k - 0.5 for k in range(low, high + 1)], rows)
        axes.set(title=f"{name}: histogram of magnitudes", xlabel="epochs", ylabel="log2 |weight|")
        axes.figure.colorbar(mesh, ax=axes, label="weights")


def _append_record(records: list[tuple[float, T]], epochs: float, value: T) -> None:
    while records and records[-1][0] >= epochs:
        records.pop()
    records.append((epochs, value))


def hint_for_name(name: str, known: Collection[str]) -> str:
    """Return the known name that is nearest to an unknown one, or how to record it; else an empty string."""
    if name == "val_loss":
        return " It is the cost on validation data: pass validation_split=0.2 to fit."
    metric = recorded_name(name.removeprefix("val_"))  # "val_accuracy", as in Keras
    return did_you_mean(metric if metric in known else name, known)


def split_group(name: str) -> tuple[str, str]:
    """Return the group of a recorded name, "cost" or "metrics", and the name in it: ("cost", "train") for "loss"."""
    if not is_cost(name):
        return "metrics", name
    return "cost", {"loss": "train", "val_loss": "validation"}.get(name) or name.removeprefix("loss_")


def is_cost(name: str) -> bool:
    """Return whether a recorded name is that of a cost: "loss", "val_loss", or such as "loss_generator"."""
    return name in ("loss", "val_loss") or name.startswith("loss_")


def _plot_unit(name: str) -> str:
    if is_cost(name):
        return "cost"
    return "%" if name.startswith(PERCENT_METRICS) else "value"


def _escape_hdf5_name(name: str) -> str:
    """Escape a name so that HDF5 does not read it as a path; different names stay different."""
    return {"": "%", ".": "%2E"}.get(name) or name.replace("%", "%25").replace("/", "%2F")


def _write_dataset(file: Any, path: str, name: str, rows: list[list[float]]) -> None:
    file.create_dataset(path, data=rows, dtype="float64").attrs["name"] = name


# --- checks of a state ---


def _check_type(value: Any, *types: type) -> Any:
    if type(value) not in types:
        raise TypeError
    return value


def _check_float(value: object) -> float:
    return float(_check_type(value, int, float))


def _check_increasing(entries: Any) -> list[tuple[float, Any]]:
    """Return records, whose epochs must be finite and increasing."""
    records = [(_check_float(epochs), x) for epochs, x in entries]
    all_epochs = [epochs for epochs, _ in records]
    if not all_epochs or not all(map(math.isfinite, all_epochs)) or any(a >= b for a, b in pairwise(all_epochs)):
        raise ValueError
    return records
