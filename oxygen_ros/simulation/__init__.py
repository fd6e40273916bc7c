"""A simulated two-armed humanoid at a table, its oracle, and what is true of the scene. No ROS here."""
