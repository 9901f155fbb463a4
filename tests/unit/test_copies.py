"""Which nodes are known to have a copy of an object."""

from __future__ import annotations

from skate._core.copies import Copies, nearest
from skate._core.ids import place_of


def test_where_an_object_was_read_there_is_a_copy_until_it_is_freed() -> None:
    copies = Copies()
    read = (b"x", place_of(2, 100))
    assert copies.inputs([read]) == [(100, [2])]
    copies.learn([read], 3)
    copies.learn([read], 1)
    copies.learn([read], 2)
    assert copies.inputs([read]) == [(100, [2, 1, 3])]
    copies.forget(b"x")
    assert copies.inputs([read]) == [(100, [2])]


def test_the_nearest_node_has_most_of_the_bytes_and_is_this_one_if_it_can_be() -> None:
    assert nearest([(10, [2]), (5, [3])], here=1) == 2
    assert nearest([(10, [2, 1]), (5, [3])], here=1) == 1
    assert nearest([(10, [2]), (6, [3]), (6, [3])], here=1) == 3
