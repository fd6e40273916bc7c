"""The action task: observations in, joint chunks out. The mapping between a model and a robot happens here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oxygen_ros.engine.requests import ActionChunk
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.interface import ModelSpec, PolicyInput
from oxygen_ros.observation import Observation
from oxygen_ros.robot.chunk import JointChunk
from oxygen_ros.robot.layout import ActionMode
from oxygen_ros.robot.robot_file import Robot
from oxygen_ros.robot.state_check import StateCheck


class ActionTask:
    """
    Knows how the vectors of one model map to one robot.

    Statistics that the model's checkpoint brings along win over those of the robot file.

    :param layout: name of the layout in the robot file.
    :raises ConfigError: the robot lacks the layout or a camera, the model has fewer action numbers than joints, or the
        statistics of the checkpoint are for other numbers of joints.
    """

    def __init__(self, robot: Robot, layout: str, spec: ModelSpec) -> None:
        self.robot, self.spec = robot, spec
        self.layout = robot.layout(layout)
        robot.require_cameras(spec.cameras)
        if len(self.layout.actions) > spec.action_dim:
            raise ConfigError(f'layout {layout!r} of robot {robot.name!r} has {len(self.layout.actions)} action '
                              f'joints, model {spec.name!r} gives {spec.action_dim} numbers: choose another of both')
        if spec.statistics is not None:
            self.layout = replace(self.layout, state_statistics=spec.statistics.of_state(len(self.layout.state)),
                                  action_statistics=spec.statistics.of_actions(len(self.layout.actions)),
                                  epsilon=spec.statistics.epsilon)

        self.state_check = StateCheck(robot.joints, self.layout)

    @property
    def joints(self) -> tuple[str, ...]:
        """Names of the joints that are commanded."""
        return self.layout.commanded

    def policy_input(self, observation: Observation) -> PolicyInput:
        """
        Return what the model sees of an observation.

        :raises MissingJoint: the observation lacks a joint of the state.
        """
        return PolicyInput(observation, self.layout.encode_state(observation.joint_names, observation.joint_positions))

    def example(self) -> PolicyInput:
        """Return an input of usual size: black pictures, the robot in its default pose. For warming up."""
        names = self.robot.joint_names
        pose = np.array([joint.default for joint in self.robot.joints])
        black = np.zeros((224, 224, 3), dtype=np.uint8)
        return self.policy_input(Observation(0, 0, dict.fromkeys(self.spec.cameras, black), names, pose))

    def joint_chunk(self, chunk: ActionChunk) -> JointChunk:
        """
        Return a chunk in joint space, in rad, with the times that its rows are meant for.

        Deltas count from the joint state of the chunk's own frame, however old it is by now.

        :raises ChunkRejected: it holds a number that is not finite.
        """
        observation = chunk.inputs.observation
        positions = self.layout.decode_actions(chunk.actions, observation.joint_names, observation.joint_positions)
        period_ns = round(self.spec.action_period * 1e9)
        return JointChunk(self.layout.commanded, positions,
                          observation.stamp_ns + self.spec.first_action_offset * period_ns, period_ns,
                          observation.number, observation.stamp_ns)

    def reexpress(self, actions: np.ndarray, old: Observation, new: Observation) -> np.ndarray:
        """
        Return actions of an old frame as if they had been made for a new one: deltas count from its joint state.

        :param actions: [horizon, action_dim] in normalised model space; padding stays as it is.
        :raises ChunkRejected: they are not finite.
        """
        if self.layout.action_mode is ActionMode.ABSOLUTE:
            return actions
        targets = self.layout.decode_actions(actions, old.joint_names, old.joint_positions)
        result = np.array(actions, dtype=np.float64)
        result[:, :len(self.layout.actions)] = self.layout.encode_actions(targets, new.joint_names, new.joint_positions)
        return result
