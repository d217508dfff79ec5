from __future__ import annotations

import pytest

from deploy.options import read_options, safety_file
from deploy.safety import SafetySettings
from real.config import load_config
from real.errors import ConfigError, FerryError


def test_options_of_a_plug_in_are_yaml():
    pairs = ["port=/dev/ttyUSB0", "rate=500", "ids=[1, 2]", "fast=true", "name='07'", "a=b=c"]
    assert read_options(pairs, mapping="{gain: 0.5}") == {
        "gain": 0.5,
        "port": "/dev/ttyUSB0",
        "rate": 500,
        "ids": [1, 2],
        "fast": True,
        "name": "07",
        "a": "b=c",
    }


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (["port"], "expected KEY=VALUE"),
        (["=3"], "expected KEY=VALUE"),
        (["a=1", "a=2"], "a is given twice"),
        (["a=[1"], "not valid YAML"),
        (["a=.nan"], "JSON"),
    ],
)
def test_other_options_are_refused(pairs, words):
    with pytest.raises(FerryError, match=words):
        read_options(pairs)
    with pytest.raises(FerryError, match="YAML mapping"):
        read_options([], mapping="[1]")


def test_safety_settings_are_replaced_one_by_one_on_top_of_a_file(tmp_path):
    base = tmp_path / "base.yaml"
    base.write_text("tilt_rad: 0.7\nramp_s: 1.0\n")
    made = safety_file(["ramp_s=3", "limits.margin=0.05"], tmp_path, base=base)
    got = load_config(SafetySettings, made)
    assert (got.ramp_s, got.tilt_rad, got.limits.margin) == (3.0, 0.7, 0.05)
    assert base.read_text() == "tilt_rad: 0.7\nramp_s: 1.0\n"
    fresh = load_config(SafetySettings, safety_file(["tilt_rad=null"], tmp_path))
    assert fresh == SafetySettings(tilt_rad=None)
    assert safety_file([], tmp_path) is None
    assert safety_file([], tmp_path, base=base) == base


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("tilt_rd=0.5", "did you mean 'tilt_rad'"),
        ("ramp_s=-1", "--safety ramp_s"),
        ("ramp_s=fast", "--safety ramp_s"),
        ("ramp_s", "--safety ramp_s: expected KEY=VALUE"),
    ],
)
def test_a_wrong_safety_setting_is_named_as_it_was_given(tmp_path, pair, words):
    with pytest.raises(ConfigError, match=words):
        safety_file([pair], tmp_path)
