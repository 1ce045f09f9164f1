"""Insertion and deletion curves, and captions with boxes in the format of Flickr30k Entities."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from vision_attn.data.photographs.phrases import Phrase, read_phrases
from vision_attn.metrics.curves import perturbation_curves


def brightness(images: Tensor) -> Tensor:
    """The mean of the upper left quarter: what a good map points at."""
    return images[:, 0, :4, :4].mean(dim=(1, 2))


def test_curves_follow_the_order_of_the_map() -> None:
    image = torch.ones(1, 8, 8)
    good = torch.zeros(4, 4)
    good[:2, :2] = 1
    curves = perturbation_curves(brightness, image, good, steps=4, empty=torch.zeros(1, 8, 8))
    assert curves.deletion.tolist() == [1, 0, 0, 0, 0] and curves.insertion.tolist() == [0, 1, 1, 1, 1]
    assert curves.areas == {"deletion": 0.125, "insertion": 0.875}
    bad = perturbation_curves(brightness, image, 1 - good, steps=4, empty=torch.zeros(1, 8, 8))
    assert bad.deletion.tolist() == [1, 1, 1, 1, 0] and bad.areas == {"deletion": 0.875, "insertion": 0.125}


def test_an_empty_image_is_of_the_mean_colour_by_default() -> None:
    image = torch.rand(3, 6, 6, generator=torch.Generator().manual_seed(0))
    curves = perturbation_curves(lambda images: images[:, 1].mean(dim=(1, 2)), image, torch.rand(3, 3), steps=9)
    torch.testing.assert_close(curves.deletion[[0, -1]], image[1].mean().expand(2))
    assert len(curves.insertion) == 10 and curves.insertion.std() > 0
    with pytest.raises(ValueError, match="steps is 0, but must be at least 1"):
        perturbation_curves(brightness, image, torch.rand(3, 3), steps=0)


SENTENCES = """[/EN#1/people Two young guys] with [/EN#2/bodyparts shaggy hair] look at [/EN#0/notvisual it] .
A man and [/EN#3/people/clothing his hat]
"""
ANNOTATION = """<annotation><filename>7.jpg</filename>
<size><width>200</width><height>100</height><depth>3</depth></size>
<object><name>1</name><bndbox><xmin>50</xmin><ymin>0</ymin><xmax>100</xmax><ymax>50</ymax></bndbox></object>
<object><name>1</name><name>2</name><bndbox><xmin>0</xmin><ymin>0</ymin><xmax>40</xmax><ymax>50</ymax></bndbox></object>
<object><name>3</name><nobndbox>1</nobndbox></object></annotation>"""


def written(folder: Path, sentences: str = SENTENCES, annotation: str = ANNOTATION) -> tuple[Path, Path]:
    (folder / "7.txt").write_text(sentences)
    (folder / "7.xml").write_text(annotation)
    return folder / "7.txt", folder / "7.xml"


def test_phrases_and_their_boxes_are_read(tmp_path: Path) -> None:
    found = read_phrases(*written(tmp_path))
    assert found.captions[0] == ["Two", "young", "guys", "with", "shaggy", "hair", "look", "at", "it", "."]
    assert found.phrases[0][1] == Phrase(["shaggy", "hair"], 4, "2", ("bodyparts",))
    assert found.phrases[1] == [Phrase(["his", "hat"], 3, "3", ("people", "clothing"))]
    assert found.boxes == {"1": [(-0.5, -1, 0, 0), (-1, -1, -0.6, 0)], "2": [(-1, -1, -0.6, 0)]}
    square = found.of_square()  # pixels 50 to 150 across
    assert square.size == (100, 100) and square.boxes == {"1": [(-1, -1, 0, 0)]}


def test_mistakes_in_annotations_are_named(tmp_path: Path) -> None:
    for sentences, annotation, message in (
        ("A [/EN#1 man] sits .", ANNOTATION, "7.txt, line 1: a phrase is not of the form"),
        (SENTENCES, "<annotation/>", "7.xml is not an annotation with the size of its image"),
        (SENTENCES, "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "7.xml declares a document type"),
        (SENTENCES, ANNOTATION.replace("<xmin>50</xmin>", ""), "7.xml: object 1 has a box without four whole numbers"),
        (SENTENCES, ANNOTATION.replace(">200<", ">0<"), "7.xml: the image has 0x100 pixels"),
    ):
        with pytest.raises(ValueError, match=message):
            read_phrases(*written(tmp_path, sentences, annotation))
    with pytest.raises(ValueError, match="8.txt cannot be read"):
        read_phrases(tmp_path / "8.txt", tmp_path / "7.xml")
