"""Part f: stop words, the end token, the length and min_tokens at every index inside a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pipeline.conformance.check import Check, Context, Finding
from pipeline.conformance.deployment import Answer, Ids
from pipeline.conformance.greedy import TIE
from pipeline.conformance.teacher import Teacher
from pipeline.orchestrator.request import GenerationRequest

K = 5
TOKENS, QUICK_TOKENS = 32, 14
RUNS, QUICK_RUNS = 4, 1
SENTENCE = "The quick brown fox jumps over the lazy dog and then runs far away from here.\n"
REPETITION = f"{SENTENCE * 4}The quick brown"
"""Easy to draft, and no token comes twice in a sentence: each can end the answer."""


@dataclass(frozen=True)
class Place:
    """Where in a verified block a token falls; `inside`: the block goes on behind it."""

    index: int
    inside: bool


@dataclass(frozen=True)
class Ending:
    """A request and how its answer must end.

    Attributes:
        place: of the last token inside its block.
        token_ids, text, reason: of the answer.
    """

    request: GenerationRequest
    place: Place
    token_ids: tuple[int, ...]
    text: str
    reason: str


@dataclass(frozen=True)
class Whole:
    """A long answer whose beginnings are known.

    Attributes:
        request: with K drafts a round.
        answer: of it, ended by its length.
        texts: text of the first n tokens, at n.
        places: position -> place, of tokens in blocks with drafts.
    """

    request: GenerationRequest
    answer: Answer
    texts: tuple[str, ...]
    places: dict[int, Place]


class StoppingCheck(Check):
    """Ends a known greedy answer at every place.

    A long answer with K drafts a round shows which token falls at which index of a block. Then the same request is
    given a length, an end token, a stop word, or a minimum that ends it there, and must give exactly the beginning.
    """

    part = "f stopping"

    def run(self, context: Context) -> Iterator[Finding]:
        k = min(K, context.facts.max_draft_len)
        if k == 0:
            yield self.not_offered("every index", "no speculation")
            return
        runs = [whole for whole in _wholes(context, k) if whole.places]
        if not runs:
            yield self.not_offered("every index", "no draft was made behind the first token")
            return
        for name, needs, make in (
            ("length", (), _by_length),
            ("stop word", ("stop_words",), _by_word),
            ("stop word over two tokens", ("stop_words",), _by_spanning_word),
            ("end token", ("end_id",), _by_end),
            ("min_tokens reached", ("end_id", "min_tokens"), _by_reached_minimum),
        ):
            if not context.facts.offers(*needs):
                yield self.not_offered(name, context.facts.why_not(*needs))
                continue
            yield self._ends(context, name, k, _one_per_place(runs, make))
        if context.facts.offers("end_id", "min_tokens"):
            yield self._held_back(context, k, _one_per_place(runs, _by_held_back))

    def _ends(self, context: Context, name: str, k: int, endings: list[Ending]) -> Finding:
        ties = 0
        for ending, answer in zip(endings, context.ask([ending.request for ending in endings]), strict=True):
            found = (answer.token_ids, answer.text, answer.finish_reason)
            if found == (ending.token_ids, ending.text, ending.reason):
                problem = _miscounted(answer)
                if problem:
                    return self.failed(name, f"index {ending.place.index}: {problem}")
            elif _tie(context, ending.request, ending.token_ids, answer):
                ties += 1
            else:
                return self.failed(
                    name,
                    f"index {ending.place.index}: expected {ending.reason} after {len(ending.token_ids)} tokens "
                    f"{ending.text[-24:]!r}, got {answer.finish_reason} after {len(answer.token_ids)} "
                    f"{answer.text[-24:]!r}",
                )
        return self._covered(name, k, endings, ties)

    def _held_back(self, context: Context, k: int, endings: list[Ending]) -> Finding:
        """The end token comes too early: the answer is plain decoding's, and no shorter than the minimum."""
        name = "min_tokens holds back"
        plain = context.ask([replace(ending.request, num_draft_tokens=0) for ending in endings])
        found = context.ask([ending.request for ending in endings])
        for ending, left, right in zip(endings, plain, found, strict=True):
            request = ending.request
            if min(len(left.token_ids), len(right.token_ids)) < request.min_tokens:
                short = min(len(left.token_ids), len(right.token_ids))
                return self.failed(
                    name, f"index {ending.place.index}: {short} tokens, min_tokens = {request.min_tokens}"
                )
            if any(request.end_id in answer.token_ids[: request.min_tokens] for answer in (left, right)):
                return self.failed(name, f"index {ending.place.index}: the end token stands in the text")
            if left.token_ids != right.token_ids and not _tie(context, request, left.token_ids, right):
                return self.failed(name, f"index {ending.place.index}: differs from plain decoding")
        return self._covered(name, k, endings, 0)

    def _covered(self, name: str, k: int, endings: list[Ending], ties: int) -> Finding:
        if not endings:
            return self.not_offered(name, "no token of the answers could end them")
        inside, last = (
            sorted({ending.place.index for ending in endings if ending.place.inside == wanted})
            for wanted in (True, False)
        )
        excuse = f"; {ties} decided otherwise at a tie" if ties else ""
        detail = f"index {_listed(inside)} inside a block, index {_listed(last)} at its end, K = {k}{excuse}"
        return self.passed(name, detail, inside=inside, last=last, ties=ties)


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _wholes(context: Context, k: int) -> list[Whole]:
    count, tokens = (QUICK_RUNS, QUICK_TOKENS) if context.quick else (RUNS, TOKENS)
    prompts = (REPETITION, *(prompt.text for prompt in context.prompts))[:count]
    plain = [GenerationRequest(text, tokens, exclude_input_in_output=True, num_draft_tokens=k) for text in prompts]
    answers = context.ask([replace(request, stream=True, return_perf_metrics=True) for request in plain])
    wholes = []
    for request, answer in zip(plain, answers, strict=True):
        places, start = {}, 0
        for record in answer.rounds:
            if record["drafted"]:
                committed = record["committed"]
                places.update({start + i: Place(i, i < committed - 1) for i in range(committed)})
            start += record["committed"]
        wholes.append(Whole(request, answer, _beginnings(context, request, answer), places))
    return wholes


def _beginnings(context: Context, request: GenerationRequest, answer: Answer) -> tuple[str, ...]:
    """Text of the first n tokens, at n: by the deployment's tokenizer, else as plain decoding writes them."""
    counts = range(len(answer.token_ids) + 1)
    if isinstance(context.teacher, Teacher) and context.deployment.tokenizer is not None:
        return tuple(context.deployment.tokenizer.decode(answer.token_ids[:n]) for n in counts)
    shorter = context.ask([replace(request, max_tokens=n, num_draft_tokens=0) for n in counts[1:]])
    return ("", *(found.text for found in shorter))


def _tie(context: Context, request: GenerationRequest, expected: Ids, answer: Answer) -> bool:
    """True where the texts part at a tie that the engine does not promise to decide alike."""
    found = answer.token_ids
    position = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), None)
    if position is None or answer.statistics.get("reproducible") or not isinstance(context.teacher, Teacher):
        return False
    return context.teacher.margin(request, expected[:position]) < TIE


def _one_per_place(runs: list[Whole], make: Callable[[Whole, int], Ending | None]) -> list[Ending]:
    found: dict[Place, Ending] = {}
    for whole in runs:
        for position, place in whole.places.items():
            if place not in found and (ending := make(whole, position)) is not None:
                found[place] = ending
    return list(found.values())


def _by_length(whole: Whole, position: int) -> Ending | None:
    count = position + 1
    request = replace(whole.request, max_tokens=count)
    return Ending(request, whole.places[position], whole.answer.token_ids[:count], whole.texts[count], "length")


def _by_word(whole: Whole, position: int) -> Ending | None:
    before, after = whole.texts[position], whole.texts[position + 1]
    return _at_word(whole, position, after[len(before) :])


def _by_spanning_word(whole: Whole, position: int) -> Ending | None:
    if position == 0:
        return None
    return _at_word(whole, position, whole.texts[position + 1][len(whole.texts[position - 1]) :][1:])


def _at_word(whole: Whole, position: int, word: str) -> Ending | None:
    """Stop at a word that first completes with the token at `position`."""
    before, after = whole.texts[position], whole.texts[position + 1]
    if not word.strip() or "\ufffd" in word or word in before or word not in after or not after.startswith(before):
        return None
    request = replace(whole.request, stop_words=("\u2603 never", word))
    ids = whole.answer.token_ids[: position + 1]
    return Ending(request, whole.places[position], ids, after[: after.index(word)], "stop")


def _by_end(whole: Whole, position: int) -> Ending | None:
    ids = whole.answer.token_ids
    if ids[position] in ids[:position]:
        return None
    request = replace(whole.request, end_id=ids[position])
    return Ending(request, whole.places[position], ids[:position], whole.texts[position], "eos")


def _by_reached_minimum(whole: Whole, position: int) -> Ending | None:
    ending = _by_end(whole, position)
    return ending and replace(ending, request=replace(ending.request, min_tokens=position))


def _by_held_back(whole: Whole, position: int) -> Ending | None:
    ending = _by_end(whole, position)
    enough = min(position + 2, whole.request.max_tokens)
    return ending and replace(ending, request=replace(ending.request, min_tokens=enough))


def _miscounted(answer: Answer) -> str | None:
    """Statistics that remember more than was committed."""
    statistics, count = answer.statistics, len(answer.token_ids)
    if statistics["committed_tokens"] != count:
        return f"statistics count {statistics['committed_tokens']} committed tokens, {count} were sent"
    accepted = statistics["num_accepted_draft_tokens"]
    if accepted > count:
        return f"statistics count {accepted} accepted drafts among {count} tokens"
    return None
