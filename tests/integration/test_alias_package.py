"""`skate alias install`: a package `ray` in an environment, made for each test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
WITHIN_S = 50
PROGRAM = """
import importlib.metadata
import importlib.util
import sys

import ray
from ray.util import ActorPool
import ray.util.queue
import skate

assert ray.get is skate.get
assert ray.util.queue is skate.util.queue
assert "_skate_alias" in vars(ray)
assert importlib.util.find_spec("ray").origin == ray.__file__


@ray.remote
def versions():
    import ray.util.multiprocessing

    return ray.__version__, importlib.metadata.version("ray"), ray.util is sys.modules["skate"].util


@ray.remote
class Actor:
    def get(self):
        return ray.get(versions.remote())


if __name__ == "__main__":
    print(ray.__version__, ray.get(versions.remote()), ray.get(Actor.remote().get.remote()))
"""


class Environment:
    """A virtual environment that has Skate, what it needs, and pip."""

    def __init__(self, home: Path) -> None:
        venv.create(home / "env", symlinks=True)
        self.home = home
        self.python = home / "env" / "bin" / "python"
        self.packages = Path(self.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        (self.packages / "skate.pth").write_text(f"{SOURCE}\n{sysconfig.get_path('purelib')}\n")

    def run(self, *words: str, code: int = 0, says: str = "", **variables: str) -> str:
        """What it wrote to stdout; with `says`, what it must have written to stderr."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SKATE_RAY_VERSION")}
        done = subprocess.run(
            [self.python, *words],
            cwd=self.home,
            env={**kept, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert done.returncode == code, done
        assert "Traceback" not in done.stderr, done
        assert says in done.stderr, done
        return done.stdout

    def skate(self, *words: str, code: int = 0, says: str = "", **variables: str) -> str:
        return self.run("-m", "skate.cli", *words, code=code, says=says, **variables)

    def files(self) -> set[str]:
        return {str(path.relative_to(self.packages)) for path in self.packages.rglob("*") if path.is_file()}


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path)


def test_the_package_works_with_any_program_and_its_workers(environment: Environment) -> None:
    before = environment.files()
    said = environment.skate("alias", "install")
    assert "Installed: `import ray` finds Skate" in said
    (environment.home / "program.py").write_text(PROGRAM)
    version = ("2.60.0", "2.60.0", True)
    assert environment.run("program.py") == f"2.60.0 {version} {version}\n"
    # Also if only the workers import it.
    late = "import skate; print(skate.get(skate.remote(lambda: __import__('ray').__version__).remote()))"
    assert environment.run("-c", late) == "2.60.0\n"
    # And beside the other ways.
    assert environment.run("-m", "skate.as_ray", "-c", "import ray; print(ray.__version__)") == "2.60.0\n"
    listed = "import pkgutil, ray; print('util' in {each.name for each in pkgutil.iter_modules(ray.__path__)})"
    assert environment.run("-c", f"import skate; skate.as_ray(); {listed}") == "True\n"
    assert environment.run("-c", listed) == "True\n"
    assert "Removed the package ray" in environment.skate("alias", "remove")
    assert environment.files() == before
    assert not (environment.packages / "ray").exists()
    environment.run("-c", "import importlib.util as u; assert u.find_spec('ray') is None")
    assert "Nothing to remove" in environment.skate("alias", "remove")


def test_the_version_is_chosen_when_it_is_installed_or_when_it_is_used(environment: Environment) -> None:
    versions = "import importlib.metadata as m; print(m.version('ray')); import ray; print(ray.__version__)"
    environment.skate("alias", "install", SKATE_RAY_VERSION="2.9.3")
    assert environment.run("-c", versions) == "2.9.3\n2.9.3\n"
    assert environment.run("-c", versions, SKATE_RAY_VERSION="1.13.0") == "2.9.3\n1.13.0\n"
    environment.skate("alias", "install")  # replaces it
    assert environment.run("-c", versions) == "2.60.0\n2.60.0\n"
    assert len(list(environment.packages.glob("ray-*"))) == 1
    environment.skate(
        "alias", "install", code=1, says="'newest', which is no version of Ray", SKATE_RAY_VERSION="newest"
    )


def test_pip_knows_it_and_can_uninstall_it(environment: Environment) -> None:
    pip = ("-m", "pip", "--disable-pip-version-check", "--no-input")
    before = environment.files()
    environment.skate("alias", "install")
    environment.run("-c", "import ray")  # leaves compiled code
    shown = environment.run(*pip, "show", "--files", "ray")
    assert "Version: 2.60.0" in shown
    assert "This is not Ray" not in shown
    assert "this is not Ray" in shown
    assert "ray/__init__.py" in shown.replace(os.sep, "/")
    # What another package asks for is there already: nothing is looked for elsewhere.
    asked = environment.run(*pip, "install", "--no-index", "--dry-run", "ray>=2.9")
    assert "already satisfied: ray>=2.9" in asked
    environment.run(*pip, "uninstall", "-y", "ray")
    assert environment.files() == before


def fake_ray(packages: Path, *, distribution: bool) -> None:
    (packages / "ray").mkdir()
    (packages / "ray" / "__init__.py").write_text("__version__ = '2.9.0'\n")
    if distribution:
        info = packages / "ray-2.9.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.9.0\n")
        (info / "INSTALLER").write_text("pip\n")
        (info / "RECORD").write_text("ray/__init__.py,,\n")


@pytest.mark.parametrize("distribution", [True, False])
def test_it_is_refused_where_ray_itself_is_and_touches_nothing_of_it(
    distribution: bool, environment: Environment
) -> None:
    fake_ray(environment.packages, distribution=distribution)
    before = environment.files()
    says = "Ray 2.9.0 is installed in" if distribution else "there is a module named ray:"
    said = environment.skate("alias", "install", code=1, says=says)
    assert said == ""
    environment.skate("alias", "install", code=1, says="next: run programs with `python -m skate.as_ray program.py`")
    assert "Nothing to remove" in environment.skate("alias", "remove")
    assert environment.files() == before
    # One program can still be run on Skate, and has its metadata, too.
    both = "import ray, importlib.metadata as m; print(ray.__version__, m.version('ray'))"
    assert environment.run("-m", "skate.as_ray", "-c", both) == "2.60.0 2.60.0\n"
    assert environment.run("-c", "import ray; print(ray.__version__)") == "2.9.0\n"
    code = (
        "import ray, skate\ntry:\n    skate.as_ray()\nexcept ImportError as e:\n    print('already imported' in str(e))"
    )
    assert environment.run("-c", code) == "True\n"


def test_a_folder_of_the_user_named_ray_is_in_nobodys_way(environment: Environment) -> None:
    (environment.home / "ray").mkdir()
    (environment.home / "ray" / "notes.txt").touch()
    environment.skate("alias", "install")
    assert environment.run("-c", "import ray; print(ray.__version__)") == "2.60.0\n"


def test_what_others_put_beside_it_stays(environment: Environment) -> None:
    environment.skate("alias", "install")
    (environment.packages / "ray" / "mine.py").touch()
    environment.skate("alias", "remove")
    assert (environment.packages / "ray" / "mine.py").exists()
    assert not (environment.packages / "ray" / "__init__.py").exists()


@pytest.mark.parametrize("gone", ["ray/__init__.py", "ray-2.60.0.dist-info/RECORD"])
def test_one_of_which_a_part_is_lost_can_be_removed_and_installed_again(gone: str, environment: Environment) -> None:
    before = environment.files()
    for again in ("install", "remove"):
        environment.skate("alias", "install")
        (environment.packages / gone).unlink()
        environment.skate("alias", again)
        assert (environment.packages / "ray" / "__init__.py").exists() == (again == "install")
    assert environment.files() == before


def test_an_environment_that_cannot_be_written_to_is_said_in_a_line(environment: Environment) -> None:
    shutil.rmtree(environment.packages)  # root may write anywhere else
    path = f"{SOURCE}:{sysconfig.get_path('purelib')}"
    says = "cannot write to the packages of this environment: No such file or directory"
    environment.skate("alias", "install", code=1, says=says, PYTHONPATH=path)


def test_without_skate_the_package_says_how_to_get_rid_of_it(environment: Environment) -> None:
    environment.skate("alias", "install")
    (environment.packages / "skate.pth").unlink()
    code = "try:\n    import ray\nexcept ImportError as error:\n    print(error, error.name)"
    said = environment.run("-c", code)
    assert "is Skate under Ray's name, and Skate cannot be imported" in said
    assert "`pip uninstall ray`" in said


def test_wrong_words(environment: Environment) -> None:
    environment.skate("alias", code=2, says="what")
    environment.skate("alias", "instal", code=2, says="invalid choice: 'instal'")
    assert "skate alias install" in environment.skate("alias", "--help")
