"""Vocabularies and weights of run folders that are damaged, lie about their size, or are no files at all."""

import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Change = Callable[[Path], None]
"""Changes a good `best/` folder."""


def vocabularies() -> Iterator[tuple[str, Change]]:
    """Changes of `vocabulary.json`."""
    slow = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Removed", "invert": True}
    specials = {"<pad>": 0, "<end>": 1, "<unk>": 2}
    many = ",".join(f'"w{number:06x}":{number + 3}' for number in range(510_000))
    contents: dict[str, Any] = {
        "a slow pattern": lambda file: file | {"pre_tokenizer": slow},
        "a slow normalizer": lambda file: file | {"normalizer": slow | {"type": "Replace", "content": ""}},
        "a slow decoder": lambda file: file | {"decoder": slow | {"type": "Replace", "content": ""}},
        "another model": lambda file: file | {"model": {"type": "BPE", "vocab": specials, "merges": []}},
        "no model": lambda file: file | {"model": None},
        "no words": _words({}),
        "words as a list": _words([*specials]),
        "words as text": _words("abc"),
        "ids as text": _words(dict.fromkeys(specials, "0")),
        "ids that are no numbers": _words(specials | {"a": None}),
        "ids as booleans": _words(specials | {"<end>": True}),
        "ids with a gap": _words(specials | {"a": 10**9}),
        "ids below zero": _words(specials | {"a": -1}),
        "huge ids": _words(specials | {"a": 2**70}),
        "an id twice": _words(specials | {"a": 3, "b": 3}),
        "a control character": _words(specials | {"a\x1b[2J": 3}),
        "a line of its own": lambda file: (
            file | {"model": file["model"] | {"vocab": specials | {"a\nb.jpg\tA cat": 3}}}
        ),
        "half a character": _words(specials | {"\ud800": 3}),
        "an empty word": _words(specials | {"": 3}),
        "a long word": _words(specials | {"x" * 10**6: 3}),
        "a bad truncation": lambda file: file | {"truncation": {"max_length": -1}, "padding": {"x": 1}},
        "added tokens": lambda file: file | {"added_tokens": [{"id": -1, "content": "\ud800"}] * 1000},
    }
    for name, change in contents.items():
        yield f"vocabulary: {name}", _rewriting(change)
    for name, content in {
        "empty": b"", "no JSON": b"{", "a list": b"[]", "a number": b"5", "NaN": b"NaN", "bytes": b"\xff\xfe\x00",
        "nested lists": b"[" * 10**6, "nested mappings": b'{"a":' * 10**6, "a long number": b"1" * 10**7,
        "a long string": b'"' + b"x" * 10**7, "many values": b"[" + b"{}," * 10**6 + b"{}]", "lines": b"{}\n" * 10**6,
        "a pickle": b"\x80\x04cos\nsystem\n(S'touch OUTSIDE/canary'\ntR.", "a mark": b"\xef\xbb\xbf{}",
    }.items():  # fmt: skip
        yield f"vocabulary: {name}", _writing("vocabulary.json", content)
    yield "vocabulary: too many words", _replacing("vocabulary.json", '"<unk>": 2', f'"<unk>": 2, {many}')
    yield "vocabulary: with holes", _sparse("vocabulary.json", 2**36)
    for name, change in _no_files("vocabulary.json").items():
        yield f"vocabulary: {name}", change


def weights() -> Iterator[tuple[str, Change]]:
    """Changes of `model.safetensors`."""
    one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    headers: dict[str, Any] = {
        "no tensor": {},
        "10^12 numbers": {"a": one | {"shape": [10**12]}},
        "a product past 64 bits": {"a": one | {"shape": [2**62, 2**62]}},
        "a negative size": {"a": one | {"shape": [-1]}},
        "offsets that overlap": {"a": one, "b": one},
        "offsets past the end": {"a": one | {"shape": [3], "data_offsets": [0, 12]}},
        "offsets backwards": {"a": one | {"data_offsets": [4, 0]}},
        "huge offsets": {"a": one | {"data_offsets": [2**63, 2**63 + 4]}},
        "an unknown type": {"a": one | {"dtype": "PICKLE"}},
        "many dimensions": {"a": one | {"shape": [1] * 10_000}},
        "many tensors": {
            f"a{number}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for number in range(30_000)
        },
        "a long name": {"x" * 10**6: one},
        "a name that is no word": {"\x1b[2J\n": one},
        "metadata": {"__metadata__": {"x": "y" * 10**6}, "a": one},
        "metadata that is no text": {"__metadata__": {"x": [1]}, "a": one},
    }
    for name, header in headers.items():
        yield f"weights: {name}", _writing("model.safetensors", _safetensors(json.dumps(header).encode()))
    for name, content in {
        "empty": b"", "short": b"1234567", "no JSON": _safetensors(b"\xff" * 64), "a list": _safetensors(b"[]"),
        "nested": _safetensors(b'{"a":' * 10**5), "a header of 2^63 bytes": _safetensors(b"{}", 2**63),
        "a header of all bits": _safetensors(b"{}", 2**64 - 1), "a header of 90 MB": _safetensors(b"{}", 90 * 10**6),
        "a pickle": b"\x80\x04cos\nsystem\n(S'touch OUTSIDE/canary'\ntR.", "a zip file": b"PK\x03\x04" + bytes(100),
        "a header of spaces": _safetensors(b"{}" + b" " * 5 * 10**6),
    }.items():  # fmt: skip
        yield f"weights: {name}", _writing("model.safetensors", content)
    yield "weights: with holes", _holes
    yield "weights: cut off", lambda best: os.truncate(best / "model.safetensors", 200)
    for dtype in (torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.float8_e4m3fn, torch.complex64):
        yield f"weights: as {dtype}", _converting(lambda tensor, dtype=dtype: tensor.to(dtype))
    for value in (float("nan"), float("inf"), -3e38):
        yield f"weights: all {value}", _converting(lambda tensor, value=value: torch.full_like(tensor, value))
    yield "weights: transposed", _converting(lambda tensor: tensor.mT.contiguous() if tensor.dim() > 1 else tensor)
    yield "weights: longer", _converting(lambda tensor: torch.cat([tensor, tensor]) if tensor.dim() else tensor)
    for name, change in _no_files("model.safetensors").items():
        yield f"weights: {name}", change


def config_files() -> Iterator[tuple[str, Change]]:
    """`config.yaml` as something else than a file of YAML."""
    yield "config: with holes", _sparse("config.yaml", 2**36)
    yield "config: bytes", _writing("config.yaml", bytes(range(256)))
    yield "config: random", _writing("config.yaml", np.random.default_rng(0).bytes(10**5))
    for name, change in _no_files("config.yaml").items():
        yield f"config: {name}", change


def _rewriting(change: Callable[[dict], dict]) -> Change:
    def apply(best: Path) -> None:
        path = best / "vocabulary.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return apply


def _words(ids: Any) -> Callable[[dict], dict]:
    return lambda file: file | {"model": file["model"] | {"vocab": ids}}


def _writing(name: str, content: bytes) -> Change:
    return lambda best: (best / name).write_bytes(content) and None


def _replacing(name: str, old: str, new: str) -> Change:
    def apply(best: Path) -> None:
        text = (best / name).read_text()
        assert old in text
        (best / name).write_text(text.replace(old, new, 1))

    return apply


def _converting(convert: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def apply(best: Path) -> None:
        path = best / "model.safetensors"
        save_file({name: convert(tensor) for name, tensor in load_file(path).items()}, path)

    return apply


def _sparse(name: str, size: int) -> Change:
    return lambda best: os.truncate(best / name, size)


def _holes(best: Path) -> None:
    """A tensor of 64 TiB in a file that takes no space, and a model that asks for it, where one has an embedding."""
    path = best / "model.safetensors"
    rows = 2**40
    header = json.dumps({"a": {"dtype": "F32", "shape": [rows, 16], "data_offsets": [0, rows * 64]}}).encode()
    path.write_bytes(_safetensors(header))
    os.truncate(path, 8 + len(header) + (-len(header)) % 8 + min(rows * 64, 2**43))


def _no_files(name: str) -> dict[str, Change]:
    def instead(make: Callable[[Path], Any]) -> Change:
        def apply(best: Path) -> None:
            (best / name).unlink()
            make(best / name)

        return apply

    return {
        "missing": instead(lambda path: None),
        "a pipe": instead(os.mkfifo),
        "a folder": instead(os.mkdir),
        "a link to nothing": instead(lambda path: path.symlink_to("nothing")),
        "a link to itself": instead(lambda path: path.symlink_to(path)),
        "a link to a device": instead(lambda path: path.symlink_to("/dev/zero")),
        "a link to a terminal": instead(lambda path: path.symlink_to("/dev/tty")),
        "a link to a file of the system": instead(lambda path: path.symlink_to("/etc/passwd")),
    }


def _safetensors(header: bytes, claimed: int | None = None) -> bytes:
    """A file with this header and four bytes of numbers."""
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header) if claimed is None else claimed) + header + b"1234"
