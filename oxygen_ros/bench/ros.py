"""`oxygen_ros bench ros`: from messages in to commands out, through the real nodes over DDS."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros bench ros`."""


def main(arguments: argparse.Namespace) -> int:
    """Measure, print and write."""
    return 0
