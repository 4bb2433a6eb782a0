"""`make engines`: from a deployment spec to engines/<name>/{target,draft}.

Usage: python build/engines.py [SPEC] [--dry-run]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
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
    started = time.perf_counter()
    with console.status("building engines") as status:

        def report(line: str) -> None:
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
            status.update(escape(line))

        def progress(line: str) -> None:
            status.update(escape(line))

        if spec.engine == "tensorrt_llm":
            import tensorrt_engines

            tensorrt_engines.build_engines(spec, fetch_demo, report, progress)
        else:
            import embedded

            target = model_folder(spec.target.model)
            draft = model_folder(spec.draft.model) if spec.draft.uses_model and spec.draft.model else None
            embedded.build_engines(spec, target, draft, report)
    console.print(f"engines of {spec.name} ready in {time.perf_counter() - started:.1f} s", highlight=False)


def dry_run(spec: DeploymentSpec) -> None:
    """Print the commands that would be run, as a shell takes them.

    Raises:
        SpecDecodeError: what can be seen to fail already.
    """
    if spec.engine != "tensorrt_llm":
        print(f"# {spec.name}: engine: {spec.engine} is built by build/embedded.py; no other program is run")
        return
    import tensorrt_engines

    tensorrt_engines.print_commands(spec, print)


def main() -> int:
    console = Console()
    arguments = argparse.ArgumentParser(description="Build the engines of a deployment spec.")
    arguments.add_argument("spec", nargs="?", default=DEFAULT_SPEC)
    arguments.add_argument("--dry-run", action="store_true", help="print the commands, run none")
    given = arguments.parse_args()
    try:
        spec = DeploymentSpec.load(given.spec)
        if given.dry_run:
            dry_run(spec)
        else:
            build(spec, console)
    except SpecDecodeError as error:
        console.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
