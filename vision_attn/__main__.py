"""`python -m vision_attn VERB ...`: the same as `vision-attn VERB ...`."""

import sys

from vision_attn.commands import main

sys.exit(main())
