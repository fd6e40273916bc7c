"""
Pictures of the simulated cameras, without a display.

OpenGL comes from EGL or OSMesa, whichever works here (the environment variable MUJOCO_GL chooses one). A process has
one OpenGL context for all renderers, since a second one after the first was freed fails with EGL. Use a renderer on the
thread that made the first one.
"""

from __future__ import annotations

import os
import subprocess
import sys

import cv2
import numpy as np

from oxygen_ros.errors import ConfigError
from oxygen_ros.simulation import robot_model as robot

BACKENDS = ('egl', 'osmesa')
PROBE = '''
import mujoco
context = mujoco.GLContext(8, 8)
context.make_current()
mujoco.MjrContext(mujoco.MjModel.from_xml_string("<mujoco/>"), mujoco.mjtFontScale.mjFONTSCALE_100)
'''
_working: set[str] = set()  # backends that were tried
_context = None
# Where `Renderer.view` looks from: target [3] m, distance m, azimuth and elevation in degrees.
VIEW = ((0.24, 0.0, 0.60), 1.55, 152.0, -22.0)


def choose_backend() -> str:
    """
    Return the OpenGL backend that works here, and set MUJOCO_GL to it. Comes before mujoco is imported.

    Each is tried in a process of its own, since one that fails leaves nothing to go on with.

    :raises ConfigError: none works, or not the one that MUJOCO_GL names.
    """
    chosen = os.environ.get('MUJOCO_GL')
    for backend in (chosen,) if chosen else BACKENDS:
        if backend in _working or not subprocess.run([sys.executable, '-c', PROBE], capture_output=True,
                                                     env=os.environ | {'MUJOCO_GL': backend}).returncode:
            _working.add(backend)
            os.environ['MUJOCO_GL'] = backend
            return backend
    what = f'MUJOCO_GL={chosen} does not work' if chosen else 'neither EGL nor OSMesa works'
    raise ConfigError(f'the simulator cannot render: {what} here; apt install libegl1 libgl1-mesa-dri (or libosmesa6)')


def _make_current() -> None:
    global _context
    if _context is None:
        backend = choose_backend()
        os.environ.setdefault('LP_NUM_THREADS', '0')  # Mesa: threads cost more than they give for pictures so small
        if backend == 'osmesa':
            from mujoco.osmesa import GLContext
        elif backend == 'egl':
            from mujoco.egl import GLContext
        else:
            from mujoco import GLContext
        _context = GLContext(robot.MAX_IMAGE_SIZE, robot.MAX_IMAGE_SIZE)
    _context.make_current()


class Renderer:
    """
    Renders cameras of a model.

    :param model: mujoco.MjModel of `robot_model.build_model`; what is changed in it shows, but for meshes.
    :raises ConfigError: OpenGL does not work here.
    """

    def __init__(self, model) -> None:
        _make_current()
        import mujoco
        self._mujoco = mujoco
        self._model = model
        self._scene = mujoco.MjvScene(model, maxgeom=200)
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SKYBOX] = 0
        self._option = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        self._gl = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        self._objects = {model.geom(f'object{number}').id: number + 1 for number in range(robot.MAX_OBJECTS)}

    def image(self, data, camera: str, size: int) -> np.ndarray:
        """
        Return a picture.

        :param data: mujoco.MjData with kinematics and cameras computed.
        :param camera: a key of CAMERAS.
        :param size: height and width, pixels, at most MAX_IMAGE_SIZE.
        :returns: uint8 [size, size, 3] RGB.
        """
        return self._render(data, camera, size, size)

    def view(self, data, width: int, height: int, smooth: bool = True) -> np.ndarray:
        """
        Return a picture for people: from in front of the robot, well lit.

        :param width: pixels, at most half of MAX_IMAGE_SIZE, as `height`.
        :param smooth: smooth edges, which takes three times as long.
        :returns: uint8 [height, width, 3] RGB.
        """
        light = self._model.vis.headlight
        before = light.ambient.copy(), light.diffuse.copy()
        light.ambient[:], light.diffuse[:] = 0.55, 0.45
        self._scene.flags[self._mujoco.mjtRndFlag.mjRND_SKYBOX] = 1
        try:
            if not smooth:
                return self._render(data, VIEW, width, height)
            large = self._render(data, VIEW, 2 * width, 2 * height)
        finally:
            light.ambient[:], light.diffuse[:] = before
            self._scene.flags[self._mujoco.mjtRndFlag.mjRND_SKYBOX] = 0
        return cv2.resize(large, (width, height), interpolation=cv2.INTER_AREA)

    def segmentation(self, data, camera: str, size: int) -> np.ndarray:
        """Return uint8 [size, size]: the number of the object seen in each pixel, from 1; 0 for anything else."""
        flags, mujoco = self._scene.flags, self._mujoco
        flags[mujoco.mjtRndFlag.mjRND_SEGMENT] = flags[mujoco.mjtRndFlag.mjRND_IDCOLOR] = 1
        try:
            colours = self._render(data, camera, size, size).astype(np.int32)
        finally:
            flags[mujoco.mjtRndFlag.mjRND_SEGMENT] = flags[mujoco.mjtRndFlag.mjRND_IDCOLOR] = 0
        numbers = colours[..., 0] + (colours[..., 1] << 8) + (colours[..., 2] << 16)
        table = np.zeros(self._scene.ngeom + 1, np.uint8)  # the renderer numbers what is in its scene, from 1
        for geom in self._scene.geoms[:self._scene.ngeom]:
            if geom.objtype == mujoco.mjtObj.mjOBJ_GEOM and geom.objid in self._objects and geom.segid >= 0:
                table[geom.segid + 1] = self._objects[geom.objid]
        return table[np.where(numbers < len(table), numbers, 0)]

    def _render(self, data, camera: str | tuple, width: int, height: int) -> np.ndarray:
        mujoco = self._mujoco
        _make_current()
        if isinstance(camera, str):
            self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
            self._camera.fixedcamid = self._model.camera(robot.CAMERAS[camera]).id
        else:
            self._camera.type = mujoco.mjtCamera.mjCAMERA_FREE
            self._camera.lookat[:], self._camera.distance, self._camera.azimuth, self._camera.elevation = camera
        mujoco.mjv_updateScene(self._model, data, self._option, None, self._camera, mujoco.mjtCatBit.mjCAT_ALL,
                               self._scene)
        viewport = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._gl)  # another renderer may have set its own
        mujoco.mjr_render(viewport, self._scene, self._gl)
        image = np.empty((height, width, 3), np.uint8)
        mujoco.mjr_readPixels(image, None, viewport, self._gl)
        return image[::-1].copy()
