"""Export a trained run to ONNX and torch.export, for programs without vision_attn.

A captioner becomes encoder, start and step, with any number of images, and caption.py, which captions photographs with
onnxruntime alone. A classifier becomes classifier, a generator becomes generator, and a model that answers questions
becomes answerer. Each file is compared with PyTorch, and its largest difference is printed. ONNX needs the extra
[onnx].
"""

import argparse
from importlib.util import find_spec

from vision_attn.commands._files import place, writable
from vision_attn.commands._run_options import add_run_arguments, open_with
from vision_attn.system.console import say
from vision_attn.system.errors import UserError
from vision_attn.system.files import is_utf8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn export`."""
    add_run_arguments(parser, captioner=False)
    parser.add_argument("--out", type=place, required=True, metavar="FOLDER", help="where to write")
    parser.add_argument("--no-onnx", action="store_true", help="torch.export alone, which needs no other package")


def run(arguments: argparse.Namespace) -> int:
    """Export and check. Raises UserError if a package is missing or the model cannot be exported."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing and not arguments.no_onnx:
        raise UserError(
            f"ONNX needs {', '.join(missing)}: pip install 'vision-attn[onnx]', or leave ONNX out with --no-onnx"
        )
    if not is_utf8(str(arguments.out)):
        raise UserError(f"{str(arguments.out)!r} is not UTF-8 text, which onnxruntime cannot open: name another folder")
    model = open_with(arguments)
    out = writable(arguments.out, "--out")
    from vision_attn.export.onnx import export

    for name, difference in export(model.task, out, onnx=not arguments.no_onnx).items():
        say(f"{out / name}: differs from PyTorch by {difference:.1e}")
    if (out / "caption.py").is_file():
        say(f"caption with onnxruntime alone: python {out / 'caption.py'} photo.jpg")
    return 0
