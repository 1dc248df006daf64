"""The training loop."""

from tilework.train.fit import HELD, TRAINING, Job, Result, fit, time_steps
from tilework.train.settings import FitConfig, OptimConfig, ScheduleConfig

__all__ = ["HELD", "TRAINING", "FitConfig", "Job", "OptimConfig", "Result", "ScheduleConfig", "fit", "time_steps"]
