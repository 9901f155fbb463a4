"""Classes and functions become deployments, deployments applications, and applications what the controller gets."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest

from skate import serve
from skate.serve import configs
from skate.serve.config import AutoscalingConfig
from skate.serve.deployments import BLOB_BYTES_MAX, Application, Deployment, deployment, pack
from skate.serve.handle import DeploymentHandle
from skate.serve.records import AppSpec, DeploymentSpec


@deployment
class Model:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs


@deployment(num_replicas=2, max_ongoing_requests=7)
class Api:
    def __init__(self, model: Any, other: Any = None) -> None:
        self.model, self.other = model, other


class Holder:
    def __init__(self, inner: Any) -> None:
        self.inner = inner


def packed(app: Application, name: str = "app") -> tuple[dict[str, DeploymentSpec], dict[str, bytes], AppSpec]:
    spec, blobs = pack(app, name, "/")
    assert set(blobs) == spec.digests()
    return {each.name: each for each in spec.deployments}, blobs, spec


def arguments(spec: DeploymentSpec, blobs: dict[str, bytes]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    _, args, kwargs = pickle.loads(blobs[spec.code])
    return args, kwargs


def is_handle(value: object, name: str) -> bool:
    return isinstance(value, DeploymentHandle) and name in repr(value)


def test_settings_reach_the_specification() -> None:
    specs, _, app = packed(Api.bind(1))
    api = specs["Api"]
    assert (app.ingress, app.route_prefix) == ("Api", "/")
    assert (api.app, api.replicas, api.max_ongoing, api.is_ingress, api.config) == ("app", 2, 7, True, "")
    scaled, _, _ = packed(Model.options(autoscaling_config={"initial_replicas": 3, "max_replicas": 4}).bind())
    assert scaled["Model"].replicas == 3
    assert AutoscalingConfig(**(scaled["Model"].scaling or {})).max_replicas == 4
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(app), type=AppSpec) == app


def test_applications_become_handles_wherever_they_stand() -> None:
    names = iter("abcdef")
    parts = [Model.options(name=next(names)).bind() for _ in range(6)]
    closed = parts[5]
    specs, blobs, _ = packed(
        Api.bind([parts[0], {"key": parts[1]}], other=(Holder(parts[2]), {1: [parts[3]]}, parts[4], lambda: closed))
    )
    assert set(specs) == {"Api", *"abcdef"}
    assert [each.name for each in specs.values() if each.is_ingress] == ["Api"]
    ((first, second),), kwargs = arguments(specs["Api"], blobs)
    holder, nested, alone, closure = kwargs["other"]
    found = [first, second["key"], holder.inner, nested[1][0], alone, closure()]
    assert all(is_handle(each, name) for each, name in zip(found, "abcdef"))


def test_an_application_in_the_closure_of_a_class_becomes_a_handle() -> None:
    part = Model.bind()

    class Closing:
        def __call__(self) -> Any:
            return part

    specs, blobs, _ = packed(deployment(Closing).bind())
    cls, _, _ = pickle.loads(blobs[specs["Closing"].code])
    assert is_handle(cls()(), "Model")


def test_the_same_application_used_twice_is_one_deployment() -> None:
    model = Model.bind()
    middle = Model.options(name="Middle").bind(model)
    specs, blobs, _ = packed(Api.bind(model, other=[middle, model]))
    assert sorted(specs) == ["Api", "Middle", "Model"]
    assert is_handle(arguments(specs["Middle"], blobs)[0][0], "Model")


def test_two_binds_of_one_name_have_distinct_names() -> None:
    specs, blobs, _ = packed(Api.bind(Model.bind(1), other=[Model.bind(2), Model.options(name="Model_1").bind(3)]))
    assert len(specs) == 4
    (first,), kwargs = arguments(specs["Api"], blobs)
    named = {repr(each) for each in (first, *kwargs["other"])}
    assert len(named) == 3
    assert arguments(specs["Model"], blobs)[0] == (1,)


def test_packing_again_gives_the_same_versions_and_a_change_another() -> None:
    one, two, other = (packed(Api.bind(Model.bind(n)))[0] for n in (1, 1, 2))
    assert one == two
    assert (one["Api"].version, one["Model"].version == other["Model"].version) == (other["Api"].version, False)
    assert packed(Model.options(version="7").bind())[0]["Model"].version == "7 /"  # with the place where HTTP finds it
    assert packed(Model.options(ray_actor_options={"num_cpus": 2}).bind())[0]["Model"].version != one["Model"].version


def test_a_class_whose_instance_came_back_from_a_replica_is_no_other_version() -> None:
    class Result:
        def double(self) -> int:
            return 2

    @deployment
    class Maker:
        def __call__(self) -> Any:
            return Result()

    before = packed(Maker.bind())[0]["Maker"].version
    cloudpickle.loads(cloudpickle.dumps(Result()))
    assert packed(Maker.bind())[0]["Maker"].version == before


def test_user_config_changes_the_settings_and_not_the_version() -> None:
    specs = [packed(Model.options(user_config=value).bind()) for value in (None, {"a": 1}, {"a": 2})]
    found = [each[0]["Model"] for each in specs]
    assert len({each.version for each in found}) == 1
    assert len({each.settings for each in found}) == 3
    assert configs.load(specs[1][1][found[1].config]) == {"a": 1}


def test_what_cannot_be_pickled_says_so_with_the_deployment() -> None:
    with pytest.raises(TypeError, match=r"deployment Model .*\n.*arguments cannot be pickled.*lock(.|\n)*next:"):
        packed(Api.bind(Model.bind(threading.Lock())))
    with pytest.raises(TypeError, match=r"deployment Model .*\n.*user_config cannot be pickled(.|\n)*next:"):
        packed(Model.options(user_config=threading.Lock()).bind())


def test_what_is_too_large_says_so_and_asks_for_a_path() -> None:
    half = bytes(BLOB_BYTES_MAX // 2)
    packed(Model.bind(half))
    with pytest.raises(ValueError, match=r"deployment Model(.|\n)*67,108,864 is the most(.|\n)*path"):
        packed(Model.options(user_config=half).bind(half))


def test_what_is_no_path_in_sys_path_does_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    before = packed(Model.bind())[2].import_path
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/somewhere"), "/not utf-8: \udcff", "/\u200d\n"])
    assert packed(Model.bind())[2].import_path == [*before, "/\u200d\n"]


def test_names_and_prefixes_are_refused_that_could_not_be_kept() -> None:
    for name in ("a\nb", "\ud800", "", "a/b"):
        with pytest.raises(ValueError, match="name="):
            serve.run(Model.bind(), name=name)
    for prefix in ("a", "/a\nb", "/\ud800", "/-/a"):
        with pytest.raises(ValueError, match="route_prefix="):
            serve.run(Model.bind(), route_prefix=prefix)


def test_arguments_are_checked_against_the_constructor_when_they_are_bound() -> None:
    with pytest.raises(TypeError, match=r"Api\.bind.*'model'.*\(model: "):
        Api.bind()
    with pytest.raises(TypeError, match="unknown"):
        Api.bind(1, unknown=2)


def test_functions_are_deployments_without_arguments() -> None:
    @deployment
    def answer(request: object) -> int:
        return 42

    specs, blobs, _ = packed(answer.bind())
    function, args, kwargs = pickle.loads(blobs[specs["answer"].code])
    assert (function(None), args, kwargs) == (42, (), {})
    assert answer.func_or_class(None) == 42
    with pytest.raises(TypeError, match="answer is a function"):
        answer.bind(1)


def test_options_make_another_deployment_of_the_same_class() -> None:
    other: Deployment[Any] = Api.options(name="Other", num_replicas=5)
    assert (other.name, other.num_replicas, other.max_ongoing_requests) == ("Other", 5, 7)
    assert (Api.name, Api.num_replicas) == ("Api", 2)
    assert other.func_or_class is Api.func_or_class
    with pytest.raises(AttributeError, match="func_or_class"):
        _ = other.predict


def test_wrong_uses_say_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"is a deployment already(.|\n)*options"):
        deployment(Api)
    with pytest.raises(TypeError, match="neither a class nor a function"):
        deployment("Api")
    with pytest.raises(TypeError, match=r"serve\.run\(Api\.bind"):
        Api(1)


def test_deployments_and_applications_can_be_copied_and_pickled() -> None:
    assert copy.copy(Api).name == "Api"
    again = pickle.loads(cloudpickle.dumps(Api.bind(Model.bind(5))))
    specs, blobs, _ = packed(again)
    assert sorted(specs) == ["Api", "Model"]
    assert arguments(specs["Model"], blobs) == ((5,), {})


def test_a_module_that_was_edited_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What can be imported is pickled by its name, whatever its file says by now.
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "edited_by_a_test.py"
    text = "from skate import serve\n\n@serve.deployment\ndef answer(request):\n    return {}\n"
    versions = []
    for number in (1, 1, 2):
        file.write_text(text.format(number))
        module = importlib.import_module("edited_by_a_test")
        (spec,) = pack(module.answer.bind(), "app", None)[0].deployments
        versions.append(spec.version)
    assert versions[0] == versions[1] != versions[2]
