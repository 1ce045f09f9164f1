"""Notices what code must not do while it reads files of somebody else: run programs, use the network, write elsewhere.

Python's audit hooks report these before they happen. A hook cannot be removed, so it is set in forked children only.
"""

import os
import sys
from pathlib import Path

FORBIDDEN = (
    "subprocess.", "os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.fork", "os.startfile", "pty.", "os.kill",
    "socket.connect", "socket.getaddrinfo", "socket.gethostby", "socket.bind", "urllib.", "http.", "ftplib.",
    "smtplib.", "webbrowser.", "sqlite3.connect", "os.putenv", "signal.pthread_kill", "faulthandler.",
)  # fmt: skip
CHANGES = {
    "os.remove": 1, "os.rmdir": 1, "os.mkdir": 1, "os.truncate": 1, "os.chmod": 1, "os.chown": 1, "os.utime": 1,
    "os.rename": 2, "os.link": 2, "os.symlink": 2, "shutil.rmtree": 1, "shutil.move": 2, "shutil.copyfile": 2,
}  # fmt: skip
"""Events that change files, with how many of their arguments are paths."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """Collects what happened that is forbidden, from `start` on."""

    def __init__(self) -> None:
        self.modules: tuple[str, ...] = ()
        self.roots: tuple[str, ...] = ()
        self.seen: list[str] = []
        self.on = self.hooked = False

    def start(self, modules: tuple[str, ...], *roots: Path) -> None:
        """Forbid to run the code of `modules`, and to change anything outside `roots`."""
        self.modules, self.roots = modules, tuple(os.path.realpath(root) for root in roots)
        self.seen, self.on = [], True
        if not self.hooked:
            self.hooked = True
            sys.addaudithook(self)

    def stop(self) -> list[str]:
        """What happened since `start`."""
        self.on = False
        return self.seen

    def __call__(self, event: str, arguments: tuple) -> None:
        if not self.on:
            return
        if event == "exec":  # of a module's code; `import` tells nothing of importlib.import_module
            file = Path(getattr(arguments[0], "co_filename", ""))
            if {file.stem, file.parent.name} & set(self.modules):
                self.seen.append(f"imports {file}")
        elif event == "open":
            path, mode, flags = arguments
            if flags & WRITING and not isinstance(path, int) and self.outside(path):
                self.seen.append(f"opens {path!r} with {mode!r}")
        elif event in CHANGES:
            for path in arguments[: CHANGES[event]]:
                if isinstance(path, str | bytes | os.PathLike) and self.outside(path, follow=False):
                    self.seen.append(f"{event} {path!r}")
        elif event == "os.kill" and arguments[1] == 0:
            pass  # only asks whether a process is there, such as the one that left a temporary file
        elif event.startswith(FORBIDDEN):
            self.seen.append(f"{event} {arguments!r:.200}")

    def outside(self, path: str | bytes | os.PathLike, *, follow: bool = True) -> bool:
        """Whether `path` lies outside the roots; without `follow`, where it is itself and not what it links to."""
        self.on = False
        try:
            path = os.path.abspath(os.fsdecode(path))
            real = os.path.realpath(path) if follow else os.path.join(os.path.realpath(os.path.dirname(path)), "x")
            return real != os.devnull and not any(real == root or real.startswith(f"{root}/") for root in self.roots)
        finally:
            self.on = True
