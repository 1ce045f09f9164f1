"""`vision_attn.load` in Python and in notebooks, and runs on the Hugging Face Hub."""

import ast
import base64
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode

import vision_attn
from tests.untrained import write_run
from vision_attn.attention.scores import Additive
from vision_attn.commands import main, pack
from vision_attn.configuration import hub
from vision_attn.results.result_list import ResultList
from vision_attn.system.errors import UserError

ROOT = Path(__file__).parents[2]
PHOTOGRAPHS = sorted((ROOT / "docs" / "photographs").glob("*.jpg"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: write_run(name, folder / name) for name in ("sat_soft_scenes", "ram_mnist28", "draw_mnist")}


def test_a_caption_is_that_of_the_command_whatever_the_image_comes_as(runs, capsys) -> None:
    model = vision_attn.load(runs["sat_soft_scenes"], device="cpu")
    with Image.open(PHOTOGRAPHS[0]) as picture:
        picture.load()
    caption = model.caption(PHOTOGRAPHS[0])
    array = np.array(picture)
    forms = [str(PHOTOGRAPHS[0]), picture, array, torch.from_numpy(array).permute(2, 0, 1), array / 255.0]
    several = model.caption([*forms, *[picture] * 20])
    assert {each.text for each in several} == {caption.text} and len(several) == 25
    assert caption.alpha.shape[0] == len(caption.words) == len(caption.log_prob)
    torch.testing.assert_close(several[1].alpha, several[2].alpha)
    assert main(["caption", str(runs["sat_soft_scenes"]), str(PHOTOGRAPHS[0])]) == 0
    assert capsys.readouterr().out.split("\t")[1].strip() == caption.text == str(caption)


def test_captions_are_decoded_as_a_call_asks(runs, capsys) -> None:
    name = runs["sat_soft_scenes"]
    model = vision_attn.load(name, device="cpu")
    for options, given in (
        ("--captions 3", {"captions": 3}), ("--captions 3 --diverse", {"captions": 3, "strategy": "diverse"}),
        ("--captions 4 --sample --seed 5 --top-p 0.9", {"captions": 4, "strategy": "sampled", "seed": 5, "top_p": 0.9}),
        ("--beams 1 --task.max_words=3", {"beams": 1, "max_words": 3, "captions": 1}),
    ):  # fmt: skip
        several = model.caption(PHOTOGRAPHS[0], **given)
        assert main(["caption", str(name), str(PHOTOGRAPHS[0]), "--device=cpu", *options.split()]) == 0
        assert [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()] == [one.text for one in several]
        assert several._repr_png_()[:4] == b"\x89PNG"
    options = ["--captions=3", "--diverse", "--task.diversity=0"]  # every group finds the same caption
    assert main(["caption", str(name), str(PHOTOGRAPHS[0]), *options]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 1
    assert "1 of 1 photographs have fewer than 3 different captions" in printed.err
    one, other = (model.caption(PHOTOGRAPHS[0], captions=4, strategy="sampled", seed=seed) for seed in (5, 6))
    assert [each.text for each in one] != [each.text for each in other]
    assert len(model.caption(PHOTOGRAPHS[:2], captions=3)) == 2
    assert ResultList()._repr_png_() is None
    before = torch.get_rng_state()
    model.caption(PHOTOGRAPHS[0], captions=2, strategy="sampled", seed=5)
    assert torch.equal(torch.get_rng_state(), before)  # random numbers of the caller's own go on as they were
    for options, said in (
        ({"beam": 3}, "beam is no setting of decoding; did you mean beams"), ({"beams": 0}, "beams is 0, but must be"),
        ({"min_words": 2.5}, "min_words must be a whole number, not 2.5"), ({"captions": 0}, "captions is 0, but must"),
        ({"strategy": "diverse"}, "give their number as captions"), ({"seed": 3}, "a seed applies to sampled captions"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=said):
            model.caption(PHOTOGRAPHS[0], **options)


@pytest.mark.slow
def test_a_captioner_may_be_loaded_in_inference_mode() -> None:
    with torch.inference_mode():
        assert vision_attn.load().caption(PHOTOGRAPHS[0]).words


def test_what_is_packed_is_what_is_downloaded() -> None:
    assert set(pack.COPIED) - {"metrics_val.json"} < set(hub.FILES) and "metrics_*.json" in hub.FILES


def test_one_trusted_package_may_be_given_by_itself(runs, tmp_path) -> None:
    shutil.copytree(runs["sat_soft_scenes"], tmp_path / "run")
    for config in tmp_path.rglob("config.yaml"):
        text = config.read_text()
        assert "vision_attn.attention.scores.Additive" in text
        config.write_text(text.replace("vision_attn.attention.scores.Additive", "tests.results.test_api.Own"))
    with pytest.raises(UserError, match='third-party code: .* --trust tests .in Python: trust="tests"'):
        vision_attn.load(tmp_path / "run")
    assert vision_attn.load(tmp_path / "run", trust="tests").caption(PHOTOGRAPHS[0]).words is not None


class Own(Additive):
    """A score of one's own."""


def test_a_photograph_that_is_no_square_is_read_as_the_command_reads_it(runs, capsys) -> None:
    (file,) = (path for path in PHOTOGRAPHS if path.name == "dog.jpg")
    with Image.open(file) as picture:
        assert (picture.width - picture.height) % 2 == 1  # the centre square lies between pixels
    model = vision_attn.load(runs["sat_soft_scenes"], device="cpu")
    caption = model.caption(file)
    assert main(["caption", str(runs["sat_soft_scenes"]), str(file), "--json"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)["captions"]
    assert printed["caption"] == caption.text
    end = printed["score"] - sum(caption.log_prob)  # log p of END, which a caption as long as captions may be lacks
    assert end == pytest.approx(0, abs=1e-5) if len(caption.words) == model.task.decoding.max_words else end < 0
    assert [word["log_prob"] for word in printed["words"]] == pytest.approx(caption.log_prob, rel=1e-6)


def test_results_show_themselves_and_are_saved(runs, tmp_path) -> None:
    captions = vision_attn.load(runs["sat_soft_scenes"]).caption(PHOTOGRAPHS[:2])
    answers = vision_attn.load(runs["ram_mnist28"]).classify([torch.rand(1, 28, 28), np.zeros((90, 60), np.uint8)])
    drawn = vision_attn.load(runs["draw_mnist"]).draw(3)
    assert drawn.images.shape == (3, 1, 28, 28) and 0 <= drawn.images.min() <= drawn.images.max() <= 1
    assert answers[0].locations.shape == (2, 2) and answers[0].probabilities.shape == (2, 10)
    assert answers[0].label == int(answers[0].probabilities[-1].argmax())
    for number, result in enumerate((captions, captions[0], answers, answers[0], drawn)):
        assert result._repr_html_().startswith("<iframe srcdoc=") and "data:image" in result._repr_html_()
        picture = result.save(tmp_path / "new" / f"{number}.png")
        assert Image.open(picture).size[0] > 100 and result._repr_png_()[:4] == b"\x89PNG"
        page = result.save(tmp_path / f"{number}.html").read_text()
        assert page.startswith("<!doctype html>") and "http" not in page.replace("http-equiv", "")
    assert page.count("data:image/gif") == 1
    with pytest.raises(UserError, match=r"look: give a name that ends in \.html"):
        drawn.save("look")


@pytest.mark.parametrize("name", ["ram_cluttered60", "draw_reader_cluttered100"])
def test_the_command_and_python_give_the_same_answer(name, tmp_path, capsys) -> None:
    """Of a file, a picture and an array, none of the size that the model was trained on."""
    file, run = tmp_path / "cup.png", ROOT / "weights" / name
    picture = Image.open(PHOTOGRAPHS[1]).convert("RGB").resize((150, 83))
    picture.save(file)
    model = vision_attn.load(run)
    answers = model.classify([file, picture, np.array(picture)])
    assert main(["classify", str(run), str(file), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    for answer in answers:
        assert answer.name == record["answer"]
        torch.testing.assert_close(answer.probabilities[-1], torch.tensor(list(record["probabilities"].values())))
        torch.testing.assert_close(answer.locations, torch.tensor(record["locations"]))
    assert torch.equal(answers[1].image, answers[2].image) and answers[0].title == "cup.png"


def test_mistakes_say_what_to_do(runs) -> None:
    model = vision_attn.load(runs["ram_mnist28"])
    with pytest.raises(UserError, match=r"ram_mnist28 holds a classifier, which writes no captions: use classify\(\)"):
        model.caption("photo.jpg")
    for image, said in (
        ("missing.png", "missing.png: no such file"), (np.full((4, 4), 7.0), r"must lie in \[0, 1\]"),
        (np.zeros((2, 2, 7)), r"this one is \(2, 2, 7\)"), (np.zeros((4, 4), int), "int64"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=said):
            model.classify(image)
    with pytest.raises(UserError, match="runs/missing does not exist"):
        vision_attn.load("runs/missing")
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        vision_attn.lod  # noqa: B018


# The training of a notebook, in a test.
SHORT = ["--data.epoch_images=64", "--data.val_images=8", "--data.test_images=8", "--run.epochs=1", "--run.warmup=1"]


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path, monkeypatch) -> None:
    """Cell by cell, each with what it displays, but for the cell that installs; and they hold no outputs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    names: dict = {}
    shown = 0
    for source in ("".join(cell["source"]) for cell in cells):
        if "%pip install" in source:
            continue
        if source.startswith("!vision-attn "):
            verb, *arguments = shlex.split(source)[1:]
            assert main([verb, *arguments, *(SHORT if verb == "train" else [])]) == 0
            continue
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, str(path), "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), str(path), "eval"), names)
            shown += hasattr(value, "_repr_html_") and len(value._repr_html_()) > 10_000
    assert shown >= 1


class Hub(BaseHTTPRequestHandler):
    """A stand-in for the hub: repositories in memory, with the requests that huggingface_hub makes."""

    repositories: dict[str, dict[str, bytes]] = {}
    sha = "0123456789abcdef0123456789abcdef01234567"

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            raise NotImplementedError
        if self.headers.get("Authorization") != "Bearer hf_secret":
            self.answer({"error": "log in"}, 401)
        elif self.path == "/api/repos/create":
            asked = json.loads(content)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            self.repositories.setdefault(name, {})
            self.answer({"url": f"http://{self.headers['Host']}/{name}"})
        elif "/preupload/" in self.path:
            files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(content)["files"]]
            self.answer({"files": files})
        elif "/commit/" in self.path:
            name = "/".join(self.path.split("/")[3:5])
            for line in content.splitlines():
                if (entry := json.loads(line))["key"] == "file":
                    self.repositories[name][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            self.answer({"success": True, "commitOid": self.sha, "commitUrl": f"http://{self.headers['Host']}/{name}"})
        else:
            self.answer({"errors": [], "warnings": []})

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if name not in self.repositories:
            self.answer({"error": "Repository not found"}, 404)
        elif "tree" in parts:
            self.answer([{"type": "file", "path": path, "size": len(content), "oid": "0"}
                         for path, content in self.repositories[name].items()])  # fmt: skip
        elif parts[0] == "api":
            siblings = [{"rfilename": path} for path in self.repositories[name]]
            self.answer({"id": name, "sha": self.sha, "siblings": siblings, "private": False, "tags": []})
        else:
            self.answer(self.repositories[name]["/".join(parts[4:])])

    do_HEAD = do_GET

    def answer(self, content: object, status: int = 200) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in {
            "Content-Type": "application/json", "Content-Length": len(body), "X-Repo-Commit": self.sha,
            "ETag": f'"{hash(body)}"', **({"X-Error-Code": "RepoNotFound"} if status == 404 else {}),
        }.items():  # fmt: skip
            self.send_header(key, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_) -> None:
        pass


def test_a_run_goes_to_the_hub_and_comes_back(runs, tmp_path, monkeypatch, capsys) -> None:
    """Against a stand-in, in a process of its own, which reads the address of the hub from its environment."""
    sent: dict[str, Path] = {}

    def upload(folder: Path, name: str, *, private: bool) -> str:
        folder.rename(tmp_path / "sent")
        folder.mkdir()
        return f"hf://{name}"

    with monkeypatch.context() as patch:
        patch.setattr(hub, "upload", upload)  # nothing is sent to the hub itself
        assert main(["push", str(runs["sat_soft_scenes"]), "me/scenes"]) == 0
    assert 'vision_attn.load("hf://me/scenes")' in capsys.readouterr().out
    sent = {path.name: path for path in (tmp_path / "sent").iterdir()}
    assert {"config.yaml", "model.safetensors", "vocabulary.json", "README.md"} <= set(sent)
    card = sent["README.md"].read_text()
    assert card.startswith('---\nlibrary_name: "vision_attn"\npipeline_tag: "image-to-text"')
    assert "# sat_soft_scenes" in card and "vision_attn.models.show_attend_tell.ShowAttendTell" in card

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    code = """
import sys
from pathlib import Path
from vision_attn.configuration.hub import local, upload
assert upload(Path(sys.argv[1]), "me/scenes") == "hf://me/scenes"
for name in ("hf://me/scenes", "hf://me/other"):
    try: print(local(name))
    except ValueError as error: print(error)
assert "torch" not in sys.modules
"""
    environment = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": "hf_secret", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*",
    }  # fmt: skip

    def ask(**others: str) -> subprocess.CompletedProcess:
        call = [sys.executable, "-c", code, str(tmp_path / "sent")]
        return subprocess.run(call, env=environment | others, capture_output=True, text=True)

    done = ask()
    assert done.returncode == 0, done.stderr
    folder, refused = done.stdout.splitlines()
    assert {path.name: path.read_bytes() for path in Path(folder).iterdir()} == {
        name: path.read_bytes() for name, path in sent.items()
    }
    assert refused == "hf://me/other could not be downloaded: there is no such repository, or it is private"
    assert "log in with `hf auth login`" in ask(HF_TOKEN="hf_wrong").stderr
    server.shutdown()
    server.server_close()
    assert "me/scenes could not be uploaded: is there a network?" in ask().stderr


def test_names_on_the_hub() -> None:
    for name in ("hf://me", "hf://me/a/b", "hf://../x/y z"):
        with pytest.raises(UserError, match="give hf://USER/NAME"):
            hub.local(name)
    with pytest.raises(UserError, match="give USER/NAME"):
        hub.upload(Path(), "mine")


def test_auto_takes_the_best_device_that_is_there(monkeypatch) -> None:
    from vision_attn.layers import precision as at_least_float32
    from vision_attn.system.machine import best_device

    for cuda, mps, best in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: mps)
        assert best_device() == best
    assert at_least_float32.double(torch.ones(2)).dtype == torch.float64
    with FakeTensorMode():  # a tensor that only claims to be on a GPU of Apple
        assert at_least_float32.double(torch.empty(2, device="mps").half()).dtype == torch.float32


def test_a_mapped_array_is_not_read_as_a_whole(tmp_path, monkeypatch):
    """It gives the answer of its file."""
    pixels = np.lib.format.open_memmap(tmp_path / "scan.npy", "w+", np.uint8, (500, 300))
    pixels[200:228, 100:128] = 200
    pixels.flush()
    model = vision_attn.load(ROOT / "weights" / "ram_cluttered60", device="cpu")
    expected = model.classify(tmp_path / "scan.npy")
    monkeypatch.setattr("vision_attn.results.model.whole", None)  # read as a whole, the answer would be the same
    found = model.classify(np.load(tmp_path / "scan.npy", mmap_mode="r"))
    assert torch.equal(torch.as_tensor(found.probabilities), torch.as_tensor(expected.probabilities))
    assert found.name == expected.name
