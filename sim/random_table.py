"""The ``randomize`` section of a task: reading it, and refusing what could not change anything.

In a task file::

    randomize:
      friction: "=U(0.4, 1.2)"
      mass: "*U(0.8, 1.2)"                             # every body its own
      kp: {value: "*U(0.8, 1.2)", per: world}          # one draw for all joints
      delay: "=U(0.0, 0.02)"                           # s
      observation_delay: "=U(0.0, 0.03)"               # s
      joint_offset: {value: "+U(-0.02, 0.02)", when: once}   # rad, a world keeps its own for good
      motor_strength: {value: "*U(0.8, 1)", interval_s: [2, 4]}   # and anew every 2 to 4 s
      contact_damping: "=choice(50, 100, 150)"         # 1/s
      push: {value: "=U(-1, 1)", interval_s: [4, 8]}   # m/s, every 4 to 8 s

The notation is that of :mod:`sim.distributions`, the terms are those of :mod:`sim.random_terms`.
A term that could not change anything is refused when the table is read or met with a robot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field

from real.config import Config, parse_config
from real.errors import ConfigError, nearest
from sim.distributions import Distribution, parse_distribution
from sim.engine import Array
from sim.random_terms import REFUSED, TERMS, Per

Seconds = Annotated[float, Field(gt=0.0)]

#: Measurements are kept for so long at most [s]: no policy walks on older ones.
OBSERVED_MAX_S = 0.5


class RandomTermConfig(Config):
    """One random term, where a distribution alone does not say everything."""

    value: str = Field(description='distribution such as "*U(0.8, 1.2)"')
    per: Per | None = Field(default=None, description="what has a draw of its own")
    interval_s: tuple[Seconds, Seconds] | None = Field(
        default=None, description="time between pushes or draws within an episode, low, high [s]"
    )
    when: Literal["episode", "once"] = Field(
        default="episode", description="drawn for every episode, or once for a world's whole life"
    )


def check_terms(terms: dict[str, str | RandomTermConfig]) -> dict[str, str | RandomTermConfig]:
    """Check what can be checked without a robot: names, distributions, options.

    Raises:
        ConfigError: with what was found and what is expected.
    """
    observed_max_s({name: _read_term(name, term) for name, term in terms.items()})
    return terms


def _leave_out(terms: Any) -> Any:
    """Drop terms that are null, which is how an override takes one away; a misspelt one is none."""
    if not isinstance(terms, dict):
        return terms
    given: dict[Any, Any] = cast("Any", terms)
    for name in given:
        if given[name] is None and name not in TERMS:
            raise _unknown(str(name))
    return {name: term for name, term in given.items() if term is not None}


RandomizeConfig = Annotated[
    dict[str, str | RandomTermConfig], BeforeValidator(_leave_out), AfterValidator(check_terms)
]
"""The ``randomize`` section of a task: term -> distribution, a mapping with options, or null."""


class _Table(Config):
    randomize: RandomizeConfig = {}


def _read_term(name: str, term: str | RandomTermConfig) -> tuple[Distribution, RandomTermConfig]:
    kind = TERMS.get(name)
    if kind is None:
        raise _unknown(name)
    config = RandomTermConfig(value=term) if isinstance(term, str) else term
    law = _read_law(name, config.value, ops=kind.ops, doc=kind.doc, short=isinstance(term, str))
    if config.per is not None and config.per not in kind.per:
        raise ConfigError(
            f"random term {name!r} cannot be drawn per {config.per}; "
            f"expected {' or '.join(kind.per)}",
            key=(name, "per"),
        )
    timed, at = name == "push", (name, "interval_s")
    if timed and config.interval_s is None:
        said = f"random term {name!r} needs interval_s, e.g. interval_s: [4.0, 8.0]"
        raise ConfigError(said, key=(name,))
    if not kind.within and config.interval_s is not None:
        said = f"random term {name!r} cannot change within an episode; remove interval_s"
        raise ConfigError(said, key=at)
    if config.when == "once" and config.interval_s is not None:
        said = f"random term {name!r} is drawn once; remove interval_s, or `when: once`"
        raise ConfigError(said, key=at)
    if config.interval_s is not None and config.interval_s[0] > config.interval_s[1]:
        said = f"random term {name!r}: interval_s {config.interval_s} is empty"
        raise ConfigError(said, key=at)
    if timed and law.low == law.high == 0.0:
        said = f"random term {name!r}: {config.value!r} changes nothing; remove it"
        raise ConfigError(said, key=(name, "value"))
    return law, config


def _read_law(name: str, value: str, *, ops: str, doc: str, short: bool) -> Distribution:
    """The distribution of a term; ``short`` if it stands for the whole term."""
    key = (name,) if short else (name, "value")
    try:
        law = parse_distribution(value)
    except ConfigError as error:
        raise ConfigError(f"random term {name!r}: {error}", key=key) from error
    if law.op not in ops:
        raise ConfigError(
            f"random term {name!r} ({doc}) cannot be given by {law.op!r} as in {value!r}; "
            f"expected one of {', '.join(ops)}",
            key=key,
        )
    if law.low == law.high == {"*": 1.0, "+": 0.0}.get(law.op):
        said = f"random term {name!r}: {value!r} changes nothing; remove it"
        raise ConfigError(said, key=key)
    return law


def _unknown(name: str) -> ConfigError:
    if name in REFUSED:
        return ConfigError(f"random term {name!r}: {REFUSED[name]}", key=(name,))
    return ConfigError(
        f"there is no random term {name!r}{nearest(name, TERMS)}; known: {', '.join(TERMS)}",
        key=(name,),
    )


def read_table(terms: Mapping[str, Any]) -> dict[str, tuple[Distribution, RandomTermConfig]]:
    """Terms in the order of :data:`TERMS`, so that the order of the file means nothing.

    Raises:
        ConfigError: a term is unknown or badly written.
    """
    if not all(isinstance(term, str | RandomTermConfig) for term in terms.values()):
        terms = parse_config(_Table, {"randomize": dict(terms)}, source="randomize").randomize
    read = {name: _read_term(name, term) for name, term in terms.items()}
    observed_max_s(read)
    return {name: read[name] for name in TERMS if name in read}


def observed_max_s(table: Mapping[str, tuple[Distribution, RandomTermConfig]]) -> float:
    """Longest delay of measurements that a table can draw [s].

    Raises:
        ConfigError: it is longer than measurements are kept.
    """
    names = [name for name in ("observation_delay", "observation_jitter") if name in table]
    longest = sum(table[name][0].high for name in names)
    if longest > OBSERVED_MAX_S:
        raise ConfigError(
            f"{' and '.join(names)} reach {longest:g} s; measurements are kept for "
            f"{OBSERVED_MAX_S:g} s: expected that or less",
            key=(names[0],),
        )
    return longest


def delay_max_s(terms: Mapping[str, Any]) -> float:
    """Longest delay that a table can draw [s]: the ``delay_max_s`` its engine needs."""
    table = read_table(terms)
    return sum(table[name][0].high for name in ("delay", "delay_jitter") if name in table)


def least_value(terms: Mapping[str, Any], name: str, nominal: Array) -> Array | None:
    """Least values ``[K]`` that a table can draw for one of its terms; None if it is not there."""
    table = read_table(terms)
    return table[name][0].bounds(nominal)[0] if name in table else None
