"""Layers: what a network is made of."""

from neonlite.layers.activation import Activation, Dropout
from neonlite.layers.branch import BranchNode, SingleOutputTree, SkipNode, Tree
from neonlite.layers.compound import Affine, CompoundLayer, Conv, Deconv
from neonlite.layers.container import GenerativeAdversarial, LayerContainer, Sequential
from neonlite.layers.convolution import Convolution, Convolution_bias, Deconvolution
from neonlite.layers.cost import GeneralizedCost, GeneralizedCostMask, GeneralizedGANCost, Multicost
from neonlite.layers.embedding import LookupTable
from neonlite.layers.layer import Layer
from neonlite.layers.linear import Bias, Linear
from neonlite.layers.merge import MergeBroadcast, MergeMultistream, MergeSum
from neonlite.layers.norm import BatchNorm, BatchNormAutodiff, LayerNorm, ShiftBatchNorm
from neonlite.layers.parameter import ParameterLayer
from neonlite.layers.pooling import LRN, Pooling
from neonlite.layers.shape import DataTransform, Reshape

__all__ = [
    "LRN",
    "Activation",
    "Affine",
    "BatchNorm",
    "BatchNormAutodiff",
    "Bias",
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
    "Linear",
    "LookupTable",
    "MergeBroadcast",
    "MergeMultistream",
    "MergeSum",
    "Multicost",
    "ParameterLayer",
    "Pooling",
    "Reshape",
    "Sequential",
    "ShiftBatchNorm",
    "SingleOutputTree",
    "SkipNode",
    "Tree",
]
