"""A request becomes a job: its script, its submission, its ranks, graphs of jobs, advice and pre-flight checks."""
