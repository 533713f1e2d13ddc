"""Native communication hooks for PyTorch's DistributedDataParallel.

Attach a compressing hook::

    ddp = torch.nn.parallel.DistributedDataParallel(model)
    gradwire.attach(ddp, "int8")

Or change one import of a script that uses PyTorch's hooks::

    from gradwire.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
"""

from . import _versions
from ._build import VERSION as __version__

_versions.check_torch()

from ._attach import (  # noqa: E402
    attach,
    hook_state_dict,
    hooks,
    load_hook_state,
    load_hook_state_dict,
    save_hook_state,
    stats,
)
from ._collectives import compressed_all_reduce  # noqa: E402

__all__ = [
    "__version__",
    "attach",
    "compressed_all_reduce",
    "hook_state_dict",
    "hooks",
    "load_hook_state",
    "load_hook_state_dict",
    "save_hook_state",
    "stats",
]
