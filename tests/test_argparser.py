"""Tests of NeonArgparser: the options of neon's scripts, and errors."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.argparser import NeonArgparser, add_option, extract_valid_args
from neonlite.backend import current_backend
from neonlite.callbacks import Callbacks
from neonlite.data import PTB, iris
from neonlite.models import Model, zoo
from neonlite.optimizers import Adam
from neonlite.transforms import Accuracy, CrossEntropyMulti


def parsed(line: str, **more):
    return NeonArgparser("A script.", **more).parse_args(line.split())


def test_a_script_like_neons_trains_from_its_command_line(tmp_path):
    parser = NeonArgparser(__doc__, default_overrides={"batch_size": 16, "epochs": 4})
    parser.add_argument("--keep", type=float, default=1.0)
    args = parser.parse_args(["-b", "cpu", "-r", "3", "--no_progress_bar", "--keep", "0.9", "-s", f"{tmp_path / 'i'}"])
    train, valid = iris(args.data_dir).iterators()
    model = Model(zoo.mlp(3, keep=args.keep))
    callbacks = Callbacks(model, eval_set=valid, metric=Accuracy(), **args.callback_args)
    model.fit(train, CrossEntropyMulti(), Adam(), num_epochs=args.epochs, callbacks=callbacks)
    assert model.epoch_index == 4
    assert Model(tmp_path / "i").epoch_index == 4


def test_the_backend_is_created_by_its_options():
    args = parsed("-b cpu -z 64 -r 11 -d f64 --caffe --deterministic")
    be = current_backend()
    assert args.backend == "cpu"
    assert (be.name, be.bsz, be.rng_seed, be.compat_mode, be.deterministic) == ("cpu", 64, 11, "caffe", True)
    assert be.zeros((1, 1)).dtype == np.float64


def test_no_backend_is_created_with_gen_be_false():
    be = gen_backend("cpu")
    args = NeonArgparser().parse_args(["-b", "gpu"], gen_be=False)
    assert current_backend() is be
    assert args.backend == "gpu"


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("", "progress_bar", True),
        ("--no_progress_bar", "progress_bar", False),
        ("--serialize", "serialize", 1),
        ("--serialize 3", "serialize", 3),
        ("-eval 2", "eval_freq", 2),
        ("--eval-freq 2", "eval_freq", 2),
        ("-H 5", "history", 5),
        ("-H 5", "model_file", None),
    ],
)
def test_callback_args_has_the_arguments_of_callbacks(line, name, value):
    args = NeonArgparser().parse_args(line.split(), gen_be=False)
    assert args.callback_args[name] == value


def test_options_of_the_command_line_override_those_of_files(tmp_path):
    file, first = tmp_path / "run.cfg", tmp_path / "first.cfg"
    file.write_text(
        "# of a script\nepochs = 7\nbatch-size: 9\nno_progress_bar = true\ncaffe = false\n[more]\nseed = 4\n"
    )
    first.write_text("epochs = 6\nhistory = 2\n")
    args = parsed(f"-b cpu -c {file} -z 8", default_config_files=[first])
    assert (args.epochs, args.batch_size, args.rng_seed, args.history) == (7, 8, 4, 2)
    assert args.no_progress_bar
    assert not args.caffe


def test_the_command_line_of_the_process_is_the_default(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script.py", "-e", "2", "-b", "cpu"])
    assert NeonArgparser().parse_args().epochs == 2


def test_the_log_is_written_to_a_file(tmp_path):
    parsed(f"-b cpu -v -l {tmp_path / 'run.log'}")
    log = logging.getLogger("neonlite")
    log.info("logged")
    for handler in log.handlers:
        if isinstance(handler, logging.FileHandler):
            handler.close()
            log.removeHandler(handler)
    log.setLevel(logging.NOTSET)
    assert (tmp_path / "run.log").read_text().endswith("logged\n")


@pytest.mark.parametrize(("words", "seen"), [("", 1), ("-v", 2), ("-v -v", 3), ("-vvv", 3)])
def test_the_number_of_v_options_sets_the_log_level(words, seen):
    script = """
import logging
import os
from neonlite.argparser import NeonArgparser
NeonArgparser().parse_args()
log = logging.getLogger("neonlite")
log.warning("warned"), log.info("informed"), log.debug("all")
"""
    command = [sys.executable, "-c", script, "-b", "cpu", *words.split()]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert completed.stderr.split() == ["warned", "informed", "all"][:seen]


@pytest.mark.parametrize("name", ["f16", "f32", "f64"])
def test_the_datatype_is_a_numpy_dtype_and_a_backend_accepts_its_short_name(name):
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[name]
    args = NeonArgparser().parse_args(["-b", "cpu", "-d", name], gen_be=False)
    assert args.datatype in [dtype]
    assert args.datatype != np.int32
    assert gen_backend("cpu", datatype=name).default_dtype == dtype
    assert NeonArgparser(default_overrides={"datatype": dtype}).parse_args([], gen_be=False).datatype == dtype


def test_the_arguments_of_a_script_create_a_second_backend_like_the_first():
    args = parsed("-b cpu -z 16 -r 5 -d f64 --caffe")
    second = gen_backend(**extract_valid_args(args, gen_backend))
    assert second is current_backend()
    attributes = (second.name, second.bsz, second.rng_seed, second.compat_mode, second.default_dtype)
    assert attributes == ("cpu", 16, 5, "caffe", np.float64)


def test_a_backend_that_is_not_named_has_its_name_in_the_arguments():
    args = NeonArgparser().parse_args([])
    assert args.backend == current_backend().name


@pytest.mark.parametrize("gen_be", [False, True])
def test_a_manifest_is_a_dict_and_the_data_folder_is_a_string(tmp_path, gen_be):
    file = tmp_path / "run.cfg"
    file.write_text("manifest = [train:a.csv, val:b.csv]\n")
    parser = NeonArgparser(default_config_files=[file])
    args = parser.parse_args(["-b", "cpu", "--manifest", "test:C:/c.csv", "-w", "some/where"], gen_be=gen_be)
    assert args.manifest == {"train": "a.csv", "val": "b.csv", "test": "C:/c.csv"}
    assert os.path.join(args.data_dir, "x").split("/") == ["some", "where", "x"]
    assert NeonArgparser().parse_args(["-b", "cpu"]).data_dir == ""
    assert parser.parse_args(["-b", "cpu"]).manifest["val"] == "b.csv"


@pytest.mark.parametrize(("words", "rounding"), [([], 0), (["-u"], 1), (["-u", "10"], 1), (["-u", "0"], 0)])
def test_rounding_is_an_argument_of_optimizers(words, rounding):
    args = NeonArgparser().parse_args(["-b", "cpu", *words])
    assert args.rounding == rounding
    assert Adam(stochastic_round=args.rounding).stochastic_round is bool(rounding)


def test_without_a_data_folder_the_usual_locations_are_searched():
    args = parsed("-b cpu -z 8")
    assert len(iris(args.data_dir).train[0]) == 120
    with pytest.raises(FileNotFoundError, match="NEONLITE_DATA"):
        PTB(4, path=args.data_dir)


def test_extract_valid_args_returns_the_parameters_of_a_function():
    def build(batch_size, epochs, width=1): ...

    args = parsed("-b cpu -e 3")
    assert extract_valid_args(args, build) == {"batch_size": 128, "epochs": 3}
    assert extract_valid_args(args, build, startidx=1) == {"epochs": 3}


def test_gen_backend_after_the_parser_with_the_same_arguments_returns_the_backend_of_the_parser():
    args = parsed("-b cpu -z 64 -r 11")
    be = current_backend()
    x = be.ones((2, 2))
    drawn = be.rng.random()
    again = gen_backend(args.backend, args.rng_seed, np.float32, args.batch_size, device_id=args.device_id)
    assert again is gen_backend("cpu", rng_seed=11, batch_size=64) is current_backend() is be
    assert (be.bsz, be.rng_seed, be.rng.random()) == (64, 11, drawn)
    assert (x + 1).get().sum() == 8


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-b gup", "Did you mean 'gpu'?"),
        ("-b cpu -i 7", "7"),
        ("-d f99", "invalid choice: 'f99'"),
        ("-z 0", "expected a positive integer, got 0"),
        ("-c /nowhere", "/nowhere"),
        ("-b cpu -l /nowhere/log", "--log: [Errno 2] No such file or directory: '/nowhere/log'"),
        ("--manifest train", "--manifest: expected KEY:VALUE, got train"),
        ("--nothing 3", "unrecognized arguments: --nothing"),
    ],
)
def test_errors_are_one_line_after_the_usage(capsys, line, words):
    with pytest.raises(SystemExit) as ended:
        parsed(line)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# a comment\n\nnothing = 3", "line 3: expected the name of an option, got 'nothing'."),
        ("batchsize: 3", "line 1: expected the name of an option, got 'batchsize'. Did you mean 'batch_size'?"),
        ("config = other.cfg", "line 1: expected the name of an option, got 'config'."),
        ("help", "line 1: expected the name of an option, got 'help'."),
        ("epochs = 3\n-e = 4", "line 2: expected the name of an option, got '-e'."),
        ("batch_size = 3\nbatch-size = 4", "line 2: expected each option once, got batch-size again"),
        ("epochs = many", "line 1: argument -e/--epochs: expected a positive integer, got many"),
        ("epochs", "line 1: argument -e/--epochs: expected a positive integer, got "),
        ("datatype = f99", "line 1: argument -d/--datatype: invalid choice: 'f99'"),
        ("deterministic = 3", "line 1: --deterministic: expected true or false, got '3'"),
        ("nothing\x1b[2J", r"nothing\x1b[2J"),
        ("a\udcff", "'utf-8' codec can't decode byte 0xff"),
        ("#" * (1 << 20) + "\n", "expected at most 1048576 bytes, got more"),
    ],
)
def test_an_error_in_a_configuration_file_names_the_line(capsys, tmp_path, text, words):
    file = tmp_path / "run.cfg"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(SystemExit) as ended:
        NeonArgparser().parse_args(["-c", str(file)], gen_be=False)
    assert ended.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"error: {file}" in error
    assert words in error


def test_options_of_a_script_may_be_in_a_configuration_file(tmp_path):
    file, second = tmp_path / "run.cfg", tmp_path / "second.cfg"
    file.write_text("\ufeffkeep = -0.5\nserialize = true\nsizes = [64, 32]\n", encoding="utf-8")
    second.write_text("keep: 0.25\n")

    def parse(line):
        parser = NeonArgparser()
        parser.add_argument("--keep", type=float, required=True)
        parser.add_argument("--sizes", type=int, nargs="+", default=[])
        parser.add_argument("dataset")
        args = parser.parse_args(line.split(), gen_be=False)
        return args.keep, args.sizes, args.serialize, args.dataset

    assert parse(f"digits --conf {file}") == (-0.5, [64, 32], 1, "digits")
    assert parse(f"digits -c{file} --config={second} --sizes 8") == (0.25, [8], 1, "digits")
    assert parse(f"--keep 1 --serialize 2 -c {second} digits") == (1, [], 2, "digits")


def test_defaults_of_unknown_options_are_rejected():
    with pytest.raises(ValueError, match="got bacth_size"):
        NeonArgparser(default_overrides={"bacth_size": 3})


def target(rows: int = 3, out_file: str | Path | None = None, quick: bool = False, checked: bool = True) -> None:
    """Have parameters of several kinds."""


@pytest.mark.parametrize(
    ("name", "line", "value"),
    [
        ("rows", "", 3),
        ("rows", "--rows 7", 7),
        ("out_file", "", None),
        ("out_file", "--out-file a/b", Path("a/b")),
        ("out_file", "--out_file a/b", Path("a/b")),
        ("quick", "", False),
        ("quick", "--quick", True),
        ("no_checked", "", False),
        ("no_checked", "--no-checked", True),
    ],
)
def test_the_option_of_a_parameter_has_its_type_and_default(name, line, value):
    parser = argparse.ArgumentParser()
    add_option(parser, name.removeprefix("no_"), of=target)
    assert getattr(parser.parse_args(line.split()), name) == value


def test_an_option_of_a_parameter_that_a_function_does_not_have_is_an_error():
    with pytest.raises(KeyError):
        add_option(argparse.ArgumentParser(), "columns", of=target)
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_option(parser, "rows", of=target)
    with pytest.raises(argparse.ArgumentError, match="expected a positive integer, got 0"):
        parser.parse_args(["--rows", "0"])
