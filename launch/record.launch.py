"""
Records a run of the suite with `ros2 bag record`: camera topics of the robot, inputs, outputs.

Without rosbag2, `oxygen_ros record` does the same.
"""

from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction

from oxygen_ros.files import share_directories
from oxygen_ros.recording import profile_topics


def generate_launch_description() -> LaunchDescription:
    share = share_directories()[0]
    return LaunchDescription([
        DeclareLaunchArgument('robot', default_value='unitree_g1', description='Robot file: gives the camera topics.'),
        DeclareLaunchArgument('namespace', default_value='', description='Namespace of the nodes of the suite.'),
        DeclareLaunchArgument('output', default_value='', description='Folder to make; empty: named by the time.'),
        DeclareLaunchArgument('topics', default_value='', description='Further topics, with blanks between them.'),
        DeclareLaunchArgument('frames', default_value='false', choices=('true', 'false'),
                              description='Record the topic frames as well, which is large.'),
        DeclareLaunchArgument('qos_file', default_value=str(share / 'config' / 'record_qos.yaml'),
                              description='QoS overrides of the subscriptions.'),
        DeclareLaunchArgument('use_sim_time', default_value='false', choices=('true', 'false'),
                              description='Take the time of recording from /clock, and record it.'),
        OpaqueFunction(function=start_recorder),
    ])


def start_recorder(context: LaunchContext) -> list[ExecuteProcess]:
    values = context.launch_configurations
    topics = profile_topics(values['robot'], values['namespace'], values['frames'] == 'true')
    topics += values['topics'].split()
    words = ['ros2', 'bag', 'record', '--storage', 'mcap', '--storage-preset-profile', 'fastwrite',
             '--qos-profile-overrides-path', values['qos_file']]
    if values['use_sim_time'] == 'true':
        words.append('--use-sim-time')
        topics.append('/clock')
    if values['output']:
        words += ['--output', values['output']]
    return [ExecuteProcess(cmd=[*words, '--topics', *topics], output='screen')]
