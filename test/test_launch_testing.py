"""
The launch file starts a suite whose nodes come up and end in an orderly way; where launch_testing is installed.

launch_testing collects this file as one test: other tests in it would not run.
"""

import contextlib
import unittest

import pytest

pytest.importorskip('launch_testing', reason='launch_testing is part of a ROS distribution and not on PyPI')
import rclpy
from conftest import claimed_domain
from launch import LaunchDescription
from launch.actions import IncludeLaunchDescription, SetEnvironmentVariable
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_testing import post_shutdown_test
from launch_testing.actions import ReadyToTest
from launch_testing.asserts import assertExitCodes
from rclpy.executors import SingleThreadedExecutor

from oxygen_ros.files import share_directories
from oxygen_ros.msg import EngineStatus

LAUNCH = share_directories()[0] / 'launch'
DOMAIN = contextlib.ExitStack().enter_context(claimed_domain())


@pytest.mark.launch_test
def generate_test_description() -> LaunchDescription:
    return LaunchDescription([
        SetEnvironmentVariable('ROS_DOMAIN_ID', str(DOMAIN)),
        SetEnvironmentVariable('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST'),
        IncludeLaunchDescription(PythonLaunchDescriptionSource(str(LAUNCH / 'oxygen.launch.py')),
                                 launch_arguments={'model': 'tiny'}.items()),
        ReadyToTest(),
    ])


class TestSuite(unittest.TestCase):

    def test_inference_node_says_that_it_is_active(self):
        context = rclpy.Context()
        rclpy.init(context=context, domain_id=DOMAIN)
        node = rclpy.create_node('test', context=context)
        executor = SingleThreadedExecutor(context=context)
        executor.add_node(node)
        heard = []
        node.create_subscription(EngineStatus, 'status', heard.append, 10)
        for _ in range(600):
            executor.spin_once(timeout_sec=0.1)
            if heard and heard[-1].state == 'active':
                break
        executor.shutdown()
        node.destroy_node()
        context.shutdown()
        self.assertTrue(heard and heard[-1].state == 'active')


@post_shutdown_test()
class TestEnd(unittest.TestCase):

    def test_nodes_end_in_an_orderly_way(self, proc_info):
        assertExitCodes(proc_info)
