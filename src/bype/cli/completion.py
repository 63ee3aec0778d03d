"""Completion for shells: the commands, and the options of each."""

import contextlib
import io
import re
from collections.abc import Callable, Iterable

_SCRIPT = """{header}# {shell} completion of bype: {use}
_bype() {{
    local words="${{COMP_WORDS[*]:1:COMP_CWORD-1}} " current="${{COMP_WORDS[COMP_CWORD]}}"
    COMPREPLY=()
    case "$words" in
{cases}        *) [ "$COMP_CWORD" -eq 1 ] && COMPREPLY=($(compgen -W "{commands}" -- "$current")) ;;
    esac
    # Values of options are mostly files.
    [ ${{#COMPREPLY[@]}} -eq 0 ] && [ "$COMP_CWORD" -gt 1 ] && COMPREPLY=($(compgen -f -- "$current"))
    return 0
}}
complete -o filenames -F _bype bype
"""
_USES = {
    "bash": 'add  eval "$(bype --print-completion bash)"  to ~/.bashrc',
    "zsh": 'add  eval "$(bype --print-completion zsh)"  to ~/.zshrc, after compinit',
}
SHELLS = tuple(_USES)


def completion(shell: str, commands: Iterable[tuple[str, ...]], run: Callable[[list[str]], int]) -> str:
    """Return the script for a shell; ``run`` runs a command, whose help names its options."""
    names = list(commands)
    cases = ""
    for name in names:
        page = io.StringIO()
        with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit):
            run([*name, "--help"])
        flags = sorted({"--json", "--quiet", *re.findall(r"--[a-z][a-z-]+", page.getvalue())})
        known = [other[1] for other in names if len(other) > 1 and other[:-1] == name] + flags
        cases += f'        "{" ".join(name)} "*) COMPREPLY=($(compgen -W "{" ".join(known)}" -- "$current")) ;;\n'
    for first in sorted({name[0] for name in names if len(name) > 1 and name[:-1] not in names}):
        seconds = " ".join(name[1] for name in names if name[0] == first and len(name) > 1)
        cases += f'        "{first} "*) COMPREPLY=($(compgen -W "{seconds}" -- "$current")) ;;\n'
    return _SCRIPT.format(
        header="autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "",
        shell=shell,
        use=_USES[shell],
        cases=cases,
        commands=" ".join(dict.fromkeys(name[0] for name in names)),
    )
