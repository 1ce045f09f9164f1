"""Transcription: images of lines to strings of characters, judged by edit distance."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from vision_attn.attention.steered import Steering
from vision_attn.contracts import END, Captioner, Evaluator
from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.data.lines.text_lines import COLUMN, padded_strips
from vision_attn.data.vocabulary import UNKNOWN
from vision_attn.decode import Decoded, Decoding, Strategy
from vision_attn.decode.ctc import best_path, prefix_beam_search
from vision_attn.geometry.extents import WHOLE
from vision_attn.layers.padding import padded
from vision_attn.metrics.evaluators import CutShort, Motion, Pointing, ReferenceLikelihood
from vision_attn.metrics.transcripts import Alignment, GlimpsesTaken, TranscriptErrors
from vision_attn.task import Task
from vision_attn.tasks.caption import Captioning
from vision_attn.viz.alignment import Strip, Transcribed, write_transcripts
from vision_attn.viz.figures.paper import Paper
from vision_attn.viz.foveated import GlimpseTrace


class Transcription(Captioning):
    """Captioning with characters as words: the same arguments, but metrics of transcripts. `validate_with` is not used.

    A model that labels columns (CTC) is decoded by prefix beam search with `beams`, or by its best path if `beams` is
    1. Of the other settings of decoding it uses only `max_words`.

    The metric `error` is the character error rate in percent; see `metrics/transcripts.py`.
    """

    kind = "reader of lines"
    verb = "transcribe"
    chosen_by = None
    unit = "line"

    @torch.no_grad()
    def captured_batch(self, batch: CaptionBatch) -> CaptionBatch:
        """Return the batch as for photographs, with strips padded on the right with black to one of a few widths."""
        batch = super().captured_batch(batch)
        return batch._replace(images=padded(batch.images))

    def standard_evaluators(self, full: bool) -> list[Evaluator]:
        glimpses = [GlimpsesTaken(self.model.num_glimpses, self.decoding.max_words)] if self.model.num_glimpses else []
        errors = [TranscriptErrors(), ReferenceLikelihood(), CutShort(full)]
        return [*errors, Motion(), Pointing(), Alignment(), *glimpses]

    def _decode(
        self,
        regions: Tensor,
        decoding: Decoding,
        captions: int = 1,
        strategy: Strategy = "best",
        steering: Steering | None = None,
    ) -> Decoded:
        frames = self.model.frames(regions)
        if frames is None or strategy != "best":
            return super()._decode(regions, decoding, captions, strategy, steering)
        return self._decode_labels(frames, decoding, captions)

    def _decode_labels(self, frames: Tensor, decoding: Decoding, captions: int = 1) -> Decoded:
        beams, rules = max(decoding.beams, captions), dict[str, Any](max_words=decoding.max_words, never=(UNKNOWN,))
        return best_path(frames, **rules) if beams == 1 else prefix_beam_search(frames, beams=beams, **rules)

    @torch.no_grad()
    def show(self, batch: CaptionBatch, folder: Path) -> list[Path]:
        """Write a page of all strips, and the alignment of each: characters against columns. For a model that takes
        glimpses, also draw their path over the characters of each image, as a picture and as an animation."""
        return compare({type(self.model).__name__: self}, batch, folder)

    def figure(self, batch: CaptionBatch, paper: Paper) -> Any:
        return Task.figure(self, batch, paper)

    @torch.no_grad()
    def transcribed(
        self, images: Tensor, title: str, glimpses: bool = True, locations: Float[Tensor, "1 T 2"] | None = None
    ) -> list[Transcribed]:
        """Return the transcript of each strip with its maps and, for a model that labels columns, the labels.

        glimpses: whether to add what only pictures need: the glimpses, which are taken again, and the places of columns
            on the strip.
        locations: the locations of the first T glimpses of a single strip; NaN where the model chooses itself.
        """
        regions = self.regions(images.to(next(self.parameters()).device))
        frames = self.model.frames(regions)
        model = self.model if locations is None else self.model.guided(locations)
        if frames is not None:
            decoded = self._decode_labels(frames, self.decoding)
        elif locations is not None:
            decoded = self.decoding.decode(model, regions, never=(UNKNOWN,))
        else:
            decoded = super()._decode(regions, self.decoding)
        extent = self.encoder.extent(regions.shape[1]) if glimpses else WHOLE
        labels = [None] * len(images) if frames is None else list(frames.exp())
        return [
            Transcribed(
                title,
                *caption[:2],
                caption.alpha,
                caption.log_prob if label is None else None,
                label,
                self._trace(model, strip, len(caption.words)) if glimpses and model.num_glimpses else None,
                caption.cut,
                extent,
            )
            for caption, label, strip in zip(
                self._described(decoded, regions, placed=False), labels, regions.split(1), strict=True
            )
        ]

    def _trace(self, model: Captioner, regions: Float[Tensor, "1 L D"], num_words: int) -> GlimpseTrace:
        """Return the glimpses of one strip up to END."""
        taken = model.glimpses(regions, min(num_words + 1, self.decoding.max_words))
        assert taken is not None
        names = [*self.vocabulary.words[:END], "END", *self.vocabulary.words[END + 1 :]]
        view, answers = taken.view.patches[0], taken.log_prob[0].exp()
        return GlimpseTrace(
            regions.mT, taken.locations[0], view, label=None, said=0, probabilities=answers, names=names
        )

    def strip(
        self,
        ink: UInt8[Tensor, "Y X"],
        title: str,
        glimpses: bool = True,
        locations: Float[Tensor, "1 T 2"] | None = None,
    ) -> Strip:
        """Return a line, in the form of `data.lines.read_line`, with its transcript.

        glimpses, locations: as for `transcribed`.
        """
        images = padded_strips([ink], multiple=COLUMN)
        picture = Image.fromarray(images[0].permute(1, 2, 0).numpy())
        return Strip(title, picture, self.transcribed(images, type(self.model).__name__, glimpses, locations))


def compare(tasks: Mapping[str, Transcription], batch: CaptionBatch, folder: Path) -> list[Path]:
    """Write pages that compare the alignments of several models on the same strips; see `write_transcripts`.

    tasks: the models by name. All must take strips of the height of `batch`.
    """
    read = {name: task.transcribed(batch.images, name) for name, task in tasks.items()}
    strips = [
        Strip(str(key), Image.fromarray(image.permute(1, 2, 0).cpu().numpy()), items, references, boxes)
        for key, image, references, boxes, *items in zip(
            batch.ids, batch.images, batch.references, batch.boxes, *read.values(), strict=True
        )
    ]
    return write_transcripts(strips, folder)
