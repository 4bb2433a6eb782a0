"""Small model folders, specs on them, and machines made by hand."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pipeline.doctor.check import Check
from pipeline.doctor.deployment import Deployment
from pipeline.doctor.examine import CHECKS, examine
from pipeline.doctor.finding import Finding
from pipeline.doctor.machine import Machine, SeenGpu
from pipeline.planning.gpus import Gpu
from pipeline.spec import DeploymentSpec

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
DRAFT_CONFIG = {**CONFIG, "num_hidden_layers": 2}
TEMPLATE = "{{ messages[0]['content'] }}"
H100 = SeenGpu(0, "NVIDIA H100 80GB HBM3", 85.5e9, "9.0", "580.95.05")
GPU_MACHINE = Machine(gpus=(H100,), tensorrt_llm="1.2.1", triton="2.67.0", shm_free=8 << 30)


def write_model(folder: Path, config: dict[str, Any] | None = None, **tokenizer: Any) -> Path:
    """A folder as Hugging Face has it: configuration, tokenizer, and a safetensors file of one tensor."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or CONFIG))
    write_tokenizer(folder, **tokenizer)
    write_weights(folder / "model.safetensors")
    return folder


def write_tokenizer(
    folder: Path, swapped: bool = False, eos: str | None = "</s>", template: str | None = TEMPLATE
) -> None:
    """Bytes as tokens, after <s> and </s>; `swapped` exchanges two of them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    if swapped:
        letters[0], letters[1] = letters[1], letters[0]
    vocabulary = {token: number for number, token in enumerate(["<s>", "</s>", *letters])}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    backend.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": eos, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))


def write_weights(path: Path, promised: int = 64, written: int = 64) -> None:
    """A safetensors file: the length of the header, the header, `written` of the `promised` bytes."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [promised], "data_offsets": [0, promised]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(written))


def make_spec(target: Path | str, draft: Path | str | None, **changes: Any) -> DeploymentSpec:
    """A spec; keys with a dot go into a section: `**{"draft.kind": "none"}`."""
    data: dict[str, Any] = {
        "name": "doctor-test",
        "target": {"model": str(target)},
        "draft": {"kind": "none"} if draft is None else {"kind": "model", "model": str(draft)},
        "limits": {"max_seq_len": 2048, "max_draft_len": 4, "max_requests": 4},
    }
    for key, value in changes.items():
        section, _, field = key.rpartition(".")
        (data.setdefault(section, {}) if section else data)[field] = value
    return DeploymentSpec.model_validate(data)


def findings_of(
    check: type[Check], spec: DeploymentSpec, machine: Machine = GPU_MACHINE, gpu: Gpu | None = None
) -> list[Finding]:
    """What one check finds."""
    (chosen,) = (known for known in CHECKS if type(known) is check)  # a check that is not registered is never run
    return list(examine(Deployment.read(spec, machine, gpu), [chosen]))


def severities(findings: Sequence[Finding]) -> list[str]:
    return [finding.severity for finding in findings]
