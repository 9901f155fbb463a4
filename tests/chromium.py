"""A real browser for tests: Chromium without a window, spoken to over its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from waiting import wait_for

NAMES = ("chromium", "chromium-browser", "google-chrome")
COMMAND = next((found for name in NAMES if (found := shutil.which(name))), "")
#: Continuous integration installs it.
needs_chromium = pytest.mark.skipif(not COMMAND, reason="Chromium is not installed: apt-get install chromium")


class Page:
    """One page of the browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer: dict[str, Any] = json.loads(self._socket.recv(timeout=20))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, address: str) -> None:
        """Go to an address."""
        self._ask("Page.navigate", url=address)

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is."""
        found = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def save_picture(self, file: Path) -> None:
        """Write a PNG of what the page shows."""
        file.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def page(width: int = 800, height: int = 900) -> Iterator[Page]:
    """An empty page of a new browser, which ends with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [
            COMMAND, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            f"--user-data-dir={folder}", f"--window-size={width},{height}", "--remote-debugging-port=0", "about:blank",
        ]  # fmt: skip
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            note = Path(folder, "DevToolsActivePort")
            lines = wait_for(lambda: note.exists() and note.read_text().split(), 30, "the port of the browser")
            with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json") as answer:
                found = next(each for each in json.load(answer) if each["type"] == "page")
            with connect(found["webSocketDebuggerUrl"], max_size=None) as socket:
                yield Page(socket)
        finally:
            browser.terminate()
            browser.wait(20)
