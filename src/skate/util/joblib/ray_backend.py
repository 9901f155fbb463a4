"""The backend of joblib, where programs written for Ray look for it."""

from skate.util.joblib import SkateBackend as RayBackend

__all__ = ["RayBackend"]
