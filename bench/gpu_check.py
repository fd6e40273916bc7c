"""
Run this whenever a machine with a GPU is at hand: `python bench/gpu_check.py`; see `oxygen_ros/bench/gpu_check.py`.

It needs torch with CUDA and this package's Python requirements, no ROS and no network; the package need not be
installed. Some minutes on a large GPU; `--parts` and `--rounds` make it shorter.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from oxygen_ros.bench.gpu_check import main

if __name__ == '__main__':
    sys.exit(main())
