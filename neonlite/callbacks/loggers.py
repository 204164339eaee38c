"""Callbacks that write recorded values elsewhere: a CSV file, TensorBoard, and live curves in a notebook."""

from __future__ import annotations

import csv
import io
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from neonlite.backend.validation import check_number, import_extra
from neonlite.callbacks.callback import PRIORITY_DISPLAY, PRIORITY_SAVE, Callback
from neonlite.callbacks.figures import png
from neonlite.callbacks.history import split_group
from neonlite.callbacks.progress import NotebookDisplay, is_notebook
from neonlite.files import check_writable, printable, write_atomic

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

Row = dict[str, str]  # the cells of a row, by the name of the column


class CSVLogger(Callback):
    """Write a CSV file with one row per epoch: the number of epochs, and the values recorded at its end.

    The file is replaced after each epoch, atomically. If it exists when training starts, the rows of the epochs that
    the model has completed remain, and rows of later epochs, which will be trained again, are removed: a resumed
    training writes the same rows as an uninterrupted one.

    Parameters
    ----------
    path : str or Path
        The file to write.

    Raises
    ------
    ValueError
        When training starts: the file exists, and is not one of this callback.

    Examples
    --------
    >>> from neonlite.callbacks import CSVLogger
    >>> logger = CSVLogger("training.csv")  # pandas.read_csv("training.csv", index_col="epochs")
    """

    priority = PRIORITY_SAVE
    rank_0_only = True

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = self.output_path = check_writable("CSVLogger: path", path)
        self.rows: dict[int, Row] = {}  # by the number of epochs

    def on_train_begin(self, epochs: int) -> None:
        done, recorded = self.model.epoch_index, self.callbacks.history.records
        self.rows = {n: row for n, row in self.read().items() if n <= done}
        for n in sorted({int(n) for records in recorded.values() for n, _ in records if n.is_integer()}):
            if n <= done:
                self.add_row(n)

    def on_epoch_end(self, epoch: int) -> None:
        self.add_row(epoch + 1)
        buffer = io.StringIO()
        columns = {"epochs": None} | {name: None for row in self.rows.values() for name in row}
        writer = csv.DictWriter(buffer, [*columns], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows[n] for n in sorted(self.rows))
        write_atomic(self.path, buffer.getvalue().encode())

    def add_row(self, epochs: int) -> None:
        """Add the values recorded after a number of epochs, or replace those of the file.

        Parameters
        ----------
        epochs : int
            The number of epochs.
        """
        records = self.callbacks.history.records.items()
        values = {printable(name, keep=""): repr(x) for name, all_x in records for n, x in all_x if n == epochs}
        self.rows[epochs] = {"epochs": str(epochs), **values}

    def read(self) -> dict[int, Row]:
        """Return the rows of the file by the number of epochs; none if there is no file."""
        path = Path(self.path)
        if not path.exists() or not path.stat().st_size:
            return {}
        try:
            with path.open(newline="", encoding="utf-8") as file:
                header, *rows = csv.reader(file, strict=True)
            column = header.index("epochs")
            cells = {int(row[column]): zip(header, row, strict=True) for row in rows}
            return {n: {name: x for name, x in row if x} for n, row in cells.items()}
        except (IndexError, ValueError, csv.Error):
            raise ValueError(
                f"CSVLogger: expected a CSV file with a column epochs, got {self.path}. Pass the path of another file"
            ) from None


class TensorBoardLogger(Callback):
    """Write the values recorded at the end of each epoch for TensorBoard: ``tensorboard --logdir FOLDER``.

    The step is the number of epochs. Costs are in the group "cost", other values in "metrics". When training resumes,
    TensorBoard discards the values of the epochs that are trained again. The extra ``neonlite[tensorboard]`` installs
    tensorboardX, which writes the files; TensorBoard itself displays them.

    Parameters
    ----------
    folder : str or Path
        The folder of this training run, which is created.

    Raises
    ------
    ImportError
        tensorboardX is not installed.
    """

    priority = PRIORITY_SAVE
    rank_0_only = True

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.folder = self.output_path = str(Path(folder))
        self.writer: SummaryWriter | None = None
        self.writer_class: type[SummaryWriter] = import_extra("tensorboardX", self.classnm, "tensorboard").SummaryWriter

    def on_train_begin(self, epochs: int) -> None:
        self.writer = self.writer_class(
            self.folder,
            purge_step=self.model.epoch_index + 1,
            filename_suffix=f".{time.time_ns()}",  # names contain the time in seconds; an existing file is replaced
        )

    def on_epoch_end(self, epoch: int) -> None:
        if self.writer is None:
            return
        for name in self.callbacks.history.records:
            value = self.callbacks.epoch_value(name, epoch)
            if value is not None:
                self.writer.add_scalar("/".join(split_group(name)), value, epoch + 1)
        self.writer.flush()

    def on_train_end(self) -> None:
        self.close()

    def on_interrupt(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; ``fit`` opens another one in the same folder."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None


class LiveCurves(Callback):
    """Plot all recorded values in a notebook, in one output that is updated after each epoch.

    It shows the plot of ``History.plot``. Outside of a notebook it does nothing.

    Parameters
    ----------
    update_thresh_s : float
        The minimum time between updates, in seconds; the last epoch is always shown. Default: 1.

    Raises
    ------
    ImportError
        When training starts in a notebook: matplotlib is not installed.
    """

    priority = PRIORITY_DISPLAY
    rank_0_only = True

    def __init__(self, update_thresh_s: float = 1.0) -> None:
        super().__init__()
        self.update_thresh_s = check_number("LiveCurves: update_thresh_s", update_thresh_s, 0)
        self.display: LiveImage | None = None  # None outside of a notebook
        self.last_update = -float("inf")
        self.is_current = True

    def on_train_begin(self, epochs: int) -> None:
        self.display = LiveImage() if is_notebook(sys.stdout) else None
        self.last_update, self.is_current = -float("inf"), True

    def on_epoch_end(self, epoch: int) -> None:
        self.is_current = False
        if time.perf_counter() - self.last_update >= self.update_thresh_s:
            self.update()

    def on_train_end(self) -> None:
        self.update()

    def on_interrupt(self) -> None:
        self.update()

    def update(self) -> None:
        """Show the current curves, unless they are shown already."""
        if self.display is not None and not self.is_current:
            self.display.update(png(self.callbacks.history.plot()))
            self.last_update, self.is_current = time.perf_counter(), True


class LiveImage(NotebookDisplay):
    """An image in the output of a notebook cell that can be replaced."""

    def update(self, image: bytes) -> None:
        """Show a PNG image instead of the previous one."""
        self.show({"image/png": image, "text/plain": "training curves"})
