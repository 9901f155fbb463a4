"""What tasks print appears at the driver, with a prefix that says who; however much, and however it was written.

Each driver is a program of its own, whose output is what a user would see.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from programs import run_program

PROLOGUE = """
import logging, os, subprocess, sys, time
import skate
"""

PREFIX = r"\([^()]*pid=\d+\) "


def run(program: str) -> tuple[list[str], list[str]]:
    """Run a driver; the lines of its stdout and stderr."""
    output, errors = run_program(PROLOGUE + program)
    return output.splitlines(), errors.splitlines()


def run_task(body: str, *, init: str = "num_cpus=1", after: str = "") -> tuple[list[str], list[str]]:
    """Run a driver with one task of this body."""
    indented = "\n".join("    " + line for line in body.strip().splitlines())
    return run(f"skate.init({init})\n@skate.remote\ndef speak():\n{indented}\nskate.get(speak.remote())\n{after}\n")


def texts(lines: list[str]) -> list[str]:
    """The lines without their prefixes, which each must have."""
    for line in lines:
        assert re.match(PREFIX, line), f"no prefix: {line!r}"
    return [re.sub("^" + PREFIX, "", line) for line in lines]


def test_a_line_has_a_prefix_that_says_which_task_and_process() -> None:
    output, errors = run_task("print('hello from', os.getpid())")
    (line,) = output
    found = re.fullmatch(r"\(speak pid=(\d+)\) hello from (\d+)", line)
    assert found, line
    assert found[1] == found[2]
    assert errors == []


def test_stderr_goes_to_stderr() -> None:
    output, errors = run_task("print('out')\nprint('err', file=sys.stderr)")
    assert texts(output) == ["out"]
    assert texts(errors) == ["err"]


def test_logging_appears() -> None:
    output, errors = run_task("logging.getLogger('mine').warning('a warning')")
    assert output == []
    assert texts(errors) == ["a warning"]


def test_what_the_last_task_printed_is_shown_before_the_driver_ends() -> None:
    output, _ = run_task("for n in range(500):\n    print('line', n)")
    assert texts(output) == [f"line {number}" for number in range(500)]


def test_what_was_printed_is_shown_when_get_returns_or_soon_after() -> None:
    """Without the driver's end: it polls until the line is there."""
    run(
        """
import io
sys.stdout = io.StringIO()
skate.init(num_cpus=1)
@skate.remote
def speak():
    print("now")
skate.get(speak.remote())
deadline = time.monotonic() + 20
while "now" not in sys.stdout.getvalue():
    assert time.monotonic() < deadline
    time.sleep(0.005)
"""
    )


def test_every_task_has_its_own_name_in_the_prefix() -> None:
    output, _ = run(
        """
skate.init(num_cpus=1)
@skate.remote
def first():
    print("from first")
@skate.remote
def second():
    print("from second")
skate.get([first.remote(), second.remote(), first.options(name="named").remote()])
"""
    )
    names = [re.match(r"\((\S+) pid", line)[1] for line in output]  # type: ignore[index]
    assert names[:2] == ["first", "second"]
    # The third prints what was printed before, so it may be folded into a count.
    assert len(output) in (2, 3)


#: Written past Python's streams: by a system call, by a child process, and by a library in C.
NATIVE = """
import ctypes
def natively(text):
    os.write(1, f"{text} by os.write\\n".encode())
    subprocess.run(["echo", f"{text} by a child"], check=True)
    libc = ctypes.CDLL(None)
    libc.puts(f"{text} by libc".encode())
    libc.fflush(None)
HOW = ("os.write", "a child", "libc")
"""


@pytest.mark.parametrize("kind", ["plain", "async", "threaded"])
def test_what_an_init_and_native_code_of_an_actor_print_carries_the_name_of_its_class(kind: str) -> None:
    options = "max_concurrency=4" if kind == "threaded" else ""
    output, errors = run(
        f"""{NATIVE}
skate.init(num_cpus=1)
class Counter:
    def __init__(self):
        print("init by print")
        natively("init")
        print("init by print to stderr", file=sys.stderr)
        os.write(2, b"init by os.write to stderr\\n")
    {"async " if kind == "async" else ""}def count(self):
        natively("count")
        print("count by print")
counter = skate.remote(Counter).options({options}).remote()
skate.get(counter.count.remote())
"""
    )
    found = [re.fullmatch(r"\((\S+) pid=\d+\) (.*)", line) for line in output + errors]
    names = {match[2]: match[1] for match in found if match}
    assert names.pop("count by print") == "Counter.count"
    assert len(names) == 9
    assert set(names.values()) == {"Counter"}, names


def test_what_an_init_prints_that_fails_carries_the_name_of_its_class() -> None:
    _, errors = run(
        """
skate.init(num_cpus=1)
@skate.remote
class Broken:
    def __init__(self):
        os.write(2, b"about to fail\\n")
        raise ValueError
try:
    skate.get(Broken.remote().__ray_ready__.remote())
except skate.exceptions.ActorDiedError:
    pass
"""
    )
    assert [re.sub(r"pid=\d+", "pid=…", line) for line in errors] == ["(Broken pid=…) about to fail"]


def test_what_native_code_prints_carries_the_name_of_the_task_that_runs() -> None:
    """Of many short ones in a row, some of which print by Python, too; each in another process than the daemon."""
    output, _ = run(
        f"""{NATIVE}
os.environ["SKATE_DEDUP_LOGS"] = "0"
skate.init(num_cpus=1)
@skate.remote
def first(number):
    os.write(1, b"first %d\\n" % number)
@skate.remote
def second(number):
    natively(f"second {{number}}")
@skate.remote
def third(number):
    print("third", number)
refs = []
for number in range(20):
    refs += [first.remote(number), third.remote(number), first.options(name="named").remote(number)]
    refs += [first.remote(number), second.remote(number), second.remote(number), third.remote(number)]
skate.get(refs)
"""
    )
    assert len(output) == 20 * (3 + 2 + 2 * 3)
    for line in output:
        name, task = re.fullmatch(r"\((\S+) pid=\d+\) (\S+).*", line).groups()  # type: ignore[union-attr]
        assert name == task or (name, task) == ("named", "first"), line
    assert sum(line.startswith("(named") for line in output) == 20


def test_partial_lines_are_shown_whole() -> None:
    output, _ = run_task(
        "sys.stdout.write('one ')\nsys.stdout.flush()\nsys.stdout.write('line\\n')\nsys.stdout.write('no end')"
    )
    assert " ".join(texts(output)).split() == ["one", "line", "no", "end"]


def test_an_unfinished_line_and_bytes_belong_to_the_task_that_wrote_them() -> None:
    output, _ = run(
        """
skate.init(num_cpus=1)
@skate.remote
def first():
    sys.stdout.write("partial")
@skate.remote
def second():
    print("a")
@skate.remote
def third():
    sys.stdout.buffer.write(b"bytes\\n")
@skate.remote
def fourth():
    print("b")
skate.get(first.remote())
skate.get([second.remote(), third.remote()])
skate.get(fourth.remote())
"""
    )
    shown = [re.sub(r" pid=\d+", "", line) for line in output]
    assert shown == ["(first) partial", "(second) a", "(third) bytes", "(fourth) b"]


def test_text_without_a_newline_is_shown_while_the_task_runs() -> None:
    """A prompt or a progress bar; the task runs on until the driver has seen it."""
    run(
        """
import io, tempfile
sys.stdout = io.StringIO()
skate.init(num_cpus=1)
folder = tempfile.mkdtemp(prefix="logs")
go = os.path.join(folder, "go")
@skate.remote
def speak():
    sys.stdout.write("half a line")
    sys.stdout.flush()
    while not os.path.exists(go):
        time.sleep(0.005)
ref = speak.remote()
deadline = time.monotonic() + 20
while "half a line" not in sys.stdout.getvalue():
    assert time.monotonic() < deadline
    time.sleep(0.005)
open(go, "w").close()
skate.get(ref)
os.remove(go)
os.rmdir(folder)
"""
    )


def test_a_task_that_does_not_flush_is_seen_all_the_same() -> None:
    """Its output is a pipe; a user who prints wants to see it now, and not when a buffer is full."""
    run(
        """
import io, tempfile
sys.stdout = io.StringIO()
skate.init(num_cpus=1)
folder = tempfile.mkdtemp(prefix="logs")
go = os.path.join(folder, "go")
@skate.remote
def speak():
    print("seen at once")
    while not os.path.exists(go):
        time.sleep(0.005)
ref = speak.remote()
deadline = time.monotonic() + 20
while "seen at once" not in sys.stdout.getvalue():
    assert time.monotonic() < deadline
    time.sleep(0.005)
open(go, "w").close()
skate.get(ref)
os.remove(go)
os.rmdir(folder)
"""
    )


def test_a_very_long_line_is_cut_and_says_so_or_is_whole() -> None:
    output, _ = run_task("print('x' * 5_000_000)\nprint('after')")
    assert output[-1].endswith("after")
    long = texts(output[:-1])
    assert all(line.startswith("x" * 1000) for line in long[:1])
    assert sum(line.count("x") for line in long) == 5_000_000 or re.search(r"cut|truncated|longer|skipped", long[-1])


def test_huge_amounts_do_not_stop_the_task_and_what_is_dropped_is_said() -> None:
    output, errors = run(
        """
skate.init(num_cpus=2)
@skate.remote
def speak(seed):
    for n in range(100_000):
        print(f"line {seed} {n} of very many lines that are printed by a task")
    return seed
assert skate.get([speak.remote(n) for n in range(2)]) == [0, 1]
print("end", flush=True)
"""
    )
    # Beside what the program itself prints meanwhile, each line is whole.
    shown = sum(bool(re.search(PREFIX + r"line \d+ \d+ of very many lines", line)) for line in output)
    # Where the lines went that the driver was too slow for.
    notices = [re.fullmatch(r"\(skate\) \((\d+) lines were dropped here: .*\)", line) for line in errors]
    assert all(notices), errors
    assert shown + sum(int(notice[1]) for notice in notices if notice) == 200_000


def test_binary_and_broken_text_does_no_harm() -> None:
    output, _ = run_task("os.write(1, bytes(range(256)) + b'\\n')\nprint('ümlaut ☃')\nprint('\\x00zero')\nprint('end')")
    assert any("ümlaut ☃" in line for line in output)
    assert output[-1].endswith("end")


def test_c_level_writes_appear() -> None:
    output, errors = run_task("os.write(1, b'from C\\n')\nos.write(2, b'C error\\n')")
    assert texts(output) == ["from C"]
    assert texts(errors) == ["C error"]


def test_order_of_python_and_c_level_writes_is_kept() -> None:
    output, _ = run_task("print('1 python')\nos.write(1, b'2 native\\n')\nprint('3 python')")
    assert texts(output) == ["1 python", "2 native", "3 python"]


def test_output_of_programs_that_a_task_runs_appears() -> None:
    output, errors = run_task("subprocess.run('echo from echo; echo to stderr >&2', shell=True, check=True)")
    assert texts(output) == ["from echo"]
    assert texts(errors) == ["to stderr"]


def test_repeated_lines_are_folded_with_their_number() -> None:
    output, _ = run_task("for n in range(100):\n    print('the same')")
    assert len(output) < 10
    assert texts(output)[0] == "the same"
    counted = sum(int(number) for line in output[1:] for number in re.findall(r"(\d+)x", line))
    plain = sum(text == "the same" for text in texts(output))
    assert counted + plain == 100


def test_repeated_lines_of_several_workers_are_folded() -> None:
    _, errors = run(
        """
skate.init(num_cpus=2)
@skate.remote
def warn():
    print("something is deprecated", file=sys.stderr)
    time.sleep(0.001)
skate.get([warn.remote() for _ in range(50)])
"""
    )
    assert 1 <= len(errors) < 10
    assert all("something is deprecated" in line for line in errors)


def test_different_lines_are_never_folded() -> None:
    output, _ = run_task("for n in range(2000):\n    print(n)")
    assert texts(output) == [str(number) for number in range(2000)]


def test_empty_lines_are_kept() -> None:
    output, _ = run_task("print('a')\nprint()\nprint()\nprint('b')")
    assert [line.strip() for line in texts(output)] == ["a", "", "", "b"]


def test_log_to_driver_false_shows_nothing() -> None:
    output, errors = run_task(
        "print('out')\nprint('err', file=sys.stderr)\nos.write(1, b'native\\n')\n"
        "for n in range(50_000): print('much', n)",
        init="num_cpus=1, log_to_driver=False",
    )
    assert (output, errors) == ([], [])


def test_output_of_nested_tasks_appears() -> None:
    output, _ = run(
        """
skate.init(num_cpus=2)
@skate.remote
def child():
    print("from the child")
@skate.remote
def parent():
    print("before")
    skate.get(child.remote())
    print("after")
skate.get(parent.remote())
"""
    )
    assert sorted(texts(output)) == ["after", "before", "from the child"]
    parents = [line for line in output if "(parent pid=" in line]
    assert len(parents) == 2


def test_output_of_a_worker_that_dies_appears() -> None:
    _, errors = run(
        """
skate.init(num_cpus=1)
@skate.remote(max_retries=0)
def doomed():
    print("last words", file=sys.stderr)
    os._exit(1)
try:
    skate.get(doomed.remote())
except skate.exceptions.WorkerCrashedError:
    pass
"""
    )
    assert "last words" in texts(errors)


def test_print_in_a_thread_of_a_task_appears() -> None:
    output, _ = run_task(
        "import threading\nt = threading.Thread(target=print, args=('in a thread',))\nt.start()\nt.join()"
    )
    assert texts(output) == ["in a thread"]


@pytest.mark.parametrize("how", ["sys.stdout.close()", "sys.stdout = None", "the reader is gone"])
def test_a_driver_whose_output_is_closed_goes_on(how: str) -> None:
    program = (
        PROLOGUE
        + f"""
skate.init(num_cpus=1)
@skate.remote
def speak(n):
    print("line", n)
    return n
sys.stdin.readline()
{how if "reader" not in how else ""}
assert skate.get([speak.remote(n) for n in range(200)]) == list(range(200))
os._exit(7)
"""
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        if "reader" in how:
            driver.stdout.close()
        driver.stdin.write(b"\n")
        driver.stdin.close()
        assert driver.wait(40) == 7


def test_reading_from_stdin_in_a_task_is_an_end_of_file_and_no_hang() -> None:
    output, _ = run_task(
        "try:\n    print(repr(input()))\nexcept (EOFError, OSError, RuntimeError):\n    print('no input')"
    )
    assert texts(output) == ["no input"]
