"""`skate.collective`, where programs written for Ray look for it.

>>> from skate.util import collective
>>> collective.allreduce(array, group_name="weights")
"""

from skate.collective import *  # noqa: F403
from skate.collective import __all__ as __all__


def gloo_available() -> bool:
    """Whether backend="gloo" is accepted: it always is."""
    return True


def nccl_available() -> bool:
    """Whether arrays on GPUs can be reduced: they cannot."""
    return False
