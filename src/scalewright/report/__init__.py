"""Tables, plots and pages for people, grouped by what they show."""
