"""Transcription: images of lines to strings of characters, judged by edit distance."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from vision_attn.console import progress
from vision_attn.contracts import Evaluator
from vision_attn.data.batches import CaptionBatch
from vision_attn.data.vocabulary import UNKNOWN
from vision_attn.decode import Decoded
from vision_attn.decode.ctc import best_path, prefix_beam_search
from vision_attn.metrics.evaluators import Motion, Pointing, ReferenceLikelihood
from vision_attn.metrics.transcripts import Alignment, TranscriptErrors
from vision_attn.tasks.caption import Captioning
from vision_attn.viz.alignment import Transcribed, write_alignments
from vision_attn.viz.page import Looked, write_page
from vision_attn.viz.sheet import picture_name


class Transcription(Captioning):
    """Captioning whose words are characters: same arguments, other metrics. `validate_with` is not used.

    A model that labels columns (CTC) is decoded by prefix beam search with `beams`, or by its best path if `beams` is
    1; of the other settings of decoding only `max_words` counts for it.

    `error` is the character error rate in percent; see `metrics/transcripts.py`.
    """

    def standard_evaluators(self, full: bool) -> list[Evaluator]:
        return [TranscriptErrors(), ReferenceLikelihood(), Motion(), Pointing(), Alignment()]

    def _decode(self, regions: Tensor, captions: int = 1, way: str = "best") -> Decoded:
        frames = self.model.frames(regions)
        if frames is None or way != "best":
            return super()._decode(regions, captions, way)
        beams, rules = max(self.beams, captions), {"max_words": self.max_words, "never": (UNKNOWN,)}
        return best_path(frames, **rules) if beams == 1 else prefix_beam_search(frames, beams=beams, **rules)

    @torch.no_grad()
    def show(self, batch: CaptionBatch, folder: Path) -> list[Path]:
        """A page of all strips, and the alignment of each: characters against columns."""
        return compare({type(self.model).__name__: self}, batch, folder)

    @torch.no_grad()
    def transcribed(self, images: Tensor, title: str) -> list[Transcribed]:
        """What was read of each strip, with its maps and, of a model that labels columns, its labels."""
        regions = self.regions(images.to(next(self.parameters()).device))
        frames = self.model.frames(regions)
        labels = [None] * len(images) if frames is None else list(frames.exp())
        described = self._described(self._decode(regions))
        return [
            Transcribed(title, caption.words, caption.alpha, caption.log_prob, each)
            for caption, each in zip(described, labels, strict=True)
        ]


def compare(tasks: Mapping[str, Transcription], batch: CaptionBatch, folder: Path) -> list[Path]:
    """Write how each of several models, by name, aligns the same strips: `folder/NUMBER-ID.png` for each strip, with
    all alignments under each other, and `folder/index.html`, in which pointing at a character shows its map. Returns
    their paths, the page first. All models must take strips of the height of `batch`."""
    read = {name: task.transcribed(batch.images, name) for name, task in tasks.items()}
    strips = [Image.fromarray(image.permute(1, 2, 0).cpu().numpy()) for image in batch.images]
    looked, paths = [], []
    for number, (strip, key, references, boxes) in enumerate(
        zip(progress(strips, what="pictures", unit="strip"), batch.ids, batch.references, batch.boxes, strict=True), 1
    ):
        items = [several[number - 1] for several in read.values()]
        looked += [
            Looked(f"{key}: {item.title}", strip, item.words, item.alpha, references, boxes, item.log_prob)
            for item in items
        ]
        path = folder / picture_name(number, str(key))
        paths.append(write_alignments(path, strip, items, reference=_first(references), boxes=boxes))
    return [write_page(folder / "index.html", looked, title="Where each character looked"), *paths]


def _first(references: Sequence[str]) -> str:
    return references[0] if references else ""
