"""SIGTERM, SIGHUP and Ctrl-C end training after a complete step, and training resumes from the checkpoint."""

from __future__ import annotations

import functools
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers.small_models import data, same, start

from neonlite.backend import concurrency
from neonlite.callbacks import CallbackBase, Callbacks
from neonlite.models import Model
from neonlite.models.training_state import read_checkpoint
from neonlite.optimizers import Adam
from neonlite.transforms import CrossEntropyMulti

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")

NAMES = ("SIGTERM", "SIGHUP") if os.name != "nt" else ()
every_signal = pytest.mark.parametrize("number", [getattr(signal, name) for name in NAMES], ids=NAMES)


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """Restore the default handlers, as the tests may run under nohup."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        assert signal.getsignal(number) is signal.SIG_DFL
        signal.signal(number, handler)


class SendsSignals(CallbackBase):
    """Sends signals to its own process within a step."""

    def __init__(self, at: int, *numbers: int, act: Callable[[], None] | None = None) -> None:
        self.at, self.numbers, self.act = at, numbers, act
        self.step = 0
        self.ended = False

    def on_minibatch_begin(self, epoch, minibatch):
        if self.step == self.at:
            for number in self.numbers:
                os.kill(os.getpid(), number)
            if self.act is not None:
                self.act()
        self.step += 1

    def on_interrupt(self):
        self.ended = True


def fit(model: Model, train: Any, optimizer: Any, sender: Any = None) -> None:
    model.fit(train, CrossEntropyMulti(), optimizer, 3, sender)


@every_signal
@pytest.mark.parametrize("at", [0, 7, 17])
def test_a_signal_ends_training_after_a_complete_step_and_fit_continues(number, at):
    fit(straight := start(), data(shuffle=True), Adam(learning_rate=0.05))
    model, train, optimizer, stop = start(), data(shuffle=True), Adam(learning_rate=0.05), SendsSignals(at, number)
    with pytest.raises(SystemExit) as ended:
        fit(model, train, optimizer, stop)
    assert ended.value.code == 128 + number
    assert stop.ended
    assert (stop.step, optimizer.t) == (at + 1, at + 1)  # the current step was completed
    assert signal.getsignal(number) is signal.SIG_DFL
    fit(model, train, optimizer)
    assert same(model.get_weights(), straight.get_weights())


@every_signal
def test_a_second_signal_aborts_a_validation_immediately_and_the_file_is_written(number, tmp_path):
    def press(y: Any, t: Any, calcrange: Any) -> float:
        if not model.epoch_index:  # before the first step
            return 1.0
        for _ in range(2):
            os.kill(os.getpid(), number)
        raise AssertionError("it goes on")

    press.metric_names = ["ones"]  # type: ignore[attr-defined]
    model = start()
    callbacks = Callbacks(model, eval_set=data(), metric=press, progress_bar=False, save_path=tmp_path / "m")
    with pytest.raises(SystemExit) as ended:
        fit(model, data(shuffle=True), Adam(), callbacks)
    assert ended.value.code == 128 + number
    assert Model(tmp_path / "m").epoch_index == 1


@every_signal
def test_the_handler_of_an_ignored_or_handled_signal_is_not_replaced(number):
    heard: list[int] = []
    for handler in (signal.SIG_IGN, lambda number, frame: heard.append(number)):
        signal.signal(number, handler)
        try:
            model = start()
            fit(model, data(), Adam(), SendsSignals(3, number))
            assert signal.getsignal(number) is handler
        finally:
            signal.signal(number, signal.SIG_DFL)
        assert model.epoch_index == 3
    assert heard == [number]


@every_signal
def test_outside_the_main_thread_no_handler_is_set(number):
    seen: list[Any] = []
    model = start()
    sender = SendsSignals(3, act=lambda: seen.append(signal.getsignal(number)))
    worker = threading.Thread(target=lambda: fit(model, data(), Adam(), sender))
    worker.start()
    worker.join()
    assert seen == [signal.SIG_DFL]
    assert model.epoch_index == 3


@every_signal
def test_an_error_after_a_signal_does_not_keep_the_process_alive(number):
    def fail() -> None:
        raise OSError("the terminal is gone")

    with pytest.raises(SystemExit) as ended:
        fit(start(), data(), Adam(), SendsSignals(3, number, act=fail))
    assert ended.value.code == 128 + number
    assert str(ended.value.__cause__) == "the terminal is gone"  # the error is not lost


def test_an_error_after_ctrl_c_is_raised():
    def fail() -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        fit(start(), data(), Adam(), SendsSignals(3, signal.SIGINT, act=fail))


class SignalAt(CallbackBase):
    """Sends a signal at an event, and counts calls of on_interrupt."""

    def __init__(self, event: str, number: int, model: Model | None = None) -> None:
        self.event, self.number, self.model, self.interrupts = event, number, model, 0

    def send(self, event: str) -> None:
        if event == self.event:
            os.kill(os.getpid(), self.number)

    def on_minibatch_end(self, epoch, minibatch):
        if self.model is not None:
            self.model.finished = True

    def on_interrupt(self):
        self.interrupts += 1
        self.send("interrupt")

    def on_train_end(self):
        self.send("end")


@pytest.mark.parametrize("number", [signal.SIGINT, *map(int, (getattr(signal, name) for name in NAMES))])
def test_a_signal_at_the_very_end_of_a_training_is_not_lost(number, monkeypatch):
    model = start()
    with pytest.raises((KeyboardInterrupt, SystemExit)) as ended:
        fit(model, data(), Adam(), SignalAt("end", number))
    assert model.epoch_index == 3
    assert ended.type is KeyboardInterrupt or ended.value.code == 128 + number
    with pytest.raises((KeyboardInterrupt, SystemExit)), concurrency.DeferredInterrupt(is_training=True):
        os.kill(os.getpid(), number)


@every_signal
def test_a_signal_while_a_finished_training_saves_does_not_save_twice(number):
    model = start()
    sender = SignalAt("interrupt", number, model)
    with pytest.raises(SystemExit):
        fit(model, data(), Adam(), sender)
    assert sender.interrupts == 1


def test_a_system_without_sighup_has_the_others(monkeypatch):
    fewer = ModuleType("signal")
    vars(fewer).update({name: value for name, value in vars(signal).items() if name != "SIGHUP"})
    monkeypatch.setitem(sys.modules, "signal", fewer)
    result = runpy.run_path(concurrency.__file__)["ENDING"]
    assert set(result) == {signal.SIGINT, signal.SIGTERM}


# --- command line ----------------------------------------------------------------------------------------------------


def command(file: Path, epochs: int = 4) -> list[str]:
    options = ["-b", "cpu", "-e", str(epochs), "-s", str(file)]
    return [sys.executable, "-m", "neonlite.cli", "train", "digits", *options]


STEPS_PER_EPOCH = 46  # of batches of 32
WAITING = """
import sys
from neonlite import cli
from neonlite.models import Model
train_step, steps = Model.train_step, []
def train_step_or_wait(*args):
    steps.append(1)
    if len(steps) == 60:
        print("in a step", flush=True)
        sys.stdin.readline()
    return train_step(*args)
Model.train_step = train_step_or_wait
sys.exit(cli.main())
"""


def train_and_signal(file: Path, number: int, **more: Any) -> tuple[int, str]:
    """Send a signal to a training within a step of its second epoch; return its exit status and its errors."""
    line = [sys.executable, "-c", WAITING, *command(file)[3:]]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(line, text=True, **pipes, **more)
    assert "in a step\n" in iter(process.stdout.readline, "")
    process.send_signal(number)
    err = process.communicate("go on\n")[1]
    return process.returncode, err


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the checkpoint of an uninterrupted training."""
    file = tmp_path_factory.mktemp("straight") / "m"
    subprocess.run(command(file), check=True, capture_output=True)
    return file.read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("name", ["SIGINT", *NAMES])
def test_a_training_ended_by_a_signal_saves_prints_how_to_resume_and_resumes_bit_identically(name, tmp_path, straight):
    file, number = tmp_path / "m", getattr(signal, name)
    returncode, err = train_and_signal(file, number)
    assert returncode == 128 + number
    assert f"to resume: neonlite train digits --resume {file}\n" in err
    assert ("\ninterrupted" in err) == (name == "SIGINT")
    assert "Traceback" not in err
    training = read_checkpoint(file)[0]["training"]
    assert (training["epoch_index"], training["minibatch_index"]) == (1, 60 - STEPS_PER_EPOCH)
    subprocess.run([*command(file)[:7], "--resume", str(file)], check=True, capture_output=True)
    assert file.read_bytes() == straight


def test_a_training_whose_terminal_is_closed_saves_and_ends(tmp_path):
    import fcntl
    import termios

    file = tmp_path / "m"
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        command(file, epochs=1000),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    output = b""
    while b" 2/1000 [" not in output:  # the first epoch is complete
        output += os.read(ours, 4096)
    os.close(ours)
    assert process.wait(300) == 128 + signal.SIGHUP
    assert Model(file).epoch_index >= 1


@pytest.mark.long
def test_a_training_under_nohup_continues_without_its_terminal(tmp_path, straight):
    file = tmp_path / "m"
    ignore = functools.partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    assert train_and_signal(file, signal.SIGHUP, preexec_fn=ignore)[0] == 0
    assert file.read_bytes() == straight
