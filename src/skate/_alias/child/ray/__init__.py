"""Skate under Ray's name, in an interpreter that `multiprocessing` has started for a program with the alias."""

import sys

from skate._alias.finder import activate

_skate_alias = True
activate(module=sys.modules[__name__])
