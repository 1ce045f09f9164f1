"""Print the completion script of a shell: verbs, options and files at the tab key.

For bash: vision-attn completion bash > ~/.local/share/bash-completion/completions/vision-attn
For zsh: vision-attn completion zsh > a folder of $fpath/_vision-attn
"""

import argparse
from typing import Any

FILES = ("CONFIG", "RUN", "FOLDER", "IMAGE", "RESULTS", "REFERENCES", "FILE", "FILE.json", "FILE.jsonl")
"""The metavariables of arguments that are files or folders."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from vision_attn.commands import all_verbs, parser_of

    parser, verbs = parser_of(*all_verbs())
    for verb in verbs.values():
        actions: Any = verb.actions
        for action in actions:
            if action.metavar in FILES:
                action.complete = shtab.FILE
    print(shtab.complete(parser, shell=arguments.shell))
    return 0
