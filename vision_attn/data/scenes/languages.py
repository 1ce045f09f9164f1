"""The captions of drawn scenes in other languages: Chinese, which has no spaces, and Hebrew, from right to left.

Each template is a translation of the English one at the same position in `grammar.FORMS`, and names the same object
first.
"""

from typing import Literal, NamedTuple

Name = Literal["english", "chinese", "hebrew"]


class SceneLanguage(NamedTuple):
    """The words of a language for the colours and shapes of the grammar, in the same order, and its templates."""

    colours: tuple[str, ...]
    shapes: tuple[str, ...]
    object: str
    relations: dict[str, str]
    forms: dict[int, tuple[str, ...]]
    letters: int | None = None
    """If words are single letters: how many letters of the word for a colour or a shape name it. None: all letters."""


CHINESE = SceneLanguage(
    ("红", "绿", "蓝", "黄", "紫", "粉", "青", "白"),
    ("圆", "方", "三角", "菱", "十字", "星"),
    "{colour}色{shape}形",
    {"to the left of": "左边", "to the right of": "右边", "above": "上面", "below": "下面"},
    {
        1: (
            "图中单独有一个{a}", "有一个单独的{a}", "一个单独的{a}", "这里只有一个{a}", "图中只有一个{a}",
            "这是一个{a}", "只有一个{a}别无其他",
        ),
        2: (
            "一个{a}位于一个{b}的{near}", "有一个{a}在一个{b}的{near}", "一个{a}在一个{b}的{near}",
            "图中一个{a}在一个{b}的{near}", "在一个{a}的{far}是一个{b}", "在一个{a}的{far}有一个{b}",
            "这里有一个{b}在一个{a}的{far}",
        ),
        3: (
            "一个{a}位于一个{b}和一个{c}的{near}", "有一个{a}在一个{b}和一个{c}的{near}",
            "一个{a}在一个{b}和一个{c}的{near}", "图中一个{a}在一个{b}和一个{c}的{near}",
            "在一个{a}的{far}是一个{b}和一个{c}", "在一个{a}的{far}有一个{b}在一个{c}的{across}",
            "这里有一个{b}和一个{c}在一个{a}的{far}",
        ),
    },
    letters=1,
)  # fmt: skip
HEBREW = SceneLanguage(
    ("אדום", "ירוק", "כחול", "צהוב", "סגול", "ורוד", "טורקיז", "לבן"),
    ("עיגול", "ריבוע", "משולש", "מעוין", "צלב", "כוכב"),
    "{shape} {colour}",
    {"to the left of": "משמאל ל", "to the right of": "מימין ל", "above": "מעל ל", "below": "מתחת ל"},
    {
        1: (
            "תמונה של {a} לבד", "יש {a} לבד", "{a} לבד", "יש רק {a}", "תמונה של רק {a}", "הנה רק {a}", "{a} ותו לא",
        ),
        2: (
            "{a} נמצא {near}{b}", "יש {a} {near}{b}", "{a} {near}{b}", "תמונה של {a} {near}{b}",
            "{far}{a} נמצא {b}", "{far}{a} יש {b}", "הנה {b} {far}{a}",
        ),
        3: (
            "{a} נמצא {near}{b} ול{c}", "יש {a} {near}{b} ול{c}", "{a} {near}{b} ול{c}",
            "תמונה של {a} {near}{b} ול{c}", "{far}{a} נמצאים {b} ו{c}", "{far}{a} יש {b} {across}{c}",
            "הנה {b} ו{c} {far}{a}",
        ),
    },
)  # fmt: skip
