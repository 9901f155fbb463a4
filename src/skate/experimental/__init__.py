"""Corners of Ray that its own libraries use and that others have taken up: bars, keys, places of objects.

>>> from skate.experimental import get_object_locations, tqdm_ray
"""

from skate.experimental.locations import get_local_object_locations, get_object_locations

__all__ = ["get_local_object_locations", "get_object_locations", "internal_kv", "tqdm_ray"]


def __getattr__(name: str) -> object:
    if name in ("internal_kv", "locations", "tqdm_ray"):
        import importlib

        return importlib.import_module(f"skate.experimental.{name}")
    import sys

    from skate._alias.absent import missing

    raise missing(sys.modules[__name__], name, f"; it has {', '.join(__all__)}.")
