"""Post-mortems as Markdown and as a page."""
