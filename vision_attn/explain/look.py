"""`look`: explain the answer of a model of another library, a text that it matches, or each word that it generates."""

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
    """Explain with maps what `model` answers to a square picture.

    texts: what to match (needed for "matcher" models), the classes to explain (default: the likeliest), or the
        beginning of the caption.
    method: "auto" is relevance where there is an answer and full attention, Grad-CAM for convolutional networks and
        windows, and attention for captioners and encoders. layer, head: counted from 0, negative from the end (head:
        from 0), for "attention"; by default the last layer and the mean of its heads; for captioners, the mean of all
        layers. Captioners have "attention" and "relevance". Within windows, "attention" is what each token receives
        (`vision_attn.explain.windows`), and there is no rollout and no relevance.

    Raises UserError for what the model does not have.
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
