"""A captured step with its encoder: photographs that are held on the device, cropped, mirrored and encoded there."""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from toy import adam, toy_run

from tests import pretend
from tests.graphs import PlainGraph, TapeGraph
from vision_attn.attention.scores import Additive
from vision_attn.contracts import Fit
from vision_attn.criteria.likelihood import Likelihood
from vision_attn.criteria.self_critical import SelfCritical
from vision_attn.data.photographs.captions import Captions
from vision_attn.data.photographs.pixels import HeldPixels
from vision_attn.encoders.convnet import ConvNet
from vision_attn.engine.fit import fit
from vision_attn.fast.versions import without_loops
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.tasks.caption import Captioning

NUMBER, SIDE = 12, 8
CRITERIA = {"likelihood": Likelihood, "self_critical": partial(SelfCritical, num_samples=2, max_words=2)}


def photographs(folder: Path) -> Captions:
    """Photographs with two captions of two words each, so that all batches have one shape."""
    dice, images = np.random.default_rng(0), folder / "images"
    images.mkdir(exist_ok=True)
    lines = ["image,caption,split"]
    for number in range(NUMBER):
        Image.fromarray(dice.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(images / f"{number}.png")
        lines += [f"{number}.png,{one} {'ab'[number % 2]},train" for one in ("red", "blue")]
    (folder / "captions.csv").write_text("\n".join(lines))
    return Captions(
        images=str(images), annotations=str(folder / "captions.csv"), min_count=1, batch_size=4, rows=2, cache=None,
        flips=True, crops=0.6,
    )  # fmt: skip


def captioner(source: Captions) -> Captioning:
    model = partial(ShowAttendTell, hidden_size=6, word_size=5, score=partial(Additive, attention_size=4), dropout=0.5)
    encoder = ConvNet(resolution=SIDE, region_size=8, width=16)
    return Captioning(source, encoder=encoder, model=model, criteria=CRITERIA)


def trained(folder: Path, source: Captions, **settings) -> dict[str, Tensor]:
    """The weights, of one run or of one that is stopped and resumed."""
    for epochs in settings.pop("stops", [3]):
        run = toy_run(folder, epochs=epochs, validate_every=0, show=0, compile=False, **settings)
        fit(task=captioner, data=source, optimizer=adam, run=run)
    return load_file(folder / "last" / "model.safetensors")


def test_a_captured_step_crops_and_encodes_photographs_that_are_held(tmp_path: Path, monkeypatch) -> None:
    """It trains as ordinary calls do with photographs from their files, also where the run is resumed."""
    torch.set_num_threads(1)
    pretend.captioners_on_a_gpu(monkeypatch)
    pretend.tables_of_references(monkeypatch)
    pretend.captured_steps(monkeypatch, PlainGraph)
    with without_loops():
        called = trained(tmp_path / "called", photographs(tmp_path), capture=True)
        made: list[HeldPixels] = []

        def held(views, resolution: int, device: torch.device, *, repeated: bool, fit: Fit, frames: int):
            made.append(HeldPixels(views, resolution, device, fit=fit, room=NUMBER * 3 * SIDE**2))
            return made[-1]

        pretend.held_photographs(monkeypatch, held)
        pretend.captured_steps(monkeypatch, TapeGraph)
        captured = trained(tmp_path / "captured", photographs(tmp_path), capture=True)
        resumed = trained(tmp_path / "resumed", photographs(tmp_path), capture=True, stops=[2, 3])
    for name, weights in called.items():
        torch.testing.assert_close(captured[name], weights, rtol=0, atol=0)
        torch.testing.assert_close(resumed[name], weights, rtol=0, atol=0)
    assert all(len(pixels.places) == NUMBER for pixels in made)
    (graph, *_) = PlainGraph.made
    done = " ".join(str(operation) for operation, *_ in graph.tape.operations)
    assert graph.replays == 6 and "grid_sampler" in done and "convolution" in done and "searchsorted" in done
