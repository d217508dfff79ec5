from __future__ import annotations

import importlib.util
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import ferry
from deploy.bundle import BundleError, read_bundle
from deploy.graph import choose_robot, graph
from deploy.preflight import preflight
from deploy.signing import (
    TRUSTED_ENV,
    TrustedKeys,
    configured_keys,
    fingerprint,
    make_keys,
    signature_file,
    write_signature,
)
from real.errors import FerryError
from tests.deploy.stand_bundle import write_bundle


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A bundle, keys ``fleet``, ``other``, ``stranger``, and a folder that trusts two of them."""
    folder = tmp_path_factory.mktemp("signing")
    write_bundle(folder / "p.onnx")
    for name in ("fleet", "other", "stranger"):
        make_keys(folder / name)
    (folder / "trusted").mkdir()
    for name in ("fleet.pub", "other.pub"):
        shutil.copy(folder / name, folder / "trusted")
    return folder


@pytest.fixture
def place(made, tmp_path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(made, tmp_path / "robot"))


def sign(place: Path, key: str) -> Path:
    return write_signature(place / "p.onnx", (place / "p.onnx").read_bytes(), place / key)


def trusted(place: Path) -> TrustedKeys:
    return TrustedKeys.load(place / "trusted")


def refusal(place: Path) -> str:
    with pytest.raises(BundleError) as error:
        read_bundle(place / "p.onnx", trusted=trusted(place))
    assert str(place / "p.onnx") in str(error.value)
    return str(error.value)


# ------------------------------------------------------------------ what passes


@pytest.mark.parametrize("key", ["fleet", "other"])
def test_a_bundle_signed_with_a_trusted_key_is_read_and_says_whose_it_is(place, key):
    file = sign(place, key)
    assert file == signature_file(place / "p.onnx")
    assert len(file.read_bytes()) == 64
    bundle = read_bundle(place / "p.onnx", trusted=trusted(place))
    assert bundle.signed_by == f"{key}.pub"
    assert bundle.model_bytes == (place / "p.onnx").read_bytes()


def test_without_trusted_keys_nobody_asks_for_a_signature(place):
    assert read_bundle(place / "p.onnx").signed_by is None


def test_a_private_key_is_its_owners_alone(made):
    assert stat.S_IMODE((made / "fleet").stat().st_mode) == 0o600
    assert "PRIVATE" not in (made / "fleet.pub").read_text()
    assert fingerprint(made / "fleet.pub") != fingerprint(made / "other.pub")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_another_tool_verifies_the_signature(place):
    sign(place, "fleet")
    command = (
        "openssl pkeyutl -verify -pubin -inkey fleet.pub -rawin -in p.onnx -sigfile p.onnx.sig"
    )
    done = subprocess.run(command.split(), cwd=place, capture_output=True, text=True, check=False)
    assert "Verified Successfully" in done.stdout, done.stderr


# ------------------------------------------------------------------ what is refused


def test_an_unsigned_bundle_is_refused(place):
    assert "it is not signed (there is no p.onnx.sig)" in refusal(place)


def test_a_bundle_signed_with_a_key_that_is_not_trusted_is_refused_and_the_trusted_are_named(place):
    sign(place, "stranger")
    assert "none of fleet.pub, other.pub" in refusal(place)


def test_a_bundle_that_was_exchanged_after_it_was_signed_is_refused(place):
    sign(place, "fleet")
    # A good bundle, with a digest that fits: only the signature can tell.
    write_bundle(place / "p.onnx", gain=0.5)
    read_bundle(place / "p.onnx")
    assert "altered after it was signed" in refusal(place)


@pytest.mark.parametrize("size", [0, 63, 65, 10_000])
def test_a_signature_of_another_size_is_none(place, size):
    signature_file(place / "p.onnx").write_bytes(bytes(size))
    assert "it is no signature" in refusal(place)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_flipped_bit_of_bundle_or_signature_is_refused_before_anything_is_parsed(made, data):
    keys = trusted(made)
    whole = (made / "p.onnx").read_bytes()
    key = serialization.load_pem_private_key((made / "fleet").read_bytes(), password=None)
    signature = bytearray(key.sign(whole))
    assert keys.signer(whole, bytes(signature)) == "fleet.pub"
    bundle = bytearray(whole)
    victim = data.draw(st.sampled_from([bundle, signature]))
    victim[data.draw(st.integers(0, len(victim) - 1))] ^= data.draw(st.integers(1, 255))
    assert keys.signer(bytes(bundle), bytes(signature)) is None


def test_a_folder_of_keys_that_is_missing_empty_or_spoiled_refuses_everything(place):
    for folder, words in ((place / "no", "is no folder"), (place / "empty", "holds no *.pub")):
        if folder.name == "empty":
            folder.mkdir()
        with pytest.raises(FerryError, match=words.replace("*", r"\*")):
            TrustedKeys.load(folder)
    (place / "trusted" / "a.pub").write_text("no key")
    with pytest.raises(FerryError, match=r"a\.pub: it is no public key"):
        TrustedKeys.load(place / "trusted")
    wrong = ec.generate_private_key(ec.SECP256R1()).public_key()
    pem = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    (place / "trusted" / "a.pub").write_bytes(wrong.public_bytes(*pem))
    with pytest.raises(FerryError, match="no Ed25519 key"):
        TrustedKeys.load(place / "trusted")


def test_a_key_is_never_written_over_and_a_public_one_cannot_sign(place):
    with pytest.raises(FerryError, match="exists already"):
        make_keys(place / "fleet")
    with pytest.raises(FerryError, match="no private key") as error:
        sign(place, "fleet.pub")
    assert "BEGIN" not in str(error.value)


def test_the_environment_configures_what_no_option_names(place, monkeypatch):
    monkeypatch.delenv(TRUSTED_ENV, raising=False)
    assert configured_keys() is None
    monkeypatch.setenv(TRUSTED_ENV, str(place / "trusted"))
    found = configured_keys()
    assert found is not None
    assert list(found.keys) == ["fleet.pub", "other.pub"]
    monkeypatch.setenv(TRUSTED_ENV, str(place / "gone"))
    with pytest.raises(FerryError, match="is no folder"):
        configured_keys("")


def test_without_the_package_a_robot_that_is_to_check_refuses(place, monkeypatch):
    sign(place, "fleet")
    keys = trusted(place)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    with pytest.raises(FerryError, match="pip install cryptography"):
        read_bundle(place / "p.onnx", trusted=keys)
    with pytest.raises(FerryError, match="pip install cryptography"):
        TrustedKeys.load(place / "trusted")


# ------------------------------------------------------------------ where it is asked for


def test_the_graph_tells_both_nodes_that_read_the_bundle(place):
    robot = choose_robot("loopback")
    made = graph(place / "p.onnx", robot, robot_name="a1", trusted_keys=place / "trusted")
    told = {n.name: n.parameters.get("trusted_keys") for n in made.nodes}
    folder = str((place / "trusted").absolute())
    assert (told["policy_node"], told["safety_node"]) == (folder, folder)
    assert "trusted_keys" not in graph(place / "p.onnx", robot, robot_name="a1").nodes[0].parameters


@pytest.mark.ros
def test_preflight_refuses_an_unsigned_bundle_before_a_node_starts(place):
    choice = choose_robot("loopback")
    with pytest.raises(BundleError, match="not signed"):
        preflight(place / "p.onnx", choice, trusted_keys=place / "trusted")
    sign(place, "other")
    cleared = preflight(place / "p.onnx", choice, trusted_keys=place / "trusted")
    assert cleared.bundle.signed_by == "other.pub"


def run(*arguments: object):
    return CliRunner().invoke(ferry.app, [str(a) for a in arguments])


@pytest.mark.slow
def test_keygen_sign_and_inspect_one_after_the_other(tmp_path):
    write_bundle(tmp_path / "p.onnx")
    assert run("keygen", tmp_path / "keys" / "mine").exit_code == 0
    unsigned = run("inspect", tmp_path / "p.onnx", "--trusted-keys", tmp_path / "keys")
    assert (unsigned.exit_code, unsigned.stdout) == (2, "")
    assert "not signed" in unsigned.stderr
    signed = run("sign", tmp_path / "p.onnx", "--key", tmp_path / "keys" / "mine")
    assert signed.exit_code == 0, signed.output
    assert "never evaluated" in signed.stdout
    shown = run("inspect", tmp_path / "p.onnx", "--trusted-keys", tmp_path / "keys")
    assert "mine.pub" in shown.stdout
    assert "not checked" in run("inspect", tmp_path / "p.onnx").stdout
    again = run("keygen", tmp_path / "keys" / "mine")
    assert (again.exit_code, "exists already" in again.stderr) == (2, True)
