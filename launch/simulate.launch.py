"""Starts the simulator, and perception and inference (oxygen.launch.py) with it."""

from pathlib import Path

from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction, Shutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_ros.actions import Node

from oxygen_ros.suite import dds_environment, plan_simulator, simulate_arguments, suite_arguments


def generate_launch_description() -> LaunchDescription:
    suite = PythonLaunchDescriptionSource(str(Path(__file__).with_name('oxygen.launch.py')))
    return LaunchDescription([
        *(DeclareLaunchArgument(argument.name, default_value=argument.default, description=argument.description,
                                choices=argument.choices or None) for argument in simulate_arguments()),
        IncludeLaunchDescription(suite),
        OpaqueFunction(function=start_simulator),
    ])


def start_simulator(context: LaunchContext) -> list[Node]:
    values = {argument.name: context.launch_configurations[argument.name]
              for argument in (*suite_arguments(), *simulate_arguments())}
    simulator = plan_simulator(values)
    return [
        Node(
            package='oxygen_ros', executable=simulator.name, name='simulator', namespace=values['namespace'],
            parameters=[values['params_file'], dict(simulator.parameters)],
            ros_arguments=['--log-level', values['log_level']],
            additional_env=dds_environment(),
            output='screen', emulate_tty=True,
            on_exit=Shutdown(reason='the simulator ended'),
        )]
