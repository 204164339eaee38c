"""Activation functions, cost functions and metrics."""

from typing import TYPE_CHECKING

# fmt: off
# ruff: isort: off
from neonlite.backend.objects import declare_builtin
from neonlite.name_hints import module_getattr
from neonlite.transforms.functions import (
    GELU, CrossEntropyBinary, CrossEntropyMulti, Explin, GANCost, Identity, Logistic, MeanSquared, Normalizer,
    PixelwiseSoftmax, Rectlin, Rectlinclip, Sign, SiLU, SmoothL1Loss, Softmax, SquareHingeLoss, SumSquared, Tanh,
)
from neonlite.transforms.metrics import (
    F1, R2, ROCAUC, Accuracy, BitsPerCharacter, BLEUScore, ConfusionMatrix, CostMetric, EditDistance, LogLoss,
    MeanAbsoluteError, MeanSquaredError, Misclassification, MultiMetric, ObjectDetection, Perplexity, PrecisionRecall,
    SequenceAccuracy, TopKMisclassification, get_metric,
)
from neonlite.transforms.transform import ColorNoise, Cost, Metric, Transform

__all__ = [
    "F1", "GELU", "R2", "ROCAUC", "Accuracy", "BLEUScore", "BitsPerCharacter", "ColorNoise", "ConfusionMatrix", "Cost",
    "CostMetric", "CrossEntropyBinary", "CrossEntropyMulti", "EditDistance", "Explin", "GANCost", "Identity", "LogLoss",
    "Logistic", "MeanAbsoluteError", "MeanSquared", "MeanSquaredError", "Metric", "Misclassification", "MultiMetric",
    "Normalizer", "ObjectDetection", "Perplexity", "PixelwiseSoftmax", "PrecisionRecall", "Rectlin", "Rectlinclip",
    "SequenceAccuracy", "SiLU", "Sign", "SmoothL1Loss", "Softmax", "SquareHingeLoss", "SumSquared", "Tanh",
    "TopKMisclassification", "Transform", "get_metric",
]
# fmt: on

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__)

declare_builtin(globals().values())
