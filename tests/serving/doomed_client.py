"""A client program that asks, and then waits to be killed.

python -m tests.serving.doomed_client ADDRESS TOKENS PROMPT...
"""

from __future__ import annotations

import sys
import threading

from tests.serving.support import GrpcStream


def main(address: str, max_tokens: str, *prompts: str) -> None:
    stream = GrpcStream(address)
    for index, prompt in enumerate(prompts):
        stream.send({"text_input": prompt, "max_tokens": int(max_tokens), "stream": True}, str(index))
    threading.Event().wait(120)


if __name__ == "__main__":
    main(*sys.argv[1:])
