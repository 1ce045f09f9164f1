"""Every benchmark runs, on shapes so small that nothing is measured; what a benchmark computes is right."""

import json
import shutil
import sys
from collections.abc import Sequence
from math import prod

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import captions as many_captions
from benchmarks import faithfulness, graphs, measure, scale, threads
from benchmarks.__main__ import TABLES, main
from benchmarks.input_attention import InputAttention, best_of_sorted, input_attention_loss, repeated_beam_search
from benchmarks.peers import operations
from benchmarks.shapes import LENGTHS, QUICK, Shapes, random_batch
from benchmarks.show_attend_tell import ours
from tests import pretend, references
from tests.untrained import write_run
from vision_attn.contracts import Captioner
from vision_attn.decode import beam_search, greedy
from vision_attn.tasks import subjects

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="the table needs a CUDA device")
MARKS = {"gpu": GPU}
SIZES = Shapes(images=3, rows=2, regions=5, region_size=6, hidden=7, attention=8, word=9, vocabulary=11)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in TABLES])
def test_every_table_is_made(name: str, monkeypatch) -> None:
    if name == "compiled":  # takes minutes; that compiled steps equal eager ones is tested with the engine
        monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **_: None)
        monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    lines = TABLES[name](QUICK, 1).splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) >= 2 and any(line.startswith("**") for line in lines)
    assert len({line.count("|") for line in rows}) <= 2  # of two tables at most


def test_training_on_more_vectors_than_fit_into_memory(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["scale", "--quick", f"--folder={tmp_path}"])
    scale.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row.split("|")[2].strip() for row in rows] == ["images", "600", "600"]
    assert not list(tmp_path.iterdir())


def test_the_command_says_how_long_each_table_took(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--threads=1", "scores"])
    main()
    assert "(scores: " in capsys.readouterr().out.splitlines()[-1]
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "sores"])
    with pytest.raises(SystemExit):
        main()
    assert "there is no table 'sores'" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--threads=0", "scores"])
    with pytest.raises(SystemExit):
        main()
    assert "--threads is 0: give 1 or more" in capsys.readouterr().err


@pytest.mark.slow
def test_the_start_of_processes_that_share_many_captions(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["captions", "--quick", f"--folder={tmp_path}"])
    pretend.large_captions(monkeypatch)
    many_captions.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row.split("|")[1].strip() for row in rows] == ["", "first start", "second start"]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_trial_of_threads_is_compared_with_fixed_numbers(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["threads", "--quick", "--busy=1"])
    threads.main()
    output = capsys.readouterr().out
    rows = [line for line in output.splitlines() if line.startswith("| ")]
    assert [row.split("|")[1].strip() for row in rows] == ["threads", "1 thread", "auto"]
    assert output.endswith("auto kept: 1 thread\n")  # for tests have one


def test_a_peak_of_memory_is_measured_in_bytes(monkeypatch, capsys) -> None:
    """What `peak_memory` starts in a process of its own, here in this one."""
    shapes = QUICK._replace(images=4)
    monkeypatch.setattr(sys, "argv", ["measure", "benchmarks.attention:train_words", json.dumps([shapes, "ours", 2])])
    measure.main()
    assert abs(int(capsys.readouterr().out)) < 10 * 1024**3


def peer() -> InputAttention:
    """`InputAttention` with weights that prefer some words clearly, so that captions have many lengths."""
    torch.manual_seed(1)
    model = InputAttention(SIZES).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6)
        model.output[1].bias.zero_()
    return model


def test_the_loss_of_attention_into_the_input_is_its_formula() -> None:
    """Word by word, with the equations of `references`."""
    model, batch = peer().double(), random_batch(SIZES)
    batch = batch._replace(regions=batch.regions.double())
    w = model.state_dict()
    terms = []
    for a, captions in zip(batch.regions, batch.words, strict=True):
        for caption in captions:
            h = c = torch.zeros(SIZES.hidden, dtype=torch.double)
            before = 0
            for word in caption[caption != 0].tolist():
                query, bias = w["query.weight"], w["query.bias"] + w["key.bias"]
                e = references.additive_scores(a, h, w["key.weight"], query, bias, w["score.weight"][0])
                z = references.expected_context(references.softmax(e), a)
                x = torch.cat([w["embedding.0.weight"][before].relu(), z])
                gates = w["cell.weight_ih"] @ x + w["cell.bias_ih"] + w["cell.weight_hh"] @ h + w["cell.bias_hh"]
                i, f, g, o = gates.chunk(4)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                p = references.softmax(w["output.1.weight"] @ h + w["output.1.bias"])
                terms.append(-p[word].log())
                before = word
    torch.testing.assert_close(input_attention_loss(model, batch), torch.stack(terms).mean())


class AsCaptioner(Captioner):
    """`InputAttention` under our contract."""

    def __init__(self, model: InputAttention):
        super().__init__()
        self.model = model

    def start(self, regions: Tensor, rows: int):
        state = self.model.first_state(len(regions) * rows)
        return (regions, self.model.key(regions)), tuple(part.unflatten(0, (-1, rows)) for part in state)

    def step(self, word: Tensor, state, memory):
        images, rows = word.shape
        regions, keys = (part.repeat_interleave(rows, dim=0) for part in memory)
        logits, state = self.model.step(word.flatten(), regions, keys, tuple(part.flatten(0, 1) for part in state))
        return logits.view(images, rows, -1), tuple(part.view(images, rows, -1) for part in state), None


@pytest.mark.parametrize("best_of", [torch.topk, best_of_sorted])
def test_search_with_repeated_annotation_vectors_finds_the_captions_that_ours_finds(best_of) -> None:
    model = peer()
    regions = torch.randn(100, SIZES.regions, SIZES.region_size)
    for beams in (1, 3, 4):
        mine = beam_search(AsCaptioner(model), regions, beams=beams, max_words=9).words[:, 0]
        found = repeated_beam_search(model, regions, beams, 9, best_of=best_of)
        assert len(set((mine != 0).sum(dim=1).tolist())) > 2  # captions of different lengths
        assert torch.equal(F.pad(found, (0, 9 - found.shape[1])), F.pad(mine, (0, 9 - mine.shape[1])))
        if beams == 1:
            assert torch.equal(greedy(AsCaptioner(model), regions, max_words=9).words[:, 0], mine)


def test_nominal_operations_are_those_of_the_products_of_a_step(monkeypatch) -> None:
    monkeypatch.setitem(LENGTHS, "4 words", {4: 1})  # captions of one length: without padding
    shapes = SIZES._replace(lengths="4 words", vocabulary=1000)  # of which few words repeat
    side = ours(shapes)

    def of_onednn(input: Sequence[int], weight: Sequence[int], *_: object, **__: object) -> int:
        return 2 * prod(input) * weight[0]

    known = {torch.ops.mkldnn._linear_pointwise: of_onednn}
    with FlopCounterMode(display=False, custom_mapping=known) as counter:  # in bf16, where no loops compute products
        with torch.autocast("cpu", torch.bfloat16):
            loss = side.loss()
        loss.backward()
    assert counter.get_total_flops() == operations(shapes, 4 * shapes.captions)


@pytest.mark.parametrize(
    "config, expected", [("sat_soft_scenes", "2 | 1 | 0 | 0.0%"), ("ram_cluttered2000", "not captured")]
)
def test_the_graphs_of_an_epoch_are_counted(config: str, expected: str) -> None:
    assert expected in graphs.row(config, 2, ["--data.batch_size=4"])


@pytest.mark.slow
def test_faithfulness_of_a_run_on_scenes(tmp_path, monkeypatch, capsys) -> None:
    run = write_run("sat_soft_scenes", tmp_path / "run", "--task.min_words=4", "--task.no_repeat=1")
    monkeypatch.setattr(sys, "argv", ["faithfulness", str(run), "--quick", f"--out={tmp_path / 'out'}",
                                      f"--figure={tmp_path / 'figure.png'}"])  # fmt: skip
    monkeypatch.setattr(subjects, "GRADIENTS", ("grad-cam",))  # all of them take minutes
    faithfulness.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == 5 and rows[-1].startswith("| uniform |") and (tmp_path / "out" / "run" / "index.html").exists()
    assert (tmp_path / "figure.png").stat().st_size > 1000
    page = tmp_path / "out" / "run"
    for name, gain in ("soft_0", 0.1), ("soft_1", 0.3):
        shutil.copytree(page, tmp_path / name)
        numbers = json.loads((page / "measure.json").read_text()) | {"model": f"runs/{name}"}
        numbers["methods"]["attention"] |= {"gain": gain, "pointing": 0.5}
        (tmp_path / name / "measure.json").write_text(json.dumps(numbers))
    monkeypatch.setattr(sys, "argv", ["faithfulness", str(tmp_path / "soft_0"), str(tmp_path / "soft_1")])
    faithfulness.main()
    together = capsys.readouterr().out.split("soft: 2 runs")[1]
    assert "| attention | 0.200 +- 0.141 | 0.500 +- 0.000 |" in together
