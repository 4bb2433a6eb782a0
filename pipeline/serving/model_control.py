"""What changes a running Triton: loading and unloading models and the like, for the holder of its key alone."""

from __future__ import annotations

import http.client
import secrets
import urllib.error
import urllib.request

from pipeline.errors import ServerError
from pipeline.serving.local_http import open_local

_HEADER = "specdec-control-key"
# Whoever may register shared memory reads other processes' tensors, and whoever sets traces or logs writes files.
_RESTRICTED = "model-repository,shared-memory,trace,logging"
_UNLOAD_S = 10.0


class ModelControl:
    """Control of a server that is closed to its clients, who need inference, metadata, configuration and statistics.

    Triton's explicit model control, shared memory, trace and log settings are open to whoever reaches its port;
    restricted, they take a key in a header (Triton user guide, "Limit Endpoint Access"). Every server gets a fresh one.
    """

    def __init__(self) -> None:
        self._key = secrets.token_hex(16)

    @property
    def flags(self) -> tuple[str, ...]:
        """Of tritonserver."""
        rule = f"{_RESTRICTED}:{_HEADER}={self._key}"
        return (f"--http-restricted-api={rule}", f"--grpc-restricted-protocol={rule}")

    def reload(self, address: str, model: str, timeout_s: float) -> None:
        """Unload a model, whose process may be dead, and load it again.

        Args:
            address: host:port of Triton's HTTP.
            timeout_s: for the load.

        Raises:
            ServerError: Triton refused, or did not answer in time.
        """
        self._post(address, model, "unload", _UNLOAD_S)
        self._post(address, model, "load", timeout_s)

    def _post(self, address: str, model: str, action: str, timeout_s: float) -> None:
        url = f"http://{address}/v2/repository/models/{model}/{action}"
        request = urllib.request.Request(url, b"{}", {_HEADER: self._key})
        try:
            with open_local(request, timeout_s):
                pass
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")[:300]
            raise ServerError(f"{action} of model {model} was refused: {text}") from error
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{action} of model {model} got no answer in {timeout_s:g} s: {error}") from error
