"""Where the limits of a process's control groups stand, and what they say. Pure: texts in, paths and numbers out.

A container, a batch job or a systemd unit is a control group: a folder in a file system of the kernel, whose files say
how much memory and how many CPUs its processes may use together. There are two versions. In version 2 one tree has all
controllers; in version 1 each controller (memory, cpu) has a tree of its own; a hybrid system mounts both.

`/proc/self/cgroup` says which group of each tree a process is in, and `/proc/self/mountinfo` where the trees are
mounted. A container may see only a part of a tree: then the root of the mount is a group too, and the path of the
process is to be read relative to it. A limit of a group holds for all groups below it, so the effective limit is the
smallest among the process's group and all its ancestors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

#: A limit of at least this many bytes is the kernel's way to say that there is none.
NO_LIMIT_BYTES = 1 << 60
#: File systems that keep their files in memory.
IN_MEMORY = ("tmpfs", "ramfs")
#: Where the trees usually are, for systems that do not say.
USUAL = "/sys/fs/cgroup"
_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


class Mount(NamedTuple):
    """A mounted file system."""

    kind: str
    #: The part of the file system that is mounted, and where.
    root: str
    point: str
    options: frozenset[str]


class Group(NamedTuple):
    """A control group that a process is in."""

    version: int
    #: Its folder.
    folder: str


def parse_mounts(mountinfo: str) -> list[Mount]:
    """The lines of `/proc/self/mountinfo`, in its order: a later mount hides an earlier one at the same point."""
    mounts = []
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if separator and len(fields) >= 5 and len(rest) >= 3:
            mounts.append(Mount(rest[0], _unescape(fields[3]), _unescape(fields[4]), frozenset(rest[2].split(","))))
    return mounts


def parse_membership(cgroup: str) -> dict[str, str]:
    """The lines of `/proc/self/cgroup`: controller → path of the group. The tree of version 2 is the controller ""."""
    paths = {}
    for line in cgroup.splitlines():
        _number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def groups_of(controller: str, paths: dict[str, str], mounts: Iterable[Mount]) -> list[Group]:
    """The groups whose files may limit the process: its own in each version, then their ancestors, up to the mount."""
    found: dict[Group, None] = {}
    trees = list(mounts)
    for version, name in ((2, ""), (1, controller)):
        if name not in paths:
            continue
        for mount in _trees(version, controller, trees):
            path = _relative(paths[name], mount.root)
            while path:
                found[Group(version, mount.point + path)] = None
                path = path.rpartition("/")[0]
            found[Group(version, mount.point)] = None
    return list(found)


def _trees(version: int, controller: str, mounts: list[Mount]) -> list[Mount]:
    if version == 2:
        said = [mount for mount in mounts if mount.kind == "cgroup2"]
        usual = [USUAL, f"{USUAL}/unified"]
    else:
        said = [mount for mount in mounts if mount.kind == "cgroup" and controller in mount.options]
        usual = [f"{USUAL}/{controller}", f"{USUAL}/cpu,cpuacct"] if controller == "cpu" else [f"{USUAL}/{controller}"]
    return said or [Mount("", "/", point, frozenset()) for point in usual]


def _relative(path: str, root: str) -> str:
    """The path of a group below the part of the tree that is mounted; "" if that is the group, or it is outside."""
    path, root = path.rstrip("/"), root.rstrip("/")
    # A process that was moved out of its container's own part of the tree sees a path such as "/../other".
    if ".." in path.split("/") or not (path == root or path.startswith(f"{root}/")):
        return ""
    return path[len(root) :]


def memory_limit(text: str) -> int | None:
    """The limit that `memory.max` or `memory.limit_in_bytes` names, in bytes; None: there is none."""
    text = text.strip()
    if not text.isdigit() or int(text) >= NO_LIMIT_BYTES:
        return None
    return int(text)


def limit_from_above(statistics: str) -> int | None:
    """The least limit of a group of version 1 and of all groups above it, also of those that a container cannot see."""
    for line in statistics.splitlines():
        name, _, amount = line.partition(" ")
        if name == "hierarchical_memory_limit":
            return memory_limit(amount)
    return None


def memory_used(usage: str, statistics: str) -> int:
    """Bytes that a group uses, without cached files: the kernel takes those back when it has to."""
    cached: dict[str, int] = {}
    for line in statistics.splitlines():
        name, _, amount = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):  # of version 1 the second counts: with groups below it
            cached[name] = int(amount)
    return max(0, int(usage) - cached.get("total_inactive_file", cached.get("inactive_file", 0)))


def cpu_limit(quota: str, period: str) -> int | None:
    """CPUs that a quota of time is worth, rounded up and at least 1; None: there is no limit."""
    try:
        allowed, of = int(quota), int(period)
    except ValueError:  # "max"
        return None
    return max(1, math.ceil(allowed / of)) if allowed > 0 and of > 0 else None


def is_in_memory(path: str, mounts: Iterable[Mount]) -> bool:
    """Whether files at this absolute path take up memory rather than a disk."""
    found = Mount("", "", "", frozenset())
    for mount in mounts:
        below = mount.point.rstrip("/") + "/"
        if f"{path}/".startswith(below) and len(mount.point) >= len(found.point):
            found = mount
    return found.kind in IN_MEMORY


def _unescape(path: str) -> str:
    if "\\" in path:
        for escape, character in _ESCAPES.items():
            path = path.replace(escape, character)
    return path
