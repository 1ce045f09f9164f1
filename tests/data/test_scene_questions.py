"""Questions about scenes: the answer follows from where objects are and what colour they have."""

import pytest
import torch

from vision_attn.data.scenes.grammar import COLOURS
from vision_attn.data.scenes.questions import SIDES, SceneQuestions
from vision_attn.system.errors import UserError

PALETTE = torch.tensor([*COLOURS.values()])


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_path_leads_from_the_named_object_to_the_answer(steps: int) -> None:
    source = SceneQuestions(steps=(steps,), batch_size=24, epoch_images=24, val_images=2, test_images=2, size=54)
    (batch,) = source.train(0, seed=1)
    assert batch.words.shape == (24, 6 + 4 * steps) and batch.boxes.shape == (24, steps, 4)
    for image, boxes, question, answer in zip(batch.facts, batch.boxes, batch.questions, batch.answers, strict=True):
        assert source.vocabulary.words[int(answer)] == question.answer
        middles = (boxes[:, :2] + boxes[:, 2:]) / 2
        sides = [side for side in SIDES if f" {side} " in question.text]
        assert question.text.count("thing ") >= len(sides) and (steps == 1) == (not sides)
        if steps == 2:  # the neighbour lies on its side, and nearly in line
            along = (middles[1] - middles[0]) @ torch.tensor(SIDES[sides[0]]).float()
            assert along > 0.3 and (middles[1] - middles[0]).norm() < 1.3 * along + 0.3
        if "colour" in question.text:
            x, y = ((middles[-1] + 1) / 2 * 54).long().tolist()
            pixel = image[:, y - 1 : y + 2, x - 1 : x + 2].float().mean(dim=(1, 2))
            distance = (PALETTE.float() - pixel).norm(dim=1)
            assert [*COLOURS][int(distance.argmin())] == question.answer


def test_scenes_are_new_in_each_epoch_and_fixed_in_splits() -> None:
    source = SceneQuestions(batch_size=4, epoch_images=8, val_images=6, test_images=2)
    first, second = (next(source.train(epoch, seed=0)).facts for epoch in (0, 1))
    assert not first.equal(second) and first.equal(next(source.train(0, seed=0)).facts)
    splits = [torch.cat([batch.facts for batch in source.split("val")]) for _ in range(2)]
    assert splits[0].equal(splits[1]) and len(splits[0]) == 6
    parts = torch.cat([next(source.train(0, seed=0, rank=rank, world=2)).facts for rank in range(2)])
    assert sorted(parts.flatten(1).sum(1).tolist()) == sorted(first.flatten(1).sum(1).tolist())


def test_questions_of_several_kinds_are_mixed() -> None:
    source = SceneQuestions(batch_size=32, epoch_images=32, val_images=2, test_images=2)
    (batch,) = source.train(0, seed=0)
    known = batch.boxes.isfinite().all(dim=2).sum(dim=1).tolist()
    assert [str(number) for number in known] == [question.kind for question in batch.questions] and set(known) == {1, 2}
    with pytest.raises(UserError, match="steps is 4"):
        SceneQuestions(steps=(1, 4))
