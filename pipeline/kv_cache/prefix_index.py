"""Which computed tokens live in which block: a trie whose edges are the tokens of one block.

A node is addressed by the exact tokens from the root, so two texts can never be confused (a chained hash
could). Full blocks may have children; a partial block is a leaf. Eviction takes leaves, least recently used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pipeline.common_prefix import common_prefix
from pipeline.kv_cache.block_pool import BlockPool


@dataclass(eq=False)
class IndexNode:
    """One indexed block: `tokens` (a full block's, or fewer in a leaf) stored in pool block `block`."""

    tokens: tuple[int, ...]
    block: int
    parent: IndexNode | None
    children: dict[tuple[int, ...], IndexNode] = field(default_factory=dict)
    by_first: dict[int, list[IndexNode]] = field(default_factory=dict)


@dataclass(frozen=True)
class PrefixMatch:
    """Indexed blocks that begin a text.

    Attributes:
        full: nodes of whole blocks, from the root.
        partial: the node whose first `partial_tokens` tokens continue them, or None.
    """

    full: tuple[IndexNode, ...]
    partial: IndexNode | None
    partial_tokens: int


class PrefixIndex:
    """Holds one reference on every block it indexes."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._root = IndexNode((), -1, None)
        # Least recently used first. A path is touched leaf to root, so a parent always comes after its children.
        self._recency: OrderedDict[IndexNode, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recency)

    def __iter__(self) -> Iterator[IndexNode]:
        return iter(self._recency)

    def match(self, tokens: Sequence[int]) -> PrefixMatch:
        """Find the longest indexed prefix of `tokens` and mark it as used."""
        size = self._pool.tokens_per_block
        node, full, position = self._root, [], 0
        while position + size <= len(tokens):
            child = node.children.get(tuple(tokens[position : position + size]))
            if child is None:
                break
            full.append(child)
            node, position = child, position + size
        rest = tuple(tokens[position : position + size])
        best, best_tokens = None, 0
        for child in node.by_first.get(rest[0], ()) if rest else ():
            common = common_prefix(child.tokens, rest)
            if common > best_tokens:
                best, best_tokens = child, common
        self._touch(best if best is not None else node)
        return PrefixMatch(tuple(full), best, best_tokens)

    def insert(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Index the KV of `tokens`, stored in `blocks`. What is indexed already keeps its present block."""
        size = self._pool.tokens_per_block
        node = self._root
        whole = len(tokens) // size
        for i in range(whole):
            edge = tuple(tokens[i * size : (i + 1) * size])
            child = node.children.get(edge)
            if child is None:
                self._drop_prefixes(node, edge)
                child = self._add(node, edge, blocks[i])
            node = child
        tail = tuple(tokens[whole * size :])
        if tail and not any(child.tokens[: len(tail)] == tail for child in node.by_first.get(tail[0], ())):
            self._drop_prefixes(node, tail)
            node = self._add(node, tail, blocks[whole])
        self._touch(node)

    def take(self, node: IndexNode) -> int:
        """Remove an idle leaf and hand its block, with its reference, to the caller."""
        self._unlink(node)
        return node.block

    def is_idle_leaf(self, node: IndexNode) -> bool:
        """True where the index alone holds the block and nothing continues it."""
        return not node.children and self._pool.count(node.block) == 1

    def idle_blocks(self) -> int:
        """Blocks that eviction could free."""
        return sum(self._pool.count(node.block) == 1 for node in self._recency)

    def evict(self, count: int) -> int:
        """Free up to `count` idle blocks, least recently used leaves first; returns how many."""
        freed = 0
        while freed < count:
            # A held node has held ancestors, so the first idle node in recency order is a leaf.
            victim = next((node for node in self._recency if self._pool.count(node.block) == 1), None)
            if victim is None:
                break
            self._pool.release(self.take(victim))
            freed += 1
        return freed

    def check_integrity(self) -> None:
        """Assert the trie's own invariants."""
        seen: set[int] = set()
        position = {node: i for i, node in enumerate(self._recency)}
        for node in self._recency:
            assert node.block not in seen, f"block {node.block} is indexed twice"
            seen.add(node.block)
            parent = node.parent
            assert parent is not None and parent.children[node.tokens] is node
            assert node in parent.by_first[node.tokens[0]]
            if parent is not self._root:
                assert position[parent] > position[node], "a parent would be evicted before its child"
                assert len(parent.tokens) == self._pool.tokens_per_block, "a partial block has children"
                if self._pool.count(node.block) > 1 and self._pool.count(parent.block) == 1:
                    raise AssertionError(f"block {node.block} is held but its parent {parent.block} is not")

    def _add(self, parent: IndexNode, tokens: tuple[int, ...], block: int) -> IndexNode:
        self._pool.retain(block)
        node = IndexNode(tokens, block, parent)
        parent.children[tokens] = node
        parent.by_first.setdefault(tokens[0], []).append(node)
        self._recency[node] = None
        return node

    def _unlink(self, node: IndexNode) -> None:
        parent = node.parent
        assert parent is not None and not node.children
        del parent.children[node.tokens]
        siblings = parent.by_first[node.tokens[0]]
        siblings.remove(node)
        if not siblings:
            del parent.by_first[node.tokens[0]]
        del self._recency[node]

    def _drop_prefixes(self, parent: IndexNode, tokens: tuple[int, ...]) -> None:
        """Give up idle partial blocks that the longer `tokens` make redundant."""
        for child in list(parent.by_first.get(tokens[0], ())):
            if child.tokens == tokens[: len(child.tokens)] and self.is_idle_leaf(child):
                self._pool.release(self.take(child))

    def _touch(self, node: IndexNode) -> None:
        current: IndexNode | None = node
        while current is not None and current is not self._root:
            self._recency.move_to_end(current)
            current = current.parent
