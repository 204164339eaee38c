"""Programs that run on every simulated system; see ``systems.py``."""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import multiprocessing.process
import os
import pickle
import pkgutil
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neonlite as nl
from neonlite import cleanup_backend, files, gen_backend
from neonlite.backend.runtimes import BUILTIN_RUNTIMES
from neonlite.callbacks import Callback, Callbacks, ProgressBarCallback
from neonlite.cli import main
from neonlite.distributed import launch
from neonlite.files import write_atomic
from neonlite.layers import Affine, Conv, Dropout, Pooling
from neonlite.models import Model
from neonlite.optimizers import Adam

TESTS = Path(__file__).parents[1]
NEEDS_PACKAGE = "neonlite.sklearn", *(f"neonlite.backend.runtimes.{name}" for name in ("mkl", "strict", "torch"))
PROGRAMS: dict[str, Callable[[str], None]] = {}
SPECIAL_NAME = "C:\\data\\né Ω 数.neon"  # a drive, backslashes, and letters that code pages lack
ENCODINGS = ("utf-8", "cp1252", "cp437", "ascii")


def program(function: Callable[[str], None]) -> Callable[[str], None]:
    """Register a program, which gets the name of the system and raises an error if it fails."""
    PROGRAMS[function.__name__] = function
    return function


def new_backend(**options: Any) -> nl.Backend:
    """Return a new backend."""
    cleanup_backend()
    return gen_backend("cpu", rng_seed=1, **options)


def classes(n: int = 40) -> tuple[Any, Any]:
    """Return points of two classes, separated by the sign of the first feature."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(int)


def small_model() -> Model:
    """Return a network for two classes."""
    new_backend(batch_size=8)
    return Model([Affine(8, activation="relu", name="hidden"), Dropout(0.9), Affine(2, activation="softmax")])


class Stream(io.TextIOWrapper):
    """A text stream of an encoding, which may be a terminal."""

    def __init__(self, encoding: str, is_terminal: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    def text(self) -> str:
        """Return what was written."""
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)  # type: ignore[attr-defined]


@contextlib.contextmanager
def standard_streams(encoding: str, is_terminal: bool = False) -> Iterator[tuple[Stream, Stream]]:
    """Replace standard output and standard error by streams of an encoding; that of errors escapes, as in Python."""
    before = sys.stdout, sys.stderr
    streams = Stream(encoding, is_terminal), Stream(encoding, is_terminal)
    streams[1].reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = streams
    try:
        yield streams
    finally:
        sys.stdout, sys.stderr = before


def run(*arguments: object, encoding: str = "cp1252", status: int = 0, is_terminal: bool = False) -> str:
    """Run a command line, check its exit status, and return what it printed."""
    with standard_streams(encoding, is_terminal) as (out, err):
        found = main([str(x) for x in arguments])
        texts = out.text(), err.text()
    assert found == status, texts
    return texts[0] if status == 0 else texts[1]


# --- the core --------------------------------------------------------------------------------------------------------


@program
def every_module_is_imported(system: str) -> None:
    for module in pkgutil.walk_packages(nl.__path__, "neonlite."):
        if not module.name.startswith(NEEDS_PACKAGE) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)


@program
def the_tour_of_op_trees(system: str) -> None:
    tour = runpy.run_path(str(TESTS / "test_tour.py"))
    tests = [tour[name] for name in tour if name.startswith("test_") and "page" not in name]
    assert len(tests) > 5
    for test in tests:
        test(new_backend())


@program
def products_of_all_sizes(system: str) -> None:
    be = new_backend()
    rng = np.random.default_rng(0)
    for m, k, n in [(1, 1, 1), (3, 5, 2), (1, 700, 1), (64, 64, 64), (256, 256, 256), (300, 400, 500)]:
        for dtype in (np.float32, np.float64):
            a, b = rng.normal(size=(m, k)).astype(dtype), rng.normal(size=(k, n)).astype(dtype)
            x, y, out = be.array(a, dtype=dtype), be.array(b, dtype=dtype), be.empty((m, n), dtype=dtype)
            expected = a.astype(np.float64) @ b.astype(np.float64)
            tolerance = {"rtol": 1e-4, "atol": 1e-3}
            np.testing.assert_allclose((x @ y).get(), expected, **tolerance)
            be.compound_dot(be.array(a.T.copy(), dtype=dtype).T, y, out)
            np.testing.assert_allclose(out.get(), expected, **tolerance)
            out[:] = be.maximum(be.dot(x, y) + 1, 0)
            np.testing.assert_allclose(out.get(), np.maximum(expected + 1, 0), **tolerance)


@program
def large_op_trees_on_several_threads(system: str) -> None:
    be, before = new_backend(), nl.backend.concurrency.get_num_threads()
    nl.backend.concurrency.set_threads(3)
    values = np.linspace(-3, 3, 600_000, dtype=np.float32).reshape(2, -1)
    x = be.array(values)
    np.testing.assert_allclose((1 / (1 + be.exp(-x))).get(), 1 / (1 + np.exp(-values)), rtol=2e-6)
    np.testing.assert_allclose(be.mean(x * x, axis=1).get()[:, 0], np.mean(values.astype(float) ** 2, 1), rtol=1e-5)
    nl.backend.concurrency.set_threads(before)


@program
def deep_trees_in_a_thread(system: str) -> None:
    be, found = new_backend(), []

    def evaluate() -> None:
        tree = x = be.ones((2, 2))
        for _ in range(300):
            tree = tree * 0.5 + x
        gradient = nl.Autodiff(tree, be).get_grad_op_tree(x)
        found.extend([tree.get().max(), gradient.get().max(), len(tree.pp())])

    thread = threading.Thread(target=evaluate)
    thread.start()
    thread.join()
    np.testing.assert_allclose(found[:2], [2, 2], rtol=1e-5)


@program
def gradients_agree_with_finite_differences(system: str) -> None:
    be = new_backend()
    x, w = be.array([[-1.0, 0.5, 2.0]], name="x"), be.array([[0.3], [-0.2], [0.1]], name="w")
    assert be.check_grad(be.log(1 + be.exp(x)) * be.tanh(be.dot(x, w))).ok


@program
def the_primitives_of_images_and_sequences(system: str) -> None:
    be = new_backend(batch_size=2)
    rng = np.random.default_rng(0)
    layer = be.conv_layer("float32", N=2, C=3, K=4, H=6, W=5, R=3, S=3)
    images, filters = rng.normal(size=(3, 6, 5, 2)), rng.normal(size=(3, 3, 3, 4))
    out = be.empty(layer.dimO2)
    be.fprop_conv(layer, be.array(images.reshape(-1, 2)), be.array(filters.reshape(-1, 4)), out)
    expected = np.zeros((4, 4, 3, 2))
    for p in range(4):
        for q in range(3):
            expected[:, p, q] = np.tensordot(filters, images[:, p : p + 3, q : q + 3], ([0, 1, 2], [0, 1, 2]))
    np.testing.assert_allclose(out.get().reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)
    X, y = rng.normal(size=(16, 1, 8, 8)).astype(np.float32), np.arange(16) % 2
    model = Model([Conv((3, 3, 4), activation="relu"), Pooling(2), Affine(2, activation="softmax")])
    model.fit(X, y, epochs=1, progress_bar=False)
    assert model.predict(X).shape == (16, 2)


@program
def what_is_installed(system: str) -> None:
    rows = {row.name: row for row in nl.backend.info()}
    assert rows.keys() >= BUILTIN_RUNTIMES.keys()
    assert rows["cpu"].is_usable
    assert not rows["mkl"].is_usable
    for name in ("cpu", "mkl"):
        assert "pip install" not in rows[name].details
        assert "packages for Linux with glibc on x86-64" in rows[name].details
    assert "cpu" in run("info", encoding="ascii")


# --- models and files ------------------------------------------------------------------------------------------------


@program
def fit_predict_save_and_load(system: str) -> None:
    X, y = classes()
    model = small_model()
    model.fit(X, y, epochs=30, optimizer=Adam(0.05), progress_bar=False)
    expected = model.predict(X)
    assert np.mean(expected.argmax(axis=1) == y) > 0.9
    model.save_params(SPECIAL_NAME)
    model.save_params(SPECIAL_NAME)  # replaces it
    assert os.listdir() == [SPECIAL_NAME]
    again = Model(SPECIAL_NAME)
    np.testing.assert_array_equal(again.predict(X), expected)
    again.fit(X, y, epochs=31, progress_bar=False)
    again.save_params(SPECIAL_NAME)  # also while the model that was loaded from it exists
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(again)).predict(X), again.predict(X))
    assert os.listdir() == [SPECIAL_NAME]


@program
def checkpoints_of_each_epoch(system: str) -> None:
    X, y = classes()
    model = small_model()
    left = Path(f"m.neon.{'0' * 16}.part")
    left.write_bytes(b"of a process that was killed")
    model.fit(X, y, epochs=3, progress_bar=False, callbacks=[nl.callbacks.SerializeModelCallback("m.neon", history=2)])
    assert sorted(os.listdir()) == ["m.neon", "m_2.neon", "m_3.neon"]


@program
def a_file_that_is_open_elsewhere(system: str) -> None:
    path = Path("m")
    path.write_bytes(b"old")
    opened = path.open("rb")
    if system != "windows":
        write_atomic(path, b"new")
        assert path.read_bytes() == b"new"
        opened.close()
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "MAX_REPLACE_SECONDS", 0.2)
        with pytest.raises(PermissionError, match="m: expected a file that no other program has open"):
            write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir() == ["m"]
    threading.Timer(0.2, opened.close).start()  # as a virus scanner
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir() == ["m"]


@program
def a_temporary_file_that_another_process_removes(system: str) -> None:
    replace, removed = os.replace, []

    def remove_once(part: Any, file: Any) -> None:
        if system == "windows" and not removed:  # elsewhere it is locked
            removed.append(part)
            os.unlink(part)
        replace(part, file)

    os.replace = remove_once
    try:
        write_atomic("m", b"new")
    finally:
        os.replace = replace
    assert Path("m").read_bytes() == b"new"
    assert os.listdir() == ["m"]


@program
def temporary_files_of_other_processes(system: str) -> None:
    other = Path(f"m.{'f' * 16}.part")
    with other.open("wb") as opened:
        if system != "windows":
            import fcntl

            fcntl.flock(opened, fcntl.LOCK_EX)
        write_atomic("m", b"new")
        assert other.exists()
    write_atomic("m", b"newer")
    assert os.listdir() == ["m"]


@program
def interrupted_training(system: str) -> None:
    X, y = classes()

    class Interrupt(Callback):
        def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
            if (epoch, minibatch) == (1, 1):
                signal.raise_signal(signal.SIGINT)

    model = small_model()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in a shell's background jobs
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y, epochs=3, batch_size=8, progress_bar=False, callbacks=[Interrupt()])
    assert (model.epoch_index, model.minibatch_index) == (1, 2)
    model.fit(X, y, epochs=3, batch_size=8, progress_bar=False)
    assert model.epoch_index > 1


@program
def no_process_is_started(system: str) -> None:
    def refuse(self: Any) -> None:
        raise AssertionError("a script without a main guard would start itself again")

    start, multiprocessing.process.BaseProcess.start = multiprocessing.process.BaseProcess.start, refuse
    try:
        X, y = classes()
        model = small_model()
        train = nl.data.ArrayIterator(X, y, 2)
        model.fit(train, "cross_entropy", Adam(), num_epochs=1, callbacks=Callbacks(model, progress_bar=False))
    finally:
        multiprocessing.process.BaseProcess.start = start


@program
def several_processes_are_refused(system: str) -> None:
    refusal = "expected Linux or macOS, got Windows" if system == "windows" else r'pip install "neonlite\[mpi\]"'
    with pytest.raises((NotImplementedError, ImportError), match=f"several processes.*{refusal}"):
        launch(print, 2)
    assert "neonlite: several processes" in run("train", "iris", "-n", 2, status=1)


# --- the command line, and what is printed ---------------------------------------------------------------------------


def write_rows(path: str) -> None:
    """Write a table with letters that code pages lack, in column names and values."""
    X, y = classes(60)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["größe", "Ω", "数", "farbe→"])
        writer.writerows([*map(str, row), ("grün █", "→ 红")[label]] for row, label in zip(X, y, strict=True))


@program
def the_command_line_on_every_code_page(system: str) -> None:
    data, model, output = "C:\\data\\rows Ω.csv", SPECIAL_NAME, "C:\\out.csv"
    write_rows(data)
    for encoding in ENCODINGS:
        options = ("--target", "farbe→", "-b", "cpu", "-e", 3, "--save", model)
        text = run("train", data, *options, encoding=encoding, is_terminal=encoding != "cp1252")
        assert "accuracy" in text, text
        assert "accuracy" in run("eval", model, data, encoding=encoding)
        assert "layer" in run("draw", model, encoding=encoding)
        run("predict", model, data, "-o", output, encoding=encoding)
        lines = Path(output).read_text(encoding="utf-8").split("\n")
        assert lines[0] == "farbe→"
        assert set(lines[1:]) <= {"grün █", "→ 红", ""}
        run("predict", model, data, encoding=encoding, is_terminal=True)
        error = run("predict", model, "C:\\nö数.csv", encoding=encoding, status=1)
        assert "C:\\n" in error
    assert sorted(os.listdir()) == sorted([data, model, output])


@program
def the_progress_bar_on_every_code_page(system: str) -> None:
    X, y = classes()

    class Name(Callback):
        def on_epoch_end(self, epoch: int) -> None:
            self.callbacks.history.record("größe → 数", epoch + 1, 1)

    for encoding in ENCODINGS:
        for is_terminal in (False, True):
            stream, model = Stream(encoding, is_terminal), small_model()
            bar = ProgressBarCallback(file=stream, update_thresh_s=0)
            model.fit(X, y, epochs=1, batch_size=8, progress_bar=False, callbacks=[Name(), bar])
            text = stream.text()
            assert "5/5 batches" in text
            assert ("█" in text) == (encoding == "utf-8"), text


@program
def drawings_on_every_code_page(system: str) -> None:
    model = small_model()
    be = nl.backend.current_backend()
    x = be.array([[1.0, 2.0]], name="x")
    tree = be.exp(x) * 2 + be.exp(x)
    for encoding in ENCODINGS:
        with standard_streams(encoding) as (out, _):
            for text in (tree.draw(), tree.pp(), tree, x, be.plan(tree), tree.step(), model.layers.summary(3), be):
                print(text)
        assert "exp" in out.text()


@program
def the_example_is_printed_on_a_code_page(system: str) -> None:
    with standard_streams("cp1252") as (out, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["logistic.py", "."])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(TESTS.parent / "examples" / "logistic.py"), run_name="__main__")
    assert not end.value.code
    assert "The gradient is correct." in out.text()
