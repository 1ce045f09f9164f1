"""Decoded rows as text and words, with their maps on the grid of regions."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from vision_attn.contracts import END, DecodedCaption, Encoder
from vision_attn.contracts.places import WHOLE
from vision_attn.data.lines.characters import Characters
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.decode import Decoded
from vision_attn.layers.padding import real_regions


def described(
    decoded: Decoded,
    regions: Float[Tensor, "B L D"],
    vocabulary: Vocabulary | Characters,
    encoder: Encoder,
    row: int = 0,
    *,
    placed: bool = True,
) -> list[DecodedCaption]:
    """The caption of each image in a row of `decoded`, 0 being the best, with its maps, without padding.

    placed: whether `extent` tells where maps lie on the image; see `Captioning.describe`.
    """
    sizes = real_regions(regions).sum(dim=1).tolist() if encoder.pads else [None] * len(regions)
    best = [None if part is None else part[:, row].cpu() for part in decoded]
    extent = encoder.extent(decoded.alpha.shape[-1]) if placed and decoded.alpha is not None else WHOLE
    shape = encoder.layout if encoder.frames > 1 else encoder.grid
    captions = []
    for image, size in enumerate(sizes):
        words, log_prob, score, alpha, region, heads = (None if part is None else part[image] for part in best)
        length, found = int((words > END).sum()), bool(score.isfinite())
        captions.append(
            DecodedCaption(
                vocabulary.decode(words.tolist()),
                [vocabulary.words[index] for index in words[:length].tolist()],
                log_prob[:length].tolist(),
                # Copies: views would keep, and send to other processes, the maps of the whole batch.
                None if alpha is None else alpha[:length, :size].clone().unflatten(-1, shape),
                None if region is None else region[:length].clone(),
                None if heads is None else heads[:length, :, :size].clone().unflatten(-1, shape),
                float(score) if found else None,
                found and not bool((words == END).any()),
                extent,
            )
        )
    return captions


def complete(captions: Sequence[DecodedCaption], *, different: bool) -> list[DecodedCaption]:
    """The captions of an image that the search found, at least one; if `different`, without those that equal an earlier
    one."""
    found = [caption for caption in captions if caption.score is not None] or [captions[0]]
    if not different:
        return found
    first: dict[str, DecodedCaption] = {}
    for caption in found:
        first.setdefault(caption.text, caption)
    return list(first.values())
