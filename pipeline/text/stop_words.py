"""Stop words, found in text while it streams in."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.errors import InvalidRequestError


class ScanResult(NamedTuple):
    """What one push gave."""

    emit: str  # text that is certain to precede any stop word
    stopped: bool  # a stop word was completed; nothing follows


class _Node:
    """A beginning of a stop word (Aho-Corasick)."""

    __slots__ = ("children", "depth", "fallback", "match")

    def __init__(self, depth: int) -> None:
        self.children: dict[str, _Node] = {}
        self.fallback: _Node | None = None  # the longest proper suffix that begins a word, too
        self.depth = depth  # characters
        self.match = ""  # the longest stop word that ends here


class StopWordScanner:
    """Cuts a stream before the first stop word, whatever pieces the text comes in.

    The match is the one that completes first, character by character; of several that complete with the same
    character, the longest (it begins earliest). Constant time per character, for any number of words.

    Attributes:
        matched: the stop word that was found, None before.
    """

    def __init__(self, stop_words: Sequence[str]) -> None:
        """
        Raises:
            InvalidRequestError: an empty stop word: it would match before the first character.
        """
        if "" in stop_words:
            raise InvalidRequestError("stop_words", list(stop_words), "each must have at least one character")
        self._root = _build(stop_words)
        self._node = self._root
        self._held = ""  # the node's own text: the tail that may be the beginning of a stop word
        self.matched: str | None = None

    def push(self, text: str) -> ScanResult:
        """Take the next piece of text, of any length; after a match it is ignored."""
        if self.matched is not None:
            return ScanResult("", True)
        pending = self._held + text
        node = self._node
        for position, character in enumerate(text, start=len(self._held) + 1):
            node = _step(self._root, node, character)
            if node.match:
                self.matched = node.match
                self._held = ""
                return ScanResult(pending[: position - len(node.match)], True)
        self._node = node
        certain = len(pending) - node.depth
        self._held = pending[certain:]
        return ScanResult(pending[:certain], False)

    def flush(self) -> str:
        """At the end of the text: what was held back and began no stop word after all."""
        held, self._held, self._node = self._held, "", self._root
        return held


def _step(root: _Node, node: _Node, character: str) -> _Node:
    while character not in node.children:
        if node.fallback is None:
            return root
        node = node.fallback
    return node.children[character]


def _build(words: Sequence[str]) -> _Node:
    root = _Node(0)
    for word in words:
        node = root
        for character in word:
            node = node.children.setdefault(character, _Node(node.depth + 1))
        node.match = word
    queue = deque([root])
    while queue:
        parent = queue.popleft()
        for character, child in parent.children.items():
            child.fallback = root if parent.fallback is None else _step(root, parent.fallback, character)
            child.match = child.match or child.fallback.match
            queue.append(child)
    return root
