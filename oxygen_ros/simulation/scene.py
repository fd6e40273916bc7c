"""A scene: the objects on the table and how everything looks, drawn from a seed; and how it is put into the model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from oxygen_ros.simulation import robot_model as robot
from oxygen_ros.simulation.objects import BORDER_GAP, COLOURS, LEFT_MIDDLE, NEAR_FAR, SHAPES, TableObject, half_height

AREA_X = (0.245, 0.475)  # m: where objects lie
AREA_Y = (-0.265, 0.265)
APART = 0.10  # m, between the centres of objects
ARM_GAP = 0.02  # m: objects keep off the line at which the other arm becomes the nearer one
HALF_SIZES = (0.025, 0.033)  # m
COUNT_WEIGHTS = (0.14, 0.24, 0.31, 0.31)  # of 1 to 4 objects
ALIKE = 0.4  # how often an object takes its colour from one before it; as often its shape


@dataclass(frozen=True)
class Clutter:
    """A thing that has no name: position and half sizes in m, yaw in rad, RGB from 0 to 1."""

    position: tuple[float, float, float]
    size: tuple[float, float, float]
    yaw: float
    colour: tuple[float, float, float]


@dataclass(frozen=True)
class Look:
    """
    How a scene looks, and from where.

    :param ambient: RGB of the light from everywhere, 0 to 1.
    :param camera_light: RGB of the light at the camera.
    :param lamp: RGB of the lamp above; `lamp_direction` is where it shines.
    :param surfaces: RGB by name of a geom of the model (table, mat, floor, wall, torso), and 'arm', 'hand'.
    :param object_colours: RGB of each object.
    :param camera_position: of the head camera, m; `camera_target` is what it looks at, `camera_roll` in rad.
    :param camera_fov: degrees.
    """

    ambient: tuple[float, float, float]
    camera_light: tuple[float, float, float]
    lamp: tuple[float, float, float]
    lamp_direction: tuple[float, float, float]
    surfaces: dict[str, tuple[float, float, float]]
    object_colours: tuple[tuple[float, float, float], ...]
    camera_position: tuple[float, float, float]
    camera_target: tuple[float, float, float]
    camera_roll: float
    camera_fov: float


@dataclass(frozen=True)
class Scene:
    """At most MAX_OBJECTS objects (no two alike in colour and shape), clutter, and how it looks."""

    objects: tuple[TableObject, ...]
    clutter: tuple[Clutter, ...]
    look: Look

    def __post_init__(self) -> None:
        names = [item.name for item in self.objects]
        if len(names) > robot.MAX_OBJECTS or len(self.clutter) > robot.MAX_CLUTTER:
            raise ValueError(f'too much on the table: {names}, clutter {len(self.clutter)}')
        if len(set(names)) != len(names):
            raise ValueError(f'objects must differ in colour or shape: {names}')


def sample_scene(random: np.random.Generator) -> Scene:
    """
    Draw a scene.

    Objects keep off the borders of regions and off the line between the arms, so that what is asked about them has one
    answer.
    """
    objects = _objects(random)
    return Scene(objects, _clutter(random), sample_look(random, objects))


def _objects(random: np.random.Generator) -> tuple[TableObject, ...]:
    count = int(random.choice(len(COUNT_WEIGHTS), p=COUNT_WEIGHTS)) + 1
    kinds: list[tuple[str, str]] = []
    while len(kinds) < count:
        colour, shape = str(random.choice(list(COLOURS))), str(random.choice(SHAPES))
        if kinds:
            other = kinds[int(random.integers(len(kinds)))]
            draw = random.random()
            colour = other[0] if draw < ALIKE else colour
            shape = other[1] if ALIKE <= draw < 2 * ALIKE else shape
        if (colour, shape) not in kinds:
            kinds.append((colour, shape))
    places = _places(random, count)
    objects = []
    for (colour, shape), (x, y) in zip(kinds, places):
        size = float(random.uniform(*HALF_SIZES))
        size *= 0.92 if shape == 'cylinder' else 1.08 if shape == 'ball' else 1.0
        height = robot.TABLE_HEIGHT + half_height(shape, size)
        yaw = float(random.uniform(-math.pi / 4, math.pi / 4))
        objects.append(TableObject(colour, shape, (x, y, height), size, yaw))
    return tuple(objects)


def _places(random: np.random.Generator, count: int) -> list[tuple[float, float]]:
    """Draw places that keep off the borders and from each other."""
    places: list[tuple[float, float]] = []
    tries = 0
    while len(places) < count:
        x, y = float(random.uniform(*AREA_X)), float(random.uniform(*AREA_Y))
        tries += 1
        if tries > 200:  # the first ones leave no room
            places, tries = [], 0
        if abs(x - NEAR_FAR) < BORDER_GAP or abs(abs(y) - LEFT_MIDDLE) < BORDER_GAP or abs(y) < ARM_GAP:
            continue
        if all(math.hypot(x - other_x, y - other_y) >= APART for other_x, other_y in places):
            places.append((x, y))
    return places


def _dull(random: np.random.Generator, low: float, high: float, spread: float = 0.06) -> tuple[float, float, float]:
    """Draw a colour without much colour: grey, beige, brown."""
    value = random.uniform(low, high)
    warm = random.uniform(-0.3, 1.0) * spread
    red, green, blue = np.clip([value + warm, value + 0.3 * warm, value - warm], 0, 1)
    return float(red), float(green), float(blue)


def _clutter(random: np.random.Generator) -> tuple[Clutter, ...]:
    items = []
    for _ in range(int(random.integers(0, robot.MAX_CLUTTER + 1))):
        size = random.uniform((0.02, 0.02, 0.004), (0.07, 0.05, 0.03))
        if random.random() < 0.4:  # a sheet of paper, anywhere
            size[2] = 0.0006
            x, y = random.uniform(0.22, 0.6), random.uniform(-0.35, 0.35)
        elif random.random() < 0.5:  # beside the mat
            x, y = random.uniform(0.3, 0.65), random.choice((-1, 1)) * random.uniform(0.39, 0.43)
        else:  # behind it
            x, y = random.uniform(0.60, 0.68), random.uniform(-0.3, 0.3)
        height = robot.TABLE_HEIGHT + 0.001 + float(size[2])
        items.append(Clutter((float(x), float(y), height), tuple(map(float, size)), float(random.uniform(-1.5, 1.5)),
                             _dull(random, 0.15, 0.9, 0.08)))
    return tuple(items)


def sample_look(random: np.random.Generator, objects: tuple[TableObject, ...]) -> Look:
    """Draw how a scene with these objects looks."""
    tint = 1 + random.uniform(-0.05, 0.05, 3)

    def light(low: float, high: float) -> tuple[float, float, float]:
        return tuple(map(float, random.uniform(low, high) * tint))

    def near(point: tuple[float, float, float], spread: float) -> tuple[float, float, float]:
        return tuple(map(float, np.add(point, random.uniform(-spread, spread, 3))))

    table = _dull(random, 0.2, 0.75, 0.12)
    mat = _dull(random, 0.15, 0.85, 0.04)
    while abs(mat[1] - table[1]) < 0.12:  # its edges show
        mat = _dull(random, 0.15, 0.85, 0.04)
    surfaces = {'table': table, 'mat': mat, 'floor': _dull(random, 0.1, 0.7),
                'wall': _dull(random, 0.2, 0.8), 'torso': _dull(random, 0.15, 0.35),
                'arm': _dull(random, 0.5, 0.75, 0.02), 'hand': _dull(random, 0.12, 0.3, 0.02)}
    colours = tuple(tuple(map(float, np.clip(
        (np.array(COLOURS[item.colour]) + random.uniform(-0.05, 0.05, 3)) * random.uniform(0.85, 1.1), 0, 1)))
        for item in objects)
    return Look(ambient=light(0.36, 0.52), camera_light=light(0.10, 0.25), lamp=light(0.25, 0.45),
                lamp_direction=(float(random.uniform(-0.5, 0.5)), float(random.uniform(-0.7, 0.7)), -1.0),
                surfaces=surfaces, object_colours=colours, camera_position=near(robot.HEAD_CAMERA, 0.008),
                camera_target=near(robot.HEAD_TARGET, 0.005), camera_roll=float(random.uniform(-0.01, 0.01)),
                camera_fov=float(robot.HEAD_FOV + random.uniform(-1.0, 1.0)))


def apply_scene(model, scene: Scene) -> None:
    """
    Put a scene into the model; kinematics must be computed anew.

    :param model: mujoco.MjModel of `robot_model.build_model`.
    """
    import mujoco
    types = {'cube': mujoco.mjtGeom.mjGEOM_BOX, 'ball': mujoco.mjtGeom.mjGEOM_SPHERE,
             'cylinder': mujoco.mjtGeom.mjGEOM_CYLINDER}
    look = scene.look
    for number in range(robot.MAX_OBJECTS):
        if number >= len(scene.objects):
            _place(model, f'object{number}', types['cube'], (0, 0, -1), 0.0, (0.01,) * 3, (0, 0, 0))
            continue
        item = scene.objects[number]
        size = {'cube': (item.half_size,) * 3, 'ball': (item.half_size, 0, 0),
                'cylinder': (item.half_size, item.half_height, 0)}[item.shape]
        _place(model, f'object{number}', types[item.shape], item.position, item.yaw, size, look.object_colours[number])
    for number in range(robot.MAX_CLUTTER):
        if number < len(scene.clutter):
            thing = scene.clutter[number]
            _place(model, f'clutter{number}', types['cube'], thing.position, thing.yaw, thing.size, thing.colour)
        else:
            _place(model, f'clutter{number}', types['cube'], (0, 0, -1), 0.0, (0.01,) * 3, (0, 0, 0))
    for name in ('table', 'mat', 'floor', 'wall', 'torso'):
        model.geom(name).rgba[:3] = look.surfaces[name]
    for geom in range(model.ngeom):
        body = model.body(model.geom_bodyid[geom]).name
        if body.startswith('openarm_'):
            model.geom_rgba[geom, :3] = look.surfaces['hand' if 'finger' in body else 'arm']
    model.vis.headlight.ambient[:] = look.ambient
    model.vis.headlight.diffuse[:] = look.camera_light
    model.vis.headlight.specular[:] = 0.05
    for light, share in (('lamp', 0.7), ('lamp2', 0.3)):
        model.light(light).diffuse[:] = np.multiply(look.lamp, share)
        model.light(light).specular[:] = 0.1
    direction = np.array(look.lamp_direction)
    model.light('lamp').dir[:] = direction / np.linalg.norm(direction)
    camera = model.camera('head')
    camera.pos[:] = look.camera_position
    camera.quat[:] = robot.look_at(look.camera_position, look.camera_target, look.camera_roll)
    camera.fovy[:] = look.camera_fov


def _place(model, name: str, kind, position, yaw: float, size, colour) -> None:
    body, geom = model.body(name), model.geom(name).id
    body.pos[:] = position
    body.quat[:] = (math.cos(yaw / 2), 0, 0, math.sin(yaw / 2))
    model.geom_type[geom] = kind
    model.geom_size[geom] = size
    model.geom_rgba[geom] = (*colour, 1)
    x, y, z = size
    half = (x, x, x) if y == 0 else (x, x, y) if z == 0 else size
    model.geom_aabb[geom] = (0, 0, 0, *half)
    model.geom_rbound[geom] = x if y == 0 else math.hypot(x, y) if z == 0 else float(np.linalg.norm(size))
