"""Callbacks that show or log progress: a progress bar, log lines, and TensorBoard."""

from __future__ import annotations

import csv
import io
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from neonlite import messages
from neonlite.backend.validation import check_number, import_extra
from neonlite.callbacks.callback import PRIORITY_DISPLAY, PRIORITY_SAVE, Callback
from neonlite.callbacks.history import png, split_group
from neonlite.callbacks.recording import TrainCostCallback
from neonlite.files import check_writable, encodable, printable, write_atomic

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

log = logging.getLogger("neonlite")

BLOCKS = "▏▎▍▌▋▊▉█"  # of the bar
MAX_LINES = 100  # of the output of a notebook cell


class ProgressBarCallback(Callback):
    """Show one line per epoch, which is updated on a terminal and in a notebook, and printed once elsewhere.

    ``Epoch  1/10 [Train |████████████████████| 390/390 batches, loss 0.12, 1.23s] [val_loss 0.11, 0.05s]``

    The loss is the mean cost over the last minibatches, and at the end of the epoch the mean over the epoch. The values
    recorded in this epoch follow, each with the duration of its evaluation. The line fits the width of the terminal. A
    notebook shows the lines of the last 100 epochs.

    Parameters
    ----------
    epoch_freq : int or list of int
        Show every ``epoch_freq`` epochs, or the epochs of these indices. Default: 1.
    minibatch_freq : int or list of int
        Update after every ``minibatch_freq`` minibatches of an epoch. Default: 1.
    update_thresh_s : float
        The minimum time between updates, in seconds. Default: 0.1.
    file : text file, optional
        Where to write. Default: standard error; in a notebook, standard output.
    """

    priority = PRIORITY_DISPLAY
    rank_0_only = True

    def __init__(
        self,
        epoch_freq: int | list[int] = 1,
        minibatch_freq: int | list[int] = 1,
        update_thresh_s: float = 0.1,
        file: IO[str] | None = None,
    ) -> None:
        super().__init__(epoch_freq, minibatch_freq)
        self.update_thresh_s, self.file = update_thresh_s, file
        self.start_time = self.seconds = self.last_update = 0.0
        self.stream: IO[str] | None = None  # the output stream of this epoch
        self.rewrite_line: Callable[[str], None] | None = None  # None where a line cannot be updated
        self.output = NotebookOutput()
        self.num_epochs = 0  # after which training ends

    def on_train_begin(self, epochs: int) -> None:
        self.output = NotebookOutput()
        self.num_epochs = epochs

    def on_epoch_begin(self, epoch: int) -> None:
        if not self.should_fire(epoch, self.epoch_freq):
            return
        self.stream = self.file or (sys.stdout if is_notebook(sys.stdout) else sys.stderr)
        if is_notebook(self.stream):
            self.rewrite_line = self.output.update_line
        elif bool(getattr(self.stream, "isatty", lambda: False)()):
            from tqdm.std import tqdm

            self.rewrite_line = tqdm.status_printer(self.stream)
        self.start_time = self.last_update = time.perf_counter()
        self.seconds = 0.0

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        now = time.perf_counter()
        self.seconds = now - self.start_time
        if self.rewrite_line is None or now - self.last_update < self.update_thresh_s:
            return
        if self.should_fire(minibatch, self.minibatch_freq):
            self.last_update = now
            costs = [x.mean for x in self.callbacks.callbacks if isinstance(x, TrainCostCallback)]
            self.rewrite_line(self.format_line(epoch, minibatch + 1, (costs or [self.model.total_cost])[0], {}))

    def on_epoch_end(self, epoch: int) -> None:
        self.finish_line(
            epoch,
            self.model.nbatches,
            {k: x for k, x in get_epoch_records(self, epoch).items() if k not in TRAINING_RECORDS},
        )

    def on_interrupt(self) -> None:
        with suppress(OSError):  # if the terminal was closed, keep the error that ended training
            self.finish_line(self.model.epoch_index, self.model.minibatch_index)

    def finish_line(self, epoch: int, done: int, values: dict[str, float] | None = None) -> None:
        """Show the final line of an epoch, and start a new line.

        Parameters
        ----------
        epoch : int
            The index of the epoch, from 0.
        done : int
            The number of complete minibatches.
        values : dict, optional
            The values recorded in this epoch, by name.
        """
        if self.stream is not None:
            line = self.format_line(epoch, done, self.model.total_cost, values or {})
            self.rewrite_line(line) if self.rewrite_line else self.stream.write(line)
            if is_notebook(self.stream):
                self.output.lines.append(line)
            else:
                self.stream.write("\n")
                self.stream.flush()
        self.stream = self.rewrite_line = None

    def format_line(self, epoch: int, done: int, cost: float, values: dict[str, float]) -> str:
        """Return the longest of three forms of the line that fits the terminal.

        Parameters
        ----------
        epoch : int
            The index of the epoch, from 0.
        done : int
            The number of complete minibatches.
        cost : float
            The training cost.
        values : dict
            The values recorded in this epoch, by name.
        """
        from tqdm.std import tqdm

        total, width, seconds = self.model.nbatches, get_terminal_width(self.stream), self.callbacks.eval_seconds
        times = {name: f", {seconds[name]:.2f}s" if name in seconds else "" for name in values}
        text = "".join(f" [{name} {x:.4g}{times[name]}]" for name, x in values.items())
        short_text = "".join(f" [{name} {x:.3g}]" for name, x in values.items())
        text, short_text = (x.replace("{", "{{").replace("}", "}}") for x in (text, short_text))
        end = f"loss {cost:.4g}, {self.seconds:.2f}s]{text}"
        count = f"{epoch + 1:>{len(str(self.num_epochs))}}/{self.num_epochs}"
        forms = [
            f"Epoch {count} [Train |{{bar:20}}| {done:>{len(str(total))}}/{total} batches, {end}",
            f"Epoch {count} [Train |{{bar}}| {done}/{total} batches, {end}",
        ]
        if values:
            forms.append(f"Epoch {count} [loss {cost:.3g}]{short_text}")
        fits = (form for form in forms if not width or len(form.format(bar=" " * 5)) <= width)
        line: str = tqdm.format_meter(
            done,
            total,
            self.seconds,
            ncols=width,
            ascii=encodable(BLOCKS, self.stream) != BLOCKS,
            bar_format=next(fits, forms[-1]),
        )
        return encodable(line, self.stream)


class NotebookDisplay:
    """An output of a notebook cell that can be replaced."""

    handle: Any = None  # of the output, once there is one

    def show(self, data: dict[str, Any]) -> None:
        """Show data, by its MIME types, instead of the previous data."""
        from IPython.display import display  # installed with every notebook kernel

        if self.handle is None:
            self.handle = display(data, raw=True, display_id=True)
        else:
            self.handle.update(data, raw=True)


class NotebookOutput(NotebookDisplay):
    """The output of a notebook cell: lines of text, of which the last is updated."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=MAX_LINES)  # before the one that is updated

    def update_line(self, line: str) -> None:
        """Show all lines, the last of which is new or updated."""
        text = "\n".join([*self.lines, line])
        self.show({"text/plain": text, "text/html": messages.code(text)})  # notebooks wrap long lines of plain text


TRAINING_RECORDS = ("loss", "loss_minibatches")  # not repeated after the bar


class TrainLoggerCallback(Callback):
    """Log the values recorded in each epoch, counted from 1, as one line, by the logger "neonlite" at level INFO.

    Parameters
    ----------
    log_token : str, optional
        A prefix for the lines.
    epoch_freq : int or list of int
        Log every ``epoch_freq`` epochs, or the epochs of these indices. Default: 1.
    """

    priority = PRIORITY_DISPLAY
    rank_0_only = True

    def __init__(self, log_token: str | None = None, epoch_freq: int | list[int] = 1) -> None:
        super().__init__(epoch_freq)
        self.log_token = log_token

    def on_epoch_end(self, epoch: int) -> None:
        if self.should_fire(epoch, self.epoch_freq) and log.isEnabledFor(logging.INFO):
            text = "; ".join(f"{name} {value:.6g}" for name, value in get_epoch_records(self, epoch).items())
            log.info("%sepoch %d: %s", f"{self.log_token} " if self.log_token else "", epoch + 1, text)


def get_epoch_records(callback: Callback, epoch: int) -> dict[str, float]:
    """Return the values recorded at the end of an epoch, by name."""
    records = callback.callbacks.history.records
    return {printable(name, keep=""): values[-1][1] for name, values in records.items() if values[-1][0] == epoch + 1}


def is_notebook(file: IO[str] | None) -> bool:
    """Return whether a text file is the output of a notebook cell."""
    return type(file).__module__.startswith("ipykernel")


def get_terminal_width(file: IO[str] | None) -> int | None:
    """Return the number of characters of a line on a terminal; None if the file is not a terminal."""
    if file is None or is_notebook(file):  # the server of a notebook may have been started from a terminal
        return None
    try:
        return max(os.get_terminal_size(file.fileno()).columns - 1, 0) or None
    except (AttributeError, OSError, ValueError):
        return None


# --- callbacks that write recorded values elsewhere: a CSV file, TensorBoard, and live curves in a notebook ---

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

    def close(self) -> None:
        """Close the file; ``fit`` opens another one in the same folder."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    on_train_end = on_interrupt = close


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
        self.display: NotebookDisplay | None = None  # None outside of a notebook
        self.last_update = -float("inf")
        self.is_current = True

    def on_train_begin(self, epochs: int) -> None:
        self.display = NotebookDisplay() if is_notebook(sys.stdout) else None
        self.last_update, self.is_current = -float("inf"), True

    def on_epoch_end(self, epoch: int) -> None:
        self.is_current = False
        if time.perf_counter() - self.last_update >= self.update_thresh_s:
            self.update()

    def update(self) -> None:
        """Show the current curves, unless they are shown already."""
        if self.display is not None and not self.is_current:
            self.display.show({"image/png": png(self.callbacks.history.plot()), "text/plain": "training curves"})
            self.last_update, self.is_current = time.perf_counter(), True

    on_train_end = on_interrupt = update


# --- the logger of neonlite, with neon's level DISPLAY ---

DISPLAY = 41  # above ERROR, so that messages are shown without a configuration of logging


class DisplayLogger(logging.LoggerAdapter[logging.Logger]):
    """The logger "neonlite" of the standard library, with neon's method ``display``."""

    def display(self, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message that is shown by default.

        Parameters
        ----------
        msg : str
            The message, or its format.
        *args
            The values of the format.
        **kwargs
            Passed to ``logging.Logger.log``.
        """
        self.log(DISPLAY, msg, *args, **kwargs)


logging.addLevelName(DISPLAY, "DISPLAY")
logger = DisplayLogger(log, {})
