"""A worker that has become an actor: the instance, and how calls of its methods are run.

    callers ──Tasks──▶ run queue ──▶ main thread, one by one                       a plain actor
                    └▶ places     ──▶ event loop or threads, several at a time      async, max_concurrency, groups

A plain actor uses the executor as it is: its methods are functions with a name instead of an id.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import inspect
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skate._core.task import Death
from skate._object_ref import collecting_refs
from skate._serialize.failures import failure_of
from skate._wire import messages as m
from skate._worker.context import ManyCalls
from skate._worker.loading import load_arguments
from skate._worker.output import end_as_a_program, show_name
from skate.exceptions import AsyncioActorExit

if TYPE_CHECKING:
    from skate._worker.actor_concurrency import Concurrency
    from skate._worker.execute import Executor
    from skate._worker.runtime import Runtime


class ActorExit(BaseException):
    """Raised by `exit_actor()`: the actor ends. Not an Exception, so that methods do not catch it by accident."""


def be_silent_on_exits() -> None:
    """A thread of the actor's own that has called `exit_actor()` ends with what that raises: no error to be printed."""
    say = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, ActorExit):
            say(args)

    threading.excepthook = hook


#: What ends an actor from within a method.
EXITS = (ActorExit, AsyncioActorExit, SystemExit)


class ActorProcess:
    def __init__(self, runtime: Runtime, executor: Executor, start: m.StartActor) -> None:
        self._runtime = runtime
        self._executor = executor
        self.start = start
        self.instance: Any = None
        #: What it prints is marked with, until it is called: its __init__ prints, and threads that were started there.
        self.name_at_birth = start.info.class_name
        #: Calls run several at a time.
        self.concurrency: Concurrency | None = None
        self._is_ending = False

    @property
    def id(self) -> bytes:
        return self.start.create.actor

    @property
    def name(self) -> str:
        return self.start.info.name

    @property
    def is_restarted(self) -> bool:
        return self.start.life > 1

    # -- birth: in the main thread -------------------------------------------------------------------------------------

    def create(self) -> bool:
        """Run __init__; whether there is an actor now."""
        create = self.start.create
        creation, runtime = create.creation, self._runtime
        extra = creation.extra
        assert extra is not None
        kind, what = "init", "its __init__ raised"
        be_silent_on_exits()
        try:
            with runtime.lock:
                self._executor.define(self.start.define, self.start.owner)
            show_name(self._executor.name_field, self.start.info.class_name)
            runtime.context.enter(creation, self.start.life - 1)
            cls = self._executor.functions.load(creation.fn)
            kind, what = "arguments", "an argument of its creation is"
            args, kwargs = load_arguments(runtime, creation, extra)
            kind, what = "init", "its __init__ raised"
            if create.settings.is_async:
                from skate._worker.actor_async import AsyncCalls

                self.concurrency = AsyncCalls(runtime, self._executor, self, cls)
                self.instance = self.concurrency.construct(cls, args, kwargs)
            else:
                self.instance = cls(*args, **kwargs)
            del args, kwargs
        except (ActorExit, AsyncioActorExit):
            self._end(Death("exit", "its __init__ called skate.exit_actor()."))
            return False
        except BaseException as error:  # noqa: BLE001 - whatever __init__ raises, callers are told
            name = f"{self.start.info.class_name}.__init__"
            with collecting_refs():
                failure = failure_of(error, function_name=name, pid=runtime.pid)
            BaseException.with_traceback(error, None)  # a class may forbid an assignment
            self._end(Death(kind, f"{what} {type(error).__name__}.", failure=failure))
            return False
        self._keep_references(extra.refs)
        settings = create.settings
        if self.concurrency is None and (settings.max_concurrency > 1 or settings.groups):
            from skate._worker.actor_concurrency import ThreadedCalls

            self.concurrency = ThreadedCalls(runtime, self._executor, self)
        if self.concurrency is not None:
            runtime.context = ManyCalls(runtime.context)
        self._executor.functions.serve(self.method, self.method_name)
        runtime.send(m.ActorStarted())
        return True

    def _keep_references(self, refs: list[Any]) -> None:
        """References inside the arguments that the instance holds are ours now: their owners must know before the
        creator lets go."""
        runtime = self._runtime
        with runtime.lock:
            runtime._housekeeping()
            requests = [
                runtime.borrowing.register(ref.id, ref.owner)
                for ref in refs
                if ref.id in runtime.table.entries and ref.owner != runtime.process_id
            ]
        runtime.loop.wait(lambda: all(runtime.borrowing.answered(request) for request in requests))

    def method_name(self, fn: bytes) -> str:
        """What logs, errors and the timeline call it."""
        name = fn.decode()
        return name if name in BUILT_IN else f"{self.start.info.class_name}.{name}"

    def method(self, fn: bytes) -> Callable[..., Any]:
        """What to call."""
        name = fn.decode()
        if name in BUILT_IN:
            built_in: Callable[..., Any] = BUILT_IN[name].__get__(self)
            return built_in
        found: Callable[..., Any] = _method_of(self.instance, name)
        return found

    # -- the end -------------------------------------------------------------------------------------------------------

    def exit(self, error: BaseException) -> None:
        """A method raised what ends the actor: for good, or, as `sys.exit(1)` does, as a crash would."""
        if isinstance(error, SystemExit):
            if error.code:
                if self.concurrency is not None:
                    self.concurrency.outbox.flush()
                end_as_a_program(error)
            self._end(Death("exit", "it called sys.exit()."))
        else:
            self._end(Death("exit", "it called skate.exit_actor()."))

    def _end(self, death: Death) -> None:
        """Dead for everybody from now on; calls that run beside the one that ends it still have their results."""
        if self._is_ending:
            return
        self._is_ending = True
        self._runtime.send(m.ActorEnded(death))
        if self.concurrency is not None:
            self.concurrency.finish(self._executor.retire)
        else:
            self._executor.retire()

    def say_farewell(self) -> None:
        """The end of the program, as far as the instance can see: it may tidy up, is let go, and exit handlers run."""
        self._shut_down()
        self._executor.functions.serve_nobody()
        self.instance = None
        gc.collect()
        with contextlib.suppress(Exception):  # they are printed by Python
            atexit._run_exitfuncs()

    def _shut_down(self) -> None:
        """Call `__ray_shutdown__`, if the class has it. Whatever that raises is printed, and the actor still ends."""
        shut_down = getattr(type(self.instance), "__ray_shutdown__", None)
        if shut_down is None:
            return
        try:
            result = shut_down(self.instance)
            if inspect.iscoroutine(result):
                from skate._worker.actor_async import AsyncCalls

                # A class with a coroutine among its methods is an async actor.
                assert isinstance(self.concurrency, AsyncCalls)
                self.concurrency.complete(result)
        except BaseException:  # noqa: BLE001 - there is no caller to whom it could be raised
            traceback.print_exc()

    # -- methods that every actor has ----------------------------------------------------------------------------------

    def _ready(self) -> bool:
        return True

    def _terminate(self) -> None:
        raise ActorExit

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(self.instance, *args, **kwargs)


def _method_of(instance: Any, name: str) -> Any:
    """The method as the class has it, bound to the instance.

    Handles list the methods of the class. `self.step = 0` in a class with a method `step` hides that method inside the
    actor, and callers still mean the method.
    """
    for cls in type(instance).__mro__:
        if name in cls.__dict__:
            found = cls.__dict__[name]
            return found.__get__(instance, type(instance)) if hasattr(type(found), "__get__") else found
    return getattr(instance, name)  # of a class that makes its methods up


#: Ray's names for them, and ours.
BUILT_IN: dict[str, Callable[..., Any]] = {
    "__ray_ready__": ActorProcess._ready,
    "__ray_terminate__": ActorProcess._terminate,
    "__ray_call__": ActorProcess._call,
}
