"""Checkpoints of before the encoders had their own package, with the predictions of then as metadata."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import neonlite as nl
from neonlite.models import Model

CHECKPOINTS = sorted((Path(__file__).parent / "checkpoints").glob("*.prm"))


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: path.stem)
def test_a_checkpoint_that_names_the_former_modules_predicts_as_before(path):
    nl.gen_backend("cpu", batch_size=4)
    model = Model(path)
    saved = model.metadata
    assert b"neonlite.data.input_encoders" in path.read_bytes()
    np.testing.assert_allclose(model.predict(saved["X"]), saved["predictions"], rtol=1e-5)
    assert (None if model.classes is None else [*map(str, model.classes)]) == saved["classes"]


def test_each_kind_of_encoder_has_a_checkpoint():
    text = b"".join(path.read_bytes() for path in CHECKPOINTS).decode(errors="ignore")
    for name in ("input_encoders.Array", "input_encoders.Table", "input_encoders.Text"):
        assert f"neonlite.data.{name}Encoder" in text
    for name in ("Class", "Indicator", "Number"):
        assert f"neonlite.data.target_encoders.{name}Encoder" in text
