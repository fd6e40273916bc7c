"""Reads recordings (rosbag2: mcap and sqlite3) and plays them in time. Free of ROS."""
