"""The memory envelope: what each GPU holds, and how many sequences the KV pools leave room for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.planning.constants import DEFAULT, Constants
from pipeline.planning.placement import Placement
from pipeline.spec import Role
from pipeline.tensorrt_spec import OWN_FRACTION

LOGIT_BYTES = 4
BYTES_16 = 2


@dataclass(frozen=True)
class Sizes:
    """What decides activations, laws and pools.

    Attributes:
        max_num_tokens: packed tokens of one iteration.
        fractions: share of the memory still free when a model loads that its KV pool takes, by role.
        pool_tokens: upper limit of a pool, by role; absent for none.
        graphs: CUDA graphs kept, by role.
        laws: rows of vocabulary size that a request keeps on the GPU, by role: K + 1 of logits at the target and K
            of the draft's laws beside them; at a draft its own, until its call ends.
    """

    max_requests: int
    max_draft_len: int
    max_num_tokens: int
    tokens_per_block: int
    fractions: Mapping[Role, float]
    pool_tokens: Mapping[Role, int]
    graphs: Mapping[Role, int]
    laws: Mapping[Role, int]


@dataclass(frozen=True)
class ModelMemory:
    """One model's part of one GPU, in bytes."""

    weights: float
    activations: float
    logits: float
    runtime: float
    kv_pool: float  # 0 where nothing is left

    @property
    def fixed(self) -> float:
        """What must fit before a KV pool is made."""
        return self.weights + self.activations + self.logits + self.runtime


@dataclass(frozen=True)
class Envelope:
    """One GPU."""

    device: int
    capacity: float
    models: dict[Role, ModelMemory]

    @property
    def used(self) -> float:
        return sum(model.fixed + model.kv_pool for model in self.models.values())

    @property
    def missing(self) -> float:
        """Bytes by which the models do not fit, before any KV pool."""
        return max(0.0, sum(model.fixed for model in self.models.values()) - self.capacity)


@dataclass(frozen=True)
class Memory:
    """All GPUs of a deployment.

    Attributes:
        pool_tokens: tokens that the pool of a model holds, by role.
    """

    envelopes: tuple[Envelope, ...]
    pool_tokens: dict[Role, int]
    max_draft_len: int
    tokens_per_block: int

    @property
    def fits(self) -> bool:
        return all(envelope.missing == 0.0 for envelope in self.envelopes)

    def sequences(self, context: int) -> int:
        """The largest number of sequences of `context` tokens whose KV both pools hold, drafts included."""
        if not self.fits:
            return 0
        return min(
            sequences_in(tokens, context, self.max_draft_len, self.tokens_per_block)
            for tokens in self.pool_tokens.values()
        )


def sequences_in(pool_tokens: int, context: int, max_draft_len: int, tokens_per_block: int) -> int:
    """Sequences of `context` tokens that a pool holds, each with K drafts and one more token, in whole blocks."""
    blocks = math.ceil((context + max_draft_len + 1) / tokens_per_block)
    return pool_tokens // tokens_per_block // blocks


def balanced_tokens(
    placements: Mapping[Role, Placement], capacity: float, sizes: Sizes, constants: Constants = DEFAULT
) -> int:
    """The largest number of tokens that the pools of all models can hold alike.

    `kv_tokens` on both models with `kv_fraction` 0.9 makes such pools, in whatever order the models load. Fractions
    alone cannot where models share a GPU: each must leave room for the other's.
    """
    fixed = {role: _without_pool(role, placement, sizes, constants).fixed for role, placement in placements.items()}
    most = math.inf
    for device in {device for placement in placements.values() for device in placement.devices}:
        here = [role for role, placement in placements.items() if device in placement.devices]
        free = capacity - sum(fixed[role] for role in here)
        most = min(most, OWN_FRACTION * free / sum(placements[role].rank_token_bytes for role in here))
    return max(0, int(most))


def plan_memory(
    placements: Mapping[Role, Placement], capacity: float, sizes: Sizes, constants: Constants = DEFAULT
) -> Memory:
    """Lay models out on GPUs of `capacity` bytes.

    A pool takes its fraction of what is free when its model loads, and nobody promises an order: each pool is
    counted at the smaller of its sizes.
    """
    bare = {role: _without_pool(role, placement, sizes, constants) for role, placement in placements.items()}
    devices = sorted({device for placement in placements.values() for device in placement.devices})
    pools: dict[Role, float] = dict.fromkeys(placements, math.inf)
    for device in devices:
        here = [role for role, placement in placements.items() if device in placement.devices]
        for order in (here, here[::-1]):
            free = capacity
            for number, role in enumerate(order):
                free -= bare[role].fixed
                limit = sizes.pool_tokens.get(role, math.inf) * placements[role].rank_token_bytes
                pool = min(max(0.0, free) * sizes.fractions[role], limit)
                # The pool of the first must leave the second its weights.
                room = free - sum(bare[later].fixed for later in order[number + 1 :])
                pool = max(0.0, min(pool, room))
                pools[role] = min(pools[role], pool)
                free -= pool
    models = {
        role: ModelMemory(part.weights, part.activations, part.logits, part.runtime, pools[role])
        for role, part in bare.items()
    }
    envelopes = tuple(
        Envelope(device, capacity, {role: models[role] for role, p in placements.items() if device in p.devices})
        for device in devices
    )
    tokens = {role: int(pools[role] // placements[role].rank_token_bytes) for role in placements}
    return Memory(envelopes, tokens, sizes.max_draft_len, sizes.tokens_per_block)


def _without_pool(role: Role, placement: Placement, sizes: Sizes, constants: Constants) -> ModelMemory:
    shape, tp = placement.shape, placement.tensor_parallel
    # Values alive at once in a layer: residual, normed input, QKV, gate and up.
    width = 2 * shape.hidden + ((shape.heads + 2 * shape.kv_heads) * shape.head_dim + 2 * shape.intermediate) / tp
    law = placement.padded_vocab * LOGIT_BYTES
    return ModelMemory(
        weights=placement.rank_weight_bytes,
        activations=sizes.max_num_tokens * width * BYTES_16,
        logits=sizes.max_requests * sizes.laws[role] * law,
        runtime=constants.runtime_bytes + sizes.graphs.get(role, 0) * constants.graph_bytes,
        kv_pool=0.0,
    )
