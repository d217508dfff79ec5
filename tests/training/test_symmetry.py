"""Mirror images, derived from the joint names of the shipped robot and checked by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from real.action import ActionSpec
from real.errors import ConfigError, FerryError
from real.frames import projected_gravity
from real.observation import ObservationSpec, ObsTerm, make_term
from real.rollout import Rollout
from real.spec import RobotSpec, load_robot
from training.learner import Learner
from training.networks import ActorCritic, NetworkConfig
from training.ppo import PpoConfig
from training.symmetry import Mirror, SignedPermutation, SymmetryConfig, mirror_joints

A1 = SymmetryConfig(enabled=True, pairs=(("FR_", "FL_"), ("RR_", "RL_")), flip=("_hip_",))


@pytest.fixture(scope="module")
def robot() -> RobotSpec:
    return load_robot("a1")


def spec(robot: RobotSpec, *, history: int = 1) -> ObservationSpec:
    names = (
        "joint_vel",  # an order of its own: nothing may depend on that of the task file
        "command",
        "base_ang_vel",
        "projected_gravity",
        "prev_action",
        "joint_pos",
    )
    return ObservationSpec(
        tuple(
            make_term(n, robot, command_dim=3, history=history if n == "joint_pos" else 1)
            for n in names
        )
    )


def mirror(robot: RobotSpec, *, history: int = 1, config: SymmetryConfig = A1) -> Mirror:
    return Mirror.of(
        config,
        robot,
        observation=spec(robot, history=history),
        action=ActionSpec.from_robot(robot, clip=5.0),
    )


@pytest.mark.parametrize("history", [1, 3])
def test_mirroring_twice_is_the_identity_and_once_is_not(robot, history):
    made = mirror(robot, history=history)
    obs = torch.randn(5, spec(robot, history=history).dim)
    action = torch.randn(5, 12)
    assert torch.equal(made.obs(made.obs(obs)), obs)
    assert torch.equal(made.action(made.action(action)), action)
    assert not torch.equal(made.obs(obs), obs)


def test_a_leg_lands_on_its_neighbour_and_the_hip_changes_its_sign(robot):
    names = [j.name for j in robot.joints]
    q = torch.arange(1.0, 13.0)
    image = mirror(robot).action(q)
    for name, other in (
        ("FR_hip_joint", "FL_hip_joint"),
        ("RL_lower_joint", "RR_lower_joint"),
        ("FL_upper_joint", "FR_upper_joint"),
    ):
        sign = -1.0 if "hip" in name else 1.0
        assert image[names.index(name)] == sign * q[names.index(other)]


def test_every_part_of_an_observation_lands_where_it_belongs(robot):
    layout = spec(robot).slices()
    obs = torch.zeros(layout["joint_pos"].stop)
    obs[layout["command"]] = torch.tensor([1.0, 2.0, 3.0])
    obs[layout["base_ang_vel"]] = torch.tensor([1.0, 2.0, 3.0])
    obs[layout["joint_vel"]] = torch.arange(1.0, 13.0)
    image = mirror(robot).obs(obs)
    assert image[layout["command"]].tolist() == [1.0, -2.0, -3.0]
    assert image[layout["base_ang_vel"]].tolist() == [-1.0, 2.0, -3.0]
    assert torch.equal(image[layout["joint_vel"]], mirror(robot).action(torch.arange(1.0, 13.0)))
    assert image[layout["joint_pos"]].abs().sum() == 0.0


def test_gravity_of_a_mirrored_pose_is_the_mirror_image_of_gravity(robot):
    # A reflection y -> -y turns the rotation (w, x, y, z) into (w, -x, y, -z).
    quat = np.array([[0.8, 0.3, -0.4, 0.2]])
    quat /= np.linalg.norm(quat)
    layout = spec(robot).slices()["projected_gravity"]
    obs = torch.zeros(1, spec(robot).dim)
    obs[:, layout] = torch.from_numpy(projected_gravity(quat)).float()
    expected = projected_gravity(quat * np.array([1.0, -1.0, 1.0, -1.0]))
    np.testing.assert_allclose(mirror(robot).obs(obs)[:, layout], expected, atol=1e-6)


def test_a_history_is_mirrored_step_by_step(robot):
    layout = spec(robot, history=3).slices()["joint_pos"]
    obs = torch.randn(spec(robot, history=3).dim)
    made = mirror(robot, history=3)
    steps, images = obs[layout].reshape(3, 12), made.obs(obs)[layout].reshape(3, 12)
    assert torch.equal(images, made.action(steps))


@pytest.mark.parametrize(
    ("pairs", "flip", "words"),
    [
        ((("FR_", "FX_"),), (), "'FX_'"),
        ((("FR_", "FL_"),), ("knee",), "'knee'"),
        ((("FR_", "FL_"), ("FR_", "RR_")), (), "expected exactly one"),
        ((("hip", "RL_"),), (), "expected exactly one"),
    ],
)
def test_a_name_part_that_fits_no_joint_or_no_partner_is_refused(robot, pairs, flip, words):
    with pytest.raises(ConfigError, match=words):
        mirror(robot, config=SymmetryConfig(enabled=True, pairs=pairs, flip=flip))


def test_joints_outside_the_pairs_stay_where_they_are():
    config = SymmetryConfig(pairs=(("left", "right"),), flip=("yaw",))
    found = mirror_joints(config, ["left_knee", "waist_yaw", "right_knee", "waist_pitch"])
    assert found.index == (2, 1, 0, 3)
    assert found.sign == (1.0, -1.0, 1.0, 1.0)


def test_a_robot_that_is_not_its_own_mirror_image_is_refused(robot):
    first = dataclasses.replace(robot.joints[0], q_default=0.1)
    bent = dataclasses.replace(robot, joints=(first, *robot.joints[1:]))
    with pytest.raises(ConfigError, match=r"q_default of 'FR_hip_joint' is 0.1"):
        mirror(bent)


def test_a_term_without_a_known_mirror_image_is_refused(robot):
    odd = ObsTerm("wind", 2, "m/s", 1.0, None, 1, "wind")
    with pytest.raises(FerryError, match="'wind'"):
        Mirror.of(
            A1,
            robot,
            observation=ObservationSpec((odd,)),
            action=ActionSpec.from_robot(robot, clip=5.0),
        )


# ------------------------------------------------------------------ learning from images

SWAP = Mirror(
    SignedPermutation((1, 0, 2), (1.0, 1.0, -1.0)), SignedPermutation((0, 1), (-1.0, 1.0))
)


BEST = np.float32([1.0, 0.5])


def one_sided(policy: ActorCritic, seed: int, *, version: int) -> Rollout:
    """The policy acts, but only the left side is ever seen; there the action ``BEST`` pays most."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(33, 20, 3)).astype(np.float32) + np.float32([3, -3, 2])
    noise = torch.from_numpy(rng.normal(size=(32, 20, 2)).astype(np.float32))
    with torch.no_grad():
        actions, log_probs = (
            x.numpy() for x in policy.act(torch.from_numpy(obs[:-1]), noise=noise)
        )
    always = np.ones((32, 20), dtype=bool)
    return Rollout(
        obs=obs,
        critic_obs=obs[:, :, :2].copy(),
        actions=actions,
        log_probs=log_probs,
        rewards=-((actions - BEST) ** 2).sum(-1),
        terminated=always,
        truncated=~always,
        final_index=np.empty((0, 2), np.int64),
        final_critic_obs=np.empty((0, 2), np.float32),
        policy_version=version,
        actor_id="a",
    )


def learner(mirror: Mirror | None) -> Learner:
    network = NetworkConfig(hidden=(32,), critic_hidden=(8,))
    return Learner(3, 2, action_dim=2, network=network, ppo=PpoConfig(), seed=0, mirror=mirror)


def test_a_batch_holds_each_samples_image_under_the_statistics_of_the_original():
    made = learner(SWAP)
    made.update([one_sided(made.policy, 0, version=0)])
    rollout = one_sided(made.policy, 1, version=1)
    batch = made._prepare([rollout]).batch
    raw = torch.from_numpy(rollout.obs[:-1].reshape(-1, 3))
    assert batch.mirrored
    assert batch.size == len(raw) == 640
    policy = made.policy
    with torch.no_grad():
        torch.testing.assert_close(batch.obs[640:], policy.obs_norm(SWAP.obs(raw)))
        torch.testing.assert_close(batch.means[640:], policy.mean(SWAP.obs(raw)))
    actions = torch.from_numpy(rollout.actions.reshape(-1, 2))
    torch.testing.assert_close(batch.actions[640:], actions * torch.tensor([-1.0, 1.0]))

    rows, image = torch.tensor([7, 600, 3]), torch.tensor([0, 1, 1])
    taken = batch.actor_part(rows, image)
    assert torch.equal(taken.obs, batch.obs[[7, 1240, 643]])
    assert torch.equal(taken.actions, batch.actions[[7, 1240, 643]])
    assert torch.equal(taken.advantages, batch.advantages[rows])
    assert torch.equal(taken.log_probs, batch.log_probs[rows])


@pytest.mark.slow
@pytest.mark.parametrize("mirror", [SWAP, None])
def test_what_was_learned_on_one_side_is_known_on_the_other_only_with_images(mirror):
    made = learner(mirror)
    for version in range(30):
        made.update([one_sided(made.policy, version, version=version)])
    obs = torch.from_numpy(one_sided(made.policy, 99, version=30).obs[0])
    with torch.no_grad():
        here, there = made.policy.mean(obs).mean(0), made.policy.mean(SWAP.obs(obs)).mean(0)
    np.testing.assert_allclose(here, BEST, atol=0.25)
    image = SWAP.action(torch.from_numpy(BEST)).numpy()  # (-1, 0.5)
    assert np.allclose(there, image, atol=0.25) == (mirror is not None)
