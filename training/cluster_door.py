"""The one way to Ray, which is an extra: imported when it is wanted, and never without a token."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.cluster import RayEngine


def import_ray_engine() -> Callable[..., AbstractContextManager[RayEngine]]:
    """:func:`training.cluster.ray_engine`, with token authentication on.

    Without a token anybody who reaches the ports can run code here. Ray reads this when it is
    imported, and whoever has imported it before has decided.

    Raises:
        ModuleNotFoundError: Ray is not installed.
    """
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    from training.cluster import ray_engine

    return ray_engine
