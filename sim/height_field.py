"""Ground that is not level: heights on a grid, and what lies between its points.

A grid point has its height, and every cell is two triangles that meet on the diagonal from its
corner of least x and y to that of most; MuJoCo's height fields are the same surface, and so is one
of PyBullet that is turned by a quarter (:mod:`sim.pybullet_ground`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class HeightField:
    """Heights of the ground about the world's origin, level from its edge on.

    Args:
        heights: ``[Y, X]`` of grid points [m], Y and X at least 2; along y, then x. They are
            rounded to 32 bits, which is what engines keep.
        cell_m: distance of neighbouring points [m].

    Attributes:
        heights: as given, rounded.
        cell_m: see above.
        half_m: ``[2]`` half of its size along x and y [m].
    """

    def __init__(self, heights: Array, *, cell_m: float) -> None:
        self.heights: Array = np.asarray(heights, dtype=np.float32).astype(np.float64)
        self.cell_m = cell_m
        rows, columns = self.heights.shape
        self._last: Array = np.array([columns - 1.0, rows - 1.0])
        self.half_m: Array = 0.5 * cell_m * self._last

    def at(self, xy: Array) -> Array:
        """``[...]`` heights at ``xy [..., 2]`` [m]; NaN where a position is not finite.

        Beyond the edge the ground is as high as at the nearest point of the edge.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            place = np.clip((xy + self.half_m) / self.cell_m, 0.0, self._last)  # keeps NaN
            corner = np.minimum(np.nan_to_num(place), self._last - 1.0).astype(np.intp)
            a, b = np.moveaxis(place - corner, -1, 0)
        i, j = corner[..., 0], corner[..., 1]
        h = self.heights
        low, high = h[j, i], h[j + 1, i + 1]
        # Over the diagonal lies the triangle with the corner (0, 1), under it that with (1, 0).
        over = b > a
        third = np.where(over, h[j + 1, i], h[j, i + 1])
        near, far = np.where(over, a, b), np.where(over, b, a)  # near <= far
        # h = low + far (third - low) + near (high - third)
        return low + far * (third - low) + near * (high - third)

    def highest(self, xy: Array, *, within_m: float) -> Array:
        """``[n]`` highest grid point in squares about ``xy [n, 2]`` [m].

        Args:
            xy: their middles.
            within_m: half of a side; rounded up to whole cells.
        """
        reach = int(np.ceil(within_m / self.cell_m - 1e-9))
        middle = np.rint((xy + self.half_m) / self.cell_m).astype(np.intp)
        around = np.arange(-reach, reach + 1)
        rows, columns = self.heights.shape
        i = np.clip(middle[:, 0, None] + around, 0, columns - 1)
        j = np.clip(middle[:, 1, None] + around, 0, rows - 1)
        return self.heights[j[:, :, None], i[:, None, :]].max(axis=(1, 2))

    def piece(self, centre: Array, *, half_m: float) -> tuple[Array, Array]:
        """A square piece of the grid.

        Args:
            centre: ``[2]`` its middle [m].
            half_m: half of its side [m], rounded to whole cells.

        Returns:
            Heights ``[R, C]``, cut off at the edge of the field, and the middle ``[2]`` of what
            is left [m].
        """
        low = np.rint((centre - half_m + self.half_m) / self.cell_m).astype(int)
        high = np.rint((centre + half_m + self.half_m) / self.cell_m).astype(int)
        low, high = np.maximum(low, 0), np.minimum(high, self._last.astype(int))
        middle = 0.5 * (low + high) * self.cell_m - self.half_m
        return self.heights[low[1] : high[1] + 1, low[0] : high[0] + 1], middle
