"""`python -m oxygen_ros.verify CASE_DIR` is `oxygen_ros verify CASE_DIR`."""

import sys

from oxygen_ros.cli import main

sys.exit(main(['verify', *sys.argv[1:]]))
