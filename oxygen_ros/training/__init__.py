"""Training of the built-in policy: data of the simulator in, a checkpoint for the ordinary loader out."""
