"""The robot as the rest of the package sees it: joints by name, units, command chunks and their limits. No ROS here."""
