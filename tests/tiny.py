"""Every config, and parts that none names, at a size that takes seconds; and a batch of its shapes, without data."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from vision_attn.attention.images import Images
from vision_attn.configuration.config import Config, build, read
from vision_attn.configuration.parts import PartConfig, parts_of
from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.data.digits.mnist import DigitBatch
from vision_attn.data.stories.question import QuestionBatch
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.encoders.precomputed import Precomputed
from vision_attn.task import Batch, Source, Task

CONFIGS = Path(__file__).parents[1] / "configs"
B, R = 3, 2
"""Images of a batch, and captions of each."""
SIDE = 28
"""Height and width of the images of classifiers and of DRAW."""
SMALL = {
    "hidden_size": 16, "word_size": 8, "encoder_size": 8, "attention_size": 8, "feedforward_size": 16, "place_size": 8,
    "glimpse_size": 16, "region_size": 16, "width": 16, "latent_size": 4, "what_size": 8, "where_size": 8, "size": 8,
    "num_glimpses": 2, "num_hops": 2, "num_steps": 2, "num_layers": 2, "num_heads": 2, "num_scales": 2,
    "num_samples": 3, "frames": 3, "context_side": 12, "soft_start": 0, "context_dropout_after": 1,
}  # fmt: skip
"""Sizes of the arguments of these names, where a config has larger ones."""
SAME = {"sigma": 0.1, "first_sigma": 0.3, "batches_to_sigma": 1000, "early_weight": 0.3, "gain": 1.0, "beams": 1,
        "max_words": 2, "dropout": 0.3, "context_dropout": 0.5, "size": 8, "resolution": 32,
        "length_power": 0.5}  # fmt: skip
"""Numbers that change no operation of training, and are the same in all configs, except where they are 0. (With a large
gain, scores depend on biases in the second order alone.)"""
SIDES = {"ConvNet": 28, "Backbone": 64, "Tiles": 30}
"""Resolutions of these encoders."""
NODES = {"blocks.6": "blocks.2"}
"""Of an encoder that is trained as a whole, nodes with fewer layers before them; the others are repetitions."""
FROZEN = {"region_size": 16, "grid": (2, 4)}
"""In place of an encoder that is not trained: of its annotation vectors only the size counts. Their number differs from
other sizes, since a compiler begins again where two sizes are the same for one batch alone."""
SAMPLED = "vision_attn.criteria.self_critical.SelfCritical"
MOTION = "vision_attn.encoders.clips.MotionFeatures"
SCORES, LOOKS = "--task.model.score=vision_attn.attention", "--task.criteria.looks.baseline=vision_attn.attention"
VARIANTS: dict[str, tuple[str, ...]] = {
    "a dot product, one gate per feature": ("sat_soft_scenes", f"{SCORES}.scores.Dot", "--task.model.num_gates=16"),
    "a scaled dot product, straight through": (
        "sat_soft_scenes", f"{SCORES}.scores.ScaledDot",
        "--task.model.attention=vision_attn.attention.hard.StraightThrough",
    ),
    "a cosine, a learned baseline": ("sat_hard_scenes", f"{SCORES}.scores.Cosine", f"{LOOKS}.reinforce.Learned"),
    "a bilinear score, a moving average": (
        "sat_hard_scenes", f"{SCORES}.scores.General", f"{LOOKS}.reinforce.MovingAverage",
    ),
    "learned keys and queries, a gate per feature": (
        "sat_soft_scenes", f"{SCORES}.scores.KeyQuery", "--task.model.num_gates=16",
    ),
    "a score of places, tied embeddings": (
        "sat_soft_scenes", f"{SCORES}.location.Location", "--task.model.score.num_regions=49", "--task.model.tied=true",
    ),
    "an embedding of each place, a GRU": (
        "sat_soft_scenes", f"{SCORES}.location.EmbeddedLocation", "--task.model.score.num_regions=49",
        "--task.model.cell=gru",
    ),
    "a score of content and places, label smoothing": (
        "sat_soft_scenes", f"{SCORES}.location.ContentLocation", "--task.model.score.grid=[7,7]",
        "--task.criteria.likelihood.smoothing=0.1",
    ),
    "a GRU of one vector": ("strings_read_fixed", "--task.model.cell=gru", "--task.model.encoder=gru"),
    "a score by distance, scheduled sampling": (
        "top_down_scenes", f"{SCORES}.scores.Kernel", "--task.model.score.learned=true",
        "--task.model.scheduled_sampling=0.5", "--task.model.scheduled_sampling_batches=2",
    ),
    "self-critical, hard": ("sat_hard_scenes", f"--task.criteria.self_critical={SAMPLED}"),
    "self-critical, a Transformer": ("transformer_scenes", f"--task.criteria.self_critical={SAMPLED}"),
    "a Transformer of one projection": (
        "transformer_scenes", "--task.model.shared_values=true", "--task.model.norm=post",
        "--task.model.positions=learned",
    ),
    "top-down, hard": ("top_down_scenes", "--task.model.attention=vision_attn.attention.hard.Hard",
                       "--task.criteria.looks=vision_attn.criteria.reinforce_attention.ReinforceAttention"),
    "self-critical, top-down, greedy": (
        "top_down_scenes", f"--task.criteria.self_critical={SAMPLED}", "--task.criteria.self_critical.baseline=greedy",
        "--task.criteria.self_critical.entropy_weight=0.1",
    ),
    "self-critical, Show and Tell": ("show_and_tell_scenes", f"--task.criteria.self_critical={SAMPLED}"),
    "films without attention": ("films", f"{SCORES}.scores.Even"),
    "regions of films, with motion": (
        "films", "--task.encoder=vision_attn.encoders.clips.FrameRegions", f"--task.encoder.motion={MOTION}",
    ),
    "RAM as in its paper": (
        "ram_mnist28", "--task.model.core=vision_attn.models.ram.Rectifier", "--task.reward=last",
        "--task.reward_by=answer", "--task.early_weight=0", "--task.copies=2",
    ),
    "RAM that is told where the object is, a moving average": (
        "ram_cluttered60", "--task.box_weight=1",
        "--task.reinforce.baseline=vision_attn.attention.reinforce.MovingAverage",
    ),
    "DRAW's reader that is told, each window by itself": (
        "draw_reader_cluttered100_pixels", "--task.box_weight=1", "--task.model.relative=false",
    ),
}  # fmt: skip
"""What no config has: a config and options. Two that do not touch one another share a case, since compiling takes
seconds."""
CASES = [*sorted(path.stem for path in CONFIGS.glob("*.yaml")), *VARIANTS]


class Made(NamedTuple):
    """A task with random weights, in training mode, and a batch for it."""

    task: Task
    batch: Batch


class Nothing(Source):
    """What a task needs to know of data, which it has none of."""

    def __init__(self, image_shape: tuple[int, int, int], captions: tuple[tuple[str, ...], ...]) -> None:
        self.image_shape, self.num_classes, self.captions = image_shape, 5, captions
        self.vocabulary = Vocabulary.build((text for texts in captions for text in texts), min_count=1)

    def references(self) -> tuple[tuple[str, ...], ...]:
        return self.captions


WORDS = (("a red circle", "two blue circles"), ("a blue square", "one red square"), ("a red square", "one blue circle"))
STRINGS = (("3 1 4", "1 5 9"), ("2 7 1", "8 2 8"), ("1 2 3", "4 5 6"))
"""Captions of one length, and below of several: where a compiler is told nothing, it begins again at each."""
RAGGED_WORDS = (("a red circle", "red"), ("two blue squares", "a square"), ("one circle", "blue"))
RAGGED_STRINGS = (("3 1 4", "3 1"), ("2 7 1", "2 7"), ("1 2", "1"))


@cache
def resolved(case: str) -> Config:
    """The config of a case with small sizes."""
    config, *options = VARIANTS.get(case, (case,))
    found = read(CONFIGS / f"{config}.yaml", options)
    for part in parts_of(found.task):
        _shrink(part)
    return found


def _shrink(part: PartConfig) -> None:
    """Make the numbers in the arguments of a part small."""
    name, arguments = part.constructor.__name__, part.arguments
    if name in ("Backbone", "VGG", "Patches") and not arguments["trainable"]:
        part.class_path, part.constructor, part.arguments = "", Precomputed, dict(FROZEN)
        return
    if arguments.get("node") in NODES:
        arguments["node"] = NODES[arguments["node"]]
    for key, value in arguments.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            if key in SAME and value:
                arguments[key] = SIDES.get(name, SAME[key]) if key == "resolution" else SAME[key]
            elif key in SMALL and value > SMALL[key]:
                arguments[key] = SMALL[key]


def alike(case: str, *, numbers: bool = True) -> tuple[object, ...]:
    """The same for cases that differ in data alone, which are equal at this size; without `numbers` also for those that
    differ in arguments alone."""
    config = resolved(case)
    task = str(config.task) if numbers else (*sorted(part.class_path for part in parts_of(config.task)),)
    return _shape(config), task


def skip_repeated(key: tuple[object, ...], tried: set[tuple[object, ...]]) -> None:
    """Skip a test whose key was tried already, and otherwise note it."""
    if key in tried:
        pytest.skip("equal to a case before it")
    tried.add(key)


def _shape(config: Config) -> tuple[int, int, int]:
    source = config.data.constructor.__name__
    return {"LargeClutter": (1, 0, 0), "LabelledImages": (3, SIDE, SIDE)}.get(source, (1, SIDE, SIDE))


def made(case: str, *, ragged: bool = True) -> Made:
    """The task of a case, and a batch of training, whose captions have one length unless they are `ragged`."""
    config = resolved(case)
    kind, shape = config.task.constructor.__name__, _shape(config)
    words, strings = (RAGGED_WORDS, RAGGED_STRINGS) if ragged else (WORDS, STRINGS)
    captions = strings if kind == "Transcription" else words
    nothing = Nothing(shape, captions)
    task = build(config)["task"](nothing)
    task.prepare(nothing)
    with torch.no_grad():  # runs of an untrained model differ too little to be compared in float32
        for weights in task.parameters():
            weights.mul_(2 if weights.dim() > 1 else 1)
    torch.manual_seed(0)
    if kind in ("Captioning", "Transcription"):
        batch = _captions(task, captions)
    elif kind == "Answering":
        batch = _questions(task)
    else:
        batch = DigitBatch(_digits(shape), torch.arange(B) % 5, torch.tensor([[-0.9, -0.9, -0.5, -0.5]]).expand(B, 4))
    return Made(task.train(), batch)


def _captions(task: Task, captions: tuple[tuple[str, ...], ...]) -> CaptionBatch:
    encoder, vocabulary = task.encoder, task.vocabulary
    lists = [[torch.tensor([*vocabulary.encode(text), 1]) for text in texts] for texts in captions]
    words = torch.nn.utils.rnn.pad_sequence([one for texts in lists for one in texts], batch_first=True)
    frames, rows, columns = encoder.layout
    if columns < 0:  # a strip of any width
        images = torch.randint(256, (B, 3, encoder.resolution, 32), dtype=torch.uint8)
    elif encoder.trainable:
        film = [frames] * (frames > 1)
        images = torch.randint(256, (B, *film, 3, encoder.resolution, encoder.resolution), dtype=torch.uint8)
    else:
        images = torch.randn(B, rows * columns, encoder.region_size)
    return CaptionBatch(images, words.view(B, R, -1), (*range(B),), captions, (None,) * B, (None,) * B)


def _questions(task: Task) -> QuestionBatch:
    facts = torch.tensor([[[3, 4, 5], [6, 7, 0], [4, 3, 0]]]).expand(B, -1, -1).clone()
    facts[1, 2] = 0
    if task.encoder:
        facts = torch.randint(256, (B, 3, task.encoder.resolution, task.encoder.resolution), dtype=torch.uint8)
    words = torch.tensor([[3, 5, 0], [4, 6, 7], [5, 5, 3]])
    return QuestionBatch(facts, words, torch.tensor([3, 4, 6]), None, None, (), ())


def _digits(shape: tuple[int, int, int]) -> Tensor | Images:
    generator = np.random.default_rng(0)
    if not shape[1]:
        return Images([generator.integers(256, size=(side, side), dtype=np.uint8) for side in (90, 120, 60)], 1)
    return torch.from_numpy(generator.random((B, *shape), dtype=np.float32))
