"""Builds the package for pip, over the ROS wheels of PyPI. colcon uses CMakeLists.txt alone."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

NAME = 'oxygen_ros'
SOURCE = Path(__file__).parent.resolve()
GENERATED = ('msg', 'srv')


class BuildInterfaces(build_ext):
    """Builds msg/ and srv/ with CMakeLists.txt and puts the result into the Python package."""

    def run(self):
        prefix = Path(find_spec('ament_package').origin).parents[4]  # where pip put the build requirements
        build = Path(self.build_temp).resolve()
        stage = build / 'stage'
        shutil.rmtree(build, ignore_errors=True)  # its CMake cache names the build requirements of another run
        env = dict(os.environ, AMENT_PREFIX_PATH=str(prefix), CMAKE_PREFIX_PATH=str(prefix))
        subprocess.run([
            'cmake', '-G', 'Ninja', '-S', SOURCE, '-B', build, '-DCMAKE_BUILD_TYPE=Release', '-DBUILD_TESTING=OFF',
            f'-DPython3_EXECUTABLE={sys.executable}', f'-DCMAKE_INSTALL_PREFIX={stage}', '-DPYTHON_INSTALL_DIR=python',
            '-DPIP=ON', '-DCMAKE_INSTALL_RPATH=$ORIGIN',  # the libraries will lie side by side
        ], check=True, env=env)
        subprocess.run(['cmake', '--build', build, '--target', 'install'], check=True, env=env)

        made = stage / 'python' / NAME
        target = (SOURCE if self.editable_mode else Path(self.build_lib)) / NAME
        for folder in GENERATED:
            shutil.rmtree(target / folder, ignore_errors=True)  # interfaces that no longer exist
            shutil.copytree(made / folder, target / folder, ignore=shutil.ignore_patterns('*.c', '__pycache__'))
        for library in target.glob('*.so'):
            library.unlink()  # not overwritten: a running process may have it mapped
        for library in (*made.glob('*.so'), *(stage / 'lib').glob('*.so')):
            shutil.copy2(library, target)
        self.distribution.data_files = [
            (str(path.parent.relative_to(stage)), [str(path)])
            for folder in ('share', f'lib/{NAME}') for path in (stage / folder).rglob('*') if path.is_file()]

    def get_output_mapping(self):
        return {}


setup(
    version=ElementTree.parse(SOURCE / 'package.xml').findtext('version'),
    packages=find_packages(include=[NAME, f'{NAME}.*'], exclude=[f'{NAME}.{folder}*' for folder in GENERATED]),
    ext_modules=[Extension(f'{NAME}.interfaces', [])],
    cmdclass={'build_ext': BuildInterfaces},
)
