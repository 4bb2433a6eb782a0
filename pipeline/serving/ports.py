"""Ports on this machine alone."""

from __future__ import annotations

import socket

from pipeline.errors import ServerError
from pipeline.spec import PortsSpec

HOST = "127.0.0.1"
FREE_PORTS = PortsSpec(http=0, grpc=0, metrics=0)


def choose_ports(wanted: PortsSpec) -> PortsSpec:
    """Check that ports are free on 127.0.0.1, and pick free ones for zeros.

    Raises:
        ServerError: naming the port that is in use, or wanted twice.
    """
    chosen: dict[str, int] = {}
    held = []
    try:
        for name, port in wanted.model_dump().items():
            if port and port in chosen.values():
                raise ServerError(f"ports.{name} = {port}: another of the three ports is the same")
            listener = socket.socket()
            held.append(listener)
            # As servers do: a port whose last connections are in TIME_WAIT is free.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((HOST, port))
            except OSError as error:
                raise ServerError(
                    f"ports.{name} = {port}: {error.strerror} on {HOST}; choose another, or 0 for a free one"
                ) from error
            chosen[name] = listener.getsockname()[1]
    finally:
        for listener in held:
            listener.close()
    return PortsSpec(**chosen)
