"""`oxygen_ros demo`: plays a recording through all nodes, shows what they do and sums it up."""
