"""Compute CLIPScore for `vision-attn score --clip`: find the images, and embed them and their references once."""

from collections.abc import Mapping
from math import fsum
from pathlib import Path
from typing import Any

from vision_attn.data.images.open import Encoded, open_photograph
from vision_attn.data.photographs.photograph import Photograph
from vision_attn.explain.libraries.opening import open_model
from vision_attn.metrics import Report
from vision_attn.metrics.clip_score import Embeddings, clip_scores
from vision_attn.system.console import progress
from vision_attn.system.errors import UserError

SIDE = 448
"""The smallest side, in pixels, of reduced photographs: more than CLIP needs."""


class Clip:
    """Computes CLIPScore and RefCLIPScore for captions of images."""

    def __init__(self, name: str, photographs: Mapping[Any, Photograph], images: Path | None) -> None:
        """name: a folder with a CLIP model, or a repository of the hub.
        photographs: the references of each image.
        images: the folder of images; None: the references contain them.

        Raises UserError saying what is missing, and how to get it.
        """
        files = [_file(photograph, images) for photograph in photographs.values()]
        opened = open_model(f"transformers:{name}")
        if opened.kind != "matcher":
            raise UserError(f"--clip {name} is a {opened.kind} that does not match texts and images: name a CLIP")
        self.embeddings = Embeddings(opened.module, opened.processor)
        bar = progress(files, what="images as CLIP sees them", unit="image")
        self.images = self.embeddings.images(open_photograph(file, at_least=SIDE) for file in bar)
        captions = [photograph.captions for photograph in photographs.values()]
        texts = self.embeddings.texts([caption for references in captions for caption in references])
        self.references = texts.split([len(references) for references in captions])

    def added(self, report: Report, captions: Mapping[Any, str]) -> Report:
        """Return the report with CLIPScore and RefCLIPScore of these captions, one for each image, in the same
        order."""
        scores = clip_scores(self.embeddings.texts([*captions.values()]), self.images, self.references)
        means = {name: fsum(score[name] for score in scores) / len(scores) for name in scores[0]}
        by_image = {
            image: {**report.by_image.get(image, {}), **score} for image, score in zip(captions, scores, strict=True)
        }
        return report._replace(metrics=report.metrics | means, by_image=by_image)


def _file(photograph: Photograph, folder: Path | None) -> Path | Encoded:
    if photograph.file is not None:
        return photograph.file
    if folder is None:
        raise UserError("CLIPScore needs the images: name their folder with --images")
    if not photograph.name:
        raise UserError(f"the references give image {photograph.id} no file name, which CLIPScore needs")
    return folder / photograph.name
