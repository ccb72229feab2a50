import sys

from tests.cluster.cli import main

sys.exit(main())
