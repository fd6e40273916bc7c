"""Version of the package. package.xml is the only place that holds it."""

from __future__ import annotations

from xml.etree import ElementTree

from oxygen_ros.files import share_directories


def version() -> str:
    """Return the version, for example '0.1.0', or 'unknown' if the package lies somewhere without its package.xml."""
    for share in share_directories():
        if (share / 'package.xml').is_file():
            return ElementTree.parse(share / 'package.xml').findtext('version', 'unknown')
    return 'unknown'
