"""Tables and plots of predictions, plans and their validation."""
