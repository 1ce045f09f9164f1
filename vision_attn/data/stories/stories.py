"""`Stories` and `BabiFiles`, data sets of stories with questions: generated from a simulated world, or read from bAbI's
files."""

from collections.abc import Iterator, Sequence
from functools import cached_property

from vision_attn.data.counted_batches import Counted, slices
from vision_attn.data.random_streams import FIXED, stream
from vision_attn.data.stories.babi import read_stories
from vision_attn.data.stories.question import EncodedQuestions, Question, QuestionBatch, encode_questions, shuffled
from vision_attn.data.stories.repeated import Story, remarks
from vision_attn.data.stories.world import NUM_STORIES, TASKS, WORDS, generated
from vision_attn.data.vocabulary import Vocabulary, VocabularySource
from vision_attn.system.checks import check_range
from vision_attn.system.errors import UserError
from vision_attn.system.files import find
from vision_attn.task import SPLITS, Task, equal_part, known_split

HELD_OUT = 10
"""One in ten stories (or questions) for training is for validation, as in Sukhbaatar et al. 2015."""


class QuestionSource(VocabularySource):
    """Base class of data sets of stories with questions. A subclass defines `by_story` and `vocabulary`.

    batch_size: questions in a batch; an incomplete last batch of training is dropped.
    max_facts: the largest number of sentences of a story, the latest ones.
    """

    by_story: dict[str, list[Story]]
    """The stories of each split, in order."""

    batch_size: int

    def __init__(self, *, batch_size: int, max_facts: int) -> None:
        check_range(type(self).__name__, 1, 10_000, batch_size=batch_size, max_facts=max_facts)
        self.batch_size, self.max_facts = batch_size, max_facts
        self._encoded: dict[str, EncodedQuestions] = {}

    @cached_property
    def by_split(self) -> dict[str, list[Question]]:
        """The questions of each split, story by story."""
        return {
            split: [question for story in stories for question in story] for split, stories in self.by_story.items()
        }

    def prepare(self, task: Task) -> None:
        """Raises UserError if there are fewer questions for training than one batch has."""
        if not len(self):
            number = len(self.by_split["train"])
            raise UserError(
                f"{type(self).__name__}: {number} questions are not enough for batches of {self.batch_size}"
            )

    def __len__(self) -> int:
        return len(self.by_split["train"]) // self.batch_size

    def encoded(self, name: str) -> EncodedQuestions:
        """Return the questions of a split as tensors."""
        if name not in self._encoded:
            self._encoded[name] = encode_questions(self.by_split[name], self.vocabulary, self.max_facts)
        return self._encoded[name]

    def batch(self, name: str, numbers: Sequence[int]) -> QuestionBatch:
        """Return a batch of questions of split `name`."""
        taken = tuple(self.by_split[name][number] for number in numbers)
        facts, words, answers, support = (tensor[list(numbers)] for tensor in self.encoded(name))
        return QuestionBatch(
            facts, words, answers, support, None, taken, tuple(f"{name}-{number}" for number in numbers)
        )

    def train(self, epoch: int, *, seed: int, skip: int = 0, rank: int = 0, world: int = 1) -> Iterator[QuestionBatch]:
        mine, order = equal_part(self.batch_size, rank, world), shuffled(len(self.by_split["train"]), seed, epoch)
        for index in range(skip, len(self)):
            yield self.batch("train", order[index * self.batch_size :][: self.batch_size][mine].tolist())

    def split(self, name: str, *, rank: int = 0, world: int = 1) -> Counted[QuestionBatch]:
        numbers = range(len(self.by_split[known_split(name)]))
        return slices(
            lambda chosen: self.batch(name, numbers[chosen]), len(numbers), self.batch_size, rank=rank, world=world
        )


class Stories(QuestionSource):
    """Generated stories like those of bAbI's tasks 1, 2, 3, 11 and 17 (`data.stories.world`).

    tasks: the numbers of the tasks, whose questions are mixed.
    stories: the number of training stories of each task; a tenth of them is kept for validation.
    test_stories: the number of test stories of each task.
    questions: the largest number of questions about a story. Stories of task 17 have 8 questions, others 5. (bAbI's own
        sets of 1,000 questions are 200 stories with 5 questions each.)
    batch_size, max_facts: as for `QuestionSource`; 50 sentences are the memory of Sukhbaatar et al. 2015.
    seed: the seed of the stories, which are the same in every epoch.

    No question of a split comes after the same sentences as a question of another split. For task 17 only 1,440 stories
    exist, so a split repeats some: `remarks` counts them. The vocabulary has the words of all tasks, whichever are
    chosen.

    Raises UserError if validation and test would have more than half of all stories of a task or, if that number is
    unknown, if no further story is found for training.
    """

    def __init__(
        self,
        *,
        tasks: tuple[int, ...] = (1,),
        stories: int = 1000,
        test_stories: int = 200,
        questions: int = 5,
        batch_size: int = 32,
        max_facts: int = 50,
        seed: int = 0,
    ) -> None:
        if not tasks or set(tasks) - set(TASKS):
            raise UserError(f"Stories: tasks={list(tasks)}, but there are {', '.join(map(str, TASKS))}")
        check_range("Stories", HELD_OUT, 100_000, stories=stories)
        check_range("Stories", 1, 100_000, test_stories=test_stories)
        check_range("Stories", 1, 8, questions=questions)
        check_range("Stories", 0, 2**32, seed=seed)
        for task in set(tasks) & set(NUM_STORIES):
            if (held_out := stories // HELD_OUT + test_stories) > NUM_STORIES[task] // 2:
                raise UserError(
                    f"Stories: task {task} has only {NUM_STORIES[task]:,} stories, half of which are for training: a "
                    f"tenth of stories={stories} and test_stories={test_stories} are {held_out:,} for the other splits"
                )
        super().__init__(batch_size=batch_size, max_facts=max_facts)
        self.tasks, self.stories, self.test_stories = tasks, stories, test_stories
        self.questions, self.seed = questions, seed

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(WORDS)

    @cached_property
    def by_story(self) -> dict[str, list[Story]]:
        """The stories of each split. Test stories are chosen first, so that they do not depend on the number of
        training stories, which avoid repeating them."""
        held_out = self.stories // HELD_OUT
        splits: dict[str, list[Story]] = {"train": [], "val": [], "test": []}
        taken: set[tuple[str, ...]] = set()
        for split, size in ("test", self.test_stories), ("val", held_out), ("train", self.stories - held_out):
            for task in self.tasks:
                bits = stream(FIXED, SPLITS.index(split), self.seed, task)
                splits[split] += generated(task, size, self.questions, bits, taken)
            taken |= {question.facts for story in splits[split] for question in story}
        return splits

    @property
    def remarks(self) -> Iterator[str]:
        few = {task: f", of which {number:,} stories exist" for task, number in NUM_STORIES.items()}
        return remarks(self.by_story, {str(task): f"task {task}{few.get(task, '')}" for task in self.tasks})


class BabiFiles(QuestionSource):
    """Stories of files in the format of bAbI (Weston et al. 2015), such as those of its twenty tasks.

    train, test: the training and the test files, equally many. The last stories of each training file, with a tenth of
        its questions, are for validation. Paths are also searched for under `$VISION_ATTN_DATA` and `data/`.
    batch_size, max_facts: as for `QuestionSource`.

    Files are used unchanged: `remarks` counts the training stories that are also in another split. Raises UserError
    naming the file and the line for a file that is not in this format, or has a single story.
    """

    def __init__(
        self, *, train: tuple[str, ...], test: tuple[str, ...], batch_size: int = 32, max_facts: int = 50
    ) -> None:
        if not train or len(train) != len(test):
            raise UserError(f"BabiFiles: give as many files to test ({len(test)}) as to train ({len(train)})")
        super().__init__(batch_size=batch_size, max_facts=max_facts)
        self.training_files, self.test_files = train, test

    @cached_property
    def by_story(self) -> dict[str, list[Story]]:
        splits: dict[str, list[Story]] = {"train": [], "val": [], "test": []}
        for number, (train, test) in enumerate(zip(self.training_files, self.test_files, strict=True), start=1):
            path = find(train)
            told = read_stories(path, str(number))
            if len(told) < 2:
                raise UserError(f"{path}: one story cannot be for training and validation: number 1 begins another")
            held_out, wanted = 0, max(1, sum(map(len, told)) // HELD_OUT)
            while wanted > 0 and held_out < len(told) - 1:
                held_out += 1
                wanted -= len(told[-held_out])
            splits["train"] += told[:-held_out]
            splits["val"] += told[-held_out:]
            splits["test"] += read_stories(find(test), str(number))
        return splits

    @property
    def remarks(self) -> Iterator[str]:
        return remarks(self.by_story, {str(number): path for number, path in enumerate(self.test_files, start=1)})

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """All words of the training files. An answer of several words is a word of its own."""
        known = [question for split in ("train", "val") for question in self.by_split[split]]
        texts = {text for question in known for text in (*question.facts, question.text)}
        built = Vocabulary.build(sorted(texts), min_count=1)
        return built.extended(sorted({question.answer for question in known}))
