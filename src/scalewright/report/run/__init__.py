"""Tables, plots and progress of a training run."""
