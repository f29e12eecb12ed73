"""`python -m tapejax`: see cli.py."""

import sys

from tapejax.cli import main

sys.exit(main())
