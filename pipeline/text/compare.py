"""Whether a draft reads and writes the same tokens as its target: by content, not by size or file bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import EngineError
from pipeline.text.tokenizer import TOKENIZER_NAME, Tokenizer, read_json

MAX_DIFFERENCES = 10  # lines shown; one foreign vocabulary has tens of thousands
MAX_EXAMPLES = 3  # tokens named in one line
MAX_SHOWN = 60  # characters of a value
OTHER_FORMATS = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")

CORPUS = (
    "",
    " ",
    "Hello, world!",
    "x  5",
    "   42",
    "1234567890 3.14159 1,000,000 0x1F 1e-5 ½ ٣",
    "a b  c   d    e\t\tf \n g\n\n\nh   ",
    "line\r\nline\rline\n",
    "I'm you're WE'LL don't it's",
    "naïve café Straße ÅNGSTRÖM e\u0301 \ufb01n",
    "日本語のテキスト 中文 한국어",
    "Привет мир مرحبا بالعالم שלום हिन्दी ไทย",
    "😀👩‍👩‍👧‍👦🇨🇭👍🏽",
    "\u00a0\u2003\u200b\ufeff\u2028 \u0000\u0007",
    "def f(x: int) -> str:\n    return f'{x:>5}'  # \u2192\n\tif x != 0 && y: pass",
    '{"key": [1, 2.5, null, true], "s": "\\u00e9\\n"}',
    '<div class="a">&amp;</div> <!-- --> $\\frac{a}{b}$',
    "https://example.org/a?b=c&d=%20#e foo_bar fooBar FOO-BAR",
    "\U00010348 \U0001d518 \ufffd",
)


@dataclass(frozen=True)
class TokenizerComparison:
    """What was found; `differences` is empty if and only if `equal`."""

    equal: bool
    differences: tuple[str, ...]  # for people, at most MAX_DIFFERENCES lines


def compare_tokenizers(target: Path, draft: Path) -> TokenizerComparison:
    """Compare vocabulary, merges, added tokens, text processing, and the tokens of tricky strings.

    A vocabulary padded in the weights (config.json `vocab_size` above the tokenizer's) is no difference, nor
    are the BOS that is put before a prompt and the name of the EOS: the draft is given the target's ids. A
    draft folder without tokenizer files takes the target's tokenizer, if its logits are wide enough.

    Args:
        target: Hugging Face folder of the target.
        draft: Hugging Face folder of the draft.

    Raises:
        EngineError: a tokenizer or configuration file is missing at the target, or damaged.
    """
    lines: list[str] = []
    for line in _differences(Path(target), Path(draft)):
        if len(lines) == MAX_DIFFERENCES:
            lines[-1] = "and more"
            break
        lines.append(line)
    return TokenizerComparison(equal=not lines, differences=tuple(lines))


def require_equal_tokenizers(target: Path, draft: Path) -> None:
    """Refuse a draft that speaks other tokens.

    Raises:
        EngineError: naming both folders and the differences.
    """
    comparison = compare_tokenizers(target, draft)
    if not comparison.equal:
        raise EngineError(
            f"draft {draft} does not have the tokenizer of target {target}: " + "; ".join(comparison.differences)
        )


def _differences(target: Path, draft: Path) -> Iterator[str]:
    ours = Tokenizer.load(target)
    yield from _narrow_logits("target", target, ours)
    if not (draft / TOKENIZER_NAME).is_file():
        found = [name for name in OTHER_FORMATS if (draft / name).is_file()]
        if found:
            yield f"the draft has {found[0]} but no {TOKENIZER_NAME}: it cannot be compared"
        elif _config_vocab_size(draft) is None:
            yield "the draft has neither tokenizer files nor a vocab_size in config.json"
        yield from _narrow_logits("draft", draft, ours)
        return
    theirs = Tokenizer.load(draft)
    yield from _narrow_logits("draft", draft, theirs)
    if (target / TOKENIZER_NAME).read_bytes() == (draft / TOKENIZER_NAME).read_bytes():
        return
    yield from _compare_content(_content(ours), _content(theirs))
    yield from _compare_corpus(ours, theirs)


def _config_vocab_size(folder: Path) -> int | None:
    size = read_json(folder / "config.json").get("vocab_size")
    return size if isinstance(size, int) else None


def _narrow_logits(role: str, folder: Path, tokenizer: Tokenizer) -> Iterator[str]:
    size = _config_vocab_size(folder)
    if size is not None and size < tokenizer.vocab_size:
        yield (
            f"the {role}'s config.json has vocab_size = {size}, below the {tokenizer.vocab_size} tokens "
            "of its tokenizer"
        )


def _content(tokenizer: Tokenizer) -> dict[str, Any]:
    """tokenizer.json as the library writes it: defaults filled in, merges in one format."""
    data: dict[str, Any] = json.loads(tokenizer.backend.to_str())
    return data


def _compare_content(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    yield from _compare_maps("vocabulary", _vocabulary(ours), _vocabulary(theirs))
    yield from _compare_maps("added tokens", _added(ours), _added(theirs))
    our_merges, their_merges = ours["model"].get("merges"), theirs["model"].get("merges")
    if our_merges != their_merges:
        yield _merge_difference(our_merges or [], their_merges or [])
    for part in ("normalizer", "pre_tokenizer"):
        yield from _compare_values(part, _plain(ours[part]), _plain(theirs[part]))
    yield from _compare_values("decoder", _plain_decoder(ours["decoder"]), _plain_decoder(theirs["decoder"]))
    for key in sorted((ours["model"].keys() | theirs["model"].keys()) - {"vocab", "merges"}):
        # null and "" both say that there is no such prefix or suffix
        values = ours["model"].get(key) or None, theirs["model"].get(key) or None
        yield from _compare_values(f"model {key}", *values)


def _vocabulary(content: dict[str, Any]) -> dict[str, Any]:
    vocabulary = content["model"].get("vocab", {})
    if isinstance(vocabulary, list):  # unigram: [token, score] in the order of ids
        return {token: (number, score) for number, (token, score) in enumerate(vocabulary)}
    return dict(vocabulary)


def _added(content: dict[str, Any]) -> dict[str, Any]:
    return {token["content"]: token for token in content["added_tokens"]}


def _plain(section: Any) -> Any:
    """Without what moves offsets only."""
    if isinstance(section, list):
        return [_plain(item) for item in section]
    if isinstance(section, dict):
        return {key: _plain(value) for key, value in section.items() if key != "trim_offsets"}
    return section


def _plain_decoder(section: Any) -> Any:
    """A byte-level decoder has options, and heeds none."""
    if isinstance(section, dict) and section.get("type") == "ByteLevel":
        return {"type": "ByteLevel"}
    return _plain(section)


def _compare_maps(what: str, ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    if ours == theirs:
        return
    for role, missing in (("target", theirs.keys() - ours.keys()), ("draft", ours.keys() - theirs.keys())):
        if missing:
            yield f"{what}: {len(missing)} not in the {role}, e.g. {_examples(sorted(missing))}"
    changed = sorted(key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key])
    if changed:
        first = changed[0]
        yield (
            f"{what}: {len(changed)} differ, e.g. {first!r} is {_shown(ours[first])} in the target, "
            f"{_shown(theirs[first])} in the draft"
        )


def _merge_difference(ours: list[Any], theirs: list[Any]) -> str:
    part = _first_difference(ours, theirs)
    return f"merges: {len(ours)} in the target, {len(theirs)} in the draft; they part at number {part}"


def _first_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
    for number, (here, there) in enumerate(zip(ours, theirs, strict=False)):
        if here != there:
            return number
    return min(len(ours), len(theirs))


def _compare_values(what: str, ours: Any, theirs: Any) -> Iterator[str]:
    if ours != theirs:
        yield f"{what}: {_shown(ours)} in the target, {_shown(theirs)} in the draft"


def _compare_corpus(ours: Tokenizer, theirs: Tokenizer) -> Iterator[str]:
    special = [str(ours.token(number)) for number in sorted(ours.special_ids)]
    for text in (*CORPUS, "a " + " b".join(special) + "\n"):
        our_ids = ours.encode(text, add_special_tokens=False)
        their_ids = theirs.encode(text, add_special_tokens=False)
        if our_ids != their_ids:
            part = _first_difference(our_ids, their_ids)
            here, there = our_ids[part : part + 4], their_ids[part : part + 4]
            yield f"{_shown(text)} parts at token {part}: {here} in the target, {there} in the draft"
        elif ours.decode(our_ids) != theirs.decode(our_ids):
            yield f"the tokens of {_shown(text)} decode to other text in the draft"


def _examples(tokens: list[str]) -> str:
    return ", ".join(_shown(token) for token in tokens[:MAX_EXAMPLES])


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
