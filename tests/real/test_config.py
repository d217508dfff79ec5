from __future__ import annotations

import enum
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError, field_validator, model_validator

from real.config import (
    Config,
    InOrder,
    config_dict,
    config_hash,
    config_path,
    load_config,
    parse_config,
    save_config,
)
from real.errors import ConfigError, FerryError, nearest
from real.robot_config import RobotConfig


class Gait(enum.Enum):
    TROT = "trot"
    PACE = "pace"


class Physics(Config):
    control_dt_s: float = Field(0.02, gt=0, le=0.1, json_schema_extra={"unit": "s"})
    substeps: int = Field(4, ge=1)
    self_collision: bool = False
    cone: Literal["pyramidal", "elliptic"] = "pyramidal"


class Reward(Config):
    weight: float = 1.0
    """Share of the total. The sign says whether it is a cost."""
    width: float | tuple[float, float] | None = None


class Commands(Config):
    vx: tuple[float, float] = (-0.8, 1.2)
    resample_s: Annotated[float, Field(ge=0.5, description="seconds between new commands")] = 5.0

    @field_validator("vx")
    @classmethod
    def ordered(cls, value):
        if value[0] > value[1]:
            raise ConfigError("the first number must not exceed the second")
        return value


class Uniform(Config):
    kind: Literal["uniform"]
    low: float
    high: float = 1.0


class Normal(Config):
    kind: Literal["normal"]
    std: float = Field(gt=0)


class Task(Config):
    schema_version: Literal[3] = 3
    migrations: ClassVar[Mapping[int, str]] = {
        1: "rename 'dt' to 'control_dt_s'",
        2: "move 'vx' into 'commands'",
    }
    robot: str
    physics: Physics = Physics(substeps=5)
    commands: Commands = Commands()
    rewards: dict[str, Reward] = {"tracking": Reward(weight=2.0), "torque": Reward(weight=-1e-4)}
    noise: dict[str, Annotated[Uniform | Normal, Field(discriminator="kind")]] = {}
    gait: Gait = Gait.TROT
    gains: list[Annotated[float, Field(ge=0)]] = [40.0, 40.0, 55.0]
    description: Path | None = None
    missing_limit: float = Field(math.nan, allow_inf_nan=True)

    @model_validator(mode="after")
    def fits(self):
        if self.physics.substeps > 40:
            raise ValueError("physics.substeps above 40 makes no sense with this robot")
        return self


HEAD = "schema_version: 3\nrobot: a1\n"


@pytest.fixture
def load(tmp_path):
    def load_text(text: str, *overrides: str) -> Task:
        file = tmp_path / "task.yaml"
        file.write_text(text, encoding="utf-8")
        return load_config(Task, file, overrides=overrides)

    return load_text


@pytest.fixture
def problems(load, tmp_path):
    """The lines of the error a text gives, the folder taken off."""

    def lines(text: str, *overrides: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(text, *overrides)
        return str(caught.value).replace(f"{tmp_path}{os.sep}", "").splitlines()

    return lines


# What is accepted


def test_a_file_fills_the_model_and_leaves_the_rest_at_defaults(load):
    task = load(HEAD + "physics: {control_dt_s: 0.01}\ngait: pace\ndescription: a/b.urdf\n")
    assert task.physics == Physics(control_dt_s=0.01, substeps=4)
    assert task.gait is Gait.PACE
    assert task.description == Path("a/b.urdf")
    assert task.gains == [40.0, 40.0, 55.0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("-2.5E+2", -250.0),
        ("40", 40.0),
        ("+.5", 0.5),
        ("010", 10.0),
        ("0x1F", 31.0),
        ("-0o17", -15.0),
        ("1_000", 1000.0),
    ],
)
def test_every_spelling_of_a_number_in_yaml_1_2_is_a_number(load, text, value):
    weight = load(HEAD + f"rewards: {{x: {{weight: {text}}}}}").rewards["x"].weight
    assert (weight, type(weight)) == (value, float)


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "2026-01-01", "12:30:00"])
def test_words_that_yaml_1_1_converts_stay_text(load, word):
    assert load(f"schema_version: 3\nrobot: {word}\n").robot == word


def test_a_quoted_number_is_text_and_not_a_number(load, problems):
    assert load("schema_version: 3\nrobot: '12'\n").robot == "12"
    assert problems("schema_version: 3\nrobot: 12\n") == ["task.yaml:2: robot is 12, expected text"]


def test_an_alias_repeats_a_value(load):
    task = load(HEAD + "rewards:\n  a: &same {weight: 0.5}\n  b: *same\n")
    assert task.rewards["b"] == Reward(weight=0.5) == task.rewards["a"]


def test_a_configuration_cannot_be_changed_and_a_changed_copy_is_checked():
    physics = Physics()
    with pytest.raises(ValidationError):
        physics.substeps = 2
    assert physics.model_copy(update={"substeps": 2}) == Physics(substeps=2)
    assert physics.model_copy() == physics
    with pytest.raises(ConfigError, match=r"substeps is 0, expected an integer >= 1"):
        physics.model_copy(update={"substeps": 0})
    with pytest.raises(ConfigError, match=r"unknown key 'substep' .*'substeps'"):
        physics.model_copy(update={"substep": 1})


def test_a_model_made_in_python_is_as_strict_as_a_file_but_takes_lists_for_tuples():
    assert Commands(vx=[0, 1]).vx == (0.0, 1.0)
    for wrong in ({"control_dt_s": "0.02"}, {"control_dt_s": True}, {"substeps": "4"}):
        with pytest.raises(ValidationError):
            Physics(**wrong)
    with pytest.raises(ValidationError):
        Physics(self_collision=1)


# What is refused


@pytest.mark.parametrize("value", ["'0.05'", "true", "[0.05]", "0.05 s", "~"])
def test_only_a_number_is_a_number(problems, value):
    (line,) = problems(HEAD + f"physics:\n  control_dt_s: {value}\n")
    assert line.startswith("task.yaml:4: physics.control_dt_s is ")
    assert line.endswith(", expected a number > 0 and <= 0.1 [s]")


def test_a_number_is_not_a_boolean_and_a_fraction_is_not_an_integer(problems):
    assert problems(HEAD + "physics:\n  self_collision: 1\n  substeps: 2.5\n") == [
        "task.yaml:5: physics.substeps is 2.5, expected an integer >= 1",
        "task.yaml:4: physics.self_collision is 1, expected true or false",
    ]


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf"])
def test_nan_and_infinity_are_refused_unless_the_field_allows_them(load, problems, value):
    (line,) = problems(HEAD + f"rewards:\n  x:\n    weight: {value}\n")
    assert line == (
        f"task.yaml:5: rewards.x.weight is {value}, expected a finite number (Share of the total)"
    )
    assert repr(load(HEAD + f"missing_limit: {value}\n").missing_limit) == value.replace(".", "")


def test_every_mistake_is_reported_at_once_with_its_line(problems):
    text = HEAD + (
        "physics:\n"
        "  control-dt-s: 0.02\n"  # 4
        "  substeps: 0\n"
        "  cone: eliptic\n"
        "gains: [40, -1, true]\n"  # 7
        "rewards:\n"
        "  tracking: {wieght: 1}\n"
        "  torque:\n"  # 10
        "    width: [0.5, wide]\n"
        "  height: 3\n"
    )
    assert problems(text) == [
        "task.yaml:5: physics.substeps is 0, expected an integer >= 1",
        "task.yaml:6: physics.cone is \"eliptic\", expected 'pyramidal' or 'elliptic'"
        " (did you mean 'elliptic'?)",
        "task.yaml:4: unknown key 'control-dt-s' in section 'physics'"
        " (did you mean 'control_dt_s'?)",
        "task.yaml:9: unknown key 'wieght' in section 'rewards.tracking' (did you mean 'weight'?)",
        'task.yaml:11: rewards.torque.width.1 is "wide", expected a number',
        "task.yaml:12: rewards.height is 3, expected a section of keys",
        "task.yaml:7: gains.1 is -1, expected a number >= 0",
        "task.yaml:7: gains.2 is true, expected a number >= 0",
    ]


@pytest.mark.parametrize(
    ("text", "home"),
    [
        ("substeps: 4", "'physics'"),
        ("commands:\n  control_dt_s: 0.02", "'physics'"),
        ("physics:\n  gait: trot", "the top level"),
        ("weight: 3", "'rewards.*'"),
    ],
)
def test_a_key_in_the_wrong_section_is_told_where_it_belongs(problems, text, home):
    (line,) = problems(HEAD + text)
    assert line.endswith(f"; it belongs in {home}")


def test_a_key_like_no_other_gets_the_list_of_known_ones(problems):
    (line,) = problems(HEAD + "physics:\n  zzz: 1\n")
    assert line.endswith("; known: control_dt_s, substeps, self_collision, cone")


def test_a_value_that_fits_no_member_of_a_union_names_them_all(problems):
    assert problems(HEAD + "rewards: {x: {width: no}}") == [
        'task.yaml:3: rewards.x.width is "no", expected a number or a list'
    ]


@pytest.mark.parametrize(
    ("term", "said"),
    [
        ("{kind: unform, low: 1}", "noise.q.kind is \"unform\", expected 'uniform', 'normal'"),
        ("{kind: unform, low: 1}", "(did you mean 'uniform'?)"),
        ("{low: 1}", "noise.q.kind is missing"),
        ("{kind: normal, std: 0}", "noise.q.std is 0, expected a number > 0"),
        (
            "{kind: normal, std: 1, low: 1}",
            "unknown key 'low' in section 'noise.q'; known: kind, std",
        ),
        ("{kind: uniform, low: 1, hihg: 1}", "(did you mean 'high'?)"),
    ],
)
def test_a_section_with_a_kind_is_judged_by_that_kind(problems, term, said):
    (line,) = problems(HEAD + f"noise: {{q: {term}}}\n")
    assert line.startswith("task.yaml:3: ")
    assert said in line


def test_a_missing_key_and_a_list_of_the_wrong_length_are_named(problems):
    missing, short, longer = problems("schema_version: 3\ncommands:\n  vx: [1]\n") + problems(
        HEAD + "commands:\n  vx: [1, 2, 3]\n"
    )
    assert missing.endswith("robot is missing")
    assert short == "task.yaml:3: commands.vx.1 is missing"
    assert longer.startswith(
        "task.yaml:4: commands.vx is [1, 2, 3], expected to have at most 2 items"
    )


def test_what_a_validator_says_is_given_the_place_and_the_value(problems):
    assert problems(HEAD + "commands:\n  vx: [2, 1]\n") == [
        "task.yaml:4: commands.vx = [2, 1]: the first number must not exceed the second"
    ]
    (line,) = problems(HEAD + "physics: {substeps: 41}\n")
    assert line.endswith("physics.substeps above 40 makes no sense with this robot")
    assert "{" not in line


def test_a_description_stands_in_for_a_unit(problems):
    (line,) = problems(HEAD + "commands: {resample_s: 0}")
    assert line == (
        "task.yaml:3: commands.resample_s is 0, expected a number >= 0.5"
        " (seconds between new commands)"
    )


# YAML itself


def test_duplicate_keys_are_all_reported_with_both_lines(problems):
    text = HEAD + "robot: go1\nphysics:\n  substeps: 1\n  cone: elliptic\n  substeps: 2\n"
    assert problems(text) == [
        "task.yaml:3: key 'robot' appears twice; it is also at task.yaml:2",
        "task.yaml:7: key 'substeps' appears twice; it is also at task.yaml:5",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\nb: 2\n", "task.yaml:2: not valid YAML"),
        ("a: 1\n\tb: 2\n", "task.yaml:2: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "task.yaml:2: not valid YAML"),
        ("a: &x [*x]\n", "task.yaml:1: an alias that contains itself"),
        ("a: !!python/object:os.system ls\n", "task.yaml:1: the tag"),
        ("a: !!int twelve\n", "task.yaml:1: 'twelve' is not of type int"),
        ("b: {}\n<<: {a: 1}\n", "task.yaml:2: merge keys"),
        ("[a, b]: 1\n", "task.yaml:1: a key must be a single word"),
        ("", "task.yaml: expected a mapping of keys to values, found nothing"),
        ("- a\n", "task.yaml: expected a mapping of keys to values, found a list"),
        ("a: \x00\n", "task.yaml: not valid YAML"),
    ],
)
def test_what_is_not_a_plain_yaml_mapping_is_refused_with_its_line(problems, text, said):
    assert problems(text)[0].startswith(said)


def test_aliases_that_multiply_without_end_are_stopped(problems):
    levels = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 9))
    (line,) = problems("l0: &l0 [x]\n" + levels)
    assert line == "task.yaml: more than 100000 values"


def test_a_file_that_is_not_text_is_refused_by_name(tmp_path):
    file = tmp_path / "task.yaml"
    file.write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(ConfigError, match=r"task\.yaml: not a text file in UTF-8"):
        load_config(Task, file)


# Schema version


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("", "schema_version is missing; expected schema_version: 3"),
        ("schema_version: 1", "rename 'dt' to 'control_dt_s'; move 'vx' into 'commands'"),
        ("schema_version: 2", "expected 3: to migrate, move 'vx' into 'commands'"),
        ("schema_version: 0", "expected 3: to migrate, rename 'dt'"),
        ("schema_version: 4", "written by a newer version"),
        ("schema_version: true", "a whole number is expected"),
        ("schema_version: '3'", "a whole number is expected"),
    ],
)
def test_another_schema_version_is_refused_before_anything_else(problems, version, said):
    (line,) = problems(f"robot: a1\ndt: 0.02\nzzz: 1\n{version}\n")
    assert line.startswith("task.yaml: schema_version is ")
    assert said in line


# Overrides


def test_overrides_replace_values_at_any_depth_and_read_yaml(load):
    task = load(
        HEAD + "rewards:\n  b: {weight: 7}\n",
        "physics.control_dt_s=1e-2",
        "rewards.b.width=[0.25, 1]",
        "rewards.c.weight=3",
        "gains.1=7",
        "description=~",
        "robot=on",
    )
    assert task.physics.control_dt_s == 0.01
    assert task.rewards == {"b": Reward(weight=7, width=(0.25, 1.0)), "c": Reward(weight=3)}
    assert task.gains == [40.0, 7.0, 55.0]
    assert task.robot == "on"


def test_an_override_into_a_section_the_file_leaves_out_keeps_its_other_defaults(load):
    task = load(HEAD, "rewards.tracking.weight=9", "physics.cone=elliptic")
    assert task.rewards == {"tracking": Reward(weight=9), "torque": Reward(weight=-1e-4)}
    # The parent's default has 5 substeps, the section's own default 4.
    assert task.physics == Physics(substeps=5, cone="elliptic")


def test_the_last_override_of_a_key_wins_and_a_section_can_be_replaced_whole(load):
    assert load(HEAD, "robot=x", "robot=y").robot == "y"
    assert load(HEAD, "rewards={only: {weight: 2}}").rewards == {"only": Reward(weight=2)}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("physics.substep=2", "--set physics.substep: unknown key 'substep' in section 'physics'"),
        ("phisics.substeps=2", "--set phisics.substeps: unknown key 'phisics' at the top level"),
        ("substeps=2", "--set substeps: unknown key 'substeps' at the top level; it belongs in"),
        ("physics.substeps=0", "--set physics.substeps: physics.substeps is 0, expected an integ"),
        ("physics.substeps.x=1", "--set physics.substeps.x: physics.substeps is 5, a single value"),
        ("gains.3=1", "--set gains.3: gains has indices 0 to 2, not '3'"),
        ("gains.last=1", "--set gains.last: gains has indices 0 to 2, not 'last'"),
        ("gains.0=-1", "--set gains.0: gains.0 is -1, expected a number >= 0"),
        ("physics={substeps: 0}", "--set physics: physics.substeps is 0, expected an integer"),
        ("physics.substeps", "--set physics.substeps: expected KEY=VALUE"),
        ("=1", "--set =1: expected KEY=VALUE"),
        ("physics..x=1", "--set physics..x=1: expected KEY=VALUE"),
        ("gains=[1", "--set gains:1: not valid YAML"),
    ],
)
def test_a_wrong_override_is_reported_as_the_option_that_was_typed(problems, override, said):
    (line,) = problems(HEAD, override)
    assert line.startswith(said)


def test_a_misspelt_override_gets_the_nearest_key(problems):
    assert problems(HEAD, "physics.substep=2")[0].endswith("(did you mean 'substeps'?)")
    assert problems(HEAD, "phisics.substeps=2")[0].endswith("(did you mean 'physics'?)")


# Saving, hashing, parsing

TASK = Task(
    robot="1e-3",
    rewards={"on": Reward(width=(0.1, 1e-17)), "a: b #": Reward(weight=-0.0)},
    gait=Gait.PACE,
    gains=[0.1 + 0.2, 1e300, 5e-324],
    description=Path("~/a b.urdf"),
)


def test_a_saved_configuration_reads_back_equal(tmp_path):
    file = tmp_path / "deep" / "task.yaml"
    save_config(TASK, file)
    read = load_config(Task, file)
    assert repr(read) == repr(TASK)
    assert config_hash(read) == config_hash(TASK)
    assert [path.name for path in file.parent.iterdir()] == ["task.yaml"]


@pytest.mark.slow
@given(
    st.dictionaries(st.text(max_size=12), st.floats(allow_nan=False, allow_infinity=False)),
    st.text(),
)
def test_any_text_and_any_number_survive_saving(tmp_path_factory, weights, robot):
    task = Task(robot=robot, rewards={name: Reward(weight=w) for name, w in weights.items()})
    file = tmp_path_factory.mktemp("saved") / "task.yaml"
    save_config(task, file)
    assert repr(load_config(Task, file)) == repr(task)


def test_json_is_as_lossless_as_yaml():
    again = parse_config(Task, json.loads(json.dumps(config_dict(TASK))), source="run.json")
    assert repr(again) == repr(TASK)


def test_a_parsed_mapping_is_checked_like_a_file_and_named_by_its_source():
    with pytest.raises(ConfigError) as caught:
        parse_config(Task, {"schema_version": 3, "robot": "a1", "gayt": "trot"}, source="run.json")
    assert str(caught.value) == (
        "run.json: unknown key 'gayt' at the top level (did you mean 'gait'?)"
    )


def test_the_hash_depends_on_values_and_not_on_order_or_spelling(load):
    one = load(HEAD + "physics: {substeps: 3, control_dt_s: 0.01}\nrewards: {a: {}, b: {}}\n")
    same = load(
        "rewards: {b: {weight: 1}, a: {}}\nphysics:\n  control_dt_s: 1.0e-2\n  substeps: 3\n" + HEAD
    )
    other = load(HEAD + "physics: {substeps: 3, control_dt_s: 0.011}\nrewards: {a: {}, b: {}}\n")
    assert config_hash(one) == config_hash(same)
    assert config_hash(one) != config_hash(other)
    assert len(config_hash(one)) == 64


def test_the_hash_keeps_an_order_that_means_something_wherever_it_stands(tmp_path):
    class Stage(Config):
        steps: Annotated[dict[str, Physics], InOrder()]
        others: dict[str, int] = {}

    class Plan(Config):
        first: Stage
        rest: dict[str, tuple[Stage, ...]] = {}

    def stage(*names: str) -> Stage:
        return Stage(steps={n: Physics(substeps=ord(n)) for n in names}, others={"x": 1, "y": 2})

    plan = Plan(first=stage("a", "b", "c"), rest={"p": (stage("a"), stage("c", "a")), "q": ()})
    moved = plan.model_copy(update={"first": stage("b", "a", "c")})
    deep = plan.model_copy(update={"rest": {"p": (stage("a"), stage("a", "c")), "q": ()}})
    same = plan.model_copy(update={"rest": dict(reversed(plan.rest.items()))})
    assert len({config_hash(one) for one in (plan, moved, deep)}) == 3
    assert config_hash(same) == config_hash(plan)
    save_config(plan, tmp_path / "plan.yaml")
    assert config_hash(load_config(Plan, tmp_path / "plan.yaml")) == config_hash(plan)


def test_a_failed_save_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    file = tmp_path / "task.yaml"
    save_config(Physics(substeps=2), file)

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        save_config(Physics(substeps=3), file)
    assert load_config(Physics, file) == Physics(substeps=2)
    assert [path.name for path in tmp_path.iterdir()] == ["task.yaml"]


# Finding files


@pytest.mark.parametrize(
    "name", ["a1", "a1.yaml", "robots/a1", "configs/robots/a1.yaml", "./robots/a1.yaml"]
)
def test_a_shipped_configuration_is_found_by_any_name_from_any_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = config_path(name, folder="robots")
    assert found.is_file()
    assert found.parts[-3:] == ("configs", "robots", "a1.yaml")


def test_a_file_given_by_path_goes_before_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a1.yaml").write_text("x: 1\n")
    assert config_path("a1.yaml", folder="robots") == Path("a1.yaml")
    assert config_path(tmp_path / "a1.yaml") == tmp_path / "a1.yaml"


@pytest.mark.parametrize(
    ("name", "folder", "said"),
    [
        ("a11", "robots", "did you mean 'a1'?"),
        ("a1", "", "did you mean 'robots/a1'?"),
        ("robot/a1.yaml", "", "did you mean 'robots/a1'?"),
        ("../robots/a1.yaml", "robots", "no configuration '../robots/a1.yaml'"),
        ("/nowhere/a1.yaml", "robots", "there is no file /nowhere/a1.yaml"),
        ("", "robots", "no configuration ''"),
    ],
)
def test_a_name_nothing_has_is_refused_with_where_it_was_looked_for(
    tmp_path, monkeypatch, name, folder, said
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        config_path(name, folder=folder)
    assert said in str(caught.value)
    assert str(tmp_path if not name.startswith("/") else name) in str(caught.value)


# The hint


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("kd", " (did you mean 'kd'?)"),
        ("Max-Torque", " (did you mean 'max_torque'?)"),
        ("max_torqe", " (did you mean 'max_torque'?)"),
        ("zzz", ""),
    ],
)
def test_the_nearest_word_ignores_case_and_hyphens(name, hint):
    assert nearest(name, ["kp", "kd", "max_torque"]) == hint


def test_a_configuration_error_is_a_mistake_the_user_can_mend():
    assert issubclass(ConfigError, FerryError)
    assert nearest("anything", []) == ""


# ----------------------------------------------------------------------------
# Extending another file


@pytest.fixture
def family(tmp_path):
    """A file that extends one that extends another, in the same folder."""
    (tmp_path / "base.yaml").write_text(
        "schema_version: 1\nname: base\nlist: [1, 2]\ntable:\n  a: {x: 1, y: 2}\n  b: {x: 3}\n"
    )
    (tmp_path / "middle.yaml").write_text(
        "extends: base\nname: middle\ntable:\n  c: {x: 5}\n  a: {y: 7}\n"
    )
    (tmp_path / "leaf.yaml").write_text(
        "extends: middle.yaml\nname: leaf\nlist: [9]\ntable:\n  b: null\n  a: {x: 8}\n"
    )
    return tmp_path


class Row(Config):
    x: int = 0
    y: int = 0


class Extended(Config):
    schema_version: Literal[1] = 1
    name: str
    list: tuple[int, ...] = ()
    table: dict[str, Row] = {}


def test_a_file_says_only_what_differs_from_the_one_it_extends(family):
    read = load_config(Extended, family / "leaf.yaml")
    assert read == Extended(name="leaf", list=(9,), table={"a": Row(x=8, y=7), "c": Row(x=5)})
    # In the order of the extended file, then what is new: observation terms keep their places.
    middle = load_config(Extended, family / "middle.yaml")
    assert list(middle.table) == ["a", "b", "c"]


def test_an_extended_configuration_is_the_one_written_in_one_file(family):
    whole = family / "whole.yaml"
    read = load_config(Extended, family / "leaf.yaml")
    save_config(read, whole)
    assert "extends" not in whole.read_text()
    again = load_config(Extended, whole)
    assert again == read
    assert config_hash(again) == config_hash(read)
    changed = load_config(Extended, family / "leaf.yaml", overrides=["table.a.y=3"])
    assert changed.table["a"] == Row(x=8, y=3)


def test_a_mistake_names_the_file_and_line_where_it_stands(family):
    (family / "base.yaml").write_text("schema_version: 1\nname: base\ntable:\n  a: {z: 1}\n")
    with pytest.raises(ConfigError, match=r"base\.yaml:4: .*'?z'?"):
        load_config(Extended, family / "leaf.yaml")
    (family / "base.yaml").write_text("schema_version: 1\nname: base\n")
    (family / "leaf.yaml").write_text("extends: middle\nname: leaf\ntable:\n  a: {x: one}\n")
    with pytest.raises(ConfigError, match=r"leaf\.yaml:4: "):
        load_config(Extended, family / "leaf.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: leaf", r"middle\.yaml:1: extends: files extend each other in a ring: .*leaf"),
        ("extends: a2_walk", r"middle\.yaml:1: extends: no configuration 'a2_walk'.*a1_walk"),
        ("extends: 3", r"middle\.yaml:1: extends is 3; expected the name or path of a file"),
        ("extends: list", r"middle\.yaml:1: extends: .*list\.yaml is not a mapping"),
    ],
)
def test_what_cannot_be_extended_is_refused_where_it_stands(family, text, message):
    (family / "list.yaml").write_text("- 1\n")
    (family / "middle.yaml").write_text(f"{text}\nname: middle\n")
    with pytest.raises(ConfigError, match=message):
        load_config(Extended, family / "leaf.yaml")


def test_a_shipped_file_can_be_extended_from_anywhere(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "extends: a1\nname: mine\nbase: {height_m: 0.31}\ndamping_kd: 4\n"
    )
    robot = load_config(RobotConfig, tmp_path / "mine.yaml", folder="robots")
    assert (robot.name, robot.base.height_m, robot.base.link) == ("mine", 0.31, "trunk")
    assert robot.damping_kd == 4.0
