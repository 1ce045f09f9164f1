"""Contracts of models, criteria and evaluators, and the NamedTuples of tensors that they return.

A new model derives from one of these classes and overrides what its docstring names. Tasks and decoding use nothing
else of it. `tests/test_contracts.py` builds the smallest class that fulfils each contract and takes it through
training, decoding, evaluation and pictures.

Shapes use one legend everywhere: B images, R rows (an image's captions or beams), L regions, D annotation size,
H hidden, A attention size, T time steps, K scales or heads, V words, C channels, Y X image.
"""

import sys

from vision_attn.contracts.answerer import Answerer, Answers
from vision_attn.contracts.captioner import END, PAD, AttentionMap, Caption, Captioner, Forced, WordGlimpses
from vision_attn.contracts.classifier import Classifier, ClassifierOutput, Glimpses, LocationMode, Reads, one_size
from vision_attn.contracts.criterion import Criterion
from vision_attn.contracts.drawing import DrawOutput, Window
from vision_attn.contracts.encoder import Encoder, Fit, Precision
from vision_attn.contracts.evaluator import DecodedCaption, Evaluator, Results
from vision_attn.contracts.modes import check_mode, in_mode
from vision_attn.contracts.nested import Nested
from vision_attn.contracts.samples import Choice
from vision_attn.geometry import extents, receptive_fields
from vision_attn.geometry.extents import WHOLE, Extent

# Where they stood in version 1.0, whose imports still work.
sys.modules[f"{__name__}.places"], sys.modules[f"{__name__}.fields"] = extents, receptive_fields

__all__ = [
    "END",
    "PAD",
    "WHOLE",
    "Answerer",
    "Answers",
    "AttentionMap",
    "Caption",
    "Captioner",
    "Choice",
    "Classifier",
    "ClassifierOutput",
    "Criterion",
    "DecodedCaption",
    "DrawOutput",
    "Encoder",
    "Evaluator",
    "Extent",
    "Fit",
    "Forced",
    "Glimpses",
    "LocationMode",
    "Nested",
    "Precision",
    "Reads",
    "Results",
    "Window",
    "WordGlimpses",
    "check_mode",
    "in_mode",
    "one_size",
]
