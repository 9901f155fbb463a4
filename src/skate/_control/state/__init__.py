"""What a cluster as a whole knows: one pure machine, `control.Control`, over several tables.

Events come in with the time, commands go out (`steps.py`). The machine opens nothing, sends nothing and never asks what
time it is. It speaks the messages of the protocol, which is why it lies here and not in `_core`.
"""
