"""Settings of serving: wrong ones are refused where they are written, by name; Ray Serve's words are taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skate.serve.config import (
    NOT_HERE,
    AutoscalingConfig,
    DeploymentOptions,
    HTTPOptions,
    from_dict,
    options_from,
    why_not_as,
)
from skate.serve.exceptions import NotSupportedError

NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", "a#b"),
        ("name", 5),
        ("name", "a\nb"),
        ("version", 3),
        ("num_replicas", -1),
        ("num_replicas", 1.5),
        ("num_replicas", True),
        ("num_replicas", "many"),
        ("ray_actor_options", 3),
        ("ray_actor_options", {"max_restarts": 3}),
        ("placement_group_bundles", {"CPU": 1}),
        ("placement_group_bundles", []),
        ("placement_group_strategy", "PACKED"),
        ("max_replicas_per_node", 0),
        ("max_ongoing_requests", 0),
        ("max_ongoing_requests", None),
        ("max_queued_requests", -2),
        ("autoscaling_config", 3),
        ("graceful_shutdown_timeout_s", -1),
        ("graceful_shutdown_wait_loop_s", "2"),
        ("health_check_period_s", 0),
        ("health_check_timeout_s", NAN),
    ],
)
def test_a_wrong_option_of_a_deployment_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises((TypeError, ValueError), match=name) as caught:
        options_from({name: value})
    assert "may" in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"min_replicas": -1},
        {"min_replicas": 3, "max_replicas": 2},
        {"max_replicas": 0},
        {"initial_replicas": 5},
        {"target_ongoing_requests": 0},
        {"upscale_delay_s": -1},
        {"downscale_delay_s": None},
        {"downscale_to_zero_delay_s": NAN},
        {"metrics_interval_s": 0},
        {"look_back_period_s": "long"},
        {"upscaling_factor": 0},
        {"downscaling_factor": True},
        {"policy": "mine"},
    ],
)
def test_a_wrong_setting_of_autoscaling_is_refused_by_name(given: dict[str, Any]) -> None:
    name = "max_replicas" if "max_replicas" in given else next(iter(given))
    with pytest.raises((TypeError, ValueError), match=f"AutoscalingConfig.*{name}"):
        options_from({"autoscaling_config": given})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", 5),
        ("port", 65536),
        ("port", "8000"),
        ("root_path", "api"),
        ("request_timeout_s", 0),
        ("keep_alive_timeout_s", None),
        ("header_timeout_s", -1),
        ("body_timeout_s", "x"),
        ("write_timeout_s", 0),
        ("max_body_bytes", -1),
        ("max_websocket_bytes", 65 << 20),
        ("max_header_bytes", 10),
        ("max_queued_requests", -1),
        ("token", ""),
        ("token", "ü"),
        ("show_tracebacks", "no"),
        ("allowed_origins", None),
        ("location", 3),
        ("num_cpus", "1"),
        ("ssl_keyfile", "key.pem"),
    ],
)
def test_a_wrong_option_of_http_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises((TypeError, ValueError), match=f"HTTPOptions.*{name}"):
        from_dict(HTTPOptions, {name: value})


def test_numbers_and_strings_of_numpy_become_those_of_python() -> None:
    scaling = {"max_replicas": np.int64(3), "target_ongoing_requests": np.float32(2)}
    deployment = options_from({
        "name": np.str_("a"), "max_ongoing_requests": np.int16(5), "health_check_period_s": np.float64(1.5),
        "user_config": np.float64(7), "autoscaling_config": scaling,
    })  # fmt: skip
    http = HTTPOptions(port=np.int64(80), keep_alive_timeout_s=np.float64(9), allowed_origins=(np.str_("https://a"),))
    config = deployment.autoscaling_config
    assert config is not None
    found = [deployment.name, deployment.max_ongoing_requests, deployment.health_check_period_s, config.max_replicas]
    found += [config.target_ongoing_requests, http.port, http.keep_alive_timeout_s, http.allowed_origins[0]]
    assert found == ["a", 5, 1.5, 3, 2.0, 80, 9.0, "https://a"]
    assert [type(each) for each in found] == [str, int, float, int, float, int, float, str]
    assert type(deployment.user_config) is np.float64


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(HTTPOptions(token="secret"))
    with pytest.raises(ValueError, match="token") as caught:
        HTTPOptions(token="secrét")
    assert "secr" not in str(caught.value)


def test_the_words_of_ray_serve_are_taken() -> None:
    options = options_from({
        "name": "Brain", "version": "1", "num_replicas": None, "ray_actor_options": {"num_cpus": 0.5},
        "placement_group_bundles": [{"CPU": 1}], "placement_group_strategy": "SPREAD", "max_replicas_per_node": None,
        "user_config": {"a": 1}, "max_ongoing_requests": 5, "max_queued_requests": -1,
        "autoscaling_config": {
            "min_replicas": 1, "initial_replicas": None, "max_replicas": 10, "target_ongoing_requests": 2,
            "metrics_interval_s": 10, "look_back_period_s": 30, "upscale_delay_s": 30, "downscale_delay_s": 600,
            "upscaling_factor": None, "downscaling_factor": None, "downscale_to_zero_delay_s": None,
        },
        "graceful_shutdown_wait_loop_s": 2, "graceful_shutdown_timeout_s": 20, "health_check_period_s": 10,
        "health_check_timeout_s": 30, "logging_config": None, "request_router_config": None,
    })  # fmt: skip
    assert options.scaling() == options.autoscaling_config
    assert options.max_ongoing_requests == 5
    assert HTTPOptions(host="0.0.0.0", port=9000, location="EveryNode", num_cpus=0, root_path="/api").port == 9000


@pytest.mark.parametrize("name", NOT_HERE)
@pytest.mark.parametrize("prefix", ["", "_"])
def test_what_is_not_there_says_so_and_what_to_do_instead(name: str, prefix: str) -> None:
    with pytest.raises(NotSupportedError, match=name) as caught:
        options_from({f"{prefix}{name}": object()})
    assert NOT_HERE[name] in str(caught.value)
    assert "next:" in str(caught.value)


def test_grpc_and_local_testing_are_not_there_and_say_so() -> None:
    from skate import serve

    with pytest.raises(NotSupportedError, match=r"gRPC(.|\n)*next:"):
        serve.start(grpc_options=object())
    with pytest.raises(NotSupportedError, match=r"local testing(.|\n)*next:"):
        serve.run(serve.deployment(lambda: 1).bind(), _local_testing_mode=True)


@pytest.mark.parametrize("name", ["gRPCOptions", "RequestRouterConfig"])
def test_what_ray_serve_configures_and_is_not_there_can_be_imported_and_says_so(name: str) -> None:
    from skate.serve import config

    with pytest.raises(NotSupportedError, match=r"(gRPC|request routers)(.|\n)*next: leave it out;"):
        getattr(config, name)(port=9000)


def test_an_option_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(TypeError, match=r"'num_replica'; it has .*num_replicas"):
        options_from({"num_replica": 3})
    with pytest.raises(ValueError, match=r"serve\.run\(app, route_prefix="):
        options_from({"route_prefix": "/x"})


def test_auto_is_1_to_100_replicas_where_autoscaling_config_says_nothing_else() -> None:
    assert options_from({"num_replicas": "auto"}).scaling() == AutoscalingConfig(max_replicas=100)
    both = options_from({"num_replicas": "auto", "autoscaling_config": {"min_replicas": 2}})
    assert both.scaling() == AutoscalingConfig(min_replicas=2, max_replicas=100)
    assert options_from({"num_replicas": 3}).scaling() is None


def test_a_number_of_replicas_and_autoscaling_contradict_each_other() -> None:
    with pytest.raises(ValueError, match=r"num_replicas=2 and autoscaling_config(.|\n)*next:"):
        DeploymentOptions(num_replicas=2, autoscaling_config=AutoscalingConfig())


def test_later_options_replace_earlier_ones_and_a_number_ends_autoscaling() -> None:
    first = options_from({"name": "a", "autoscaling_config": {"max_replicas": 3}, "max_ongoing_requests": 7})
    fixed = options_from({"num_replicas": 2}, first)
    assert (fixed.name, fixed.max_ongoing_requests, fixed.scaling()) == ("a", 7, None)
    scaled = options_from({"autoscaling_config": AutoscalingConfig(max_replicas=4)}, fixed)
    assert (scaled.num_replicas, scaled.scaling()) == (None, AutoscalingConfig(max_replicas=4))
    assert options_from({"ray_actor_options": None}, first).ray_actor_options == {}


@pytest.mark.parametrize("option", [{"max_replicas_per_node": 1}, {"placement_group_bundles": [{"CPU": 1}]}])
def test_what_says_where_a_replica_is_excludes_a_strategy_that_says_it_too(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option))} and the scheduling_strategy(.|\n)*next:"):
        options_from({**option, "ray_actor_options": {"scheduling_strategy": "SPREAD"}})


def test_http_is_the_same_if_its_port_is_the_one_that_was_free() -> None:
    there, address = HTTPOptions(port=0), ("127.0.0.1", 4321)
    assert why_not_as(HTTPOptions(port=0), there, address) == ""
    assert why_not_as(HTTPOptions(port=4321), there, address) == ""
    why = why_not_as(HTTPOptions(port=8000, token="t"), there, address)
    assert "127.0.0.1:4321, with another port, token.\n" in why


def test_bundles_and_a_number_for_each_node_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        options_from({"max_replicas_per_node": 1, "placement_group_bundles": [{"CPU": 1}]})
