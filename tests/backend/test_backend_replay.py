"""Blocks of repeated work."""

from __future__ import annotations

import numpy as np

from neonlite import Block

# --- several backends -----------------------------------------------------------------------------------------------


def test_blocks_mark_repeated_work_and_change_nothing(be):
    assert [Block.epoch, Block.minibatch, Block.fprop, Block.bprop, Block.update] == [0, 1, 2, 3, 4]
    x = be.ones((2, 2))
    be.begin(Block.epoch, 0)
    be.begin(Block.minibatch, 7)
    x[:] = x + 1
    be.end(block=Block.minibatch, identifier=7)
    be.end(Block.epoch, 0)
    np.testing.assert_array_equal(x.get(), np.full((2, 2), 2))
