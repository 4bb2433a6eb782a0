"""A model laid out on GPUs: what one rank holds and reads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.planning.model_shape import BYTES, ModelShape
from pipeline.step_model_spec import Weights

HEAD_BYTES = 2  # embedding and LM head stay in 16 bits under every quantisation that TensorRT-LLM 1.2 offers


@dataclass(frozen=True)
class Placement:
    """One model over `tensor_parallel` x `pipeline_parallel` GPUs.

    Attributes:
        devices: ids of the GPUs, one per rank.
        kv_bytes: bytes of one number in the KV cache (2: float16, 1: fp8).
    """

    shape: ModelShape
    weights: Weights = "float16"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    devices: tuple[int, ...] = (0,)
    kv_bytes: int = 2

    def indivisible(self) -> tuple[str, ...]:
        """Why this split cannot be built, each as `field = value: limit`; empty if it can."""
        shape, tp = self.shape, self.tensor_parallel
        reasons = []
        for what, count in (("num_attention_heads", shape.heads), ("intermediate_size", shape.intermediate)):
            if count % tp:
                reasons.append(f"tensor_parallel = {tp}: does not divide {what} = {count}")
        small, large = sorted((tp, shape.kv_heads))
        if large % small:
            reasons.append(f"tensor_parallel = {tp}: neither divides nor is divided by KV heads = {shape.kv_heads}")
        if self.pipeline_parallel > shape.layers:
            reasons.append(f"pipeline_parallel = {self.pipeline_parallel}: the model has {shape.layers} layers")
        return tuple(reasons)

    @property
    def stage_layers(self) -> int:
        """Layers of the longest pipeline stage."""
        return math.ceil(self.shape.layers / self.pipeline_parallel)

    @property
    def padded_vocab(self) -> int:
        """Width of the logits: the vocabulary, rounded up to whole shares of the ranks."""
        return math.ceil(self.shape.vocab / self.tensor_parallel) * self.tensor_parallel

    @property
    def rank_kv_heads(self) -> int:
        """KV heads of one rank; more ranks than heads hold copies."""
        return max(1, self.shape.kv_heads // self.tensor_parallel)

    @property
    def rank_weight_bytes(self) -> float:
        """Weights on the fullest GPU: its layers, the embedding (on every rank), its part of the LM head."""
        shape, tp = self.shape, self.tensor_parallel
        layer = shape.layer_products * BYTES[self.weights] / tp + shape.layer_rest * 2
        head = HEAD_BYTES * self.padded_vocab * shape.hidden / tp
        embedding = HEAD_BYTES * shape.head
        if tp == self.pipeline_parallel == 1 and shape.tied:
            head = 0.0  # one table for both
        ends = max(embedding, head) if self.pipeline_parallel > 1 else embedding + head
        return self.stage_layers * layer + ends

    @property
    def model_bytes(self) -> float:
        """Weights of the whole model, as a checkpoint on a disk holds them."""
        shape = self.shape
        rest = shape.parameters - shape.layers * shape.layer_products
        return shape.layers * shape.layer_products * BYTES[self.weights] + HEAD_BYTES * rest

    @property
    def read_bytes(self) -> float:
        """What the GPUs of one tensor-parallel group read, each, for one pass over all layers and the LM head."""
        shape, tp = self.shape, self.tensor_parallel
        layer = shape.layer_products * BYTES[self.weights] / tp + shape.layer_rest * 2
        return shape.layers * layer + HEAD_BYTES * shape.head / tp

    @property
    def rank_token_bytes(self) -> int:
        """KV cache of one token on the fullest GPU."""
        return 2 * self.stage_layers * self.rank_kv_heads * self.shape.head_dim * self.kv_bytes
