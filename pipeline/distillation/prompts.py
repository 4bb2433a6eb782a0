"""Prompts whose answers teach a draft: many, different, of the kinds that a served model is asked.

Some kinds need a text to work on (summaries with quotes, edits of code): those take what the target itself wrote
before, so that no data set is needed.
"""

from __future__ import annotations

import json
import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.distillation.prompt_parts import PARTS, words
from pipeline.distillation.tasks import code_to_edit, json_task, paragraph
from pipeline.errors import InvalidRequestError

KINDS = ("chat", "code", "json", "quote", "edit", "story", "text")
WEIGHTS = (20, 16, 14, 15, 14, 14, 7)
ASK = "ask"  # the answer is a question: material, not something a draft is trained on
ASKED_SHARE = 0.15
PASSAGES_KEPT = 2000
SHINGLE = 6  # words in a row

CODE_BLOCK = re.compile(r"```(\w*)\n(.+?)```", re.DOTALL)
SENTENCE = re.compile(r"[A-Z][^.!?\n]{20,200}[.!?](?=\s|$)")
WORD = re.compile(r"\w+")
IDENTIFIER = re.compile(r"\b[a-z_]{3,}\b")


@dataclass(frozen=True)
class TrainingPrompt:
    """What the target is asked.

    Attributes:
        kind: one of KINDS, or what the user's file says.
        text: the user's message; a beginning to continue where `chat` is false.
        chat: whether the chat template is applied.
    """

    kind: str
    text: str
    chat: bool = True


class PromptMaker:
    """An endless source of prompts.

    Args:
        seed: the same seed and the same `learn` calls give the same prompts.
        exclude: texts that no prompt may resemble, such as those acceptance will be measured on.
        chat: whether the target has a chat template; without one every prompt is plain text.
        given: prompts of the user's own; every second prompt is drawn from them while there are any.
        question_start: the chat template up to where the user's message begins. The target continues it with a
            question of its own (Magpie, arXiv 2406.08464), which then becomes a prompt.
    """

    def __init__(
        self,
        seed: int,
        exclude: Iterable[str] = (),
        chat: bool = True,
        given: Iterable[TrainingPrompt] = (),
        question_start: str | None = None,
    ) -> None:
        self._random = random.Random(seed)
        self._chat = chat
        self._question_start = question_start
        self._excluded = [_profile(text) for text in exclude]
        self._given = deque(prompt for prompt in given if not self._resembles(prompt.text))
        self._passages: deque[str] = deque(maxlen=PASSAGES_KEPT)
        self._codes: deque[str] = deque(maxlen=PASSAGES_KEPT)
        self._questions: deque[str] = deque(maxlen=PASSAGES_KEPT)
        self._seen: set[str] = set()
        self._makers: dict[str, Callable[[], str]] = {
            "chat": lambda: self._fill(PARTS["ask_chat"]),
            "story": lambda: self._fill(PARTS["ask_story"]),
            "code": lambda: self._fill(PARTS["ask_code"]),
            "json": lambda: json_task(self._random),
            "quote": self._quote,
            "edit": self._edit,
            "text": lambda: self._fill(PARTS["ask_text"]),
        }

    def next(self) -> TrainingPrompt:
        """A prompt that was not given before and resembles nothing excluded."""
        if self._given and self._random.random() < 0.5:
            return self._given.popleft()
        if self._question_start is not None and self._random.random() < ASKED_SHARE:
            if not self._questions:
                return TrainingPrompt(ASK, self._question_start, chat=False)
            return TrainingPrompt("chat", self._questions.popleft(), self._chat)
        while True:
            kind = self._random.choices(KINDS, WEIGHTS)[0]
            text = self._makers[kind]()
            if text not in self._seen and not self._resembles(text):
                self._seen.add(text)
                return TrainingPrompt(kind, text, self._chat and kind != "text")

    def learn(self, kind: str, answer: str) -> None:
        """Keep passages, code and questions of an answer as material for later prompts."""
        if kind == ASK:
            question = answer.strip()
            if 10 < len(question) < 600 and question not in self._seen and not self._resembles(question):
                self._seen.add(question)
                self._questions.append(question)
            return
        for language, code in CODE_BLOCK.findall(answer):
            if 3 <= code.count("\n") <= 25 and len(code) < 900:
                self._codes.append(f"```{language}\n{code}```")
        if kind in ("chat", "story", "text"):
            sentences = SENTENCE.findall(answer)
            if len(sentences) >= 2 and len(set(sentences)) == len(sentences):
                self._passages.append(" ".join(sentences[: self._random.randint(2, 5)]))

    def _quote(self) -> str:
        own = self._passages and self._random.random() < 0.6
        text = self._random.choice(self._passages) if own else paragraph(self._random)
        long_words = [word for word in WORD.findall(text) if len(word) > 4] or ["it"]
        return self._random.choice(PARTS["ask_quote"]).format(text=text, word=self._random.choice(long_words))

    def _edit(self) -> str:
        own = self._codes and self._random.random() < 0.6
        code = self._random.choice(self._codes) if own else code_to_edit(self._random)
        old = self._random.choice(IDENTIFIER.findall(code) or ["x"])
        new = "_".join(self._random.sample(PARTS["nouns"], 2))
        return self._random.choice(PARTS["ask_edit"]).format(code=code, old=old, new=new)

    def _fill(self, forms: Sequence[str]) -> str:
        return self._random.choice(forms).format_map(words(self._random))

    def _resembles(self, text: str) -> bool:
        bag, runs = _profile(text)
        return any(
            runs & other_runs or len(bag & other) >= 0.6 * min(len(bag | other), 2 * len(bag))
            for other, other_runs in self._excluded
        )


def read_prompts(path: Path) -> list[TrainingPrompt]:
    """Prompts from JSONL with the keys `text`, and if wanted `kind` (a word) and `chat` (true unless given).

    Raises:
        InvalidRequestError: naming the line that is not such an object.
    """
    prompts = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise InvalidRequestError("prompts", str(path), f"cannot be read ({error})") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            kind, text, chat = data.get("kind", "own"), data["text"], data.get("chat", True)
        except (ValueError, KeyError, AttributeError) as error:
            raise InvalidRequestError(f"{path}:{number}", line[:60], "must be a JSON object with a key text") from error
        if not isinstance(text, str) or not text.strip() or not isinstance(kind, str) or not isinstance(chat, bool):
            raise InvalidRequestError(
                f"{path}:{number}", line[:60], "text must be text that is not empty, kind a word, chat true or false"
            )
        prompts.append(TrainingPrompt(kind, text, chat))
    if not prompts:
        raise InvalidRequestError("prompts", str(path), "holds no prompt")
    return prompts


def _profile(text: str) -> tuple[set[str], set[tuple[str, ...]]]:
    """Words, and runs of SHINGLE words, in lower case."""
    found = WORD.findall(text.lower())
    return set(found), {tuple(found[i : i + SHINGLE]) for i in range(len(found) - SHINGLE + 1)}
