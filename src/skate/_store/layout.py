"""The bytes of a node's arena: one sparse memory file, mapped by every process of the node.

    OFFSET          SIZE                 DESCRIPTION
    0               HEAD_BYTES (1 MiB)   process slots: SLOT_COUNT (16,384) of SLOT_BYTES (64) each; memory is used for
                                         those of processes that there have been
    HEAD_BYTES      to arena_bytes       objects, each on a multiple of ALIGNMENT; the daemon says who may use what
    arena_bytes     to names_offset      never touched, so it costs address space and no memory
    names_offset    NAMES_BYTES          SLOT_COUNT names of NAME_BYTES (96) each, one for each process slot; memory is
                                         used as for the slots

    OFFSET  SIZE  process slot
    0       20    id of the first return of the task that the process runs now; zeros: none. The worker writes it
                  before each task, and the daemon reads it after the worker's death, to say what it died of.
    20      20    the same of the task that it ran last, while it runs none: its result may not have left yet.
    40      24    unused; keeps slots of different processes in different cache lines

The name of a process is that of the task that it runs or has run last, or of the class of the actor that it is: in
UTF-8, filled up with zeros. The worker writes it before a task that has another name than the last one. The daemon
reads it when native code or a child process has printed something, to say who did.

The untouched tail is there because a process looks at an object through a ctypes array whose length is a power of two
not below the object's size (an array type per power of two, instead of one for every size that was ever seen). Such
an array may reach past the end of the last object, so the mapping has to go on that far.
"""

from __future__ import annotations

#: Where the objects begin.
HEAD_BYTES = 1 << 20
#: One slot a process, each in a cache line of its own.
SLOT_BYTES = 64
#: So many processes of a node can have a slot at the same time: as many as there can be with 32,768 threads, which is
#: what Linux allows if it is not told otherwise.
SLOT_COUNT = HEAD_BYTES // SLOT_BYTES
#: Size of either field of a slot: an object id (`_core.ids.OBJECT_BYTES`).
SLOT_TASK_BYTES = 20
#: The longest name, in bytes; a longer one is cut.
NAME_BYTES = 96
NAMES_BYTES = SLOT_COUNT * NAME_BYTES
#: Every object starts on a multiple of this: a cache line, and what vector instructions like best.
ALIGNMENT = 64


def slot_offset(slot: int) -> int:
    """Where process slot number `slot` begins."""
    if not 0 <= slot < SLOT_COUNT:
        raise ValueError(f"there is no process slot {slot}: a node has slots 0 to {SLOT_COUNT - 1}")
    return slot * SLOT_BYTES


def slot_fields(arena: memoryview, slot: int) -> tuple[memoryview, memoryview]:
    """The two fields of a process slot: the task that runs, and the one that ran last."""
    at = slot_offset(slot)
    return arena[at : at + SLOT_TASK_BYTES], arena[at + SLOT_TASK_BYTES : at + 2 * SLOT_TASK_BYTES]


def name_offset(arena_bytes: int, slot: int) -> int:
    """Where the name of the process in slot number `slot` begins in the file."""
    slot_offset(slot)
    return names_offset(arena_bytes) + slot * NAME_BYTES


def format_name(name: str) -> bytes:
    """The name of a process as it is in the file."""
    return name.encode("utf-8", "backslashreplace")[:NAME_BYTES].ljust(NAME_BYTES, b"\0")


def parse_name(field: bytes) -> str:
    """The name of a process from the file; "" if it has none."""
    return field.rstrip(b"\0").decode("utf-8", "ignore")


def align(size: int) -> int:
    """The space that an object of `size` bytes takes up."""
    return (size + ALIGNMENT - 1) & -ALIGNMENT


def view_bytes(size: int) -> int:
    """The length of the array through which a process looks at an object: the next power of two."""
    return 1 << max(size - 1, 0).bit_length()


def names_offset(arena_bytes: int) -> int:
    """Where the names of processes begin in the file: behind the largest view of an object at the last offset."""
    return align(arena_bytes + view_bytes(arena_bytes))


def arena_file_bytes(arena_bytes: int) -> int:
    """The length of the file and of its mapping."""
    return names_offset(arena_bytes) + NAMES_BYTES
