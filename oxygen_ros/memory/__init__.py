"""What the robot remembers. No ROS here."""
