"""`look`: explain a model of another library with maps: of its answer, of a text that it matches, or of each generated
word."""

from collections.abc import Sequence
from typing import get_args

import torch
from PIL import Image
from torch import Tensor

from vision_attn.explain.captioners.word_maps import explain_words
from vision_attn.explain.explained_models import AnswerSubject
from vision_attn.explain.explanation import Explanation
from vision_attn.explain.libraries.opening import OpenedModel
from vision_attn.explain.methods import ATTRIBUTIONS, CAMS
from vision_attn.explain.recorded_answers import Method, likeliest, named, recorded, texts_of, wanted
from vision_attn.system.errors import UserError

NEEDS_ANSWER = tuple(method for method in get_args(Method) if method not in ("auto", "attention", "rollout"))
"""The methods that need an answer to explain."""


def look(
    model: OpenedModel,
    picture: Image.Image,
    *,
    texts: Sequence[str] = (),
    method: Method = "auto",
    layer: int | None = None,
    head: int | None = None,
) -> Explanation:
    """Explain the answer of `model` to a square picture with maps.

    texts: the texts to match (required for "matcher" models), the classes to explain (default: the likeliest), or the
        beginning of the caption.
    method: "auto" is relevance for answers of models with full attention, Grad-CAM for convolutional networks and
        windows, and attention for captioners and encoders. Captioners have only "attention" and "relevance". With
        attention in windows, "attention" is the attention that each token receives (`vision_attn.explain.windows`), and
        there is no rollout and no relevance.
    layer: for "attention", counted from 0, or from the end if negative; by default the last layer, for captioners the
        mean of all layers.
    head: for "attention", counted from 0; by default the mean of all heads.

    Raises UserError for a method, layer, head or class that the model does not have.
    """
    if layer is not None or head is not None:
        if method not in ("auto", "attention"):
            raise UserError(f"a layer and a head apply to the method attention, not to {method}")
        method = "attention"
    if model.kind == "captioner":
        if method not in ("auto", "attention", "relevance"):
            raise UserError(f"for captioners there are the methods attention and relevance, not {method}")
        return explain_words(model, picture, texts, layer, head, related=method == "relevance")
    if model.kind == "matcher" and not texts:
        raise UserError("this model compares images with texts: give a text")
    if model.kind == "encoder" and texts:
        raise UserError("this model has no answer: leave the text out")
    return _answers(model, picture, texts, method, layer, head)


def _answers(
    model: OpenedModel, picture: Image.Image, texts: Sequence[str], method: Method, layer: int | None, head: int | None
) -> Explanation:
    """Return a map for each answer of a classifier, or each text of a matcher."""
    others = texts_of(model, texts)
    inputs = model.inputs(picture) | others
    recording = recorded(model, inputs)
    if recording.scores is None and method in NEEDS_ANSWER:
        raise UserError(f"{method} explains an answer, and this model has none: choose rollout, or a layer")
    answers, maps = wanted(model, recording.scores, texts), list[Tensor]()
    subject = AnswerSubject(model, texts) if method in ATTRIBUTIONS else None
    for answer in answers:
        recording.explain(answer)
        if method == "auto":
            method = recording.fitting()
        if subject is not None:
            maps.append(subject.weights(method, subject.image(inputs), answer)[None])
        else:
            maps.append(recording.map(method, layer, head))
    words, log_prob = named(model, recording.scores, answers, texts)
    raw = None if recording.attention is None else recording.attention.raw()
    if isinstance(raw, Tensor):
        raw = raw.expand(len(words), -1, -1, -1, -1)
    elif raw is not None:
        raw = [layer.expand(len(words), -1, -1, -1) for layer in raw]
    alpha = torch.cat(maps)
    extent, patches = recording.extents((alpha.shape[1], alpha.shape[2]), method in CAMS, others)
    if subject is not None and method != "score-cam":
        extent = subject.seen
    return Explanation(words, alpha, log_prob, raw, method, extent, patches, likeliest(model, recording.scores))
