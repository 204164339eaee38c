"""Layers: what a network is made of."""

from neonlite.layers.activation import Activation, Dropout
from neonlite.layers.binary import BinaryLinear
from neonlite.layers.branch import BranchNode, SingleOutputTree, SkipNode, Tree
from neonlite.layers.check import check_layer
from neonlite.layers.compound import Affine, BinaryAffine, CompoundLayer, Conv, Deconv
from neonlite.layers.container import GenerativeAdversarial, LayerContainer, Sequential
from neonlite.layers.convolution import Convolution, Convolution_bias, Deconvolution
from neonlite.layers.cost import GeneralizedCost, GeneralizedCostMask, GeneralizedGANCost, Multicost
from neonlite.layers.embedding import LookupTable
from neonlite.layers.layer import Layer
from neonlite.layers.linear import Bias, Linear
from neonlite.layers.merge import MergeBroadcast, MergeMultistream, MergeSum
from neonlite.layers.norm import BatchNorm, BatchNormAutodiff, LayerNorm, ShiftBatchNorm
from neonlite.layers.parameter import Learned, ParameterLayer, Slot
from neonlite.layers.pooling import LRN, Pooling
from neonlite.layers.regions import RoiPooling
from neonlite.layers.shape import DataTransform, Reshape

__all__ = [
    "LRN",
    "Activation",
    "Affine",
    "BatchNorm",
    "BatchNormAutodiff",
    "Bias",
    "BinaryAffine",
    "BinaryLinear",
    "BranchNode",
    "CompoundLayer",
    "Conv",
    "Convolution",
    "Convolution_bias",
    "DataTransform",
    "Deconv",
    "Deconvolution",
    "Dropout",
    "GeneralizedCost",
    "GeneralizedCostMask",
    "GeneralizedGANCost",
    "GenerativeAdversarial",
    "Layer",
    "LayerContainer",
    "LayerNorm",
    "Learned",
    "Linear",
    "LookupTable",
    "MergeBroadcast",
    "MergeMultistream",
    "MergeSum",
    "Multicost",
    "ParameterLayer",
    "Pooling",
    "Reshape",
    "RoiPooling",
    "Sequential",
    "ShiftBatchNorm",
    "SingleOutputTree",
    "SkipNode",
    "Slot",
    "Tree",
    "check_layer",
]
