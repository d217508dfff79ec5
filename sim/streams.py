"""Random streams: one generator per world and purpose, all from one root seed.

World i draws the same numbers whatever the other worlds do, and switching one purpose off (say,
sensor noise) does not shift the draws of another (say, commands).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Generators = list[np.random.Generator]

#: Purposes in the order in which their streams are spawned. Append only: the order is part of
#: what a seed means.
PURPOSES = ("start", "command", "domain", "sensor")

_MASK = (1 << 64) - 1


def world_seeds(
    seed: int, num: int, *, stream: tuple[int, int] = (0, 0)
) -> list[dict[str, np.random.SeedSequence]]:
    """Seeds of every world and purpose.

    Args:
        seed: root seed of the run, >= 0.
        num: N worlds.
        stream: (worker, restart). Workers of one run, and a worker that was started again, share
            the seed and differ here, so that none repeats what another drew. The key has a fixed
            length, as keys of different lengths could meet.

    Returns:
        N mappings from purpose to seed sequence. ``SeedSequence.spawn_key`` keeps all of them
        apart, unlike ``seed + i``, with which the runs 0 and 1 share all streams but one.

    Raises:
        ValueError: the seed is negative.
    """
    if seed < 0:
        raise ValueError(f"seed is {seed}; expected a whole number >= 0")
    return [
        {
            purpose: np.random.SeedSequence(seed, spawn_key=(*stream, world, index))
            for index, purpose in enumerate(PURPOSES)
        }
        for world in range(num)
    ]


def make_streams(
    seed: int | Sequence[int], num: int, *, stream: tuple[int, int] = (0, 0)
) -> dict[str, Generators]:
    """One list of N generators per purpose; see :func:`world_seeds`.

    With N seeds world i draws what the only world of an env with ``seed[i]`` draws.

    Raises:
        ValueError: a seed is negative, or there are not N.
    """
    if isinstance(seed, int | np.integer):
        seeds = world_seeds(int(seed), num, stream=stream)
    elif len(seed) != num:
        raise ValueError(f"{len(seed)} seeds for {num} worlds; expected one for each")
    else:
        seeds = [world_seeds(int(each), 1, stream=stream)[0] for each in seed]
    return {
        purpose: [np.random.Generator(np.random.PCG64(world[purpose])) for world in seeds]
        for purpose in PURPOSES
    }


def reseed(generators: Generators, other: Generators) -> None:
    """Replace the generators of a list by others; whoever holds the list draws from those."""
    if len(generators) != len(other):
        raise ValueError(f"{len(other)} generators for a list of {len(generators)}")
    generators[:] = other


def restart(
    streams: Mapping[str, Generators],
    seed: int | Sequence[int],
    *,
    stream: tuple[int, int] = (0, 0),
) -> None:
    """Begin all streams of :func:`make_streams` anew, from another seed or one for each world."""
    num = len(next(iter(streams.values())))
    for purpose, fresh in make_streams(seed, num, stream=stream).items():
        reseed(streams[purpose], fresh)


def pack_streams(generators: Sequence[np.random.Generator]) -> NDArray[np.uint64]:
    """State of N PCG64 generators as ``[N, 6]`` uint64, which a checkpoint can hold.

    Columns: state (high, low), increment (high, low), whether a 32-bit half is left, that half.
    """
    out: list[tuple[int, ...]] = []
    for generator in generators:
        state = generator.bit_generator.state
        now, step = state["state"]["state"], state["state"]["inc"]
        half = (state["has_uint32"], state["uinteger"])
        out.append((now >> 64, now & _MASK, step >> 64, step & _MASK, *half))
    return np.array(out, dtype=np.uint64).reshape(-1, 6)


def unpack_streams(generators: Sequence[np.random.Generator], packed: NDArray[np.uint64]) -> None:
    """Restore what :func:`pack_streams` gave into existing generators."""
    for row, generator in zip(packed.tolist(), generators, strict=True):
        generator.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": row[0] << 64 | row[1], "inc": row[2] << 64 | row[3]},
            "has_uint32": row[4],
            "uinteger": row[5],
        }
