"""What is seen while a network learns?  One line an epoch: on a terminal, in a notebook, in a pipe, in a log."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from neonlite.callbacks.callback import SHOWS, Callback
from neonlite.callbacks.note import TrainCost

log = logging.getLogger("neonlite")


class ProgressBar(Callback):
    """Shows an epoch as one line, which grows on a terminal and in a notebook, and is printed once where it can not.

    ``Epoch 0   [Train |████████████████████|390/390 batches, 0.12 cost, 1.23s] [cost, validation 0.11, 0.05s]``

    The cost is the mean over the last minibatches, and in the end over the epoch; then what was noted of this epoch,
    with the seconds that it took to find out. It is drawn anew after ``update_thresh_s`` seconds or more, and made to
    fit the terminal. ``file``: standard error unless given; in a notebook standard output.
    """

    turn = SHOWS

    def __init__(
        self, epoch_freq: Any = 1, minibatch_freq: Any = 1, update_thresh_s: float = 0.1, file: Any = None
    ) -> None:
        super().__init__(epoch_freq, minibatch_freq)
        self.update_thresh_s, self.file = update_thresh_s, file
        self.began = self.seconds = self.shown = 0.0
        self.to: Any = None  # where this epoch is shown
        self.over: Callable[[str], None] | None = None  # writes over the line, where that can be done

    def on_epoch_begin(self, epoch: int) -> None:
        if not self.should_fire(epoch, self.epoch_freq):
            return
        self.to = self.file or (sys.stdout if notebook(sys.stdout) else sys.stderr)
        if notebook(self.to) or bool(getattr(self.to, "isatty", lambda: False)()):
            from tqdm.std import tqdm

            self.over = tqdm.status_printer(self.to)
        self.began = self.shown = time.perf_counter()
        self.seconds = 0.0

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        now = time.perf_counter()
        self.seconds = now - self.began
        if self.over is None or now - self.shown < self.update_thresh_s:
            return
        if self.should_fire(minibatch, self.minibatch_freq):
            self.shown = now
            costs = [x.mean for x in self.callbacks.callbacks if isinstance(x, TrainCost)]
            self.over(self.line(epoch, minibatch + 1, (costs or [self.model.total_cost])[0], {}))

    def on_epoch_end(self, epoch: int) -> None:
        self.end(epoch, self.model.nbatches, {k: x for k, x in noted(self, epoch).items() if k not in TRAINING})

    def on_interrupt(self) -> None:
        self.end(self.model.epoch_index, self.model.minibatch_index)

    def end(self, epoch: int, done: int, notes: dict[str, float] | None = None) -> None:
        """Show the line for the last time, and go on to the next."""
        if self.to is not None:
            line = self.line(epoch, done, self.model.total_cost, notes or {})
            self.over(line) if self.over else self.to.write(line)
            self.to.write("\n")
            self.to.flush()
        self.to = self.over = None

    def line(self, epoch: int, done: int, cost: float, notes: dict[str, float]) -> str:
        """Return the line, no longer than a terminal is wide: it has first all words, then fewer, then no bar."""
        from tqdm.std import tqdm

        total, width, took = self.model.nbatches, columns(self.to), self.callbacks.seconds
        times = {name: f", {took[name]:.2f}s" if name in took else "" for name in notes}
        words = "".join(f" [{name} {x:.4g}{times[name]}]" for name, x in notes.items())
        brief = "".join(f" [{name.removeprefix('cost, ')} {x:.3g}]" for name, x in notes.items())
        words, brief = (x.replace("{", "{{").replace("}", "}}") for x in (words, brief))
        end = f"{cost:.4g} cost, {self.seconds:.2f}s]{words}"
        forms = [
            f"Epoch {epoch:<4}[Train |{{bar:20}}| {done:>{len(str(total))}}/{total} batches, {end}",
            f"Epoch {epoch} [Train |{{bar}}| {done}/{total}, {end}",
        ]
        if notes:
            forms.append(f"Epoch {epoch} [Train {cost:.3g}]{brief}")
        fits = (form for form in forms if not width or len(form.format(bar=" " * 5)) <= width)
        drawn: str = tqdm.format_meter(
            done, total, self.seconds, ncols=width, ascii=plain(self.to), bar_format=next(fits, forms[-1])
        )
        return drawn


TRAINING = ("cost, train", "cost, minibatches")  # the line has said so already


class TrainLogger(Callback):
    """Logs what was noted of each epoch, one line, with Python's logger "neonlite", as INFO.

    ``log_token``: what the lines begin with.
    """

    turn = SHOWS

    def __init__(self, log_token: Any = None, epoch_freq: Any = 1) -> None:
        super().__init__(epoch_freq)
        self.log_token = log_token

    def on_epoch_end(self, epoch: int) -> None:
        if self.should_fire(epoch, self.epoch_freq) and log.isEnabledFor(logging.INFO):
            words = "; ".join(f"{name} {value:.6g}" for name, value in noted(self, epoch).items())
            log.info("%sepoch %d: %s", f"{self.log_token} " if self.log_token else "", epoch, words)


def noted(callback: Callback, epoch: int) -> dict[str, float]:
    """Return what was noted at the end of an epoch."""
    notes = callback.callbacks.history.notes
    return {name: found[-1][1] for name, found in notes.items() if found[-1][0] == epoch + 1}


def notebook(file: Any) -> bool:
    """Tell whether what is written to a file is shown in a notebook."""
    return type(file).__module__.startswith("ipykernel")


def columns(file: Any) -> int | None:
    """Return how many characters a line may have on a terminal; None where there is none."""
    if notebook(file):  # whose server may have been started from a terminal
        return None
    try:
        return max(os.get_terminal_size(file.fileno()).columns - 1, 0) or None
    except (AttributeError, OSError, ValueError):
        return None


def plain(file: Any) -> bool:
    """Tell whether a file does not take the blocks that a bar is made of."""
    try:
        "█".encode(getattr(file, "encoding", None) or "utf-8")
    except (LookupError, UnicodeEncodeError):
        return True
    return False
