"""The training loop."""

from tilework.train.find_rate import Rates, find_rate
from tilework.train.fit import HELD, TRAINING, Job, Result, fit, stop_signals, time_steps
from tilework.train.settings import FitConfig, OptimConfig, ScheduleConfig

__all__ = [
    "HELD",
    "TRAINING",
    "FitConfig",
    "Job",
    "OptimConfig",
    "Rates",
    "Result",
    "ScheduleConfig",
    "find_rate",
    "fit",
    "stop_signals",
    "time_steps",
]
