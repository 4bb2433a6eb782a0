"""Time of a forward pass: bytes over bandwidth, products over arithmetic, and what no datasheet shrinks."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.planning.constants import DEFAULT, Constants
from pipeline.planning.gpus import Gpu
from pipeline.planning.placement import Placement

BYTES_16 = 2


@dataclass(frozen=True)
class PassTime:
    """Seconds of one pass, by cause. Weights and arithmetic overlap; the rest adds up."""

    weights_s: float
    compute_s: float
    kv_s: float
    fixed_s: float
    links_s: float

    @property
    def total_s(self) -> float:
        return max(self.weights_s, self.compute_s) + self.kv_s + self.fixed_s + self.links_s

    @property
    def bottleneck(self) -> str:
        """What takes the most of it, in words."""
        causes = {
            "weight reads": self.weights_s if self.weights_s >= self.compute_s else 0.0,
            "arithmetic": self.compute_s if self.compute_s > self.weights_s else 0.0,
            "KV reads": self.kv_s,
            "kernel launches": self.fixed_s,
            "links": self.links_s,
        }
        return max(causes, key=lambda cause: causes[cause])


def pass_time(
    placement: Placement, gpu: Gpu, sequences: int, tokens: int, context: int, constants: Constants = DEFAULT
) -> PassTime:
    """Time of one pass over `sequences` rows of `tokens` new tokens each.

    Args:
        tokens: 1 for decoding, K + 1 for a verify.
        context: tokens before them, of every row.
    """
    shape, tp = placement.shape, placement.tensor_parallel
    rows = sequences * tokens
    bandwidth = gpu.bandwidth * constants.bandwidth_share
    layers = 2 * rows * shape.layers * shape.layer_products / gpu.flops(placement.weights)
    attention = 4 * rows * (context + tokens) * shape.layers * shape.heads * shape.head_dim / gpu.flops_fp16
    head = 2 * rows * shape.head / gpu.flops_fp16
    rank_kv = 2 * shape.layers * placement.rank_kv_heads * shape.head_dim * placement.kv_bytes
    return PassTime(
        weights_s=placement.read_bytes / bandwidth,
        compute_s=(layers + attention + head) / tp / constants.flops_share,
        kv_s=sequences * context * rank_kv / bandwidth,
        fixed_s=shape.layers * constants.layer_s,
        links_s=_links(placement, gpu, rows, constants),
    )


def _links(placement: Placement, gpu: Gpu, rows: int, constants: Constants) -> float:
    """All-reduces within a layer (two), and the hand-over between pipeline stages."""
    tp, size = placement.tensor_parallel, rows * placement.shape.hidden * BYTES_16
    latency = constants.nvlink_s if gpu.nvlink else constants.pcie_s
    link = gpu.link * constants.link_share
    reduces = 2 * placement.shape.layers if tp > 1 else 0
    hops = placement.pipeline_parallel - 1
    return reduces * (latency + 2 * (tp - 1) / tp * size / link) + hops * (latency + size / link)
