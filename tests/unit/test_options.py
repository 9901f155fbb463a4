"""Task options: what is accepted, in which form it is kept, and what the refusals say."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction
from typing import Any

import cloudpickle
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate._core.resources import to_units
from skate._options import DEFAULTS, RULES, TaskOptions, merge, task_options


def test_every_field_has_a_rule_and_every_default_passes_it() -> None:
    assert list(RULES) == [field.name for field in msgspec.structs.fields(TaskOptions)]
    for name, rule in RULES.items():
        default = getattr(DEFAULTS, name)
        assert default is None or rule.check(default) == default
        assert rule.may_be
        assert rule.meaning


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


@pytest.mark.parametrize("name", list(RULES))
def test_none_means_the_default(name: str) -> None:
    assert task_options(**{name: None}) == DEFAULTS


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


@given(st.sampled_from(list(RULES)), anything)
def test_any_value_is_either_kept_in_a_stable_form_or_refused_by_name(name: str, value: Any) -> None:
    refusal = ""
    options = DEFAULTS
    try:
        options = task_options(**{name: value})
    except (TypeError, ValueError) as error:
        refusal = str(error)
    assert not refusal or refusal.startswith(f"{name}=")
    assert task_options(**{name: getattr(options, name)}) == options
