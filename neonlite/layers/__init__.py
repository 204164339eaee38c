"""Neural-network layers, containers and network costs."""

from typing import TYPE_CHECKING

from neonlite.backend.builtin_classes import declare_builtin
from neonlite.layers.activation import Activation, Dropout
from neonlite.layers.attention import (
    MultiHeadAttention,
    PositionalEncoding,
    PositionEmbedding,
    TransformerBlock,
    attention,
)
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
from neonlite.layers.parameter import ParameterLayer, ParameterSpec, TensorAttribute
from neonlite.layers.pooling import LRN, Pooling
from neonlite.layers.recurrent import GRU, LSTM, BiBNRNN, BiLSTM, BiRNN, Recurrent
from neonlite.layers.roi_pooling import RoiPooling
from neonlite.layers.seq2seq import Decoder, Encoder, Seq2Seq
from neonlite.layers.sequence_reduction import (
    BiSum,
    DeepBiLSTM,
    DeepBiRNN,
    RecurrentLast,
    RecurrentMean,
    RecurrentSum,
    get_steps,
)
from neonlite.layers.shape import DataTransform, Reshape
from neonlite.layers.skipthought import SkipThought
from neonlite.name_hints import module_getattr

__all__ = [
    "GRU",
    "LRN",
    "LSTM",
    "Activation",
    "Affine",
    "BatchNorm",
    "BatchNormAutodiff",
    "BiBNRNN",
    "BiLSTM",
    "BiRNN",
    "BiSum",
    "Bias",
    "BinaryAffine",
    "BinaryLinear",
    "BranchNode",
    "CompoundLayer",
    "Conv",
    "Convolution",
    "Convolution_bias",
    "DataTransform",
    "Decoder",
    "Deconv",
    "Deconvolution",
    "DeepBiLSTM",
    "DeepBiRNN",
    "Dropout",
    "Encoder",
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
    "MultiHeadAttention",
    "Multicost",
    "ParameterLayer",
    "ParameterSpec",
    "Pooling",
    "PositionEmbedding",
    "PositionalEncoding",
    "Recurrent",
    "RecurrentLast",
    "RecurrentMean",
    "RecurrentSum",
    "Reshape",
    "RoiPooling",
    "Seq2Seq",
    "Sequential",
    "ShiftBatchNorm",
    "SingleOutputTree",
    "SkipNode",
    "SkipThought",
    "TensorAttribute",
    "TransformerBlock",
    "Tree",
    "attention",
    "check_layer",
    "get_steps",
]

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__)

declare_builtin(globals().values())
