"""PyTorch's ``torch.distributed.algorithms.model_averaging``, run natively.

Change the import and leave the rest of a script as it is::

    from gradwire.model_averaging import averagers
"""

from .._torch import hand_on
from . import averagers, hierarchical_model_averager, utils

__all__ = ["averagers", "hierarchical_model_averager", "utils"]

__getattr__ = hand_on(__name__)
