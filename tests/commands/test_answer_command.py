"""Questions about stories and scenes, by the included weights: on the command line and in Python."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vision_attn
from vision_attn.commands import main
from vision_attn.commands.answer import example
from vision_attn.results.answered import SceneAnswer, StoryAnswer

STORY = "Mary took the milk there. Mary went to the kitchen.\nJohn went to the garden."
SENTENCES = ["Mary took the milk there.", "Mary went to the kitchen.", "John went to the garden."]
MILK = "Where is the milk?"


@pytest.fixture(scope="module")
def stories():
    return vision_attn.load("weights/stories", device="cpu")


@pytest.fixture(scope="module")
def scenes():
    return vision_attn.load("weights/scene_questions", device="cpu")


def test_a_story_is_a_text_a_list_of_sentences_or_a_file(stories, tmp_path) -> None:
    (tmp_path / "story.txt").write_text(STORY)
    told = [stories.answer(given, MILK) for given in (STORY, SENTENCES, tmp_path / "story.txt")]
    assert all(isinstance(one, StoryAnswer) and list(one.facts) == SENTENCES for one in told)
    assert [one.file for one in told] == ["story", "story", str(tmp_path / "story.txt")]
    first = told[0]
    assert first.text == "kitchen" and first.probability > 0.99 and first.alpha.shape == (3, 3)
    torch.testing.assert_close(first.alpha.sum(dim=1), torch.ones(3))
    # Who took it, then where they went: the order of the sentences, not the model's.
    assert [one["fact"] for one in first.record()["read"]] == [SENTENCES[0], SENTENCES[0], SENTENCES[1]]
    assert all(one.record(maps=True)["hops"] == first.record(maps=True)["hops"] for one in told)


def test_several_questions_are_a_list_and_each_is_answered_as_alone(stories) -> None:
    questions = [MILK, "Where is John?"]
    several = stories.answer(STORY, questions)
    assert [one.text for one in several] == ["kitchen", "garden"]
    for one, question in zip(several, questions, strict=True):
        torch.testing.assert_close(one.alpha, stories.answer(STORY, question).alpha)
    assert several.page().count("<figure>") == 2 and several._repr_png_() is None


def test_only_the_sentences_that_the_model_reads_are_shown(stories) -> None:
    long = ["John went to the office."] * 60 + SENTENCES
    result = stories.answer(long, MILK)
    assert len(result.facts) == stories.source.max_facts == result.alpha.shape[1] < 60
    assert list(result.facts)[-3:] == SENTENCES and result.text == "kitchen"


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 5])
def test_an_example_is_read_as_an_evaluation_reads_it(number: int, stories, scenes) -> None:
    for model in (stories, scenes):
        facts, question, answer = example(model, number)
        batch = next(iter(model.source.split("test")))
        with torch.no_grad():
            log_prob, alpha = model.task.answered(batch.facts, batch.words)
        result = model.answer(facts, question)
        assert answer == batch.questions[number - 1].answer
        expected = alpha[number - 1]
        if model is stories:
            expected = expected[:, : len(facts)].flip(1)
        torch.testing.assert_close(result.alpha.flatten(1), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(result.probabilities, log_prob[number - 1].exp(), rtol=1e-4, atol=1e-4)


def test_a_scene_has_maps_pages_pictures_and_arrays(scenes, tmp_path) -> None:
    picture, question, answer = example(scenes, 2)
    large = picture.resize((540, 540), Image.Resampling.NEAREST)
    result = scenes.answer(large, question)
    assert isinstance(result, SceneAnswer) and result.text == answer and result.alpha.shape == (2, 3, 3)
    assert result.record()["read"][0]["fact"] == {"row": 2, "column": 3}  # of the red star, which the question names
    for ending in ("html", "png", "pdf", "npz"):
        assert result.save(tmp_path / f"scene.{ending}").stat().st_size > 1000
    page = (tmp_path / "scene.html").read_text()
    assert f"{question} {answer}" in page and "correct:" not in page and "second half" not in page
    with np.load(tmp_path / "scene.npz", allow_pickle=False) as arrays:
        assert arrays["maps"].shape == (2, 3, 3) and str(arrays["text"]) == answer
        assert str(arrays["names"][arrays["probabilities"].argmax()]) == answer
    many = scenes.answer(large, [question, "what shape is the red thing?"])
    many.save(tmp_path / "many.html")
    assert (tmp_path / "many.html").read_text().count("<figure") == 2


def test_a_story_has_no_picture(stories, tmp_path) -> None:
    result = stories.answer(STORY, MILK)
    assert result.save(tmp_path / "story.npz") and "kitchen" in result.save(tmp_path / "story.html").read_text()
    with pytest.raises(vision_attn.UserError, match=r"a story has no picture: save its page"):
        result.save(tmp_path / "story.png")
    with pytest.raises(vision_attn.UserError, match="a story has none"):
        result.save(tmp_path / "story.html", overlay="light")


@pytest.mark.parametrize(
    ("facts", "question", "said"),
    [
        (STORY, "quo vadis?", "knows no word of the question 'quo vadis\\?'"),
        ("quo vadis. quo vadis.", MILK, "knows no word of this story"),
        ("story.txt", MILK, "story.txt: no such file"),
        ([], MILK, "there is no sentence"),
        (b"some bytes", MILK, "give a text or a list of sentences, not an image"),
        (STORY, " ", "a question is a text"),
        (STORY, [], "a question is a text"),
    ],
)
def test_what_cannot_be_answered_is_told(facts, question, said: str, stories) -> None:
    with pytest.raises(vision_attn.UserError, match=said):
        stories.answer(facts, question)


def test_other_models_answer_no_questions_and_answerers_write_no_captions(stories, scenes) -> None:
    with pytest.raises(vision_attn.UserError, match=r"answers no questions: use classify\(\)"):
        vision_attn.load_model("weights/ram_cluttered60").answer("digit.png", "which digit?")
    with pytest.raises(vision_attn.UserError, match=r"use answer\(\), or on the command line vision-attn answer"):
        stories.caption("photo.jpg")
    with pytest.raises(vision_attn.UserError, match="one image: give them one after the other"):
        scenes.answer(["one.png", "other.png"], "what colour is the circle?")


def test_the_command_prints_answers_and_what_hops_read(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("story.txt").write_text(STORY)
    assert main(["answer", "weights/stories", "--out", "look", "story.txt", MILK, "Where is the lamp?"]) == 0
    printed, told = capsys.readouterr()
    first, head, *rows = printed.splitlines()[:5]
    assert re.fullmatch(rf"{re.escape(MILK)}\tkitchen\t(0\.99\d|1\.000)", first) and head == "  hop 1 hop 2 hop 3"
    assert [row.split("  ")[-1] for row in rows] == SENTENCES
    assert "unknown to this model, which may answer wrongly: lamp" in told and "drawn: look/index.html" in told
    assert "second half" not in Path("look/index.html").read_text()
    assert main(["answer", "weights/scene_questions", "--example", "2", "--json", "what color is the circle?"]) == 0
    printed, told = capsys.readouterr()
    assert json.loads(printed)["unknown"] == ["color"] and "did you mean colour?" in told


def test_what_is_unknown_is_said_before_the_answer(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stderr", sys.stdout)
    assert main(["answer", "weights/stories", STORY, "Where is the lamp?"]) == 0
    remark, answer, *_ = capsys.readouterr().out.splitlines()
    assert remark.endswith("may answer wrongly: lamp") and answer.startswith("Where is the lamp?\t")


@pytest.mark.slow
def test_the_command_draws_a_scene_and_says_its_answer(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["answer", "weights/scene_questions", "--example", "2", "--out", "look", "--figure", "f.png"]) == 0
    printed, told = capsys.readouterr()
    assert "hop 1: +" in printed and "whose answer is purple" in told
    assert {path.name for path in Path("look").iterdir()} == {"index.html", "01-scene-2.png"} and Path("f.png").exists()
    for words, said in (
        (["weights/stories"], "name a story or an image, and a question; --example 1 takes one"),
        (["weights/stories", STORY], "name a question"),
        (["weights/stories", STORY, MILK, "--figure=f.pdf"], "--out draws the page of a story"),
        (["weights/stories", "--example", "9999"], "the test set has 2000 questions"),
        (["weights/photographs", "dog.jpg", "what?"], "which answers no questions: use caption()"),
    ):  # fmt: skip
        assert main(["answer", *words]) == 1
        assert said in capsys.readouterr().err
