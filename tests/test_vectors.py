"""Annotation vectors that another program computed: read from files, in the place of those of an encoder."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim import SGD

from tests.test_start_from import BEFORE, MODELS, Quiet, captions
from vision_attn.commands import main
from vision_attn.data.captions import Captions
from vision_attn.data.vectors import read_vectors
from vision_attn.encoders.given import Given
from vision_attn.engine.loop import fit
from vision_attn.engine.run import Run

L, D = 6, 5


def folder_of(place: Path, **options) -> tuple[Captions, dict[str, np.ndarray]]:
    """Six photographs with captions, and vectors of each, in several layouts and types."""
    source = captions(place / "images", BEFORE, features=str(place / "vectors"), **options)
    (place / "vectors").mkdir()
    rng, vectors = np.random.default_rng(0), {}
    for number in range(6):
        vectors[f"{number}.png"] = array = rng.standard_normal((L, D)).astype(np.float16)
        file = place / "vectors" / f"{number}"
        if number % 3 == 0:
            np.save(file.with_suffix(".npy"), array.reshape(2, 3, D))
        elif number % 3 == 1:
            np.savez_compressed(file.with_suffix(".npz"), feat=array.astype(np.float64), boxes=np.zeros((L, 4)))
        else:
            np.savez(file.with_suffix(".npz"), array.astype(np.float32))
    return source, vectors


def build(source: Captions) -> Quiet:
    return Quiet(source, encoder=Given(region_size=D, grid=(2, 3)), model=MODELS["soft"])


def test_batches_hold_the_vectors_of_their_photographs(tmp_path) -> None:
    source, vectors = folder_of(tmp_path)
    task = build(source)
    source.prepare(task)
    seen = set()
    for split in ("train", "val", "test"):
        for batch in source.split(split):
            assert batch.images.dtype == torch.float32 and batch.images.shape[1:] == (L, D)
            for array, file in zip(batch.images, batch.files, strict=True):
                assert np.array_equal(array.numpy(), vectors[Path(file).name].astype(np.float32))
                seen.add(Path(file).name)
            assert torch.equal(task.regions(batch.images), batch.images)
            assert len(task.describe(batch.images)) == len(batch.ids)
    assert seen == set(vectors)
    with pytest.raises(ValueError, match="it cannot encode a photograph"):
        task.describe(torch.zeros(1, 3, 224, 224, dtype=torch.uint8))


def test_a_run_trains_on_them(tmp_path) -> None:
    source, _ = folder_of(tmp_path)
    run = Run(folder=str(tmp_path / "run"), epochs=2, metric="nll", mode="min", device="cpu")
    metrics = fit(task=build, data=source, optimizer=partial(SGD, lr=0.1), run=run)
    assert metrics["nll"] > 0 and (tmp_path / "run" / "best" / "model.safetensors").is_file()


def test_missing_vectors_leave_their_photograph_out(tmp_path, caplog) -> None:
    source, _ = folder_of(tmp_path)
    (tmp_path / "vectors" / "0.npy").unlink()
    source.prepare(build(source))
    assert {file.name for batch in source.split("train") for file in batch.files} == {"1.png", "2.png", "3.png"}
    assert "0.png: there is neither" in caplog.text and "vectors/0.npy nor an .npz file" in caplog.text
    assert "1 of 6 photographs cannot be read" in caplog.text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (np.zeros((L, D + 1)), r"must hold 6 vectors of 5 numbers, .*, but holds \(6, 6\) of float64"),
        (np.zeros((L + 1, D)), "must hold 6 vectors of 5 numbers"),
        (np.full((L, D), np.nan), "not finite"),
        (np.zeros((L, D), dtype="<U3"), "of <U3"),
        (np.array([{}], dtype=object), "no array can be read"),
        (b"no array", "no array can be read"),
        (b"", "no array can be read"),
        ({"a": np.zeros((L, D)), "b": np.zeros(3)}, "none of its arrays a, b is called features or feat or x"),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path, content, said) -> None:
    path = tmp_path / ("a.npz" if isinstance(content, dict) else "a.npy")
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(ValueError, match=said) as caught:
        read_vectors(path, (L, D))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_what_does_not_fit_is_said(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"data.flips needs an encoder"):
        folder_of(tmp_path / "a", flips=True)
    source, _ = folder_of(tmp_path / "b")
    source.features = str(tmp_path / "b" / "vectors" / "0.npy")
    with pytest.raises(ValueError, match=r"0.npy is not a folder of annotation vectors"):
        source.prepare(build(source))


def test_the_commands_of_the_docs(tmp_path, monkeypatch, capsys) -> None:
    """Train as docs/captioning.md says, and evaluate."""
    monkeypatch.chdir(tmp_path)
    folder_of(Path("mine"))
    notes = json.loads(Path("mine/images/captions.json").read_text())
    splits = {image["id"]: (image["file_name"], image["split"]) for image in notes["images"]}
    rows = [(*splits[note["image_id"]], note["caption"]) for note in notes["annotations"]]
    lines = ["image,split,caption", *(",".join(row) for row in rows)]
    Path("mine/captions.csv").write_text("\n".join(lines))
    config = Path(__file__).parents[1] / "configs" / "sat_soft_flickr8k.yaml"
    words = Path(__file__).parents[1].joinpath("docs", "captioning.md").read_text()
    command = words[words.index("vision-attn train configs/sat_soft_flickr8k.yaml --run.folder=runs/mine") :]
    _, _, _, *options = command[: command.index("```")].replace("\\\n", " ").split()
    small = [
        "--task.encoder.region_size=5",
        "--task.encoder.grid=[2,3]",
        "--task.model.hidden_size=8",
        "--data.min_count=1",
    ]
    small += ["--task.model.word_size=8", "--task.model.score.attention_size=8", "--run.epochs=1", "--run.warmup=0"]
    small += [
        "--run.metric=nll",
        "--run.mode=min",
        "--task.validate_with=[]",
        "--data.batch_size=2",
        "--run.device=cpu",
    ]
    assert main(["train", str(config), *options, *small]) == 0
    assert main(["prepare", str(config), *options, *small, "--run.folder=other"]) == 0
    assert "2 x 3 annotation vectors of 5 numbers per image, read from mine/vectors" in capsys.readouterr().out
