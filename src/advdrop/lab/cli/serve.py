"""``advdrop serve``."""

from __future__ import annotations

import socket
from contextlib import suppress
from errno import EADDRINUSE
from importlib.util import find_spec

from advdrop.lab.cli.options import Serve
from advdrop.lab.cli.predict import image_model
from advdrop.lab.report.text_table import line

PACKAGES = {"fastapi": "fastapi", "uvicorn": "uvicorn", "python_multipart": "python-multipart"}


def run_serve(options: Serve) -> int:
    """Serve the model of a run until Ctrl-C."""
    for module, package in PACKAGES.items():
        if find_spec(module) is None:
            raise ValueError(f"advdrop serve needs {package}, which is not installed; pip install 'advdrop[serve]'")
    import uvicorn

    from advdrop.lab.deploy.server import Limits, app_of

    model = image_model(options.run)
    name = line(options.run.absolute().name)
    app = app_of(model, name, options.host, Limits(megabytes=options.max_mb))
    with bound(options.host, options.port) as listening:
        port = listening.getsockname()[1]
        shown = f"[{options.host}]" if ":" in options.host else options.host
        print(f"{name} is served at http://{shown}:{port}/ (Ctrl-C stops it)")
        settings = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="off",
            limit_concurrency=100,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=5,
        )
        with suppress(KeyboardInterrupt):
            uvicorn.Server(settings).run(sockets=[listening])
    print("stopped")
    return 0


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens there, or say why there is none."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=kind)
    except OSError as error:
        reason = "the port is taken" if error.errno == EADDRINUSE else error.strerror or error
        raise ValueError(f"cannot listen on {host}:{port} ({reason}); choose another --port or --host") from None
