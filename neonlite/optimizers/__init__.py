"""Optimizers, learning-rate schedules and loss scaling."""

from typing import TYPE_CHECKING

# fmt: off
# ruff: isort: off
from neonlite.backend.objects import declare_builtin
from neonlite.name_hints import module_getattr
from neonlite.optimizers.optimizer import Optimizer, get_param_list
from neonlite.optimizers.rules import (
    LAMB, Adadelta, Adagrad, Adam, AdamW, GradientDescentMomentum, Lion, Muon, NAdam, RMSProp, ShiftAdaMax,
)
from neonlite.optimizers.schedule import (
    CosineSchedule, ExpSchedule, OneCycleSchedule, PolySchedule, PowerSchedule, ReducedSchedule, Schedule,
    ShiftSchedule, StepSchedule, UpdateSchedule, WarmupSchedule,
)
from neonlite.optimizers.wrappers import LossScaling, MultiOptimizer, WeightAverage

__all__ = [
    "LAMB", "Adadelta", "Adagrad", "Adam", "AdamW", "CosineSchedule", "ExpSchedule", "GradientDescentMomentum", "Lion",
    "LossScaling", "MultiOptimizer", "Muon", "NAdam", "OneCycleSchedule", "Optimizer", "PolySchedule",
    "PowerSchedule", "RMSProp", "ReducedSchedule", "Schedule", "ShiftAdaMax", "ShiftSchedule", "StepSchedule",
    "UpdateSchedule", "WarmupSchedule", "WeightAverage", "get_param_list",
]
# fmt: on

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__)

declare_builtin(globals().values())
