"""Options of tasks, actors and methods: what is accepted, in which form it is kept, and what the refusals say."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate._core.resources import to_units
from skate._options import (
    KINDS,
    ActorOptions,
    MethodOptions,
    TaskOptions,
    actor_options,
    merge,
    method_options,
    rules_of,
    task_options,
)
from skate.strategies import PlacementGroupSchedulingStrategy

RULES = rules_of(TaskOptions)
DEFAULTS = TaskOptions()

#: What makes the options of each kind.
MAKE: dict[type, Callable[..., Any]] = {
    TaskOptions: task_options,
    ActorOptions: actor_options,
    MethodOptions: method_options,
}
EVERY_OPTION = [pytest.param(kind, name, id=f"{KINDS[kind].noun}-{name}") for kind in MAKE for name in rules_of(kind)]

#: These mean "none" where they are the default, and are a mistake where they are given.
NOT_TO_GIVE = {(ActorOptions, "name"), (ActorOptions, "namespace")}


def test_every_kind_is_covered_here() -> None:
    assert list(MAKE) == list(KINDS)


@pytest.mark.parametrize("kind", MAKE)
def test_every_field_has_a_rule_and_every_default_passes_it(kind: type[msgspec.Struct]) -> None:
    assert list(rules_of(kind)) == [field.name for field in msgspec.structs.fields(kind)]
    for name, rule in rules_of(kind).items():
        default = getattr(kind(), name)
        assert default is None or (kind, name) in NOT_TO_GIVE or rule.check(default) == default
        assert rule.may_be
        assert rule.meaning


def test_an_option_of_several_kinds_takes_the_same_values() -> None:
    """Someone who learnt it for tasks need not learn it again for actors. A name is what differs: actors are found by
    it."""
    for kind in MAKE:
        for other in MAKE:
            for name in rules_of(kind).keys() & rules_of(other).keys() - {"name"}:
                assert rules_of(kind)[name].check is rules_of(other)[name].check
                assert rules_of(kind)[name].may_be == rules_of(other)[name].may_be


def test_defaults_are_those_of_ray() -> None:
    options = task_options()
    assert options.num_cpus == 1
    assert options.num_gpus == 0
    assert options.max_retries == 3
    assert options.retry_exceptions is False
    assert options.max_calls == 0
    assert options.num_returns is None
    assert options.resources_needed() == {"CPU": 1.0}


GOOD: list[tuple[str, Any, Any]] = [
    ("num_cpus", 0, 0.0),
    ("num_cpus", 0.25, 0.25),
    ("num_cpus", Fraction(1, 2), 0.5),
    ("num_cpus", 0.123456, 0.1234),
    ("num_cpus", 0.57, 0.57),
    ("num_gpus", 0.5, 0.5),
    ("num_gpus", 3, 3.0),
    ("resources", {"licence": 2, "half": 0.5}, {"licence": 2.0, "half": 0.5}),
    ("memory", 2**30, 2**30),
    ("memory", 1.5e9, 1_500_000_000),
    ("memory", 1.5, 2),
    ("num_returns", 0, 0),
    ("num_returns", 7, 7),
    ("num_returns", "streaming", "streaming"),
    ("num_returns", "dynamic", "dynamic"),
    ("max_retries", -1, -1),
    ("max_retries", 0, 0),
    ("retry_exceptions", True, True),
    ("retry_exceptions", [OSError, KeyError], (OSError, KeyError)),
    ("retry_exceptions", (), ()),
    ("max_calls", 10, 10),
    ("name", "load", "load"),
    ("runtime_env", {"env_vars": {"A": "${HOME}/x"}}, {"env_vars": {"A": "${HOME}/x"}}),
    ("runtime_env", {}, {}),
    ("scheduling_strategy", "SPREAD", "SPREAD"),
    ("scheduling_strategy", "DEFAULT", "DEFAULT"),
    ("_metadata", {"library": {"x": 1}}, {"library": {"x": 1}}),
    ("enable_task_events", False, False),
    ("_generator_backpressure_num_objects", 4, 4),
    ("accelerator_type", "A100", "A100"),
    ("label_selector", {"zone": "in(a,b)"}, {"zone": "in(a,b)"}),
]


@pytest.mark.parametrize(("name", "value", "kept"), GOOD)
def test_good_values_are_kept_in_one_form(name: str, value: Any, kept: Any) -> None:
    found = getattr(task_options(**{name: value}), name)
    assert found == kept
    assert type(found) is type(kept)


BAD: list[tuple[str, Any, type[Exception], str]] = [
    ("num_cpus", True, TypeError, "not a number"),
    ("num_cpus", "2", TypeError, "not a number"),
    ("num_cpus", -0.5, ValueError, "negative"),
    ("num_cpus", math.nan, ValueError, "finite"),
    ("num_cpus", math.inf, ValueError, "finite"),
    ("num_cpus", 1e-5, ValueError, "finest fraction"),
    ("num_cpus", 1e30, ValueError, "more than"),
    ("num_gpus", 1.5, ValueError, "whole"),
    ("num_gpus", False, TypeError, "not a number"),
    ("resources", {"CPU": 1}, ValueError, "use num_cpus="),
    ("resources", {"GPU": 1}, ValueError, "use num_gpus="),
    ("resources", {"memory": 1}, ValueError, "use memory="),
    ("resources", {"object_store_memory": 1}, ValueError, "cannot be reserved"),
    ("resources", {"a": "x"}, TypeError, "'a' is 'x'"),
    ("resources", {"a": -1}, ValueError, "'a' is -1"),
    ("resources", {1: 1}, TypeError, "name 1 is not a string"),
    ("resources", {"": 1}, ValueError, "empty"),
    ("resources", ["a"], TypeError, "not a dict"),
    ("memory", -1, ValueError, "negative"),
    ("memory", "1GB", TypeError, "not a number"),
    ("num_returns", -1, ValueError, "less than 0"),
    ("num_returns", True, TypeError, "whole number"),
    ("num_returns", 1.0, TypeError, "whole number"),
    ("num_returns", "stream", ValueError, "streaming"),
    ("max_retries", -2, ValueError, "less than -1"),
    ("max_retries", 1.5, TypeError, "whole number"),
    ("retry_exceptions", ValueError, TypeError, "[ValueError]"),
    ("retry_exceptions", "ValueError", TypeError, "list"),
    ("retry_exceptions", [1], TypeError, "1 is not an exception class"),
    ("retry_exceptions", [int], TypeError, "not an exception class"),
    ("max_calls", -1, ValueError, "less than 0"),
    ("name", 3, TypeError, "not a string"),
    ("name", "\ud800", ValueError, "half a character"),
    ("max_retries", 2**70, ValueError, "more than 9223372036854775807"),
    ("resources", {"\ud800": 1}, ValueError, "half a character"),
    ("runtime_env", {"env_vars": {"A": "\ud800"}}, ValueError, "half a character"),
    ("runtime_env", {"pip": ["numpy"]}, ValueError, "knows only 'env_vars', and not 'pip'"),
    ("runtime_env", {"working_dir": ".", "env_vars": {}}, ValueError, "'working_dir'"),
    ("runtime_env", {"env_vars": {"A": 1}}, TypeError, "'A' is 1, which is not a string"),
    ("runtime_env", {"env_vars": ["A"]}, TypeError, "not a dict"),
    ("runtime_env", {"env_vars": {"A=B": "c"}}, ValueError, "character"),
    ("runtime_env", {"env_vars": {"A": "c\0"}}, ValueError, "zero byte"),
    ("runtime_env", "env", TypeError, "not a dict"),
    ("scheduling_strategy", "PACK", ValueError, '"SPREAD"'),
    ("scheduling_strategy", object(), TypeError, '"SPREAD"'),
    ("_metadata", 1, TypeError, "not a dict"),
    ("enable_task_events", 1, TypeError, "neither True nor False"),
    ("_generator_backpressure_num_objects", 0, ValueError, "less than 1"),
    ("accelerator_type", 1, TypeError, "not a string"),
    ("label_selector", {"zone": 1}, TypeError, "'zone' is 1"),
]


@pytest.mark.parametrize(("name", "value", "kind", "reason"), BAD)
def test_bad_value_names_the_option_the_value_and_what_it_may_be(
    name: str, value: Any, kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind) as caught:
        task_options(**{name: value})
    assert type(caught.value) is kind
    text = str(caught.value)
    assert text.startswith(f"{name}={value!r}")
    assert reason in text
    assert RULES[name].may_be in text


def test_texts_of_other_types_become_plain_ones() -> None:
    """Messages carry str and nothing that only looks like it: a numpy.str_, a member of an enumeration."""
    import numpy as np

    class Colour(str, Enum):
        RED = "red"

    options = task_options(
        name=np.str_("step"), resources={Colour.RED: 1}, runtime_env={"env_vars": {"A": np.str_("b")}}
    )
    assert (options.name, type(options.name)) == ("step", str)
    assert [(name, type(name)) for name in options.resources] == [("red", str)]
    assert {type(text) for text in options.runtime_env["env_vars"].values()} == {str}


def test_long_value_is_cut_in_the_text() -> None:
    with pytest.raises(TypeError) as caught:
        task_options(num_cpus="x" * 10_000)
    assert len(str(caught.value)) < 400


def test_unknown_option_names_close_ones_and_lists_all() -> None:
    with pytest.raises(ValueError) as caught:
        task_options(num_cpu=1)
    text = str(caught.value)
    assert "'num_cpu'" in text
    assert "did you mean num_cpus" in text
    for name in RULES:
        assert name in text


def test_unknown_option_without_a_close_one_lists_all() -> None:
    with pytest.raises(ValueError) as caught:
        task_options(zzz=1)
    assert "did you mean" not in str(caught.value)
    assert "num_cpus" in str(caught.value)


def test_merge_changes_what_is_given_and_leaves_the_base_alone() -> None:
    base = task_options(num_cpus=2, name="f", max_retries=0)
    merged = merge(base, num_cpus=0.5, resources={"a": 1})
    assert (merged.num_cpus, merged.name, merged.max_retries) == (0.5, "f", 0)
    assert merged.resources_needed() == {"CPU": 0.5, "a": 1.0}
    assert (base.num_cpus, base.resources) == (2.0, {})


def test_merge_checks_what_is_given() -> None:
    with pytest.raises(ValueError, match="max_retries=-5"):
        merge(task_options(), max_retries=-5)
    with pytest.raises(ValueError, match="not an option"):
        merge(task_options(), retries=5)


@pytest.mark.parametrize(("kind", "name"), EVERY_OPTION)
def test_none_means_the_default(kind: type, name: str) -> None:
    assert MAKE[kind](**{name: None}) == kind()


def test_none_sets_back_to_the_default() -> None:
    assert merge(task_options(num_cpus=4), num_cpus=None).num_cpus == 1


def test_options_are_immutable_and_not_changed_through_the_dict_that_was_given() -> None:
    given_resources = {"a": 1}
    options = task_options(resources=given_resources)
    given_resources["a"] = 2
    assert options.resources == {"a": 1.0}
    with pytest.raises(AttributeError):
        options.num_cpus = 3.0  # type: ignore[misc]


def test_options_survive_pickling() -> None:
    """A remote function that another function captures takes its options along."""
    options = task_options(retry_exceptions=[OSError], runtime_env={"env_vars": {"A": "b"}}, num_returns="streaming")
    assert pickle.loads(pickle.dumps(options)) == options
    assert pickle.loads(cloudpickle.dumps(options)) == options


def test_resources_needed_leaves_out_zeros() -> None:
    options = task_options(num_cpus=0, num_gpus=0.5, memory=100, resources={"a": 2, "b": 0})
    assert options.resources_needed() == {"GPU": 0.5, "memory": 100.0, "a": 2.0}
    assert task_options(num_cpus=0).resources_needed() == {}


def test_numpy_numbers_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    options = task_options(num_cpus=numpy.float32(0.5), num_returns=numpy.int64(2), max_retries=numpy.int32(1))
    assert (options.num_cpus, options.num_returns, options.max_retries) == (0.5, 2, 1)
    assert type(options.num_cpus) is float
    assert type(options.num_returns) is int


@given(st.integers(1, 10_000))
def test_n_tasks_of_one_nth_fit_on_one_cpu(n: int) -> None:
    assert n * to_units(task_options(num_cpus=1 / n).resources_needed())["CPU"] <= 10_000


@given(st.integers(0, 10**9))
def test_steps_of_a_ten_thousandth_are_kept_exactly(units: int) -> None:
    options = task_options(num_cpus=units / 10_000)
    assert round(options.num_cpus * 10_000) == units
    assert merge(options, num_cpus=options.num_cpus) == options


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.integers()),
    st.dictionaries(st.text() | st.integers(), st.text() | st.floats() | st.integers() | st.none()),
    st.just(ValueError),
    st.just(object()),
)


@given(st.sampled_from([(kind, name) for kind in MAKE for name in rules_of(kind)]), anything)
def test_any_value_is_either_kept_in_a_stable_form_or_refused_by_name(option: tuple[type, str], value: Any) -> None:
    kind, name = option
    refusal = ""
    options = kind()
    given_besides = {"name": "x"} if name == "get_if_exists" else {}
    try:
        options = MAKE[kind](**{name: value}, **given_besides)
    except (TypeError, ValueError) as error:
        refusal = str(error)
    assert not refusal or refusal.startswith(f"{name}=")
    kept = getattr(options, name)
    if kept or option not in NOT_TO_GIVE:
        assert merge(options, **{name: kept}) == options


# --- actors -----------------------------------------------------------------------------------------------------------


def test_defaults_of_actors_are_those_of_ray() -> None:
    options = actor_options()
    assert options == ActorOptions()
    assert options.num_cpus is None
    assert (options.max_restarts, options.max_task_retries, options.max_pending_calls) == (0, 0, -1)
    assert (options.name, options.namespace, options.get_if_exists, options.lifetime) == ("", "", False, None)
    assert (options.max_concurrency, options.concurrency_groups) == (None, {})
    assert options.allow_out_of_order_execution is None


def test_actor_without_num_cpus_needs_one_cpu_to_be_placed_and_none_to_live() -> None:
    assert actor_options().resources_needed() == {}
    assert actor_options().resources_to_place() == {"CPU": 1.0}
    others = actor_options(num_gpus=1, memory=100, resources={"a": 2, "b": 0})
    assert others.resources_needed() == {"GPU": 1.0, "memory": 100.0, "a": 2.0}
    assert others.resources_to_place() == {"CPU": 1.0, "GPU": 1.0, "memory": 100.0, "a": 2.0}


def test_actor_with_num_cpus_holds_them_while_it_lives() -> None:
    for cpus, found in ((2, {"CPU": 2.0}), (0.5, {"CPU": 0.5}), (0, {})):
        options = actor_options(num_cpus=cpus)
        assert options.resources_needed() == options.resources_to_place() == found


@given(
    st.none() | st.integers(0, 20_000).map(lambda units: units / 10_000),
    st.integers(0, 8),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 5)),
)
def test_placing_needs_what_living_needs_and_at_most_one_cpu_more(
    cpus: float | None, gpus: int, resources: dict[str, int]
) -> None:
    options = actor_options(num_cpus=cpus, num_gpus=gpus, resources=resources)
    living, placing = options.resources_needed(), options.resources_to_place()
    assert placing == ({**living, "CPU": 1.0} if cpus is None else living)
    assert all(living.values())
    assert all(placing.values())


ACTOR_GOOD: list[tuple[str, Any, Any]] = [
    ("num_cpus", 0, 0.0),
    ("num_cpus", 2, 2.0),
    ("num_cpus", Fraction(1, 3), 0.3333),
    ("num_gpus", 0.25, 0.25),
    ("resources", {"licence": 2}, {"licence": 2.0}),
    ("memory", 1.5e9, 1_500_000_000),
    ("memory", 1.5, 2),
    ("name", "counter", "counter"),
    ("name", " ", " "),
    ("namespace", "experiments", "experiments"),
    ("get_if_exists", False, False),
    ("lifetime", "detached", "detached"),
    ("lifetime", "non_detached", None),
    ("max_restarts", 0, 0),
    ("max_restarts", 7, 7),
    ("max_restarts", -1, -1),
    ("max_task_retries", 3, 3),
    ("max_task_retries", -1, -1),
    ("max_concurrency", 1, 1),
    ("max_concurrency", 1000, 1000),
    ("concurrency_groups", {}, {}),
    ("concurrency_groups", [], {}),
    ("concurrency_groups", {"io": 2, "compute": 4}, {"io": 2, "compute": 4}),
    ("concurrency_groups", [{"name": "io", "max_concurrency": 2}], {"io": 2}),
    (
        "concurrency_groups",
        ({"max_concurrency": 1, "name": "a"}, {"name": "b", "max_concurrency": 2}),
        {"a": 1, "b": 2},
    ),
    ("max_pending_calls", -1, -1),
    ("max_pending_calls", 1, 1),
    ("max_pending_calls", 500, 500),
    ("runtime_env", {"env_vars": {"A": "b"}}, {"env_vars": {"A": "b"}}),
    ("scheduling_strategy", "SPREAD", "SPREAD"),
    ("accelerator_type", "A100", "A100"),
    ("label_selector", {"zone": "a"}, {"zone": "a"}),
    ("enable_task_events", False, False),
    ("allow_out_of_order_execution", True, True),
    ("allow_out_of_order_execution", False, False),
    ("_metadata", {"library": {"x": 1}}, {"library": {"x": 1}}),
]

METHOD_GOOD: list[tuple[str, Any, Any]] = [
    ("num_returns", 0, 0),
    ("num_returns", 2, 2),
    ("num_returns", "streaming", "streaming"),
    ("num_returns", "dynamic", "dynamic"),
    ("concurrency_group", "io", "io"),
    ("max_task_retries", 0, 0),
    ("max_task_retries", -1, -1),
    ("retry_exceptions", True, True),
    ("retry_exceptions", [OSError, KeyError], (OSError, KeyError)),
    ("name", "load", "load"),
    ("enable_task_events", True, True),
    ("enable_task_events", False, False),
    ("_generator_backpressure_num_objects", 4, 4),
]


@pytest.mark.parametrize(
    ("kind", "name", "value", "kept"),
    [(ActorOptions, *case) for case in ACTOR_GOOD] + [(MethodOptions, *case) for case in METHOD_GOOD],
)
def test_good_values_of_actors_and_methods_are_kept_in_one_form(kind: type, name: str, value: Any, kept: Any) -> None:
    found = getattr(MAKE[kind](**{name: value}), name)
    assert found == kept
    assert type(found) is type(kept)


ACTOR_BAD: list[tuple[str, Any, type[Exception], str]] = [
    ("num_cpus", -1, ValueError, "negative"),
    ("num_cpus", "2", TypeError, "not a number"),
    ("num_gpus", 1.5, ValueError, "whole"),
    ("resources", {"CPU": 1}, ValueError, "use num_cpus="),
    ("memory", "1GB", TypeError, "not a number"),
    ("name", "", ValueError, "it is empty"),
    ("name", 3, TypeError, "not a string"),
    ("name", b"counter", TypeError, "not a string"),
    ("namespace", "", ValueError, "it is empty"),
    ("namespace", 3, TypeError, "not a string"),
    ("get_if_exists", 1, TypeError, "neither True nor False"),
    ("get_if_exists", "yes", TypeError, "neither True nor False"),
    ("lifetime", "Detached", ValueError, "neither of these words"),
    ("lifetime", "", ValueError, "neither of these words"),
    ("lifetime", True, TypeError, "not a string"),
    ("max_restarts", -2, ValueError, "less than -1"),
    ("max_restarts", math.inf, TypeError, "whole number"),
    ("max_restarts", True, TypeError, "whole number"),
    ("max_task_retries", -2, ValueError, "less than -1"),
    ("max_task_retries", "3", TypeError, "whole number"),
    ("max_concurrency", 0, ValueError, "less than 1"),
    ("max_concurrency", -1, ValueError, "less than 1"),
    ("max_concurrency", 1.5, TypeError, "whole number"),
    ("concurrency_groups", "io", TypeError, "not a dict"),
    ("concurrency_groups", {"io": 0}, ValueError, "the limit of 'io' is 0, and it is less than 1"),
    ("concurrency_groups", {"io": "2"}, TypeError, "the limit of 'io' is '2', and it is not a whole number"),
    ("concurrency_groups", {"io": None}, TypeError, "the limit of 'io' is None"),
    ("concurrency_groups", {"": 1}, ValueError, "empty"),
    ("concurrency_groups", {1: 1}, TypeError, "name 1 is not a string"),
    ("concurrency_groups", ["io"], TypeError, "'io' in the list is not a dict"),
    ("concurrency_groups", [{"name": "io"}], ValueError, "just the keys 'name' and 'max_concurrency'"),
    ("concurrency_groups", [{"io": 2}], ValueError, "just the keys 'name' and 'max_concurrency'"),
    ("concurrency_groups", [{"name": "io", "max_concurrency": 0}], ValueError, "the limit of 'io' is 0"),
    ("concurrency_groups", [{"name": [], "max_concurrency": 1}], TypeError, "name [] is not a string"),
    ("concurrency_groups", [{"name": "", "max_concurrency": 1}], ValueError, "empty"),
    ("concurrency_groups", [{"name": "io", "max_concurrency": 1}] * 2, ValueError, "'io' is there twice"),
    ("max_pending_calls", 0, ValueError, "nothing could ever be called"),
    ("max_pending_calls", -2, ValueError, "less than -1"),
    ("max_pending_calls", 1.0, TypeError, "whole number"),
    ("runtime_env", {"pip": ["numpy"]}, ValueError, "'pip'"),
    ("scheduling_strategy", "PACK", ValueError, '"SPREAD"'),
    ("accelerator_type", 1, TypeError, "not a string"),
    ("label_selector", {"zone": 1}, TypeError, "'zone' is 1"),
    ("enable_task_events", 0, TypeError, "neither True nor False"),
    ("allow_out_of_order_execution", 1, TypeError, "neither True nor False"),
    ("_metadata", 1, TypeError, "not a dict"),
]

METHOD_BAD: list[tuple[str, Any, type[Exception], str]] = [
    ("num_returns", -1, ValueError, "less than 0"),
    ("num_returns", "stream", ValueError, "streaming"),
    ("concurrency_group", 1, TypeError, "not a string"),
    ("concurrency_group", "", ValueError, "empty"),
    ("max_task_retries", -2, ValueError, "less than -1"),
    ("max_task_retries", 1.5, TypeError, "whole number"),
    ("retry_exceptions", ValueError, TypeError, "[ValueError]"),
    ("retry_exceptions", [1], TypeError, "1 is not an exception class"),
    ("name", 3, TypeError, "not a string"),
    ("enable_task_events", "no", TypeError, "neither True nor False"),
    ("_generator_backpressure_num_objects", 0, ValueError, "less than 1"),
]


@pytest.mark.parametrize(
    ("kind", "name", "value", "error", "reason"),
    [(ActorOptions, *case) for case in ACTOR_BAD] + [(MethodOptions, *case) for case in METHOD_BAD],
)
def test_bad_value_of_actors_and_methods_names_the_option_the_value_and_what_it_may_be(
    kind: type, name: str, value: Any, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error) as caught:
        MAKE[kind](**{name: value})
    assert type(caught.value) is error
    text = str(caught.value)
    assert text.startswith(f"{name}={value!r}"[:80])
    assert "is not a value for this option" in text
    assert reason in text
    assert rules_of(kind)[name].may_be in text


def test_get_if_exists_needs_a_name() -> None:
    with pytest.raises(ValueError) as caught:
        actor_options(get_if_exists=True)
    assert "get_if_exists=True" in str(caught.value)
    assert 'name="…"' in str(caught.value)
    assert actor_options(get_if_exists=True, name="a").get_if_exists
    assert actor_options(name="a", get_if_exists=True).get_if_exists


def test_get_if_exists_and_the_name_may_come_one_after_the_other() -> None:
    named = actor_options(name="a")
    both = merge(named, get_if_exists=True)
    assert (both.name, both.get_if_exists) == ("a", True)
    with pytest.raises(ValueError, match="get_if_exists=True is not possible without a name"):
        merge(both, name=None)
    assert merge(both, name=None, get_if_exists=False) == ActorOptions()


def test_what_ray_allows_together_is_allowed() -> None:
    assert actor_options(lifetime="detached").name == ""
    assert actor_options(max_task_retries=2).max_restarts == 0
    assert actor_options(namespace="n").name == ""


def test_non_detached_sets_back_a_detached_class() -> None:
    assert merge(actor_options(lifetime="detached"), lifetime="non_detached").lifetime is None


def test_list_of_groups_is_no_longer_the_users() -> None:
    listed = [{"name": "io", "max_concurrency": 2}]
    by_name = {"io": 2}
    from_list, from_dict = actor_options(concurrency_groups=listed), actor_options(concurrency_groups=by_name)
    listed[0]["max_concurrency"] = by_name["io"] = 9
    assert from_list == from_dict == actor_options(concurrency_groups={"io": 2})


@given(st.dictionaries(st.text(min_size=1), st.integers(1, 1000)))
def test_groups_in_a_list_mean_the_same_as_in_a_dict(groups: dict[str, int]) -> None:
    listed = [{"name": name, "max_concurrency": limit} for name, limit in groups.items()]
    assert actor_options(concurrency_groups=listed) == actor_options(concurrency_groups=groups)
    assert actor_options(concurrency_groups=listed).concurrency_groups == groups


# --- methods ----------------------------------------------------------------------------------------------------------


def test_method_leaves_to_the_actor_what_it_does_not_say() -> None:
    options = method_options()
    assert options == MethodOptions()
    assert (options.num_returns, options.max_task_retries, options.enable_task_events) == (None, None, None)
    assert (options.concurrency_group, options.name, options.retry_exceptions) == (None, "", False)
    # 0 is something else than nothing: it forbids what the actor may allow.
    assert method_options(max_task_retries=0).max_task_retries == 0


# --- all three --------------------------------------------------------------------------------------------------------


def test_merge_keeps_the_kind_and_leaves_the_base_alone() -> None:
    actor = actor_options(name="a", max_restarts=2)
    other = merge(actor, max_restarts=-1, num_cpus=1)
    assert type(other) is ActorOptions
    assert (other.name, other.max_restarts, other.num_cpus) == ("a", -1, 1.0)
    assert (actor.max_restarts, actor.num_cpus) == (2, None)
    assert merge(other, num_cpus=None).resources_needed() == {}

    method = method_options(num_returns=2, concurrency_group="io")
    called = merge(method, num_returns=3, name="x")
    assert type(called) is MethodOptions
    assert (called.num_returns, called.concurrency_group, called.name) == (3, "io", "x")
    assert (method.num_returns, method.name) == (2, "")


@pytest.mark.parametrize("kind", MAKE)
def test_merge_of_nothing_is_the_same(kind: type) -> None:
    options = MAKE[kind](name="x")
    assert merge(options) == options


def test_every_value_of_the_tables_can_be_merged_and_set_back() -> None:
    for kind, cases in ((TaskOptions, GOOD), (ActorOptions, ACTOR_GOOD), (MethodOptions, METHOD_GOOD)):
        for name, value, kept in cases:
            merged = merge(kind(), **{name: value})
            assert getattr(merged, name) == kept
            assert merge(merged, **{name: None}) == kind()


@pytest.mark.parametrize("kind", MAKE)
def test_options_of_every_kind_are_immutable(kind: type) -> None:
    with pytest.raises(AttributeError):
        kind().name = "x"


def test_options_of_actors_and_methods_survive_pickling() -> None:
    """A handle that is passed on takes along what its methods need to know."""
    actor = actor_options(name="a", get_if_exists=True, concurrency_groups={"io": 2}, lifetime="detached", num_cpus=1)
    method = method_options(retry_exceptions=[OSError], num_returns="streaming", concurrency_group="io")
    for options in (actor, method):
        assert pickle.loads(pickle.dumps(options)) == options
        assert pickle.loads(cloudpickle.dumps(options)) == options


MISPLACED: list[tuple[type, str, str, str]] = [
    # given to, option, where it belongs, what to do
    (ActorOptions, "max_retries", "an option of tasks.", "max_task_retries says"),
    (ActorOptions, "max_calls", "an option of tasks.", "make another"),
    (ActorOptions, "num_returns", "an option of tasks and of methods.", "@skate.method(num_returns=…)"),
    (ActorOptions, "retry_exceptions", "an option of tasks and of methods.", "@skate.method(retry_exceptions=…)"),
    (ActorOptions, "concurrency_group", "an option of methods.", "@skate.method(concurrency_group=…)"),
    (TaskOptions, "max_restarts", "an option of actors.", "max_retries says"),
    (TaskOptions, "max_task_retries", "an option of actors and of methods.", "max_retries says"),
    (TaskOptions, "lifetime", "an option of actors.", "@skate.remote(lifetime=…) on a class"),
    (TaskOptions, "max_concurrency", "an option of actors.", "@skate.remote(max_concurrency=…) on a class"),
    (TaskOptions, "concurrency_groups", "an option of actors.", "on a class"),
    (TaskOptions, "max_pending_calls", "an option of actors.", "on a class"),
    (TaskOptions, "get_if_exists", "an option of actors.", "on a class"),
    (TaskOptions, "namespace", "an option of actors.", "on a class"),
    (TaskOptions, "concurrency_group", "an option of methods.", "@skate.method(concurrency_group=…)"),
    (MethodOptions, "num_cpus", "an option of tasks and of actors.", "@skate.remote(num_cpus=…) on a class"),
    (MethodOptions, "max_restarts", "an option of actors.", "@skate.remote(max_restarts=…) on a class"),
    (MethodOptions, "max_retries", "an option of tasks.", "max_task_retries says"),
    (MethodOptions, "max_calls", "an option of tasks.", "make another"),
]


@pytest.mark.parametrize(("kind", "name", "home", "advice"), MISPLACED)
def test_option_of_something_else_is_refused_with_its_place(kind: type, name: str, home: str, advice: str) -> None:
    with pytest.raises(ValueError) as caught:
        MAKE[kind](**{name: 1})
    text = str(caught.value)
    assert text.startswith(f"{name!r} is not an option of a")
    assert KINDS[kind].noun in text.splitlines()[0]
    assert home in text
    assert advice in text


def test_every_option_that_a_kind_lacks_is_refused_with_its_place() -> None:
    """None too: it would mean a default that there is not."""
    for kind, make in MAKE.items():
        elsewhere = {name: rule for other in MAKE for name, rule in rules_of(other).items()}
        for name in set(elsewhere) - set(rules_of(kind)):
            if name.startswith("_") and elsewhere[name].no_effect:
                continue
            for value in (1, None):
                with pytest.raises(ValueError, match="why:  it is an option of"):
                    make(**{name: value})


@pytest.mark.parametrize(
    ("kind", "one"), [(TaskOptions, "a task"), (ActorOptions, "an actor"), (MethodOptions, "a method")]
)
def test_unknown_option_of_any_kind_lists_those_that_there_are(kind: type, one: str) -> None:
    # "base" is how merge() calls its own parameter.
    for name in ("zzz", "base"):
        with pytest.raises(ValueError) as caught:
            MAKE[kind](**{name: 1})
        text = str(caught.value)
        assert text.startswith(f"{name!r} is not an option of {one}.")
        for known in rules_of(kind):
            assert known in text


def test_misspelt_option_of_an_actor_names_the_close_one() -> None:
    with pytest.raises(ValueError, match="did you mean max_restarts"):
        actor_options(max_restart=1)
    with pytest.raises(ValueError, match="did you mean concurrency_group"):
        method_options(concurency_group="io")


class Group:
    """What a placement group is to a strategy."""

    id = b"group"
    bundle_count = 2
    bundle_specs = ({"CPU": 1.0}, {"CPU": 2.0})


GROUP = Group()


@pytest.mark.parametrize("make", [task_options, actor_options])
@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ({"placement_group": GROUP}, (GROUP,)),
        ({"placement_group": GROUP, "placement_group_bundle_index": 1}, (GROUP, 1)),
        ({"placement_group": GROUP, "placement_group_capture_child_tasks": True}, (GROUP, -1, True)),
        ({"placement_group": GROUP, "placement_group_capture_child_tasks": None}, (GROUP,)),
        ({"placement_group": GROUP, "scheduling_strategy": None}, (GROUP,)),
        ({"placement_group": None}, (None,)),
        ({"placement_group": None, "placement_group_capture_child_tasks": True}, (None, -1, True)),
        ({"placement_group": "default", "placement_group_capture_child_tasks": True}, ("default", -1, True)),
        ({"placement_group_capture_child_tasks": False}, ("default", -1, False)),
    ],
)
def test_the_older_spelling_of_groups_is_a_strategy(make: Any, older: dict[str, Any], newer: tuple[Any, ...]) -> None:
    strategy = PlacementGroupSchedulingStrategy(*newer)
    assert make(**older) == make(scheduling_strategy=strategy)
    assert merge(make(num_cpus=1), **older).scheduling_strategy == strategy


@pytest.mark.parametrize("make", [task_options, actor_options])
def test_the_older_spelling_of_groups_adds_to_what_was_said_before(make: Any) -> None:
    base = make(placement_group=GROUP, placement_group_capture_child_tasks=True)
    strategy = merge(base, placement_group_bundle_index=1).scheduling_strategy
    assert strategy == PlacementGroupSchedulingStrategy(GROUP, 1, True)
    assert merge(base, placement_group="default") == base
    assert make(placement_group="default", placement_group_bundle_index=-1) == make()
    for none in ("default", None):
        assert merge(base, placement_group=none, scheduling_strategy="SPREAD") == make(scheduling_strategy="SPREAD")


@pytest.mark.parametrize("make", [task_options, actor_options])
@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ({"placement_group": GROUP, "scheduling_strategy": "SPREAD"}, ValueError, "give one of them"),
        ({"placement_group_bundle_index": 0}, ValueError, "without a group"),
        ({"placement_group": "default", "placement_group_bundle_index": 0}, ValueError, "without a group"),
        ({"placement_group": None, "placement_group_bundle_index": 0}, ValueError, "names no group"),
        ({"placement_group": "a group"}, TypeError, "'a group'"),
        ({"placement_group": GROUP, "placement_group_bundle_index": 2}, ValueError, "0 to 1"),
        ({"placement_group": 7}, TypeError, "placement_group=7"),
    ],
)
def test_the_older_spelling_of_groups_is_checked(make: Any, given: dict[str, Any], error: Any, why: str) -> None:
    with pytest.raises(error, match=why):
        make(**given)


def test_methods_are_in_no_group_of_their_own() -> None:
    with pytest.raises(ValueError, match="'placement_group' is not an option of a method"):
        method_options(placement_group=GROUP)


# --- options without effect -------------------------------------------------------------------------------------------

DOCS = Path(__file__).resolve().parents[2] / "docs"
WITHOUT_EFFECT = {"accelerator_type", "enable_task_events", "fallback_strategy", "object_store_memory", "_metadata"}


def rows(page: str, heading: str) -> dict[str, str]:
    """The first and the last column of the table with that heading, in a page of the documentation."""
    table = (DOCS / page).read_text().partition(f"| {heading} |")[2].partition("\n\n")[0]
    cells = [re.split(r"(?<!\\\\)\|", line.strip().strip("|")) for line in table.splitlines()[2:]]
    return {row[0].strip().strip("`"): row[-1].strip() for row in cells}


@pytest.mark.parametrize(
    ("kind", "page", "heading"),
    [
        (TaskOptions, "tasks.md", "option"),
        (ActorOptions, "actors.md", "option of an actor"),
        (MethodOptions, "actors.md", "option of a method"),
    ],
)
def test_the_documentation_lists_every_option_and_says_which_have_no_effect_in_the_words_of_their_rules(
    kind: type, page: str, heading: str
) -> None:
    listed = rows(page, heading)
    assert set(listed) == set(rules_of(kind))
    for name, rule in rules_of(kind).items():
        if rule.no_effect:
            assert listed[name] == f"No effect: {rule.no_effect}."
        else:
            assert "no effect" not in listed[name].lower()


def test_these_options_have_no_effect() -> None:
    without = {name for kind in MAKE for name, rule in rules_of(kind).items() if rule.no_effect}
    assert without == WITHOUT_EFFECT


@pytest.mark.parametrize("kind", MAKE)
def test_unknown_options_that_begin_with_an_underscore_are_accepted_and_have_no_effect(kind: type) -> None:
    for name in ("_labels", "_num_objects_per_yield", "_actor_generator_backpressure_num_objects", "_metadata"):
        for value in (None, {}, 5 if name != "_metadata" else {"a": 1}):
            assert msgspec.structs.replace(MAKE[kind](**{name: value})) is not None
    assert MAKE[kind](_labels={"a": "b"}) == kind()
    assert merge(kind(), _labels={"a": "b"}) == kind()


def test_an_option_with_an_underscore_that_does_something_elsewhere_is_misplaced() -> None:
    with pytest.raises(ValueError, match="not an option of an actor"):
        actor_options(_generator_backpressure_num_objects=2)


def test_a_fallback_strategy_is_a_list_of_dicts() -> None:
    assert task_options(fallback_strategy=[{"label_selector": {"a": "b"}}]).fallback_strategy
    with pytest.raises(TypeError, match="it is not a list"):
        actor_options(fallback_strategy={"label_selector": {}})
    with pytest.raises(TypeError, match="it is not a dict"):
        actor_options(fallback_strategy=["a"])
