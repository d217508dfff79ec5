"""The configuration of a training run: a task file with its ``training`` section understood."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from real.config import Config, config_dict, load_config
from real.errors import ConfigError
from sim.task import EnvConfig
from training.networks import NetworkConfig
from training.ppo import PpoConfig
from training.queue import OverBound
from training.staging import DeviceName
from training.symmetry import SymmetryConfig
from training.throttle import ThrottleConfig


class RunLength(Config):
    """How long to train and how often to look. These may change when a run is resumed."""

    steps: int = Field(
        default=20_000_000, ge=1, description="stop after as many control steps of all worlds"
    )
    minutes: float | None = Field(
        default=None, gt=0.0, description="stop after this wall time, evaluation included [min]"
    )
    evaluate_every: int = Field(
        default=150, ge=0, description="iterations between evaluations; 0 = at the end only"
    )
    checkpoint_every: int = Field(default=50, ge=1, description="iterations between checkpoints")
    keep: int = Field(default=3, ge=1, description="newest checkpoints kept, besides the best")
    threads: int = Field(
        default=1, ge=1, description="threads inside each network; actor and critic run in two"
    )
    device: DeviceName = Field(
        default="auto",
        description="where the learner computes: cpu, cuda, or auto = cuda if there is one",
    )
    stop_score: float | None = Field(
        default=None, description="stop at the first evaluation with this score; null for never"
    )
    patience: int = Field(
        default=0, ge=0, description="stop after as many evaluations without a new best; 0 = never"
    )


class RuntimeConfig(Config):
    """How actors, learner and evaluators run side by side; the serial runtime reads none of it."""

    actors: int | None = Field(
        default=None, ge=1, description="actors; null for one per CPU but one, and at least one"
    )
    worlds: int | None = Field(
        default=None, ge=1, description="parallel worlds of each actor; null for sim.worlds"
    )
    refresh_every: int | None = Field(
        default=None,
        ge=1,
        description="steps after which an actor looks for newer weights within a rollout; null for "
        "at its start alone",
    )
    evaluators: int = Field(
        default=1, ge=0, description="processes that score policies; 0 = nobody scores"
    )
    learners: int = Field(
        default=1, ge=1, description="processes that share out each update and do it together"
    )
    learner_timeout_s: float = Field(
        default=60.0, gt=0.0, description="for an update of another learner; then it is replaced"
    )
    fragments_per_update: int | None = Field(
        default=None, ge=1, description="rollouts of one update; null for as many as actors"
    )
    queue_capacity: int | None = Field(
        default=None, ge=1, description="rollouts that may wait; null for two updates' worth"
    )
    max_staleness: int = Field(
        default=4, ge=0, description="lag up to which a rollout is used whole [versions]"
    )
    over_bound: OverBound = Field(
        default="drop", description="what happens to older ones: drop, or weight (1/2, 1/3, ...)"
    )
    returns: Literal["gae", "vtrace", "decoupled"] | None = Field(
        default="vtrace", description="in place of ppo.returns, since data is of older policies"
    )
    start_timeout_s: float = Field(
        default=120.0,
        gt=0.0,
        description="until an actor's first rollout, and for an evaluator to start",
    )
    fragment_timeout_s: float = Field(
        default=60.0, gt=0.0, description="for each later rollout; then the actor is replaced"
    )
    evaluation_timeout_s: float = Field(
        default=300.0, gt=0.0, description="for one evaluation; then the evaluator is replaced"
    )
    max_restarts: int = Field(
        default=10,
        ge=0,
        description="actors replaced within the window, or since the last rollout came from any; "
        "one more ends the run",
    )
    restart_window_s: float = Field(default=600.0, gt=0.0, description="that window [s]")
    throttle: ThrottleConfig = ThrottleConfig()

    @model_validator(mode="after")
    def _as_many_actors_as_are_never_parked(self) -> Self:
        if self.actors is not None:
            _require_actors(self, self.actors)
        return self


class TrainingConfig(Config):
    """The ``training`` section of a task file."""

    seed: int = Field(default=0, ge=0, description="root seed of everything random in the run")
    horizon: int = Field(default=24, ge=1, description="T, control steps per rollout and update")
    network: NetworkConfig = NetworkConfig()
    ppo: PpoConfig = PpoConfig()
    symmetry: SymmetryConfig = SymmetryConfig()
    run: RunLength = RunLength()
    runtime: RuntimeConfig = RuntimeConfig()

    @model_validator(mode="after")
    def _rates_are_in_order(self) -> Self:
        low, start, high = (
            self.ppo.min_learning_rate,
            self.ppo.learning_rate,
            self.ppo.max_learning_rate,
        )
        # Without a KL to aim at the rate stays where it starts, and the bounds are not used.
        if self.ppo.desired_kl is not None and not low <= start <= high:
            raise ConfigError(
                "training.ppo: expected min_learning_rate <= learning_rate <= max_learning_rate, "
                f"found {low:g}, {start:g}, {high:g}"
            )
        return self


class RunConfig(EnvConfig):
    """A task file as the trainer reads it."""

    # The simulator passes the section through unread; here it has a type.
    training: TrainingConfig = TrainingConfig()  # pyright: ignore[reportIncompatibleVariableOverride]

    @model_validator(mode="after")
    def _shaping_discounts_as_the_learner_does(self) -> Self:
        gamma = self.training.ppo.gamma
        if self.shaping is not None and self.shaping.gamma != gamma:
            raise ConfigError(
                f"shaping.gamma is {self.shaping.gamma:g} and training.ppo.gamma {gamma:g}; "
                "expected the same, or shaping changes which policy is best"
            )
        return self

    @model_validator(mode="after")
    def _every_minibatch_has_samples(self) -> Self:
        runtime = self.training.runtime
        # As `side_by_side_config` gives it, its updates are not of one rollout.
        if self.sim.worlds != runtime.worlds:
            require_minibatches(self.training, self.sim.worlds, "sim.worlds")
        # Where neither is given, `require_updates` knows the number of actors.
        rollouts = runtime.fragments_per_update or runtime.actors
        if runtime.worlds is not None and rollouts is not None:
            require_minibatches(self.training, rollouts * runtime.worlds, _OF_UPDATE)
        return self


#: What makes the worlds of an update where actors are beside the learner.
_OF_UPDATE = "training.runtime: worlds * fragments_per_update, or else actors"


def require_minibatches(training: TrainingConfig, worlds: int, what: str) -> None:
    """Refuse more minibatches than an update has samples, or sequences for a memory.

    Args:
        training: minibatches, horizon, and whether anybody has a memory.
        worlds: of all rollouts of an update.
        what: says whose they are.

    Raises:
        ConfigError: a minibatch would be empty.
    """
    minibatches, samples = training.ppo.minibatches, worlds * training.horizon
    if minibatches > samples:
        raise ConfigError(
            f"training.ppo.minibatches is {minibatches}, but {worlds} worlds ({what}) with "
            f"training.horizon {training.horizon} have {samples} samples; expected no more "
            "minibatches"
        )
    network = training.network
    remembers = network.gru is not None or network.critic_gru is not None
    if remembers and minibatches > worlds:
        raise ConfigError(
            f"training.ppo.minibatches is {minibatches}, but with training.network.gru or "
            f"critic_gru a minibatch takes whole worlds, of which there are {worlds} ({what}); "
            "expected no more minibatches"
        )


def _require_actors(runtime: RuntimeConfig, actors: int) -> None:
    never_parked = runtime.throttle.min_actors
    if never_parked > actors:
        raise ConfigError(
            f"training.runtime.throttle.min_actors is {never_parked}, but there are {actors} "
            "actors (training.runtime.actors, or else one per CPU but one); expected no more"
        )


def require_updates(config: RunConfig, *, actors: int) -> None:
    """Refuse what the asynchronous runtime would find out when its processes have started.

    Args:
        config: as :func:`side_by_side_config` gives it.
        actors: K.

    Raises:
        ConfigError: no update could ever be made: the queue is smaller than one, or a learner
            or a minibatch would have nothing to learn from; or fewer actors than are never parked.
    """
    runtime = config.training.runtime
    _require_actors(runtime, actors)
    rollouts = runtime.fragments_per_update or actors
    if runtime.queue_capacity is not None and runtime.queue_capacity < rollouts:
        raise ConfigError(
            f"training.runtime.queue_capacity is {runtime.queue_capacity}, but an update takes "
            f"{rollouts} rollouts (fragments_per_update, or else actors); expected a queue that "
            "holds as many"
        )
    worlds = rollouts * config.sim.worlds
    if worlds < runtime.learners:
        raise ConfigError(
            f"training.runtime.learners is {runtime.learners}, but an update has rollouts of "
            f"{worlds} worlds; expected one for each learner at least"
        )
    require_minibatches(config.training, worlds, _OF_UPDATE)


#: Where two configurations may differ and still be the same run.
MAY_DIFFER = ("training.run.", "training.runtime.", "sim.threads")


def load_run_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a task file by name (``a1_walk``) or path, with its training section.

    Args:
        path: name in ``configs`` or a file.
        overrides: ``"a.b.c=value"``.

    Raises:
        ConfigError: one line per mistake, with file and line.
    """
    return load_config(RunConfig, path, overrides=overrides)


def with_limits(config: RunConfig, *, minutes: float | None, steps: int | None) -> RunConfig:
    """The configuration with the limits given on the command line; None leaves one as it is."""
    given = {"minutes": minutes, "steps": steps}
    update = {name: value for name, value in given.items() if value is not None}
    run = config.training.run.model_copy(update=update)
    training = config.training.model_copy(update={"run": run})
    return config.model_copy(update={"training": training})


def side_by_side_config(config: RunConfig) -> RunConfig:
    """The configuration as the asynchronous runtime reads it: its returns are the updates', its
    worlds those of an actor, and files are where they are from every process.
    """
    runtime, training, sim = config.training.runtime, config.training, config.sim
    if runtime.returns is not None:
        ppo = training.ppo.model_copy(update={"returns": runtime.returns})
        training = training.model_copy(update={"ppo": ppo})
    if runtime.worlds is not None:
        sim = sim.model_copy(update={"worlds": runtime.worlds})
    return with_absolute_files(config).model_copy(update={"training": training, "sim": sim})


def with_absolute_files(config: RunConfig) -> RunConfig:
    """The configuration with files where they are from every process of this machine."""
    if config.actuators is None:
        return config
    file = Path(config.actuators.network).expanduser().absolute()
    actuators = config.actuators.model_copy(update={"network": str(file)})
    return config.model_copy(update={"actuators": actuators})


def differences(stored: RunConfig, given: RunConfig) -> list[str]:
    """What keeps ``given`` from continuing a run of ``stored``: one line per value, by its key."""
    old, new = _flat(config_dict(stored)), _flat(config_dict(given))
    return [
        f"{key}: the run has {_shown(old, key)}, given is {_shown(new, key)}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not key.startswith(MAY_DIFFER)
    ]


def _flat(value: object, path: str = "") -> dict[str, object]:
    """Leaves by dotted key; lists are leaves. The order of keys is one more leaf.

    The order of observation terms is the order of the network's inputs.
    """
    if isinstance(value, dict) and value:
        out: dict[str, object] = {f"{path} (order)": list(value)} if path else {}
        for key, part in value.items():
            out.update(_flat(part, f"{path}.{key}" if path else str(key)))
        return out
    return {path: value}


def _shown(leaves: dict[str, object], key: str) -> str:
    return repr(leaves[key]) if key in leaves else "nothing"
