"""
Starts perception and inference.

Stop it with Ctrl-C (SIGINT): when `ros2 launch` gets a SIGTERM, it leaves its nodes behind.
"""

from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction, Shutdown
from launch_ros.actions import Node

from oxygen_ros.suite import dds_environment, plan, suite_arguments


def generate_launch_description() -> LaunchDescription:
    return LaunchDescription([
        *(DeclareLaunchArgument(argument.name, default_value=argument.default, description=argument.description,
                                choices=argument.choices or None) for argument in suite_arguments()),
        OpaqueFunction(function=start_nodes),
    ])


def start_nodes(context: LaunchContext) -> list[Node]:
    values = {argument.name: context.launch_configurations[argument.name] for argument in suite_arguments()}
    return [
        Node(
            package='oxygen_ros', executable=run.name, name=run.name, namespace=values['namespace'],
            parameters=[values['params_file'], dict(run.parameters)],
            ros_arguments=['--log-level', values['log_level']],
            additional_env=dds_environment(),
            output='screen', emulate_tty=True,
            on_exit=Shutdown(reason=f'{run.name} ended'),
        ) for run in plan(values)]
