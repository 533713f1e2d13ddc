"""PyTorch's ``torch.distributed.optim`` with optimizers that run natively.

Change the import and leave the rest of a script as it is::

    from gradwire.optim import PostLocalSGDOptimizer
"""

import importlib
import pkgutil
import sys

import torch.distributed.optim as _theirs

from .._torch import hand_on
from .diloco import DiLoCo
from .post_localSGD_optimizer import PostLocalSGDOptimizer

__all__ = ["DiLoCo", "PostLocalSGDOptimizer"]

__getattr__ = hand_on(__name__)

# Modules without one of ours are PyTorch's, which its package has imported.
for _module in pkgutil.iter_modules(_theirs.__path__):
    sys.modules.setdefault(
        f"{__name__}.{_module.name}",
        importlib.import_module(f"{_theirs.__name__}.{_module.name}"),
    )
