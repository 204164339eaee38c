"""Progress display: a progress bar, and log lines for each epoch."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

from neonlite import html_repr
from neonlite.callbacks.callback import PRIORITY_DISPLAY, Callback
from neonlite.callbacks.recording import TrainCostCallback
from neonlite.files import encodable, printable

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
        self.show({"text/plain": text, "text/html": html_repr.code(text)})  # notebooks wrap long lines of plain text


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
