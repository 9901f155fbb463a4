"""`skate store`: what the control service of a cluster keeps, and where.

    status    asks the service that runs
    check     reads a store that no service has: what cannot be read, and what does not fit
    dump      its rows as JSON, a line each, without code, pickled values and variables of the environment
    wipe      removes it

A service has its store for itself, so the last three ask for the store of one that does not run, and name the process
if it does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from skate.cli.asking import ask_cluster
from skate.cli.parser import PORT, show_address
from skate.cli.running import find_running
from skate.cli.start import MEMORY, STORE_PARENT, STORE_VARIABLE
from skate.cli.stop import store_of
from skate.cli.trouble import Trouble
from skate.cli.views import bytes_text, clock_text, count_text, duration_text, table_text

if TYPE_CHECKING:
    from skate._control.inspection import BadRow, Records
    from skate._control.storage.sqlite import SqliteStorage

SURVIVES = {"power": "what is acknowledged survives power loss", "process": "what is acknowledged survives kill -9"}


# -- status ------------------------------------------------------------------------------------------------------------


def status(options: argparse.Namespace) -> int:
    where, asking = ask_cluster(options)
    with asking:
        about = asking.ask("store")
    if options.json:
        print(json.dumps({"address": show_address(where), **about}, indent=2))
        return 1 if about["trouble"] else 0
    age = duration_text(time.time() - about["began_at"])
    print(f"Store of cluster {about['cluster_id']} at {show_address(where)}, begun {age} ago.\n")
    if about["engine"] == "none":
        print("The state is in the memory of the control service, and ends with it.")
        return 0
    survives = SURVIVES.get(about["survives"], "")
    print(f"engine   {about['engine']}{': ' if survives else ''}{survives}; schema {about['schema']}")
    members = [(at, shard, member) for at, shard in enumerate(about["shards"]) for member in shard["members"]]
    if len(members) == 1:
        _, _, member = members[0]
        print(f"where    {member['address']}, {bytes_text(member['size_bytes'])}")
    print(f"service  number {about['incarnation']} of this cluster")
    print(f"waiting  {_waiting(about)}")
    if trouble := about["trouble"]:
        since = f"{clock_text(trouble['since'])}, tried {count_text(trouble['attempts'], 'time')}"
        print(f"trouble  since {since}: {trouble['what']} {trouble['why']}")
        print(f"         next: {trouble['next']}")
    else:
        print("trouble  none")
    if len(members) > 1:
        rows = [
            [
                str(at),
                member["address"],
                member["state"],
                str(shard["epoch"]),
                str(member["lag"]),
                bytes_text(member["size_bytes"]),
            ]
            for at, shard, member in members
        ]
        print("\n" + table_text(["shard", "member", "state", "epoch", "behind", "size"], rows))
    if about["tables"] is None and about["engine"] == "redis":
        print("\nHow much the tables hold is not counted: that would take the time of the servers.")
    elif about["tables"] is None:
        print("\nThe disk is busy: how much the tables hold cannot be told now.")
    else:
        print("\n" + _sizes({name: (each["rows"], each["size_bytes"]) for name, each in about["tables"].items()}))
    if about["events"]:
        print("\n" + table_text(["when", "what happened"], [[clock_text(e["at"]), e["text"]] for e in about["events"]]))
    return 1 if about["trouble"] else 0


def _waiting(about: dict[str, Any]) -> str:
    if not about["waiting"]:
        return "nothing"
    return (
        f"{count_text(about['waiting'], 'batch', 'batches')} with {bytes_text(about['waiting_bytes'])} to be written, "
        f"and {count_text(about['messages_waiting'], 'message')} to be sent after that"
    )


def _sizes(tables: dict[str, tuple[int, int]]) -> str:
    if not tables:
        return "No rows."
    rows = [[name, str(number), bytes_text(size_bytes)] for name, (number, size_bytes) in tables.items()]
    return table_text(["table", "rows", "size"], rows)


# -- which store -------------------------------------------------------------------------------------------------------


def directory_of(given: str | None) -> str:
    """The store that a command is about: that which was named, of the cluster that runs here, or of `skate start`."""
    named = given or _of_running() or os.environ.get(STORE_VARIABLE) or ""
    if named == MEMORY or "://" in named:
        raise Trouble(f"the store {named!r} is no directory.", "name the directory of a store with --store DIR.")
    default = os.path.expanduser(os.path.join(STORE_PARENT, str(PORT)))
    path = os.path.abspath(os.path.expanduser(named)) if named else default
    if os.path.exists(os.path.join(path, _file_name())):
        return path
    parent = os.path.expanduser(STORE_PARENT)
    others = [os.path.join(parent, name) for name in sorted(os.listdir(parent))] if os.path.isdir(parent) else []
    others = [other for other in others if os.path.exists(os.path.join(other, _file_name()))]
    raise Trouble(
        f"there is no store in {path}.",
        f"--store names another one{': ' if others else '.'}{', '.join(others)}",
    )


def _file_name() -> str:
    from skate._control.storage.sqlite_file import FILE_NAME

    return FILE_NAME


def _of_running() -> str:
    services = [process for process in find_running() if process.kind == "control"]
    stores = list(dict.fromkeys(filter(None, map(store_of, services))))
    if len(stores) > 1:
        raise Trouble(
            f"the clusters that run here have {len(stores)} stores: {', '.join(stores)}.", "say which: --store DIR"
        )
    if services and not stores:
        raise Trouble("the cluster that runs here keeps its state in memory.", "name a directory with --store DIR.")
    return stores[0] if stores else ""


@contextlib.contextmanager
def opened(path: str, *, inspect: bool = True) -> Iterator[SqliteStorage]:
    """A store that no service has, with all that can be read of it. Raises Trouble."""
    from skate._control.storage.errors import StorageError, StorageLocked
    from skate._control.storage.sqlite import SqliteStorage

    try:
        storage = SqliteStorage(path, inspect=inspect, must_exist=True, skip_damaged=True, holder="`skate store`")
    except StorageLocked as error:
        raise Trouble(
            f"{error.what} {error.why}",
            "`skate store status` asks a service that runs; `skate stop --keep` ends it, and its cluster is kept.",
        ) from None
    except StorageError as error:
        raise Trouble(f"{error.what} {error.why}", error.next) from None
    try:
        yield storage
    except StorageError as error:
        raise Trouble(f"{error.what} {error.why}", error.next) from None
    finally:
        storage.close()


# -- check -------------------------------------------------------------------------------------------------------------


def check(options: argparse.Namespace) -> int:
    from skate._control.inspection import BadRow, dangling, read

    path = directory_of(options.store)
    with opened(path) as storage:
        records, bad = read(storage)
        bad = [BadRow(error.table, error.key, error.why) for error in storage.damaged] + bad
        problems, facts = storage.problems, list(dangling(records))
        sizes = {name: (size.rows, size.size_bytes) for name, size in (storage.describe().tables or {}).items()}
        meta = storage.meta
    if options.json:
        found = {
            "path": path,
            "cluster_id": meta.cluster_id,
            "created_at": meta.created_at,
            "tables": {name: {"rows": rows, "size_bytes": size_bytes} for name, (rows, size_bytes) in sizes.items()},
            "problems": problems,
            "bad_rows": [{"table": row.table, "key": row.key.hex(), "why": row.why} for row in bad],
            "dangling": facts,
        }
        print(json.dumps(found, indent=2))
    else:
        print(f"The store {path} of cluster {meta.cluster_id}, made {clock_text(meta.created_at)}.\n")
        print(_sizes(sizes))
        print()
        _tell_findings(problems, bad, facts)
    if options.remove and bad:
        _remove(path, bad)
        return 0
    return 1 if problems or bad or facts else 0


def _tell_findings(problems: list[str], bad: list[BadRow], facts: list[str]) -> None:
    from skate._control.inspection import text_of

    if not problems and not bad and not facts:
        print("All rows can be read, and fit together.")
    for text in problems:
        print(f"The file is damaged: {text}")
    for row in bad:
        print(f"Cannot be read: the row {text_of(row.key)} of the table {row.table}. {row.why}")
    for text in facts:
        print(text)
    if facts:
        print("\nThe control service copes with facts that do not fit when it starts.")
    if bad:
        print(
            "\nThe control service does not start with rows that cannot be read. `skate store dump` saves the others,"
        )
        print("and `skate store check --remove` takes these out: what they say is lost then.")
    if problems:
        print("\nBring back a copy of the whole directory, or save what can be read with `skate store dump`.")


def _remove(path: str, bad: list[BadRow]) -> None:
    from skate._control.storage.interface import Delete

    with opened(path, inspect=False) as storage:
        for row in bad:
            storage.write([Delete(row.table, row.key)])
        if not storage.flush(FLUSH_S) and storage.trouble is not None:
            raise storage.trouble.error
    print(f"Removed {count_text(len(bad), 'row')} that could not be read.")


#: How long a store may take to be written.
FLUSH_S = 10.0


# -- dump --------------------------------------------------------------------------------------------------------------


def dump(options: argparse.Namespace) -> int:
    from skate._control.inspection import read, readable
    from skate._control.state import tables

    unknown = [name for name in options.tables if name not in tables.ALL]
    if unknown:
        raise Trouble(f"there is no table {unknown[0]!r}.", f"there are: {', '.join(tables.ALL)}.")
    with opened(directory_of(options.store)) as storage:
        records: Records
        records, bad = read(storage)
        missing = len(bad) + len(storage.damaged)
    for table in options.tables or tables.ALL:
        for key, record in records.get(table, {}).items():
            print(json.dumps(readable(table, key, record)))
    if missing:
        sys.stdout.flush()
        raise Trouble(f"{count_text(missing, 'row')} could not be read.", "`skate store check` names them.")
    return 0


# -- wipe --------------------------------------------------------------------------------------------------------------


def wipe(options: argparse.Namespace) -> int:
    from skate._control.opening import remove_store
    from skate._control.storage.errors import StorageCorrupt, StorageError, StorageLocked, StorageOfOtherProgram
    from skate._control.storage.sqlite import SqliteStorage

    path = directory_of(options.store)
    word, what = "wipe", "a store that cannot be read"
    try:
        storage = SqliteStorage(path, inspect=True, must_exist=True, skip_damaged=True, holder="`skate store`")
    except (StorageLocked, StorageOfOtherProgram) as error:
        next = "`skate stop` ends the cluster." if isinstance(error, StorageLocked) else error.next
        raise Trouble(f"{error.what} {error.why}", next) from None
    except StorageCorrupt:
        pass
    except StorageError as error:
        raise Trouble(f"{error.what} {error.why}", error.next) from None
    else:
        word = storage.meta.cluster_id
        rows = sum(size.rows for size in (storage.describe().tables or {}).values())
        age = duration_text(time.time() - storage.meta.created_at)
        what = f"the store of cluster {word}, begun {age} ago, with {count_text(rows, 'row')}"
        storage.close()
    if not options.yes:
        print(f"{path} has {what}.")
        print(
            "Actors, placement groups, keys and jobs that it knows are lost with it, and the next head that is started"
        )
        print("with it begins a new cluster.")
        print(f"Type {word} to remove it: ", end="", flush=True)
        if sys.stdin.readline().strip() != word:
            print()
            raise Trouble("nothing was removed.", f"type {word}, or say --yes.")
    try:
        remove_store(path)
    except StorageError as error:
        raise Trouble(f"{error.what} {error.why}", error.next) from None
    except OSError as error:
        raise Trouble(f"the store {path} cannot be removed: {error.strerror}.") from None
    print(f"Removed {what}.")
    return 0
