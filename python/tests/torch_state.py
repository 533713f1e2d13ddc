"""PyTorch's PowerSGDState, which wants numpy for a random number."""

import contextlib
import sys
import types
from unittest import mock


@contextlib.contextmanager
def without_numpy():
    class RandomState:
        def __init__(self, seed):
            pass

        def randint(self, most):
            return 5

    numpy = types.SimpleNamespace(random=types.SimpleNamespace(RandomState=RandomState))
    with mock.patch.dict(sys.modules, {"numpy": numpy}):
        yield
