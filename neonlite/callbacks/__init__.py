"""Callbacks: what notes, shows, judges, keeps and ends a training."""

from neonlite.callbacks.callback import Callback, Listener
from neonlite.callbacks.callbacks import Callbacks
from neonlite.callbacks.gan import GANCosts, GANPlot
from neonlite.callbacks.history import History
from neonlite.callbacks.keep import EarlyStop, HistoryFile, SaveBestState, SerializeModelCallback
from neonlite.callbacks.note import (
    BatchNormTune,
    Hist,
    Judge,
    Loss,
    Metric,
    MultiLabelStats,
    RunTimer,
    TrainCost,
    TrainMulticost,
)
from neonlite.callbacks.show import ProgressBar, TrainLogger

__all__ = [
    "BatchNormTune",
    "Callback",
    "Callbacks",
    "EarlyStop",
    "GANCosts",
    "GANPlot",
    "Hist",
    "History",
    "HistoryFile",
    "Judge",
    "Listener",
    "Loss",
    "Metric",
    "MultiLabelStats",
    "ProgressBar",
    "RunTimer",
    "SaveBestState",
    "SerializeModelCallback",
    "TrainCost",
    "TrainLogger",
    "TrainMulticost",
]
