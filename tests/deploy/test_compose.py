"""deploy/: files that agree with one another, with the profiles and with the defaults of the spec."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.serving.shared_memory_need import LawTraffic
from pipeline.spec import ROOT, DeploymentSpec
from pipeline.tensorrt_spec import TensorRTSpec

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
IMAGE = TensorRTSpec().container
# Of NVIDIA's documentation: Triton's metrics, and those of the tensorrtllm backend.
METRICS = {
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_request_duration_us",
    "nv_gpu_utilization",
    "nv_gpu_memory_used_bytes",
    "nv_gpu_memory_total_bytes",
    "nv_trt_llm_kv_cache_block_metrics",
    "nv_trt_llm_request_metrics",
}


def test_one_image_everywhere() -> None:
    """The spec's default, the Dockerfile, the compose file and the example with its digest name the same tag."""
    triton = COMPOSE["services"]["triton"]
    assert triton["build"]["args"]["BASE"] == f"${{TRITON_IMAGE:-{IMAGE}}}"
    assert f"ARG BASE={IMAGE}\n" in (DEPLOY / "Dockerfile").read_text()
    assert f"TRITON_IMAGE={IMAGE}@sha256:<digest>\n" in (DEPLOY / "env.example").read_text()
    assert re.search(r":26\.0[4-7]-trtllm-python-py3$", IMAGE), "the images that carry TensorRT-LLM 1.2.1"
    for name in ("prometheus", "grafana"):
        assert re.search(r":v?\d+\.\d+\.\d+$", COMPOSE["services"][name]["image"])


def test_the_files_it_names_exist() -> None:
    triton = COMPOSE["services"]["triton"]
    assert (DEPLOY / triton["build"]["context"] / triton["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    for service in ("prometheus", "grafana"):
        for volume in COMPOSE["services"][service]["volumes"]:
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), source


def test_prometheus_finds_its_rules() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    mounted = [volume.split(":")[1] for volume in COMPOSE["services"]["prometheus"]["volumes"]]
    assert config["rule_files"] and set(config["rule_files"]) <= set(mounted)


def test_ports_are_those_of_the_profile() -> None:
    """The profile that is served by default, the scrape target, the health check and the data source."""
    command = COMPOSE["services"]["triton"]["command"]
    profile = re.search(r"SPEC:-([^}]+)", command[-1])
    assert command[:2] == ["make", "serve"] and profile is not None
    spec = DeploymentSpec.load(ROOT / profile[1])
    prometheus = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert prometheus["scrape_configs"][0]["static_configs"][0]["targets"] == [f"127.0.0.1:{spec.ports.metrics}"]
    assert f"127.0.0.1:{spec.ports.http}/" in COMPOSE["services"]["triton"]["healthcheck"]["test"][-1]
    sources = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    listen = sources["datasources"][0]["url"].removeprefix("http://")
    assert f"--web.listen-address={listen}" in COMPOSE["services"]["prometheus"]["command"]


def test_shared_memory_holds_the_logits() -> None:
    """Every request of the largest profile with K laws of its vocabulary, on their way in and out."""
    gigabytes = int(COMPOSE["services"]["triton"]["shm_size"].removesuffix("gb"))
    for path in (ROOT / "build" / "profiles").glob("*.yaml"):
        assert LawTraffic.of(DeploymentSpec.load(path), 152_064).size < gigabytes << 30, path.name


@pytest.mark.parametrize("path", sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")), ids=lambda path: path.stem)
def test_dashboards_ask_for_metrics_that_exist(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    used = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"nv_[a-z_]+", target["expr"])
    }
    assert used == METRICS
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_image_keeps_its_own_packages() -> None:
    """torch and numpy of the image are what its TensorRT-LLM was built with."""
    text = (DEPLOY / "Dockerfile").read_text()
    assert "--constraint /tmp/image.txt" in text and "--no-deps --editable" in text
    assert not re.search(r"pip install[^\n]*\b(torch|numpy|transformers)\b", text)


SERVER = f"""#!{sys.executable}
import signal, sys
if sys.argv[1] == "serve":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("stopped", flush=True)))
    print("serving", flush=True)
    signal.pause()
"""


def test_the_stop_signal_reaches_the_server(tmp_path: Path) -> None:
    """Docker signals the first process of the container, make, and nobody else."""
    name = re.search(r"^STOPSIGNAL (\w+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert name is not None and "stop_signal" not in COMPOSE["services"]["triton"]
    (tmp_path / "specdec").write_text(SERVER)
    (tmp_path / "specdec").chmod(0o755)
    command = ["make", "--no-print-directory", "serve", f"SPECDEC_BIN={tmp_path}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as make:
        try:
            assert make.stdout is not None and make.stdout.readline() == "serving\n"
            make.send_signal(signal.Signals[name[1]])
            make.wait(10)
        finally:
            if make.poll() is None:
                os.killpg(make.pid, signal.SIGKILL)
        assert make.stdout.read() == "stopped\n"
