"""All checks, in the order in which a deployment meets what they look at."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.doctor.check import Check
from pipeline.doctor.checks.drafting import DraftSize, DraftUse
from pipeline.doctor.checks.engines import Engines
from pipeline.doctor.checks.folders import Architectures, ModelFolders
from pipeline.doctor.checks.gpus import Calibration, Container, GpusPresent
from pipeline.doctor.checks.lengths import ContextLengths, SlidingWindow
from pipeline.doctor.checks.memory import Memory
from pipeline.doctor.checks.ports import Ports
from pipeline.doctor.checks.shared_memory import SharedMemory
from pipeline.doctor.checks.split import Split
from pipeline.doctor.checks.tokens import ChatTemplates, EndTokens, Tokenizers, VocabularyWidth
from pipeline.doctor.deployment import Deployment
from pipeline.doctor.finding import SEVERITIES, Finding, Severity

CHECKS: tuple[Check, ...] = (
    ModelFolders(),
    Architectures(),
    Tokenizers(),
    VocabularyWidth(),
    EndTokens(),
    ChatTemplates(),
    ContextLengths(),
    SlidingWindow(),
    DraftUse(),
    DraftSize(),
    Split(),
    GpusPresent(),
    Calibration(),
    Container(),
    Memory(),
    SharedMemory(),
    Ports(),
    Engines(),
)


def examine(deployment: Deployment, checks: Sequence[Check] = CHECKS) -> tuple[Finding, ...]:
    """Run every check."""
    return tuple(finding for check in checks for finding in check.findings(deployment))


def counts(findings: Sequence[Finding]) -> dict[Severity, int]:
    """How many findings of each severity, worst first."""
    return {severity: sum(finding.severity == severity for finding in findings) for severity in SEVERITIES}
