"""`python -m oxygen_ros SUBCOMMAND` is the same as `oxygen_ros SUBCOMMAND`."""

import sys

from oxygen_ros.cli import main

if __name__ == '__main__':
    sys.exit(main())
