"""Callbacks of Dask on Skate, where programs written for Ray look for them."""

from skate.util.dask import RayDaskCallback

__all__ = ["RayDaskCallback"]
