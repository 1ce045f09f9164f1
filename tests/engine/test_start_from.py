"""Runs that start from another run: its words keep their ids and weights, and new words are added."""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file
from torch.optim import SGD

from benchmarks.finetune import finetune, write_set
from tests import scoring
from tests.test_contracts import SmallestCaptioner, SmallestEncoder
from tests.untrained import write_run
from vision_attn.attention.scores import Additive
from vision_attn.commands import main
from vision_attn.configuration.config import read
from vision_attn.configuration.run_settings import Run
from vision_attn.configuration.weights import grown, load_weights, save_weights
from vision_attn.data.photographs.captions import Captions
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.encoders.backbone import Backbone
from vision_attn.engine.fit import fit
from vision_attn.models.show_and_tell import ShowAndTell
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.top_down import TopDown
from vision_attn.models.transformer import Transformer
from vision_attn.system.errors import UserError
from vision_attn.tasks.caption import Captioning

CONFIGS = Path(__file__).parents[2] / "configs"
MODELS = {
    "soft": partial(ShowAttendTell, hidden_size=8, word_size=8, score=partial(Additive, attention_size=8)),
    "top-down": partial(TopDown, hidden_size=8, word_size=8, score=partial(Additive, attention_size=8)),
    "none": partial(ShowAndTell, hidden_size=8, word_size=8),
    "tied": partial(Transformer, hidden_size=8, num_heads=2, num_layers=1, feedforward_size=8),
    "square": SmallestCaptioner,  # its embedding has the words in both dimensions
}
BEFORE = ["a red dog runs", "a red dog sits", "a blue cat sits"]
AFTER = ["a green dog sleeps", "a green cat sleeps", "the dog runs"]


class Quiet(Captioning):
    """Validates by the likelihood, which needs no metric of captions."""

    def predict(self, batch, *, full=False):
        return self.model(self.regions(batch.images), batch.words)

    def judge(self, predictions, folder=None):
        return {"nll": -float(sum(caption.log_prob.sum() for caption in predictions))}


def captions(folder: Path, texts: list[str], **options) -> Captions:
    """Six photographs with these captions, in all splits."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(" ".join(texts)))
    images, notes = [], []
    for number, split in enumerate(["train"] * 4 + ["val", "test"]):
        Image.fromarray(rng.integers(0, 256, (56, 56, 3), dtype=np.uint8)).save(folder / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "split": split})
        notes += [{"id": 9 * number + n, "image_id": number, "caption": text} for n, text in enumerate(texts)]
    (folder / "captions.json").write_text(json.dumps({"images": images, "annotations": notes}))
    sizes = {"min_count": 1, "batch_size": 2, "cache": None, "images": str(folder)}
    return Captions(annotations=str(folder / "captions.json"), **sizes | options)


def train(data: Captions, folder: Path, model: str = "soft", task=Quiet, **settings) -> None:
    settings = {"epochs": 1, "metric": "nll", "mode": "min", "device": "cpu", "log_every": 1} | settings
    build = partial(task, encoder=SmallestEncoder(), model=MODELS[model])
    fit(task=build, data=data, optimizer=partial(SGD, lr=0.1), run=Run(folder=str(folder), **settings))


def test_a_run_goes_on_with_its_words_though_its_captions_have_changed(tmp_path):
    """Each word keeps its id, whatever the order by their number in the new captions is; no word is added."""
    folder, photographs = tmp_path / "run", tmp_path / "photographs"
    train(captions(photographs, BEFORE), folder)
    words = Vocabulary.load(folder / "start" / "vocabulary.json").words
    changed = captions(photographs, ["a blue cat sits", "the cat sits", "cat"])
    assert changed.vocabulary.words != words
    train(captions(photographs, ["a blue cat sits", "the cat sits", "cat"]), folder, epochs=2)
    assert Vocabulary.load(folder / "best" / "vocabulary.json").words == words
    assert len(load_file(folder / "last" / "model.safetensors")["model.embedding.weight"]) == len(words)


@pytest.mark.parametrize("average", [None, 0.9])
def test_the_kept_weights_lie_between_the_start_and_the_trained_ones(average, tmp_path):
    """Also after a run was resumed whose start is gone; the trained weights go on as without a share."""
    photographs, run = captions(tmp_path / "photographs", BEFORE), {"average": average, "threads": 1}
    train(photographs, tmp_path / "start")
    begun = {"start_from": str(tmp_path / "start")} | run
    train(captions(tmp_path / "photographs", BEFORE), tmp_path / "plain", epochs=3, **begun)
    train(captions(tmp_path / "photographs", BEFORE), tmp_path / "shared", epochs=2, start_share=0.25, **begun)
    start = load_file(tmp_path / "start/best/model.safetensors")
    shutil.rmtree(tmp_path / "start")
    train(captions(tmp_path / "photographs", BEFORE), tmp_path / "shared", epochs=3, start_share=0.25, **begun)
    trained, kept = (load_file(tmp_path / name / "best/model.safetensors") for name in ("plain", "shared"))
    assert json.loads((tmp_path / "shared/best/metrics_val.json").read_text())["epoch"] == 3
    for name, weight in trained.items():
        torch.testing.assert_close(kept[name], 0.25 * start[name] + 0.75 * weight, msg=name)
    last = [load_file(tmp_path / name / "last/model.safetensors") for name in ("plain", "shared")]
    assert all(torch.equal(*(part[name] for part in last)) for name in last[0])


def test_words_keep_their_ids_and_new_ones_follow_by_their_count():
    start = Vocabulary.build(BEFORE, min_count=1)
    own = Vocabulary.build([*AFTER, "a rare dog"], min_count=2)
    both = start.extended(own.words)
    assert both.words[: len(start)] == start.words
    assert both.words[len(start) :] == ["green", "sleeps"] and own.words[3:] == ["a", "dog", "green", "sleeps"]
    assert both.encode("a green dog") == [both.words.index(word) for word in ("a", "green", "dog")]
    assert start.extended(start.words).words == start.words


@pytest.mark.parametrize("name", MODELS)
def test_kept_words_are_as_likely_as_before_and_new_ones_as_rare_ones(name, tmp_path):
    before, after = captions(tmp_path / "a", BEFORE), captions(tmp_path / "b", AFTER)
    torch.manual_seed(0)
    task = Quiet(before, encoder=SmallestEncoder(), model=MODELS[name]).eval()
    save_weights(task, tmp_path / "model.safetensors")
    before.export(tmp_path)
    sizes = after.extend(tmp_path)
    assert sizes == (len(before.vocabulary), len(after.vocabulary)) == (10, 13)
    new = Quiet(after, encoder=SmallestEncoder(), model=MODELS[name]).eval()
    load_weights(new, tmp_path, another=True, sizes=sizes)
    regions, word = torch.rand(2, 4, 3), torch.tensor([[0, 4], [5, 9]])
    with torch.no_grad():
        logits, again = (part.model.step(word, *reversed(part.model.start(regions, 2)))[0] for part in (task, new))
    torch.testing.assert_close(again[..., :10], logits)
    assert again.shape[-1] == 13 and again.isfinite().all()
    if name == "tied":
        assert new.model.output.weight is new.model.embedding.weight
    else:  # the rarest tenth of ten words is the last one, so the new ones are exactly as likely
        torch.testing.assert_close(again[..., 10:], logits[..., 9:].expand(-1, -1, 3))


def test_new_rows_are_distributed_as_those_of_the_rarest_tenth():
    torch.manual_seed(0)
    weight = torch.randn(10_000, 3) + 5
    weight[9_000:] = torch.randn(1000, 3) * torch.tensor([0.1, 1.0, 2.0]) - 3
    new = grown(weight, torch.Size([14_000, 3]))
    assert torch.equal(new[:10_000], weight)
    torch.testing.assert_close(new[10_000:].mean(dim=0), weight[9_000:].mean(dim=0), atol=0.1, rtol=0)
    torch.testing.assert_close(new[10_000:].std(dim=0), weight[9_000:].std(dim=0), atol=0, rtol=0.05)
    assert grown(torch.arange(4.0), torch.Size([6])).tolist() == [0, 1, 2, 3, 3, 3]


def test_what_differs_in_another_way_does_not_fit(tmp_path):
    before, after = captions(tmp_path / "a", BEFORE), captions(tmp_path / "b", AFTER)
    save_weights(Quiet(before, encoder=SmallestEncoder(), model=MODELS["soft"]), tmp_path / "model.safetensors")
    before.export(tmp_path)
    sizes = after.extend(tmp_path)
    wider = partial(MODELS["soft"], word_size=10)  # which is the number of words in the file
    with pytest.raises(UserError, match=r"of another shape: .*embedding.weight is \(10, 8\) .*, \(13, 10\) in"):
        load_weights(Quiet(after, encoder=SmallestEncoder(), model=wider), tmp_path, another=True, sizes=sizes)
    fits = Quiet(after, encoder=SmallestEncoder(), model=MODELS["soft"])
    with pytest.raises(UserError, match="of another shape: .*embedding.weight"):
        load_weights(fits, tmp_path, another=True)


def test_a_run_that_starts_from_another_says_what_it_keeps_and_is_resumed_exactly(tmp_path, capsys):
    """Also without the run that it started from, and after the captions have changed."""
    train(captions(tmp_path / "a", BEFORE), tmp_path / "first")
    start = {"start_from": str(tmp_path / "first"), "seed": 3}
    train(captions(tmp_path / "b", AFTER), tmp_path / "whole", epochs=2, **start)
    assert f"keeps 10 words of {tmp_path / 'first'} and adds 3\n" in capsys.readouterr().out
    train(captions(tmp_path / "b", AFTER), tmp_path / "parts", epochs=1, **start)
    shutil.rmtree(tmp_path / "first")
    train(captions(tmp_path / "b", AFTER), tmp_path / "parts", epochs=2, **start)
    whole, parts = (load_file(tmp_path / name / "last/model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    words = Vocabulary.load(tmp_path / "parts/best/vocabulary.json").words
    assert words[3:] == ["a", "dog", "red", "sits", "blue", "cat", "runs", "green", "sleeps", "the"]
    train(captions(tmp_path / "b", [*AFTER, "an owl flies"]), tmp_path / "parts", epochs=3, **start)
    assert Vocabulary.load(tmp_path / "parts/best/vocabulary.json").words == words


def test_the_same_words_in_another_order_are_no_other_words(tmp_path, capsys):
    """A vocabulary of the same size was taken for the same one."""
    train(captions(tmp_path / "a", BEFORE), tmp_path / "first")
    mixed = [*BEFORE[::-1], BEFORE[2]]
    data = captions(tmp_path / "b", mixed)
    assert data.vocabulary.words != Vocabulary.build(BEFORE, min_count=1).words
    train(captions(tmp_path / "b", mixed), tmp_path / "second", start_from=str(tmp_path / "first"))
    assert "keeps 10 words" in capsys.readouterr().out
    files = [tmp_path / name / "best/vocabulary.json" for name in ("first", "second")]
    assert Vocabulary.load(files[0]).words == Vocabulary.load(files[1]).words


def test_a_config_without_a_task_takes_it_from_the_run_that_it_starts_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run("sat_soft_scenes", tmp_path / "first")
    start = [f"--run.start_from={tmp_path / 'first'}"]
    config = read(CONFIGS / "finetune_photographs.yaml", start)
    options = config.task.arguments
    assert options["encoder"].arguments["region_size"] == 8 and options["model"].arguments["hidden_size"] == 8
    assert options["max_words"] == 6 and set(options["criteria"]) == {"likelihood", "penalty"}
    assert config.run.start_from == str(tmp_path / "first") and config.optimizer.arguments["lr"] < 3e-3
    assert config.run.warmup < config.run.epochs, "photographs of a single batch are enough"
    again = read(CONFIGS / "finetune_photographs.yaml", [*start, "--task.beams=7"])
    assert again.task.arguments["beams"] == 7 and again.task.arguments["max_words"] == 6
    whole = read(CONFIGS / "sat_soft_scenes.yaml", start)
    assert whole.task.arguments["model"].arguments["hidden_size"] != 8, "a config with a task of its own keeps it"
    with pytest.raises(UserError, match="nowhere does not exist: give the folder of a run"):
        read(CONFIGS / "finetune_photographs.yaml", ["--run.start_from=nowhere"])
    written = tmp_path / "first/best/config.yaml"
    written.write_text(written.read_text().replace("vision_attn.encoders.convnet.ConvNet", "mine.Encoder"))
    with pytest.raises(UserError, match="config.yaml names classes of another package: copy its task into .*finetune"):
        read(CONFIGS / "finetune_photographs.yaml", start)


def test_the_benchmark_of_fine_tuning_starts_from_packed_weights(tmp_path, monkeypatch, capsys):
    """With an untrained captioner, on a few composed photographs: all that `python -m benchmarks.finetune` does."""
    scoring.by(monkeypatch, "BLEU-4", "CIDEr")
    write_run("sat_soft_scenes", tmp_path / "first")
    assert main(["pack", str(tmp_path / "first"), str(tmp_path / "packed")]) == 0
    config = yaml.safe_load((tmp_path / "packed/config.yaml").read_text())
    config["data"] = yaml.safe_load((CONFIGS / "finetune_photographs.yaml").read_text())["data"]
    (tmp_path / "packed/config.yaml").write_text(yaml.safe_dump(config))
    write_set(tmp_path / "set", {"train": 3, "val": 1})
    data = [
        f"--data.images={tmp_path / 'set/images'}",
        f"--data.annotations={tmp_path / 'set/captions.json'}",
        "--data.batch_size=3",
        "--run.device=cpu",
    ]
    start = [f"--run.start_from={tmp_path / 'packed'}", f"--run.folder={tmp_path / 'run'}"]
    assert main(["prepare", str(CONFIGS / "finetune_photographs.yaml"), *start, *data, "--data.max_length=2"]) == 0
    prepared, told = Vocabulary.load(tmp_path / "run/vocabulary.json"), capsys.readouterr()
    assert f"vocabulary: {len(prepared)} words" in told.out
    advice = re.search(r"; to cut no caption, add --data.max_length=(\d+) --task.max_words=(\d+)$", told.out.strip())
    assert advice and int(advice[2]) == int(advice[1]) + 1 > 3 and advice[0][-30:] in told.err
    kept = Vocabulary.load(tmp_path / "packed/vocabulary.json").words
    assert prepared.words[: len(kept)] == kept and len(prepared) > len(kept)
    table = finetune(tmp_path / "out", tmp_path / "packed", ["--run.device=cpu", "--task.validate_with=[]"], quick=True)
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    assert [row[0] for row in rows] == ["| as it is included", "| fine-tuned"]
    words = Vocabulary.load(tmp_path / "out/run/best/vocabulary.json").words
    assert words[: len(kept)] == kept and {"turquoise", "hexagon"} & set(words[len(kept) :])


def test_the_last_layers_of_an_encoder_are_trained_at_a_rate_of_their_own(tmp_path):
    data = captions(tmp_path / "photographs", BEFORE, cache=str(tmp_path / "cache"))
    cut = {"name": "mobilenet_v2", "node": "features.6", "resolution": 32}
    before, after = Backbone(**cut).state_dict(), {}
    for rate in (0.0, 0.5):
        encoder = Backbone(**cut, trainable="features.3", rate=rate)
        encoder.load_state_dict(before)
        build = partial(Quiet, encoder=encoder, model=MODELS["none"])
        run = Run(folder=str(tmp_path / f"{rate}"), epochs=1, metric="nll", mode="min", device="cpu")
        fit(task=build, data=data, optimizer=partial(SGD, lr=0.1), run=run)
        after[rate] = encoder.state_dict()
    changed = {
        rate: {name for name in before if not torch.equal(before[name], state[name])} for rate, state in after.items()
    }
    assert not changed[0] and {name.split(".")[2] for name in changed[0.5]} == {"4", "5", "6"}
    assert len(list((tmp_path / "cache").iterdir())) == 1  # of the layers before these, which both runs share


def test_a_run_that_improved_nothing_says_so(tmp_path, capsys):
    train(captions(tmp_path / "photographs", BEFORE), tmp_path / "before")
    assert "no trained weights" not in capsys.readouterr().out
    worse = {"start_from": str(tmp_path / "before"), "mode": "max"}  # of what training makes smaller
    train(captions(tmp_path / "photographs", BEFORE), tmp_path / "after", **worse)
    said = capsys.readouterr().out
    assert f"no trained weights were better than those that this run started from, which {tmp_path}/after/best" in said
