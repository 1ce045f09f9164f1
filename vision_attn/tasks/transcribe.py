"""Transcription: images of lines to strings of characters, judged by edit distance."""

from torch import Tensor

from vision_attn.contracts import Evaluator
from vision_attn.data.vocabulary import UNKNOWN
from vision_attn.decode import Decoded
from vision_attn.decode.ctc import best_path, prefix_beam_search
from vision_attn.metrics.evaluators import Motion, Pointing, ReferenceLikelihood
from vision_attn.metrics.transcripts import Alignment, TranscriptErrors
from vision_attn.tasks.caption import Captioning


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
