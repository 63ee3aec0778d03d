"""The command line: parse, call, print. Each command imports what it needs when it runs, so that help is quick."""

import errno
import importlib
import io
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from bype.cli.options import UsageError
from bype.cli.output import printing, say
from bype.system import print_stacks_on_signal
from bype.wording import did_you_mean

_COMMANDS = {
    ("fit",): ("fit", "DATA --out RUN", "prepare, train, evaluate and report in one go"),
    ("sample",): ("generate", "RUN --out PNG", "generate examples, also similar to given ones"),
    ("reconstruct",): ("generate", "RUN --out PNG", "show examples and their reconstructions"),
    ("interpolate",): ("generate", "RUN --out PNG", "interpolate between examples"),
    ("coreset",): ("generate", "RUN --out DIR", "show the pseudocoreset by weight, and export it"),
    ("embed",): ("embed", "RUN --out DIR", "write embeddings of a split, or of new data"),
    ("score",): ("score", "RUN --out FILE", "score each example, to find unusual ones"),
    ("report",): ("report", "RUN [RUN ...] --out HTML", "show runs side by side on one page"),
    ("audit",): ("audit", "RUN", "measure how close points and samples are to training data"),
    ("export",): ("export", "RUN --out DIR", "write ONNX files that work without torch"),
    ("share",): ("share", "RUN --out DIR | --to NAME", "write a model to share, or upload it to the Hugging Face hub"),
    ("fetch",): ("share", "OWNER/NAME --out RUN", "download a model from the Hugging Face hub"),
    ("data", "prepare"): ("data", "SOURCE --out STORE", "turn images, arrays or a table into a store"),
    ("data", "check"): ("data", "STORE", "verify a store and show what is in it"),
    ("recipes",): ("train", "", "list the recipes of bype train"),
    ("train",): ("train", "[RECIPE] --data STORE --out RUN", "train a model, or resume a run"),
    ("evaluate",): ("evaluate", "RUN", "measure likelihood, prior gap and kNN accuracy, draw a map"),
    ("augment",): ("augment", "RUN", "train classifiers with generated examples"),
    ("reproduce", "list"): ("reproduce", "", "name the paper's tables and figures, and what was run"),
    ("reproduce", "cost"): ("reproduce", "", "estimate the hours of each table and figure here"),
    ("reproduce", "page"): ("reproduce", "--out DIR --page MD", "write all tables and figures into a page"),
    ("reproduce",): ("reproduce", "ITEM --stores DIR --out DIR", "make a table or figure of the paper"),
}
_HEADINGS = {
    ("fit",): "Begin here:",
    ("sample",): "Use a model:",
    ("data", "prepare"): "Train with settings of your own:",
    ("reproduce", "list"): "Reproduce the paper:",
}
"""Above which command each heading stands."""

_WAYS_OUT = {
    errno.EACCES: "; change who may read and write it, or choose another place",
    errno.EPERM: "; change who may read and write it, or choose another place",
    errno.EROFS: "; make the disk writable and run the same command again, or choose another --out",
    errno.ENOTDIR: "; a file is in the way: choose another --out",
    errno.EEXIST: "; a file is in the way: choose another --out",
    errno.ENOSPC: "; make room, and run the same command again",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    # Threads that wait for each other must not spin: on a busy machine that makes a step three times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stdout is None:  # closed by the caller, as with >&-
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    if words == ["--version"]:
        from importlib import metadata

        print(f"bype {metadata.version('bype')}")
        return 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may lack a character such as ±
    if words[:1] == ["--print-completion"]:
        return _print_completion(words[1:])
    for name, (module, _, _) in _COMMANDS.items():
        if tuple(words[: len(name)]) == name:
            return _guarded(module, "_".join(name), words[len(name) :])
    asked = not words or (words[0] in ("-h", "--help", "data") and set(words[1:]) <= {"-h", "--help"})
    if not asked:
        given = " ".join(words[: 2 if words[0] == "data" else 1])
        meant = did_you_mean(given, map(" ".join, _COMMANDS))
        print(f"bype: there is no command {given!r}{meant or '; these are all:'}", file=sys.stderr)
        if meant:
            return 2
    print(_usage(), end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def _usage() -> str:
    calls = {name: f"bype {' '.join(name)} {call}".rstrip() for name, (_, call, _) in _COMMANDS.items()}
    width = max(map(len, calls.values()))
    texts = [text for _, _, text in _COMMANDS.values()]
    is_narrow = shutil.get_terminal_size().columns < width + 4 + max(map(len, texts))
    lines = ""
    for (name, call), text in zip(calls.items(), texts, strict=True):
        lines += f"\n{_HEADINGS[name]}\n" if name in _HEADINGS else ""
        lines += f"  {call}\n      {text}\n" if is_narrow else f"  {call:<{width}}  {text}\n"
    more = "Add --help to a command to see its options and an example.\nEach command takes --json and --quiet.\n"
    more += "For the version: bype --version\nFor completion in your shell: bype --print-completion bash\n(or zsh).\n"
    return f"usage: bype COMMAND ...\n{lines}\n{more}"


def _print_completion(words: list[str]) -> int:
    from bype.cli.completion import SHELLS, completion

    if len(words) != 1 or words[0] not in SHELLS:
        print(f"bype: name a shell: bype --print-completion {' or '.join(SHELLS)}", file=sys.stderr)
        return 2
    print(completion(words[0], _COMMANDS, main), end="")
    return 0


def _guarded(module: str, function: str, words: list[str]) -> int:
    """Run a command and print an error as one line. SIGUSR1 prints the stack of every thread."""
    print_stacks_on_signal()
    try:
        with printing(words) as rest:
            code: int = getattr(importlib.import_module(f"bype.cli.{module}"), function)(rest)
        sys.stdout.flush()  # here a closed pipe can still be handled
        return code
    except _errors() as error:
        return _failed(error, str(error))
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return _failed(error, f"{error.strerror or error}{where}{_WAYS_OUT.get(error.errno or 0, '')}")
    except KeyboardInterrupt:
        print("bype: interrupted", file=sys.stderr)
        return 130


def _failed(error: Exception, text: str) -> int:
    """Print why a command failed, with what else went wrong meanwhile."""
    for line in (text, *getattr(error, "__notes__", ())):
        say(f"bype: {line}", sys.stderr)
    return 1


def _errors() -> tuple[type[Exception], ...]:
    """Return the errors meant for the user; those of runs and processes only if a command has loaded them."""
    from bype.data.files import FileError
    from bype.data.sources.base import SourceError
    from bype.run.config import ConfigError

    homes = {"bype.run.directory": "RunError", "bype.distributed": "GroupError"}
    later = [getattr(sys.modules[home], name) for home, name in homes.items() if home in sys.modules]
    return (ConfigError, FileError, SourceError, UsageError, *later)
