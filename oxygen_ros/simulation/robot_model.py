"""
The MuJoCo model: OpenArm torso at a table, with cameras, places for objects and for clutter.

The robot is that of the package openarm-mujoco (Apache-2.0), which brings its meshes along. Shown are its collision
meshes: at the size of the pictures they look the same, and they render ten times as quick as the visual ones.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import numpy as np

from oxygen_ros.errors import ConfigError

ROBOT_FILE = 'openarm_bimanual.xml'
ARMS = ('left', 'right')
ARM_JOINTS = {arm: tuple(f'openarm_{arm}_joint{number}' for number in range(1, 8)) for arm in ARMS}
JOINTS = (*ARM_JOINTS['left'], *ARM_JOINTS['right'])  # what a policy sees and moves
FINGER_JOINTS = {arm: f'openarm_{arm}_finger_joint1' for arm in ARMS}
ACTUATED = (*JOINTS, *FINGER_JOINTS.values())
CAMERAS = {'head': 'head', 'left_wrist': 'camera_wrist_left', 'right_wrist': 'camera_wrist_right'}

SHOULDER_HEIGHT = 0.698  # m: the arms are mounted so high on the pedestal of the maker
TABLE_HEIGHT = 0.34  # m
TABLE_CENTRE = (0.46, 0.0)
TABLE_HALF_SIZE = (0.29, 0.46)
MAT_CENTRE = (0.365, 0.0)
MAT_HALF_SIZE = (0.15, 0.30)
FINGERTIP = (-0.0067, 0.0, -0.168)  # of a closed gripper, in the frame of its base, m
MAX_OBJECTS = 4
MAX_CLUTTER = 4
HEAD_CAMERA = (0.10, 0.0, SHOULDER_HEIGHT + 0.34)  # m
HEAD_TARGET = (0.385, 0.0, TABLE_HEIGHT)  # m: what it looks at
HEAD_FOV = 46.0  # degrees
# In the frame of the left gripper's base: beside the hand, looking past the fingertip. (The maker's look between the
# fingers, which are closed here.)
WRIST_CAMERA = (0.06, -0.08, -0.07)  # m
WRIST_TARGET = (-0.06, 0.0, -0.20)
WRIST_FOV = 70.0  # degrees
TIMESTEP = 0.002  # s
MAX_IMAGE_SIZE = 1280  # pixels
IMAGE_SIZE = 112  # pixels: what a policy sees
_NOT_INSTALLED = ("the simulator needs {}: install it with pip install 'oxygen_ros[simulation]' (make setup does)")


def rest_pose() -> dict[str, float]:
    """Return the joint positions of the robot at rest, rad by joint name."""
    left = (0.25, -0.45, -0.35, 1.55, 0.0, 0.0, 0.0)
    mirrored = (-1, -1, -1, 1, -1, -1, -1)
    pose = dict(zip(ARM_JOINTS['left'], left))
    pose.update(zip(ARM_JOINTS['right'], (sign * value for sign, value in zip(mirrored, left))))
    return pose | dict.fromkeys(FINGER_JOINTS.values(), 0.0)


def import_mujoco():
    """
    Return the module mujoco.

    :raises ConfigError: it is not installed.
    """
    try:
        import mujoco
    except ImportError:
        raise ConfigError(_NOT_INSTALLED.format('mujoco')) from None
    return mujoco


def robot_folder() -> Path:
    """
    Return the folder of the package openarm-mujoco that holds openarm_bimanual.xml and assets/.

    Its files lie beside Python's, where exactly depends on how it was installed: pip knows.

    :raises ConfigError: it is not installed.
    """
    try:
        files = metadata.files('openarm-mujoco') or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.parts[-2:] == ('v2', ROBOT_FILE) and (path := Path(file.locate())).is_file():
            return path.parent
    raise ConfigError(_NOT_INSTALLED.format('openarm-mujoco'))


def build_model():
    """
    Compile the model.

    :returns: mujoco.MjModel with sites `left_fingertip` and `right_fingertip`, bodies `object0`.. and `clutter0`.. with
        one geom each, of the same name.
    :raises ConfigError: mujoco or the robot is not installed.
    """
    mujoco, folder = import_mujoco(), robot_folder()
    spec = mujoco.MjSpec.from_file(str(folder / ROBOT_FILE))
    _show_collision_meshes(spec)
    for body in spec.bodies:
        if body.name in ('openarm_left_base_link', 'openarm_right_base_link'):
            body.pos = np.asarray(body.pos) + (0, 0, SHOULDER_HEIGHT)
        if body.name.startswith('openarm_'):
            body.gravcomp = 1.0  # as the maker's controller does; without it the arms sag by centimetres
    for arm in ARMS:
        hand = spec.body(f'openarm_{arm}_ee_base_link')
        spec.delete(spec.camera(CAMERAS[f'{arm}_wrist']))
        position = np.multiply(WRIST_CAMERA, (1, 1 if arm == 'left' else -1, 1))
        hand.add_camera(name=CAMERAS[f'{arm}_wrist'], pos=position, fovy=WRIST_FOV,
                        quat=look_at(position, WRIST_TARGET, up=(1, 0, 0)))
        hand.add_site(name=f'{arm}_fingertip', pos=FINGERTIP, size=[0.004] * 3, group=4)
    spec.option.timestep = TIMESTEP
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.visual.quality.offsamples = 0
    spec.visual.global_.offwidth = spec.visual.global_.offheight = MAX_IMAGE_SIZE
    spec.stat.extent = 1.0  # m: the unit of znear
    spec.visual.map.znear = 0.005  # hands and objects come near to the wrist cameras
    spec.visual.map.zfar = 20.0
    _add_surroundings(mujoco, spec, folder)
    return spec.compile()


def _show_collision_meshes(spec) -> None:
    for geom in list(spec.geoms):
        if geom.classname.name == 'visual':
            spec.delete(geom)
            continue
        tip = 'finger' in geom.name
        geom.group = 0
        geom.material = ''
        geom.rgba = (0.20, 0.20, 0.22, 1) if tip else (0.62, 0.63, 0.66, 1)
    used = {geom.meshname for geom in spec.geoms}
    for mesh in list(spec.meshes):
        if mesh.name not in used:
            spec.delete(mesh)
    for material in list(spec.materials):
        spec.delete(material)


def _add_surroundings(mujoco, spec, folder) -> None:
    shape = mujoco.mjtGeom
    ghost = {'contype': 0, 'conaffinity': 0}
    world = spec.worldbody
    spec.add_texture(name='sky', type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
                     rgb1=(0.75, 0.82, 0.90), rgb2=(0.45, 0.50, 0.56), width=64, height=384)  # for `Renderer.view` only
    for name, position in (('lamp', (0.4, 0.3, 2.0)), ('lamp2', (0.1, -0.6, 1.8))):
        world.add_light(name=name, pos=position, dir=(0, 0, -1), castshadow=False,
                        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL)
    world.add_geom(name='floor', type=shape.mjGEOM_PLANE, size=(4, 4, 0.1), rgba=(0.4, 0.4, 0.42, 1))
    world.add_geom(name='wall', type=shape.mjGEOM_BOX, pos=(2.0, 0, 1.0), size=(0.02, 4, 2),
                   rgba=(0.6, 0.6, 0.6, 1), **ghost)
    table = world.add_body(name='table', pos=(*TABLE_CENTRE, TABLE_HEIGHT - 0.02))
    table.add_geom(name='table', type=shape.mjGEOM_BOX, size=(*TABLE_HALF_SIZE, 0.02), rgba=(0.7, 0.6, 0.5, 1))
    world.add_geom(name='mat', type=shape.mjGEOM_BOX, pos=(*MAT_CENTRE, TABLE_HEIGHT), size=(*MAT_HALF_SIZE, 0.0008),
                   rgba=(0.85, 0.85, 0.85, 1), **ghost)
    spec.add_mesh(name='torso', file=str(folder / 'assets/collision/body_link0_symp.stl'), scale=(0.001,) * 3)
    world.add_geom(name='torso', type=shape.mjGEOM_MESH, meshname='torso', rgba=(0.25, 0.25, 0.27, 1), **ghost)
    world.add_geom(name='neck', type=shape.mjGEOM_CYLINDER, pos=(0, 0, SHOULDER_HEIGHT + 0.12), size=(0.035, 0.10, 0),
                   rgba=(0.25, 0.25, 0.27, 1), **ghost)
    world.add_geom(name='head', type=shape.mjGEOM_ELLIPSOID, pos=(-0.01, 0, SHOULDER_HEIGHT + 0.34),
                   size=(0.085, 0.075, 0.11), rgba=(0.62, 0.63, 0.66, 1), **ghost)
    camera = world.add_camera(name='head', fovy=HEAD_FOV, pos=HEAD_CAMERA)
    camera.quat = look_at(HEAD_CAMERA, HEAD_TARGET)
    for kind, count in (('object', MAX_OBJECTS), ('clutter', MAX_CLUTTER)):
        for number in range(count):
            body = world.add_body(name=f'{kind}{number}', pos=(0, 0, -1))
            body.add_geom(name=f'{kind}{number}', type=shape.mjGEOM_BOX, size=(0.03, 0.03, 0.03), rgba=(1, 1, 1, 1))


def look_at(position, target, roll: float = 0.0, up=(0.0, 0.0, 1.0)) -> np.ndarray:
    """
    Return the orientation of a camera as a quaternion (w, x, y, z): it looks at the target.

    :param position: m.
    :param target: m.
    :param roll: rad, about the line of sight.
    :param up: what is upwards in the picture; not the line of sight.
    """
    import mujoco
    back = np.subtract(position, target)
    back = back / np.linalg.norm(back)
    right = np.cross(up, back)
    right /= np.linalg.norm(right)
    down = np.cross(right, back)
    c, s = np.cos(roll), np.sin(roll)
    matrix = np.stack([c * right - s * down, -c * down - s * right, back], axis=1)
    quaternion = np.empty(4)
    mujoco.mju_mat2Quat(quaternion, matrix.ravel())
    return quaternion
