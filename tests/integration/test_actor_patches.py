"""Methods that a program puts into classes of libraries, or takes out of its own."""

from __future__ import annotations

from programs import run_program


def test_a_method_that_the_program_put_into_a_library_class_can_be_called() -> None:
    out, _ = run_program(
        """
import inspect, textwrap
import skate

textwrap.TextWrapper.shout = lambda self, text: self.fill(text).upper()
textwrap.TextWrapper.is_class = inspect.isclass
textwrap.TextWrapper.fill = lambda self, text: f"<{text}>"

@skate.remote
class Mine(textwrap.TextWrapper):
    pass

if __name__ == "__main__":
    skate.init(num_cpus=1)
    for wrapper in (skate.remote(textwrap.TextWrapper).remote(), Mine.remote()):
        print(skate.get([wrapper.shout.remote("a"), wrapper.fill.remote("b"), wrapper.is_class.remote()]))
"""
    )
    assert out.splitlines() == 2 * ["['<A>', '<b>', False]"]


def test_a_method_that_the_actor_does_not_have_fails_under_its_name() -> None:
    out, _ = run_program(
        """
import skate

@skate.remote
class Short:
    def __init__(self):
        del type(self).gone
    def gone(self):
        pass

if __name__ == "__main__":
    skate.init(num_cpus=1)
    short = Short.remote()
    try:
        skate.get(short.gone.remote())
    except AttributeError as error:
        print(str(error).splitlines()[0].partition(" in worker")[0])
    print([event["name"] for event in skate.timeline() if event["ph"] == "X"])
"""
    )
    assert out.splitlines() == ["raised by task Short.gone", "['Short.gone']"]
