"""The steps that hamilton_graph.py runs: each function is a node of the graph, and its arguments name other nodes."""

import os

import pandas as pd
from hamilton.htypes import Collect, Parallelizable


def column(start: int) -> pd.Series:
    return pd.Series(range(start, start + 5))


def doubled(column: pd.Series) -> pd.Series:
    return column * 2


def shifted(column: pd.Series, start: int) -> pd.Series:
    return column + start


def joined(doubled: pd.Series, shifted: pd.Series) -> pd.DataFrame:
    return pd.DataFrame({"doubled": doubled, "shifted": shifted})


def process(joined: pd.DataFrame) -> int:
    return os.getpid()


def number(start: int) -> Parallelizable[int]:
    yield from range(start)


def square(number: int) -> tuple:
    return number * number, os.getpid()


def squares(square: Collect[tuple]) -> list:
    return sorted(square)
