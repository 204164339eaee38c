"""Weights by name (neonlite/layers/weights.py): files that name the former module of a class."""

from __future__ import annotations

import pytest

import neonlite.layers
from neonlite.backend.objects import find_class

MOVED = {  # module of a class in files written before it moved
    "binary": "BinaryLinear",
    "branch": "BranchNode SkipNode Tree SingleOutputTree",
    "roi_pooling": "RoiPooling",
    "sequence_reduction": "RecurrentLast RecurrentMean RecurrentSum BiSum",
    "recurrent": "BiRNN BiLSTM BiBNRNN",
    "shape": "Reshape DataTransform",
    "skipthought": "SkipThought",
    "attention": "PositionalEncoding PositionEmbedding",
}


@pytest.mark.parametrize("module", MOVED)
def test_files_that_name_the_former_module_of_a_class_give_the_class(module):
    for name in MOVED[module].split():
        assert find_class(f"neonlite.layers.{module}.{name}") is getattr(neonlite.layers, name)
