import sys

from vision_attn.commands import main

sys.exit(main(["eval", *sys.argv[1:]]))
