"""`make engines`: from a deployment spec to engines/<name>/{target,draft}.

Usage: python build/engines.py [SPEC]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.errors import EngineError, SpecDecodeError
from pipeline.spec import DEFAULT_SPEC, ROOT, DeploymentSpec

DEMO_PREFIX = "demo:"


def model_folder(name: str) -> Path:
    """Find a spec's model: a folder (relative ones count from the repository), or a demo model that is fetched."""
    if name.startswith(DEMO_PREFIX):
        return fetch_demo(name.removeprefix(DEMO_PREFIX))
    folder = Path(name).expanduser()
    if not folder.is_absolute():
        folder = ROOT / folder
    if not folder.is_dir():
        raise EngineError(f"model folder {folder} does not exist")
    return folder


def fetch_demo(name: str) -> Path:
    """Bring a demo model, with a progress bar."""
    import demo_model

    if name != demo_model.NAME:
        raise EngineError(f"demo:{name} is not known; known: demo:{demo_model.NAME}")
    folder = demo_model.demo_model_folder()
    if not demo_model.is_complete(folder):
        with Progress() as progress:
            demo_model.fetch(folder, progress)
    return folder


def build(spec: DeploymentSpec, console: Console) -> None:
    """Build what the spec names, showing progress.

    Raises:
        SpecDecodeError: what is wrong, in one line.
    """
    spec.require_embedded()
    import embedded

    started = time.perf_counter()
    target = model_folder(spec.target.model)
    draft = model_folder(spec.draft.model) if spec.draft.uses_model and spec.draft.model else None
    with console.status("building engines") as status:

        def report(line: str) -> None:
            console.print(f"  {line}", highlight=False, soft_wrap=True)
            status.update(line)

        embedded.build_engines(spec, target, draft, report)
    console.print(f"engines of {spec.name} ready in {time.perf_counter() - started:.1f} s")


def main() -> int:
    console = Console()
    try:
        build(DeploymentSpec.load(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_SPEC), console)
    except SpecDecodeError as error:
        console.print(f"error: {error}", style="red", highlight=False, soft_wrap=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
