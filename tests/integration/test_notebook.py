"""Skate in a notebook: cells as people write them, run by a real kernel."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

pytest.importorskip("ipykernel")
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

# The kernel is a process with a runtime of its own, and its client keeps sockets, threads and a loop until it is
# collected; what Skate leaves behind is looked at by every other test.
pytestmark = pytest.mark.filterwarnings("default")


def run_notebook(*cells: str) -> list[str]:
    """Run the cells in a fresh kernel; what each one showed, as text, widgets included."""
    every = [*cells, "import skate; skate.shutdown()"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in every])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python", "language": "python"}
    client = nbclient.NotebookClient(notebook, timeout=50, kernel_name="python3", startup_timeout=50)

    async def execute() -> None:
        async with client.async_setup_kernel():
            for index, cell in enumerate(notebook.cells):
                await client.async_execute_cell(cell, index)

    asyncio.run(execute())  # nbclient's own loop would stay open after the test
    return ["".join(text_of(output, client.widget_state) for output in cell.outputs) for cell in notebook.cells]


def text_of(output: Any, widgets: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return str(output["text"])
    data = output.get("data", {})
    widget = data.get("application/vnd.jupyter.widget-view+json")
    if widget is not None:
        return "".join(text_of(shown, widgets) for shown in widgets[widget["model_id"]]["outputs"])
    return str(data.get("text/plain", ""))


@pytest.fixture(autouse=True)
def this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel named python3 must be that of the environment under test."""
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("JUPYTER_PATH", f"{sys.prefix}/share/jupyter")
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")


@pytest.mark.timeout(120)
def test_cells_as_people_write_them() -> None:
    shown = run_notebook(
        # 0: set up
        "import skate\nskate.init(num_cpus=2)\nNone",
        # 1: a function of a cell
        "@skate.remote\ndef version():\n    return 'first'\n\nskate.get(version.remote())",
        # 2: the same name again, as when a cell is edited and run again
        "@skate.remote\ndef version():\n    return 'second'\n\nskate.get(version.remote())",
        # 3: a class and a plain helper of a cell
        "class Item:\n    def __init__(self, n):\n        self.n = n\n\n"
        "def helper(item):\n    return Item(item.n + 1)\n",
        # 4: used from a later one
        "grown = skate.get(skate.remote(lambda item: helper(item)).remote(Item(1)))\n(type(grown) is Item, grown.n)",
        # 5: the class again; instances of the new one come back as the new one
        "class Item:\n    def __init__(self, n):\n        self.n = 10 * n\n",
        # 6
        "grown = skate.get(skate.remote(lambda item: helper(item)).remote(Item(1)))\n(type(grown) is Item, grown.n)",
        # 7: await at the top level, in the loop that the kernel runs
        "await version.remote()",
        # 8
        "import asyncio\nawait asyncio.gather(*[skate.remote(abs).remote(-i) for i in range(4)])",
        # 9: a stream, awaited
        "@skate.remote\ndef count(n):\n    yield from range(n)\n\n[await ref async for ref in count.remote(3)]",
        # 10: globals of the notebook are those of the moment
        "LEVEL = 1\n\n@skate.remote\ndef level():\n    return LEVEL\n\nskate.get(level.remote())",
        # 11
        "LEVEL = 2\n\n@skate.remote\ndef level():\n    return LEVEL\n\nskate.get(level.remote())",
        # 12: an exception class of a cell
        "class Broken(Exception):\n    pass\n\ndef fail():\n    raise Broken('in a cell')\n\n"
        "try:\n    skate.get(skate.remote(fail).remote())\nexcept Broken as error:\n"
        '    caught = error\nprint(type(caught.cause) is Broken, "in fail" in str(caught))',
        # 13: recursion in a cell
        "@skate.remote\ndef fib(n):\n    return n if n < 2 else sum(skate.get([fib.remote(n - 1), fib.remote(n - 2)]))"
        "\n\nskate.get(fib.remote(6))",
        # 14: the runtime again
        "skate.shutdown()\nskate.init(num_cpus=1)\nskate.get(version.remote())",
    )
    assert shown[1] == "'first'"
    assert shown[2] == "'second'"
    assert shown[4] == "(True, 2)"
    assert shown[6] == "(True, 110)"
    assert shown[7] == "'second'"
    assert shown[8] == "[0, 1, 2, 3]"
    assert shown[9] == "[0, 1, 2]"
    assert shown[10] == "1"
    assert shown[11] == "2"
    assert shown[12] == "True True\n"
    assert shown[13] == "8"
    assert shown[14] == "'second'"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("widgets", [True, False], ids=["widgets", "no widgets"])
def test_output_and_progress_appear_in_the_notebook(widgets: bool) -> None:
    hide = "" if widgets else "import sys\nsys.modules['ipywidgets'] = None\n"
    shown = run_notebook(
        "import skate\nskate.init(num_cpus=2)\n"
        "speak = skate.remote(lambda: print('from a task')).options(name='speak')",
        # What a task printed is there with the next cell at the latest; here the cell waits for it.
        "import io, sys\nskate.get(speak.remote())\nskate.shutdown()",
        f"{hide}skate.init(num_cpus=2)\n"
        "refs = skate.progress([skate.remote(abs).remote(-i) for i in range(7)], description='numbers')\n"
        "print(sum(skate.get(refs)))",
    )
    assert "from a task" in shown[0] + shown[1]
    assert "7/7" in shown[2]
    assert "21" in shown[2]


@pytest.mark.timeout(120)
def test_a_notebook_that_says_import_ray() -> None:
    shown = run_notebook(
        "import skate\nskate.as_ray()",
        "import ray\nfrom ray.util import ActorPool\nray.init(num_cpus=2)\nNone",
        "@ray.remote\ndef look(x):\n    return ray.__version__, x\n\nray.get(look.remote(1))",
        "@ray.remote\nclass A:\n    def look(self, x):\n        return ray.get(look.remote(x))\n\n"
        "sorted(ActorPool([A.remote()]).map(lambda a, x: a.look.remote(x), [2, 3]))",
        "import skate\nskate.as_ray()",  # a cell that is run again
    )
    assert shown[2] == "('2.60.0', 1)"
    assert shown[3] == "[('2.60.0', 2), ('2.60.0', 3)]"
    assert shown[0] == shown[4] == ""


@pytest.mark.timeout(120)
def test_an_interrupted_cell_leaves_a_runtime_that_works() -> None:
    """The stop button of a notebook is an interrupt in the kernel while `get` waits."""
    shown = run_notebook(
        "import os, signal, threading\nimport skate\nskate.init(num_cpus=2)\n"
        "endless = skate.remote(lambda: threading.Event().wait()).remote()",
        "main = threading.main_thread().ident\n"
        "press = threading.Thread(target=lambda: signal.pthread_kill(main, signal.SIGINT))\n"
        "try:\n    press.start()\n    skate.get(endless)\nexcept KeyboardInterrupt:\n    print('interrupted')",
        "skate.get(skate.remote(lambda: 'still here').remote())",
    )
    assert shown[1] == "interrupted\n"
    assert shown[2] == "'still here'"
