"""Captions from any captioner: greedy, sampled, and by beam search; transcripts of CTC.

All images of a batch are decoded together, with `start` and `step` of the `Captioner` contract. On a GPU the loop over
words copies nothing to the host. On a CPU, where copying costs nothing, images whose captions have ended leave the
batch. All three searches obey the same rules on the words of a caption: see `Rules`.
"""

from vision_attn.decode.beams import beam_search
from vision_attn.decode.decoding import Decoding, Strategy
from vision_attn.decode.hypotheses import Decoded
from vision_attn.decode.one_by_one import greedy, sample

__all__ = ["Decoded", "Decoding", "Strategy", "beam_search", "greedy", "sample"]
