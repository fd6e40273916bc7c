"""Compares the outputs in two recordings: actions, texts, memory, timing. No ROS here."""
