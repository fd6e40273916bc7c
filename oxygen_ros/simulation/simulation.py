"""The simulated robot in a process: reset, observe, command, step. What the node and the evaluation drive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oxygen_ros.errors import ConfigError
from oxygen_ros.observation import Observation
from oxygen_ros.robot.joints import select
from oxygen_ros.simulation import robot_model as robot
from oxygen_ros.simulation.objects import TableObject
from oxygen_ros.simulation.oracle import Oracle
from oxygen_ros.simulation.renderer import Renderer, choose_backend
from oxygen_ros.simulation.scene import Scene, apply_scene, sample_scene

# Training data draws its scenes from [seed of the dataset, shard, placement]: no dataset has this seed.
SCENE_STREAM = 2**31 + 7
START_NS = 1_000_000_000  # stamps of 0 mean that there is none


@dataclass(frozen=True)
class Truth:
    """
    What is so.

    :param objects: on the table; with the pixels that the head camera sees of each, if the simulation renders.
    :param fingertips: arm -> float64 [3] m.
    :param joints: float64 [14] rad, in the order of `robot_model.JOINTS`.
    :param from_rest: rad from the rest pose, of the joint that is furthest.
    """

    objects: tuple[TableObject, ...]
    fingertips: dict[str, np.ndarray]
    joints: np.ndarray
    from_rest: float


class Simulation:
    """
    OpenArm at a table, in MuJoCo physics. Use one thread for all calls.

    Time only passes in `step` and never goes back, not at a reset either.

    :param render: make pictures. Without, `observe` has none, and `truth` does not know what is seen.
    :param image_size: height and width of the pictures of `observe`, pixels, at most MAX_IMAGE_SIZE.
    :param seed: of the first scene.
    :raises ConfigError: mujoco, the robot or (with `render`) OpenGL is missing.
    """

    def __init__(self, render: bool = True, image_size: int = robot.IMAGE_SIZE, seed: int = 0) -> None:
        if not 8 <= image_size <= robot.MAX_IMAGE_SIZE:
            raise ConfigError(f'pictures of {image_size} pixels cannot be made: 8 to {robot.MAX_IMAGE_SIZE}')
        if render:
            choose_backend()
        self._mujoco = robot.import_mujoco()
        self.model = robot.build_model()
        self.data = self._mujoco.MjData(self.model)
        self.renderer = Renderer(self.model) if render else None
        self.oracle = Oracle(self.model)
        self._image_size = image_size
        model = self.model
        self._qpos = np.array([model.joint(name).qposadr[0] for name in robot.ACTUATED])
        self._dofs = np.array([model.joint(name).dofadr[0] for name in robot.ACTUATED])
        by_joint = {model.actuator_trnid[number, 0]: number for number in range(model.nu)}
        self._controls = np.array([by_joint[model.joint(name).id] for name in robot.ACTUATED])
        self._limits = model.actuator_ctrlrange[self._controls].T
        self._time_ns = START_NS
        self._owed = 0.0  # seconds of `step` that are less than a step of the physics
        self._frames = 0
        self.seed = seed
        self.scene: Scene
        self.reset(seed)

    @property
    def time_ns(self) -> int:
        """Nanoseconds of simulated time."""
        return self._time_ns

    @property
    def commanded(self) -> np.ndarray:
        """Positions that the actuators are told, float64 [16] rad, in the order of ACTUATED."""
        return self.data.ctrl[self._controls].copy()

    def reset(self, seed: int, scene: Scene | None = None, joints: np.ndarray | None = None) -> Scene:
        """
        Begin anew with another scene, the robot at rest or as told, standing still.

        :param seed: 0 or more: equal seeds are equal scenes.
        :param scene: this instead of the one of the seed.
        :param joints: float [14] rad, in the order of JOINTS; None for the rest pose.
        """
        self.seed = seed
        self.scene = sample_scene(np.random.default_rng([SCENE_STREAM, seed])) if scene is None else scene
        apply_scene(self.model, self.scene)
        self._mujoco.mj_resetData(self.model, self.data)
        pose = robot.rest_pose()
        if joints is not None:
            pose.update(zip(robot.JOINTS, joints))
        positions = np.array([pose[name] for name in robot.ACTUATED])
        self.data.qpos[self._qpos] = positions
        self.data.ctrl[self._controls] = positions
        self._mujoco.mj_forward(self.model, self.data)
        return self.scene

    def command(self, positions: np.ndarray, names: Sequence[str] = robot.JOINTS) -> None:
        """
        Tell the position actuators where to go. They keep to it until told otherwise; joints not named keep theirs.

        :param positions: [joints] rad; what is beyond the limits of a joint is clipped to them.
        :raises MissingJoint, ValueError: a name is no joint of the robot, the shapes differ, or a number is not finite.
        """
        positions = np.asarray(positions, dtype=np.float64)
        if positions.shape != (len(names),) or not np.isfinite(positions).all():
            raise ValueError(f'{len(names)} joints, but positions {positions}')
        select(robot.ACTUATED, self._qpos, names)  # all are joints of the robot
        index = [robot.ACTUATED.index(name) for name in names]
        lower, upper = self._limits[:, index]
        self.data.ctrl[self._controls[index]] = np.clip(positions, lower, upper)

    def step(self, seconds: float) -> None:
        """Let time pass: physics in steps of TIMESTEP; what is left over counts the next time."""
        self._owed += seconds
        steps = int(self._owed / robot.TIMESTEP + 1e-6)
        self._owed -= steps * robot.TIMESTEP
        for _ in range(steps):
            self._mujoco.mj_step(self.model, self.data)
        self._time_ns += steps * round(robot.TIMESTEP * 1e9)

    def observe(self) -> Observation:
        """Return pictures and joint state of this moment; joints in the order of ACTUATED."""
        self._frames += 1
        positions, velocities = self.joint_state()
        return Observation(
            number=self._frames, stamp_ns=self._time_ns, images=self.images(), joint_names=robot.ACTUATED,
            joint_positions=positions, joint_velocities=velocities, tf_frame='base_link')

    def joint_state(self) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and velocities of ACTUATED, float64 [16] rad and rad/s."""
        return self.data.qpos[self._qpos].copy(), self.data.qvel[self._dofs].copy()

    def images(self) -> dict[str, np.ndarray]:
        """Return the pictures of this moment by camera, uint8 [size, size, 3] RGB; none if it does not render."""
        if self.renderer is None:
            return {}
        self._update()
        return {camera: self.renderer.image(self.data, camera, self._image_size) for camera in robot.CAMERAS}

    def view(self, width: int = 640, height: int = 480, smooth: bool = True) -> np.ndarray:
        """
        Return a picture of robot and table for people, uint8 [height, width, 3] RGB.

        :param width: pixels, at most half of MAX_IMAGE_SIZE, as `height`.
        :param smooth: smooth edges, which takes three times as long.
        :raises ConfigError: it does not render.
        """
        if self.renderer is None:
            raise ConfigError('a simulation without pictures has no view')
        self._update()
        return self.renderer.view(self.data, width, height, smooth)

    def truth(self, seen: bool = True) -> Truth:
        """
        Return what is so at this moment.

        :param seen: find out what the head camera sees, which takes a picture; if the simulation renders.
        """
        self._update()
        objects = self.scene.objects
        if seen and self.renderer is not None:
            seen = self.renderer.segmentation(self.data, 'head', robot.IMAGE_SIZE)
            pixels = np.bincount(seen.ravel(), minlength=robot.MAX_OBJECTS + 1)[1:]
            objects = tuple(item.with_pixels(count) for item, count in zip(objects, pixels))
        joints = self.data.qpos[self._qpos[:len(robot.JOINTS)]].copy()
        return Truth(objects, {arm: self.data.site(f'{arm}_fingertip').xpos.copy() for arm in robot.ARMS}, joints,
                     float(np.abs(joints - self.oracle.rest).max()))

    def _update(self) -> None:
        """Compute where things are now: after a step of the physics they are where they were before it."""
        self._mujoco.mj_kinematics(self.model, self.data)
        self._mujoco.mj_camlight(self.model, self.data)
