"""Arguments that calls take for programs written for Ray and that change nothing, and why.

`_options.py` has those among the options of tasks and actors. The tables in docs/init.md and docs/coming-from-ray.md
repeat these words, and a test compares them.
"""

from __future__ import annotations

#: By call, the arguments and the reasons. `init` and `Cluster.add_node` take all others that begin with `_`, too.
NO_EFFECT: dict[str, dict[str, str]] = {
    "init": {
        "include_dashboard": "there is no dashboard",
        "dashboard_host": "there is no dashboard",
        "dashboard_port": "there is no dashboard",
        "logging_format": "`logging_config` says how records look",
        "allow_multiple": "a program has one runtime",
        "proxy_server_url": "there is no dashboard to put a proxy in front of",
        "enable_resource_isolation": "Skate makes no control groups",
        "cgroup_path": "Skate makes no control groups",
        "system_reserved_cpu": "Skate makes no control groups",
        "system_reserved_memory": "Skate makes no control groups",
        "_system_config": "settings of Ray's own processes",
    },
    "get": {
        "_use_object_store": "a value comes from where it is",
    },
    "put": {
        "_owner": "the process that calls `put` owns the object; other values than None are a `ValueError`",
        "_tensor_transport": "objects travel through the object store",
    },
    "NodeAffinitySchedulingStrategy": {
        "_spill_on_unavailable": "work goes elsewhere if the node can never run it, not if the node is busy",
        "_fail_on_unavailable": "work waits until the node has room for it",
    },
}
