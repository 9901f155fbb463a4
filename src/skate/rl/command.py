"""`skate rl train`, `eval`, `play` and `serve`: the library from a shell.

    skate rl train ppo CartPole-v1 --steps 1e5 --seed 1 --learning-rate 3e-4
    skate rl eval runs/ppo-CartPole-v1-1
    skate rl play runs/ppo-CartPole-v1-1 --video out.gif
    skate rl serve runs/ppo-CartPole-v1-1 --port 8000

The options of an algorithm are the fields of its dataclass. Its module is imported when it is asked for.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import importlib
import importlib.util
import inspect
import re
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from skate import rl
from skate.cli.parser import Parser, port
from skate.cli.trouble import Trouble
from skate.rl import options as option_fields

ALGORITHMS = {
    "ppo": "proximal policy optimisation: a first choice",
    "es": "evolution strategies: any number of CPUs, no gradients",
    "impala": "importance weighted actor-learner: simulation never stops",
    "dqn": "deep Q-learning with prioritised replay: discrete actions",
    "sac": "soft actor-critic: continuous actions, few steps",
}
COMMANDS = {
    "train": "train a policy; the run is a folder",
    "eval": "score the policy of a run",
    "play": "watch the policy of a run, in a window or a video",
    "serve": "answer with the policy of a run, over HTTP and websockets, with a page that shows it playing",
}
EXAMPLES = """example:
  skate rl train ppo CartPole-v1 --steps 1e5 --seed 1
  skate rl train ppo --resume runs/ppo-CartPole-v1-1 --steps 2e5
  skate rl eval runs/ppo-CartPole-v1-1 --episodes 100
  skate rl play runs/ppo-CartPole-v1-1 --video out.gif
  skate rl serve runs/ppo-CartPole-v1-1 --port 8000"""
FRAMES_PER_SECOND = 30
#: Settings and arguments in errors of the library: `PPOOptions.gamma`, `steps is 0`, `resume='runs/a'`.
ARGUMENTS = re.compile(
    r"\b[A-Z]\w*Options\.(?P<setting>\w+)"
    r"|^(?P<argument>steps|seed|path|episodes|evaluate_every|stop_at)\b(?= is )"
    r"|\b(?P<keyword>steps|path|resume)=(?:'(?P<text>[^']*)'|(?P<number>[\d,]*))"
)


def main(words: Sequence[str]) -> int:
    """Run one command of `skate rl`; its exit code."""
    words = [re.sub(r"^--\w+", lambda flag: flag[0].replace("_", "-"), word) for word in words]
    try:
        options = parse(words or ["--help"])
        code: int = options.run(options)
        return code
    except Trouble:
        raise
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in rl.EXTRA:
            raise
        raise Trouble(
            f"skate rl needs the package {error.name}, which is not installed.", "pip install 'skate[rl]'."
        ) from None
    except Exception as error:
        if not is_deliberate(error):
            raise
        what, _, then = _with_flags(error).partition("\n  next: ")
        raise Trouble(what, then) from None


def train_main(algorithm: str) -> None:
    """`python -m skate.rl.ppo CartPole-v1` is `skate rl train ppo CartPole-v1`."""
    from skate.cli import main as command_line

    sys.exit(command_line(["rl", "train", algorithm, *sys.argv[1:]]))


def is_deliberate(error: Exception) -> bool:
    """Whether this library raised the error to tell the user something. Any other is a defect, and has a traceback."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    ours = Path(last.filename).parent == Path(__file__).parent and (last.line or "").startswith("raise ")
    return ours or _is_env_error(error)


def _with_flags(error: Exception) -> str:
    """The text of an error with flags of the shell in the place of settings and arguments of Python."""

    def flag(found: re.Match[str]) -> str:
        name = found["setting"] or found["argument"] or found["keyword"]
        return f"--{name.replace('_', '-')} {found['text'] or found['number'] or ''}".rstrip()

    # An error of an environment has lines of its source: they stay as they are.
    return str(error) if _is_env_error(error) else ARGUMENTS.sub(flag, str(error))


def _is_env_error(error: Exception) -> bool:
    return type(error).__name__ == "EnvError"  # by name: its module imports gymnasium


# -- what can be said --------------------------------------------------------------------------------------------------


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command, with `run`, which does it."""
    parser = _parser(Parser, "skate rl", "simulation and learning", EXAMPLES)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser, required=True)
    train = _parser(commands.add_parser, "train", COMMANDS["train"], EXAMPLES)
    for name, run, add in (("eval", _eval, _add_eval), ("play", _play, _add_play), ("serve", _serve, _add_serve)):
        each = _parser(commands.add_parser, name, COMMANDS[name], EXAMPLES)
        each.add_argument("folder", metavar="RUN", help="the folder of the run")
        each.add_argument("--env", metavar="ID", help="another environment than that of the run")
        add(each)
        each.set_defaults(run=run)
    algorithms = train.add_subparsers(metavar="ALGO", parser_class=Parser, required=True)
    _check_word(parser, "command", words[:1], COMMANDS)
    asked = words[1:2] if words[0] == "train" else []
    _check_word(train, "algorithm", asked, ALGORITHMS)
    for name, text in ALGORITHMS.items():
        example = (
            f"example:\n  skate rl train {name} {'Pendulum' if name == 'sac' else 'CartPole'}-v1 --steps 1e5 --seed 1"
        )
        each = _parser(algorithms.add_parser, name, text, example)
        if [name] == asked:
            _add_train(each, name)
    return parser.parse_args(words)


def _parser(make: Callable[..., Any], name: str, text: str, epilog: str) -> Parser:
    layout = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=32)
    more = {} if make is Parser else {"help": text}
    made: Parser = make(
        name,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=epilog,
        formatter_class=layout,
        allow_abbrev=False,
        **more,
    )
    return made


def _check_word(parser: Parser, kind: str, words: Sequence[str], known: dict[str, str]) -> None:
    for word in words:
        if not word.startswith("-") and word not in known:
            near = difflib.get_close_matches(word, known, n=1)
            parser.error(f"there is no {kind} {word!r}{f'; did you mean {near[0]}?' if near else '.'}")


def _add_train(parser: Parser, algorithm: str) -> None:
    function = getattr(rl, algorithm).train
    kind = next(kind for kind in option_fields.alternatives(get_type_hints(function)["options"]) if kind is not None)
    steps = inspect.signature(function).parameters["steps"].default
    parser.usage = f"{parser.prog} [ENV] [--steps N] [--seed N] [--resume RUN] [settings]"
    parser.add_argument("env", metavar="ENV", nargs="?", help="an id of gymnasium, or module:id")
    for flag, hint, text in (
        ("--steps", int, f"steps of environments in all ({steps:,.0f})"),
        ("--seed", int, "what all random numbers follow from (0)"),
        ("--path", str, f"the folder of the run (runs/{algorithm}-ENV-1 and so on)"),
        ("--resume", str, "go on with the run in that folder"),
        ("--evaluate-every", int, "steps after which 20 episodes are played, again and again (0: never)"),
        ("--stop-at", float, "end when their mean return is that high"),
    ):
        _add(parser, flag, hint, text)
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    group = parser.add_argument_group(f"settings ({kind.__name__})")
    for name, hint, default, text in option_fields.fields(kind):
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default).lower()
        _add(group, "--" + name.replace("_", "-"), hint, f"{text} ({shown})")
    names = [name for name, *_ in option_fields.fields(kind)]
    parser.set_defaults(run=functools.partial(_train, function, names))


def _add(group: Any, flag: str, hint: Any, text: str) -> None:
    # A flag that is not given is left out: a run that is resumed keeps its own settings.
    words: dict[str, Any] = {"help": text.replace("%", "%%"), "default": argparse.SUPPRESS}
    if hint is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **words)
    else:
        group.add_argument(flag, metavar=option_fields.describe(hint).upper(), type=_value(flag, hint), **words)


def _value(flag: str, hint: Any) -> Callable[[str], Any]:
    def value(text: str) -> Any:
        try:
            return option_fields.parse(flag, hint, text)
        except TypeError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {option_fields.describe(hint)}.") from None

    return value


def _add_eval(parser: Parser) -> None:
    parser.add_argument("--episodes", type=_value("--episodes", int), default=100, help="how many (100)")
    parser.add_argument("--seed", type=_value("--seed", int), default=0, help="of the episodes (0)")


def _add_play(parser: Parser) -> None:
    parser.add_argument("--video", metavar="FILE", type=Path, help="out.mp4 or out.gif; by default a window")
    parser.add_argument("--episodes", type=_value("--episodes", int), default=1, help="how many (1)")
    parser.add_argument("--seed", type=_value("--seed", int), default=0, help="of the first episode (0)")


def _add_serve(parser: Parser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 lets other machines connect (127.0.0.1)")
    parser.add_argument("--port", type=port, default=8000, help="0: one that is free (8000)")
    parser.add_argument("--replicas", type=_value("--replicas", int), default=1, help="processes that answer (1)")


# -- what is done ------------------------------------------------------------------------------------------------------


def _train(function: Callable[..., Any], names: Sequence[str], options: argparse.Namespace) -> int:
    known = {*names, "steps", "seed", "path", "resume", "evaluate_every", "stop_at"}
    given = {name: value for name, value in vars(options).items() if name in known}
    env = options.env
    if env is None:
        if "resume" not in given:
            raise Trouble("which environment to train on was not said.", "name one, such as CartPole-v1.", exit_code=2)
        run = given["resume"]
        env = option_fields.stored(run)["env"]
        _check_env(env, run, f"in Python: train(make, resume={run!r}), where make makes the environment.")
    else:
        _check_env(env)
    run = function(env, progress=False if options.quiet else None, **given)
    print(run)
    print(run.path)
    return 0


def _eval(options: argparse.Namespace) -> int:
    policy, env = _found(options)
    print(rl.evaluate(policy, env, episodes=options.episodes, seed=options.seed))
    return 0


def _found(options: argparse.Namespace) -> tuple[Any, str]:
    """The policy of a run, and its environment."""
    env, run = options.env, options.folder
    if env is None:
        env = option_fields.stored(run)["env"]
        other = "--env module:id for one that the module registers"
        _check_env(env, run, f"{other}; in Python: evaluate(Policy.load({run!r}), make), where make makes it.")
    else:
        _check_env(env)
    return rl.Policy.load(run), env


def _check_env(env: str, run: str | None = None, then: str = "") -> None:
    """Raise Trouble unless there is such an environment. `run` was trained on it, perhaps through a factory."""
    from gymnasium import error

    from skate.rl.env import find_spec

    try:
        find_spec(env)
    except (error.Error, ImportError) as problem:
        known = f", on which {run} was trained" if run else ""
        then = then or "name an id that gymnasium knows, or module:id for one that the module registers."
        raise Trouble(f"there is no environment {env!r}{known}: {problem}", then) from None


def _play(options: argparse.Namespace) -> int:
    from gymnasium.error import DependencyNotInstalled, Error

    if options.episodes < 1:
        raise Trouble(f"--episodes {options.episodes}: at least 1 is needed.", exit_code=2)
    policy, env = _found(options)
    write = None if options.video is None else _writer(options.video)
    try:
        frames = _frames(policy, env, options, "human" if write is None else "rgb_array")
        if write is None:
            deque(frames, 0)
        else:
            write(frames, next(frames))
            print(options.video)
    except (Error, rl.EnvError) as error:
        # In a window an environment draws in its own reset and step, and so raises there.
        missing = error.__cause__ if isinstance(error, rl.EnvError) else error
        if isinstance(missing, DependencyNotInstalled):
            raise Trouble(f"{env} cannot be shown: {missing}.", "pip install 'skate[video]'.") from None
        if missing is not error:
            raise
        raise Trouble(f"{env} cannot be shown: {error}", "--env ID names another environment.") from None
    return 0


def _serve(options: argparse.Namespace) -> int:
    for package in ("uvicorn", "httptools", "starlette", "websockets"):
        if importlib.util.find_spec(package) is None:
            what = f"skate rl serve needs the package {package}, which is not installed."
            raise Trouble(what, "pip install 'skate[serve]'.")
    from skate import serve
    from skate.rl.serving import application
    from skate.serve.reload import trouble_of
    from skate.serve.status_text import urls

    if options.replicas < 1:
        raise Trouble(f"--replicas {options.replicas}: at least 1 is needed.", exit_code=2)
    policy, env = _found(options)
    _check_plays(policy, env)
    made = application(options.folder, env, replicas=options.replicas)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` ends it as Ctrl-C does
    try:
        serve.run(made, name="policy", host=options.host, port=options.port)
        print(f"{env} plays {urls(serve.status(), '/')}  (Ctrl-C ends it)", flush=True)
        threading.Event().wait()
    except serve.ServeError as error:
        raise trouble_of(error) from None
    except KeyboardInterrupt:
        pass
    finally:
        serve.shutdown()
    return 0


def _check_plays(policy: Any, env: str) -> None:
    """Raise ValueError if a policy is for other environments: the page would show none."""
    import gymnasium

    from skate.rl.env import find_spec

    made = gymnasium.make(find_spec(env))
    try:
        policy.network.check_env(made.observation_space, made.action_space, env)
    finally:
        made.close()


def _writer(file: Path) -> Callable[[Iterator[Any], int], None]:
    """What writes frames to a file of that kind; found before anything is simulated."""
    if not file.parent.is_dir():
        raise Trouble(f"{file} cannot be written: there is no folder {file.parent}.", "make it, or name another.")
    if file.suffix.lower() == ".gif":
        return functools.partial(_write_gif, file)
    if file.suffix.lower() not in (".mp4", ".mkv", ".mov"):
        raise Trouble(f"{file} is no video that can be written.", "name a .mp4 or a .gif.", exit_code=2)
    try:
        imageio = importlib.import_module("imageio.v2")
        importlib.import_module("imageio_ffmpeg")
    except ImportError as error:
        raise Trouble(f"{file} cannot be written: {error}.", "pip install 'skate[video]', or name a .gif.") from None

    def write(frames: Iterator[Any], fps: int) -> None:
        with imageio.get_writer(file, fps=fps, macro_block_size=2) as video:
            for frame in frames:
                video.append_data(frame)

    return write


def _write_gif(file: Path, frames: Iterator[Any], fps: int) -> None:
    from PIL import Image

    images = (Image.fromarray(frame).quantize(64) for frame in frames)
    next(images).save(file, save_all=True, append_images=images, duration=round(1000 / fps), loop=0)


def _frames(policy: Any, env: str, options: argparse.Namespace, mode: str) -> Iterator[Any]:
    """Frames a second, and then every frame."""
    import gymnasium

    from skate.rl.env import blamed, find_spec

    made = gymnasium.make(find_spec(env), render_mode=mode)
    try:
        policy.network.check_env(made.observation_space, made.action_space, env)
        yield int(made.metadata.get("render_fps") or FRAMES_PER_SECOND)
        for episode in range(options.episodes):
            with blamed(env):
                observation, _ = made.reset(seed=options.seed + episode)
            total, steps, over = 0.0, 0, False
            while not over:
                yield made.render() if mode == "rgb_array" else None  # a window is drawn by each step
                with blamed(env):
                    observation, reward, terminated, truncated, _ = made.step(policy.act(observation))
                total, steps, over = total + float(reward), steps + 1, terminated or truncated
            print(f"episode {episode + 1}: return {total:.4g} in {steps:,} steps")
    finally:
        made.close()
