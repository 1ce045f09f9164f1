"""No item of validation or test stands in training: of every data set that is drawn or generated, by how it is made and
by a count over an epoch. Epochs are smaller than the default ones, or the count would take minutes."""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import chain, combinations
from pathlib import Path

import numpy as np
import pytest
import torch

import vision_attn.data
from tests.fake_mnist import flat, write_mnist
from vision_attn.attention.images import Images
from vision_attn.data.digits.clutter import Clutter
from vision_attn.data.digits.digit_pairs import DigitPairs
from vision_attn.data.digits.large_clutter import LargeClutter
from vision_attn.data.digits.mnist import MNIST, DigitSource, read_mnist
from vision_attn.data.digits.two_digits import TwoDigits
from vision_attn.data.drawn_captions import DrawnCaptions
from vision_attn.data.films.canvas import script_of
from vision_attn.data.films.films import DrawnFilms
from vision_attn.data.films.grammar import TURNS
from vision_attn.data.generated_images import GeneratedImages
from vision_attn.data.lines.mnist_strings import Strings
from vision_attn.data.random_streams import stream
from vision_attn.data.scenes.grammar import HELD_OUT, OBJECTS
from vision_attn.data.scenes.questions import SceneQuestions
from vision_attn.data.scenes.scenes import Scenes
from vision_attn.data.scenes.star_scenes import Targets
from vision_attn.data.stories.stories import Stories
from vision_attn.task import SPLITS, Batch, Source

BASES = {"Captioned", "DigitSource", "DrawnCaptions", "GeneratedImages", "QuestionSource", "VocabularySource"}
"""Base classes, which are no data sets."""
FILES = {"BabiFiles", "Captions", "LabelledImages", "Lines", "Shards"}
"""Data sets of files that users give. Their splits are tested with their readers: `test_stories`, `test_annotations`,
`test_labelled`, `test_transcribe`, `test_shards`."""
MEMORY = 50
"""The latest sentences of a story, which models are given."""
DRAWN = {"batch_size": 64, "epoch_images": 640, "val_images": 64, "test_images": 128}
FEW = {"batch_size": 32, "epoch_images": 128, "val_images": 28, "test_images": 60}
DIGITS = {"batch_size": 64, "epoch_images": 320, "val_images": 64, "test_images": 128}


def soon(source: DrawnCaptions) -> DrawnCaptions:
    """The same, whose batches are as wide as the longest of few captions."""
    source.num_references = 16
    return source


CASES: dict[str, Callable[[str], Source]] = {
    "MNIST": lambda folder: MNIST(folder=folder, batch_size=64),
    "MNIST, moved": lambda folder: MNIST(folder=folder, batch_size=64, shift=3),
    "translated": lambda folder: Clutter(folder=folder, pieces=0, **DIGITS),
    "cluttered": lambda folder: Clutter(folder=folder, **DIGITS),
    "large clutter": lambda folder: LargeClutter(folder=folder, canvas=200, **DIGITS),
    "two digits": lambda folder: TwoDigits(folder=folder, **DIGITS),
    "pairs to read": lambda folder: DigitPairs(folder=folder, **DIGITS),
    "pairs to add": lambda folder: DigitPairs(folder=folder, say="add", **DIGITS),
    "strings to read": lambda folder: Strings(folder=folder, **DIGITS),
    "strings to sort": lambda folder: Strings(folder=folder, say="sort", grow=5, **DIGITS),
    "scenes": lambda _: soon(Scenes(**DRAWN)),
    "stars": lambda _: Targets(**DRAWN),
    "questions about scenes": lambda _: SceneQuestions(**DRAWN),
    "films": lambda _: soon(
        DrawnFilms(**DRAWN | {"batch_size": 32, "epoch_images": 128, "val_images": 28, "test_images": 60})
    ),
    "stories": lambda _: Stories(tasks=(1, 2, 3, 11, 17), stories=40, test_stories=12),
    "short stories": lambda _: Stories(tasks=(1, 17), stories=200, test_stories=100, questions=1),
}
WITH_DIGITS = [name for name, make in CASES.items() if isinstance(make(""), DigitSource)]
ON_DEMAND = [name for name, make in CASES.items() if isinstance(make(""), GeneratedImages)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An MNIST of noise."""
    return write_mnist(tmp_path_factory.mktemp("noise") / "mnist")


def data_sets() -> Iterator[type[Source]]:
    """All subclasses of `Source` in `vision_attn.data`."""
    for module in pkgutil.walk_packages(vision_attn.data.__path__, "vision_attn.data."):
        importlib.import_module(module.name)
    classes = [Source]
    while classes:
        found = classes.pop().__subclasses__()
        classes += found
        yield from (one for one in found if one.__module__.startswith("vision_attn.data."))


def test_every_data_set_is_here() -> None:
    """One that is missing here belongs into `CASES`, or into `FILES` if it draws nothing."""
    here = {type(make("")).__name__ for make in CASES.values()}
    assert {one.__name__ for one in data_sets()} == here | BASES | FILES and not here & FILES


def items(batches: Iterable[Batch]) -> list[bytes]:
    """What a model is given of each item, in short: its image or its film, or the sentences, and the question."""
    found = []
    for batch in batches:
        asked = getattr(batch, "questions", None)
        given = batch.images if asked is None else batch.facts
        for number in range(len(given)):
            if asked and asked[number].facts:
                item = repr((asked[number].facts[-MEMORY:], asked[number].text)).encode()
            else:
                image = given.pixels[number][:, :] if isinstance(given, Images) else given[number].numpy()
                item = image.tobytes() + (asked[number].text.encode() if asked else b"")
            found.append(sha256(item).digest())
    return found


@pytest.mark.parametrize("name", CASES)
def test_no_item_of_an_epoch_stands_in_another_split(name: str, folder: str) -> None:
    source = CASES[name](folder)
    epoch, val, test = items(source.train(0, seed=0)), items(source.split("val")), items(source.split("test"))
    assert len(epoch) >= 128 and len(val) >= 27 and len(test) >= 60
    assert set(val).isdisjoint(epoch) and set(test).isdisjoint(epoch) and set(val).isdisjoint(test)
    repeated = 1 - len(set(epoch)) / len(epoch)
    assert repeated < (0.5 if "stories" in name else 0.01)  # what is hashed tells items apart


@pytest.mark.parametrize("name", ON_DEMAND)
def test_random_streams_of_splits_and_epochs_differ(name: str, folder: str) -> None:
    """By the first numbers of each stream: seeds that differ in zeros at their end begin the same one."""
    source, begun = CASES[name](folder), []

    class Begun(Exception):
        """Nothing has to be drawn."""

    class Noting(type(source)):
        def sample(self, split: str, numbers: tuple[int, ...], *_):
            begun.append((split, numbers, tuple(stream(*numbers).random_raw(4).tolist())))
            raise Begun

    source.__class__ = Noting
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (2**32, 0), (-1, 0)):
        for skip in range(2):
            with pytest.raises(Begun):
                next(source.train(epoch, seed=seed, skip=skip))
    for split in SPLITS:
        with pytest.raises(Begun):
            source.fixed(split)
    assert len(begun) == 13 and len({first for *_, first in begun}) == len({numbers for _, numbers, _ in begun})
    assert [split for split, *_ in begun[-3:]] == [*SPLITS] and {split for split, *_ in begun[:-3]} == {"train"}


@pytest.mark.parametrize("name", WITH_DIGITS)
def test_ink_of_a_split_is_of_its_own_digits(name: str, tmp_path: Path) -> None:
    """Each split has ink of its own strength, so that every pixel tells from which splits it comes."""
    source = CASES[name](write_mnist(tmp_path / "mnist", flat(train=1, val=16, test=27)))
    for batches, of_split in (
        (chain(source.train(0, seed=0), source.split("train")), lambda ink: ink < 16),
        (source.split("val"), lambda ink: ink % 16 == 0),
        (source.split("test"), lambda ink: ink % 27 == 0),
    ):
        seen: set[int] = set()
        for batch in batches:
            given = batch.images
            each = [one[:, :] for one in given.pixels] if isinstance(given, Images) else [given]
            scale = 255 if torch.is_tensor(given) and given.is_floating_point() else 1
            seen |= {int(ink) for one in each for ink in np.unique(np.rint(np.asarray(one) * scale))}
        assert max(seen) > 0 and all(map(of_split, seen)), (name, seen)


def test_no_image_of_mnist_is_in_two_splits(data_folder: Path) -> None:
    digits = read_mnist(str(data_folder / "mnist"))
    images = {split: {one.tobytes() for one in some.images.numpy()} for split, some in digits.items()}
    assert sum(map(len, images.values())) == len(set().union(*images.values())) == 70_000


NAME = re.compile(r"(\w+) (circle|square|triangle|diamond|cross|star)")


def pairs_of_scenes(split: str) -> tuple[set[frozenset[str]], set[str]]:
    """The pairs of objects, and the objects, that the captions of many scenes of a split name."""
    source, pairs, objects = Scenes(), set(), set()
    for number in range(3):
        samples = source.sample(split, (number, 3), 500)
        for image in range(500):
            named = {" ".join(name) for name in NAME.findall(source.texts(samples, image)[0])}
            objects |= named
            pairs |= {frozenset(pair) for pair in combinations(named, 2)}
    return pairs, objects


def pairs_of_films(split: str) -> tuple[set[frozenset[str]], set[str]]:
    """The same of films, in the first frame and after a turn; in validation and test of the first frame alone, since
    an object may turn so that it stands in a pair of training films."""
    source, pairs, objects = DrawnFilms(), set(), set()
    for number in range(3):
        samples = source.sample(split, (number, 3), 64)
        for film in range(64):
            script = script_of(samples, film)
            names = [OBJECTS[one] for one in samples.objects[film, : script.num_objects]]
            states = [names]
            if TURNS in script.verbs and split == "train":
                actor = script.verbs.index(TURNS)
                states.append([*names[:actor], OBJECTS[samples.turned[film]], *names[actor + 1 :]])
            objects |= {name for state in states for name in state}
            pairs |= {frozenset(pair) for state in states for pair in combinations(state, 2)}
    return pairs, objects


@pytest.mark.parametrize("seen", [pairs_of_scenes, pairs_of_films])
def test_what_docs_call_unseen_is_not_in_training(seen) -> None:
    """Scenes and films of validation and test have pairs of objects, and some objects, that training has not."""
    (trained, objects), (val, _), (test, of_test) = (seen(split) for split in SPLITS)
    assert len(trained) > 200 and len(val) > 40 and len(test) > 90
    assert trained.isdisjoint(val) and trained.isdisjoint(test) and val.isdisjoint(test)
    assert not objects & {*HELD_OUT["val"], *HELD_OUT["test"]} and {*HELD_OUT["test"]} <= of_test
