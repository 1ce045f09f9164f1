"""Tests pretend to run on another machine, or with other limits, where the package takes no argument for it. Each such
place of the package is named here alone, with the reason, and has its value again when the test ends."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image
from torch import Tensor

from tests.graphs import PlainGraph
from vision_attn.system.thread_trial import ThreadTrial


def kernels(patch: pytest.MonkeyPatch, there: bool = True) -> None:
    """Tensors lie where kernels of Triton run: its interpreter runs them on a CPU."""
    patch.setattr("vision_attn.fast.versions.on_gpu", lambda tensor: there)


def launching(patch: pytest.MonkeyPatch, module: ModuleType, launch: Callable[..., None]) -> None:
    """The kernels of this module are launched by this: it lists them, counts them or fails, which no result shows."""
    patch.setattr(module, "launch", launch)


def captured_steps(patch: pytest.MonkeyPatch, graph: type[PlainGraph]) -> None:
    """Steps of training are captured as on a GPU, by graphs that a CPU can replay."""
    patch.setattr("vision_attn.engine.capture.CUDAGraph", graph)
    patch.setattr(PlainGraph, "made", [])


def replayed_searches(patch: pytest.MonkeyPatch, graph: type[PlainGraph]) -> None:
    """Searches for captions are captured as on a GPU, by graphs that a CPU can replay."""
    patch.setattr("vision_attn.decode.replay.CUDAGraph", graph)
    patch.setattr(PlainGraph, "made", [])


def tables_of_references(patch: pytest.MonkeyPatch) -> None:
    """References of captions lie in a table, which a captured step of self-critical training reads."""
    patch.setattr("vision_attn.criteria.self_critical.has_graphs", lambda device: True)


def unread_words(patch: pytest.MonkeyPatch) -> None:
    """Words lie on a GPU, where reading them takes longer than computing padding too."""
    patch.setattr("vision_attn.fast.ragged.readable", lambda words: False)


def captioners_on_a_gpu(patch: pytest.MonkeyPatch) -> None:
    """They compute padding too, so that shapes do not depend on words, and keep all logits."""
    from vision_attn.fast.likelihood import word_log_prob

    def keeping_logits(*given: Tensor, weighted: bool, **options: Any) -> Tensor:
        return word_log_prob(*given, weighted=True, **options)

    unread_words(patch)
    patch.setattr("vision_attn.fast.likelihood._row_groups", lambda words, weight: [slice(None)])
    patch.setattr("vision_attn.fast.likelihood.word_log_prob", keeping_logits)
    patch.setattr(
        "vision_attn.fast.models.recurrent.Packed.from_words",
        lambda model, words, embedded: model.word_to_lstm(embedded),
    )


def likeliest_samples(patch: pytest.MonkeyPatch) -> None:
    """The region and the word that are sampled are the likeliest ones: `attention.hard.sample` divides by these."""
    patch.setattr(Tensor, "exponential_", lambda random: random.fill_(1))


def processor(patch: pytest.MonkeyPatch, *, intel: bool) -> None:
    """The maker of the processor decides which library multiplies."""
    patch.setattr("vision_attn.fast.products.is_intel", lambda: intel)


def small_products(patch: pytest.MonkeyPatch) -> None:
    """Products of the sizes of tests are too small for oneDNN otherwise."""
    patch.setattr("vision_attn.fast.products.SMALL", 0)


def several_parts(patch: pytest.MonkeyPatch) -> None:
    """Logits of the words of a test are more than are computed at once."""
    patch.setattr("vision_attn.fast.likelihood.AT_ONCE", 100)


def threads_that_share_little(patch: pytest.MonkeyPatch) -> None:
    """Loops are divided among threads even where one would be faster."""
    patch.setattr("vision_attn.fast.loops.IN_ONE_THREAD", 0)


def short_captions(patch: pytest.MonkeyPatch, words: int) -> None:
    """A captioner of another library ends after so many `words`: with random weights it would go on to 40."""
    patch.setattr("vision_attn.explain.captioners.word_maps.MOST_WORDS", words)


def sheets(patch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Sheets of maps are not drawn: no text can be read from a picture. Returns the list that gets the title and the
    remark of each."""
    found: list[tuple[str, str]] = []

    def sheet(_: Any, *, remark: str, title: str = "", **__: Any) -> Image.Image:
        found.append((title, remark))
        return Image.new("RGB", (8, 8))

    patch.setattr("vision_attn.viz.attention.sheet", sheet)
    return found


def impatient_server(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """A request must arrive, and an answer be read, in `seconds` in place of five minutes."""
    patch.setattr("vision_attn.web.connections.LONGEST", seconds)
    patch.setattr("vision_attn.web.connections.LINGER", seconds)


def connections_at_most(patch: pytest.MonkeyPatch, number: int) -> None:
    """The server may hold so many connections, since the process may open twice as many files."""
    import resource

    files, limits = resource.RLIMIT_NOFILE, resource.getrlimit
    patch.setattr(resource, "getrlimit", lambda kind: (2 * number,) * 2 if kind == files else limits(kind))


def answering(patch: pytest.MonkeyPatch, answers: Callable[..., Any]) -> None:
    """The server's questions are answered by this: it waits, counts or fails at a moment that the test chooses."""
    patch.setattr("vision_attn.web.server.answers", answers)


def cores(patch: pytest.MonkeyPatch, number: int) -> None:
    """The machine has so many."""
    patch.setattr("vision_attn.system.thread_trial.cores", lambda: number)


def threads_to_try(patch: pytest.MonkeyPatch, *numbers: int) -> None:
    """Runs and commands may try these numbers of threads, whatever the machine has."""
    for module in ("engine.device_settings", "system.locks"):
        patch.setattr(f"vision_attn.{module}.numbers_to_try", lambda device: numbers)


def seconds_of_work(patch: pytest.MonkeyPatch, seconds: dict[int, float]) -> list[int]:
    """A piece of work takes so long in each number of threads, whatever else the machine does. Returns the list that
    gets the number of each piece."""
    found, add = [], ThreadTrial.add

    def noted(trial: ThreadTrial, _: float, kind: Any = None) -> None:
        found.append(trial.threads)
        add(trial, seconds[trial.threads], kind)

    patch.setattr(ThreadTrial, "add", noted)
    return found


def large_captions(patch: pytest.MonkeyPatch) -> None:
    """A file of captions is one that is kept in the cache, as those above 16 MB are."""
    patch.setattr("vision_attn.data.photographs.annotations.LARGE", 0)


def shards(patch: pytest.MonkeyPatch, images: int) -> None:
    """A file of the cache of features holds so many images in place of thousands."""
    patch.setattr("vision_attn.data.photographs.annotation_vectors.features.SHARD", images)


def no_triton(patch: pytest.MonkeyPatch) -> None:
    """Triton is not installed."""
    patch.setattr("vision_attn.fast.versions.TRITON", False)


def on_cuda(patch: pytest.MonkeyPatch, *modules: ModuleType, there: bool = True) -> None:
    """Modules that decide by the device choose as on a GPU, between operations that a CPU has too."""
    for module in modules:
        patch.setattr(module, "is_cuda", lambda tensor: there)


def casts(patch: pytest.MonkeyPatch) -> None:
    """Weights are cast once for all layers, as on a GPU; a CPU casts as autocast does."""
    patch.setattr("vision_attn.fast.cast._wanted", lambda model: True)


def progress_at_once(patch: pytest.MonkeyPatch) -> None:
    """Progress is told from the first second on."""
    patch.setattr("vision_attn.system.console.SECONDS", 0.0)


def half_precision(patch: pytest.MonkeyPatch, fast: bool) -> None:
    """The processor multiplies bf16 by instructions of its own, or many times slower than float32."""
    patch.setattr("vision_attn.engine.device_settings.multiplies_bf16", lambda: fast)


def profiled_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    """A profile begins after so many steps: those of a test are few."""
    patch.setattr("vision_attn.engine.timing.profile.SKIPPED", steps)


def trained(patch: pytest.MonkeyPatch, **metrics: float) -> None:
    """Training takes no time and ends with these metrics, which decide what is said after it."""
    import vision_attn.engine.fit  # noqa: F401

    patch.setattr("vision_attn.engine.fit.fit", lambda **_: metrics)


def a_verb_does(patch: pytest.MonkeyPatch, verb: str, action: Callable[[Any], int]) -> None:
    """`vision-attn VERB` does this in no time: it fails, is interrupted or notes its arguments, as the test chooses."""
    patch.setattr(f"vision_attn.commands.{verb}.run", action)


def verbs_of(patch: pytest.MonkeyPatch, *folders: Path | str) -> None:
    """The subcommands are the files of these folders: a test adds no file to the package."""
    patch.setattr("vision_attn.commands.__path__", [*map(str, folders)])


def held_photographs(patch: pytest.MonkeyPatch, pixels: Callable[..., Any]) -> None:
    """Photographs are held by this, as in the memory of a GPU, in place of being read from their files."""
    patch.setattr("vision_attn.data.photographs.captions.pixels", pixels)


def a_server_that(patch: pytest.MonkeyPatch, serves: Callable[[Any], None]) -> None:
    """`vision-attn serve` does this with its server in place of answering until it is interrupted."""
    patch.setattr("vision_attn.web.server.Server.serve_forever", serves)
