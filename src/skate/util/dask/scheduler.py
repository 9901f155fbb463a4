"""The scheduler of Dask on Skate, where programs written for Ray look for it."""

from skate.util.dask import (
    disable_dask_on_ray,
    enable_dask_on_ray,
    ray_dask_get,
    ray_dask_get_sync,
    ray_dask_persist,
)

__all__ = ["disable_dask_on_ray", "enable_dask_on_ray", "ray_dask_get", "ray_dask_get_sync", "ray_dask_persist"]
