"""A ROS domain that nobody else on this machine uses."""

from __future__ import annotations

import random
import socket

from oxygen_ros.errors import OxygenError

# Linux leaves the UDP ports of domains 0 to 101 and 215 to 232 to servers. Below 102 is where people choose theirs.
DOMAINS = range(215, 232)
PORT_BASE, PORTS_PER_DOMAIN, FIRST_PARTICIPANT = 7400, 250, 10  # RTPS specification, section 9.6.2


def free_domain() -> int:
    """
    Return a ROS_DOMAIN_ID, chosen at random among those in which no participant runs on this machine.

    :raises OxygenError: all are in use.
    """
    for domain in random.sample(DOMAINS, len(DOMAINS)):
        if _port_is_free(PORT_BASE + PORTS_PER_DOMAIN * domain + FIRST_PARTICIPANT):
            return domain
    raise OxygenError(f'ROS domains {DOMAINS[0]} to {DOMAINS[-1]} are all in use on this machine: end some ROS nodes')


def _port_is_free(port: int) -> bool:
    """Whether no process has bound a UDP port; the first participant of a domain binds the one asked for here."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(('', port))
        except OSError:
            return False
    return True
