"""`oxygen_ros demo`: runs all nodes on a simulated robot or a recording, shows what they do and sums it up."""
