"""Sequence models reach their expected accuracy: a short run of benchmarks/sequences.py."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import sequences

from neonlite.data.datasets import load_corpus

pytestmark = pytest.mark.slow


def words(text: str) -> list[str]:
    return re.findall("[A-Za-z]{3,}", text)


def test_an_lstm_learns_a_text_and_generates_its_words():
    """neonlite train text --model lstm --backend cpu --seed 1 --epochs 2"""
    result = sequences.text("lstm", seed=1, epochs=2)
    assert result["value"] < 2.2  # 2.03; after one epoch 2.24
    generated, known = words(result["sample"]), set(words(load_corpus().texts["train"]))
    assert len(generated) > 15
    assert sum(word in known for word in generated) > 0.5 * len(generated)  # for random letters: 0.01


def test_a_transformer_learns_a_text():
    """neonlite train text --model transformer --backend cpu --seed 1 --epochs 1"""
    result = sequences.text("transformer", seed=1, epochs=1)
    assert result["value"] < 2.6  # 2.48; after two epochs 2.25
    assert result["overlapping"] < result["value"]


def test_an_lstm_learns_the_copy_task():
    assert sequences.copy("lstm", seed=1, epochs=4, longest=3)["value"] > 99


def test_an_encoder_and_a_decoder_learn_to_reverse_digits():
    assert sequences.reverse("lstm", seed=1, epochs=4, length=4)["value"] > 99
