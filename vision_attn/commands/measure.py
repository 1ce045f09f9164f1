"""Measure whether the maps of a model are faithful: which method of maps to trust, and how far.

MODEL is what `vision-attn look` takes, or a run that takes glimpses. A run on drawn scenes or digits needs no IMAGE:
its own test images are measured, whose boxes are known. For each method of maps that suits it, the regions that a map
marks most are deleted from an image, and inserted into an empty one, while the probability of the answer is measured:
the earlier it falls, or rises, the more faithful the map is to the model. A random order, and the best order found, are
measured too. Maps are also compared with those of the same model with random weights (they must change), with boxes or
masks of objects (--boxes), and with each other.

Reports the expected time after the second photograph. Prints each method, its gain over a random order, and whether it
points. Writes index.html, with the table, the curves, and the most and the least faithful images, and measure.json;
after Ctrl-C or SIGTERM, for the images measured so far.

For a fast measurement, --best 0 --sanity 0 leave out the best orders and the random weights, --steps 3 takes fewer
steps, and --method and --number measure fewer methods and images.
"""

import argparse
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from vision_attn.commands._files import add_figure_arguments, figure_options, images_of, place, write_figure
from vision_attn.commands._run_options import add_model_and_images, add_overlay, load_with_images, view_of
from vision_attn.explain.methods import METHODS
from vision_attn.system.checks import check_range
from vision_attn.system.console import complain, say, signed
from vision_attn.system.errors import UserError
from vision_attn.system.inputs import reads, writes
from vision_attn.system.memory import collected_later
from vision_attn.system.own_code import own_function

GAIN = (
    "A gain is how much more an answer follows the order of a map than a random order; 0 is no more. A low gain says "
    "that the answer hardly needs the regions that the map marks: the map does not tell what led to it, or no few "
    "regions do, and then the best order gains little too (--best)."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn measure`."""
    add_model_and_images(parser, "measure", text="a text to match, or a class to explain", out=Path("measure"))
    parser.add_argument(
        "--method", action="append", default=[], metavar="METHOD",
        help=f"attention (attention:3 is layer 3), glimpses, {', '.join(METHODS)}, or module:function of a trusted "
        "package; may be repeated (default: all that suit the model)",
    )  # fmt: skip
    parser.add_argument(
        "--fill", choices=["linear", "mean", "blur"], default="linear",
        help="what stands in the place of regions: noisy linear interpolation (default), the mean colour, or a blur",
    )  # fmt: skip
    parser.add_argument(
        "--boxes", type=place, metavar="FILE", help="boxes or masks of objects, in COCO's format of instances"
    )
    add_overlay(parser, scale=False)
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="steps of a curve (default: 10)")
    parser.add_argument("--best", type=int, default=3, metavar="N", help="images whose best order is searched")
    parser.add_argument("--sanity", type=int, default=3, metavar="N", help="images that random weights are tried on")
    parser.add_argument(
        "--number", type=int, metavar="N",
        help="only the first N images (default: all; without IMAGE the first 24 of the run's own test images)",
    )  # fmt: skip
    add_figure_arguments(parser, "the gain of each method, and the curves")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of noise and random orders (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Measure every image that can be read; the exit status is 1 if one could not be."""
    with collected_later():
        from vision_attn.configuration.trust import as_packages
        from vision_attn.results.faithfulness import boxes_for
    trusted = as_packages(arguments.trust)
    if arguments.number is not None:
        check_range("measure", 1, 10_000_000, number=arguments.number)
    methods = {}
    for name in arguments.method:
        package = name.partition(":")[0].partition(".")[0]
        is_own = ":" in name and not name.partition(":")[2].lstrip("-").isdigit()
        if is_own and package not in trusted:
            raise UserError(f"{name} runs the code of {package}: add --trust {package} if you trust it")
        methods[name] = own_function(name) if is_own else None
    settings = {key: getattr(arguments, key) for key in ("fill", "steps", "best", "sanity", "seed", "boxes")}
    if arguments.boxes:
        reads(arguments.boxes)
    figure = figure_options(arguments)
    writes(arguments.out / "measure.json", "--out")
    with ending_by_sigterm() as ended, images_of(arguments, "measure", pictured=False) as (files, paths):
        model = load_with_images(arguments)
        if arguments.images:
            if arguments.number is not None:
                del paths.files[arguments.number :]
            settings |= {"unreadable": paths.complaints, "total": len(paths.files)}
            settings["boxes"] = boxes_for(arguments.boxes, paths.files)
            result = model.measure(files, arguments.text, methods=methods or None, **settings)
        else:
            number = {} if arguments.number is None else {"number": arguments.number}
            result = model.measure(None, arguments.text, methods=methods or None, **number, **settings)
        for name, method in result.methods.items():
            ends = method["gain_interval"]
            interval = f" ({signed(ends[0])} to {signed(ends[1])})" if ends else ""
            pointing = f"pointing {method['pointing']:.3f}" if "pointing" in method else ""
            control = f"control {method['control']:.3f}" if "control" in method else ""
            say(name, f"{signed(method['gain'])}{interval}", *filter(None, [pointing, control]))
        for line in (*result.numbers["verdict"], GAIN):
            complain(line)
        complain(f"written: {result.write_folder(arguments.out, **view_of(arguments))}")
        write_figure(arguments, [result], figure)
        if not result.numbers["is_whole"] and not ended:
            raise KeyboardInterrupt
    return 1 if paths.complaints else 0


@contextmanager
def ending_by_sigterm() -> Iterator[list[int]]:
    """Context manager: treat SIGTERM like Ctrl-C. The process then ends with status 143; a second SIGTERM kills it.
    Returns a list to which the number of the signal is added."""
    ended = list[int]()

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ended.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # Python delivers signals to no other thread
        yield ended
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield ended
    except KeyboardInterrupt:
        if not ended:
            raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if ended:
        complain("ended by SIGTERM", error=True)
        raise SystemExit(128 + signal.SIGTERM)
