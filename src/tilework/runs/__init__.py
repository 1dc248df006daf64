"""The engine: what a run and a chain are, from settings to objects, training, opening what was trained, export."""

from tilework.runs.chain import check_links, train_chain
from tilework.runs.export import export_run, load_exported
from tilework.runs.job import plan, prepare, train
from tilework.runs.run import Chain, Extra, Link, Run, equip, equip_chain
from tilework.runs.trained import evaluate_run, probe_run

__all__ = [
    "Chain",
    "Extra",
    "Link",
    "Run",
    "check_links",
    "equip",
    "equip_chain",
    "evaluate_run",
    "export_run",
    "load_exported",
    "plan",
    "prepare",
    "probe_run",
    "train",
    "train_chain",
]
