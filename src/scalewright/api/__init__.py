"""The Python interface behind `import scalewright as sw`: one module per function.

Each function asks one room and returns what it says as an object that shows itself in a notebook. It resolves nothing
and formats nothing itself: questions are resolved in `planner.question`, and `report.notebook` writes the HTML.
"""
