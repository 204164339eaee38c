"""Fixtures of the tests of checkpoints: the bytes of a valid file, and a model to load files into."""

from __future__ import annotations

import pytest
from helpers.checkpoint_files import trained
from helpers.small_models import data, start

from neonlite.models import Model
from neonlite.optimizers import GradientDescentMomentum
from neonlite.transforms import CrossEntropyMulti


@pytest.fixture(scope="module")
def valid_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bytes of a valid file."""
    path = tmp_path_factory.mktemp("valid_file") / "m"
    trained().save_params(path)
    return path.read_bytes()


@pytest.fixture
def model(valid_file: bytes) -> Model:
    """Return a model to load files into."""
    model = start()
    model.fit(data(), CrossEntropyMulti(), GradientDescentMomentum(0.1, 0.5), 2)
    return model
