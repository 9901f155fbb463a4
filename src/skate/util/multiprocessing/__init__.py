"""A drop-in for `multiprocessing.Pool`, whose processes are workers of Skate.

>>> from skate.util.multiprocessing import Pool
>>> with Pool() as pool:
...     pool.map(abs, [-1, -2])
[1, 2]
"""

from multiprocessing import JoinableQueue, TimeoutError

from skate.util.multiprocessing.pool import AsyncResult, IMapIterator, Pool

__all__ = ["AsyncResult", "IMapIterator", "JoinableQueue", "Pool", "TimeoutError"]
