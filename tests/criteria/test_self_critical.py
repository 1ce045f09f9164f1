"""Self-critical training: its gradient by enumeration, its traps, and whole runs that are resumed and shared."""

import json
import signal
import sys
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from tests import pretend
from tests.engine.test_resume import assert_same
from tests.graphs import TapeGraph
from tests.ways import prepared
from tests.whole_runs import CONFIGS, assert_close, elsewhere, in_two_processes, steps, train
from vision_attn.attention.hard import Hard
from vision_attn.attention.scores import Additive
from vision_attn.commands import main
from vision_attn.configuration.config import build as config_parts
from vision_attn.configuration.config import read
from vision_attn.configuration.run_folder import open_run
from vision_attn.contracts import END, Captioner
from vision_attn.criteria import self_critical
from vision_attn.criteria.likelihood import Likelihood
from vision_attn.criteria.self_critical import SelfCritical, as_at_test, barring_pad
from vision_attn.data.scenes.scenes import Scenes
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.decode import greedy, sample
from vision_attn.encoders.convnet import ConvNet
from vision_attn.engine.capture import WARM_UP, Captured
from vision_attn.engine.run_folder.start import check_rate
from vision_attn.fast import accelerate
from vision_attn.fast.likelihood import weighted_words
from vision_attn.metrics.cider import padded
from vision_attn.metrics.sentence_bleu import sentence_bleu
from vision_attn.models.show_and_tell import ShowAndTell
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.top_down import TopDown
from vision_attn.models.transformer import Transformer
from vision_attn.system.errors import UserError
from vision_attn.task import Source
from vision_attn.tasks.caption import Captioning

L, D, T = 3, 4, 3
IMAGES, REPEATS = 128, 16
REFERENCES = [["red dog", "dog red dog"], ["red"], ["dog dog", "cat"], ["cat red dog"]]
SMALL = {"hidden_size": 5, "word_size": 4, "score": partial(Additive, attention_size=4), "dropout": 0.5}
MODELS = {
    "soft": partial(ShowAttendTell, **SMALL),
    "hard": partial(ShowAttendTell, attention=Hard, **SMALL),
    "top-down": partial(TopDown, **SMALL),
    "no attention": partial(ShowAndTell, hidden_size=5, word_size=4),
    "transformer": partial(Transformer, hidden_size=8, num_heads=2, num_layers=1, feedforward_size=8, max_length=8),
}
ALL = MODELS | {"transformer, post": partial(MODELS["transformer"], norm="post")}


class Words(Source):
    """A source of references alone: three words, of which the captioner does not know "cat"."""

    def __init__(self, references=REFERENCES, words=("dog", "red")):
        self.vocabulary = Vocabulary.build([word for word in words for _ in range(5)], min_count=1)
        self.texts = references

    def references(self):
        return iter(self.texts)


def build(name: str) -> tuple[Captioner, torch.Tensor]:
    """A captioner of three words: the unknown one, "dog" and "red". PAD is likely, as before training."""
    torch.manual_seed(0)
    model = ALL[name](5, D).double().train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
        model.output.bias[0] += 1
    return prepared(model), 2 * torch.randn(1, L, D).double()


def gradient(model: Captioner, loss: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()])


def every_caption() -> torch.Tensor:
    """(1, 40, T): all captions of at most T words, END included; those of T other words are cut."""
    cut = list(product([2, 3, 4], repeat=T))
    ended = [(*words, END) for length in range(T) for words in product([2, 3, 4], repeat=length)]
    return padded([[*ended, *cut]])


def exact(model: Captioner, regions: torch.Tensor, criterion: SelfCritical) -> torch.Tensor:
    """The gradient of -E[CIDEr-D + bleu_weight BLEU] - entropy_weight H, a sum over all captions."""
    words = every_caption()
    texts = padded([[criterion.ids(caption) for caption in REFERENCES[0]]])
    with as_at_test(model), barring_pad(model):
        log_prob = model(regions, words).log_prob.sum(dim=-1)
    torch.testing.assert_close(log_prob.exp().sum().item(), 1.0)
    reward = criterion.cider(words, texts) - criterion.entropy_weight * log_prob
    reward = reward + criterion.bleu_weight * sentence_bleu(words, texts)
    return gradient(model, -(log_prob.exp() * reward).sum())


@pytest.mark.parametrize("name", MODELS)
def test_the_mean_gradient_is_that_of_all_captions(name, both_ways):
    """With dropout in the model, which may not touch the samples nor their gradient."""
    model, regions = build(name)
    criterion = SelfCritical(model, max_words=T)
    criterion.prepare(Words())
    worst, distance, relative = off(model, regions, criterion)
    assert worst < 5.5 and distance < 8 and relative < 0.25


@pytest.mark.parametrize(
    "options", [{"baseline": "greedy"}, {"entropy_weight": 0.5}, {"bleu_weight": 5.0}, {"num_samples": 2}], ids=str
)
def test_the_mean_gradient_with_each_option_is_that_of_all_captions(options):
    """Which no fast version reads."""
    model, regions = build("soft")
    criterion = SelfCritical(model, max_words=T, **options)
    criterion.prepare(Words())
    worst, distance, relative = off(model, regions, criterion)
    assert worst < 5.5 and distance < 8 and relative < 0.25


def off(model: Captioner, regions: torch.Tensor, criterion: SelfCritical) -> tuple[float, float, float]:
    """How many standard errors the worst weight is off, the squared distance of the mean to the exact gradient in units
    of its expectation under sampling noise alone, and that distance as a share of the exact gradient."""
    truth, found = exact(model, regions, criterion), []
    for _ in range(REPEATS):
        with weighted_words(model):
            loss = criterion.explore(model, regions.expand(IMAGES, -1, -1), [REFERENCES[0]] * IMAGES)["loss"]
            found.append(gradient(model, loss))
    assert model.training
    found = torch.stack(found)
    error, away = found.std(0) / REPEATS**0.5, found.mean(0) - truth
    kept = error > 1e-3 * error.max()
    assert kept.sum() > 100
    distance = away.square().sum() / error.square().sum()
    return (away / error)[kept].abs().max().item(), distance.item(), (away.norm() / truth.norm()).item()


def test_a_gradient_without_end_is_another(monkeypatch):
    """The test above can fail: where the choice of END is not trained, the gradient is not the exact one."""
    choice = self_critical.Choice

    def without_end(log_prob, entropy, sampled, state):
        last = torch.nn.functional.pad(sampled[..., 1:], (0, 1))
        return choice(log_prob, entropy, sampled & last, state)

    monkeypatch.setattr(self_critical, "Choice", without_end)  # a mistake that no argument makes
    model, regions = build("soft")
    criterion = SelfCritical(model, max_words=T)
    criterion.prepare(Words())
    worst, distance, _ = off(model, regions, criterion)
    assert worst > 20 and distance > 50


@pytest.mark.parametrize("name", ["soft", "no attention"])
def test_a_gradient_of_probabilities_that_count_pad_is_another(name, monkeypatch, both_ways):
    """Samples are never PAD, so their probability is a share of those of all other words."""
    model, regions = build(name)
    criterion = SelfCritical(model, max_words=T)
    criterion.prepare(Words())
    truth = exact(model, regions, criterion)
    # a mistake that no argument makes
    monkeypatch.setattr(self_critical, "barring_pad", lambda model: nullcontext())
    monkeypatch.setattr(sys.modules[__name__], "exact", lambda *_: truth)
    worst, _, _ = off(model, regions, criterion)
    assert worst > 20


@pytest.mark.parametrize("name", ["soft", "transformer"])
def test_pad_is_barred_while_a_criterion_learns_from_samples_alone(name, both_ways):
    model, regions = build(name)
    words, model.with_mean = every_caption(), True
    with as_at_test(model):
        before = model(regions, words)
        with pytest.raises(ZeroDivisionError), barring_pad(model):
            inside = model(regions, words)
            raise ZeroDivisionError
        after = model(regions, words)
    torch.testing.assert_close(after, before)
    assert inside.mean_log_prob is None and before.mean_log_prob is not None
    more = (inside.log_prob - before.log_prob)[words != 0]
    assert (more > 0).all() and more.max() > 0.1
    torch.testing.assert_close(inside.log_prob.sum(dim=-1).exp().sum().item(), 1.0)


def test_samples_are_scored_and_logged():
    model, regions = build("soft")
    criterion = SelfCritical(model, max_words=T, num_samples=4)
    criterion.prepare(Words())
    torch.manual_seed(1)
    found = criterion.explore(model, regions.expand(3, -1, -1), REFERENCES[:3])
    torch.manual_seed(1)
    with as_at_test(model):
        words = sample(model, regions.expand(3, -1, -1), rows=4, max_words=T).words
    texts = padded([[criterion.ids(caption) for caption in captions] for captions in REFERENCES[:3]])
    reward = criterion.cider(words, texts).float()
    torch.testing.assert_close(found["reward"], reward.mean())
    torch.testing.assert_close(found["reward_std"], reward.std(dim=1).mean())
    assert found.keys() == {"loss", "reward", "reward_std"} and found["reward_std"] > 0.1


@pytest.mark.parametrize("options", [{}, {"baseline": "greedy", "entropy_weight": 0.5}])
def test_a_captured_step_scores_its_samples_as_an_eager_one_does(options, monkeypatch):
    """A graph reads the words of samples and references of each step: CIDEr-D and the order of captions are in
    it. `TapeGraph` repeats operations as a CUDA graph repeats kernels."""
    pretend.tables_of_references(monkeypatch)
    pretend.captioners_on_a_gpu(monkeypatch)
    model, _ = build("soft")
    accelerate(model)
    criterion = SelfCritical(model, max_words=T, **options)
    criterion.prepare(Words())
    weights = list(model.parameters())

    def learn(batches, number):
        regions, *sampled = next(iter(batches))
        with weighted_words(model):
            found = criterion.learn(model, regions, tuple(sampled))
        slopes = torch.autograd.grad(found["loss"], weights, allow_unused=True)
        return found | {f"slope {index}": slope for index, slope in enumerate(slopes) if slope is not None}

    captured, rewards = Captured(learn, torch.device("cpu"), graph=TapeGraph), set()
    for step in range(WARM_UP + 4):
        regions, first = 2 * torch.randn(3, L, D).double(), step % 2
        batch = Explored(regions, *criterion.sample(model, regions, REFERENCES[first : first + 3]))
        eager = learn([batch], 1)
        torch.testing.assert_close(captured([batch], 1), eager, rtol=0, atol=0)
        rewards.add(eager["reward"].item())
    assert [one.graph.replays for one in captured.recorded.values()] == [4] and len(rewards) == WARM_UP + 4


class Explored(NamedTuple):
    """What a captured step of self-critical training reads."""

    regions: torch.Tensor
    words: torch.Tensor
    references: torch.Tensor


def test_document_frequencies_belong_to_the_captions_and_the_vocabulary():
    """The trap of a wrong file: there is no file, and a checkpoint's frequencies are used for nothing else."""
    model, _ = build("soft")
    counted, restored = SelfCritical(model), SelfCritical(model)
    counted.prepare(Words())
    restored.load_state_dict(counted.state_dict())
    restored.prepare(Words())
    assert torch.equal(restored.cider.ngrams, counted.cider.ngrams) and restored.cider.num_images == len(REFERENCES)
    for other in (Words([*REFERENCES, ["dog"]]), Words(words=("cat", "red")), Words([["red"], *REFERENCES[1:]])):
        with pytest.raises(UserError, match="counted on other training captions, or with another vocabulary"):
            restored.prepare(other)


def test_words_of_references_outside_the_vocabulary_are_not_the_unknown_word():
    model, _ = build("soft")
    criterion = SelfCritical(model)
    criterion.prepare(Words())
    assert criterion.ids("cat dog")[0] > 2**62 and criterion.ids("cat dog")[1:] == [3, END]
    unknown, texts = padded([[[2, END]]]), padded([[criterion.ids("cat")]])
    assert criterion.cider(unknown, texts) < criterion.cider(texts, texts) - 2


def task(criteria: dict, attention=None) -> Captioning:
    options = SMALL | ({"attention": attention} if attention else {})
    return Captioning(
        Scenes(),
        encoder=ConvNet(region_size=16, width=16),
        model=lambda words, size: ShowAttendTell(words, size, **options),
        criteria=criteria,
    )


def test_given_captions_are_run_only_where_a_criterion_asks_for_them(monkeypatch):
    batch = next(iter(Scenes(batch_size=4, epoch_images=4).train(0, seed=0)))
    found, ran = {}, []
    for name, criteria in {"alone": {}, "beside": {"likelihood": Likelihood}}.items():
        both = task(criteria | {"self_critical": partial(SelfCritical, max_words=6)}, attention=None)
        both.prepare(Scenes())
        both.model.register_forward_hook(lambda module, args, caption: ran.append(args[1]))
        torch.manual_seed(3)
        found[name] = both(*batch)
        assert sum(words is batch.words for words in ran) == (name == "beside")
        assert both.fine_tunes == (name == "alone") and both.highest_rate == 5e-4
    assert "nll" in found["beside"] and "nll" not in found["alone"] and "entropy" not in found["alone"]
    assert found["beside"]["loss"] > found["alone"]["loss"] + 10  # the likelihood of 13 words


@pytest.mark.parametrize("name", ALL)
def test_a_temperature_scales_all_logits_when_a_run_starts(name):
    """So the most likely words stay, and samples come near them."""
    captioner, regions = build(name)
    criterion = SelfCritical(captioner, temperature=0.25)

    def first() -> torch.Tensor:
        memory, state = captioner.start(regions, 1)
        return captioner.step(torch.zeros(len(regions), 1, dtype=torch.long), state, memory)[0]

    with as_at_test(captioner), torch.no_grad():
        before, words = first(), greedy(captioner, regions, max_words=T).words
        criterion.restart(captioner)
        torch.testing.assert_close(first(), 4 * before)
        assert torch.equal(greedy(captioner, regions, max_words=T).words, words)


def test_a_temperature_scales_no_captioner_that_has_been_trained_so_before():
    """Self-critical training continued by another run would scale the logits twice."""
    own = "vision_attn.criteria.self_critical.SelfCritical"
    likelihood = {"likelihood": "vision_attn.criteria.likelihood.Likelihood"}
    for criteria, factor in (({}, 4), (likelihood, 4), ({"a": own}, 1), ({"a": {"class_path": own}}, 1)):
        fine = task({"self_critical": partial(SelfCritical, temperature=0.25)})
        before = fine.model.output.weight.clone()
        fine.restart({"class_path": "any", "init_args": {"criteria": criteria}})
        torch.testing.assert_close(fine.model.output.weight, factor * before)


def test_a_temperature_needs_a_layer_of_logits():
    with pytest.raises(UserError, match="Captioner has no layer of logits"):
        Captioner().sharpen(0.5)


def test_hard_attention_needs_an_estimator_only_for_given_captions():
    alone = task({"self_critical": SelfCritical}, attention=Hard)
    assert alone.model.reinforced and alone.fine_tunes
    with pytest.raises(UserError, match="no criterion trains that"):
        task({"self_critical": SelfCritical, "likelihood": Likelihood}, attention=Hard)


SIZES = {
    "data__batch_size": 4, "data__epoch_images": 16, "data__val_images": 4, "data__test_images": 4, "run__warmup": 0,
    "run__device": "cpu", "run__log_every": 1, "task__encoder__region_size": 8, "task__encoder__width": 16,
    "task__model__hidden_size": 8, "task__model__word_size": 8, "task__model__score__attention_size": 8,
    "task__max_words": 8, "task__validate_with": "[]", "run__metric": "nll", "run__mode": "min",
}  # fmt: skip
OWN = {
    "task__criteria__self_critical__max_words": 8, "task__criteria__self_critical__num_samples": 3, "run__epochs": 2,
    "task__criteria__self_critical__temperature": 0.5,  # applied once: also where a run is killed and resumed
}  # fmt: skip


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    """A run of likelihood, to start from."""
    folder = tmp_path_factory.mktemp("start") / "run"
    assert main(train("sat_soft_scenes", **SIZES, run__folder=folder, run__epochs=1, data__rows=2)) == 0
    return folder


def command(folder: Path, start: Path, **settings) -> list[str]:
    settings = {"run__folder": folder, "run__start_from": start} | settings
    return train("sat_soft_scenes_cider", **SIZES | OWN | settings)


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory) -> Path:
    """A run of self-critical training that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert main(command(folder, start)) == 0
    return folder


def test_the_starting_weights_are_validated_and_stay_the_best_until_others_are_better(start, tmp_path, capsys):
    """So a metric never ends worse than it began. A rate that ruins the captioner is named, and best/ stays as it was.
    CIDEr is 0 before and after, up to chance, in so short a training; nll is not."""
    judged = {"task__validate_with": "[CIDEr]", "run__metric": "nll", "run__mode": "min", "run__epochs": 1}
    assert main(command(tmp_path / "run", start, optimizer__lr=3, **judged)) == 0
    assert "above 0.0005 this loss is known to harm" in capsys.readouterr().out
    logged = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    began, ended = (line for line in logged if "val/nll" in line)
    assert (began["step"], began["epoch"], ended["epoch"]) == (0, 0, 1) and ended["val/nll"] > began["val/nll"] + 1
    best = json.loads((tmp_path / "run/best/metrics_val.json").read_text())
    assert (best["step"], best["epoch"], best["nll"]) == (0, 0, began["val/nll"])


def test_an_untrained_captioner_is_refused(tmp_path, capsys):
    assert main(command(tmp_path / "run", "null")) == 1
    assert "only improves a model that is trained already" in capsys.readouterr().err


@pytest.mark.parametrize("config", ["sat_soft_scenes_cider", "sat_soft_flickr8k_cider"])
def test_the_configs_avoid_the_traps(config, capsys):
    parts = config_parts(read(CONFIGS / f"{config}.yaml"))
    if "flickr8k" in config:
        parts["data"].vocabulary = Words().vocabulary  # so that no data is needed
    model = parts["task"](parts["data"])
    check_rate(model, parts["optimizer"](model.parameters()))
    assert not capsys.readouterr().out
    assert parts["run"].start_from and parts["run"].metric == "CIDEr"
    assert model.fine_tunes and model.criteria["self_critical"].cider.end


def test_a_run_is_opened_without_training_captions(whole, monkeypatch):
    """The document frequencies lie in best/, and nothing counts them again."""
    monkeypatch.setattr(Scenes, "references", None)  # counted again, the frequencies would be the same
    opened, _, _ = open_run(whole)
    assert opened.criteria["self_critical"].cider.num_images == 2000
    assert len(opened.criteria["self_critical"].cider.ngrams) > 100
    assert opened.evaluate([next(iter(Scenes(batch_size=2).split("test")))])["nll"] > 0


def test_packed_weights_leave_out_what_training_counts_again(whole, tmp_path):
    assert main(["pack", str(whole), str(tmp_path / "packed")]) == 0
    opened, _, _ = open_run(tmp_path / "packed")
    assert len(opened.criteria["self_critical"].cider.ngrams) == 0
    assert main(command(tmp_path / "run", tmp_path / "packed", run__epochs=1)) == 0
    counted, _, _ = open_run(tmp_path / "run")
    assert len(counted.criteria["self_critical"].cider.ngrams) > 100


def die_before(epoch: int, batch: int) -> None:
    """Make scenes kill their process before this batch."""
    import os

    batches = Scenes.train

    def deadly(source, number, **options):
        for index, each in enumerate(batches(source, number, **options)):
            if (number, index) == (epoch, batch):
                os.kill(os.getpid(), signal.SIGKILL)
            yield each

    Scenes.train = deadly


@pytest.mark.parametrize("epoch, batch, save_every", [(0, 1, 600), (1, 2, 0)])
def test_a_killed_run_resumes_exactly(start, whole, tmp_path, epoch, batch, save_every):
    """Also where it had only saved and validated the weights that it starts from."""
    process = elsewhere(command(tmp_path / "run", start, run__save_every=save_every), partial(die_before, epoch, batch))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    position = json.loads((tmp_path / "run/last/position.json").read_text())
    assert position["step"] == (0 if epoch == 0 else 6)
    assert main(command(tmp_path / "run", start, run__save_every=save_every)) == 0
    assert_same(tmp_path / "run", whole, parts=("last", "best"))


def sample_the_first_words(change) -> None:
    """Make samples depend on the image alone: each row begins with its own word and goes on greedily."""

    def fixed(model, regions, *, rows, max_words):
        words = torch.full((len(regions), rows, max_words), END)
        memory, state = model.start(regions, rows)
        word = torch.zeros(len(regions), rows, dtype=torch.long)
        for place in range(max_words - 1):
            logits, state, _ = model.step(word, state, memory)
            logits[..., :2] = -torch.inf
            word = logits.argmax(dim=-1)
            if place == 0:
                word = 2 + (word + torch.arange(rows)) % (logits.shape[-1] - 2)
            words[..., place] = word
        return SimpleNamespace(words=words)

    change(self_critical, "sample", fixed)


def test_two_processes_equal_one_with_the_joined_batch(start, tmp_path, monkeypatch):
    """Each process samples by itself; given samples that depend on the image alone, two compute the same."""
    settings = {"optimizer": "torch.optim.SGD", "optimizer__lr": 0.001}
    sample_the_first_words(monkeypatch.setattr)  # a criterion takes no way to sample
    assert main(command(tmp_path / "one", start, **settings)) == 0
    in_two_processes(command(tmp_path / "two", start, **settings), partial(sample_the_first_words, setattr))
    assert_close(tmp_path / "one", tmp_path / "two", number=8, near=1e-6)  # the loss is a sum of differences
    assert all(step["reward_std"] > 0 for step in steps(tmp_path / "one"))
