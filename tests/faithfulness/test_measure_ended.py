"""`vision-attn measure` that is asked to end: what was measured until then is written."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.faithfulness.test_measure import photographs, tiny  # noqa: F401 (a fixture)
from vision_attn.commands import main
from vision_attn.faithfulness.measurement import Measurement


def test_sigterm_ends_with_what_was_measured(tiny: str, tmp_path: Path, monkeypatch, capsys) -> None:  # noqa: F811
    """In the middle of the second image; and before the first answer, when there is nothing to write."""
    folder, out, add = tmp_path / "photographs", tmp_path / "out", Measurement.add
    folder.mkdir()
    for number, image in enumerate(photographs(3)):
        image.save(folder / f"{number}.png")
    given = ["measure", f"{tiny}:make", str(folder), "--out", str(out), "--steps", "2", "--fill", "mean"]
    given += ["--trust", tiny, "--method", "relevance", "--best", "0", "--sanity", "0"]

    for after in (0, 1):

        def stopped(self: Measurement, *arguments: Any, after: int = after) -> Any:
            if len(self.by_image) == after:
                os.kill(os.getpid(), signal.SIGTERM)
            return add(self, *arguments)

        monkeypatch.setattr(Measurement, "add", stopped)  # a signal from outside would come at another image each time
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(SystemExit) as ended:
            main(given)
        assert ended.value.code == 143 and signal.getsignal(signal.SIGTERM) is before
        assert (out / "measure.json").exists() == (after == 1)
    numbers, told = json.loads((out / "measure.json").read_text()), capsys.readouterr().err
    assert numbers["images"] == 1 and not numbers["is_whole"] and "A low gain says" in told
