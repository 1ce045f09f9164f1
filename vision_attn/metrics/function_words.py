"""List the function words of English and twelve other languages, and detect which of these a set of captions is in.

Content words are all words except function words. The language also decides on METEOR and SPICE, which only know
English.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

_ENGLISH = """
a about above across after against all along among an and another any are around as at back be been before
behind being below beside between both but by does doing down during each eight every few five for four from
front has have having he her herself him himself his if in inside into is it its itself many nine no not of off
on one onto or other others out outside over past s seven several she six some ten than that the their them
themselves there these they this those three through to top toward towards two under up upon very was were what
where which while who whose with without
"""
FUNCTION_WORDS = frozenset(_ENGLISH.split())
"""English words that name no object, and may occur several times in a caption."""

_OTHERS = {
    "german": """
    als am an andere anderen auf aus bei beim das dem den der des die dies diese diesem dieser drei durch ein eine
    einem einen einer eines er es für gegen hat hinter ihr ihre ihrem ihren ihrer im in ist kein keine mehrere mit
    nach neben nicht oder sein seine seinem seinen seiner sich sie sind über um und unter vier vom von vor war was wie
    wird während zu zum zur zwei zwischen
    """,
    "french": """
    à a au aux avec c' ce cette d' dans de derrière des deux devant dont du elle en entre est et il ils l' la le les
    leur leurs lui ne on ont ou où par pas pendant plus plusieurs pour près qu' quatre que qui s' sa sans se ses son
    sont sous sur tandis trois un une vers y
    """,
    "spanish": """
    a al cerca como con cuatro de del delante desde detrás donde dos e el él ella en encima entre es esta está están
    ha hacia hay junto la las lo los mientras no o otra otro para por que se sin sobre son su sus tres un una unas uno
    unos varias varios y
    """,
    "portuguese": """
    a ao aos as atrás com da das de do dois dos duas e é em enquanto entre está estão frente há mais na não nas no nos
    num numa o os ou outra outro para pela pelo perto por quatro que se sem seu seus são sob sobre sua suas três um
    uma umas uns vários à às
    """,
    "italian": """
    a accanto ad ai al alla alle che con da dal dalla davanti degli dei del dell' della delle dello di dietro due e è
    ed fra gli ha hanno i il in l' la le lo loro mentre nei nel nell' nella nelle non o per più quattro si sono sopra
    sotto sta stanno su sua sue sui sul sull' sulla sulle suo suoi tra tre un un' una uno verso vicino
    """,
    "dutch": """
    aan achter als andere bij boven daar dat de deze die dit door drie een elkaar en er haar heeft hem het hij hun in
    is langs meer met naar naast niet of om onder op over rond te tegen terwijl tijdens tot tussen twee uit van vier
    voor waar waarin was wordt worden ze zich zij zijn zonder
    """,
    "swedish": """
    alla att av bakom bredvid de dem den det där efter ej eller en ett framför från fram fyra för genom ha han hans
    har hon hos i in inte längs med medan mellan mot ner nära några och också om på runt sig sin sina sitt som till
    tre två under upp ur ut utanför vid är över
    """,
    "danish": """
    ad af alle at bag de dem den der deres det efter eller en er et fire for foran fra gennem han hans har hen hende
    hendes hun i ikke ind langs med mellem mens mod ned nogle nær når og om op over på rundt sig sin sine sit som til
    to tre ud uden under ved være
    """,
    "polish": """
    a cztery dla do dwa dwaj dwie dwóch gdy i ich ją je jego jej jest już kilka która które który lub ma mają między
    na nad nie nim obok od około on ona oni oraz po pod podczas przed przez przy są się ta ten to trzech trzy w we
    wokół z za ze
    """,
    "czech": """
    a aby ale čtyři do dva dvě i jak je jeho jejich její jejím jsou k kde kolem která které který ke mezi má mají na
    nad ne nebo několik o od on po pod podél před přes při pro s se si skrz ta ten to tři u v ve vedle z za ze že
    """,
    "russian": """
    а без в во возле вокруг два две для до его ее её за и из или им их к как ко который которая которые между на над
    не него несколько но о об один одна около он она они от перед по под при рядом с со среди три у через четыре что
    это
    """,
    "turkish": """
    altında arasında arkasında bazı bir biri birkaç bu çok da de diğer doğru dört en etrafında gibi her için içinde
    içinden iki ile ise kadar karşı ki o olan olarak onun önünde sonra şu üç üstünde üzerinde üzerinden var ve veya
    yanında
    """,
}  # a list has what stands most often in captions, with words that it shares with others
LANGUAGES = {"english": FUNCTION_WORDS} | {name: frozenset(words.split()) for name, words in _OTHERS.items()}
"""The function words of each known language, by its English name."""

_ALSO_ENGLISH = """
ad ale alle am bag den die do door fire ha hat hay hen i mens mod par pendant per pod plus pour pro sin sit son u v van
war we
"""
_ENGLISH_FOUND = FUNCTION_WORDS.union(_ALSO_ENGLISH.split())
"""The function words of English for comparing languages: they include words of the other lists that English captions
contain."""
_WORD = re.compile(r"(?:qu|[dn]ell|[as]ull|all|un|[^\W\d_])'(?=[^\W\d_]|$)|[^\W_]+(?:['-][^\W_]+)*")
_APOSTROPHES = str.maketrans("\u2018\u2019\u02bc\u00b4`", "'''''")

MANY = 200
"""With at least this number of words, a share of function words is meaningful by itself."""
FEW = 0.02
"""The share of English function words, without the commonest one, below which `MANY` words or more are not English. The
commonest one may belong to another language, like "a" in Hungarian."""
TERSE = 0.25
"""The share of function words below which English is terse: sentences have 0.3 to 0.5, reports 0.2, titles 0.1."""
NAMED = 0.15
"""The smallest share of another language's function words for captions in that language."""
COMMON = 30
"""The largest number of words that count as function words of an unknown language."""


class CaptionLanguage(NamedTuple):
    """The language of a set of captions."""

    name: str
    """A key of `LANGUAGES`; "" for an unknown language."""
    not_english: str = ""
    """The reason why it is not English, in one line; "" for English."""
    terse: str = ""
    """The reason why METEOR says less about this English than about sentences; "" if there is none."""


def language_of(captions: Iterable[str]) -> CaptionLanguage:
    """Detect the language of a set of captions: English, unless the function words of another language are more
    frequent in all captions together, most letters are not Latin, or English function words hardly occur in many
    captions."""
    written: Counter[str] = Counter()
    for caption in captions:
        written.update(caption.split())
    counts: Counter[str] = Counter()
    for text, times in written.items():  # each text once: many times as fast as caption by caption
        for word in _words(text):
            counts[word] += times
    total = counts.total()
    numbers = {name: _times(counts, words) for name, words in LANGUAGES.items()}
    best = max(numbers, key=numbers.__getitem__)
    name = best if numbers[best] > 0 and numbers[best] >= NAMED * total else ""
    own = numbers["english"]
    letters = sum(times * sum(map(str.isalpha, word)) for word, times in counts.items())
    latin = sum(times * sum(letter < "\u0250" for letter in word if letter.isalpha()) for word, times in counts.items())
    if 2 * latin < letters:
        return CaptionLanguage(name, f"{letters - latin:,} of {letters:,} letters are not Latin")
    rare = f"only {own:,} of {total:,} words are among those that English sentences share"
    if numbers[best] > max(_times(counts, _ENGLISH_FOUND), 1):
        of = f"of {total:,} words {numbers[best]:,} are function words of {name.capitalize()}, {own:,} of English"
        return CaptionLanguage(name, of if name else rare)
    commonest_one = max((counts[word] for word in FUNCTION_WORDS & counts.keys()), default=0)
    if total >= MANY and own - commonest_one < FEW * total:
        return CaptionLanguage("", rare)
    if total >= MANY and own < TERSE * total:
        share = f"{own / total:.0%}"
        return CaptionLanguage(
            "english",
            terse=f"only {share} of the words are function words, and METEOR weighs these as in sentences, which have "
            "near a half: compare it with scores of these references alone",
        )
    return CaptionLanguage("english")


def _times(counts: Mapping[str, int], words: Set[str]) -> int:
    """Count how often any of `words` occurs."""
    return sum(times for word, times in counts.items() if word in words)


def is_content(word: str, function_words: Set[str] = FUNCTION_WORDS) -> bool:
    """Return whether a word is neither a function word nor a sign."""
    return word.lower() not in function_words and any(map(str.isalnum, word))


def content_marks(
    words: Sequence[str], known: Sequence[bool] | None = None, function_words: Set[str] = FUNCTION_WORDS
) -> Sequence[bool]:
    """Return whether each of `words` is a content word: `known`, or decided by `function_words` if that is None."""
    return [is_content(word, function_words) for word in words] if known is None else known


def function_words_of(caption: str) -> Set[str]:
    """Return the function words of the language of one caption; English ones if the language is unknown."""
    return LANGUAGES.get(language_of([caption]).name, FUNCTION_WORDS)


def commonest(images: Iterable[Iterable[str]]) -> list[str]:
    """Return the words that count as function words of an unknown language: those in the captions of more than half of
    the images, the commonest first, at most `COMMON`.

    images: the words of all captions of each image.
    """
    counts: Counter[str] = Counter()
    number = 0
    for words in images:
        counts.update({*map(str.lower, words)})
        number += 1
    return [word for word, times in counts.most_common(COMMON) if 2 * times > number]


def _words(text: str) -> list[str]:
    if not text.isascii():
        text = unicodedata.normalize("NFC", text).translate(_APOSTROPHES)
    return _WORD.findall(text.lower())
