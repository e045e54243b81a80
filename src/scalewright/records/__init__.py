"""What is on disk and what layers share: run directories, events, documents, strict loading, exit codes."""
