"""ROS 2 nodes: wiring only. Everything that can be tested without ROS lies in the packages beside this one."""
