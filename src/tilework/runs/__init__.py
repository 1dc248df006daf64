"""The engine: what a run and a chain are, from settings to objects, training, opening what was trained, export."""

from tilework.runs.chain import check_links, train_chain
from tilework.runs.evaluate import evaluate_run, probe_run
from tilework.runs.export import export_run, load_exported, open_model
from tilework.runs.job import plan, prepare, train, try_rates
from tilework.runs.predict import Prediction, predict
from tilework.runs.run import Artefacts, Chain, Draw, Extra, Link, Run, equip
from tilework.runs.trained import Trained
