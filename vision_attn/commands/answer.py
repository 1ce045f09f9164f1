"""Answer questions about a story or a scene with a trained run, and show what each hop read.

FACTS are a story, as the name of a text file or as the text itself, or the image of a scene. Prints each question, a
tab, the answer, a tab and its probability; below it, indented, the weight of each sentence in each hop in percent, or
the regions with the largest ones. Standard error names words that the run does not know.

Without FACTS, --example N takes story or scene N of the run's own test set, and without a QUESTION its own question:

vision-attn answer weights/stories --example 1
vision-attn answer weights/scene_questions --example 2 "what colour is the thing above the red star?" --out hops
"""

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vision_attn.commands._files import (
    add_figure_arguments,
    check_writable,
    figure_options,
    place,
    write_figure,
)
from vision_attn.commands._run_options import add_overlay, add_run_arguments, names_after_options, open_with, view_of
from vision_attn.system.checks import check_range
from vision_attn.system.console import complain, say, to_the_end
from vision_attn.system.errors import UserError
from vision_attn.system.inputs import reads, writes

if TYPE_CHECKING:  # or `--help` would import torch
    from vision_attn.results.answered import AnswerResult
    from vision_attn.results.model import Model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn answer`."""
    add_run_arguments(parser, captioner=False)
    parser.add_argument(
        "given", nargs="*", metavar="FACTS QUESTION",
        help="a story or an image, and one or more questions, each in quotation marks",
    )  # fmt: skip
    parser.add_argument(
        "--example", type=int, metavar="N", help="story or scene N of the run's own test set, from 1, instead of FACTS"
    )
    parser.add_argument("--out", type=place, metavar="FOLDER", help="also write a page, and of images pictures, there")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each question, with all weights")
    add_figure_arguments(parser, "of images: the map of each hop")
    add_overlay(parser)


def run(arguments: argparse.Namespace) -> int:
    """Answer all questions."""
    names, arguments.overrides = names_after_options(arguments.overrides, lambda _: True)
    given = [*arguments.given, *names]
    figure = figure_options(arguments)
    if arguments.out:
        check_writable(arguments.out, "--out")
    if arguments.example is not None:
        check_range("answer", 1, 10_000_000, example=arguments.example)
    elif len(given) < 2:
        missing = "a question" if given else "a story or an image, and a question"
        raise UserError(f"name {missing}; --example 1 takes one of the run's own test set")
    model = open_with(arguments)
    from vision_attn.commands._old_pictures import old_pictures_removed, others_kept
    from vision_attn.results.answering import hint

    model.check("answer")
    if not model.task.encoder and (figure or arguments.figure or view_of(arguments)):
        raise UserError("--figure, --overlay and --scale apply to images: --out draws the page of a story")
    if arguments.example is None:
        facts, questions = given[0], given[1:]
        if os.path.isfile(facts):
            reads(Path(facts))
    else:
        facts, asked, answer = example(model, arguments.example)
        questions = given or [asked]
        if not given:
            complain(f"example {arguments.example} of the test set, whose answer is {answer}")
    if arguments.out:
        others_kept(arguments.out)
        writes(arguments.out / "index.html", "--out")
    results: Any = model.answer(facts, questions)
    with to_the_end(bool(arguments.out or arguments.figure)):
        for result in results:
            if text := hint(result):  # first, or it would scroll away below a long answer
                complain(text)
            told(result, as_json=arguments.json)
        if arguments.out:
            with old_pictures_removed(arguments.out):
                complain(f"drawn: {results[0].write_folder(arguments.out, results, **view_of(arguments))}")
        write_figure(arguments, results, figure | view_of(arguments))
    return 0


def told(result: "AnswerResult", *, as_json: bool) -> None:
    """Print an answer."""
    if as_json:
        say(json.dumps({"file": result.file} | result.record(maps=True)))
        return
    say(result.question, result.text, f"{result.probability:.3f}")
    for line in result.reading:
        say(f"  {line}")


def example(model: "Model", number: int) -> tuple[Any, str, str]:
    """Return the facts, the question and the answer of an item of the run's own test set, counted from 1. Raises
    UserError if it has fewer."""
    from PIL import Image

    source, before = model.source, 0
    assert source is not None
    source.only("test")
    source.prepare(model.task)
    for batch in source.split("test"):
        if number <= before + len(batch.questions):
            question = batch.questions[number - 1 - before]
            picture = batch.facts[number - 1 - before] if model.task.encoder else None
            if picture is None:
                return list(question.facts), question.text, question.answer
            scene = Image.fromarray(picture.permute(1, 2, 0).numpy())
            scene.filename = f"scene {number}"  # type: ignore[attr-defined]  # its name in pages
            return scene, question.text, question.answer
        before += len(batch.questions)
    raise UserError(f"--example is {number}, but the test set has {before} questions")
