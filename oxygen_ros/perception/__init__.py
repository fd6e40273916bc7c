"""From camera and joint messages to observations: decoding, resizing, merging, synchronising. No ROS here."""
