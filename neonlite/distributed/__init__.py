"""Data parallel training in several processes, over MPI and NCCL.

``model.fit(X, y, distributed=True)`` trains in all processes that ``mpiexec`` has started; ``world()`` connects them.
"""

from typing import TYPE_CHECKING

from neonlite.distributed.communicator import Communicator, MPICommunicator, NcclCommunicator, world
from neonlite.distributed.optimizer import Distributed
from neonlite.name_hints import module_getattr

if TYPE_CHECKING:
    from neonlite.distributed.launch import launch as launch

__all__ = ["Communicator", "Distributed", "MPICommunicator", "NcclCommunicator", "launch", "world"]

if not TYPE_CHECKING:

    def __getattr__(name):
        if name == "launch":
            from neonlite.distributed.launch import launch

            return launch
        return module_getattr(__name__)(name)
