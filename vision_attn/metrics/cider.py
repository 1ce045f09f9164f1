"""Compute CIDEr-D of word ids on tensors, as a reward for sampled captions (Vedantam et al., CVPR 2015)."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from itertools import islice

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.contracts import END, PAD
from vision_attn.layers.precision import double
from vision_attn.metrics.ngrams import hashed, occurrences
from vision_attn.system.errors import UserError

AT_ONCE = 1024
"""The number of images whose n-grams are counted together."""


class CiderD(nn.Module):
    """CIDEr-D of captions against the references of their image (Vedantam et al. 2015, eq. 4 and eq. 3): 10 times the
    clipped cosine similarity of tf-idf vectors (eq. 1), times exp(-(difference in length)^2 / (2 sigma^2)), a mean over
    n = 1 to 4 and over references. A reference without words has a similarity of 0, and counts in the mean.

    Differs from the paper, as COCO's code does: the term frequency of eq. 1 is the number of times that an n-gram
    occurs in a caption; the paper divides it by the number of all its n-grams. That leaves the cosine of eq. 2 as it
    is, but not the clipping of eq. 4, which compares the numbers of two captions.

    Equal to `pycocoevalcap` for the same words, except that END counts as a word of captions and references. Without
    END, a caption that stops in the middle of a phrase, like "a dog with a", gets the full reward, and models learn to
    end their captions that way. `end=False` leaves END out, as `pycocoevalcap` does.

    Document frequencies are counted by `count` and kept in buffers, so that checkpoints contain them. n-grams are
    64-bit hashes; the probability of any collision among a million is 3e-8. n-grams that occur in a single image have
    the same weight as unknown ones, and are not stored.
    """

    ngrams: Tensor
    frequencies: Tensor
    num_images: Tensor

    def __init__(self, *, end: bool = True, sigma: float = 6.0):
        super().__init__()
        self.end, self.sigma = end, sigma
        self.register_buffer("ngrams", torch.zeros(0, dtype=torch.long))  # sorted
        self.register_buffer("frequencies", torch.zeros(0, dtype=torch.int32))  # images with each of `ngrams`
        self.register_buffer("num_images", torch.zeros((), dtype=torch.long))
        self.is_counted = False
        """Whether there are document frequencies. It avoids reading `num_images` from a GPU."""
        self.register_load_state_dict_pre_hook(_fit)

    def count(self, images: Iterable[Sequence[Sequence[int]]]) -> None:
        """Count the document frequencies: the number of images in whose references an n-gram occurs.

        images: for each image the word ids of its references, from `word_ids`.

        Raises UserError for fewer than two images, for which every score would be 0.
        """
        hashes, total = [], 0
        images = iter(images)
        while several := list(islice(images, AT_ONCE)):
            total += len(several)
            keys = hashed(self._counted(padded(several))).flatten(1).sort(dim=1).values
            new = keys != F.pad(keys[:, :-1], (1, 0))  # to its image
            hashes.append(keys[new & (keys != 0)])
        if total < 2:
            raise UserError(f"CIDEr-D needs references of at least two images, not {total}: every score would be 0")
        ngrams, frequencies = torch.cat(hashes).unique(return_counts=True)
        kept, device = frequencies > 1, self.ngrams.device
        self.ngrams, self.frequencies = ngrams[kept].to(device), frequencies[kept].int().to(device)
        self.num_images.fill_(total)
        self.is_counted = True

    def forward(self, captions: Int[Tensor, "B R T"], references: Int[Tensor, "B M S"]) -> Float[Tensor, "B R"]:
        """Score R captions of each image against its M references, both ended by END and padded with PAD.

        Runs in float64 (float32 on MPS). The missing references of an image are rows of PAD.
        """
        number = (references[..., 0] != PAD).sum(dim=-1, keepdim=True)  # with those that hold END alone
        captions, references = self._counted(captions), self._counted(references)
        mine, theirs = hashed(captions), hashed(references)
        my_weight, their_weight = self.idf(mine).square(), self.idf(theirs).square()
        my_count = double(occurrences(mine, mine))
        their_count = double(occurrences(theirs, theirs))
        common = double(occurrences(mine[:, :, None], theirs[:, None]))  # (B, R, M, 4, T): in each reference
        # A sum over positions counts an n-gram that occurs c times c times: hence one factor c less.
        clipped = torch.minimum(my_count[:, :, None], common) * common / my_count.clamp(min=1)[:, :, None]
        product = (clipped * my_weight[:, :, None]).sum(dim=-1)
        norms = (my_count * my_weight).sum(dim=-1)[:, :, None] * (their_count * their_weight).sum(dim=-1)[:, None]
        similarity = (product / norms.where(norms > 0, 1).sqrt()).mean(dim=-1)  # (B, R, M)
        difference = _bigrams(captions)[:, :, None] - _bigrams(references)[:, None]
        similarity = similarity * torch.exp(-double(difference).square() / (2 * self.sigma**2))
        return 10 * similarity.sum(dim=-1) / number.clamp(min=1)

    def idf(self, ngrams: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Compute log(number of images / number of images with this n-gram) (Vedantam et al. 2015, eq. 1), in float64
        (float32 on MPS); 0 where there is no n-gram."""
        if not self.is_counted:
            raise UserError("CIDEr-D has no document frequencies: call count() first, or load a checkpoint")
        frequency = torch.ones_like(ngrams)
        if len(self.ngrams):
            index = torch.searchsorted(self.ngrams, ngrams).clamp(max=len(self.ngrams) - 1)
            frequency = self.frequencies[index].long().where(self.ngrams[index] == ngrams, 1)
        return (double(self.num_images).log() - double(frequency).log()).where(ngrams != 0, 0)

    def _counted(self, words: Int[Tensor, "*rows T"]) -> Int[Tensor, "*rows T"]:
        """Return the words that count: without END if `end` is False."""
        return words if self.end else words.masked_fill(words == END, PAD)


def _fit(module: CiderD, state: Mapping[str, Tensor], prefix: str, *_: object) -> None:
    """Resize the buffers of `module` to the state that is about to be loaded."""
    for name in ("ngrams", "frequencies"):
        if prefix + name in state:
            setattr(module, name, getattr(module, name).new_zeros(state[prefix + name].shape))
    if (number := state.get(prefix + "num_images")) is not None:
        module.is_counted = bool(number)


def word_ids(tokens: Iterable[str], vocabulary: Mapping[str, int]) -> list[int]:
    """Return the ids of `tokens`, END included. Words outside the vocabulary get hashes as ids, so that they remain
    different words."""
    return [*(vocabulary.get(word) or _unknown_id(word) for word in tokens), END]


@cache
def _unknown_id(word: str) -> int:
    """Return an id beyond any vocabulary, the same in every process."""
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little") >> 2 | 1 << 62


def padded(images: Sequence[Sequence[Sequence[int]]]) -> Int[Tensor, "B M S"]:
    """Return the captions of several images as one tensor, padded with PAD."""
    most = max(map(len, images))
    longest = max((len(ids) for captions in images for ids in captions), default=1)
    table = torch.full((len(images), most, longest), PAD)
    filled = [ids + [PAD] * (longest - len(ids)) for captions in images for ids in map(list, captions)]
    if filled:
        places = torch.arange(most) < torch.tensor([[len(captions)] for captions in images])
        table[places] = torch.tensor(filled)
    return table


class ReferenceTable:
    """The references of all training images on a device, so that a batch need not send words to it."""

    def __init__(self, images: Iterable[tuple[Sequence[str], Sequence[Sequence[int]]]], device: torch.device) -> None:
        """images: the references of each image as text, and their word ids."""
        self.numbers: dict[tuple[str, ...], int] = {}
        words, lengths = list[int](), list[list[int]]()
        for captions, coded in images:
            if tuple(captions) not in self.numbers:
                self.numbers[tuple(captions)] = len(lengths)
                lengths.append([len(ids) for ids in coded])
                for ids in coded:
                    words += ids
        most = max(map(len, lengths), default=0)
        sizes = torch.tensor([numbers + [0] * (most - len(numbers)) for numbers in lengths], dtype=torch.long).view(
            -1, most
        )
        starts = sizes.flatten().cumsum(0).view_as(sizes) - sizes
        self.longest = int(sizes.max()) if sizes.numel() else 0
        self.words = torch.tensor([*words, PAD], device=device)
        self.sizes, self.starts = sizes.to(device), starts.to(device)

    def find(self, references: Iterable[Sequence[str]]) -> Int[Tensor, "B M S"] | None:
        """Return the word ids of the references of each image, on the device, padded with PAD to the largest number and
        length of all images, so that every batch has the same shape. None if the references of an image are not in the
        table."""
        numbers = [self.numbers.get(tuple(captions)) for captions in references]
        if None in numbers:
            return None
        index = torch.tensor(numbers)
        if self.words.is_cuda:
            index = index.pin_memory().to(self.words.device, non_blocking=True)
        position = torch.arange(self.longest, device=self.words.device)
        inside = position < self.sizes[index][..., None]
        place = (self.starts[index][..., None] + position).clamp(max=len(self.words) - 1)
        return self.words[place].where(inside, PAD)


def _bigrams(words: Int[Tensor, "*rows T"]) -> Int[Tensor, "*rows"]:
    """Return the length of a caption as `pycocoevalcap` measures it: its number of bigrams."""
    return ((words != PAD).sum(dim=-1) - 1).clamp(min=0)
