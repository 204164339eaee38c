"""Sizes of convolution and pooling, and layer objects.

Tests ``neonlite/backend/primitives/geometry.py`` and ``neonlite/backend/primitives/geometry.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import textbook

from neonlite import Backend

# --- sizes and layer objects -----------------------------------------------------------------------------------------


def test_output_dim_counts_windows(be: Backend) -> None:
    assert [be.output_dim(*x) for x in ((28, 5, 0, 1), (7, 3, 0, 2), (5, 5, 0, 3), (1, 1, 0, 7))] == [24, 3, 1, 1]
    assert be.output_dim(10, 3, 2, 1, dilation=2) == 10
    assert be.output_dim(10, 3, 2, 1, False, 2) == 10
    assert be.output_dim(8, 3, 0, 2, pooling=True) == 3
    assert be.output_dim(8, 3, 1, 2, pooling=True) == 4
    be.set_caffe_compat()
    assert be.check_caffe_compat()
    assert be.output_dim(8, 3, 0, 2, pooling=True) == 4
    assert be.output_dim(8, 3, 1, 2, pooling=True) == 5
    assert be.output_dim(8, 3, 1, 2) == 4  # poolings alone
    assert be.output_dim(X=np.int64(8), S=3, padding=1, strides=3, pooling=True) == 3  # the 4th would begin at 8


def test_output_dim_is_the_textbooks_everywhere(cpu: Backend) -> None:
    for X, S, padding, strides, dilation in np.ndindex(9, 5, 4, 5, 4):
        each = X + 1, S + 1, padding, strides + 1
        reach = (dilation + 1) * S + 1
        found = [len(textbook.starts(each[0], reach, padding, each[3], caffe)) for caffe in (False, True)]
        if reach <= each[0] + 2 * padding:
            assert cpu.output_dim(*each, dilation=dilation + 1) == found[0], each
            if padding < reach:
                cpu.compat_mode = "caffe"
                assert cpu.output_dim(*each, pooling=True, dilation=dilation + 1) == found[1], each
                cpu.compat_mode = None


def attributes(layer: Any, names: str) -> list[Any]:
    return [getattr(layer, name) for name in names.split()]


SIZES = "dimI dimO sizeI sizeO dimI2 dimO2 nOut NCK DHW MPQ padding strides"


def test_a_layer_object_of_convolution_has_its_sizes(be: Backend) -> None:
    layer = be.conv_layer("float32", 2, 3, 4, 5, 6, 7, 1, 2, 3, 0, 1, 2, 3, 2, 1, dil_d=2, dil_h=3, dil_w=1)
    assert attributes(layer, SIZES) == [
        *((3, 5, 6, 7, 2), (4, 2, 3, 9, 2), 1260, 432, (630, 2), (216, 2), 216),
        *((2, 3, 4), (5, 6, 7), (2, 3, 9), (0, 1, 2), (3, 2, 1)),
    ]
    assert attributes(layer, "N C K D H W M P Q T R S") == [2, 3, 4, 5, 6, 7, 2, 3, 9, 1, 2, 3]
    assert attributes(layer, "TRS dilation dimF dimF2 sizeF") == [(1, 2, 3), (2, 3, 1), (3, 1, 2, 3, 4), (18, 4), 72]
    assert attributes(layer, "dtype backend relu bsum") == ["float32", be, False, False]
    assert str(layer.dimI) in repr(layer)


def test_a_layer_object_of_deconvolution_has_the_image_that_it_gives_as_dimI(be: Backend) -> None:
    layer = be.deconv_layer(
        "float64", 2, 3, 4, P=4, Q=5, R=3, S=2, pad_h=1, pad_w=0, str_h=2, str_w=3, M=2, T=2, str_d=2, dil_h=2
    )
    assert attributes(layer, SIZES) == [
        *((3, 4, 9, 14, 2), (4, 2, 4, 5, 2), 3024, 320, (1512, 2), (160, 2), 160),
        *((2, 3, 4), (4, 9, 14), (2, 4, 5), (0, 1, 0), (2, 2, 3)),
    ]
    assert attributes(layer, "TRS dilation dimF dimF2 sizeF") == [(2, 3, 2), (1, 2, 1), (3, 2, 3, 2, 4), (36, 4), 144]


def test_a_layer_object_of_pooling_has_its_sizes(be: Backend) -> None:
    layer = be.pool_layer("float32", "avg", 2, 5, 4, 6, 7, 3, 2, 2, 3, 1, 0, 1, 1, 2, 2, 1, 3)
    assert attributes(layer, SIZES) == [
        *((5, 4, 6, 7, 2), (3, 2, 7, 3, 2), 1680, 252, (840, 2), (126, 2), 126),
        *((2, 5, 3), (4, 6, 7), (2, 7, 3), (1, 0, 1, 1), (2, 2, 1, 3)),
    ]
    assert attributes(layer, "op JTRS J T R S N C K D H W M P Q") == [
        *("avg", (3, 2, 2, 3), 3, 2, 2, 3),
        *(2, 5, 3, 4, 6, 7, 2, 7, 3),
    ]
    named = be.pool_layer("float32", "avg", 2, 5, 4, 6, 7, 3, 2, 2, 3, pad_c=1, str_c=2, pad_h=1, pad_w=1, str_h=1)
    assert (named.padding, named.strides) == ((1, 0, 1, 1), (2, 2, 1, 3))  # strides are the window's unless given


def test_a_layer_object_of_normalization_has_images_of_one_size(be: Backend) -> None:
    layer = be.lrn_layer("float32", N=2, C=5, D=1, H=3, W=4, J=3)
    assert attributes(layer, "J dimI dimO dimI2 sizeO nOut NCK") == [
        *(3, (5, 1, 3, 4, 2), (5, 1, 3, 4, 2), (60, 2), 120, 60, (2, 5, 5)),
    ]


def test_numpy_integers_are_sizes_as_well(be: Backend) -> None:
    n = np.int64
    conv = be.conv_layer("float32", n(1), n(2), n(3), 1, n(4), n(5), 1, n(2), 2, 0, n(1), 0, 1, n(2), 1, n(1), n(1), 1)
    pool = be.pool_layer("float32", "max", n(1), n(2), n(1), n(4), 4, S=n(2), R=n(2), str_h=n(2), pad_w=n(1))
    deconv = be.deconv_layer("float32", n(1), n(2), n(3), n(4), n(5), n(2), 2, 0, n(1), 0, 1, n(2), 1)
    lrn = be.lrn_layer("float32", n(1), n(2), n(1), n(4), n(4), n(3))
    for layer in (conv, pool, deconv, lrn):
        assert {type(x) for x in (*layer.dimI, *layer.dimO, *layer.padding, *layer.strides)} == {int}
    O = be.fprop_pool(pool, be.ones(pool.dimI), be.zeros(pool.dimO), places := be.zeros(pool.dimO, "uint8"))
    assert (be.bprop_pool(pool, O, be.zeros(pool.dimI), places).get() <= 1).all()


# --- the caffe mode ------------------------------------------------------------------------------------------------


def test_the_caffe_mode_belongs_to_one_backend_and_changes_the_sizes_of_pooling(be):
    other = Backend("cpu", compat_mode="caffe")
    assert (be.check_caffe_compat(), other.check_caffe_compat()) == (False, True)
    sizes = [be.output_dim(8, 3, padding, 2, pooling=True) for padding in (0, 1)]
    be.set_caffe_compat()
    assert be.check_caffe_compat() is True
    assert be.compat_mode == "caffe"
    assert (sizes, [be.output_dim(8, 3, padding, 2, pooling=True) for padding in (0, 1)]) == ([3, 4], [4, 5])
    assert Backend("cpu").check_caffe_compat() is False
    with pytest.raises(ValueError, match="expected one of None, 'caffe' for compat_mode, got 'torch'"):
        Backend("cpu", compat_mode="torch")
