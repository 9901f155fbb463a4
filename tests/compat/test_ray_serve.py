"""A program for Ray Serve runs unchanged: what it prints is what it prints with Ray 2.60."""

from __future__ import annotations

import pytest

from compat.running import printed_by

pytestmark = pytest.mark.timeout(180)


def test_an_application_answers_http_and_handles() -> None:
    printed = printed_by("serve_application.py")
    assert printed["http"] == {"doubled": [2, 4, 6], "path": "/choose"}
    assert printed["chained"] == 20
    assert printed["words"] == ["word 0", "word 1", "word 2"]
    assert printed["tenants"] == "chooser/Doubler"
    assert printed["reconfigured"] == 21
    assert printed["fastapi"] == "Hello Ada"
    assert printed["models"] == ["A:x", "B:x", "A:x"]
    assert printed["busy"] == ["done", "refused"]
    assert set(printed["status"]) == {"busy", "chooser", "greeter", "models"}
    assert set(printed["status"].values()) == {"RUNNING"}
    assert printed["deployments"] == ["Chooser", "Doubler"]
    assert printed["left"] == ["chooser", "greeter", "models"]
