"""What executes on the nodes. The only package that imports torch, and no other imports it: its one door is
`python -m scalewright.run KIND --run-dir DIR`.
"""
