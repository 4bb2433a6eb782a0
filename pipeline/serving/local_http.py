"""Requests to our own server on this machine: never through a proxy, whatever the environment says."""

from __future__ import annotations

import urllib.request
from http.client import HTTPResponse
from typing import cast

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def open_local(request: urllib.request.Request | str, timeout_s: float) -> HTTPResponse:
    """As `urllib.request.urlopen`, whose errors it raises. A proxy would be given the key of the server's control."""
    return cast(HTTPResponse, _DIRECT.open(request, timeout=timeout_s))
