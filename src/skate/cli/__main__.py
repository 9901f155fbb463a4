"""`python -m skate.cli` is `skate`, also where the script is not on the path."""

import sys

from skate.cli import main

sys.exit(main())
