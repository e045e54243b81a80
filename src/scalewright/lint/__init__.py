"""Job scripts as Slurm and the shell read them, the rules that check them, and their fixes.

script_file.py -> script.py -> header/ and shell/     from a file to a `Script`
rules/ (how to add one: rules/__init__.py)            the checks, grouped by category
engine.py -> fixes.py, formats.py                     findings, rewritten scripts, JSON and SARIF
"""
