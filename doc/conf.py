"""Sphinx: `sphinx-build -W doc doc/_build`, or rosdoc2 (rosdoc2.yaml). Needs the extra doc of pyproject.toml."""

from pathlib import Path
from xml.etree import ElementTree

project = 'oxygen_ros'
author = 'The oxygen_ros authors'
copyright = author
release = ElementTree.parse(Path(__file__).parents[1] / 'package.xml').getroot().findtext('version')

extensions = ['myst_parser']
myst_heading_anchors = 4
exclude_patterns = ['_build']
highlight_language = 'none'
html_theme = 'alabaster'
