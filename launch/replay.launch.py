"""Starts perception and inference (oxygen.launch.py), and plays a recording into them."""

from pathlib import Path

from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction, Shutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_ros.actions import Node

from oxygen_ros.suite import dds_environment, plan, replay_arguments, suite_arguments


def generate_launch_description() -> LaunchDescription:
    suite = PythonLaunchDescriptionSource(str(Path(__file__).with_name('oxygen.launch.py')))
    return LaunchDescription([
        *(DeclareLaunchArgument(argument.name, default_value=argument.default, description=argument.description,
                                choices=argument.choices or None) for argument in replay_arguments()),
        IncludeLaunchDescription(suite),
        OpaqueFunction(function=start_replay),
    ])


def start_replay(context: LaunchContext) -> list[Node]:
    values = {argument.name: context.launch_configurations[argument.name]
              for argument in (*suite_arguments(), *replay_arguments())}
    replay = plan(values)[-1]
    return [
        Node(
            package='oxygen_ros', executable=replay.name, name=replay.name, namespace=values['namespace'],
            parameters=[values['params_file'], dict(replay.parameters)],
            ros_arguments=['--log-level', values['log_level']],
            additional_env=dds_environment(),
            output='screen', emulate_tty=True,
            on_exit=Shutdown(reason='the recording is over') if values['at_end'] == 'stop' else None,
        )]
