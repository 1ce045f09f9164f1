"""`vision-attn score REFERENCES RESULTS`: files in the wrong order are told, whatever is wrong first."""

import pytest

from tests.commands.test_score import CAPTIONS, files, run  # noqa: F401 (a fixture)
from vision_attn.system.errors import UserError


def test_exchanged_files_are_recognised(files, tmp_path) -> None:  # noqa: F811
    """References that are no results file at all, several captions of an image in a table, and more images."""
    results, annotations = files
    several, more = tmp_path / "several.csv", tmp_path / "more.csv"
    several.write_text("image,caption\n" + "".join(f"{i},{caption}\n{i},again\n" for i, caption in CAPTIONS.items()))
    more.write_text("image,caption\n" + "".join(f"{i},a bus\n" for i in range(1, 6)))
    for references in (annotations, several, more):
        with pytest.raises(UserError, match=f"exchange them: vision-attn score {results} {references}$"):
            run(references, results)
        assert run(results, references) == 0
    (tmp_path / "alike.json").write_text(results.read_text())
    assert run(results, tmp_path / "alike.json") == 0  # nobody knows
    with pytest.raises(UserError, match="is not a results file"):
        run(annotations, annotations)
