"""How a pipeline runs: phases of independent tasks, files between them, and back ends that run the tasks."""
