"""Data parallel training in several processes, over MPI and NCCL.

``model.fit(X, y, distributed=True)`` trains in all processes that ``mpiexec`` has started; ``world()`` connects them.
"""

from typing import TYPE_CHECKING

from neonlite.backend.objects import declare_builtin
from neonlite.distributed.communicator import Communicator, MPICommunicator, NcclCommunicator, world
from neonlite.distributed.launcher import launch
from neonlite.distributed.optimizer import Distributed
from neonlite.name_hints import module_getattr

__all__ = ["Communicator", "Distributed", "MPICommunicator", "NcclCommunicator", "launch", "world"]

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__)

declare_builtin([Distributed])
