"""Ensembles against a plain loop over their members, by the class, by the task and by the command."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from tests import scoring
from tests.untrained import write_run
from vision_attn.attention.hard import Hard
from vision_attn.commands import main
from vision_attn.contracts import END, Captioner, Encoder
from vision_attn.data.photographs.captions import Captions
from vision_attn.data.scenes.scenes import Scenes
from vision_attn.decode import beam_search, greedy
from vision_attn.encoders.concatenated import Concatenated
from vision_attn.encoders.convnet import ConvNet
from vision_attn.models.ensemble import Ensemble, Share
from vision_attn.models.show_and_tell import ShowAndTell
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.top_down import TopDown
from vision_attn.models.transformer import Transformer
from vision_attn.system.errors import UserError
from vision_attn.tasks.caption import Captioning
from vision_attn.tasks.ensemble import ensemble

B, L, D, V = 4, 5, 4, 9
EVERYTHING = Share(L, slice(0, D))
FAMILIES = {
    "soft": partial(ShowAttendTell, hidden_size=6, word_size=8),
    "hard": partial(ShowAttendTell, hidden_size=6, word_size=8, attention=Hard),
    "top-down": partial(TopDown, hidden_size=6, word_size=8),
    "no attention": partial(ShowAndTell, hidden_size=6, word_size=8),
    "transformer": partial(Transformer, hidden_size=8, num_layers=2, num_heads=2, feedforward_size=8, max_length=12),
}


def member(family, seed=0, size=D):
    torch.manual_seed(seed)
    model = FAMILIES[family](V, size).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(3)
        model.output.bias[END] += 1
    return model


@pytest.fixture(scope="module")
def regions():
    return 2 * torch.randn(B, L, D, generator=torch.Generator().manual_seed(1))


def spelled(decoded, b, r=0):
    return tuple(word for word in decoded.words[b, r].tolist() if word != 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_ensemble_of_one_captioner_with_itself_is_that_captioner(family, regions):
    model = member(family)
    twice = Ensemble([model, model], [EVERYTHING] * 2, same_regions=True)
    one, both = (beam_search(each, regions, beams=3, max_words=8) for each in (model, twice))
    assert torch.equal(one.words, both.words)
    torch.testing.assert_close(both.score, one.score, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(both.log_prob, one.log_prob, rtol=1e-4, atol=1e-4)
    assert (one.alpha is None) == (both.alpha is None)
    if one.alpha is not None:
        torch.testing.assert_close(both.alpha, one.alpha, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        twice(regions, one.words).log_prob, model(regions, one.words).log_prob, rtol=1e-4, atol=1e-4
    )


def plain_greedy(models, views, max_words):
    """Word by word for one image: the mean of the probabilities of all models, each run on all words so far."""
    words, log_prob = [], []
    while len(words) < max_words and END not in words:
        said = []
        for model, regions in zip(models, views, strict=True):
            memory, state = model.start(regions[None], 1)
            for word in (0, *words):
                logits, state, _ = model.step(torch.tensor([[word]]), state, memory)
            said.append(logits[0, 0].softmax(-1))
        p = sum(said) / len(said)
        p[0] = 0
        words.append(int(p.argmax()))
        log_prob.append(p.max().log().item())
    return tuple(words), log_prob


def test_an_ensemble_of_all_families_equals_a_plain_loop(regions):
    """Each member sees its own regions and features of the annotation vectors."""
    shares = [
        Share(5, slice(0, 4)),
        Share(3, slice(1, 4)),
        Share(4, slice(0, 2)),
        Share(5, slice(2, 3)),
        Share(5, slice(0, 3)),
    ]
    models = [member(family, seed, share.features.stop - share.features.start)
              for seed, (family, share) in enumerate(zip(FAMILIES, shares, strict=True))]  # fmt: skip
    decoded = greedy(Ensemble(models, shares, same_regions=False), regions, max_words=8)
    alone = [greedy(model, _part(regions, share), max_words=8) for model, share in zip(models, shares, strict=True)]
    assert decoded.alpha is None, "there is no map where members see different regions"
    for b in range(B):
        views = [_part(regions, share)[b] for share in shares]
        words, log_prob = plain_greedy(models, views, 8)
        assert spelled(decoded, b) == words
        torch.testing.assert_close(decoded.log_prob[b, 0, : len(words)], torch.tensor(log_prob), rtol=1e-4, atol=1e-4)
    for each in alone:
        assert [spelled(each, b) for b in range(B)] != [spelled(decoded, b) for b in range(B)]


def _part(regions, share):
    return regions[:, : share.num_regions, share.features]


def test_beams_keep_the_state_of_every_member(regions):
    """`forward` on the result of a beam search says the same, with the mean of the members' maps."""
    models = [member(family, seed) for seed, family in enumerate(FAMILIES)]
    whole = Ensemble(models, [EVERYTHING] * len(models), same_regions=True)
    assert whole.max_length == 12, "that of the Transformer; the others have no limit"
    decoded = beam_search(whole, regions, beams=4, max_words=9, no_repeat=2, length_power=0.5)
    caption = whole(regions, decoded.words)
    torch.testing.assert_close(decoded.log_prob, caption.log_prob, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(decoded.alpha, caption.alpha, rtol=1e-3, atol=1e-4)
    each = [model(regions, decoded.words) for model in models]
    torch.testing.assert_close(caption.alpha, sum(one.alpha for one in each if one.alpha is not None) / 4)
    mean = sum(one.log_prob.exp() for one in each) / len(models)
    torch.testing.assert_close(caption.log_prob, mean.log() * (decoded.words != 0), rtol=1e-4, atol=1e-5)


class Blocks(Encoder):
    """Means of blocks of pixels, with a weight of their own: a frozen encoder that needs no file."""

    def __init__(self, *, resolution: int = 8, rows: int = 2, scale: float = 1.0):
        super().__init__()
        self.resolution, self.region_size, self.grid = resolution, 3, (rows, rows)
        self.scale = torch.nn.Parameter(torch.tensor(scale), requires_grad=False)

    def identity(self):
        return {"backbone": "blocks", "resolution": self.resolution, "rows": self.grid[0], "scale": str(self.scale)}

    def forward(self, images):
        pooled = F.adaptive_avg_pool2d(images.float() / 100, self.grid[0])
        return self.scale * pooled.flatten(2).mT


def test_joined_encoders_give_each_member_its_own_regions():
    encoders = [Blocks(rows=2), Blocks(rows=4, scale=2.0), Blocks(rows=1, resolution=4)]
    joined = Concatenated(encoders)
    images = torch.randint(0, 255, (2, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    regions = joined(images)
    assert regions.shape == (2, 16, 9) and joined.grid == (4, 4) and joined.region_size == 9
    assert torch.equal(regions[:, :4, :3], encoders[0](images)) and not regions[:, 4:, :3].any()
    assert torch.equal(regions[:, :, 3:6], encoders[1](images))
    # Reduced first, then averaged: the mean of all pixels, up to the rounding of pixels.
    torch.testing.assert_close(regions[:, 0, 6:], encoders[2](images)[:, 0], atol=0.2, rtol=0)
    assert joined.resolution == 8 and not joined.trainable and Concatenated([ConvNet(), Blocks()]).trainable
    assert len({tuple(Concatenated([Blocks(), other]).identity().items()) for other in encoders}) == 3


# Tasks and their data


def captioning(source, encoder, family="soft", seed=0, **options):
    torch.manual_seed(seed)
    task = Captioning(source, encoder=encoder, model=FAMILIES[family], criteria={}, max_words=5, **options)
    with torch.no_grad():
        for weights in task.model.parameters():
            weights.mul_(2)
    return task.eval()


@pytest.fixture
def photographs(tmp_path) -> Captions:
    images, notes = [], []
    for number in range(7):
        colour = tuple(int(x) for x in torch.randint(255, (3,), generator=torch.Generator().manual_seed(number)))
        Image.new("RGB", (20, 16), colour).save(tmp_path / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "split": "train" if number < 2 else "test"})
        notes.append({"id": number, "image_id": number, "caption": "a dog on a red ball in the park"[: 9 + number]})
    (tmp_path / "captions.json").write_text(json.dumps({"images": images, "annotations": notes}))
    return Captions(
        images=str(tmp_path), annotations=str(tmp_path / "captions.json"), min_count=1, rows=2, batch_size=2,
        evaluation_batch_size=3, cache=str(tmp_path / "cache"),
    )  # fmt: skip


def test_each_encoder_has_its_own_cache_and_equal_ones_share_it(photographs, tmp_path):
    tasks = [
        captioning(photographs, Blocks(rows=2)),
        captioning(photographs, Blocks(rows=4), "transformer", 1),
        captioning(photographs, Blocks(rows=2), "no attention", 2),
    ]
    whole, source = ensemble(tasks, photographs)
    source.prepare(whole)
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert whole.encoder.region_size == 6 and len(whole.encoder.encoders) == 2
    metrics = whole.evaluate(source.split("test"))
    photographs.cache = None
    found = [batch.ids for batch in source.split("test")]
    assert found[1::2] == [batch.ids for batch in source.split("test", rank=1, world=2)]
    assert sorted(sum(found, ())) == [2, 3, 4, 5, 6]
    by_cache = [text.text for batch in source.split("test") for text in whole.describe(batch.images)]
    from_pixels = []
    for ids in found:
        images = torch.stack([_pixels(tmp_path / f"{number}.png") for number in ids])
        from_pixels += [text.text for text in whole.describe(images)]
        with torch.no_grad():
            log_prob = [
                task.model(task.encoder(images), torch.tensor([[[3, 1]]] * len(ids))).log_prob for task in tasks
            ]
            mean = sum(part.exp() for part in log_prob) / 3
            joint = whole.model(whole.encoder(images), torch.tensor([[[3, 1]]] * len(ids))).log_prob
        torch.testing.assert_close(joint, mean.log(), rtol=1e-4, atol=1e-4)
    assert by_cache == from_pixels and metrics["nll"] > 0


def _pixels(path: Path):
    from vision_attn.data.images.squares import read_image

    return read_image(path, 8)


def test_caches_of_different_photographs_are_refused(photographs, tmp_path):
    tasks = [captioning(photographs, Blocks(rows=2)), captioning(photographs, Blocks(rows=4))]
    whole, source = ensemble(tasks, photographs)
    source.sources[0].prepare(tasks[0])
    size = (tmp_path / "6.png").stat().st_size
    (tmp_path / "6.png").write_bytes(b"x" * size)
    source.sources[1].prepare(tasks[1])
    with pytest.raises(UserError, match="hold different photographs"):
        list(source.split("test"))


def test_runs_decode_as_the_first_and_have_one_vocabulary(photographs):
    scenes = Scenes(batch_size=4, test_images=4)
    first = captioning(scenes, ConvNet(region_size=8, width=16), beams=2, no_repeat=2, length_power=0.5)
    other = captioning(scenes, ConvNet(region_size=16, width=16), "transformer", 1, beams=4)
    whole, source = ensemble([first, other], scenes)
    assert whole.settings == first.settings and whole.content_words == scenes.content_words
    source.prepare(whole)
    (batch,) = source.split("test")
    assert batch.images.dtype == torch.uint8, "all encoders take the same pixels, which pictures show"
    assert all(caption.alpha.shape[1:] == (14, 14) for caption in whole.describe(batch.images))
    with pytest.raises(UserError, match="run 2 of the ensemble has another vocabulary"):
        ensemble([first, captioning(photographs, Blocks())], scenes)


class NoMap(Captioner):
    """Any word with the same probability."""

    def start(self, regions, rows):
        return None, torch.zeros(len(regions), rows)

    def step(self, word, state, memory):
        return torch.zeros(*word.shape, V), state, None


def test_half_a_vote_for_every_word_moves_no_word_but_its_probability(regions):
    model = member("soft")
    mixed = Ensemble([model, NoMap()], [EVERYTHING] * 2, same_regions=True)
    one, both = (greedy(each, regions, max_words=1) for each in (model, mixed))
    assert torch.equal(one.words, both.words)
    torch.testing.assert_close(both.log_prob.exp(), (one.log_prob.exp() + 1 / V) / 2)
    assert torch.equal(one.alpha, both.alpha)


# The command


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, Path]:
    """Two untrained runs that differ in their weights."""
    folder = tmp_path_factory.mktemp("runs")
    one = write_run("sat_soft_scenes", folder / "one")
    other = shutil.copytree(one, folder / "other")
    for run, seed in ((one, 1), (other, 2)):
        torch.manual_seed(seed)
        path = run / "best" / "model.safetensors"
        save_file({name: 4 * part + torch.randn_like(part) for name, part in load_file(path).items()}, path)
    return one, other


def captions(folder: Path) -> list[str]:
    return [record["caption"] for record in json.loads((folder / "captions_test.json").read_text())]


def metrics(folder: Path) -> dict:
    return json.loads((folder / "metrics_test.json").read_text())


@pytest.fixture(scope="module", autouse=True)
def one_metric() -> Iterator[None]:
    """Evaluations compute BLEU alone, which takes a fraction of the time of all metrics."""
    with pytest.MonkeyPatch.context() as patch:
        scoring.by(patch, "BLEU-4")
        yield


@pytest.fixture(scope="module")
def alone(runs, tmp_path_factory) -> Path:
    """The results of the first run by itself."""
    folder = tmp_path_factory.mktemp("alone")
    assert main(["eval", str(runs[0]), f"--out={folder}", "--device=cpu"]) == 0
    return folder


def test_eval_of_a_run_with_itself_is_eval_of_the_run(runs, alone, tmp_path):
    assert main(["eval", str(runs[0]), str(runs[0]), f"--out={tmp_path}", "--device=cpu"]) == 0
    assert captions(tmp_path) == captions(alone)
    expected, found = metrics(alone), metrics(tmp_path)
    assert found["run"] == [str(runs[0])] * 2
    for name in ("BLEU-4", "nll", "pointing", "mass"):
        assert found[name] == pytest.approx(expected[name], rel=1e-3)


def test_eval_of_included_weights_leaves_them_as_they_are(runs, tmp_path, monkeypatch):
    included = shutil.copytree(runs[0] / "best", tmp_path / "weights" / "scenes")
    monkeypatch.setattr("vision_attn.commands.eval.ours", lambda: tmp_path)  # a failure would write there
    monkeypatch.chdir(tmp_path)
    before = sorted(included.iterdir())
    for folder in ("weights/scenes", str(included)):
        assert main(["eval", folder, "--device=cpu"]) == 0
    assert sorted(included.iterdir()) == before
    assert (tmp_path / "runs" / "scenes" / "metrics_test.json").is_file()


def test_eval_of_two_runs_is_an_ensemble_of_both(runs, alone, capsys):
    assert main(["eval", str(runs[0]), "--show", "1", "--device=cpu", "--task.min_words=2", str(runs[1])]) == 0
    out = runs[0] / "ensemble"
    assert captions(out) != captions(alone) and metrics(out)["nll"] != metrics(alone)["nll"]
    assert metrics(out)["run"] == list(map(str, runs)) and metrics(out)["min_words"] == 2
    assert not (runs[0] / "metrics_test.json").exists(), "the results of the run itself are not replaced"
    assert (out / "pictures_test" / "index.html").is_file()
    assert str(out / "metrics_test.json") in capsys.readouterr().out
    out.rename(out.with_name("elsewhere"))
    out.symlink_to("elsewhere")
    assert main(["eval", str(runs[0]), "--device=cpu", str(runs[1])]) == 1
    assert "ensemble is a link: remove it" in capsys.readouterr().err
    out.unlink()


def test_a_run_with_other_words_is_refused(runs, tmp_path, capsys):
    other = shutil.copytree(runs[1], tmp_path / "german")
    path = other / "best" / "vocabulary.json"
    path.write_text(re.sub('"red"', '"rot"', path.read_text()))
    for argv in (["eval", str(runs[0]), str(other)], ["caption", str(runs[0]), "x.jpg", "--with", str(other)]):
        assert main(argv) == 1
        assert "run 2 of the ensemble has another vocabulary" in capsys.readouterr().err


def test_an_ensemble_is_of_captioners(runs, tmp_path, capsys):
    ram = write_run("ram_mnist28", tmp_path / "ram")
    assert main(["eval", str(runs[0]), str(ram)]) == 1
    assert f"an ensemble needs captioners, but {ram} holds a classifier" in capsys.readouterr().err
    lines = write_run(
        "strings_read_search", tmp_path / "lines", sizes=["--task.model.hidden_size=8", "--run.device=cpu"]
    )
    assert main(["eval", str(lines), str(lines)]) == 1
    assert "runs that read lines are not averaged; vision-attn transcribe" in capsys.readouterr().err
    assert main(["eval", str(runs[0]), str(runs[1]), "--task.no_such_key=1"]) == 1
    assert "there is no such key" in capsys.readouterr().err


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    Image.effect_noise((80, 60), 90).convert("RGB").save(tmp_path / "photo é.png")
    return tmp_path / "photo é.png"


def test_caption_with_another_run(runs, photograph, capsys):
    said = []
    for argv in ([], ["--with", str(runs[0])], ["--with", str(runs[1])]):
        assert main(["caption", str(runs[0]), str(photograph), "--json", "--device=cpu", *argv]) == 0
        said.append(json.loads(capsys.readouterr().out))
    words = [record["captions"][0]["words"] for record in said]
    assert [word["word"] for word in words[0]] == [word["word"] for word in words[1]]
    for one, both in zip(words[0], words[1], strict=True):
        assert both["log_prob"] == pytest.approx(one["log_prob"], rel=1e-3, abs=1e-4)
    assert words[2] != words[0]


@pytest.mark.parametrize("options", [[], ["--diverse"], ["--sample", "--temperature=0.7", "--top-p=0.9"]])
def test_several_captions_of_a_photograph(runs, photograph, capsys, options):
    argv = ["caption", str(runs[0]), str(photograph), "--captions=3", "--device=cpu", *options]
    assert main(argv) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert {name for name, _ in lines} == {str(photograph)}
    assert len(lines) == 3 or "--diverse" in options  # equal captions are printed once
    assert main([*argv, "--json"]) == 0
    line = capsys.readouterr().out
    record = json.loads(line)
    assert line.isascii() and record["file"] == str(photograph)
    assert [caption["caption"] for caption in record["captions"]] == [text for _, text in lines]
    for caption in record["captions"]:
        assert " ".join(word["word"] for word in caption["words"]) == caption["caption"]
        assert all(word["log_prob"] <= 0 for word in caption["words"])


def test_mistakes_in_the_options_of_captions(runs, photograph, capsys):
    for options, said in (
        (["--captions=0"], "--captions is 0"),
        (["--temperature=2"], "--temperature is for sampled captions: add --sample"),
        (["--top-p=0.5", "--diverse"], "--top-p is for sampled captions"),
        (["--captions=1", "--diverse"], "--diverse is for several captions"),
        (["--sample", "--top-p=0"], "top_p is 0.0, but must be from"),
        (["--task.min_words=90"], "min_words is 90, but must be from 0 to 6"),
    ):
        assert main(["caption", str(runs[0]), str(photograph), *options]) == 1
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["caption", str(runs[0]), str(photograph), "--sample", "--diverse"])
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.slow
def test_the_commands_of_the_docs_run(runs, tmp_path, monkeypatch, capsys):
    """All commands in the section on decoding, on untrained runs."""
    text = (Path(__file__).parents[2] / "docs" / "captioning.md").read_text()
    section = text.split("\n## Decoding: ")[1].split("\n## ")[0]
    commands = re.findall(r"^vision-attn (.*)$", "\n".join(re.findall(r"```bash\n(.*?)```", section, re.DOTALL)), re.M)
    monkeypatch.chdir(tmp_path)
    Path("docs").symlink_to(Path(__file__).parents[2] / "docs")
    for name, run in (("mine", runs[0]), ("two", runs[1]), ("three", runs[0])):
        shutil.copytree(run / "best", Path("runs") / name / "best")
    for photograph in (Path("photo.jpg"), Path("holiday/beach.jpg")):
        photograph.parent.mkdir(exist_ok=True)
        noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
        Image.fromarray(noise).save(photograph)
    lines = []
    for command in commands:
        argv = shlex.split(command, comments=True)
        assert main([*argv, "--device=cpu"]) == 0, (command, capsys.readouterr().err)
        lines.append(len(capsys.readouterr().out.splitlines()))
    captions = [number for command, number in zip(commands, lines, strict=True) if command.startswith("caption")]
    diverse = captions.pop(1)  # of an untrained run, groups find equal captions, which are printed once
    assert captions == [5, 5, *[1] * 6] and 1 < diverse <= 5 and len(commands) == 11
    assert (Path("runs/mine/ensemble") / "metrics_test.json").is_file()
    assert metrics(Path("runs/mine"))["no_repeat"] == 3
