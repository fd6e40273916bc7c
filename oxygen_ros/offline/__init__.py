"""Runs a recording through the whole suite in lockstep on a virtual clock, and compares what came out. No ROS here."""
