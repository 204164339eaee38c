"""Sequences are learned as well as they should: benchmarks/sequences.py in short."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import sequences

from neonlite.data.corpora import corpus

pytestmark = pytest.mark.slow


def words(text: str) -> list[str]:
    return re.findall("[A-Za-z]{3,}", text)


def test_an_lstm_reads_a_text_and_writes_its_words():
    """neonlite train text --model lstm --backend cpu --seed 1 --epochs 2"""
    found = sequences.text("lstm", seed=1, epochs=2)
    assert found["value"] < 2.2  # 2.03; after one epoch 2.24
    written, known = words(found["sample"]), set(words(corpus().texts["train"]))
    assert len(written) > 15
    assert sum(word in known for word in written) > 0.5 * len(written)  # of letters drawn by themselves: 0.01


def test_a_transformer_reads_a_text():
    """neonlite train text --model transformer --backend cpu --seed 1 --epochs 2"""
    found = sequences.text("transformer", seed=1, epochs=2)
    assert found["value"] < 2.4  # 2.25; after one epoch 2.48
    assert found["overlapping"] < found["value"]


def test_bits_are_said_again():
    assert sequences.copy("lstm", seed=1, epochs=4, longest=3)["value"] > 99


def test_digits_are_said_backwards():
    assert sequences.reverse("lstm", seed=1, epochs=4, length=4)["value"] > 99
