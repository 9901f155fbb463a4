"""The type of references, where programs written for Ray look for it when they annotate."""

from skate._object_ref import ObjectRef

__all__ = ["ObjectRef"]
