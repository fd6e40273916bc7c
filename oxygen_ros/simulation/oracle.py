"""The oracle: knows the scene, and so where the joints have to go and how. What the policy is trained on."""

from __future__ import annotations

import numpy as np

from oxygen_ros.simulation import robot_model as robot

HORIZON = 10
PERIOD = 0.1  # s
TOP_SPEED = 1.1  # rad/s, of the joint that has the longest way
APPROACH = 0.35  # of the way that is left, in a period: slows down towards the goal

# The arm bends to this as far as reaching allows: elbow outwards, rad, of the left arm.
NOMINAL = np.array((-0.60, -0.50, 0.20, 1.0, 0.0, 0.0, -0.80))
MIRROR = np.array((-1, -1, -1, 1, -1, -1, -1))  # to the right arm
POINTING = np.array((0.40, -0.90, -0.30))  # where the left hand points, as far as reaching allows
POSTURE_WEIGHT = 0.5  # of the posture, where the direction has 1
ITERATIONS = 100  # at most; 10 are common
SETTLED = 2e-4  # rad: a step that changes no more ends the search


class Oracle:
    """
    Finds joint positions and ways to them. Pure functions of scene and joints: equal situations have equal answers.

    :param model: mujoco.MjModel of `robot_model.build_model`. Its robot is used, not its scene.
    """

    def __init__(self, model) -> None:
        import mujoco
        self._mujoco = mujoco
        self._model = model
        self._data = mujoco.MjData(model)
        self._qpos = {arm: np.array([model.joint(name).qposadr[0] for name in robot.ARM_JOINTS[arm]])
                      for arm in robot.ARMS}
        self._dofs = {arm: np.array([model.joint(name).dofadr[0] for name in robot.ARM_JOINTS[arm]])
                      for arm in robot.ARMS}
        self._limits = {arm: np.array([model.joint(name).range for name in robot.ARM_JOINTS[arm]]).T
                        for arm in robot.ARMS}
        self._site = {arm: model.site(f'{arm}_fingertip').id for arm in robot.ARMS}
        pose = robot.rest_pose()
        self.rest = np.array([pose[name] for name in robot.JOINTS])

    def fingertip(self, joints: np.ndarray, arm: str) -> np.ndarray:
        """Return where the fingertip of an arm is, float64 [3] m, with JOINTS at these positions (float [14] rad)."""
        self._set(joints)
        return self._data.site_xpos[self._site[arm]].copy()

    def goal(self, arm: str, point: np.ndarray) -> np.ndarray:
        """
        Return positions of JOINTS, float64 [14] rad: the fingertip of the arm at the point, the other arm at rest.

        Newton steps to the posture that reaches the point and else is nearest to a nominal posture and direction of the
        hand (least squares under the constraint of the point). They always begin at the nominal posture, so the result
        depends on the point alone, and smoothly.

        :param point: float [3], m.
        """
        mirror = np.ones(7) if arm == 'left' else MIRROR
        nominal = NOMINAL * mirror
        pointing = POINTING * (1, 1 if arm == 'left' else -1, 1)
        pointing = pointing / np.linalg.norm(pointing)
        lower, upper = self._limits[arm] + ((0.02,), (-0.02,))
        joints = self.rest.copy()
        columns = slice(0, 7) if arm == 'left' else slice(7, 14)
        joints[columns] = nominal
        position, rotation = np.empty((3, self._model.nv)), np.empty((3, self._model.nv))
        system = np.zeros((10, 10))
        for _ in range(ITERATIONS):
            self._set(joints)
            self._mujoco.mj_comPos(self._model, self._data)
            self._mujoco.mj_jacSite(self._model, self._data, position, rotation, self._site[arm])
            jacobian, turning = position[:, self._dofs[arm]], rotation[:, self._dofs[arm]]
            error = np.asarray(point) - self._data.site_xpos[self._site[arm]]
            axis = -self._data.site_xmat[self._site[arm]].reshape(3, 3)[:, 2]
            x, y, z = axis
            turn = np.array(((0, z, -y), (-z, 0, x), (y, -x, 0))) @ turning  # of the axis, by the joints
            wish = turn.T @ (pointing - axis) + POSTURE_WEIGHT * (nominal - joints[columns])
            system[:7, :7] = turn.T @ turn + POSTURE_WEIGHT * np.eye(7)
            system[:7, 7:], system[7:, :7] = jacobian.T, jacobian
            wish = np.concatenate([wish, error])
            step = np.linalg.solve(system, wish)[:7]
            at = joints[columns].copy()
            stuck = ((at <= lower) & (step < 0)) | ((at >= upper) & (step > 0))
            if stuck.any():  # joints at their limits: the others do it
                system[np.arange(7), np.arange(7)] += stuck * 1e3
                step = np.linalg.solve(system, wish)[:7]
            joints[columns] = np.clip(at + np.clip(step, -0.3, 0.3), lower, upper)
            if np.abs(joints[columns] - at).max() < SETTLED:
                break
        return joints

    def chunk(self, joints: np.ndarray, goal: np.ndarray, horizon: int = HORIZON) -> np.ndarray:
        """
        Return the next positions on the way, float64 [horizon, 14] rad, a PERIOD apart; row 0 is one PERIOD ahead.

        All joints arrive together: quick while the way is long (TOP_SPEED), slower towards its end (APPROACH).

        :param joints: where they are, float [14] rad.
        :param goal: where they are to be, float [14] rad.
        """
        rows = np.empty((horizon, len(joints)))
        at = np.asarray(joints, dtype=np.float64)
        for row in range(horizon):
            way = goal - at
            longest = np.abs(way).max()
            at = at + way * min(APPROACH, TOP_SPEED * PERIOD / max(longest, 1e-9))
            rows[row] = at
        return rows

    def _set(self, joints: np.ndarray) -> None:
        self._data.qpos[self._qpos['left']] = joints[:7]
        self._data.qpos[self._qpos['right']] = joints[7:]
        self._mujoco.mj_kinematics(self._model, self._data)
