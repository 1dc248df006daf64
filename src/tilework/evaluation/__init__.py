"""Measuring: evaluators, the one walk over a data set, and what a classifier says."""

from tilework.evaluation.accuracy import Accuracy
from tilework.evaluation.averages import Averages
from tilework.evaluation.classification import Classification, Classified, classify
from tilework.evaluation.confusion import Confusion
from tilework.evaluation.evaluator import Evaluator
from tilework.evaluation.features import Features
from tilework.evaluation.loop import evaluate
from tilework.evaluation.probe import Probe, knn_accuracy, linear_accuracy
from tilework.evaluation.segmentation import MeanIou
from tilework.evaluation.validation import validate
