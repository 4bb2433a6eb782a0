"""The repository of every TensorRT profile: what Triton's schema accepts, and what speculation depends on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tritonclient.grpc import model_config_pb2

from pipeline.errors import ServerError
from pipeline.serving.contract import SPEC_DECODE, STEP
from pipeline.serving.launch import MPIRUN, launch_of, require_launcher
from pipeline.serving.repository import RepositoryOptions, render_repository
from pipeline.serving.server import TritonServer
from pipeline.serving.tensorrt_contract import tensorrt_contract
from pipeline.serving.tensorrt_parameters import BACKEND
from pipeline.serving.triton_install import CONTAINER, find_triton, require_backend
from pipeline.spec import ROOT, DeploymentSpec
from pipeline.tensorrt_spec import MOST_TOGETHER

from .support import make_spec, scripted_server
from .test_repository import assert_contract, read

PROFILES = [
    path for path in sorted((ROOT / "build" / "profiles").glob("*.yaml")) if "engine: tensorrt_llm" in path.read_text()
]
NAMES = [path.stem for path in PROFILES]
needs_no_backend = pytest.mark.skipif(
    (CONTAINER / "backends" / BACKEND).is_dir(), reason="NVIDIA's backend is installed here"
)


def render(spec: DeploymentSpec, folder: Path) -> dict[str, model_config_pb2.ModelConfig]:
    """Each model's configuration, as Triton's protobuf parser reads it."""
    repository = render_repository(spec, folder / "repository", RepositoryOptions(engines_dir=folder / "engines"))
    return {path.name: read(path) for path in repository.iterdir()}


@pytest.mark.parametrize("path", PROFILES, ids=NAMES)
def test_a_profile(path: Path, tmp_path: Path) -> None:
    """Engines on NVIDIA's backend with everything it declares; the orchestrator as ever."""
    spec = DeploymentSpec.load(path)
    configs = render(spec, tmp_path)
    assert set(configs) == {"target", "draft", "spec_decode"}
    assert_contract(configs["spec_decode"], SPEC_DECODE)
    shares: dict[str, float] = dict.fromkeys(map(str, spec.target.device_ids + spec.draft.device_ids), 0.0)
    for role in spec.model_roles:
        config = configs[role]
        assert config.backend == BACKEND and (tmp_path / "repository" / role / "1").is_dir()
        config.backend = "python"
        assert_contract(config, tensorrt_contract(spec.limits.max_requests))
        assert not config.model_transaction_policy.decoupled and config.HasField("dynamic_batching")
        values = {key: value.string_value for key, value in config.parameters.items()}
        assert not any("$" in value for value in values.values())
        assert values["gpt_model_type"] == "inflight_fused_batching"
        assert values["gpt_model_path"] == str(tmp_path / "engines" / role / "engine")
        assert values["enable_kv_cache_reuse"] == "true" and values["max_beam_width"] == "1"
        assert values["speculative_decoding_fast_logits"] == "false"
        assert values["batch_scheduler_policy"] == "guaranteed_no_evict"
        # The backend reads these three without a default: it does not load a model that lacks one.
        assert {"tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path"} <= values.keys()
        bound = spec.step_model(role).kv_tokens
        assert values.get("max_tokens_in_paged_kv_cache") == (None if bound is None else str(bound))
        # A pool takes the smaller of the two: one that is bounded leaves room whatever its fraction.
        for device in values["gpu_device_ids"].split(",") if bound is None else ():
            shares[device] += float(values["kv_cache_free_gpu_mem_fraction"])
        assert values["cuda_graph_mode"] == ("true" if role == "draft" else "false")
        assert int(values["cuda_graph_cache_size"]) == (spec.limits.max_requests if role == "draft" else 0)
    assert max(shares.values()) <= MOST_TOGETHER


def test_nvidias_contract_holds_ours() -> None:
    """Every tensor that the orchestrator may send or ask for is declared alike, but for our own."""
    theirs = tensorrt_contract(4)
    for ours, declared in ((STEP.inputs, theirs.inputs), (STEP.outputs, theirs.outputs)):
        by_name = {spec.name: spec for spec in declared}
        assert len(by_name) == len(declared)
        for spec in ours:
            if not spec.own:
                assert by_name[spec.name] == spec
    # The counts of NVIDIA's config.pbtxt at 1.2.
    assert (len(theirs.inputs), len(theirs.outputs)) == (62, 21)


def test_engines_from_elsewhere_and_bounded_pools(tmp_path: Path) -> None:
    spec = make_spec(
        engine="tensorrt_llm",
        target={"model": "a/b", "engine_dir": str(tmp_path / "elsewhere"), "kv_tokens": 4096, "gpus": [3]},
    )
    parameters = render(spec, tmp_path)["target"].parameters
    assert parameters["gpt_model_path"].string_value == str(tmp_path / "elsewhere")
    assert parameters["max_tokens_in_paged_kv_cache"].string_value == "4096"
    assert parameters["gpu_device_ids"].string_value == "3"
    relative = make_spec(engine="tensorrt_llm", target={"model": "a/b", "engine_dir": "engines/x"})
    found = render(relative, tmp_path)["target"].parameters["gpt_model_path"].string_value
    assert found == str(ROOT / "engines" / "x")


def test_a_profile_changes_its_engine_kind(tmp_path: Path) -> None:
    """What a rendering for the other kind left is gone: no model.py beside NVIDIA's backend."""
    render(make_spec(), tmp_path)
    assert (tmp_path / "repository" / "target" / "1" / "model.py").is_file()
    render(make_spec(engine="tensorrt_llm"), tmp_path)
    assert not list((tmp_path / "repository" / "target" / "1").iterdir())


@pytest.mark.parametrize(
    ("target", "draft", "mode"),
    [
        ({}, {}, "leader"),
        ({}, {"gpus": [1]}, "leader"),
        ({"tensor_parallel": 4}, {}, "orchestrator"),
        ({"tensor_parallel": 2}, {"tensor_parallel": 2}, "orchestrator"),
        ({"pipeline_parallel": 2}, {}, "orchestrator"),
    ],
)
def test_how_it_is_started(target: dict[str, int], draft: dict[str, int], mode: str) -> None:
    spec = make_spec(
        engine="tensorrt_llm", target={"model": "a/b", **target}, draft={"kind": "model", "model": "c/d", **draft}
    )
    launch = launch_of(spec)
    assert launch.mode == mode and launch.gpu
    if mode == "leader":
        assert (launch.wrapper, launch.arguments, dict(launch.env)) == ((), (), {})
    else:
        assert launch.wrapper == MPIRUN and launch.env["TRTLLM_ORCHESTRATOR"] == "1"
        devices = {device for role in spec.model_roles for device in spec.step_model(role).device_ids}
        pools = {flag for flag in launch.arguments if flag.startswith("--cuda-memory-pool")}
        assert pools == {f"--cuda-memory-pool-byte-size={device}:0" for device in devices}


def test_embedded_is_started_as_ever() -> None:
    assert launch_of(make_spec()).mode == "python" and not launch_of(make_spec()).gpu


@needs_no_backend
def test_a_server_without_the_backend_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"has no backend tensorrtllm \(looked for .*tensorrtllm\): .*docs/gpu.md"):
        require_backend(find_triton(), BACKEND)
    require_backend(find_triton(), "python")


def test_mpirun_is_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ServerError, match=r"mpirun is not on PATH: models of several ranks .*orchestrator mode"):
        require_launcher(launch_of(make_spec(engine="tensorrt_llm", target={"model": "a/b", "tensor_parallel": 2})))
    require_launcher(launch_of(make_spec(engine="tensorrt_llm")))


@needs_no_backend
@pytest.mark.served
@pytest.mark.parametrize("path", PROFILES, ids=NAMES)
def test_triton_objects_to_nothing_but_the_missing_backend(path: Path, tmp_path: Path) -> None:
    """The real server takes the orchestrator, and both engines up to the point where it looks for NVIDIA's library."""
    spec = DeploymentSpec.load(path)
    log = failing_start(scripted_server(tmp_path, spec))
    errors = [line for line in log.splitlines() if line.startswith("E") and "CudaDriverHelper" not in line]
    assert len(errors) == len(spec.model_roles)
    for role in spec.model_roles:
        missing = f"failed to load '{role}' version 1: Invalid argument: unable to find backend library for backend"
        assert any(f"{missing} '{BACKEND}'" in line for line in errors), errors


@needs_no_backend
@pytest.mark.served
def test_triton_checks_before_it_looks_for_the_library(tmp_path: Path) -> None:
    """A planted error is found by the same start: the test above would see it."""
    server = scripted_server(tmp_path, make_spec(engine="tensorrt_llm"))
    config = tmp_path / "repository" / "target" / "config.pbtxt"
    config.write_text(config.read_text().replace("preferred_batch_size: [ 16 ]", "preferred_batch_size: [ 17 ]"))
    log = failing_start(server)
    assert "dynamic batching preferred size must be <= max batch size for target" in log
    assert "failed to load 'target'" not in log and "failed to load 'draft'" in log


def failing_start(server: TritonServer) -> str:
    """The log of a start that fails."""
    server.start()
    try:
        with pytest.raises(ServerError):
            server.wait_ready(60)
        return server.log.text()
    finally:
        server.stop()
