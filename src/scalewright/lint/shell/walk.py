"""The walk over a syntax tree: it collects commands in the order of the text and knows the variables set so far."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from scalewright.lint.shell.launches import launches_of
from scalewright.lint.shell.syntax import (
    MAX_DEPTH,
    Assignment,
    Body,
    Command,
    Comment,
    Enclosing,
    Heredoc,
    Loop,
    Redirect,
    Word,
    parse,
)
from scalewright.lint.shell.walk_state import MAX_EXPANDED, WalkState, no_file
from scalewright.lint.shell.words import Unit, base_name, leaves, name_and_value, plain, resolve, resolved

if TYPE_CHECKING:
    from tree_sitter import Node

SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
_WHOLE_REFERENCE = re.compile(r"^\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\])?\}|([A-Za-z_]\w*))$")
_LOOPS: dict[str, Loop] = {"for": "for", "while": "while", "until": "until", "select": "select"}
_SCRIPT_ENDS = (".sh", ".bash")
_SUBSTITUTES = re.compile(r"[$<>=]\(|`")
"""What every text with a substitution holds."""
_MAX_NESTED = 6
"""Depth of texts inside texts that are followed: `bash -c`, heredocs, sourced files."""
_BRANCHES = ("if_statement", "elif_clause", "else_clause", "case_item")


def read_body(text: str, code: str, starts: tuple[int, ...], read_file: Callable[[str], str | None] = no_file) -> Body:
    """The body of a script. `code` is `text` with placeholders masked; both have the same length."""
    tree = parse(code)
    state = WalkState(starts=starts, read_file=read_file)
    unit = Unit(text=text, code=code)
    _walk(tree.root_node, unit, Enclosing(), state, 0)
    error_at, error = _first_error(tree.root_node) if tree.root_node.has_error else (None, "")
    return Body(
        commands=tuple(state.commands),
        assignments=tuple(state.assignments),
        heredocs=tuple(state.heredocs),
        comments=tuple(state.comments),
        functions=state.functions,
        sourced=tuple(state.sourced),
        variables={name: value for name, value in state.variables.items() if value is not None},
        error_at=error_at,
        error=error,
    )


def _first_error(node: Node) -> tuple[int | None, str]:
    """Offset of the first syntax error, and what is missing there."""
    while True:
        inside = next((child for child in node.children if child.has_error or child.is_missing), None)
        if inside is None:
            return node.start_byte, "" if node.is_error else node.type
        node = inside
        if node.is_missing:
            return node.start_byte, node.type


def _walk(node: Node, unit: Unit, within: Enclosing, state: WalkState, depth: int) -> None:
    if depth > MAX_DEPTH or not node.child_count:
        if node.type == "comment":
            _comment(node, unit, state)
        return
    kind = node.type
    if kind == "command":
        _command(node, unit, within, state, (), depth)
    elif kind == "redirected_statement":
        _redirected(node, unit, within, state, depth)
    elif kind in ("declaration_command", "unset_command"):
        _declaration(node, unit, within, state, depth)
    elif kind == "variable_assignment":
        _assignment(node, unit, within, state, is_exported=False, depth=depth)
    elif kind == "test_command":
        _test(node, unit, within, state, depth)
    else:
        _children(node, unit, _inside(node, unit, within, state), state, depth)


def _comment(node: Node, unit: Unit, state: WalkState) -> None:
    if unit.fixed is None:
        start, end = unit.span(node)
        state.comments.append(Comment(text=unit.source(node), start=start, end=end, line=state.place(start)[0]))


@lru_cache(maxsize=4096)
def _marked(within: Enclosing, is_background: bool, is_condition: bool, is_branch: bool) -> Enclosing:
    """What encloses a child, with more of it known."""
    return replace(
        within,
        is_background=within.is_background or is_background,
        is_condition=within.is_condition or is_condition,
        is_branch=within.is_branch or is_branch,
    )


def _children(node: Node, unit: Unit, within: Enclosing, state: WalkState, depth: int) -> None:
    children = node.children
    kind = node.type
    condition_ends = _condition_end(kind, children)
    kinds = [child.type for child in children]
    has_background = "&" in kinds
    for index, child in enumerate(children):
        if not child.is_named:
            continue
        is_background = has_background and index + 1 < len(kinds) and kinds[index + 1] == "&"
        is_condition = index < condition_ends
        is_branch = not is_condition and (kind in _BRANCHES or (kind == "list" and index > 0))
        inside = within
        if is_background or is_condition or is_branch:
            inside = _marked(within, is_background, is_condition, is_branch)
        _walk(child, unit, inside, state, depth + 1)


def _condition_end(kind: str, children: list[Node]) -> int:
    """How many of the children, from the first, belong to the condition."""
    if kind in ("if_statement", "elif_clause"):
        return next((i for i, child in enumerate(children) if child.type == "then"), 0)
    if kind == "while_statement":
        return next((i for i, child in enumerate(children) if child.type == "do_group"), 0)
    if kind == "list":
        return 1
    return len(children) if kind == "negated_command" else 0


def _inside(node: Node, unit: Unit, within: Enclosing, state: WalkState) -> Enclosing:
    """What the children of a node are enclosed in."""
    kind = node.type
    if kind in ("for_statement", "while_statement", "c_style_for_statement"):
        start, _ = unit.span(node)
        loop = _LOOPS[node.children[0].type]
        if kind == "for_statement":
            variable = node.child_by_field_name("variable")
            if variable is not None:
                state.variables[unit.source(variable)] = None
        return replace(within, loops=(*within.loops, loop), loop_starts=(*within.loop_starts, start))
    if kind == "function_definition":
        name = node.child_by_field_name("name")
        label = unit.source(name) if name is not None else ""
        state.functions.setdefault(label, state.place(unit.span(node)[0])[0])
        return replace(within, functions=(*within.functions, label))
    if kind == "subshell":
        return replace(within, is_subshell=True)
    if kind in ("command_substitution", "process_substitution"):
        return replace(within, is_substitution=True)
    if kind == "pipeline":
        return replace(within, is_pipeline=True)
    return within


def _test(node: Node, unit: Unit, within: Enclosing, state: WalkState, depth: int) -> None:
    """`[ ... ]` and `[[ ... ]]`: a command called `test`, so that rules can read its words."""
    start, _ = unit.span(node)
    words = [Word(text="test", start=start, end=start + 1, is_static=True)]
    words += [plain(child, unit) for child in leaves(node)]
    _append_builtin(node, unit, within, state, words)
    _substitutions(node, unit, within, state, depth)


def _append_builtin(node: Node, unit: Unit, within: Enclosing, state: WalkState, words: list[Word]) -> None:
    """Record a command that the grammar has a node of its own for: a test or a declaration."""
    start, end = unit.span(node)
    line, column = state.place(start)
    state.commands.append(
        Command(
            name=words[0].text,
            words=tuple(words),
            environment=(),
            start=start,
            end=end,
            line=line,
            column=column,
            within=within,
        )
    )


def _words(node: Node, unit: Unit, state: WalkState) -> list[Word]:
    """The words that the shell makes of one word of the text; a variable expands if the script sets its value."""
    word = plain(node, unit)
    reference = _WHOLE_REFERENCE.match(word.text) if not word.is_static else None
    if reference is None:
        return [word]
    value = state.variables.get(reference.group(1) or reference.group(2))
    if value is None or len(value) > MAX_EXPANDED:
        return [word]
    if word.is_quoted and "[@]" not in word.text:
        value = (Word(text=" ".join(w.text for w in value), start=0, end=0, is_static=all(w.is_static for w in value)),)
    return [replace(item, start=word.start, end=word.end, is_expanded=True) for item in value]


def _command(
    node: Node,
    unit: Unit,
    within: Enclosing,
    state: WalkState,
    redirects: tuple[Redirect, ...],
    depth: int,
    trailing_words: Sequence[Node] = (),
) -> Command | None:
    """Record a simple command; None: it holds assignments only. `trailing_words` follow a redirection."""
    children = [*(child for child in node.children if child.is_named), *trailing_words]
    words, environment, own_redirects = _command_parts(children, unit, within, state, depth)
    if not words:
        return None
    start, end = unit.span(node)
    end = max(end, words[-1].end) if trailing_words else end
    first = words[0]
    if unit.fixed is None:
        start = first.start  # the node may begin earlier: the grammar joins assignments of earlier lines to it
    line, column = state.place(start)
    name = base_name(first.text) if first.is_static or "/" in first.text else ""
    command = Command(
        name="" if "$" in name else name,
        words=tuple(words),
        environment=tuple(environment),
        start=start,
        end=end,
        line=line,
        column=column,
        within=within,
        redirects=(*redirects, *own_redirects),
        parent=unit.parent,
        origin=unit.origin_of(node),
    )
    state.commands.append(command)
    _forget_read_variables(command, state)
    _sourced_file(command, within, state, depth)
    _called_script(command, within, state, depth)
    _text_for_shell(command, within, state, depth)
    return command


def _command_parts(
    children: list[Node], unit: Unit, within: Enclosing, state: WalkState, depth: int
) -> tuple[list[Word], list[tuple[str, Word]], list[Redirect]]:
    """Words, environment assignments and redirections of a command, in the order of the text."""
    words: list[Word] = []
    environment: list[tuple[str, Word]] = []
    redirects: list[Redirect] = []
    for index, child in enumerate(children):
        kind = child.type
        if kind == "word":
            words.extend(_words(child, unit, state))
            continue  # it has nothing in it
        if kind == "variable_assignment":
            if _ends_statement(child, children[index + 1 :], unit):
                _assignment(child, unit, within, state, is_exported=False, depth=depth)
                continue
            environment.append(name_and_value(child, unit))
        elif kind.endswith("_redirect"):
            redirects.extend(_redirect(child, unit))
            words.extend(word for extra in _after_redirect(child) for word in _words(extra, unit, state))
        elif kind == "command_name":
            words.extend(_words(child.children[0] if child.children else child, unit, state))
        else:
            words.extend(_words(child, unit, state))
        _substitutions(child, unit, within, state, depth)
    return words, environment, redirects


def _ends_statement(child: Node, following: list[Node], unit: Unit) -> bool:
    """Whether a line end follows an assignment: the grammar joins it to the command on a later line."""
    if not following:
        return False
    between = unit.code[child.end_byte : following[0].start_byte]
    return "\n" in between.replace("\\\n", "")


def _forget_read_variables(command: Command, state: WalkState) -> None:
    """After `read`, `mapfile`, `getopts` and the like the values of their variables are unknown."""
    if command.name in ("read", "mapfile", "readarray", "getopts", "printf", "select"):
        for word in command.arguments:
            if word.text.isidentifier():
                state.variables[word.text] = None


def _sourced_file(command: Command, within: Enclosing, state: WalkState, depth: int) -> None:
    """`source FILE`: walk over the file's text; its commands get the place of the `source` command."""
    if command.name not in ("source", ".") or len(command.words) < 2 or state.num_nested >= _MAX_NESTED:
        return
    name = resolve(command.words[1].text, state.variables)
    text = state.read_file(name) if name not in state.sourced else None
    if text is None:
        return
    state.sourced.append(name)
    state.num_nested += 1
    unit = Unit(text=text, code=text, fixed=(command.start, command.end), origin=name)
    _walk(parse(text).root_node, unit, within, state, depth + 1)
    state.num_nested -= 1


def _called_script(command: Command, within: Enclosing, state: WalkState, depth: int) -> None:
    """`srun ./run.sh` or `bash run.sh`: walk over the script beside; its commands get the place of this one."""
    if state.num_nested >= _MAX_NESTED or not any(word.text.endswith(_SCRIPT_ENDS) for word in command.words):
        return
    chain = tuple(launches_of(command))
    program = chain[-1].program if chain else command.words
    if program and base_name(program[0].text) in SHELLS:
        program = program[1:]
    name = resolve(program[0].text, state.variables) if program else ""
    text = state.read_file(name) if name.endswith(_SCRIPT_ENDS) and name not in state.sourced else None
    if text is None:
        return
    state.sourced.append(name)
    unit = Unit(text=text, code=text, fixed=(command.start, command.end), origin=name, parent=command)
    _walk_nested(unit, within, state, depth)


def _assignment(node: Node, unit: Unit, within: Enclosing, state: WalkState, *, is_exported: bool, depth: int) -> None:
    """Record an assignment, and walk over the substitutions in its value."""
    name, value = name_and_value(node, unit)
    target = node.child_by_field_name("value")
    is_array = target is not None and target.type == "array"
    items: tuple[Word, ...] = ()
    if is_array and target is not None:
        items = tuple(
            w for child in target.named_children if child.type != "comment" for w in _words(child, unit, state)
        )
    start, end = unit.span(node)
    line, column = state.place(start)
    state.assign(
        Assignment(
            name=name,
            value=value,
            is_exported=is_exported,
            is_append=any(child.type == "+=" for child in node.children),
            is_array=is_array,
            start=start,
            end=end,
            line=line,
            column=column,
            within=within,
            items=items,
            origin=unit.origin_of(node),
        )
    )

    if target is not None:
        _substitutions(target, unit, within, state, depth)


def _declaration(node: Node, unit: Unit, within: Enclosing, state: WalkState, depth: int) -> None:
    """export, declare, local, readonly, typeset, unset: record the command and its assignments."""
    children = node.children
    keyword = children[0].type
    names = [unit.source(child) for child in children[1:] if child.type == "word"]
    is_exported = keyword == "export" or (
        keyword in ("declare", "typeset") and any("x" in n for n in names if n[:1] == "-")
    )
    words = [Word(text=keyword, start=unit.span(children[0])[0], end=unit.span(children[0])[1], is_static=True)]
    for child in children[1:]:
        if not child.is_named:
            continue
        if child.type == "variable_assignment":
            _assignment(child, unit, within, state, is_exported=is_exported, depth=depth)
            start, end = unit.span(child)
            words.append(Word(text=unit.source(child), start=start, end=end, is_static=False))
            continue
        words.append(plain(child, unit))
        if keyword == "unset":
            state.variables[unit.source(child)] = None
        elif is_exported and child.type == "variable_name":
            state.mark_exported(unit.source(child))
    _append_builtin(node, unit, within, state, words)


def _redirect(node: Node, unit: Unit) -> Iterator[Redirect]:
    """The redirections to files in a node."""
    if node.type == "heredoc_redirect":
        for child in node.named_children:
            if child.type == "file_redirect":
                yield from _redirect(child, unit)
        return
    operator = next((child.type for child in node.children if not child.is_named), "")
    places = node.children_by_field_name("destination") or node.children[-1:]
    start, _ = unit.span(node)
    yield Redirect(operator=operator, target=resolved(places[0], unit)[0], start=start, end=unit.span(places[0])[1])


def _after_redirect(node: Node) -> list[Node]:
    """Words after a redirection belong to the command; the grammar reads them as more destinations."""
    return list(node.children_by_field_name("destination")[1:]) if node.type == "file_redirect" else []


def _redirected(node: Node, unit: Unit, within: Enclosing, state: WalkState, depth: int) -> None:
    """A command or a block with redirections and heredocs."""
    body = node.child_by_field_name("body")
    redirections = [child for child in node.children if child.type.endswith("_redirect")]
    redirects = tuple(item for child in redirections for item in _redirect(child, unit))
    reader: Command | None = None
    if body is not None and body.type == "command":
        trailing_words = [word for child in redirections for word in _after_redirect(child)]
        reader = _command(body, unit, within, state, redirects, depth + 1, trailing_words)
    elif body is not None:
        before = len(state.commands)
        _walk(body, unit, within, state, depth + 1)
        reader = state.commands[-1] if len(state.commands) > before else None
    for child in redirections:
        if child.type == "heredoc_redirect":
            _heredoc(child, unit, within, state, reader, depth)
        else:
            _substitutions(child, unit, within, state, depth)


def _heredoc(node: Node, unit: Unit, within: Enclosing, state: WalkState, reader: Command | None, depth: int) -> None:
    """Record a heredoc; if a shell reads it, walk over its text."""
    quoted = False
    for child in node.children:
        if child.type == "heredoc_start":
            quoted = any(mark in unit.source(child) for mark in "'\"\\")
        elif child.type == "heredoc_body":
            start, end = unit.span(child)
            text = unit.source(child)
            state.heredocs.append(
                Heredoc(text=text, start=start, end=end, line=state.place(start)[0], is_quoted=quoted, command=reader)
            )
            if reader is not None and _reads_shell(reader):
                inner = Unit(
                    text=text,
                    code=unit.code[child.start_byte : child.end_byte],
                    shift=unit.shift + child.start_byte,
                    fixed=unit.fixed,
                    parent=reader,
                )
                _walk_nested(inner, within, state, depth)
        elif child.is_named and not child.type.endswith(("_redirect", "heredoc_end")):
            _walk(child, unit, within, state, depth + 1)


def _reads_shell(command: Command) -> bool:
    """Whether the command is a shell that runs its standard input: `bash <<EOF`, `srun bash -s <<EOF`."""
    words = [word.text for word in command.words]
    at = next((i for i, word in enumerate(words) if base_name(word) in SHELLS), None)
    return at is not None and all(word.startswith("-") and word != "-c" for word in words[at + 1 :])


def _walk_nested(unit: Unit, within: Enclosing, state: WalkState, depth: int) -> None:
    """Walk over a text that another shell runs; its variables do not come back."""
    if state.num_nested >= _MAX_NESTED or not unit.code.strip():
        return
    state.num_nested += 1
    variables = dict(state.variables)
    _walk(parse(unit.code).root_node, unit, replace(within, is_heredoc=True), state, depth + 1)
    state.variables = variables
    state.num_nested -= 1


def _text_for_shell(command: Command, within: Enclosing, state: WalkState, depth: int) -> None:
    """`bash -c TEXT`, also after srun and the like, and `eval TEXT`: walk over the text."""
    words = command.words
    text: Word | None = None
    if command.name == "eval" and len(words) > 1:
        text = words[1]
    else:
        for index in range(len(words) - 2):
            is_shell = base_name(words[index].text) in SHELLS
            if is_shell and re.fullmatch(r"-[a-z]*c", words[index + 1].text):
                text = words[index + 2]
                break
    if text is None or text.text.startswith("-"):
        return
    code = resolve(text.text, state.variables)
    # Only text that the script has verbatim, between two quotes, has offsets of its own.
    is_verbatim = not text.is_expanded and code == text.text and text.end - text.start == len(text.text) + 2
    parent = None if command.name == "eval" else command
    unit = (
        Unit(text=code, code=code, shift=text.start + 1, parent=parent)
        if is_verbatim
        else Unit(text=code, code=code, fixed=(text.start, text.end), parent=parent)
    )
    _walk_nested(unit, within, state, depth)


def _substitutions(node: Node, unit: Unit, within: Enclosing, state: WalkState, depth: int) -> None:
    """Walk over the commands inside `$(...)` and `<(...)`."""
    if depth > MAX_DEPTH:
        return
    if node.type in ("command_substitution", "process_substitution"):
        _walk(node, unit, within, state, depth + 1)
        return
    if not node.child_count or not _SUBSTITUTES.search(unit.code, node.start_byte, node.end_byte):
        return
    for child in node.children:
        if child.child_count:
            _substitutions(child, unit, within, state, depth + 1)
