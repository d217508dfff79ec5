"""``ferry inspect``, ``keygen`` and ``sign``: commands that need no simulator, learner or ROS 2."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deploy.console import print_table

BundleFile = Annotated[Path, typer.Argument(help="A bundle (.onnx).")]
TrustedFolder = Annotated[
    Path | None,
    typer.Option(
        "--trusted-keys",
        metavar="DIR",
        help="Refuse what no key in this folder signed; else $FERRY_TRUSTED_KEYS, else no check.",
    ),
]

WorldTask = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help="Of a bundle: a task whose world to take for its own.",
    ),
]
WorldActuator = Annotated[
    Path | None,
    typer.Option(
        "--actuator", metavar="FILE", help="Of a bundle: the learned actuator that it names."
    ),
]


OwnPlane = Annotated[
    bool,
    typer.Option("--plane", help="Of a simulated robot: a plane in place of the terrain."),
]
PluginOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="For your RobotIO class; repeatable."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the front door."""
    for command in (inspect, keygen, sign):
        app.command()(command)


def inspect(bundle: BundleFile, trusted_keys: TrustedFolder = None) -> None:
    """Show what a bundle was trained for and how it was evaluated, after verifying it.

    Example: `ferry inspect configs/bundles/a1_walk.onnx`
    """
    from deploy.bundle import read_bundle
    from deploy.signing import configured_keys

    verified = read_bundle(bundle, trusted=configured_keys(trusted_keys))
    print_table(str(bundle), verified.rows())


def keygen(
    out: Annotated[Path, typer.Argument(help="The private key to write; OUT.pub is public.")],
) -> None:
    """Make an Ed25519 key pair: sign with the one, put the other on your robots.

    Example: `ferry keygen fleet`
    """
    from deploy.signing import fingerprint, make_keys

    private, public = make_keys(out)
    print_table(
        "Keys",
        {
            "private": f"{private} (keep it off the robots)",
            "public": f"{public} (goes to the robots' folder of trusted keys)",
            "fingerprint": fingerprint(public),
        },
    )
    typer.echo(f"next: ferry sign BUNDLE --key {private}")


def sign(
    bundle: BundleFile,
    key: Annotated[Path, typer.Option(help="A private key of `ferry keygen`.")],
) -> None:
    """Verify a bundle and write its signature beside it, as BUNDLE.sig.

    Example: `ferry sign policy.onnx --key fleet`
    """
    from deploy.bundle import read_bundle
    from deploy.signing import write_signature

    verified = read_bundle(bundle)
    file = write_signature(bundle, verified.model_bytes, key)
    print_table(str(bundle), {"signature": str(file), "sha256": verified.sha256})
    if verified.evaluation is None:
        typer.echo("note: it was never evaluated; `ferry evaluate BUNDLE --stamp`, then sign again")
