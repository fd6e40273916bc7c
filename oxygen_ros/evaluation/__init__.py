"""How good the policy is: in closed loop in the simulator, and on what it says about held-out scenes."""
