"""The constants of the time model: fixed once, used for every model, GPU and batch alike.

`docs/planning.md` says where each comes from, and `specdec plan --check` what they predict.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """What a datasheet does not say.

    Attributes:
        bandwidth_share: part of a GPU's memory bandwidth that a decoding step reaches while it reads weights: what
            STREAM-like programs reach, about nine tenths. `--check` shows what 0.88 and 0.94 would do.
        flops_share: part of a GPU's dense arithmetic that large products reach.
        layer_s: seconds per layer that do not shrink with the model: launches and tails of about ten kernels.
            Solved from one published row (Llama-3.1-8B on an H100), see `published.CALIBRATION`.
        nvlink_s: seconds of an all-reduce of a few KB between GPUs of one NVLink domain.
        pcie_s: the same over PCIe.
        link_share: part of a link's bandwidth that large all-reduces reach.
        round_s: seconds of a round outside the two models: two calls between Triton models and the loop, as measured
            with this project's CPU demo (docs/performance.md), not on a GPU machine.
        runtime_bytes: memory per GPU and model outside weights, KV and activations: CUDA context, cuBLAS and NCCL
            workspaces, decoder state.
        graph_bytes: GPU memory of one cached CUDA graph (TensorRT-LLM's documentation: 4 to 10 MB).
    """

    bandwidth_share: float = 0.92
    flops_share: float = 0.6
    layer_s: float = 45e-6
    nvlink_s: float = 8e-6
    pcie_s: float = 25e-6
    link_share: float = 0.8
    round_s: float = 4e-3
    runtime_bytes: float = 1.0e9
    graph_bytes: float = 10e6


DEFAULT = Constants()
ACCEPTANCE = 0.7  # conditional acceptance assumed where nobody has measured it
