"""Neural-network layers, containers and network costs."""

from typing import TYPE_CHECKING

# fmt: off
# ruff: isort: off
from neonlite.backend.objects import declare_builtin
from neonlite.layers.activation import Activation, DataTransform, Dropout, Reshape
from neonlite.layers.attention import MultiHeadAttention, TransformerBlock, attention
from neonlite.layers.check import check_layer
from neonlite.layers.container import GenerativeAdversarial, LayerContainer, Sequential
from neonlite.layers.cost import GeneralizedCost, GeneralizedCostMask, GeneralizedGANCost, Multicost
from neonlite.layers.images import LRN, Convolution, Convolution_bias, Deconvolution, Pooling, RoiPooling
from neonlite.layers.layer import Layer
from neonlite.layers.linear import (
    Affine, Bias, BinaryAffine, BinaryLinear, CompoundLayer, Conv, Deconv, Linear, LookupTable, PositionalEncoding,
    PositionEmbedding, QuantizedConvolution, QuantizedLinear,
)
from neonlite.layers.merge import (
    BranchNode, MergeBroadcast, MergeMultistream, MergeSum, SingleOutputTree, SkipNode, Tree,
)
from neonlite.layers.norm import BatchNorm, BatchNormAutodiff, LayerNorm, ShiftBatchNorm
from neonlite.layers.parameter import ParameterLayer, ParameterSpec, TensorAttribute
from neonlite.layers.recurrent import (
    GRU, LSTM, BiBNRNN, BiLSTM, BiRNN, BiSum, DeepBiLSTM, DeepBiRNN, Recurrent, RecurrentLast, RecurrentMean,
    RecurrentSum, get_steps,
)
from neonlite.layers.seq2seq import Decoder, Encoder, Seq2Seq, SkipThought
from neonlite.name_hints import module_getattr

__all__ = [
    "GRU", "LRN", "LSTM", "Activation", "Affine", "BatchNorm", "BatchNormAutodiff", "BiBNRNN", "BiLSTM", "BiRNN",
    "BiSum", "Bias", "BinaryAffine", "BinaryLinear", "BranchNode", "CompoundLayer", "Conv", "Convolution",
    "Convolution_bias", "DataTransform", "Decoder", "Deconv", "Deconvolution", "DeepBiLSTM", "DeepBiRNN", "Dropout",
    "Encoder", "GeneralizedCost", "GeneralizedCostMask", "GeneralizedGANCost", "GenerativeAdversarial", "Layer",
    "LayerContainer", "LayerNorm", "Linear", "LookupTable", "MergeBroadcast", "MergeMultistream", "MergeSum",
    "MultiHeadAttention", "Multicost", "ParameterLayer", "ParameterSpec", "Pooling", "PositionEmbedding",
    "PositionalEncoding", "QuantizedConvolution", "QuantizedLinear", "Recurrent", "RecurrentLast", "RecurrentMean",
    "RecurrentSum", "Reshape", "RoiPooling", "Seq2Seq", "Sequential", "ShiftBatchNorm", "SingleOutputTree", "SkipNode",
    "SkipThought", "TensorAttribute", "TransformerBlock", "Tree", "attention", "check_layer", "get_steps",
]
# fmt: on

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__)

declare_builtin(globals().values())
