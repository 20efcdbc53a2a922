"""A real browser, driven through its debugging pipe. It needs no package."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
]  # fmt: skip


class Page:
    """One page of a browser."""

    def __init__(self, commands: int, answers: int) -> None:
        self.commands, self.answers, self.rest, self.number, self.session = commands, answers, b"", 0, ""
        self.problems: list[str] = []  # what the console complains about
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                got = os.read(self.answers, 1 << 20)
                assert got, "the browser ended"
                self.rest += got
            found, _, self.rest = self.rest.partition(b"\0")
            answer = json.loads(found)
            if answer.get("method") == "Log.entryAdded":
                self.problems.append(answer["params"]["entry"]["text"])
            if answer.get("method") == "Runtime.exceptionThrown":
                self.problems.append(str(answer["params"]["exceptionDetails"]))
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def run(self, code: str) -> Any:
        """Return the value of an expression."""
        result = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, code: str, seconds: float = 120) -> Any:
        """Look until an expression is true, and return its value."""
        end = time.monotonic() + seconds
        while not (value := self.run(code)):
            assert time.monotonic() < end, (code, self.run("document.body.innerText"), self.problems)
            time.sleep(0.02)
        return value

    def choose(self, selector: str, *files: Path) -> None:
        """Choose files in an ``<input type="file">``, as a person does."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def drop(self, selector: str, file: Path) -> None:
        """Drag a file over an element and drop it there."""
        box = self.run(f"JSON.stringify(document.querySelector({selector!r}).getBoundingClientRect())")
        place = json.loads(box)
        at = {"x": place["x"] + place["width"] / 2, "y": place["y"] + place["height"] / 2}
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, data=data, **at)

    def look(self, width: int, scheme: str, height: int = 800) -> bytes:
        """Return a PNG of the page in a window of this width, in light or dark colors."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Start a browser with a new profile in a folder, and end it with all of its processes."""
    assert CHROMIUM is not None
    read_commands, commands = os.pipe()
    answers, write_answers = os.pipe()
    script = f'exec "$@" 3<&{read_commands} 4>&{write_answers}'
    words = ["bash", "-c", script, "bash", CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}"]
    inherited = (read_commands, write_answers)
    process = subprocess.Popen(words, pass_fds=inherited, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for end in inherited:
        os.close(end)
    try:
        page = Page(commands, answers)
        yield page
        page.session = ""
        page.call("Browser.close")
        process.wait(30)
    finally:
        process.kill()
        process.wait()
        for end in (commands, answers):
            os.close(end)
