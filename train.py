import sys

from vision_attn.commands import main

sys.exit(main(["train", *sys.argv[1:]]))
