"""Show where any model looks: for its answer, for a text, or for each word that it writes.

MODEL is the folder of a run (or a copy of its best/), the name of a network of torchvision, timm:NAME,
transformers:NAME-or-folder, or module:function with --trust. Classifiers show what led to their answer, or with --text
CLASS to another one; CLIP and its relatives show where an image matches each --text; captioners write a caption and
show a map for each word.

Prints FILE, a tab and the answer with its probability, a line for each photograph. Writes a sheet for each photograph
and one page for all, with sliders for the layer and the head. By default a map is the gradient-weighted relevance of
the answer (Chefer et al. 2021); Grad-CAM for convolutional networks; for captioners the mean of all heads and layers,
or with --relevance the relevance of the image for each word.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vision_attn.commands._collection import collected_later
from vision_attn.commands._opened import is_run
from vision_attn.commands._places import writable
from vision_attn.commands._search import photographs
from vision_attn.console import complain, progress, say
from vision_attn.machine import torch_device

if TYPE_CHECKING:  # or `--help` would import torch
    from vision_attn.explain.models import Model
    from vision_attn.explain.seen import Seen

SIDE = 672  # pixels of a photograph in the drawings
METHODS = {
    "relevance": "gradient-weighted relevance (Chefer et al. 2021)",
    "rollout": "attention rollout (Abnar and Zuidema 2020)",
    "grad-cam": "Grad-CAM (Selvaraju et al. 2017), of the last convolution or window",
}
TITLES = {
    "classifier": "What led to each answer",
    "matcher": "Where each text matches",
    "captioner": "Where each word looked",
    "encoder": "Where the model looks",
}
GUIDES = {
    "classifier": "Point at an answer, or tap it, to see what led to it.",
    "matcher": "Point at a text, or tap it, to see where the image matches it.",
    "encoder": "Point at the word below a picture, or tap it, to see the attention.",
}
DIALS = " The sliders show the attention of each layer and head."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn look`."""
    parser.add_argument("model", metavar="MODEL", help="a run folder, a torchvision name, timm:NAME, transformers:NAME")
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="a photograph, or a folder of them")
    parser.add_argument("--recursive", action="store_true", help="look at the photographs in subfolders too")
    parser.add_argument(
        "--text", action="append", default=[], metavar="TEXT",
        help="a text to match, a class to explain, or the beginning of the caption; may be repeated",
    )  # fmt: skip
    parser.add_argument("--layer", type=int, metavar="N", help="attention of this layer, from 0; -1 is the last")
    parser.add_argument("--head", type=int, metavar="N", help="attention of this head, from 0 (default: their mean)")
    ways = parser.add_mutually_exclusive_group()
    for method, text in METHODS.items():
        ways.add_argument(f"--{method}", action="store_const", const=method, default="auto", dest="method", help=text)
    parser.add_argument("--out", type=Path, default=Path("look"), metavar="FOLDER", help="draw there (default: look)")
    parser.add_argument(
        "--weights", metavar="FILE", help="of torchvision and timm: a file of weights, or none for random ones"
    )
    parser.add_argument("--device", default="auto", help="auto (cuda where there is one), cpu, cuda, cuda:1, ...")
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="let the model import this package, which runs it",
    )


def run(arguments: argparse.Namespace) -> int:
    """Look at all that can be read; the exit status is 1 when something could not be."""
    torch_device(arguments.device)
    writable(arguments.out, "--out")
    found = photographs(arguments.images, recursive=arguments.recursive)
    complaints = list(found.complaints)
    kind, see = opened(arguments)
    done: list[tuple[str, Any, Seen]] = []
    for path, picture in squares(found.files, complaints):
        seen = see(picture)
        say(str(path), told(seen, kind))
        picture.thumbnail((SIDE, SIDE))
        done.append((path.name, picture, seen))
    if done:
        complain(f"drawn: {draw(done, kind, arguments.out)}")
    for line in (*found.notes, *complaints):
        complain(line)
    return 1 if complaints else 0


def squares(files: Sequence[Path], complaints: list[str]) -> Iterator[tuple[Path, Any]]:
    """The centre square of each photograph; what cannot be read is complained of."""
    from vision_attn.data.images import open_square

    for path in progress(files, what="look", unit="image"):
        try:
            square = open_square(path, at_least=SIDE)
        except ValueError as error:
            complaints.append(str(error))
            continue
        yield path, square


@collected_later()
def opened(arguments: argparse.Namespace) -> tuple[str, Callable[[Any], "Seen"]]:
    """The kind of the model, and a function from a picture to what the model saw in it."""
    from vision_attn.config import open_run
    from vision_attn.explain.looks import look
    from vision_attn.explain.models import open_model
    from vision_attn.tasks.caption import Captioning

    device = torch_device(arguments.device)
    if is_run(Path(arguments.model)) or Path(arguments.model).is_dir():
        task, source, _ = open_run(arguments.model, trust=arguments.trust)
        if isinstance(task, Captioning):
            if not task.sees_squares:
                raise ValueError(f"{arguments.model} reads lines: vision-attn transcribe --out draws where it looked")
            if arguments.method != "auto" or arguments.layer is not None or arguments.text:
                raise ValueError("of a captioner of ours, --head is the only choice: its maps are its attention")
            return "captioner", partial(described, task.to(device), device=device, head=arguments.head)
        model = classifier(arguments.model, task, source)
    else:
        library = arguments.model.partition(":")[0]
        model = open_model(arguments.model, weights=arguments.weights, trust=library in arguments.trust)
    options = {"texts": arguments.text, "method": arguments.method, "layer": arguments.layer, "head": arguments.head}
    return model.kind, partial(look, on_device(model, device), **options)


def on_device(model: "Model", device: Any) -> "Model":
    """The model on a device, with its inputs."""
    inputs = model.inputs
    model.module.to(device)
    return model._replace(inputs=lambda picture: {key: value.to(device) for key, value in inputs(picture).items()})


def classifier(folder: str, task: Any, source: Any) -> "Model":
    """The classifier of the run in `folder`, as others are: images to scores. It must see the whole image."""
    import torch

    from vision_attn.explain.models import Model
    from vision_attn.tasks.classify import Classification

    if not isinstance(task, Classification) or task.model.reinforced or task.image_shape[0] != 3:
        raise ValueError(
            f"{folder} holds a {type(task).__name__} that does not see whole photographs: "
            f"vision-attn eval {folder} --show 8 draws what it sees"
        )

    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model

        def forward(self, images: Any) -> Any:
            return self.model(images).log_prob[:, 0, -1]

    def inputs(picture: Any) -> dict[str, Any]:
        return {"images": pixels(picture, task.image_shape[1:]) / 255}

    return Model(Scores(), "classifier", inputs, tuple(source.class_names))


def pixels(picture: Any, size: Sequence[int]) -> Any:
    """A picture as a batch of one image, from 0 to 255."""
    import numpy as np
    import torch

    resized = picture.convert("RGB").resize(tuple(size)[::-1])
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)[None]


def described(task: Any, picture: Any, device: Any, head: int | None) -> "Seen":
    """The caption of one of our captioners, with its maps."""
    from vision_attn.explain.seen import Seen, chosen

    (caption,) = task.describe(pixels(picture, (task.resolution, task.resolution)).to(device))
    if caption.alpha is None:
        raise ValueError("this captioner has no attention, so there is nothing to look at")
    layers = None if caption.heads is None else caption.heads[:, None]
    if head is not None and layers is None:
        raise ValueError("this captioner has a single head: leave --head out")
    alpha = caption.alpha if head is None else chosen(layers, 0, head)
    return Seen(caption.words, alpha, caption.log_prob, layers, "attention")


def told(seen: "Seen", kind: str) -> str:
    """What a model answered, in a line."""
    if kind == "captioner" or seen.log_prob is None:
        return " ".join(seen.words) if kind == "captioner" else ", ".join(seen.words)
    return ", ".join(f"{word} ({math.exp(value):.2f})" for word, value in zip(seen.words, seen.log_prob, strict=True))


def draw(done: Sequence[tuple[str, Any, "Seen"]], kind: str, folder: Path) -> Path:
    """Write a sheet for each picture and one page for all; returns the page."""
    from vision_attn.viz.attention import write_sheet
    from vision_attn.viz.page import GUIDE, Looked, write_page
    from vision_attn.viz.sheet import picture_name

    items = [
        Looked(name, picture, seen.words, seen.alpha, log_prob=seen.log_prob, layers=seen.layers)
        for name, picture, seen in done
    ]
    for number, (name, picture, seen) in enumerate(progress(done, what="pictures", unit="image"), start=1):
        options = {"title": f"{name} · {seen.method}", "log_prob": seen.log_prob}
        if kind != "captioner":
            options["caption"] = " · ".join(seen.words)
        write_sheet(folder / picture_name(number, name), picture, seen.words, seen.alpha, **options)
    guide = GUIDES.get(kind, GUIDE) + DIALS * any(item.layers is not None for item in items)
    return write_page(folder / "index.html", items, title=TITLES[kind], guide=guide)
