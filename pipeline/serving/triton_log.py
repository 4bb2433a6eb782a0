"""Finds the line that matters in Triton's log."""

from __future__ import annotations

import re
from pathlib import Path

# A line is: severity, date, time, process, file:line] "message"; line ends inside the message are escaped.
_LINE = re.compile(r'^([EWIF])\d{4} [\d:.]+ \d+ [\w.]+:\d+\] "?(.*?)"?$')
_LOADED = re.compile(r"successfully loaded '([^']+)'")
_FAILED = re.compile(r"failed to load '([^']+)' version \d+: (.*)", re.DOTALL)
_STATUS = re.compile(r"^(Failed to initialize Python stub|Internal|Invalid argument|Unavailable|Not found): ")
# Present in every healthy start on a machine without a GPU (release 24.10).
_HARMLESS = ("CudaDriverHelper has not been initialized", "unable to create stream", "pinned system memory")
# After the first, Triton 24.10 hangs for ever; after the second it ends, but only when every model has loaded.
_FATAL = ("error while loading shared libraries", "failed to load '")
_ASKED = re.compile(r"Signal \((2|15)\) received")  # a crash writes the same with its own number
_MAX_CHARS = 1500


class TritonLog:
    """A server's log file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def text(self) -> str:
        try:
            return self.path.read_text(errors="replace")
        except OSError:
            return ""

    def loaded(self) -> tuple[str, ...]:
        """Models that are ready, in the order in which they became so."""
        return tuple(dict.fromkeys(_LOADED.findall(self.text())))

    def fatal(self) -> str | None:
        """A message after which this server never becomes ready, though it may not end."""
        for _, message in self._entries():
            if any(text in message for text in _FATAL):
                return _reason(message)
        return None

    def asked_to_stop(self) -> bool:
        """Whether SIGINT or SIGTERM ended the server: its exit status is an error where requests were running."""
        return any(_ASKED.match(message) for _, message in self._entries())

    def failure(self) -> str:
        """Why models failed to load, one line each; else the errors; else the end of the log."""
        entries = self._entries()
        failed: dict[str, str] = {}
        for _, message in entries:
            if match := _FAILED.search(message):
                failed[match[1]] = _reason(match[2])
        if failed:
            text = "; ".join(f"model {name}: {reason}" for name, reason in failed.items())
        elif fatal := self.fatal():
            text = fatal
        else:
            errors = [_reason(message) for severity, message in entries if severity in "EF"]
            text = "; ".join(dict.fromkeys(errors)) or " | ".join(self.text().splitlines()[-5:]) or "the log is empty"
        return text[:_MAX_CHARS]

    def _entries(self) -> list[tuple[str, str]]:
        """(severity, message); severity O is what a process wrote besides the log. Harmless ones are left out."""
        entries: list[tuple[str, str]] = []
        for line in self.text().splitlines():
            if match := _LINE.match(line):
                entries.append((match[1], match[2].replace("\\n", "\n").replace('\\"', '"')))
            elif line and not line.startswith(("+", "|")):  # tables repeat what the lines say
                entries.append(("O", line))
        return [entry for entry in entries if not any(text in entry[1] for text in _HARMLESS)]


def _reason(text: str) -> str:
    """The message of a Python exception without its "At:" trace and Triton's status name."""
    return " ".join(_STATUS.sub("", text.split("\nAt:\n", 1)[0].strip()).split())
