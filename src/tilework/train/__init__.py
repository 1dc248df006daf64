"""The training loop."""

from tilework.train.fit import Job, Result, fit, time_steps
from tilework.train.settings import FitConfig, OptimConfig, ScheduleConfig

__all__ = ["FitConfig", "Job", "OptimConfig", "Result", "ScheduleConfig", "fit", "time_steps"]
